/* Sizes that callers choose: read from the inputs, checked, and filled into the frame of a plan that is for them.
 *
 * Invariant: what a frame has for a tuple of sizes is what the encoder would have made for it; a call with the sizes of
 * the frame's last call fills nothing. */
#include <stdio.h>
#include <string.h>

#include "internal.h"

/* As smelt.runtime.schedule has them; a test compares these. */
enum { CHUNK_NS = 10000, REGION_NS = 20000, CHUNKS_A_THREAD = 4 };

/* --- columns */

static int64_t number_at(const smelt_sized *sized, int32_t column, int64_t tuple)
{
    int32_t low = sized->columns[column], high = sized->columns[column + 1];
    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        if (sized->firsts[middle] <= tuple)
            low = middle;
        else
            high = middle;
    }
    return (int64_t)((uint64_t)sized->bases[low] + (uint64_t)sized->steps[low] * (uint64_t)(tuple - sized->firsts[low]));
}

static double double_at(const smelt_sized *sized, int32_t column, int64_t tuple)
{
    int64_t bits = number_at(sized, column, tuple);
    double found;
    memcpy(&found, &bits, sizeof found);
    return found;
}

/* The number of a tuple that the plan is for; -1 where it is for others. */
static int64_t tuple_of(const smelt_sized *sized, int32_t nsizes, const int64_t *sizes)
{
    int64_t found = 0;
    for (int32_t i = 0; i < nsizes; i++) {
        if (sizes[i] < sized->low[i] || sizes[i] - sized->low[i] >= sized->count[i])
            return -1;
        found = found * sized->count[i] + sizes[i] - sized->low[i];
    }
    return number_at(sized, sized->taken, found) ? found : -1;
}

/* --- filling a frame */

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Items of a chunk, as smelt.runtime.schedule.chunk_of gives them. */
static int64_t chunk_of(int64_t items, double item_ns, int64_t limit)
{
    double worth_ns = (double)items * item_ns / CHUNK_NS;
    int64_t worth = items < INT32_MAX ? items : INT32_MAX;
    if (worth_ns < (double)worth)
        worth = (int64_t)worth_ns;
    int64_t count = worth < CHUNKS_A_THREAD * limit ? worth : CHUNKS_A_THREAD * limit;
    if (count < 2 || limit < 2)
        return items > 1 ? items : 1;
    int64_t most = ceil_div(items, count), best = most, best_work = INT64_MAX;
    int64_t least = ceil_div(most, 2) > ceil_div(items, worth) ? ceil_div(most, 2) : ceil_div(items, worth);
    for (int64_t size = most; size >= least; size--) {
        int64_t work = ceil_div(ceil_div(items, size), limit) * size;
        if (work < best_work) {
            best = size;
            best_work = work;
        }
    }
    return best;
}

/* Layers that are alike have launches that are: what these come to is computed once. */
enum { MOST_KNOWN = 16 };
typedef struct shape {
    int32_t items_column, ns_column;
    int64_t items, chunk;
    double item_ns;
} shape;

static const shape *shape_of(const frame *at, const smelt_work *work, int64_t limit, shape known[MOST_KNOWN])
{
    shape *found = &known[(uint32_t)(work->items * 5 + work->item_ns) % MOST_KNOWN];
    if (found->items_column != work->items || found->ns_column != work->item_ns) {
        found->items_column = work->items;
        found->ns_column = work->item_ns;
        found->items = number_at(at->plan->sized, work->items, at->tuple);
        found->item_ns = double_at(at->plan->sized, work->item_ns, at->tuple);
        found->chunk = chunk_of(found->items, found->item_ns, limit);
    }
    return found;
}

/* Cut a group's launches into chunks; its work in nanoseconds, and how many chunks. */
static double cut(frame *at, const smelt_share *group, int64_t limit, shape known[MOST_KNOWN], int64_t *nchunks)
{
    const smelt_sized *sized = at->plan->sized;
    double all_ns = 0;
    int64_t begin = 0;
    for (int32_t i = 0; i < group->count; i++) {
        const smelt_work *work = &sized->works[group->first + i];
        const shape *one = shape_of(at, work, limit, known);
        at->cells[work->cell + LAUNCHED_ITEMS] = one->items;
        at->cells[work->cell + LAUNCHED_CHUNK] = one->chunk;
        at->cells[work->cell + LAUNCHED_FIRST_CHUNK] = begin;
        begin += ceil_div(one->items, one->chunk);
        all_ns += (double)one->items * one->item_ns;
    }
    at->own_code[group->word] = (int32_t)begin;
    *nchunks = begin;
    return all_ns;
}

