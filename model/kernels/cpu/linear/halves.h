/* Tiles of a product with weights in NVFP4, where each half of a group of 32 channels has a scale for each output. The
 * order of every tile: the sum of the lower half times its scale, plus that of the upper half, times the row's scale.
 */
#pragma once
#include "linear/tiles.h"

/* The exact sums of half HALF of a group. A group's activations are at x, rows `stride` bytes apart; a row's starting
 * sums at `zero`, rows `after` numbers apart. A block's weights are at `record`, the next ones `next` bytes behind. */
INLINE void sum_half(const int HALF, const int R, const int C, vi acc[][MOST_BLOCKS * VECTORS], const uint8_t *record, int64_t next,
                     const int8_t *x, int64_t stride, const int32_t *zero, int64_t after, const uint8_t *soon, int n_soon) {
    const int V = C * VECTORS;
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) acc[r][v] = splat_int(zero[r * after + HALF]);
    for (int q = 0; q < 4; q++) {
        quads part[MOST_BLOCKS * VECTORS];
        if (!HALF && q < n_soon) UNROLL for (int b = 0; b < C; b++) __builtin_prefetch(soon + (q * C + b) * STEP(NVFP4), 0, 2);
        UNROLL for (int v = 0; v < V; v++)
            part[v] = load_half_quads(1, HALF, record + v / VECTORS * next + v % VECTORS * WIDTH + q * 64);
        add_quad(NVFP4, R, V, acc, part, x, stride, q + 4 * HALF);
    }
}

/* Both sums of a group, each times its scale. */
INLINE vf add_halves(vf low, vf high, vf low_scale, vf high_scale) { return fused(high, high_scale, low * low_scale); }

/* As `tile`. */
INLINE void tile_halves(const call *c, const int R, const int C, int row, int block, const uint8_t *soon, int n_soon) {
    const int V = C * VECTORS, G = c->n_groups;
    const int64_t stride = (int64_t)G * 32, next = (int64_t)G * RECORD(NVFP4), first = (int64_t)row * G;
    const uint8_t *record = c->w->packed + block * next;
    const int8_t *x = c->q + first * 32;
    const float *scale = c->scale + first;
    const int32_t *zero = c->zero + 2 * first;
    vf totals[MOST_ROWS][MOST_BLOCKS * VECTORS];
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) totals[r][v] = splat(0);
    for (int g = 0; g < G; g++, record += AFTER(NVFP4, g), x += 32, zero += 2) {
        vi acc[MOST_ROWS][MOST_BLOCKS * VECTORS];
        vf low[MOST_ROWS][MOST_BLOCKS * VECTORS];
        if (3 * R * V > REGISTERS) __asm__ volatile("" : : "r"(totals) : "memory"); /* totals stay in memory */
        sum_half(0, R, C, acc, record, next, x, stride, zero, 2 * G, soon, n_soon);
        soon += n_soon * C * STEP(NVFP4);
        UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) low[r][v] = __builtin_convertvector(acc[r][v], vf);
        sum_half(1, R, C, acc, record, next, x, stride, zero, 2 * G, 0, 0);
        UNROLL for (int v = 0; v < V; v++) {
            vf low_scale, high_scale;
            load_tables(NVFP4, record + v / VECTORS * next, g, G, v % VECTORS * LANES, &low_scale, &high_scale);
            UNROLL for (int r = 0; r < R; r++) {
                vf both = add_halves(low[r][v], __builtin_convertvector(acc[r][v], vf), low_scale, high_scale);
                totals[r][v] = fused(both, splat(scale[r * G + g]), totals[r][v]);
            }
        }
    }
    finish(c, NVFP4, R, C, row, block, totals);
}
