/* Embed sentences with MiniLM: no Python, no torch.
 *
 * Usage: embed build/minilm.safetensors sentences.ids
 * Each line of the file has the tokens of a sentence. For each sentence the most similar other one is printed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "minilm.h"

enum { TOKENS = 64, WIDTH = 384, MOST = 4096 };

/* The next line's tokens; how many there are, -1 at the end of the file. */
static int read_sentence(FILE *file, int64_t ids[TOKENS])
{
    char line[4096];
    if (!fgets(line, sizeof line, file))
        return -1;
    int count = 0;
    for (char *at = line, *end; count < TOKENS; at = end, count++) {
        ids[count] = strtoll(at, &end, 10);
        if (end == at)
            break;
    }
    return count;
}

static float similarity(const float *a, const float *b)
{
    float sum = 0;
    for (int i = 0; i < WIDTH; i++)
        sum += a[i] * b[i];
    return sum;
}

static int failed(void)
{
    fprintf(stderr, "%s\n", smelt_error());
    return 1;
}

int main(int argc, char **argv)
{
    static float embeddings[MOST][WIDTH];
    if (argc != 3) {
        fprintf(stderr, "usage: %s minilm.safetensors sentences.ids\n", argv[0]);
        return 2;
    }
    FILE *file = fopen(argv[2], "r");
    if (!file) {
        perror(argv[2]);
        return 2;
    }
    smelt_model *model;
    smelt_context *context;
    if (smelt_open(&minilm_program, argv[1], 0, &model) || smelt_context_new(model, &context))
        return failed();
    int count = 0, tokens;
    int64_t ids[TOKENS], mask[TOKENS];
    for (int i = 0; i < TOKENS; i++)
        mask[i] = 1;
    while (count < MOST && (tokens = read_sentence(file, ids)) > 0) {
        minilm_forward_result result;
        if (minilm_forward(context, tokens, ids, mask, &result))
            return failed();
        memcpy(embeddings[count++], result.out, sizeof embeddings[0]);
    }
    fclose(file);
    for (int i = 0; i < count; i++) {
        int best = -1;
        for (int j = 0; j < count; j++)
            if (j != i && (best < 0 || similarity(embeddings[i], embeddings[j]) > similarity(embeddings[i], embeddings[best])))
                best = j;
        if (best >= 0)
            printf("%d %d %.6f\n", i, best, similarity(embeddings[i], embeddings[best]));
    }
    smelt_context_free(context);
    smelt_close(model);
    return 0;
}
