/* The threads of a model.
 *
 * Invariant: a region never waits for a thread that has not begun: the executor's threads claim chunks, so one that
 * comes late, or never, costs nothing but its help. What the region's own thread waits for are those that began. */
#include <sched.h>
#include <stdlib.h>

#include "internal.h"

enum { MOST_WORKERS = 255, PATIENCE = 2000 };

struct pool {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    atomic_uint generation; /* of the region that is put up; workers look at it before they sleep */
    atomic_int begun;       /* parts that are being run by others */
    atomic_bool is_taken;
    /* Under the lock. */
    bool is_open, is_over;
    int64_t next, count;
    smelt_part part;
    void *frame;
    int32_t nworkers;
    pthread_t workers[MOST_WORKERS];
};

static void pause_a_little(int *waited)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
    if (++*waited > PATIENCE)
        sched_yield();
}

static void *work(void *given)
{
    pool *threads = given;
    unsigned seen = 0;
    for (;;) {
        for (int waited = 0; waited < PATIENCE && atomic_load(&threads->generation) == seen;)
            pause_a_little(&waited);
        pthread_mutex_lock(&threads->lock);
        while (atomic_load(&threads->generation) == seen && !threads->is_over)
            pthread_cond_wait(&threads->wake, &threads->lock);
        seen = atomic_load(&threads->generation);
        bool is_over = threads->is_over, begins = threads->is_open && threads->next < threads->count;
        int64_t number = begins ? threads->next++ : 0;
        smelt_part part = threads->part;
        void *frame = threads->frame;
        if (begins)
            atomic_fetch_add(&threads->begun, 1);
        pthread_mutex_unlock(&threads->lock);
        if (is_over)
            return NULL;
        if (begins) {
            part(number, number + 1, frame);
            atomic_fetch_sub(&threads->begun, 1);
        }
    }
}

pool *smelt_pool_new(void)
{
    pool *made = calloc(1, sizeof *made);
    if (!made)
        return NULL;
    if (pthread_mutex_init(&made->lock, NULL)) {
        free(made);
        return NULL;
    }
    if (pthread_cond_init(&made->wake, NULL)) {
        pthread_mutex_destroy(&made->lock);
        free(made);
        return NULL;
    }
    return made;
}

void smelt_pool_free(pool *threads)
{
    if (!threads)
        return;
    pthread_mutex_lock(&threads->lock);
    threads->is_over = true;
    atomic_fetch_add(&threads->generation, 1);
    pthread_cond_broadcast(&threads->wake);
    pthread_mutex_unlock(&threads->lock);
    for (int32_t i = 0; i < threads->nworkers; i++)
        pthread_join(threads->workers[i], NULL);
    pthread_cond_destroy(&threads->wake);
    pthread_mutex_destroy(&threads->lock);
    free(threads);
}

bool smelt_pool_enter(pool *threads)
{
    return !atomic_exchange(&threads->is_taken, true);
}

void smelt_pool_leave(pool *threads)
{
    atomic_store(&threads->is_taken, false);
}

void smelt_pool_run(pool *threads, int64_t count, smelt_part part, void *frame)
{
    if (count > MOST_WORKERS + 1)
        count = MOST_WORKERS + 1;
    pthread_mutex_lock(&threads->lock);
    while (threads->nworkers < count - 1 &&
           !pthread_create(&threads->workers[threads->nworkers], NULL, work, threads))
        threads->nworkers++;
    threads->part = part;
    threads->frame = frame;
    threads->count = count;
    threads->next = 1;
    threads->is_open = true;
    atomic_fetch_add(&threads->generation, 1);
    pthread_cond_broadcast(&threads->wake);
    pthread_mutex_unlock(&threads->lock);
    part(0, 1, frame);
    pthread_mutex_lock(&threads->lock);
    threads->is_open = false;
    pthread_mutex_unlock(&threads->lock);
    for (int waited = 0; atomic_load(&threads->begun);)
        pause_a_little(&waited);
}
