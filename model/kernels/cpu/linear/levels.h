/* Activations for weights of INT8: whole numbers q of 15 bits, with one scale a row. x = scale * q, q = low + 128 high.
 *
 * MEANS times the mean magnitude of a row becomes 127; after the gate, where many channels are far above the mean,
 * GATED_MEANS times. Few channels are greater, mostly the same in all rows (outliers, Dettmers et al. 2022, arXiv
 * 2208.07339): `high` is 0 in all others. Its product is computed for quads of channels with outliers alone. All sums
 * are exact integers, whatever the order and the neighbours.
 */
#pragma once
#include "linear/calls.h"

enum { MEANS = 5, GATED_MEANS = 12, MOST_HIGH = 127, CHANNELS_A_MASK = 256 };

/* The number of masks of a row. Bit i of mask m belongs to quad 64 m + i. */
#define MASKS(c) (((c)->n_groups * 64 + CHANNELS_A_MASK - 1) / CHANNELS_A_MASK)

/* Where the 64 channels of group g of a row begin, in `q` and in `high`. */
INLINE int64_t bytes_at(const call *c, int row, int g) { return unit_at(c, row, c->n_groups, g) * 64; }

/* The inverse of a row's scale, and the scale, for n numbers whose magnitudes have this maximum and sum. */
INLINE float choose_scale(float most, float sum, int n, int means, float *scale) {
    if (most <= 1e-30f) return *scale = 0;
    float top = (float)means / (float)n * sum, least = most / (MOST_HIGH + 1);
    top = top > least ? top : least;
    top = top < most ? top : most; /* if `most` is not finite, no product of the row is */
    *scale = top / 127;
    return 127 / top;
}

/* Splits 64 whole numbers, some of them greater than a byte. Returns the bits of quads that have a `high`. */
INLINE uint64_t split(const vi *q, int8_t *low, int8_t *high) {
    uint64_t mask = 0;
    UNROLL for (int i = 0; i < 64 / LANES; i++) {
        vi upper = ((q[i] + splat_int(64)) >> 7) & ((q[i] ^ q[i] >> 31) > splat_int(127));
        vb bytes = __builtin_convertvector(upper, vb);
        memcpy(high + i * LANES, &bytes, sizeof bytes);
        bytes = __builtin_convertvector(q[i] - (upper << 7), vb);
        memcpy(low + i * LANES, &bytes, sizeof bytes);
    }
    UNROLL for (int i = 0; i < 16; i += LANES) mask |= lanes_of(load_int(high + i * 4)) << i;
    return mask;
}

/* Converts a row v [n_groups * 64] with this scale's inverse. Sums start with `zero`: packed weights are w + OFFSET. */
INLINE void to_levels(const call *c, int row, const float *v, float inverse) {
    uint64_t *masks = c->masks + (int64_t)row * MASKS(c);
    vi total = {0};
    memset(masks, 0, (size_t)MASKS(c) * 8);
    for (int g = 0; g < c->n_groups; g++, v += 64) {
        const int64_t at = bytes_at(c, row, g);
        vi q[64 / LANES], beyond = {0};
        UNROLL for (int i = 0; i < 64 / LANES; i++) {
            q[i] = nearest(load(v + i * LANES) * splat(inverse));
            beyond |= q[i] ^ q[i] >> 31;
            vb bytes = __builtin_convertvector(q[i], vb);
            memcpy(c->q + at + i * LANES, &bytes, sizeof bytes);
            total += q[i];
        }
        if (lanes_of(beyond & ~splat_int(127))) masks[g / 4] |= split(q, c->q + at, c->high + at) << g % 4 * 16;
        else memset(c->high + at, 0, 64);
    }
    c->zero[row] = -OFFSET * sum_int(total);
}
