/* One call: inputs are checked (sizes.c) and lent to a frame, the executor walks it, outputs are handed out. */
#include <string.h>

#include "internal.h"

static smelt_status check_counts(const smelt_entry *entry, int32_t ninputs, int32_t noutputs)
{
    if (ninputs != entry->signature.ninputs)
        return smelt_fail(SMELT_ARGUMENT, "%s takes %d inputs, %d were passed", entry->signature.name,
                          entry->signature.ninputs, ninputs);
    if (noutputs != entry->signature.noutputs)
        return smelt_fail(SMELT_ARGUMENT, "%s gives %d outputs, there is room for %d", entry->signature.name,
                          entry->signature.noutputs, noutputs);
    return SMELT_OK;
}

/* --- failures */

static const char *expected_at(const smelt_plan *plan, int64_t word)
{
    for (int32_t i = 0; i < plan->nsteps; i++)
        if (plan->steps[i].kind == SMELT_STEP_EXPECT && plan->steps[i].at == word)
            return plan->steps[i].text;
    return "a test on data";
}

static smelt_status failure(struct smelt_context *context, const frame *at, int32_t status)
{
    const smelt_plan *plan = at->plan;
    const char *name = at->entry->signature.name;
    switch (status) {
    case RUN_INTERRUPTED:
        return smelt_fail(SMELT_CANCELLED, "%s: the call was cancelled", name);
    case RUN_MISS:
        return smelt_fail(SMELT_OTHER_PATH, "%s: the program takes another path for these data: %s", name,
                          expected_at(plan, at->cells[CELL_FAILED_AT]));
    case RUN_LIBRARY:
        if (context->failure)
            return context->failure; /* its function has said why */
        if (atomic_load(&context->is_cancelled))
            return smelt_fail(SMELT_CANCELLED, "%s: the call was cancelled", name);
        if (context->failed_step >= 0 && plan->steps[context->failed_step].kind == SMELT_STEP_LAUNCH)
            return smelt_fail(SMELT_DATA, "%s: %s: data that it does not compute with, an index out of range", name,
                              plan->steps[context->failed_step].text);
        if (context->failed_step >= 0)
            return SMELT_DATA; /* the number's step has said why */
    }
    return smelt_fail(SMELT_INTERNAL, "%s: the run ended with status %d at word %lld", name, status,
                      (long long)at->cells[CELL_FAILED_AT]);
}

int32_t smelt_callback(int64_t frame_address, int64_t number)
{
    struct smelt_context *context = smelt_current;
    const smelt_step *step = &context->running->plan->steps[number];
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
        source = &at->plan->outputs[source->first + (which >= 0 && which < source->count ? which : 0)];
    }
    const smelt_placed *placed = &source->placed;
    const int64_t *dims = placed->dims;
    char *data = NULL;
    int64_t offset = placed->offset;
    switch (source->kind) {
    case SMELT_OUT_RESULT:
        return tensor_of(at->results[source->cell]);
    case SMELT_OUT_NUMBER:
        return (smelt_tensor){&at->cells[source->cell], (smelt_dtype)source->dtype, 0, NULL, NULL};
    case SMELT_OUT_CONSTANT:
        return (smelt_tensor){(void *)(intptr_t)&source->bits, (smelt_dtype)source->dtype, 0, NULL, NULL};
    case SMELT_OUT_INPUT:
        data = at->inputs[source->cell]->data;
        if (!dims)
            return tensor_of(at->inputs[source->cell]);
        break;
    default: /* SMELT_OUT_BLOCK */
        data = smelt_block_data(context->model, context, placed->block);
    }
    if (source->bits) {
        dims = &at->cells[source->bits];
        offset += dims[2 * placed->ndim] * (int64_t)smelt_itemsize((smelt_dtype)placed->dtype);
    }
    return (smelt_tensor){data + offset, (smelt_dtype)placed->dtype, placed->ndim, dims, dims + placed->ndim};
}

static void release_results(struct smelt_context *context)
{
    for (int32_t i = 0; i < context->model->program->nplans; i++) {
        frame *each = &context->frames[i];
        for (int32_t j = 0; j < each->plan->nresults; j++) {
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
    const smelt_entry *entry = &context->model->program->entries[number];
    frame *at;
    smelt_status status = check_counts(entry, ninputs, noutputs);
    if (!status)
        status = smelt_frame_for(context, entry, inputs, &at);
    if (status)
        return status;
    const smelt_plan *plan = at->plan;
    release_results(context);
    for (int32_t i = 0; i < ninputs; i++) {
        at->inputs[i]->data = inputs[i].data;
        at->cells[plan->input_cells[i]] = (int64_t)(intptr_t)at->inputs[i];
    }
    struct smelt_context *before = smelt_current;
    context->running = at;
    context->failed_step = -1;
    context->failure = SMELT_OK;
    atomic_store(&context->is_cancelled, false);
    smelt_current = context;
    int32_t found = smelt_run(at->own_code ? at->own_code : plan->code, at->cells);
    if (found)
        status = failure(context, at, found);
    smelt_current = before;
    if (status)
        return status;
    for (int32_t i = 0; i < plan->nresults; i++) {
        int64_t *cell = &at->cells[plan->result_cells[i]];
        at->results[i] = (tensor *)(intptr_t)*cell;
        *cell = 0; /* else a run that fails would delete it */
    }
    for (int32_t i = 0; i < noutputs; i++)
        outputs[i] = output(context, at, &plan->outputs[i]);
    return SMELT_OK;
}
