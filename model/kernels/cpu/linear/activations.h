/* Converts rows of activations to whole numbers with a scale for each row (INT8), to signed bytes with a scale for each
 * row and group of 32 channels, or to bfloat16. The same pass applies the norm or the gate before the product.
 */
#pragma once
#include "linear/levels.h"
#include "linear/words.h"

/* LANES channels of a row after the gate over `up` if KIND has one, or times the scales of the norm, `norm`; the factor
 * of the norm is a row's (`facts`). */
INLINE vf after(const int KIND, vf x, vf up, vf norm) {
    if (KIND == NORMED) return x * norm;
    return KIND == GATED ? x / (splat(1) + exponential(-x)) * up : x;
}

/* Channels i.. of a row of n, with zeros beyond its end. */
INLINE vf channel(const int KIND, const float *x, const float *norm, int n, int i) {
    int some = n - i;
    if (some >= LANES) return after(KIND, load(x + i), KIND == GATED ? load(x + n + i) : splat(0), KIND == NORMED ? load(norm + i) : splat(0));
    if (some <= 0) return splat(0);
    return after(KIND, load_some(x + i, some), KIND == GATED ? load_some(x + n + i, some) : splat(0),
                 KIND == NORMED ? load_some(norm + i, some) : splat(0));
}

/* The same with a kind that is not known before, times the factor of the norm. */
INLINE vf any_channel(const call *c, const float *x, int i, float factor) {
    const int n = (int)c->w->n_in;
    vf v = c->kind == PLAIN ? channel(PLAIN, x, 0, n, i) : c->kind == NORMED ? channel(NORMED, x, c->norm, n, i) : channel(GATED, x, 0, n, i);
    return v * splat(factor);
}

/* The difference between a packed weight and the signed one. */
INLINE int32_t excess(int64_t format) {
    return format == Q4 ? 8 : format == Q4_MIN || format == Q4_K ? 0 : IS_FP4(format) ? FP4_OFFSET : OFFSET;
}

#if defined(AMX)
/* Whether AMX computes the product, if the weights have scales of groups (blocks.h). Fewer rows wait for memory, which
 * vectors read in one stream (shapes.h). */
INLINE int in_slabs(const call *c) { return c->n_rows >= 16; }
#endif

/* The number of group g of a row among the groups of all rows. */
INLINE int64_t group_at(const call *c, int row, int g) {
#if defined(AMX)
    if (!in_slabs(c)) return (int64_t)row * c->n_groups + g;
#endif
    return unit_at(c, row, c->n_groups, g);
}

/* Converts a group x of 32 channels times `factor`. Its number is `at` (group_at). */
INLINE void quantize_group(const call *c, const float *x, float factor, int64_t at) {
    enum { GROUP = 32 };
    vf v[GROUP / LANES];
    vi most = {0}, total[2] = {{0}, {0}}; /* of each half of the group */
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
        total[i * 2 * LANES / GROUP] += q;
    }
    const int32_t less = -excess(c->w->format);
    c->scale[at] = amax <= 1e-30f ? 0 : amax / 127.0f * factor;
    if (c->w->format == NVFP4) {
        for (int half = 0; half < 2; half++) c->zero[2 * at + half] = less * sum_int(total[half]);
        return;
    }
    int32_t s = sum_int(total[0] + total[1]);
    c->zero[at] = less * s;
    c->total[at] = c->scale[at] * (float)s;
}

/* The maximum and the sum of the magnitudes of v, and the factor of v: 1 / rms of x with a norm. */
typedef struct {
    float most, sum, factor;
} facts;

/* The channels of a row before the factor of the norm, to v, with zeros for an incomplete last group. KIND is a
 * constant after inlining: loops without branches. */
INLINE facts apply(const call *c, const int KIND, const float *x, float *v) {
    const int n = (int)c->w->n_in, end = c->n_groups * c->group;
    wide total = {0}, squares = {0};
    vi most = {0};
#define ADD(k) \
    vf now = channel(KIND, x, c->norm, n, i + k * LANES); \
    store(v + i + k * LANES, now); \
    total.part[k] += (vf)magnitude(now); \
    most = larger_bits(magnitude(now), most); \
    if (KIND == NORMED) squares.part[k] = add_square(x, n, i + k * LANES, squares.part[k]);
    int i = 0;
    for (; i + WIDE_LANES <= n; i += WIDE_LANES) UNROLL for (int k = 0; k < PARTS; k++) { ADD(k) }
    for (; i < end; i += WIDE_LANES) for (int k = 0; k < PARTS; k++) { ADD(k) }
#undef ADD
    return (facts){greatest_magnitude(most), sum_wide(total), KIND == NORMED ? inverse_root(squares, n, c->eps) : 1};
}

#define APPLY(KIND) \
    static __attribute__((noinline)) facts apply_##KIND(const call *c, const float *x, float *v) { return apply(c, KIND, x, v); }
APPLY(PLAIN) APPLY(NORMED) APPLY(GATED)
#undef APPLY

/* The activations of 32 channels of a row for BF16. */
INLINE char *activations(const call *c, int row, int step) {
    return (char *)c->q + unit_at(c, row, 2 * c->n_groups, step) * CHANNELS_A_STEP * ACTIVATION;
}

static void quantize_row(const call *c, int row, float *v) {
    static facts (*const apply_kind[])(const call *, const float *, float *) = {apply_PLAIN, apply_NORMED, apply_GATED};
    const int n = (int)c->w->n_in;
    const float *x = c->x + (int64_t)(c->rows ? c->rows[row] : row) * c->x_stride;
    const facts f = apply_kind[c->kind](c, x, v);
    if (c->w->format == INT8) {
        to_levels(c, row, v, choose_scale(f.most, f.sum, n, c->kind == GATED ? GATED_MEANS : MEANS, c->scale + row));
        c->scale[row] *= f.factor;
    } else if (c->w->format == BF16) {
        for (int step = 0; step < 2 * c->n_groups; step++, v += CHANNELS_A_STEP) {
            vf some[CHANNELS_A_STEP / LANES];
            UNROLL for (int i = 0; i < CHANNELS_A_STEP / LANES; i++) some[i] = load(v + i * LANES) * splat(f.factor);
            store_activations(activations(c, row, step), some);
        }
    } else {
        for (int g = 0; g < c->n_groups; g++) quantize_group(c, v + g * 32, f.factor, group_at(c, row, g));
    }
}

static void quantize_some(void *context, int task, int thread) {
    const call *c = *(const call *const *)context;
    for (; task >= ROW_TASKS(c->n_rows); c++) task -= ROW_TASKS(c->n_rows);
    for (int row = task * ROWS_A_TASK; row < c->n_rows && row < (task + 1) * ROWS_A_TASK; row++)
        quantize_row(c, row, noria_memory(thread));
}
