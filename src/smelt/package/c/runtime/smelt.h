/* Smelt's programs from C: a model that `smelt export` made, run without Python.
 *
 *     smelt_model *model;
 *     smelt_context *context;
 *     if (smelt_open(&my_program, "my.weights", 0, &model) || smelt_context_new(model, &context))
 *         return fail(smelt_error());
 *     smelt_tensor input = {pixels, SMELT_F32, 2, (int64_t[]){1, 784}, NULL}, output;
 *     if (smelt_call(context, 0, &input, 1, &output, 1))
 *         return fail(smelt_error());
 *
 * The header that is generated beside this one declares `my_program`, and a typed function for each entry point.
 *
 * Threads: a model may be used by any number of threads at once; a context, which has state and working memory, by one
 * at a time. Contexts of one model share its weights. Nothing here prints, exits, or changes settings of the process.
 */
#ifndef SMELT_H
#define SMELT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised where a structure or the meaning of a function changes. */
#define SMELT_ABI 4

typedef enum smelt_status {
    SMELT_OK = 0,
    SMELT_ARGUMENT = 1,    /* an argument is not what the program takes */
    SMELT_FILE = 2,        /* the weights cannot be read, or are not those of the program */
    SMELT_MEMORY = 3,      /* there is no memory */
    SMELT_CPU = 4,         /* this CPU lacks instructions that the program was exported for */
    SMELT_DATA = 5,        /* the program raises for these data: an index out of range, a division by zero */
    SMELT_OTHER_PATH = 6,  /* the data lead to a path that was not captured */
    SMELT_CANCELLED = 7,   /* smelt_cancel was called */
    SMELT_INTERNAL = 8     /* a fault of Smelt */
} smelt_status;

/* Types of elements; the numbers are torch's. */
typedef enum smelt_dtype {
    SMELT_U8 = 0, SMELT_I8 = 1, SMELT_I16 = 2, SMELT_I32 = 3, SMELT_I64 = 4, SMELT_F16 = 5, SMELT_F32 = 6,
    SMELT_F64 = 7, SMELT_C64 = 9, SMELT_BOOL = 11, SMELT_BF16 = 15
} smelt_dtype;

/* Elements in memory. strides: elements from one to the next in each dimension; NULL: they lie row by row. */
typedef struct smelt_tensor {
    void *data;
    smelt_dtype dtype;
    int32_t ndim;
    const int64_t *sizes;
    const int64_t *strides;
} smelt_tensor;

/* What an input must be, or an output is. A size of -1 is not known before the call: the caller chooses it, and its text
 * says how ("tokens", "2 * tokens"), or it depends on the data, and has no text (NULL). strides: as above, and -1 where
 * they follow from such sizes. is_written: of an input, that a call writes to the caller's memory.
 * size_texts: NULL where all sizes are numbers. */
typedef struct smelt_type {
    const char *name;
    smelt_dtype dtype;
    int32_t ndim;
    const int64_t *sizes;
    const int64_t *strides;
    int32_t is_written;
    const char *const *size_texts;
} smelt_type;

/* A size that the caller chooses: dimension `dim` of input `input`, from `low` to `high`. */
typedef struct smelt_size {
    const char *name;
    int32_t input, dim;
    int64_t low, high;
} smelt_size;

typedef struct smelt_signature {
    const char *name;
    int32_t ninputs, noutputs;
    const smelt_type *inputs, *outputs;
    int32_t nsizes;
    const smelt_size *sizes;
} smelt_signature;

typedef struct smelt_program smelt_program;
typedef struct smelt_model smelt_model;
typedef struct smelt_context smelt_context;

/* Flags of smelt_open. VERIFY: compare all weights with their digest, which reads them once; else their header and
 * whole numbers are. COPY: read the file instead of mapping it, where others may write to it meanwhile. */
enum { SMELT_VERIFY = 1, SMELT_COPY = 2 };

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/* What the last call of this thread that failed says: what, where and why. */
const char *smelt_error(void);

/* Open a program with its weights (NULL where it has none). */
smelt_status smelt_open(const smelt_program *program, const char *weights, int flags, smelt_model **model);
/* Close it; no context of it may be left. NULL is let pass. */
void smelt_close(smelt_model *model);

/* The entry points: how many, what each takes and gives (NULL where there is none of the number), and which one has a
 * name (-1: none). */
int32_t smelt_entries(const smelt_program *program);
const smelt_signature *smelt_describe(const smelt_program *program, int32_t entry);
int32_t smelt_find(const smelt_program *program, const char *name);
/* The operators that libtorch computes, by entry point ("forward: aten.sort.default"); "" where it is not linked. */
const char *smelt_needs(const smelt_program *program);

/* A context: state as it was saved, working memory of all entry points. One thread runs its calls until
 * smelt_set_threads says otherwise. */
smelt_status smelt_context_new(smelt_model *model, smelt_context **context);
void smelt_context_free(smelt_context *context);
/* The most threads of the next calls. They are the model's: while another context has them, a call runs alone. */
smelt_status smelt_set_threads(smelt_context *context, int32_t threads);

/* Run an entry point. Outputs stay where they are until the context's next call. Where a call fails, state that it
 * writes to may be written in part: smelt_reset makes it whole. */
smelt_status smelt_call(smelt_context *context, int32_t entry, const smelt_tensor *inputs, int32_t ninputs,
                        smelt_tensor *outputs, int32_t noutputs);
/* End a call that runs in another thread, within a loop of the program. A call that has not begun is not meant. */
void smelt_cancel(smelt_context *context);

/* State that calls write to: as it was saved again; and a tensor of it, by its name in the module, to be read and
 * written between calls. */
smelt_status smelt_reset(smelt_context *context);
smelt_status smelt_state(smelt_context *context, const char *name, smelt_tensor *tensor);

/* What generated code computes sizes with: whole numbers as Python divides them, -1 where it divides by zero. */
static inline int64_t smelt_floor_div(int64_t a, int64_t b)
{
    return b ? a / b - (a % b != 0 && (a < 0) != (b < 0)) : -1;
}
static inline int64_t smelt_modulo(int64_t a, int64_t b)
{
    return b ? a - b * smelt_floor_div(a, b) : -1;
}
static inline int64_t smelt_ceil_div(int64_t a, int64_t b)
{
    return b ? -smelt_floor_div(-a, b) : -1;
}
static inline int64_t smelt_larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}
static inline int64_t smelt_smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t smelt_absolute(int64_t a)
{
    return a < 0 ? -a : a;
}

/* Bytes of an element; 0 for what is no dtype. */
size_t smelt_itemsize(smelt_dtype dtype);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#ifdef __cplusplus
}
#endif
#endif
