/* Models and contexts: opening, frames, calls. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "internal.h"

_Thread_local struct smelt_context *smelt_current;
static _Thread_local char error_text[512];

const char *smelt_error(void)
{
    return error_text;
}

smelt_status smelt_fail(smelt_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error_text, sizeof error_text, format, arguments);
    va_end(arguments);
    return status;
}

smelt_status smelt_no_memory(uint64_t nbytes, const char *what)
{
    return smelt_fail(SMELT_MEMORY, "there is no memory for %s: %llu bytes", what, (unsigned long long)nbytes);
}

/* --- programs */

int32_t smelt_entries(const smelt_program *program)
{
    return program->nentries;
}

const smelt_signature *smelt_describe(const smelt_program *program, int32_t entry)
{
    return entry >= 0 && entry < program->nentries ? &program->entries[entry].signature : NULL;
}

int32_t smelt_find(const smelt_program *program, const char *name)
{
    for (int32_t i = 0; i < program->nentries; i++)
        if (!strcmp(program->entries[i].signature.name, name))
            return i;
    return -1;
}

const char *smelt_needs(const smelt_program *program)
{
    return program->needs;
}

/* --- models */

#if defined(__x86_64__)
/* By hand: not all compilers' `__builtin_cpu_supports` knows AVX-512. Source: Intel's manual, volume 2, CPUID; volume 1,
 * 14.3 (the system must save the registers, too). */
static bool has_all(uint32_t found, uint32_t wanted)
{
    return (found & wanted) == wanted;
}

static bool cpu_has(int32_t wanted)
{
    enum {
        FMA = 1 << 12, MOVBE = 1 << 22, SAVES = 1 << 27, F16C = 1 << 29,
        BMI1 = 1 << 3, AVX2 = 1 << 5, BMI2 = 1 << 8, LZCNT = 1 << 5,
        AVX512 = 1 << 16 | 1 << 17 | 1 << 28 | 1 << 30, VL = 31,
        OLD_REGISTERS = 0x6, NEW_REGISTERS = 0xe6
    };
    uint32_t a, b, c, d, registers, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !has_all(c, FMA | MOVBE | SAVES | F16C))
        return false;
    __asm__("xgetbv" : "=a"(registers), "=d"(high) : "c"(0));
    if (!__get_cpuid(0x80000001, &a, &b, &c, &d) || !has_all(c, LZCNT))
        return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !has_all(b, BMI1 | AVX2 | BMI2) ||
        !has_all(registers, OLD_REGISTERS))
        return false;
    return wanted == SMELT_NEEDS_AVX2 ||
           (wanted == SMELT_NEEDS_AVX512 && has_all(b, AVX512 | 1u << VL) && has_all(registers, NEW_REGISTERS));
}
#elif defined(__aarch64__)
static bool cpu_has(int32_t wanted)
{
    return wanted == SMELT_NEEDS_NEON;
}
#endif

static smelt_status check_cpu(const smelt_program *program)
{
    if (cpu_has(program->cpu))
        return SMELT_OK;
    const char *names[] = {"", "AVX2", "AVX-512", "64-bit Arm"};
    return smelt_fail(SMELT_CPU, "%s was exported for %s, which this CPU does not have: export it for another target",
                      program->name, names[program->cpu]);
}

/* Fill the panels that are not in the file. */
static smelt_status pack(smelt_model *model)
{
    const smelt_program *program = model->program;
    if (!program->npackings)
        return SMELT_OK;
    model->panels = smelt_allocate(program->panels_nbytes);
    if (!model->panels)
        return smelt_no_memory(program->panels_nbytes, "packed weights");
    memset(model->panels, 0, program->panels_nbytes);
    for (int32_t i = 0; i < program->npackings; i++) {
        const smelt_packing *one = &program->packings[i];
        int64_t args[16];
        args[0] = (int64_t)(intptr_t)smelt_block_data(model, NULL, one->matrix);
        args[1] = (int64_t)(intptr_t)smelt_block_data(model, NULL, one->panels);
        memcpy(args + 2, one->words, (size_t)one->nwords * sizeof *args);
        one->kernel(args, 0, one->items, NULL);
    }
    return SMELT_OK;
}

