/* What callers of attention.c must know. */
#pragma once
#include "vectors.h"

enum { PAGE = 32 }; /* positions in a page */

/* Neighbouring rows of one sequence: n_rows from `row` on, whose first has this position. `first_key` is the first key
 * that it sees, and `pages[page]` the page of that key. */
typedef struct {
    int64_t row, n_rows, position, first_key, page;
} span_t;

typedef struct {
    int64_t row, n_rows, position;
    int64_t page, block, end; /* `pages[page]` holds `block`, the task's first logical block; its last is `end` - 1 */
    int64_t part;             /* index in `parts` for the sums; -1 if there are no others to join */
} task_t;

/* The sums of tasks that share rows: `n` parts from `first` on. */
typedef struct {
    int64_t row, n_rows, first, n;
} join_t;

typedef struct {
    const float *qkv, *rotations, *q_factors;
    float *out, *parts;
    char *cells;
    const int64_t *slots, *pages;
    const task_t *tasks;
    const join_t *joins;
    int64_t n_rows, n_tasks, n_joins, n_heads, n_kv_heads, head_dim, latent, window, kind, part_queries, n_keys;
} attention_call;

/* Of a row of `qkv`: its floats, and the key of a head. With `latent` there is one key, whose first channels are the
 * value. Tasks then divide the query heads into n_kv_heads groups. */
INLINE int64_t row_floats(const attention_call *c) {
    return (c->n_heads + (c->latent ? 1 : 2 * c->n_kv_heads)) * c->head_dim;
}
INLINE const float *key_of(const attention_call *c, int64_t row, int head) {
    return c->qkv + row * row_floats(c) + (c->n_heads + head) * c->head_dim;
}
INLINE int64_t value_dim(const attention_call *c) { return c->latent ? c->latent : c->head_dim; }
/* The channels of a head that rotate, its last ones. */
INLINE int64_t rope_dim(const attention_call *c) { return c->head_dim - c->latent; }

/* Floats of `attention_call.parts` for a query: its sums, for values that are padded, and their maximum and total. */
INLINE int64_t part_floats(const attention_call *c) { return (value_dim(c) + 15) / 16 * 16 + 2; }

/* The bytes of a page in `cells`. */
int64_t GLUE(page_bytes, VARIANT)(const attention_call *c);

/* Divides the attention of n spans into tasks. It sets the tasks, joins and parts of a call, which lie in `memory`, and
 * returns the bytes of the memory. Without memory it only returns them. */
int64_t EXPORT(plan)(attention_call *c, const span_t *spans, int64_t n, void *memory);

/* Store the keys and values of all rows, then attend. The result is [n_rows, n_heads, value_dim]. The last rope_dim
 * channels of q and k are rotated first, by `rotations` [n_rows, 2, rope_dim/2].
 * With `q_factors` [n_rows] the queries of each row are multiplied by its factor. With `n_keys` every row of a task
 * sees the keys of positions 0..n_keys-1, whatever its own position is; there is no window then. */
void EXPORT(attention)(const attention_call *c);
