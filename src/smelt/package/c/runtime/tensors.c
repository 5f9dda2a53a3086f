/* Tensors as the executor knows them: functions by the names of torch's C shim, over a small struct.
 *
 * A tensor that a call makes belongs to the context of the call; its memory returns there when it is deleted. Each
 * function gives 0, or 1 with the thread's error set. */
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "internal.h"

enum { FEW_DIMS = 8, MOST_CHUNKS = 64 };

size_t smelt_itemsize(smelt_dtype dtype)
{
    switch (dtype) {
    case SMELT_U8: case SMELT_I8: case SMELT_BOOL:
        return 1;
    case SMELT_I16: case SMELT_F16: case SMELT_BF16:
        return 2;
    case SMELT_I32: case SMELT_F32:
        return 4;
    case SMELT_I64: case SMELT_F64: case SMELT_C64:
        return 8;
    }
    return 0;
}

void *smelt_allocate(uint64_t nbytes)
{
    void *found = NULL;
    if (nbytes > UINT64_MAX / 2 || posix_memalign(&found, SMELT_ALIGNMENT, nbytes ? nbytes : 1))
        return NULL;
    return found;
}

int32_t smelt_failed(smelt_status status)
{
    if (smelt_current)
        smelt_current->failure = status;
    return 1;
}

/* --- making and deleting */

static tensor *bare_tensor(int64_t ndim, shelf *kept)
{
    tensor *made = kept && ndim <= FEW_DIMS ? kept->tensors : NULL;
    if (made) {
        kept->tensors = made->base;
    } else {
        int64_t capacity = ndim < FEW_DIMS ? FEW_DIMS : ndim;
        made = malloc(sizeof *made + 2 * (size_t)capacity * sizeof(int64_t));
        if (!made)
            return NULL;
        made->capacity = capacity;
    }
    int64_t capacity = made->capacity;
    memset(made, 0, sizeof *made);
    made->capacity = capacity;
    made->ndim = ndim;
    made->references = 1;
    return made;
}

tensor *smelt_tensor_over(char *data, const smelt_placed *placed)
{
    tensor *made = bare_tensor(placed->ndim, NULL);
    if (made) {
        made->data = data + placed->offset;
        made->dtype = placed->dtype;
        made->references = 0;
        if (placed->ndim)
            memcpy(made->dims, placed->dims, 2 * (size_t)placed->ndim * sizeof(int64_t));
    }
    return made;
}

static chunk *taken(shelf *kept, uint64_t nbytes)
{
    chunk **best = NULL;
    for (chunk **at = &kept->chunks; *at; at = &(*at)->next)
        if ((*at)->nbytes >= nbytes && (*at)->nbytes / 2 <= nbytes && (!best || (*at)->nbytes < (*best)->nbytes))
            best = at;
    if (best) {
        chunk *found = *best;
        *best = found->next;
        kept->nchunks--;
        return found;
    }
    /* Vectors may read and write up to a line behind the last element. */
    chunk *made = smelt_allocate(SMELT_ALIGNMENT + nbytes + SMELT_ALIGNMENT);
    if (made)
        made->nbytes = nbytes;
    return made;
}

static void put_back(shelf *kept, chunk *given)
{
    given->next = kept->chunks;
    kept->chunks = given;
    if (++kept->nchunks <= MOST_CHUNKS)
        return;
    chunk **at = &kept->chunks;
    while ((*at)->next)
        at = &(*at)->next;
    free(*at);
    *at = NULL;
    kept->nchunks--;
}

void smelt_clear(shelf *kept)
{
    for (chunk *next; kept->chunks; kept->chunks = next) {
        next = kept->chunks->next;
        free(kept->chunks);
    }
    for (tensor *next; kept->tensors; kept->tensors = next) {
        next = kept->tensors->base;
        free(kept->tensors);
    }
    kept->nchunks = 0;
}

void smelt_delete(tensor *handle)
{
    while (handle && handle->references && --handle->references == 0) {
        tensor *base = handle->base;
        shelf *kept = &handle->context->kept;
        if (handle->chunk)
            put_back(kept, handle->chunk);
        if (handle->foreign)
            handle->forget(handle->foreign);
        if (handle->capacity == FEW_DIMS) {
            handle->base = kept->tensors;
            kept->tensors = handle;
        } else {
            free(handle);
        }
        handle = base;
    }
}

tensor *smelt_new_tensor(int64_t ndim)
{
    tensor *made = bare_tensor(ndim, &smelt_current->kept);
    if (made)
        made->context = smelt_current;
    else
        smelt_failed(smelt_no_memory(sizeof *made, "a tensor of the program"));
    return made;
}

/* Bytes from the first to past the last element; false where that is no size of memory. */
static bool span_of(int64_t ndim, const int64_t *sizes, const int64_t *strides, size_t itemsize, uint64_t *nbytes)
{
    int64_t last = 0;
    bool is_empty = false;
    for (int64_t i = 0; i < ndim; i++) {
        int64_t reach;
        if (sizes[i] < 0 || strides[i] < 0)
            return false;
        if (!sizes[i])
            is_empty = true;
        else if (__builtin_mul_overflow(sizes[i] - 1, strides[i], &reach) || __builtin_add_overflow(last, reach, &last))
            return false;
    }
    if (is_empty) {
        *nbytes = 0;
        return true;
    }
    return last < INT64_MAX && !__builtin_mul_overflow((uint64_t)last + 1, (uint64_t)itemsize, nbytes) &&
           *nbytes < UINT64_MAX / 4;
}