smelt_status smelt_open(const smelt_program *program, const char *weights, int flags, smelt_model **out)
{
    if (!program || !out)
        return smelt_fail(SMELT_ARGUMENT, "smelt_open takes a program, and where to put the model");
    *out = NULL;
    if (program->abi != SMELT_ABI)
        return smelt_fail(SMELT_ARGUMENT, "the program was exported for version %d of the runtime, this is %d: link one",
                          program->abi, SMELT_ABI);
    smelt_status status = check_cpu(program);
    if (status)
        return status;
    smelt_model *made = calloc(1, sizeof *made);
    if (!made)
        return smelt_no_memory(sizeof *made, "a model");
    made->program = program;
    status = smelt_open_weights(made, weights, flags);
    if (!status)
        status = pack(made);
    if (!status && !(made->threads = smelt_pool_new()))
        status = smelt_no_memory(0, "threads");
    if (status)
        smelt_close(made);
    else
        *out = made;
    return status;
}

void smelt_close(smelt_model *model)
{
    if (!model)
        return;
    smelt_pool_free(model->threads);
    smelt_close_weights(model);
    free(model);
}

/* --- contexts */

static tensor **handles_over(struct smelt_context *context, const smelt_placed *placed, int32_t count, bool in_arena)
{
    tensor **made = calloc((size_t)count + 1, sizeof *made);
    for (int32_t i = 0; made && i < count; i++) {
        char *data = in_arena ? context->arena : smelt_block_data(context->model, context, placed[i].block);
        made[i] = smelt_tensor_over(data, &placed[i]);
        if (!made[i]) {
            for (int32_t j = 0; j < i; j++)
                free(made[j]);
            free(made);
            return NULL;
        }
    }
    return made;
}

static int64_t address_of(const struct smelt_context *context, const frame *at, const smelt_relocation *wanted)
{
    const smelt_plan *plan = at->plan;
    int32_t index = wanted->index;
    switch (wanted->kind) {
    case SMELT_AT_FUNCTION:
        return index < SMELT_FN_torch_dispatch_0 ? smelt_function(index) : context->model->program->function(index);
    case SMELT_AT_CALL:
        return (int64_t)(intptr_t)plan->calls[index];
    case SMELT_AT_KERNEL:
        return (int64_t)(intptr_t)plan->kernels[index];
    case SMELT_AT_DATA:
        return (int64_t)(intptr_t)plan->data + wanted->offset;
    case SMELT_AT_BLOCK:
        return (int64_t)(intptr_t)smelt_block_data(context->model, context, index) + wanted->offset;
    case SMELT_AT_FRAME:
        return (int64_t)(intptr_t)(at->cells + index);
    case SMELT_AT_ARENA:
        return (int64_t)(intptr_t)context->arena + wanted->offset;
    case SMELT_AT_HELD:
        return (int64_t)(intptr_t)at->held[index];
    default:
        return (int64_t)(intptr_t)at->planned[index];
    }
}

/* Handles of the inputs; their dims are filled in at each call where sizes are free. */
static tensor **input_handles(const smelt_signature *signature)
{
    tensor **made = calloc((size_t)signature->ninputs + 1, sizeof *made);
    for (int32_t i = 0; made && i < signature->ninputs; i++) {
        const smelt_type *type = &signature->inputs[i];
        int64_t dims[2 * 64], step = 1;
        for (int32_t j = type->ndim - 1; j >= 0; j--) {
            dims[j] = type->sizes[j];
            dims[type->ndim + j] = type->strides ? type->strides[j] : step;
            step *= type->sizes[j] > 0 ? type->sizes[j] : 1;
        }
        smelt_placed placed = {.dtype = type->dtype, .ndim = type->ndim, .dims = dims};
        made[i] = smelt_tensor_over(NULL, &placed);
        if (!made[i]) {
            for (int32_t j = 0; j < i; j++)
                free(made[j]);
            free(made);
            return NULL;
        }
    }
    return made;
}

