/* Divides the attention of a step into tasks. */
#pragma once
#include "attention/attention.h"
#include "pool.h"
#include <stdlib.h>

/* ROWS, MAX_QUERIES: rows and queries of a task at most. After SPLIT pages a task starts new sums. Long tasks are cut
 * there if there are fewer tasks than ENOUGH or threads: every thread then has work. */
enum { ROWS = 16, MAX_QUERIES = 64, SPLIT = 16, ENOUGH = 64 };

/* The number of tasks, of the pieces into which they can be cut, and of the rows of the largest. */
typedef struct {
    int64_t n, pieces, most_rows;
} tasks_t;

INLINE int64_t n_pieces(const task_t *t) { return (t->end - 1) / SPLIT - t->block / SPLIT + 1; }

/* The tasks of n spans. Null `tasks` are only counted. */
static tasks_t place_tasks(const attention_call *c, const span_t *spans, int64_t n, task_t *tasks) {
    const int64_t queries = MAX_QUERIES / (c->n_heads / c->n_kv_heads), most = c->n_keys ? queries : least_of(ROWS, queries);
    tasks_t count = {0, 0, 0};
    for (const span_t *s = spans; s < spans + n; s++)
        for (int64_t i = 0, rows; i < s->n_rows; i += rows) {
            rows = least_of(most, s->n_rows - i);
            int64_t at = s->position + i, last = c->n_keys ? c->n_keys - 1 : at + rows - 1;
            int64_t block = c->window ? most_of(at - c->window + 1, 0) / PAGE : 0;
            task_t task = {s->row + i, rows, at, s->page + block - s->first_key / PAGE, block, last / PAGE + 1, -1};
            if (tasks) tasks[count.n] = task;
            count.n++;
            count.pieces += n_pieces(&task);
            count.most_rows = most_of(rows, count.most_rows);
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
static int64_t cut(const task_t *tasks, int64_t n, task_t *pieces, join_t *joins) {
    int64_t n_joins = 0, at = 0;
    for (const task_t *t = tasks; t < tasks + n; t++) {
        int64_t several = n_pieces(t) > 1;
        if (several) joins[n_joins++] = (join_t){t->row, t->n_rows, at, n_pieces(t)};
        for (int64_t block = t->block, end; block < t->end; block = end, at++) {
            end = least_of(t->end, (block / SPLIT + 1) * SPLIT);
            pieces[at] = (task_t){t->row, t->n_rows, t->position, t->page + block - t->block, block, end, several ? at : -1};
        }
    }
    return n_joins;
}

int64_t EXPORT(plan)(attention_call *c, const span_t *spans, int64_t n, void *memory) {
    const tasks_t count = place_tasks(c, spans, n, 0);
    const int cuts = !c->n_keys && count.n * c->n_kv_heads < most_of(ENOUGH, noria_thread_count());
    arena a = {(uintptr_t)memory, INT64_MAX};
    c->part_queries = cuts && count.pieces > count.n ? count.most_rows * (c->n_heads / c->n_kv_heads) : 0;
    task_t *tasks = take(&a, count.n * (int64_t)sizeof(task_t));
    task_t *pieces = cuts ? take(&a, count.pieces * (int64_t)sizeof(task_t)) : tasks;
    join_t *joins = take(&a, cuts * count.n * (int64_t)sizeof(join_t));
    c->parts = take(&a, count.pieces * c->n_kv_heads * c->part_queries * part_floats(c) * 4);
    if (!memory) return a.used;
    place_tasks(c, spans, n, tasks);
    qsort(tasks, (size_t)count.n, sizeof(task_t), by_cost);
    c->n_joins = cuts ? cut(tasks, count.n, pieces, joins) : 0;
    c->n_tasks = cuts ? count.pieces : count.n;
    c->tasks = pieces, c->joins = joins;
    return a.used;
}
