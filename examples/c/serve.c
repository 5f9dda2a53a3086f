/* An HTTP server that embeds sentences: any number of clients, one copy of the weights, a context for each thread.
 *
 * Usage: serve build/minilm.safetensors PORT THREADS
 * GET /embed?ids=101,7592,102 answers with the embedding, a JSON array; what is wrong with a request is said with 400.
 * It needs GNU libmicrohttpd (Debian: libmicrohttpd-dev). End it with a line on its standard input, or by closing it. */
#include <microhttpd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "minilm.h"

enum { TOKENS = 64, WIDTH = 384 };

static smelt_model *model;

/* --- one context for each of the server's threads, made when it answers for the first time */

static pthread_key_t contexts;

static void free_context(void *context)
{
    smelt_context_free(context);
}

static smelt_context *own_context(void)
{
    smelt_context *context = pthread_getspecific(contexts);
    if (!context && !smelt_context_new(model, &context))
        pthread_setspecific(contexts, context);
    return context;
}

/* --- answers */

static enum MHD_Result answer(struct MHD_Connection *connection, unsigned status, const char *text)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(strlen(text), (void *)text, MHD_RESPMEM_MUST_COPY);
    MHD_add_response_header(response, "Content-Type", "application/json");
    enum MHD_Result result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

/* How many tokens there are; 0 where something is wrong. */
static int read_ids(const char *text, int64_t ids[TOKENS], int64_t mask[TOKENS])
{
    int count = 0;
    for (char *end; count < TOKENS; text = end + 1, count++) {
        ids[count] = strtoll(text, &end, 10);
        if (end == text)
            return 0;
        mask[count] = 1;
        if (*end != ',')
            return *end ? 0 : count + 1;
    }
    return 0;
}

static enum MHD_Result embed(struct MHD_Connection *connection, const char *given)
{
    int64_t ids[TOKENS], mask[TOKENS];
    int tokens = given ? read_ids(given, ids, mask) : 0;
    if (!tokens)
        return answer(connection, MHD_HTTP_BAD_REQUEST, "{\"error\": \"pass ids=101,7592,102: at most 64 tokens\"}\n");
    smelt_context *context = own_context();
    minilm_forward_result result;
    smelt_status status = context ? minilm_forward(context, tokens, ids, mask, &result) : SMELT_MEMORY;
    char text[32 * WIDTH], *at = text;
    if (status) {
        snprintf(text, sizeof text, "{\"error\": \"%s\"}\n", smelt_error());
        return answer(connection, status == SMELT_DATA ? MHD_HTTP_BAD_REQUEST : MHD_HTTP_INTERNAL_SERVER_ERROR, text);
    }
    for (int i = 0; i < WIDTH; i++)
        at += sprintf(at, "%c%.9g", i ? ',' : '[', result.out[i]);
    strcpy(at, "]\n");
    return answer(connection, MHD_HTTP_OK, text);
}

static enum MHD_Result handle(void *own, struct MHD_Connection *connection, const char *url, const char *method,
                              const char *version, const char *upload, size_t *upload_size, void **state)
{
    (void)own, (void)version, (void)upload, (void)upload_size, (void)state;
    if (strcmp(method, "GET"))
        return answer(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "{\"error\": \"GET only\"}\n");
    if (strcmp(url, "/embed"))
        return answer(connection, MHD_HTTP_NOT_FOUND, "{\"error\": \"there is /embed only\"}\n");
    return embed(connection, MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "ids"));
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: %s minilm.safetensors PORT THREADS\n", argv[0]);
        return 2;
    }
    if (smelt_open(&minilm_program, argv[1], 0, &model)) {
        fprintf(stderr, "%s\n", smelt_error());
        return 1;
    }
    pthread_key_create(&contexts, free_context);
    struct MHD_Daemon *server = MHD_start_daemon(
        MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_ERROR_LOG, (uint16_t)atoi(argv[2]), NULL, NULL, handle, NULL,
        MHD_OPTION_THREAD_POOL_SIZE, (unsigned)atoi(argv[3]), MHD_OPTION_END);
    if (!server) {
        fprintf(stderr, "port %s cannot be listened on\n", argv[2]);
        return 1;
    }
    printf("listening on %u\n", MHD_get_daemon_info(server, MHD_DAEMON_INFO_BIND_PORT)->port);
    fflush(stdout);
    getchar();
    MHD_stop_daemon(server);
    smelt_close(model);
    return 0;
}
