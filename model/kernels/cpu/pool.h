/* A small persistent thread pool, shared by all variants of the kernels. */
#pragma once
#include <stdint.h>

typedef void (*task_fn)(void *context, int task, int thread);

/* Run task 0..n-1 on all threads, the calling one included; returns when all are done. */
void noria_parallel(task_fn run, void *context, int n);

/* Threads that share the tasks. */
int noria_thread_count(void);

/* Memory of THREAD_BYTES for each thread of the pool, on cache lines. A task may use its thread's. */
enum { THREAD_BYTES = 512 * 1024 };
void *noria_memory(int thread);

/* Bytes of the third level of cache that these threads may use. */
int64_t noria_shared_cache(void);

/* Whether data from memory should be prefetched to the second level of cache, not to the first. */
int noria_prefetches_to_second(void);

/* Memory of `size` bytes that is handed out piece by piece, as a stack; `most` bytes were in use at once. A dry pass
 * has no memory, `begin` is 0: the same code runs, touches no piece, and so finds the size that it needs. A build with
 * AddressSanitizer (-DSANITIZED) has a zone behind each piece that nobody may touch, and ends if more is taken. */
typedef struct {
    uintptr_t begin;
    int64_t size, used, most;
} arena;

#ifdef SANITIZED
#include <sanitizer/asan_interface.h>
#include <stdlib.h>
enum { RED_ZONE = 64 };
#else
enum { RED_ZONE = 0 };
#define ASAN_POISON_MEMORY_REGION(begin, n) ((void)0)
#define ASAN_UNPOISON_MEMORY_REGION(begin, n) ((void)0)
#endif

static inline void *take(arena *a, int64_t n_bytes) {
    uintptr_t piece = a->begin + (uintptr_t)a->used;
    a->used += (n_bytes + 63) / 64 * 64 + RED_ZONE;
    if (a->used > a->most) a->most = a->used;
#ifdef SANITIZED
    if (a->begin && a->used > a->size) abort();
#endif
    if (a->begin)
        ASAN_POISON_MEMORY_REGION((void *)(piece + (uintptr_t)n_bytes), a->begin + (uintptr_t)a->used - piece - (uintptr_t)n_bytes);
    return (void *)piece;
}

/* Gives back all pieces but those within the first `used` bytes. */
static inline void give_back(arena *a, int64_t used) {
    if (a->begin) ASAN_UNPOISON_MEMORY_REGION((void *)(a->begin + (uintptr_t)used), (uintptr_t)(a->used - used));
    a->used = used;
}

/* Runs the tasks, but not in a dry pass. */
static inline void in_parallel(const arena *a, task_fn run, void *context, int n) {
    if (a->begin) noria_parallel(run, context, n);
}
