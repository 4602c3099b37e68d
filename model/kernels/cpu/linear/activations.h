/* Converts rows of activations to signed bytes, with a scale for each row and group of channels, or to bfloat16. The
 * same pass applies the norm or the gate before the product.
 */
#pragma once
#include "linear/calls.h"

enum { LONGEST_GROUP = 64 };
#ifndef LINES_A_GROUP
#define LINES_A_GROUP 3
#endif

/* Channels i.. of a row, after the norm or the gate if `kind` has one; 0 beyond the row's end. */
INLINE vf channel(const call *c, const float *x, int i, float factor) {
    int n = (int)c->w->n_in, whole = i + LANES <= n, some = n - i;
    if (some <= 0) return splat(0);
    vf v = whole ? load(x + i) : load_some(x + i, some);
    if (c->kind == NORMED) return v * splat(factor) * (whole ? load(c->norm + i) : load_some(c->norm + i, some));
    if (c->kind == GATED) {
        vf up = whole ? load(x + n + i) : load_some(x + n + i, some);
        return v / (splat(1) + exponential(-v)) * up;
    }
    return v;
}

/* The difference between a packed weight and the signed one. */
INLINE int32_t excess(int64_t format) { return format == Q4 ? 8 : format == Q4_MIN ? 0 : OFFSET; }

INLINE void quantize_group(const call *c, const int GROUP, const float *x, int64_t at, int first, float factor) {
    vf v[LONGEST_GROUP / LANES];
    vi most = {0};
    for (int i = 0; i < GROUP / LANES; i++) {
        v[i] = channel(c, x, first + i * LANES, factor);
        most = larger_bits(magnitude(v[i]), most);
    }
    float amax = greatest_magnitude(most); /* if it is not finite, no product of the group is */
    float inverse = amax <= 1e-30f ? 0 : 127.0f / amax;
    vi total = {0};
    for (int i = 0; i < GROUP / LANES; i++) {
        vi q = nearest(v[i] * splat(inverse));
        vb bytes = __builtin_convertvector(q, vb);
        memcpy(c->q + at * GROUP + i * LANES, &bytes, sizeof bytes);
        total += q;
    }
    int32_t s = sum_int(total);
    c->scale[at] = amax <= 1e-30f ? 0 : amax / 127.0f;
    c->zero[at] = -excess(c->w->format) * s;
    c->total[at] = c->scale[at] * (float)s;
}

static void quantize_row(const call *c, int row) {
    int n = (int)c->w->n_in;
    const float *x = c->x + (int64_t)(c->rows ? c->rows[row] : row) * n * (c->kind == GATED ? 2 : 1);
    float factor = c->kind == NORMED ? inverse_rms(x, n, c->eps) : 1;
    int64_t at = (int64_t)row * c->n_groups;
    if (c->w->format == BF16) {
        char *to = (char *)c->q + at * c->group * FACTOR;
        for (int i = 0; i < c->n_groups * c->group; i += LANES) store_factors(to + i * FACTOR, channel(c, x, i, factor));
        return;
    }
    for (int g = 0; g < c->n_groups; g++, at++)
        if (c->group == 64) quantize_group(c, 64, x, at, g * 64, factor);
        else quantize_group(c, 32, x, at, g * 32, factor);
}

static void quantize_some(void *context, int task, int thread) {
    const call *c = *(const call *const *)context;
    for (; task >= ROW_TASKS(c->n_rows); c++) task -= ROW_TASKS(c->n_rows);
    for (int row = task * ROWS_A_TASK; row < c->n_rows && row < (task + 1) * ROWS_A_TASK; row++) {
        noria_read_ahead(thread, c->n_groups * LINES_A_GROUP);
        quantize_row(c, row);
    }
}