static void share(frame *at, int64_t limit)
{
    shape known[MOST_KNOWN];
    for (int32_t i = 0; i < MOST_KNOWN; i++)
        known[i].items_column = -1;
    const smelt_sized *sized = at->plan->sized;
    const smelt_share *team = sized->teams;
    int32_t left = sized->nteams;
    double work_ns = 0;
    int64_t most = 0;
    for (int32_t i = 0; i < sized->ngroups; i++) {
        int64_t nchunks;
        double group_ns = cut(at, &sized->groups[i], limit, known, &nchunks);
        if (!left || i < team->first)
            continue;
        if (nchunks > 1) {
            work_ns += group_ns;
            most = nchunks > most ? nchunks : most;
        }
        if (i == team->first + team->count - 1) {
            at->own_code[team->word] = (int32_t)(most < 2 || work_ns < REGION_NS ? 1 : most < limit ? most : limit);
            work_ns = 0;
            most = 0;
            team++;
            left--;
        }
    }
}

static void fill(struct smelt_context *context, frame *at, int64_t tuple)
{
    const smelt_sized *sized = at->plan->sized;
    int32_t column = -1;
    int64_t number = 0;
    double converted;
    for (int32_t i = 0; i < sized->nfills; i++) {
        const smelt_fill *one = &sized->fills[i];
        if (one->column != column)
            number = number_at(sized, column = one->column, tuple);
        switch (one->kind) {
        case SMELT_FILL_CELL:
            at->cells[one->where] = number;
            break;
        case SMELT_FILL_DOUBLE:
            converted = (double)number;
            memcpy(&at->cells[one->where], &converted, sizeof converted);
            break;
        case SMELT_FILL_ARENA:
            at->cells[one->where] = (int64_t)(intptr_t)context->arena + number;
            break;
        case SMELT_FILL_PLANNED:
            at->planned[one->where]->data = context->arena + number;
            break;
        case SMELT_FILL_DIM:
            at->planned[one->where]->dims[one->dim] = number;
            break;
        }
    }
    at->tuple = tuple;
    share(at, context->threads < at->plan->team_limit ? context->threads : at->plan->team_limit);
    const int64_t *dims = context->dims;
    for (int32_t i = 0; i < at->entry->signature.ninputs; i++) {
        size_t ndims = 2 * (size_t)at->entry->signature.inputs[i].ndim;
        if (ndims)
            memcpy(at->inputs[i]->dims, dims, ndims * sizeof *dims);
        dims += ndims;
    }
}

/* --- which frame a call takes */

static smelt_status unfit(const smelt_entry *entry, int32_t number, const char *what, long long found, long long wanted)
{
    return smelt_fail(SMELT_ARGUMENT, "%s: input %d, %s: %s is %lld, the program takes %lld", entry->signature.name,
                      number, entry->signature.inputs[number].name, what, found, wanted);
}

/* What does not depend on sizes. */
static smelt_status check_kind(const smelt_entry *entry, int32_t number, const smelt_tensor *given)
{
    const smelt_type *type = &entry->signature.inputs[number];
    if (given->dtype != type->dtype)
        return unfit(entry, number, "its dtype", given->dtype, type->dtype);
    if (given->ndim != type->ndim)
        return unfit(entry, number, "the number of its dimensions", given->ndim, type->ndim);
    if (given->ndim && !given->sizes)
        return unfit(entry, number, "the address of its sizes", 0, 1);
    return SMELT_OK;
}

