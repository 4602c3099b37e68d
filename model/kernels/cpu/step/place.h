/* Where the rows of a step are: the slots of their keys and values, and their spans for the attention. */
#pragma once
#include "step/step.h"

enum { START, STOP, SAMPLES, ADAPTER, TABLES }; /* columns of `slices` */

/* A slice's table of one pool: `pages` hold `n` blocks from `first` on. */
typedef struct {
    int64_t first, n;
} table_t;

INLINE const int64_t *slice_at(const network_t *m, const step_t *s, int64_t i) {
    return s->slices + i * (TABLES + 2 * m->n_pools);
}

INLINE table_t table_at(const int64_t *slice, int64_t pool) {
    return (table_t){slice[TABLES + 2 * pool], slice[TABLES + 2 * pool + 1]};
}

/* The first key that a position sees. */
INLINE int64_t first_key(const network_t *m, int64_t pool, int64_t position) {
    int64_t window = m->pools[pool].window;
    return window ? most_of(position - window + 1, 0) : 0;
}

/* The number of rows in `n_rows` and of tokens to sample in `n_samples`; or the reason to refuse the step. */
static int count(const network_t *m, const step_t *s, int64_t *n_rows, int64_t *n_samples) {
    *n_rows = *n_samples = 0;
    for (int64_t i = 0; i < s->n_slices; i++) {
        const int64_t *slice = slice_at(m, s, i), start = slice[START], stop = slice[STOP];
        if (start < 0 || stop <= start || stop > m->n_positions) return OUTSIDE;
        if (slice[ADAPTER] < -1 || slice[ADAPTER] >= s->n_adapters) return OUTSIDE;
        for (int64_t p = 0; p < m->n_pools; p++) {
            table_t table = table_at(slice, p);
            if (first_key(m, p, start) / PAGE < table.first) return NO_PAGE;
            if ((stop - 1) / PAGE >= table.first + table.n) return NO_PAGE;
        }
        *n_rows += stop - start;
        *n_samples += slice[SAMPLES];
    }
    for (int64_t row = 0; s->tokens && row < *n_rows; row++)
        if (s->tokens[row] < 0 || s->tokens[row] >= m->n_tokens) return OUTSIDE;
    for (int64_t i = 0; i < s->n_embedded_rows; i++)
        if (s->embedded_rows[i] < 0 || s->embedded_rows[i] >= *n_rows) return OUTSIDE;
    return DONE;
}

static void place_positions(const network_t *m, const step_t *s, int64_t *positions) {
    for (int64_t i = 0; i < s->n_slices; i++) {
        const int64_t *slice = slice_at(m, s, i);
        for (int64_t at = slice[START]; at < slice[STOP]; at++) *positions++ = at;
    }
}

/* The spans of a pool. */
static void place_spans(const network_t *m, const step_t *s, int64_t pool, span_t *spans) {
    int64_t row = 0, page = 0;
    for (int64_t i = 0; i < s->n_slices; i++) {
        const int64_t *slice = slice_at(m, s, i), start = slice[START], first = first_key(m, pool, start);
        table_t table = table_at(slice, pool);
        spans[i] = (span_t){row, slice[STOP] - start, start, first, page + first / PAGE - table.first};
        row += slice[STOP] - start;
        page += table.n;
    }
}

/* The slots of all rows in a pool, whose pages are `pages`. Returns the number of these pages. */
static int64_t place_rows(const network_t *m, const step_t *s, int64_t pool, const int64_t *pages, int64_t *slots) {
    int64_t n = 0;
    for (int64_t i = 0; i < s->n_slices; i++) {
        const int64_t *slice = slice_at(m, s, i);
        table_t table = table_at(slice, pool);
        for (int64_t at = slice[START]; at < slice[STOP]; at++)
            *slots++ = pages[n + at / PAGE - table.first] * PAGE + at % PAGE;
        n += table.n;
    }
    return n;
}
