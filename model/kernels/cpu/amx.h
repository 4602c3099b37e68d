/* The tile registers of AMX: 8 tiles of up to 16 rows of 64 bytes. Tiles 0 to 3 hold sums of 16 outputs, tiles 4 and 5
 * rows of activations, tiles 6 and 7 weights of 16 outputs. The number of a tile must be a constant.
 *
 * EMULATED_TILES is a header of the tests in which plain C computes the same bits: a processor without AMX can test the
 * code around them.
 */
#pragma once
#include "vectors.h"

#if defined(__AMX_INT8__) || defined(EMULATED_TILES)
#define AMX 1

#if defined(EMULATED_TILES)
#include EMULATED_TILES
#else

/* Tiles 0 to 3 get `rows` rows, 4 and 5 `rows` rows of `bytes` bytes, 6 and 7 the weights of so many bytes. They are
 * state of a thread: each task configures and then releases its own, else a switch of threads takes twice as long. */
INLINE void configure_tiles(int rows, int bytes) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        config.bytes[t] = (uint16_t)(t == 4 || t == 5 ? bytes : 64);
        config.rows[t] = (uint8_t)(t < 6 ? rows : bytes / 4);
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(config)); /* the compilers' intrinsic declares it as 8 bytes */
}
INLINE void release_tiles(void) { __asm__ volatile("tilerelease"); }
/* The clobber of memory matters: with the intrinsics of gcc 12 a store may move behind the load of a tile. */
#define TILE_ZERO(t) __asm__ volatile("tilezero %tmm" #t)
#define TILE_LOAD(t, from, stride) __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t : : "r"(from), "r"((int64_t)(stride)) : "memory")
#define TILE_STORE(t, to, stride) __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" : : "r"(to), "r"((int64_t)(stride)) : "memory")
#define TILE_BYTES(c, a, b) __asm__ volatile("tdpbsud %tmm" #b ", %tmm" #a ", %tmm" #c)
#define TILE_SIGNED(c, a, b) __asm__ volatile("tdpbssd %tmm" #b ", %tmm" #a ", %tmm" #c)
#define TILE_PAIRS(c, a, b) __asm__ volatile("tdpbf16ps %tmm" #b ", %tmm" #a ", %tmm" #c)

#endif

enum { SQUARE_ROWS = 32, STRIP_BLOCKS = 4 };
#define ZERO_SUMS() do { TILE_ZERO(0); TILE_ZERO(1); TILE_ZERO(2); TILE_ZERO(3); } while (0)
/* A step of a square: 16 rows of activations from x0 on and 16 from x1 on, times the weights of blocks at w0 and w1.
 * Each tile is loaded for two products. PRODUCT is the macro of a product: TILE_BYTES or another. */
#define SQUARE_STEP(PRODUCT, x0, x1, w0, w1) \
    do { \
        TILE_LOAD(4, x0, 64); \
        TILE_LOAD(6, w0, 64); \
        PRODUCT(0, 4, 6); \
        TILE_LOAD(7, w1, 64); \
        PRODUCT(1, 4, 7); \
        TILE_LOAD(5, x1, 64); \
        PRODUCT(2, 5, 6); \
        PRODUCT(3, 5, 7); \
    } while (0)
/* A step of a strip: up to 16 rows times C blocks, `next` bytes apart, from byte `at` of each. */
#define STRIP_STEP(PRODUCT, C, x, w, next, at) \
    do { \
        TILE_LOAD(4, x, 64); \
        STRIP_BLOCK(PRODUCT, C, 0, 6, w, next, at) \
        STRIP_BLOCK(PRODUCT, C, 1, 7, w, next, at) \
        STRIP_BLOCK(PRODUCT, C, 2, 6, w, next, at) \
        STRIP_BLOCK(PRODUCT, C, 3, 7, w, next, at) \
    } while (0)
#define STRIP_BLOCK(PRODUCT, C, t, from, w, next, at) \
    if (t < C) { \
        TILE_LOAD(from, w + t * next + at, 64); \
        PRODUCT(t, 4, from); \
    }

#endif