static smelt_status check_dims(const smelt_entry *entry, int32_t number, const smelt_tensor *given, const int64_t *sizes,
                               const int64_t *strides)
{
    const smelt_type *type = &entry->signature.inputs[number];
    int64_t nelements = 1, row = 1, wanted_row = 1;
    char what[64];
    for (int32_t i = 0; i < type->ndim; i++) {
        const char *text = type->size_texts ? type->size_texts[i] : NULL;
        snprintf(what, sizeof what, text ? "size %d, %s," : "size %d", i, text);
        if (given->sizes[i] != sizes[i])
            return unfit(entry, number, what, given->sizes[i], sizes[i]);
        nelements *= sizes[i];
    }
    for (int32_t i = type->ndim - 1; nelements && i >= 0; i--) {
        int64_t step = given->strides ? given->strides[i] : row;
        int64_t wanted = strides ? strides[i] : wanted_row;
        snprintf(what, sizeof what, "stride %d", i);
        if (sizes[i] != 1 && step != wanted)
            return unfit(entry, number, what, step, wanted);
        row *= sizes[i];
        wanted_row *= sizes[i];
    }
    if (nelements && !given->data)
        return unfit(entry, number, "its address", 0, 1);
    return SMELT_OK;
}

/* Read the sizes, and check each by itself. */
static smelt_status read_sizes(const smelt_entry *entry, const smelt_tensor *inputs, int64_t *sizes)
{
    const smelt_signature *signature = &entry->signature;
    for (int32_t i = 0; i < signature->nsizes; i++) {
        const smelt_size *size = &signature->sizes[i];
        sizes[i] = inputs[size->input].sizes[size->dim];
        if (sizes[i] < size->low || sizes[i] > size->high)
            return smelt_fail(SMELT_ARGUMENT, "%s: input %d, %s: size %d, %s, is %lld, the program takes %lld to %lld",
                              signature->name, size->input, signature->inputs[size->input].name, size->dim, size->name,
                              (long long)sizes[i], (long long)size->low, (long long)size->high);
    }
    return SMELT_OK;
}

static smelt_status no_plan(const smelt_entry *entry, const int64_t *sizes)
{
    const smelt_signature *signature = &entry->signature;
    char text[256] = "";
    size_t used = 0;
    for (int32_t i = 0; i < signature->nsizes && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s = %lld", i ? ", " : "", signature->sizes[i].name,
                                 (long long)sizes[i]);
    const char *broken = entry->broken(sizes);
    if (broken)
        return smelt_fail(SMELT_ARGUMENT, "%s: the program takes sizes with %s, and here %s", signature->name, broken,
                          text);
    return smelt_fail(SMELT_ARGUMENT, "%s: the program was exported without code for %s: save it for these sizes, too",
                      signature->name, text);
}

static smelt_status choose(struct smelt_context *context, const smelt_entry *entry, const smelt_tensor *inputs,
                           frame **out, int64_t *tuple)
{
    int64_t sizes[MOST_SIZES];
    smelt_status status = read_sizes(entry, inputs, sizes);
    if (status)
        return status;
    for (int32_t i = 0; i < entry->nplans; i++) {
        *out = &context->frames[entry->first_plan + i];
        *tuple = tuple_of(entry->plans[i].sized, entry->signature.nsizes, sizes);
        if (*tuple >= 0) {
            entry->dims(sizes, context->dims);
            return SMELT_OK;
        }
    }
    return no_plan(entry, sizes);
}

smelt_status smelt_frame_for(struct smelt_context *context, const smelt_entry *entry, const smelt_tensor *inputs,
                             frame **out)
{
    smelt_status status = SMELT_OK;
    bool is_free = entry->signature.nsizes > 0;
    int64_t tuple = -1;
    for (int32_t i = 0; !status && i < entry->signature.ninputs; i++)
        status = check_kind(entry, i, &inputs[i]);
    if (!status && is_free)
        status = choose(context, entry, inputs, out, &tuple);
    else
        *out = &context->frames[entry->first_plan];
    const int64_t *dims = context->dims;
    for (int32_t i = 0; !status && i < entry->signature.ninputs; i++) {
        const smelt_type *type = &entry->signature.inputs[i];
        status = is_free ? check_dims(entry, i, &inputs[i], dims, dims + type->ndim)
                         : check_dims(entry, i, &inputs[i], type->sizes, type->strides);
        dims += 2 * type->ndim;
    }
    if (!status && is_free && (*out)->tuple != tuple)
        fill(context, *out, tuple);
    return status;
}
