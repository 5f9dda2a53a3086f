/* Runs what a test wrote down, in as many threads with contexts of their own as it asks for.
 *
 * driver calls WEIGHTS SCRIPT OUT CONTEXTS THREADS     a script: for each call i32 entry, then of each input
 *                                              its sizes and its bytes
 * driver changed WEIGHTS FILE                  each edit of the standard input (i64 at, removed, inserted; the bytes)
 *                                              makes a FILE, which is opened; every entry point is called with zeros
 * driver hold WEIGHTS                          open, call every entry point with zeros, say "ready", wait for the end of
 *                                              the standard input
 *
 * OUT, of the first context: for each call i32 status; where it is 0, for each output i32 ndim, i64 sizes, its bytes. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "all.h"

static char *script;
static long script_nbytes;
static smelt_model *model;
static int threads;
static FILE *written;

static void must(int is_fine, const char *what)
{
    if (!is_fine) {
        fprintf(stderr, "%s: %s\n", what, smelt_error());
        exit(3);
    }
}

static char *whole_file(const char *path, long *nbytes)
{
    FILE *file = fopen(path, "rb");
    must(file != NULL, path);
    fseek(file, 0, SEEK_END);
    *nbytes = ftell(file);
    rewind(file);
    char *content = malloc((size_t)*nbytes + 1);
    must(content && fread(content, 1, (size_t)*nbytes, file) == (size_t)*nbytes, path);
    fclose(file);
    return content;
}

static int64_t nelements(const smelt_type *type, const int64_t *sizes)
{
    int64_t count = 1;
    for (int32_t i = 0; i < type->ndim; i++)
        count *= sizes[i];
    return count;
}

static void write_elements(FILE *out, const smelt_tensor *tensor, int32_t dim, const char *at)
{
    size_t itemsize = smelt_itemsize(tensor->dtype);
    if (dim == tensor->ndim) {
        fwrite(at, itemsize, 1, out);
        return;
    }
    for (int64_t i = 0; i < tensor->sizes[dim]; i++)
        write_elements(out, tensor, dim + 1, at + i * tensor->strides[dim] * (int64_t)itemsize);
}

static void write_outputs(FILE *out, int32_t status, const smelt_tensor *outputs, int32_t count)
{
    fwrite(&status, sizeof status, 1, out);
    for (int32_t i = 0; !status && i < count; i++) {
        fwrite(&outputs[i].ndim, sizeof outputs[i].ndim, 1, out);
        if (outputs[i].ndim)
            fwrite(outputs[i].sizes, sizeof(int64_t), (size_t)outputs[i].ndim, out);
        write_elements(out, &outputs[i], 0, outputs[i].data);
    }
}

enum { MOST_INPUTS = 8, MOST_DIMS = 8 };

/* One call with copies of these elements. */
static void call(smelt_context *context, int32_t entry, int64_t sizes[][MOST_DIMS], const char *const *elements, FILE *out)
{
    const smelt_signature *signature = smelt_describe(&all_program, entry);
    smelt_tensor inputs[MOST_INPUTS], outputs[MOST_INPUTS];
    char *copies[MOST_INPUTS];
    for (int32_t i = 0; i < signature->ninputs; i++) {
        const smelt_type *type = &signature->inputs[i];
        size_t nbytes = (size_t)nelements(type, sizes[i]) * smelt_itemsize(type->dtype);
        copies[i] = malloc(nbytes ? nbytes : 1);
        memcpy(copies[i], elements[i], nbytes);
        inputs[i] = (smelt_tensor){copies[i], type->dtype, type->ndim, sizes[i], signature->nsizes ? NULL : type->strides};
    }
    int32_t status = smelt_call(context, entry, inputs, signature->ninputs, outputs, signature->noutputs);
    if (out)
        write_outputs(out, status, outputs, signature->noutputs);
    for (int32_t i = 0; i < signature->ninputs; i++)
        free(copies[i]);
}

/* The call of a script that begins here; gives what is behind it. */
static char *next_call(smelt_context *context, char *at, FILE *out)
{
    int32_t entry;
    memcpy(&entry, at, sizeof entry);
    at += sizeof entry;
    const smelt_signature *signature = smelt_describe(&all_program, entry);
    int64_t sizes[MOST_INPUTS][MOST_DIMS];
    const char *elements[MOST_INPUTS];
    for (int32_t i = 0; i < signature->ninputs; i++) {
        const smelt_type *type = &signature->inputs[i];
        memcpy(sizes[i], at, (size_t)type->ndim * sizeof(int64_t));
        elements[i] = at += (size_t)type->ndim * sizeof(int64_t);
        at += (size_t)nelements(type, sizes[i]) * smelt_itemsize(type->dtype);
    }
    call(context, entry, sizes, elements, out);
    return at;
}

