/* A small persistent thread pool, shared by all variants of the kernels. */
#pragma once
#include <stdint.h>

typedef void (*task_fn)(void *context, int task, int thread);

/* Run task 0..n-1 on all threads, the calling one included; returns when all are done. */
void noria_parallel(task_fn run, void *context, int n);

/* Threads that share the tasks. */
int noria_thread_count(void);

/* Memory of THREAD_BYTES for each thread of the pool, aligned to cache lines. A task may use that of its thread until it ends. */
enum { THREAD_BYTES = 512 * 1024 };
void *noria_memory(int thread);

/* Bytes of the third level of cache that these threads may use. */
int64_t noria_shared_cache(void);
