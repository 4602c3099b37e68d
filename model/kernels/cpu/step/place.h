/* Where the rows of a step are: the slots of their keys and values, and the tasks of the attention. */
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

/* The block of the first key that a position sees. */
INLINE int64_t first_block(const network_t *m, int64_t pool, int64_t position) {
    int64_t window = m->pools[pool].window;
    return window && position >= window ? (position - window + 1) / m->page_size : 0;
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
            if (first_block(m, p, start) < table.first) return NO_PAGE;
            if ((stop - 1) / m->page_size >= table.first + table.n) return NO_PAGE;
        }
        *n_rows += stop - start;
        *n_samples += slice[SAMPLES];
    }
    for (int64_t row = 0; s->tokens && row < *n_rows; row++)
        if (s->tokens[row] < 0 || s->tokens[row] >= m->n_tokens) return OUTSIDE;
    for (int64_t i = 0; i < s->n_image_rows; i++)
        if (s->image_rows[i] < 0 || s->image_rows[i] >= *n_rows) return OUTSIDE;
    return DONE;
}

static void place_positions(const network_t *m, const step_t *s, int64_t *positions) {
    for (int64_t i = 0; i < s->n_slices; i++) {
        const int64_t *slice = slice_at(m, s, i);
        for (int64_t at = slice[START]; at < slice[STOP]; at++) *positions++ = at;
    }
}

/* The slots of all rows in a pool, whose pages are `pages`. Returns the number of these pages. */
static int64_t place_rows(const network_t *m, const step_t *s, int64_t pool, const int64_t *pages, int64_t *slots) {
    int64_t n = 0;
    for (int64_t i = 0; i < s->n_slices; i++) {
        const int64_t *slice = slice_at(m, s, i);
        table_t table = table_at(slice, pool);
        for (int64_t at = slice[START]; at < slice[STOP]; at++)
            *slots++ = pages[n + at / m->page_size - table.first] * m->page_size + at % m->page_size;
        n += table.n;
    }
    return n;
}

/* The number of tasks, of their pieces, and of the rows of the largest. The kernel starts new sums at multiples of `split`
 * blocks: a piece is what lies between. */
typedef struct {
    int64_t n, pieces, most_rows;
} tasks_t;

INLINE int64_t n_pieces(const network_t *m, const task_t *t) { return (t->end - 1) / m->split - t->block / m->split + 1; }

/* Tasks for up to `rows_a_task` rows of a slice in a pool. Null `tasks` are only counted. */
static tasks_t place_tasks(const network_t *m, const step_t *s, int64_t pool, task_t *tasks) {
    tasks_t count = {0, 0, 0};
    int64_t row = 0, page = 0;
    for (int64_t i = 0; i < s->n_slices; i++) {
        const int64_t *slice = slice_at(m, s, i);
        table_t table = table_at(slice, pool);
        for (int64_t at = slice[START], rows; at < slice[STOP]; at += rows, row += rows) {
            rows = least_of(m->rows_a_task, slice[STOP] - at);
            int64_t block = first_block(m, pool, at);
            task_t task = {row, rows, at, page + block - table.first, block, (at + rows - 1) / m->page_size + 1, -1};
            if (tasks) tasks[count.n] = task;
            count.n++;
            count.pieces += n_pieces(m, &task);
            count.most_rows = rows > count.most_rows ? rows : count.most_rows;
        }
        page += table.n;
    }
    return count;
}

/* The most expensive task comes first: no thread should start one of them late. */
static int by_cost(const void *one, const void *other) {
    const task_t *a = one, *b = other;
    int64_t x = (a->end - a->block) * (a->end - a->block) * a->n_rows, y = (b->end - b->block) * (b->end - b->block) * b->n_rows;
    return x != y ? (x < y) - (x > y) : (a->row < b->row) - (a->row > b->row);
}

/* Cuts n tasks into their pieces, which are joined. Returns the number of joins. */
static int64_t cut(const network_t *m, const task_t *tasks, int64_t n, task_t *pieces, join_t *joins) {
    int64_t n_joins = 0, at = 0;
    for (const task_t *t = tasks; t < tasks + n; t++) {
        int64_t several = n_pieces(m, t) > 1;
        if (several) joins[n_joins++] = (join_t){t->row, t->n_rows, at, n_pieces(m, t)};
        for (int64_t block = t->block, end; block < t->end; block = end, at++) {
            end = least_of(t->end, (block / m->split + 1) * m->split);
            pieces[at] = (task_t){t->row, t->n_rows, t->position, t->page + block - t->block, block, end, several ? at : -1};
        }
    }
    return n_joins;
}