static smelt_status make_frame(struct smelt_context *context, frame *made, const smelt_entry *entry,
                               const smelt_plan *plan)
{
    size_t nbytes = (size_t)plan->ncells * sizeof(int64_t), code_nbytes = (size_t)plan->ncode * sizeof(int32_t);
    bool has_own_code = plan->sized && plan->sized->ngroups + plan->sized->nteams;
    made->entry = entry;
    made->plan = plan;
    made->tuple = -1;
    made->cells = smelt_allocate(nbytes);
    made->held = handles_over(context, plan->held, plan->nheld, false);
    made->planned = handles_over(context, plan->planned, plan->nplanned, true);
    made->results = calloc((size_t)plan->nresults + 1, sizeof *made->results);
    made->inputs = input_handles(&entry->signature);
    if (has_own_code)
        made->own_code = smelt_allocate(code_nbytes);
    if (!made->cells || !made->held || !made->planned || !made->results || !made->inputs ||
        (has_own_code && !made->own_code))
        return smelt_no_memory(nbytes, "a frame");
    memcpy(made->cells, plan->cells, nbytes);
    if (has_own_code)
        memcpy(made->own_code, plan->code, code_nbytes);
    for (int32_t i = 0; i < plan->nrelocations; i++)
        made->cells[plan->relocations[i].cell] = address_of(context, made, &plan->relocations[i]);
    made->cells[CELL_SCRATCH] = (int64_t)(intptr_t)context->scratch;
    made->cells[CELL_SCRATCH_STRIDE] = (int64_t)plan->scratch_stride;
    made->cells[CELL_TEAM_WORDS] = (int64_t)(intptr_t)context->team;
    made->cells[CELL_CALLBACK] = (int64_t)(intptr_t)&smelt_callback;
    return SMELT_OK;
}

static void free_frame(frame *made)
{
    const smelt_plan *plan = made->plan;
    if (!plan)
        return;
    for (int32_t i = 0; made->held && i < plan->nheld; i++)
        free(made->held[i]);
    for (int32_t i = 0; made->planned && i < plan->nplanned; i++)
        free(made->planned[i]);
    for (int32_t i = 0; made->inputs && i < made->entry->signature.ninputs; i++)
        free(made->inputs[i]);
    for (int32_t i = 0; made->results && i < plan->nresults; i++)
        smelt_delete(made->results[i]);
    free(made->held);
    free(made->planned);
    free(made->inputs);
    free(made->results);
    free(made->own_code);
    free(made->cells);
}

static uint64_t most(const smelt_program *program, uint64_t (*of)(const smelt_entry *, const smelt_plan *))
{
    uint64_t found = 0;
    for (int32_t i = 0; i < program->nentries; i++) {
        const smelt_entry *entry = &program->entries[i];
        for (int32_t j = 0; j < entry->nplans; j++) {
            uint64_t one = of(entry, &entry->plans[j]);
            found = one > found ? one : found;
        }
    }
    return found;
}

static uint64_t arena_of(const smelt_entry *entry, const smelt_plan *plan)
{
    (void)entry;
    return plan->arena_nbytes;
}

static uint64_t scratch_of(const smelt_entry *entry, const smelt_plan *plan)
{
    (void)entry;
    return plan->scratch_stride;
}

static uint64_t team_of(const smelt_entry *entry, const smelt_plan *plan)
{
    (void)entry;
    return (uint64_t)plan->team_limit;
}

static uint64_t dims_of(const smelt_entry *entry, const smelt_plan *plan)
{
    (void)plan;
    return (uint64_t)entry->ndims;
}

static void set_state(struct smelt_context *context)
{
    const smelt_program *program = context->model->program;
    for (int32_t i = 0; i < program->nblocks; i++)
        if (program->blocks[i].home == SMELT_IN_STATE && program->blocks[i].nbytes)
            memcpy(context->state + program->blocks[i].own, context->model->file + program->blocks[i].place,
                   program->blocks[i].nbytes);
}

