/* Converts rows of activations to signed bytes, with a scale for each row and group of channels, or to bfloat16. The
 * same pass applies the norm or the gate before the product.
 */
#pragma once
#include "linear/calls.h"
#include "linear/words.h"

enum { LONGEST_GROUP = 64, GATED_AT_ONCE = 256 };

/* LANES channels of a row after the norm, whose scales are `norm`, or the gate over `up`, if KIND has one. */
INLINE vf after(const int KIND, vf x, vf up, vf norm, float factor) {
    if (KIND == NORMED) return x * splat(factor) * norm;
    return KIND == GATED ? x / (splat(1) + exponential(-x)) * up : x;
}

/* Channels i.. of a row of n, which has all of them. */
INLINE vf whole_channel(const int KIND, const float *x, const float *norm, int n, int i, float factor) {
    return after(KIND, load(x + i), KIND == GATED ? load(x + n + i) : splat(0), KIND == NORMED ? load(norm + i) : splat(0), factor);
}

/* The same with a kind that is not known before, and zeros beyond the row's end. */
INLINE vf channel(const call *c, const float *x, int i, float factor) {
    int n = (int)c->w->n_in, some = n - i;
    if (some <= 0) return splat(0);
    if (some >= LANES && c->kind == PLAIN) return whole_channel(PLAIN, x, 0, n, i, factor);
    if (some >= LANES && c->kind == NORMED) return whole_channel(NORMED, x, c->norm, n, i, factor);
    if (some >= LANES) return whole_channel(GATED, x, 0, n, i, factor);
    vf v = load_some(x + i, some);
    if (c->kind == NORMED) return after(NORMED, v, v, load_some(c->norm + i, some), factor);
    return c->kind == GATED ? after(GATED, v, load_some(x + n + i, some), v, factor) : v;
}

/* The difference between a packed weight and the signed one. */
INLINE int32_t excess(int64_t format) { return format == Q4 ? 8 : format == Q4_MIN || format == Q4_K ? 0 : OFFSET; }

/* Converts a group x, whose number among those of all rows is `at`. */
INLINE void quantize_group(const call *c, const int GROUP, const float *x, int64_t at) {
    vf v[LONGEST_GROUP / LANES];
    vi most = {0}, total = {0};
    UNROLL for (int i = 0; i < GROUP / LANES; i++) {
        v[i] = load(x + i * LANES);
        most = larger_bits(magnitude(v[i]), most);
    }
    float amax = greatest_magnitude(most); /* if it is not finite, no product of the group is */
    float inverse = amax <= 1e-30f ? 0 : 127.0f / amax;
    UNROLL for (int i = 0; i < GROUP / LANES; i++) {
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

/* Converts a row of whole groups. GROUP and KIND are constants after inlining: loops without branches. The gate is
 * computed for several groups before the first of them is converted, which saves a quarter of the time. */
INLINE void quantize_whole(const call *c, const int GROUP, const int KIND, const float *x, int64_t at, float factor) {
    const int n = (int)c->w->n_in, AT_ONCE = KIND == GATED ? GATED_AT_ONCE : GROUP;
    const float *norm = c->norm;
    for (int first = 0; first < n; first += AT_ONCE) {
        float v[GATED_AT_ONCE] __attribute__((aligned(64)));
        const int some = KIND != GATED || n - first > AT_ONCE ? AT_ONCE : n - first;
        UNROLL for (int i = 0; i < some; i += LANES) store(v + i, whole_channel(KIND, x, norm, n, first + i, factor));
        for (int i = 0; i < some; i += GROUP, at++) quantize_group(c, GROUP, v + i, at);
    }
}

#define WHOLE(GROUP, KIND) \
    static __attribute__((noinline)) void whole_##GROUP##_##KIND(const call *c, const float *x, int64_t at, float factor) { \
        quantize_whole(c, GROUP, KIND, x, at, factor); \
    }
WHOLE(32, PLAIN) WHOLE(32, NORMED) WHOLE(32, GATED)
WHOLE(64, PLAIN) WHOLE(64, NORMED) WHOLE(64, GATED)
#undef WHOLE

/* Converts a row whose last group may be incomplete. */
static __attribute__((noinline)) void quantize_any(const call *c, const float *x, int64_t at, float factor) {
    for (int g = 0; g < c->n_groups; g++, at++) {
        float v[LONGEST_GROUP];
        for (int i = 0; i < c->group; i += LANES) store(v + i, channel(c, x, g * c->group + i, factor));
        if (c->group == 64) quantize_group(c, 64, v, at);
        else quantize_group(c, 32, v, at);
    }
}

/* The activations of 32 channels of a row for BF16. For AMX they are [rows/16][n_in/32][16 rows][32 channels], where the last rows
 * may be fewer than 16: rows 4096 bytes apart would share a set of the cache. */
INLINE char *activations(const call *c, int row, int step) {
    int64_t first = (int64_t)row * 2 * c->n_groups + step;
#if defined(AMX)
    int within = row % 16, rows = (int)least_of(16, c->n_rows - (row - within));
    first = (int64_t)(row - within) * 2 * c->n_groups + (int64_t)step * rows + within;
#endif
    return (char *)c->q + first * CHANNELS_A_STEP * ACTIVATION;
}

static void quantize_row(const call *c, int row) {
    static void (*const whole[2][3])(const call *, const float *, int64_t, float) = {
        {whole_32_PLAIN, whole_32_NORMED, whole_32_GATED}, {whole_64_PLAIN, whole_64_NORMED, whole_64_GATED}};
    int n = (int)c->w->n_in;
    const float *x = c->x + (int64_t)(c->rows ? c->rows[row] : row) * n * (c->kind == GATED ? 2 : 1);
    float factor = c->kind == NORMED ? inverse_rms(x, n, c->eps) : 1;
    int64_t at = (int64_t)row * c->n_groups;
    if (c->w->format == BF16) {
        for (int step = 0; step < 2 * c->n_groups; step++) {
            vf v[CHANNELS_A_STEP / LANES];
            const int first = step * CHANNELS_A_STEP;
            UNROLL for (int i = 0; i < CHANNELS_A_STEP / LANES; i++) v[i] = channel(c, x, first + i * LANES, factor);
            store_activations(activations(c, row, step), v);
        }
    } else {
        (n % c->group ? quantize_any : whole[c->group == 64][c->kind])(c, x, at, factor);
    }
}

static void quantize_some(void *context, int task, int thread) {
    const call *c = *(const call *const *)context;
    for (; task >= ROW_TASKS(c->n_rows); c++) task -= ROW_TASKS(c->n_rows);
    for (int row = task * ROWS_A_TASK; row < c->n_rows && row < (task + 1) * ROWS_A_TASK; row++) quantize_row(c, row);
}
