/* Products of whole tiles by AMX, or by the matrix instructions of ARM: TILE_ROWS rows of signed bytes times the unsigned
 * bytes of 16 outputs. With EMULATED_TILES plain C computes them, so that a processor without AMX can test the code
 * around them.
 * Products of bfloat16 in the order of AMX, for any number of rows. Processors without AMX add in this order for the
 * check at start and for tests.
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

#if defined(__AVX512BF16__)
#define TILED_PAIRS 1
enum { TILE_BLOCKS = 4 };
typedef float tile_sums[TILE_BLOCKS][TILE_ROWS][16];

#if defined(__AMX_BF16__)

/* Tiles 0 to 3 hold sums, tile 4 the rows, tile 5 a block of weights. */
INLINE void pairs_begin(int rows) {
    uint8_t n = (uint8_t)rows;
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1, .bytes = {64, 64, 64, 64, 64, 64}, .rows = {n, n, n, n, n, 16}};
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
}
INLINE void pairs_end(void) { __asm__ volatile("tilerelease"); }

/* Sums of R rows and C blocks. `x` has `n` steps of 32 channels for each row, `stride` bytes apart; `w` has records of 1024
 * bytes for the steps of each block, `next` bytes apart. */
INLINE void multiply_pairs(const char *x, int64_t stride, const uint8_t *w, int64_t next, int n, int R, int C, tile_sums sums) {
    const int64_t line = 64;
    __asm__ volatile("tilezero %tmm0\n\ttilezero %tmm1\n\ttilezero %tmm2\n\ttilezero %tmm3");
#define STEP(b) \
    if (b < C) \
        __asm__ volatile("tileloadd (%0,%1,1), %%tmm5\n\ttdpbf16ps %%tmm5, %%tmm4, %%tmm" #b \
                         : : "r"(w + b * next), "r"(line) : "memory");
    for (int s = 0; s < n; s++, x += 64, w += 1024) {
        __asm__ volatile("tileloadd (%0,%1,1), %%tmm4" : : "r"(x), "r"(stride) : "memory");
        STEP(0) STEP(1) STEP(2) STEP(3)
    }
#undef STEP
#define STORE(b) \
    if (b < C) __asm__ volatile("tilestored %%tmm" #b ", (%0,%1,1)" : : "r"(sums[b]), "r"(line) : "memory");
    STORE(0) STORE(1) STORE(2) STORE(3)
#undef STORE
}

#else

INLINE void pairs_begin(int rows) {}
INLINE void pairs_end(void) {}

/* Numbers below the normal range become 0. */
INLINE vf normal(vf v) {
    vi none = ((vi)v & splat_int(0x7F800000)) == splat_int(0);
    return (vf)((vi)v & ~(none & splat_int(0x7FFFFFFF)));
}

/* One tdpbf16ps (Intel's manual, volume 2, TDPBF16PS): the even channels of 16 pairs are one chain of fused additions, the
 * odd ones another. Their sum is added to the total. */
INLINE vf add_pairs(vf total, const char *x, const uint8_t *w) {
    const vi upper = splat_int((int32_t)0xFFFF0000);
    vf even = splat(0), odd = splat(0);
    for (int p = 0; p < 16; p++) {
        int32_t two;
        memcpy(&two, x + p * 4, 4);
        vi a = splat_int(two), b = load_int(w + p * 64);
        even = normal(fused(normal((vf)(a << 16)), normal((vf)(b << 16)), even));
        odd = normal(fused(normal((vf)(a & upper)), normal((vf)(b & upper)), odd));
    }
    return normal(total + normal(even + odd));
}

INLINE void multiply_pairs(const char *x, int64_t stride, const uint8_t *w, int64_t next, int n, int R, int C, tile_sums sums) {
    for (int r = 0; r < R; r++)
        for (int b = 0; b < C; b++) {
            vf total = splat(0);
            for (int s = 0; s < n; s++) total = add_pairs(total, x + r * stride + s * 64, w + b * next + s * 1024);
            store(sums[b][r], total);
        }
}

#endif
#endif
