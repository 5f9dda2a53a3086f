/* Go on with a text by a small GPT, whose loop over characters is a part of the program: one call writes the line.
 *
 * Usage: generate build/gpt.safetensors alphabet.txt "The cat" */
#include <stdio.h>
#include <string.h>

#include "gpt.h"

enum { LENGTH = 64 };

static int failed(void)
{
    fprintf(stderr, "%s\n", smelt_error());
    return 1;
}

int main(int argc, char **argv)
{
    char alphabet[256] = {0};
    if (argc != 4) {
        fprintf(stderr, "usage: %s gpt.safetensors alphabet.txt TEXT\n", argv[0]);
        return 2;
    }
    FILE *file = fopen(argv[2], "rb");
    size_t known = file ? fread(alphabet, 1, sizeof alphabet - 1, file) : 0;
    if (!known) {
        perror(argv[2]);
        return 2;
    }
    fclose(file);
    int64_t page[LENGTH] = {0}, length = 0;
    for (const char *at = argv[3]; *at && length < LENGTH; at++) {
        const char *found = memchr(alphabet, *at, known);
        if (found)
            page[length++] = found - alphabet;
    }
    smelt_model *model;
    smelt_context *context;
    gpt_forward_result result;
    if (smelt_open(&gpt_program, argv[1], 0, &model) || smelt_context_new(model, &context) ||
        gpt_forward(context, page, &length, &result))
        return failed();
    for (int64_t i = 0; i < result.out_1[0]; i++)
        putchar(alphabet[result.out_0[i]]);
    putchar('\n');
    smelt_context_free(context);
    smelt_close(model);
    return 0;
}
