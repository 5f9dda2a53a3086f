/* The tables of an exported program, as the generated source has them. Nothing for users: it changes with SMELT_ABI.
 *
 * Words and cells are those of Smelt's executor, which is linked beside; a relocation says which cell holds an address
 * that is known when a context is made. */
#ifndef SMELT_PROGRAM_H
#define SMELT_PROGRAM_H

#include "smelt.h"

/* Functions that the executor calls by address. */
#define SMELT_FUNCTIONS(F)            \
    F(aoti_torch_empty_strided)       \
    F(aoti_torch__reinterpret_tensor) \
    F(aoti_torch_delete_tensor_object) \
    F(aoti_torch_copy_)               \
    F(aoti_torch_get_data_ptr)        \
    F(aoti_torch_get_dim)             \
    F(aoti_torch_get_sizes)           \
    F(aoti_torch_get_strides)         \
    F(aoti_torch_get_dtype)           \
    F(smelt_parallel_for)             \
    F(PyGILState_Ensure)              \
    F(PyGILState_Release)             \
    F(PyErr_CheckSignals)             \
    F(PyErr_Fetch)                    \
    F(sched_yield)                    \
    F(clock_gettime)                  \
    F(memcpy)                         \
    F(pow)
/* Those of programs that are linked to libtorch: torch.c has them. */
#define SMELT_TORCH_FUNCTIONS(F)      \
    F(torch_dispatch_0)               \
    F(torch_dispatch_1)               \
    F(torch_dispatch_2)               \
    F(torch_dispatch_3)               \
    F(torch_dispatch_4)               \
    F(torch_dispatch_5)               \
    F(torch_dispatch_6)               \
    F(torch_dispatch_7)               \
    F(torch_dispatch_8)               \
    F(aoti_torch_new_tensor_handle)   \
    F(torch_new_stable_ivalue)        \
    F(torch_new_list_reserve_size)    \
    F(torch_list_push_back)           \
    F(torch_delete_handle)            \
    F(torch_delete_stable_ivalue)     \
    F(torch_delete_list)
enum {
#define F(name) SMELT_FN_##name,
    SMELT_FUNCTIONS(F)
    SMELT_TORCH_FUNCTIONS(F)
#undef F
    SMELT_FUNCTION_COUNT
};

/* Where a cell's address lies: a function, a call of libtorch's C interface, a kernel, constant data, a block of weights, the frame, the arena, and the
 * handles of tensors that are held and of those in the arena. `index` says which, `offset` bytes behind its begin. */
enum {
    SMELT_AT_FUNCTION, SMELT_AT_KERNEL, SMELT_AT_DATA, SMELT_AT_BLOCK, SMELT_AT_FRAME, SMELT_AT_ARENA, SMELT_AT_HELD,
    SMELT_AT_PLANNED, SMELT_AT_CALL
};
typedef struct smelt_relocation {
    int32_t cell, kind, index;
    int64_t offset;
} smelt_relocation;

/* Memory of weights: in the file; of panels that opening fills; or of state, that each context has of its own, from
 * contents in the file. `place`: from the file's begin; `own`: from the begin of the panels, or of a context's state. */
enum { SMELT_IN_FILE, SMELT_IN_PANELS, SMELT_IN_STATE };
typedef struct smelt_block {
    int32_t home;
    uint64_t place, own, nbytes;
} smelt_block;

/* A tensor over a block, or over the arena: `offset` in bytes; sizes, then strides, from `dims` on. */
typedef struct smelt_placed {
    int32_t block;
    int64_t offset;
    int32_t dtype, ndim;
    const int64_t *dims;
} smelt_placed;

/* A function of libtorch's C interface over the runtime's tensors, to be called with as many words as it takes. */
typedef int32_t (*smelt_library_call)(void);

typedef int32_t (*smelt_kernel)(const int64_t *args, int64_t begin, int64_t end, void *scratch);

/* Panels that opening fills: the kernel's words follow the addresses of matrix and panels. */
typedef struct smelt_packing {
    smelt_kernel kernel;
    int32_t matrix, panels, nwords;
    const int64_t *words;
    int64_t items;
} smelt_packing;

/* What stands behind an executor's record that may fail: a launch whose kernel refuses data; numbers, which C computes
 * in its own way, or an expectation, by the word of its record. */
enum { SMELT_STEP_LAUNCH, SMELT_STEP_NUMBER, SMELT_STEP_EXPECT };
typedef struct smelt_step {
    int32_t kind, operation, dst, a, b, at;
    const char *text;
} smelt_step;

