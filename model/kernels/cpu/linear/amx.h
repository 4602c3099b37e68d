/* Products of whole tiles by AMX, or by the matrix instructions of ARM: TILE_ROWS rows of signed bytes times the unsigned
 * bytes of 16 outputs. With EMULATED_TILES plain C computes them, so that a processor without AMX can test the code
 * around them.
 */
#pragma once
#include "vectors.h"

#if defined(__AMX_INT8__) || defined(__ARM_FEATURE_MATMUL_INT8) || defined(EMULATED_TILES)
#define TILES 1
#endif

#if defined(__ARM_FEATURE_MATMUL_INT8)
enum { TILE_ROWS = 8 }; /* the registers hold sums of 8 rows and 8 outputs */
#else
enum { TILE_ROWS = 16 };
#endif

#if defined(EMULATED_TILES)

INLINE void tiles_begin(int group) {}
INLINE void tiles_end(void) {}
INLINE void multiply_tiles(const int8_t *x, int64_t stride, const uint8_t *w, int group, int32_t sums[TILE_ROWS][16]) {
    for (int r = 0; r < TILE_ROWS; r++)
        for (int n = 0; n < 16; n++) {
            sums[r][n] = 0;
            for (int k = 0; k < group; k++) sums[r][n] += x[r * stride + k] * w[k / 4 * 64 + n * 4 + k % 4];
        }
}

#elif defined(__AMX_INT8__)

/* Tile 0 holds sums, tile 1 rows of activations, tile 2 a record of weights. */
INLINE void tiles_begin(int group) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1, .bytes = {64, (uint16_t)group, 64}, .rows = {TILE_ROWS, TILE_ROWS, (uint8_t)(group / 4)}};
    __asm__ volatile("ldtilecfg %0" : : "m"(config)); /* the compilers' intrinsic declares it as 8 bytes */
}
INLINE void tiles_end(void) { __asm__ volatile("tilerelease"); }
INLINE void multiply_tiles(const int8_t *x, int64_t stride, const uint8_t *w, int group, int32_t sums[TILE_ROWS][16]) {
    __asm__ volatile("tilezero %%tmm0\n\t"
                     "tileloadd (%0,%1,1), %%tmm1\n\t"
                     "tileloadd (%2,%3,1), %%tmm2\n\t"
                     "tdpbsud %%tmm2, %%tmm1, %%tmm0\n\t"
                     "tilestored %%tmm0, (%4,%3,1)"
                     : : "r"(x), "r"(stride), "r"(w), "r"((int64_t)64), "r"(sums) : "memory");
}

#elif defined(__ARM_FEATURE_MATMUL_INT8)

INLINE void tiles_begin(int group) {}
INLINE void tiles_end(void) {}
/* usmmla multiplies 8 channels of two outputs by those of two rows. Its four sums are (output, row): 00, 01, 10, 11. */
INLINE void multiply_tiles(const int8_t *x, int64_t stride, const uint8_t *w, int group, int32_t sums[TILE_ROWS][16]) {
    for (int first = 0; first < 16; first += 8) {
        int32x4_t acc[4][4]; /* pairs of outputs, pairs of rows */
        UNROLL for (int i = 0; i < 16; i++) acc[i / 4][i % 4] = vdupq_n_s32(0);
        for (int k = 0; k < group; k += 8) {
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

#endif
