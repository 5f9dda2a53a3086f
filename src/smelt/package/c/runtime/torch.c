/* Operators of torch, for programs that are linked to it: functions of libtorch's C interface over the runtime's tensors.
 *
 * A tensor that is lent shares the memory of the runtime's, and keeps it for as long as torch has it; one that torch makes
 * becomes one of the runtime's, which deletes it. Source: torch/csrc/stable/c/shim.h, aoti_torch/c/shim.h. */
#include "internal.h"

extern int32_t torch_from_blob(void *data, int64_t ndim, const int64_t *sizes, const int64_t *strides, int64_t offset,
                               int32_t dtype, int32_t device, int32_t index, void **out, int32_t layout,
                               const uint8_t *metadata, int64_t nmetadata, void (*deleter)(void *, void *), void *context);
extern int32_t torch_call_dispatcher(const char *name, const char *overload, uint64_t *stack, uint64_t version);
extern int32_t torch_new_stable_ivalue(uint64_t **out);
extern int32_t torch_delete_stable_ivalue(uint64_t *value);
extern int32_t torch_new_list_reserve_size(size_t size, void **out);
extern int32_t torch_list_push_back(void *list, uint64_t value);
extern int32_t torch_delete_list(void *list);
extern int32_t aoti_torch_delete_tensor_object(void *handle);
extern int32_t aoti_torch_get_data_ptr(void *handle, void **out);
extern int32_t aoti_torch_get_dim(void *handle, int64_t *out);
extern int32_t aoti_torch_get_sizes(void *handle, int64_t **out);
extern int32_t aoti_torch_get_strides(void *handle, int64_t **out);
extern int32_t aoti_torch_get_dtype(void *handle, int32_t *out);
extern int32_t aoti_torch_layout_strided(void);
extern bool aoti_torch_grad_mode_is_enabled(void);
extern void aoti_torch_grad_mode_set_enabled(bool enabled);
extern const char *torch_exception_get_what_without_backtrace(void) __attribute__((weak));

int32_t smelt_torch_failed(const char *operator)
{
    const char *why = torch_exception_get_what_without_backtrace ? torch_exception_get_what_without_backtrace() : "";
    return smelt_failed(smelt_fail(SMELT_DATA, "torch: %s: %s", operator, why && *why ? why : "the operator failed"));
}

/* --- tensors */

static void give_back(void *data, void *owner)
{
    (void)data;
    smelt_delete(owner);
}

void *smelt_torch_lend(tensor *given)
{
    if (!given)
        return NULL;
    /* Of a view the whole memory, so that operators that count from its begin find it. */
    tensor *root = given;
    while (root->base)
        root = root->base;
    int64_t itemsize = (int64_t)smelt_itemsize(given->dtype), apart = given->data - root->data;
    bool is_counted = root->data && itemsize && apart >= 0 && apart % itemsize == 0;
    char *data = is_counted ? root->data : given->data;
    bool is_owned = given->references > 0;
    given->references += is_owned;
    void *made = NULL;
    if (!torch_from_blob(data, given->ndim, given->dims, given->dims + given->ndim, is_counted ? apart / itemsize : 0,
                         given->dtype, 0, -1, &made, aoti_torch_layout_strided(), NULL, 0, is_owned ? give_back : NULL,
                         given))
        return made;
    if (is_owned)
        smelt_delete(given);
    return NULL;
}

void smelt_torch_drop(void *handle)
{
    if (handle)
        aoti_torch_delete_tensor_object(handle);
}

tensor *smelt_torch_adopt(void *handle)
{
    int64_t ndim = 0, *sizes = NULL, *strides = NULL;
    int32_t dtype = 0;
    void *data = NULL;
    if (!handle || aoti_torch_get_dim(handle, &ndim) || aoti_torch_get_sizes(handle, &sizes) ||
        aoti_torch_get_strides(handle, &strides) || aoti_torch_get_dtype(handle, &dtype) ||
        aoti_torch_get_data_ptr(handle, &data)) {
        smelt_torch_failed("a result");
        return NULL;
    }
    tensor *made = smelt_new_tensor(ndim);
    if (!made)
        return NULL;
    made->data = data;
    made->dtype = dtype;
    made->foreign = handle;
    made->forget = smelt_torch_drop;
    for (int64_t i = 0; i < ndim; i++) {
        made->dims[i] = sizes[i];
        made->dims[ndim + i] = strides[i];
    }
    return made;
}

/* --- the dispatcher: its stack has torch's tensors, the results are the runtime's */

static int32_t dispatch(const char *name, const char *overload, uint64_t *stack, uint64_t version, int32_t nresults)
{
    bool records = aoti_torch_grad_mode_is_enabled();
    aoti_torch_grad_mode_set_enabled(false);
    int32_t status = torch_call_dispatcher(name, overload, stack, version);
    aoti_torch_grad_mode_set_enabled(records);
    if (status)
        return smelt_torch_failed(name);
    bool is_whole = true;
    for (int32_t i = 0; i < nresults; i++) {
        void *handle = (void *)(uintptr_t)stack[i];
        tensor *found = is_whole ? smelt_torch_adopt(handle) : NULL;
        stack[i] = (uint64_t)(uintptr_t)found;
        if (!found) {
            smelt_torch_drop(handle);
            is_whole = false;
        }
    }
    if (is_whole)
        return 0;
    for (int32_t i = 0; i < nresults; i++)
        smelt_delete((tensor *)(uintptr_t)stack[i]);
    return 1;
}

#define D(count)                                                                                                        \
    static int32_t rt_torch_dispatch_##count(const char *name, const char *overload, uint64_t *stack, uint64_t version) \
    {                                                                                                                   \
        return dispatch(name, overload, stack, version, count);                                                         \
    }
D(0) D(1) D(2) D(3) D(4) D(5) D(6) D(7) D(8)
#undef D

static int32_t rt_aoti_torch_new_tensor_handle(tensor *given, void **out)
{
    *out = smelt_torch_lend(given);
    return *out ? 0 : smelt_torch_failed("a tensor");
}

static int32_t rt_torch_delete_handle(void *handle)
{
    smelt_torch_drop(handle);
    return 0;
}

#define rt_torch_new_stable_ivalue torch_new_stable_ivalue
#define rt_torch_new_list_reserve_size torch_new_list_reserve_size
#define rt_torch_list_push_back torch_list_push_back
#define rt_torch_delete_stable_ivalue torch_delete_stable_ivalue
#define rt_torch_delete_list torch_delete_list

int64_t smelt_torch_function(int32_t number)
{
    switch (number) {
#define F(name)           \
    case SMELT_FN_##name: \
        return (int64_t)(intptr_t)&rt_##name;
        SMELT_TORCH_FUNCTIONS(F)
#undef F
    }
    return 0;
}
