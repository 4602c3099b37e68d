/* What the products of a step prefetch for the attention of the next layer: products compute, and leave memory idle. */
#pragma once
#include "attention/attention.h"

/* How far a thread is: its next task, the next page of this task, and what is left of the page before. In pairs of
 * cache lines of its own. */
typedef struct __attribute__((aligned(128))) {
    const task_t *task, *last;
    int64_t page;
    const char *at, *end;
} cursor;

/* Every thread prefetches the pages of its coming tasks, `bytes_a_mac` for each multiply-add of products. */
typedef struct {
    const attention_call *attention;
    const char *cells;
    int64_t page_bytes;
    float bytes_a_mac;
    cursor *cursors;
} ahead_t;

/* Moves to the next page. Returns 0 after the last one. */
INLINE int next_page(const ahead_t *a, cursor *c) {
    if (c->task == c->last) return 0;
    c->at = a->cells + a->attention->pages[c->task->page + c->page++] * a->page_bytes;
    c->end = c->at + a->page_bytes;
    if (c->page >= c->task->end - c->task->block) c->task++, c->page = 0;
    return 1;
}

/* Takes up to n units of a page, and returns their number; `from` is the first. A shorter end is skipped. */
INLINE int take_ahead(const ahead_t *a, cursor *c, int64_t unit, int n, const uint8_t **from) {
    if (c->end - c->at < unit && !next_page(a, c)) return 0;
    n = (int)least_of(n, (c->end - c->at) / unit);
    *from = (const uint8_t *)c->at;
    c->at += n ? n * unit : c->end - c->at;
    return n;
}

/* Sets all cursors to the first tasks of their threads in the next layer. */
INLINE void begin_ahead(const ahead_t *a, int threads) {
    const attention_call *c = a->attention;
    for (int i = 0; i < threads; i++)
        a->cursors[i] = (cursor){c->tasks + c->n_tasks * i / threads, c->tasks + c->n_tasks * (i + 1) / threads, 0, 0, 0};
}
