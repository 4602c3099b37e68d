/* A small persistent thread pool, shared by all variants of the kernels. */
#pragma once
#include <stdint.h>

typedef void (*task_fn)(void *context, int task, int thread);

/* Run task 0..n-1 on all threads, the calling one included; returns when all are done. */
void noria_parallel(task_fn run, void *context, int n);

/* Threads that share the tasks. */
int noria_thread_count(void);

/* Bytes of the third level of cache that the first core shares with others; 0 if the system does not tell. */
int64_t noria_shared_cache(void);