smelt_status smelt_context_new(smelt_model *model, smelt_context **out)
{
    if (!model || !out)
        return smelt_fail(SMELT_ARGUMENT, "smelt_context_new takes a model, and where to put the context");
    *out = NULL;
    const smelt_program *program = model->program;
    struct smelt_context *made = calloc(1, sizeof *made);
    if (!made)
        return smelt_no_memory(sizeof *made, "a context");
    made->model = model;
    uint64_t arena = most(program, arena_of), state = program->state_nbytes;
    made->frames = calloc((size_t)program->nplans, sizeof *made->frames);
    made->dims = calloc(most(program, dims_of) + 1, sizeof *made->dims);
    made->arena = smelt_allocate(arena);
    made->state = smelt_allocate(state);
    smelt_status status = SMELT_OK;
    if (!made->frames || !made->dims || !made->arena || !made->state)
        status = smelt_no_memory(arena + state, "a context");
    if (!status)
        status = smelt_set_threads(made, 1);
    if (!status)
        set_state(made);
    for (int32_t i = 0; !status && i < program->nentries; i++) {
        const smelt_entry *entry = &program->entries[i];
        for (int32_t j = 0; !status && j < entry->nplans; j++)
            status = make_frame(made, &made->frames[entry->first_plan + j], entry, &entry->plans[j]);
    }
    if (status)
        smelt_context_free(made);
    else
        *out = made;
    return status;
}

void smelt_context_free(smelt_context *context)
{
    if (!context)
        return;
    for (int32_t i = 0; context->frames && i < context->model->program->nplans; i++)
        free_frame(&context->frames[i]);
    smelt_clear(&context->kept);
    free(context->frames);
    free(context->dims);
    free(context->arena);
    free(context->state);
    free(context->scratch);
    free(context);
}

smelt_status smelt_set_threads(smelt_context *context, int32_t threads)
{
    if (!context || threads < 1)
        return smelt_fail(SMELT_ARGUMENT, "a call takes at least one thread");
    const smelt_program *program = context->model->program;
    int64_t limit = (int64_t)most(program, team_of);
    int64_t count = threads < limit ? threads : limit;
    /* It is zero, for vectors go over the end of what a kernel filled, and denormal numbers there are slow. */
    uint64_t nbytes = most(program, scratch_of) * (uint64_t)count;
    char *scratch = smelt_allocate(nbytes);
    if (!scratch)
        return smelt_no_memory(nbytes, "the working memory of threads");
    memset(scratch, 0, nbytes);
    free(context->scratch);
    context->scratch = scratch;
    context->threads = count;
    context->team[0] = count > 1;
    for (int32_t i = 0; i < program->nplans; i++) {
        if (context->frames[i].cells)
            context->frames[i].cells[CELL_SCRATCH] = (int64_t)(intptr_t)scratch;
        context->frames[i].tuple = -1; /* launches are cut for so many threads */
    }
    return SMELT_OK;
}

void smelt_cancel(smelt_context *context)
{
    atomic_store(&context->is_cancelled, true);
}

smelt_status smelt_reset(smelt_context *context)
{
    if (!context)
        return smelt_fail(SMELT_ARGUMENT, "smelt_reset takes a context");
    set_state(context);
    return SMELT_OK;
}

smelt_status smelt_state(smelt_context *context, const char *name, smelt_tensor *out)
{
    if (!context || !name || !out)
        return smelt_fail(SMELT_ARGUMENT, "smelt_state takes a context, a name, and where to put the tensor");
    const smelt_program *program = context->model->program;
    for (int32_t i = 0; i < program->nstate; i++) {
        const smelt_placed *placed = &program->state[i].placed;
        if (strcmp(program->state[i].name, name))
            continue;
        char *data = smelt_block_data(context->model, context, placed->block) + placed->offset;
        *out = (smelt_tensor){data, placed->dtype, placed->ndim, placed->dims, placed->dims + placed->ndim};
        return SMELT_OK;
    }
    return smelt_fail(SMELT_ARGUMENT, "%s has no state %s that calls write to", program->name, name);
}
