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

/* Memory that is handed out piece by piece, up to `end`. `used` may exceed it: then nobody may write there. A build
 * with AddressSanitizer (-DSANITIZED) has a zone behind each piece that nobody may touch until `give_back`. */
typedef struct {
    uintptr_t begin;
    int64_t used;
    uintptr_t end;
} arena;

#ifdef SANITIZED
#include <sanitizer/asan_interface.h>
enum { RED_ZONE = 64 };
#else
enum { RED_ZONE = 0 };
#define ASAN_POISON_MEMORY_REGION(begin, n) ((void)0)
#define ASAN_UNPOISON_MEMORY_REGION(begin, n) ((void)0)
#endif

/* Memory whose caller has reserved enough. */
static inline arena enough(void *memory) { return (arena){(uintptr_t)memory, 0, UINTPTR_MAX}; }

static inline void *take(arena *a, int64_t n_bytes) {
    uintptr_t piece = a->begin + (uintptr_t)a->used;
    a->used += (n_bytes + 63) / 64 * 64 + RED_ZONE;
    if (a->begin && a->begin + (uintptr_t)a->used <= a->end)
        ASAN_POISON_MEMORY_REGION((void *)(piece + (uintptr_t)n_bytes), a->begin + (uintptr_t)a->used - piece - (uintptr_t)n_bytes);
    return (void *)piece;
}

static inline void give_back(const arena *a) { ASAN_UNPOISON_MEMORY_REGION((void *)a->begin, (uintptr_t)a->used); }
