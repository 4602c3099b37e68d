/* Products of whole tiles by AMX: 16 rows of signed bytes times the unsigned bytes of 16 outputs. With EMULATED_TILES
 * plain C computes them, so that a processor without AMX can test the code around them.
 */
#pragma once
#include "vectors.h"

#if defined(__AMX_INT8__) || defined(EMULATED_TILES)
#define TILES 1
#endif

enum { TILE_ROWS = 16 };

#if defined(EMULATED_TILES)

INLINE void tiles_begin(int group) { (void)group; }
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
    (void)group;
    __asm__ volatile("tilezero %%tmm0\n\t"
                     "tileloadd (%0,%1,1), %%tmm1\n\t"
                     "tileloadd (%2,%3,1), %%tmm2\n\t"
                     "tdpbsud %%tmm2, %%tmm1, %%tmm0\n\t"
                     "tilestored %%tmm0, (%4,%3,1)"
                     : : "r"(x), "r"(stride), "r"(w), "r"((int64_t)64), "r"(sums) : "memory");
}

#endif
