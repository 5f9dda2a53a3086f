/* One call: inputs are checked and lent to the frame, the executor walks it, outputs are handed out. */
#include <string.h>

#include "internal.h"

static smelt_status unfit(const smelt_entry *entry, int32_t number, const char *what, long long found, long long wanted)
{
    return smelt_fail(SMELT_ARGUMENT, "%s: input %d, %s: %s is %lld, the program takes %lld", entry->signature.name,
                      number, entry->signature.inputs[number].name, what, found, wanted);
}

static smelt_status check_input(const smelt_entry *entry, int32_t number, const smelt_tensor *given)
{
    const smelt_type *type = &entry->signature.inputs[number];
    if (given->dtype != type->dtype)
        return unfit(entry, number, "its dtype", given->dtype, type->dtype);
    if (given->ndim != type->ndim)
        return unfit(entry, number, "the number of its dimensions", given->ndim, type->ndim);
    if (given->ndim && !given->sizes)
        return unfit(entry, number, "the address of its sizes", 0, 1);
    int64_t nelements = 1, row = 1, wanted_row = 1;
    for (int32_t i = 0; i < type->ndim; i++) {
        if (given->sizes[i] != type->sizes[i])
            return unfit(entry, number, "a size", given->sizes[i], type->sizes[i]);
        nelements *= type->sizes[i];
    }
    for (int32_t i = type->ndim - 1; nelements && i >= 0; i--) {
        int64_t step = given->strides ? given->strides[i] : row;
        int64_t wanted = type->strides ? type->strides[i] : wanted_row;
        if (type->sizes[i] != 1 && step != wanted)
            return unfit(entry, number, "a stride", step, wanted);
        row *= type->sizes[i];
        wanted_row *= type->sizes[i];
    }
    if (nelements && !given->data)
        return unfit(entry, number, "its address", 0, 1);
    return SMELT_OK;
}

static smelt_status check(const smelt_entry *entry, const smelt_tensor *inputs, int32_t ninputs, int32_t noutputs)
{
    if (ninputs != entry->signature.ninputs)
        return smelt_fail(SMELT_ARGUMENT, "%s takes %d inputs, %d were passed", entry->signature.name,
                          entry->signature.ninputs, ninputs);
    if (noutputs != entry->signature.noutputs)
        return smelt_fail(SMELT_ARGUMENT, "%s gives %d outputs, there is room for %d", entry->signature.name,
                          entry->signature.noutputs, noutputs);
    for (int32_t i = 0; i < ninputs; i++) {
        smelt_status status = check_input(entry, i, &inputs[i]);
        if (status)
            return status;
    }
    return SMELT_OK;
}

/* --- failures */

static const char *expected_at(const smelt_entry *entry, int64_t word)
{
    for (int32_t i = 0; i < entry->nsteps; i++)
        if (entry->steps[i].kind == SMELT_STEP_EXPECT && entry->steps[i].at == word)
            return entry->steps[i].text;
    return "a test on data";
}

static smelt_status failure(struct smelt_context *context, const frame *at, int32_t status)
{
    const smelt_entry *entry = at->entry;
    const char *name = entry->signature.name;
    switch (status) {
    case RUN_INTERRUPTED:
        return smelt_fail(SMELT_CANCELLED, "%s: the call was cancelled", name);
    case RUN_MISS:
        return smelt_fail(SMELT_OTHER_PATH, "%s: the program takes another path for these data: %s", name,
                          expected_at(entry, at->cells[CELL_FAILED_AT]));
    case RUN_LIBRARY:
        if (context->failure)
            return context->failure; /* its function has said why */
        if (atomic_load(&context->is_cancelled))
            return smelt_fail(SMELT_CANCELLED, "%s: the call was cancelled", name);
        if (context->failed_step >= 0 && entry->steps[context->failed_step].kind == SMELT_STEP_LAUNCH)
            return smelt_fail(SMELT_DATA, "%s: %s: data that it does not compute with, an index out of range", name,
                              entry->steps[context->failed_step].text);
        if (context->failed_step >= 0)
            return SMELT_DATA; /* the number's step has said why */
    }
    return smelt_fail(SMELT_INTERNAL, "%s: the run ended with status %d at word %lld", name, status,
                      (long long)at->cells[CELL_FAILED_AT]);
}

