/* Several products at once: one for each expert, or a single one. */
#pragma once
#include "../amx.h"
#include "linear/linear.h"
#include "pool.h"

enum { ROWS_A_TASK = 4, TASK_ROWS = 128 }; /* rows that a task converts, and that it multiplies */
#define ROW_TASKS(n_rows) (((n_rows) + ROWS_A_TASK - 1) / ROWS_A_TASK)

/* One product. Its caller sets w, x, norm, rows, y, eps, kind, add and n_rows. Row i of x is `rows[i]`, or i without
 * `rows`. Rows of x and y are `x_stride` and `y_stride` floats apart; 0: side by side. A single one without `rows` may
 * have `runs`.
 *
 * For each row and group: bytes `q`, their `scale`, the start of integer sums (`zero`), and `total`, which is the scale
 * times the sum of the bytes. For NVFP4 each half of a group has its own start, and there is no `total`. For INT8
 * weights a row has one scale and one start, `high` bytes and `masks` (levels.h). BF16 has only factors, in `q`. */
typedef struct shape shape;
typedef struct {
    const weights *w;
    const shape *shape; /* of tiles */
    const float *x, *norm;
    const int32_t *rows;
    const lora_rows *runs;
    const ahead_t *ahead;
    float *y;
    int64_t target, x_stride, y_stride;
    float eps;
    int kind, add, n_rows, n_runs, group, n_groups, n_blocks, grain, n_grains;
    int8_t *q, *high;
    uint64_t *masks;
    float *scale, *total;
    int32_t *zero;
} call;

/* Computes n products whose weights have one format and one n_in. All threads share the work of all products. */
void GLUE(multiply, VARIANT)(call *calls, int n, arena *scratch);

/* The place of unit `i` of the `n` units of a row's activations. AMX has them as tiles [rows/16][n][16 rows], where the
 * last rows may be fewer than 16: rows 4096 bytes apart would share a set of the cache. */
INLINE int64_t unit_at(const call *c, int row, int n, int i) {
#if defined(AMX)
    int within = row % 16, rows = (int)least_of(16, c->n_rows - (row - within));
    return (int64_t)(row - within) * n + (int64_t)i * rows + within;
#else
    return (int64_t)row * n + i;
#endif
}

/* LANES numbers of a row of n from x + i on; zeros beyond its end. */
INLINE vf load_row(const float *x, int n, int i) { return i + LANES <= n ? load(x + i) : i < n ? load_some(x + i, n - i) : splat(0); }

/* Adds the squares of LANES numbers of a row of n from x + i on. */
INLINE vf add_square(const float *x, int n, int i, vf total) {
    vf v = load_row(x, n, i);
    return fused(v, v, total);
}

INLINE float inverse_root(wide squares, int n, float eps) { return 1.0f / sqrtf(sum_wide(squares) / (float)n + eps); }

/* 1 / rms of a row. The lanes are summed in a fixed order. */
INLINE float inverse_rms(const float *x, int n, float eps) {
    wide total = {0};
    for (int i = 0; i < n; i += WIDE_LANES)
        UNROLL for (int k = 0; k < PARTS; k++) total.part[k] = add_square(x, n, i + k * LANES, total.part[k]);
    return inverse_root(total, n, eps);
}

/* The number of blocks in a task: a multiple of `step`, at most `most` or 4, whichever is greater. It minimizes the
 * number of blocks of the thread with the most work. */
INLINE int balanced(int n, int most, int step) {
    int threads = noria_thread_count(), best = 0, least = 0;
    for (int grain = (most < 4 ? 4 : most) / step * step; grain > 0; grain -= step) {
        int tasks = (n + grain - 1) / grain, longest = (tasks + threads - 1) / threads * grain;
        if (!best || longest < least) best = grain, least = longest;
    }
    return best;
}