/* How an output comes to be. RESULT: result number `cell`; NUMBER: the number in a cell; INPUT: an input, or a view of it
 * (`placed`, where dims are not NULL); BLOCK: state, or a view of it; CONSTANT: the bits in `bits`; EITHER: one of `count`
 * from `first` on, by the number in a cell. A view whose dims follow from free sizes has them, and its offset in elements
 * behind them, in the cells from `bits` on, where that is not 0. */
enum { SMELT_OUT_RESULT, SMELT_OUT_NUMBER, SMELT_OUT_INPUT, SMELT_OUT_BLOCK, SMELT_OUT_CONSTANT, SMELT_OUT_EITHER };
typedef struct smelt_source {
    int32_t kind, cell, dtype, first, count;
    int64_t bits;
    smelt_placed placed;
} smelt_source;

/* What differs between sizes. Tuples of sizes are numbered from `low` on, `count` of each, the last size fastest. A column
 * has a number for each tuple, in runs: column c has those from columns[c] to before columns[c + 1]; from tuple `first`
 * on the number is base + step * (tuple - first), modulo 2**64. Column `taken` says whether the plan is for a tuple. */
typedef struct smelt_sized smelt_sized;

/* Where a number goes: into a cell; as a double; as an address in the arena; as that of a planned handle; and into its
 * dims, at `dim`. */
enum { SMELT_FILL_CELL, SMELT_FILL_DOUBLE, SMELT_FILL_ARENA, SMELT_FILL_PLANNED, SMELT_FILL_DIM };
typedef struct smelt_fill {
    int32_t kind, column, where, dim;
} smelt_fill;

/* A launch: its descriptor's cell, the columns of its items and of one item's nanoseconds, which is a double. */
typedef struct smelt_work {
    int32_t cell, items, item_ns;
} smelt_work;

/* Launches that are one group, or groups that are one region, from `first` on. `word` of the code has the number of the
 * group's chunks, or of the region's threads. */
typedef struct smelt_share {
    int32_t word, first, count;
} smelt_share;

struct smelt_sized {
    const int64_t *low, *count;
    const int32_t *columns;
    const uint16_t *firsts;
    const int64_t *bases, *steps;
    const smelt_fill *fills;
    const smelt_work *works;
    const smelt_share *groups, *teams;
    int32_t taken, nfills, ngroups, nteams;
};

/* A plan: what the executor walks. sized: NULL where the entry point's sizes are numbers. */
typedef struct smelt_plan {
    const int32_t *code;
    const int64_t *cells;
    const smelt_relocation *relocations;
    const int64_t *data;
    const smelt_kernel *kernels;
    const smelt_library_call *calls;
    const smelt_placed *held, *planned;
    const int32_t *input_cells, *result_cells;
    const smelt_source *outputs;
    const smelt_step *steps;
    int32_t ncode, ncells, nrelocations, nheld, nplanned, nresults, nsteps, team_limit;
    uint64_t arena_nbytes, scratch_stride;
    const smelt_sized *sized;
} smelt_plan;

/* An entry point: one plan, or several, of which each is for some sizes. first_plan: the number of the first among all
 * plans of the program. dims: gives the dims of all inputs, `ndims` numbers, for sizes: of each input its sizes, then its
 * strides. broken: the text of a condition that sizes within their bounds do not fulfil; NULL where there is none. */
typedef struct smelt_entry {
    smelt_signature signature;
    const smelt_plan *plans;
    int32_t nplans, first_plan, ndims;
    void (*dims)(const int64_t *sizes, int64_t *out);
    const char *(*broken)(const int64_t *sizes);
} smelt_entry;

typedef struct smelt_named {
    const char *name;
    smelt_placed placed;
} smelt_named;

/* cpu: what it takes (SMELT_NEEDS_...). needs: the operators that libtorch computes, as text; empty where all are its own.
 * function: an address of libtorch's, by number; NULL where it is not linked. checked_nbytes: of the file, from its begin, whose digest is compared. */
enum { SMELT_NEEDS_AVX2 = 1, SMELT_NEEDS_AVX512 = 2, SMELT_NEEDS_NEON = 3 };
struct smelt_program {
    int32_t abi, cpu, nentries, nplans, nblocks, npackings, nstate;
    const char *name, *needs;
    int64_t (*function)(int32_t number);
    const smelt_entry *entries;
    const smelt_block *blocks;
    const smelt_packing *packings;
    const smelt_named *state;
    uint64_t file_nbytes, checked_nbytes, panels_nbytes, state_nbytes;
    uint8_t checked_digest[32], digest[32];
};

#endif