int32_t smelt_callback(int64_t frame_address, int64_t number)
{
    struct smelt_context *context = smelt_current;
    const smelt_step *step = &context->running->entry->steps[number];
    int64_t *cells = (int64_t *)(intptr_t)frame_address;
    context->failed_step = (int32_t)number;
    if (step->kind != SMELT_STEP_NUMBER || !smelt_number_step(step, cells))
        return 1;
    context->failed_step = -1;
    cells[CELL_STEPPED] = 1;
    return 0;
}

/* --- outputs */

static smelt_tensor tensor_of(const tensor *handle)
{
    return (smelt_tensor){handle->data, (smelt_dtype)handle->dtype, (int32_t)handle->ndim, handle->dims,
                          handle->dims + handle->ndim};
}

static smelt_tensor output(struct smelt_context *context, frame *at, const smelt_source *source)
{
    if (source->kind == SMELT_OUT_EITHER) {
        int64_t which = at->cells[source->cell];
        source = &at->entry->outputs[source->first + (which >= 0 && which < source->count ? which : 0)];
    }
    const smelt_placed *placed = &source->placed;
    char *data = NULL;
    switch (source->kind) {
    case SMELT_OUT_RESULT:
        return tensor_of(at->results[source->cell]);
    case SMELT_OUT_NUMBER:
        return (smelt_tensor){&at->cells[source->cell], (smelt_dtype)source->dtype, 0, NULL, NULL};
    case SMELT_OUT_CONSTANT:
        return (smelt_tensor){(void *)(intptr_t)&source->bits, (smelt_dtype)source->dtype, 0, NULL, NULL};
    case SMELT_OUT_INPUT:
        data = at->inputs[source->cell]->data;
        if (!placed->dims)
            return tensor_of(at->inputs[source->cell]);
        break;
    default: /* SMELT_OUT_BLOCK */
        data = smelt_block_data(context->model, context, placed->block);
    }
    return (smelt_tensor){data + placed->offset, (smelt_dtype)placed->dtype, placed->ndim, placed->dims,
                          placed->dims + placed->ndim};
}

static void release_results(struct smelt_context *context)
{
    for (int32_t i = 0; i < context->model->program->nentries; i++) {
        frame *each = &context->frames[i];
        for (int32_t j = 0; j < each->entry->nresults; j++) {
            smelt_delete(each->results[j]);
            each->results[j] = NULL;
        }
    }
}

smelt_status smelt_call(smelt_context *context, int32_t number, const smelt_tensor *inputs, int32_t ninputs,
                        smelt_tensor *outputs, int32_t noutputs)
{
    if (!context || (ninputs && !inputs) || (noutputs && !outputs))
        return smelt_fail(SMELT_ARGUMENT, "smelt_call takes a context, its inputs, and where to put its outputs");
    if (number < 0 || number >= context->model->program->nentries)
        return smelt_fail(SMELT_ARGUMENT, "there is no entry point %d", number);
    frame *at = &context->frames[number];
    const smelt_entry *entry = at->entry;
    smelt_status status = check(entry, inputs, ninputs, noutputs);
    if (status)
        return status;
    release_results(context);
    for (int32_t i = 0; i < ninputs; i++) {
        at->inputs[i]->data = inputs[i].data;
        at->cells[entry->input_cells[i]] = (int64_t)(intptr_t)at->inputs[i];
    }
    struct smelt_context *before = smelt_current;
    context->running = at;
    context->failed_step = -1;
    context->failure = SMELT_OK;
    atomic_store(&context->is_cancelled, false);
    smelt_current = context;
    int32_t found = smelt_run(entry->code, at->cells);
    if (found)
        status = failure(context, at, found);
    smelt_current = before;
    if (status)
        return status;
    for (int32_t i = 0; i < entry->nresults; i++) {
        int64_t *cell = &at->cells[entry->result_cells[i]];
        at->results[i] = (tensor *)(intptr_t)*cell;
        *cell = 0; /* else a run that fails would delete it */
    }
    for (int32_t i = 0; i < noutputs; i++)
        outputs[i] = output(context, at, &entry->outputs[i]);
    return SMELT_OK;
}