/* A call with zeros, of the least sizes that there are. */
static void call_with_zeros(smelt_context *context, int32_t entry, const char *zeros)
{
    const smelt_signature *signature = smelt_describe(&all_program, entry);
    int64_t sizes[MOST_INPUTS][MOST_DIMS];
    const char *elements[MOST_INPUTS];
    for (int32_t i = 0; i < signature->ninputs; i++) {
        elements[i] = zeros;
        for (int32_t j = 0; j < signature->inputs[i].ndim; j++) {
            sizes[i][j] = signature->inputs[i].sizes[j];
            for (int32_t k = 0; sizes[i][j] < 0 && k < signature->nsizes; k++)
                if (!strcmp(signature->inputs[i].size_texts[j], signature->sizes[k].name))
                    sizes[i][j] = signature->sizes[k].low;
        }
    }
    call(context, entry, sizes, elements, NULL);
}

static void *run_script(void *out)
{
    smelt_context *context;
    must(!smelt_context_new(model, &context), "a context");
    must(!smelt_set_threads(context, threads), "threads");
    for (char *at = script; at < script + script_nbytes;)
        at = next_call(context, at, out);
    smelt_context_free(context);
    return NULL;
}

static int calls(char **argv)
{
    script = whole_file(argv[1], &script_nbytes);
    written = fopen(argv[2], "wb");
    must(written != NULL, argv[2]);
    int contexts = atoi(argv[3]);
    threads = atoi(argv[4]);
    must(!smelt_open(&all_program, argv[0], SMELT_VERIFY, &model), argv[0]);
    pthread_t *others = calloc((size_t)contexts, sizeof *others);
    for (int i = 1; i < contexts; i++)
        must(!pthread_create(&others[i], NULL, run_script, NULL), "a thread");
    run_script(written);
    for (int i = 1; i < contexts; i++)
        pthread_join(others[i], NULL);
    smelt_close(model);
    fclose(written);
    free(others);
    free(script);
    return 0;
}

/* Opens the file as weights and calls every entry point with zeros; writes the status, and what is said of it. */
static void open_and_call(const char *path, int flags, const char *zeros)
{
    smelt_model *opened;
    int32_t status = smelt_open(&all_program, path, flags, &opened);
    printf("%d %s\n", (int)status, status ? smelt_error() : "");
    if (status)
        return;
    smelt_context *context;
    must(!smelt_context_new(opened, &context), "a context");
    for (int32_t entry = 0; entry < smelt_entries(&all_program); entry++) {
        const char *name = smelt_describe(&all_program, entry)->name;
        if (strcmp(name, "collatz")) /* it never ends for 0 */
            call_with_zeros(context, entry, zeros);
    }
    smelt_context_free(context);
    smelt_close(opened);
}

/* Each edit of the standard input, of the file at argv[0], is written to the file at argv[1] and opened. */
static int open_changed(char **argv)
{
    long nbytes;
    char *content = whole_file(argv[0], &nbytes);
    char *zeros = calloc(1, 1 << 20), inserted[4096];
    int64_t edit[3]; /* at, removed, inserted */
    for (int i = 0; fread(edit, sizeof edit, 1, stdin) == 1; i++) {
        long behind = (long)(edit[0] + edit[1]);
        must(edit[2] <= (int64_t)sizeof inserted && behind <= nbytes, "an edit");
        must(fread(inserted, 1, (size_t)edit[2], stdin) == (size_t)edit[2], "an edit");
        FILE *file = fopen(argv[1], "wb");
        must(file != NULL, argv[1]);
        fwrite(content, 1, (size_t)edit[0], file);
        fwrite(inserted, 1, (size_t)edit[2], file);
        fwrite(content + behind, 1, (size_t)(nbytes - behind), file);
        must(!fclose(file), argv[1]);
        open_and_call(argv[1], i % 2 ? SMELT_COPY : 0, zeros);
    }
    free(zeros);
    free(content);
    return 0;
}

/* Opens the weights, calls every entry point with zeros, and waits for the end of the standard input. */
static int hold(char **argv)
{
    must(!smelt_open(&all_program, argv[0], 0, &model), argv[0]);
    smelt_context *context;
    must(!smelt_context_new(model, &context), "a context");
    char *zeros = calloc(1, 1 << 20);
    for (int32_t entry = 0; entry < smelt_entries(&all_program); entry++)
        call_with_zeros(context, entry, zeros);
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    free(zeros);
    smelt_context_free(context);
    smelt_close(model);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 7 && !strcmp(argv[1], "calls"))
        return calls(argv + 2);
    if (argc == 4 && !strcmp(argv[1], "changed"))
        return open_changed(argv + 2);
    if (argc == 3 && !strcmp(argv[1], "hold"))
        return hold(argv + 2);
    return 2;
}