static void set_dims(tensor *made, const int64_t *sizes, const int64_t *strides)
{
    for (int64_t i = 0; i < made->ndim; i++) {
        made->dims[i] = sizes[i];
        made->dims[made->ndim + i] = strides[i];
    }
}

static int32_t rt_aoti_torch_empty_strided(int64_t ndim, const int64_t *sizes, const int64_t *strides, int32_t dtype,
                                           int32_t device, int32_t index, tensor **out)
{
    (void)device, (void)index;
    uint64_t nbytes;
    if (!span_of(ndim, sizes, strides, smelt_itemsize(dtype), &nbytes))
        return smelt_failed(smelt_fail(SMELT_DATA, "a tensor of the program has sizes that no memory has"));
    tensor *made = bare_tensor(ndim, &smelt_current->kept);
    chunk *memory = made ? taken(&smelt_current->kept, nbytes) : NULL;
    if (!memory) {
        free(made);
        return smelt_failed(smelt_no_memory(nbytes, "a tensor of the program"));
    }
    made->chunk = memory;
    made->data = (char *)memory + SMELT_ALIGNMENT;
    made->dtype = dtype;
    made->context = smelt_current;
    set_dims(made, sizes, strides);
    *out = made;
    return 0;
}

static int32_t rt_aoti_torch__reinterpret_tensor(tensor *source, int64_t ndim, const int64_t *sizes,
                                                 const int64_t *strides, int64_t offset, tensor **out)
{
    tensor *made = bare_tensor(ndim, &smelt_current->kept);
    if (!made)
        return smelt_failed(smelt_no_memory(sizeof *made, "a view"));
    made->data = source->data + offset * (int64_t)smelt_itemsize(source->dtype);
    made->dtype = source->dtype;
    made->context = smelt_current;
    if (source->references) {
        source->references++;
        made->base = source;
    }
    set_dims(made, sizes, strides);
    *out = made;
    return 0;
}

static int32_t rt_aoti_torch_delete_tensor_object(tensor *handle)
{
    smelt_delete(handle);
    return 0;
}

/* --- looking at one */

static int32_t rt_aoti_torch_get_data_ptr(const tensor *handle, char **out)
{
    *out = handle->data;
    return 0;
}

static int32_t rt_aoti_torch_get_dim(const tensor *handle, int64_t *out)
{
    *out = handle->ndim;
    return 0;
}

static int32_t rt_aoti_torch_get_sizes(tensor *handle, int64_t **out)
{
    *out = handle->dims;
    return 0;
}

static int32_t rt_aoti_torch_get_strides(tensor *handle, int64_t **out)
{
    *out = handle->dims + handle->ndim;
    return 0;
}

static int32_t rt_aoti_torch_get_dtype(const tensor *handle, int32_t *out)
{
    *out = handle->dtype;
    return 0;
}

static int32_t rt_aoti_torch_copy_(tensor *target, tensor *source, int32_t non_blocking)
{
    (void)non_blocking;
    if (!smelt_copy(target, source))
        return 0;
    return smelt_failed(smelt_fail(SMELT_INTERNAL, "a copy between tensors of other sizes or of complex numbers"));
}

/* --- what else the executor calls */

static int32_t rt_smelt_parallel_for(int64_t begin, int64_t end, int64_t grain, smelt_part part, void *cells)
{
    (void)begin, (void)grain;
    struct smelt_context *context = smelt_current;
    int64_t count = end < context->threads ? end : context->threads;
    bool has_pool = count > 1 && smelt_pool_enter(context->model->threads);
    /* How many parts there are follows from this cell. */
    ((int64_t *)cells)[CELL_TEAM_SIZE] = has_pool ? count : 1;
    if (!has_pool) {
        part(0, 1, cells);
        return 0;
    }
    smelt_pool_run(context->model->threads, count, part, cells);
    smelt_pool_leave(context->model->threads);
    return 0;
}

/* The executor takes Python's lock to look for signals; here it looks whether the call is cancelled. */
static int32_t rt_PyGILState_Ensure(void)
{
    return 0;
}

static void rt_PyGILState_Release(int32_t state)
{
    (void)state;
}

static int32_t rt_PyErr_CheckSignals(void)
{
    return atomic_load_explicit(&smelt_current->is_cancelled, memory_order_relaxed);
}

static void rt_PyErr_Fetch(void **type, void **value, void **traceback)
{
    *type = *value = *traceback = NULL;
}

#define rt_sched_yield sched_yield
#define rt_clock_gettime clock_gettime
#define rt_memcpy memcpy
#define rt_pow pow

int64_t smelt_function(int32_t number)
{
    switch (number) {
#define F(name)              \
    case SMELT_FN_##name:    \
        return (int64_t)(intptr_t)&rt_##name;
        SMELT_FUNCTIONS(F)
#undef F
    }
    return 0;
}
