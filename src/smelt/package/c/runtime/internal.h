/* What the runtime's files share. */
#ifndef SMELT_INTERNAL_H
#define SMELT_INTERNAL_H

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "smelt_program.h"

#define SMELT_ALIGNMENT 64

/* --- errors: the text of this thread's last one; each gives the status back. */
smelt_status smelt_fail(smelt_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
smelt_status smelt_no_memory(uint64_t nbytes, const char *what);

/* --- memory: aligned, never of no bytes; NULL where there is none. */
void *smelt_allocate(uint64_t nbytes);

/* --- tensors: what the executor calls handles. The dims stand behind the struct: sizes, then strides. */
typedef struct tensor {
    char *data;
    struct tensor *base; /* of a view: whose memory it is */
    struct chunk *chunk; /* the memory that it owns */
    struct smelt_context *context;
    int64_t ndim, capacity;
    int32_t dtype, references; /* 0: it belongs to its context, and is never deleted */
    void *foreign; /* libtorch's tensor whose memory it is, and what deletes that */
    void (*forget)(void *foreign);
    int64_t dims[];
} tensor;

tensor *smelt_tensor_over(char *data, const smelt_placed *placed);
void smelt_delete(tensor *handle);
/* A tensor of the running call without memory; NULL where there is none. */
tensor *smelt_new_tensor(int64_t ndim);
/* What a function that the executor calls gives back, the thread's error set. */
int32_t smelt_failed(smelt_status status);

/* --- libtorch (torch.c), where a program is linked to it: a tensor of its own over one of the runtime's; the other way
 * round, NULL with the thread's error set; what to do without such a tensor; an error of torch's. */
void *smelt_torch_lend(tensor *given);
tensor *smelt_torch_adopt(void *handle);
void smelt_torch_drop(void *handle);
int32_t smelt_torch_failed(const char *operator);
int64_t smelt_torch_function(int32_t number);
/* Copy with conversion and broadcasting; 1 where the tensors do not fit. */
int32_t smelt_copy(tensor *target, tensor *source);

/* Memory of deleted tensors, kept for the next ones: a call with sizes as before asks the system for nothing. */
typedef struct chunk {
    struct chunk *next;
    uint64_t nbytes;
} chunk;
typedef struct shelf {
    chunk *chunks;
    tensor *tensors;
    int32_t nchunks;
} shelf;
void smelt_clear(shelf *kept);

/* --- threads of a model. */
typedef void (*smelt_part)(int64_t begin, int64_t end, void *frame);
typedef struct pool pool;
pool *smelt_pool_new(void);
void smelt_pool_free(pool *threads);
/* part(0, 1) on this thread, and up to `threads` - 1 others on others, each at most once. */
void smelt_pool_run(pool *threads, int64_t count, smelt_part part, void *frame);
/* Whether a region may have more than one thread; the pool then is the caller's until `smelt_pool_leave`. */
bool smelt_pool_enter(pool *threads);
void smelt_pool_leave(pool *threads);

/* --- models and contexts. */
struct smelt_model {
    const smelt_program *program;
    char *file; /* NULL where there are no weights */
    char *panels;
    bool is_mapped;
    pool *threads;
};

/* A plan's frame, and the handles whose addresses stand in it. code: its own where it differs between sizes; tuple: that
 * of the sizes which it was filled for; -1: none. */
typedef struct frame {
    const smelt_entry *entry;
    const smelt_plan *plan;
    int64_t *cells;
    int32_t *own_code;
    int64_t tuple;
    tensor **held, **planned, **inputs, **results;
} frame;

enum { TEAM_WORDS = 5, MOST_SIZES = 64 };

struct smelt_context {
    smelt_model *model;
    frame *frames;
    char *state, *arena, *scratch;
    int64_t threads;
    int64_t team[TEAM_WORDS];
    int64_t *dims; /* of the inputs of a call */
    frame *running;
    shelf kept;
    int32_t failed_step;
    smelt_status failure; /* of a function of the runtime that a record called */
    atomic_bool is_cancelled;
};

/* The frame for a call's inputs, filled for their sizes. */
smelt_status smelt_frame_for(struct smelt_context *context, const smelt_entry *entry, const smelt_tensor *inputs,
                             frame **out);

/* The context whose call this thread runs. */
extern _Thread_local struct smelt_context *smelt_current;

smelt_status smelt_open_weights(smelt_model *model, const char *path, int flags);
void smelt_close_weights(smelt_model *model);
char *smelt_block_data(const smelt_model *model, const struct smelt_context *context, int32_t block);
void smelt_sha256(const void *data, uint64_t nbytes, uint8_t digest[32]);
/* A step of numbers, as C computes it: whether it could; why not, in the thread's error. */
bool smelt_number_step(const smelt_step *step, int64_t *cells);
int32_t smelt_callback(int64_t frame_address, int64_t step);
int64_t smelt_function(int32_t number);

/* The executor. Cells and statuses are those of smelt.runtime.table; a test compares them. */
int32_t smelt_run(const int32_t *code, int64_t *frame);
enum {
    CELL_FAILED_AT = 1, CELL_CALLBACK = 14, CELL_SCRATCH = 16, CELL_SCRATCH_STRIDE = 17, CELL_TEAM_WORDS = 20,
    CELL_TEAM_SIZE = 24, CELL_STEPPED = 52
};
/* A launch's descriptor, from its cell on. */
enum { LAUNCHED_ITEMS = 2, LAUNCHED_CHUNK = 3, LAUNCHED_FIRST_CHUNK = 4 };
enum { RUN_OK, RUN_LIBRARY, RUN_LAYOUT, RUN_ESCAPED, RUN_MALFORMED, RUN_MISS, RUN_INTERRUPTED };

#endif
