/* Products by usmmla, the matrix instruction of ARM, with weights that have a scale for each output and group of 32
 * channels. They have the bits of `tile`. */
#pragma once
#include "linear/tiles.h"

#if defined(__ARM_FEATURE_MATMUL_INT8)

enum { TILE_ROWS = 8 }; /* the registers hold sums of 8 rows and 8 outputs */

/* Signed bytes of TILE_ROWS rows, `stride` bytes apart, times unsigned ones of 16 outputs. usmmla multiplies 8 channels
 * of two outputs by those of two rows. Its four sums are (output, row): 00, 01, 10, 11. */
INLINE void multiply_tiles(const int8_t *x, int64_t stride, const uint8_t *w, int32_t sums[TILE_ROWS][16]) {
    for (int first = 0; first < 16; first += 8) {
        int32x4_t acc[4][4]; /* pairs of outputs, pairs of rows */
        UNROLL for (int i = 0; i < 16; i++) acc[i / 4][i % 4] = vdupq_n_s32(0);
        for (int k = 0; k < 32; k += 8) {
            int8x16_t rows[4];
            uint32x4x2_t outputs[2];
            UNROLL for (int r = 0; r < 4; r++)
                rows[r] = vcombine_s8(vld1_s8(x + 2 * r * stride + k), vld1_s8(x + (2 * r + 1) * stride + k));
            UNROLL for (int n = 0; n < 2; n++) {
                const uint8_t *quad = w + k * 16 + first * 4 + n * 16;
                outputs[n] = vzipq_u32(vreinterpretq_u32_u8(vld1q_u8(quad)), vreinterpretq_u32_u8(vld1q_u8(quad + 64)));
            }
            UNROLL for (int n = 0; n < 4; n++) UNROLL for (int r = 0; r < 4; r++)
                acc[n][r] = vusmmlaq_s32(acc[n][r], vreinterpretq_u8_u32(outputs[n / 2].val[n % 2]), rows[r]);
        }
        UNROLL for (int n = 0; n < 4; n += 2) UNROLL for (int r = 0; r < 4; r++) {
            int32x4x2_t by_row = vuzpq_s32(acc[n][r], acc[n + 1][r]);
            vst1q_s32(sums[2 * r] + first + n * 2, by_row.val[0]);
            vst1q_s32(sums[2 * r + 1] + first + n * 2, by_row.val[1]);
        }
    }
}

/* Computes TILE_ROWS rows and one block. */
INLINE void slab(const call *c, const int FORMAT, int row, int block) {
    const int G = c->n_groups;
    const int64_t first = (int64_t)row * G;
    const uint8_t *record = c->w->packed + (int64_t)block * G * RECORD(FORMAT);
    vf totals[TILE_ROWS][VECTORS];
    UNROLL for (int r = 0; r < TILE_ROWS; r++) UNROLL for (int v = 0; v < VECTORS; v++) totals[r][v] = splat(0);
    for (int g = 0; g < G; record += AFTER(FORMAT, g), g++) {
        int32_t sums[TILE_ROWS][16] __attribute__((aligned(64)));
        quads wide[8 * VECTORS];
        if (IS_NIBBLES(FORMAT))
            for (int i = 0; i < 4 * VECTORS; i++) load_nibbles(IS_FP4(FORMAT), record + i * WIDTH, wide + i, wide + i + 4 * VECTORS);
        const uint8_t *w = IS_NIBBLES(FORMAT) ? (const uint8_t *)wide : record;
        multiply_tiles(c->q + (first + g) * 32, (int64_t)G * 32, w, sums);
        UNROLL for (int v = 0; v < VECTORS; v++) {
            vf weight_scale, minimum;
            load_tables(FORMAT, record, g, G, v * LANES, &weight_scale, &minimum);
            UNROLL for (int r = 0; r < TILE_ROWS; r++) {
                int64_t at = first + r * G + g;
                vi exact = load_int(sums[r] + v * LANES) + splat_int(c->zero[at]);
                totals[r][v] = add_group(FORMAT, totals[r][v], exact, weight_scale, minimum, c->scale[at], c->total[at]);
            }
        }
    }
    UNROLL for (int r = 0; r < TILE_ROWS; r++) finish_some(c, row + r, block, totals[r]);
}

/* Computes all whole slabs of rows top..end-1; returns the first row after them. */
INLINE int slabs(const call *c, const int FORMAT, int first, int last, int top, int end) {
    int whole = end - (end - top) % TILE_ROWS;
    for (int block = first; block < last; block++)
        for (int row = top; row < whole; row += TILE_ROWS) slab(c, FORMAT, row, block);
    return whole;
}

#define SLABS(F) \
    case F: return slabs(c, F, first, last, top, end);
static int all_slabs(const call *c, int first, int last, int top, int end) {
    switch (c->w->format) {
        SLABS(Q8) SLABS(Q8_MIN) SLABS(Q4) SLABS(Q4_MIN) SLABS(Q4_K) SLABS(MXFP4)
    }
    return top; /* the others have no slabs */
}

#endif
