/* Writes the keys and values of a step to their pages. */
#pragma once
#include "attention/cells.h"

INLINE char *cell(const attention_call *c, const int kind, int64_t page, int head) {
    const int64_t half = half_bytes(kind, (int)c->head_dim);
    return c->cells + (c->latent ? page * half : (page * c->n_kv_heads + head) * 2 * half);
}

/* Rows of a task: few if the step has few, so that all threads share them. */
INLINE int rows_a_write(const attention_call *c) { return c->n_rows < 64 ? 4 : 16; }

static const float *value_of(const attention_call *c, int64_t row, int head) { return key_of(c, row, (int)c->n_kv_heads + head); }

/* Makes y the head x of a row with its last channels rotated. */
INLINE void turn(const attention_call *c, const float *x, int64_t row, float *y) {
    const int64_t still = c->latent, rope = rope_dim(c);
    memcpy(y, x, (size_t)still * 4);
    rotate(x + still, c->rotations + row * rope, y + still, (int)rope / 2);
}

INLINE void write_row(const int kind, const attention_call *c, int64_t row, int with_value) {
    const int dim = (int)c->head_dim, within = (int)(c->slots[row] % PAGE);
    float k[MAX_DIM];
    const float *soon = key_of(c, row + 1 < c->n_rows ? row + 1 : row, 0);
    for (int i = 0; i < row_floats(c) - c->n_heads * dim; i += 16) __builtin_prefetch(soon + i);
    for (int head = 0; head < (c->latent ? 1 : c->n_kv_heads); head++) {
        turn(c, key_of(c, row, head), row, k);
        char *keys = cell(c, kind, c->slots[row] / PAGE, head);
        store_key(kind, keys, dim, within, k);
        if (with_value) store_value(kind, keys + half_bytes(kind, dim), dim, within, value_of(c, row, head));
    }
}

/* Whether rows row..row+3 are before `end`, and their slots a quad. */
INLINE int is_quad(const attention_call *c, int64_t row, int64_t end) {
    const int64_t *s = c->slots + row;
    return row + 4 <= end && s[0] % 4 == 0 && s[1] == s[0] + 1 && s[2] == s[0] + 2 && s[3] == s[0] + 3;
}

static void write_quad(const attention_call *c, int64_t row) {
    const int dim = (int)c->head_dim;
    for (int head = 0; head < c->n_kv_heads; head++) {
        const float *x[4] = {value_of(c, row, head), value_of(c, row + 1, head), value_of(c, row + 2, head), value_of(c, row + 3, head)};
        store_quad(cell(c, BF16, c->slots[row] / PAGE, head) + half_bytes(BF16, dim), dim, (int)(c->slots[row] % PAGE), x);
    }
}

static void write_some(void *context, int task, int thread) {
    const attention_call *c = context;
    const int64_t each = rows_a_write(c);
    int64_t row = task * each, end = least_of(row + each, c->n_rows), written = row; /* rows before it are written */
    for (; row < end; row++) {
        if (c->kind == FLOAT32) write_row(FLOAT32, c, row, !c->latent);
        if (c->kind == INT8) write_row(INT8, c, row, !c->latent);
        if (c->kind != BF16) continue;
        if (c->latent) written = end;
        if (row >= written && is_quad(c, row, end)) {
            write_quad(c, row);
            written = row + 4;
        }
        write_row(BF16, c, row, row >= written);
    }
}
