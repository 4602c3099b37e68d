/* The compiled shapes of tiles, and how a task is divided among them. */
#pragma once
#include "linear/halves.h"
#include "linear/pairs.h"

/* Shapes of tiles: rows, blocks. Those of one width stand together, rows ascending. *_TILES are the tiles of a product
 * of one row, of 2 to 16, and of more; their last rows and blocks take smaller ones. Those of BF16 are in pairs.h. */
#if defined(__AVX512VNNI__)
#define QUAD_SHAPES(X, F) X(F, 1, 1) X(F, 2, 1) X(F, 4, 1) X(F, 8, 1) X(F, 1, 2) X(F, 2, 2) X(F, 4, 2) X(F, 1, 3) X(F, 2, 3) X(F, 4, 3)
#define BYTE_SHAPES(X, F) \
    X(F, 1, 1) X(F, 2, 1) X(F, 4, 1) X(F, 8, 1) X(F, 1, 2) X(F, 2, 2) X(F, 4, 2) X(F, 8, 2) X(F, 1, 3) X(F, 2, 3) X(F, 4, 3) X(F, 8, 3)
#define BLOCK_TILES {{1, 1}, {4, 2}, {4, 3}}
#define INT8_TILES {{1, 1}, {8, 2}, {8, 3}}
#elif defined(__AVX2__)
#define BYTE_SHAPES QUAD_SHAPES
#define QUAD_SHAPES(X, F) X(F, 1, 1) X(F, 2, 1) X(F, 4, 1) X(F, 1, 2)
#define BLOCK_TILES {{1, 2}, {4, 1}, {4, 1}}
#define INT8_TILES BLOCK_TILES
#elif defined(__ARM_FEATURE_DOTPROD)
#define BYTE_SHAPES QUAD_SHAPES
#define QUAD_SHAPES(X, F) X(F, 1, 1) X(F, 2, 1) X(F, 1, 2)
#define BLOCK_TILES {{1, 2}, {2, 1}, {2, 1}}
#define INT8_TILES BLOCK_TILES
#else
#define BYTE_SHAPES QUAD_SHAPES
#define QUAD_SHAPES(X, F) X(F, 1, 1)
#define BLOCK_TILES {{1, 1}, {1, 1}, {1, 1}}
#define INT8_TILES BLOCK_TILES
#endif

struct shape {
    int rows, blocks;
    void (*compute)(const call *c, int row, int block, const uint8_t *soon, int n_soon, const float *decoded);
};

#define TILE(F, R, C) \
    static __attribute__((noinline)) void tile_##F##_##R##x##C(const call *c, int row, int block, const uint8_t *soon, int n_soon, \
                                                                const float *decoded) { \
        tile(c, F, R, C, row, block, soon, n_soon, decoded); \
    }
#define ENTRY(F, R, C) {R, C, tile_##F##_##R##x##C},
#define COMPILED(F, LIST) \
    LIST(TILE, F) \
    static const shape shapes_##F[] = {LIST(ENTRY, F)};
COMPILED(Q8, QUAD_SHAPES)
COMPILED(Q8_MIN, QUAD_SHAPES)
COMPILED(Q4, QUAD_SHAPES)
COMPILED(Q4_MIN, QUAD_SHAPES)
#if defined(AMX)
static const shape shapes_BF16[] = {{1, STRIP_BLOCKS, 0}}; /* `all_pairs` divides its tasks itself */
static const shape shapes_INT8[] = {{1, STRIP_BLOCKS, 0}}; /* so does `all_bytes` */
#define BF16_TILES {{1, STRIP_BLOCKS}, {1, STRIP_BLOCKS}, {1, STRIP_BLOCKS}}
#undef INT8_TILES
#define INT8_TILES BF16_TILES
#else
#define BYTE_TILE(F, R, C) \
    static __attribute__((noinline)) void tile_##F##_##R##x##C(const call *c, int row, int block, const uint8_t *soon, int n_soon, \
                                                                const float *decoded) { \
        tile_bytes(c, R, C, row, block, soon, n_soon); \
    }
BYTE_SHAPES(BYTE_TILE, INT8)
static const shape shapes_INT8[] = {BYTE_SHAPES(ENTRY, INT8)};
PAIR_SHAPES(PAIR_TILE, BF16)
static const shape shapes_BF16[] = {PAIR_SHAPES(ENTRY, BF16)};
#endif
COMPILED(Q4_K, QUAD_SHAPES)
COMPILED(MXFP4, QUAD_SHAPES)
#define HALVES_TILE(F, R, C) \
    static __attribute__((noinline)) void tile_##F##_##R##x##C(const call *c, int row, int block, const uint8_t *soon, int n_soon, \
                                                                const float *decoded) { \
        tile_halves(c, R, C, row, block, soon, n_soon); \
    }
QUAD_SHAPES(HALVES_TILE, NVFP4)
static const shape shapes_NVFP4[] = {QUAD_SHAPES(ENTRY, NVFP4)};
static const shape *const shapes[] = {shapes_INT8, shapes_Q8, shapes_Q8_MIN, shapes_Q4, shapes_Q4_MIN, shapes_BF16, shapes_Q4_K,
                                     shapes_NVFP4, shapes_MXFP4};

/* The shape of a call's tiles. */
static const shape *chosen(const weights *w, int n_rows) {
    static const int tiles[][3][2] = {BLOCK_TILES, INT8_TILES, BF16_TILES};
    const int *best = tiles[w->format == INT8 ? 1 : w->format == BF16 ? 2 : 0][n_rows == 1 ? 0 : n_rows <= 16 ? 1 : 2];
    const shape *s = shapes[w->format];
    while (s->rows != best[0] || s->blocks != best[1]) s++;
    return s;
}

/* The widest shape of at most `blocks` blocks and the rows of `s`. */
static const shape *narrower(const shape *s, int blocks) {
    int rows = s->rows;
    while (s->blocks > blocks || s->rows > rows) s--;
    return s;
}

/* Results of more bytes are not in a thread's cache when a tile stores them. */
enum { FAR_BYTES = 2 * 1024 * 1024 };

/* Prefetches the results of a tile before it computes them: else its stores wait for memory. Inline, because a compiler
 * may drop calls of a function that only prefetches. */
INLINE void ask_for_results(const call *c, const shape *s, int row, int block) {
    const float *y = c->y + row * c->y_stride + block * BLOCK;
    for (int r = 0; r < s->rows; r++, y += c->y_stride)
        for (int b = 0; b < s->blocks; b++) __builtin_prefetch(y + b * BLOCK, 1, 3);
}

/* The steps of a group in which a tile prefetches the next layer's keys: twice its part, as every second tile does. */
INLINE int steps_ahead(const call *c, const shape *s) {
    float bytes_a_step = (float)(s->blocks * STEP(c->w->format)), macs = (float)(s->rows * s->blocks * BLOCK * c->group);
    return (int)least_of((int64_t)(2 * c->ahead->bytes_a_mac * macs / bytes_a_step) + 1, STEPS(c->w->format));
}

/* Computes rows top..end-1 of the blocks of a shape. While its tiles are computed, they prefetch as many blocks after
 * these, each tile its part. With `mine`, every second tile prefetches keys of the next layer instead. */
static void column(const call *c, const shape *s, int block, int top, int end, const float *decoded, cursor *mine) {
    const int64_t bytes = (int64_t)c->n_groups * RECORD(c->w->format);
    const int far = c->n_rows * c->w->n_out * 4 > FAR_BYTES, steps = STEPS(c->w->format);
    const int64_t a_step = s->blocks * bytes / steps;
    const shape *now = s;
    const uint8_t *soon = c->w->packed + (block + s->blocks) * bytes, *stop = soon + s->blocks * bytes, *keys = 0;
    int n_tiles = (end - top + s->rows - 1) / s->rows, turns = mine && n_tiles > 1 ? 2 : 1;
    int n_asking = (n_tiles + turns - 1) / turns, n_soon = (steps + n_asking - 1) / n_asking;
    for (int row = top, tile = 0; row < end; row += now->rows, tile++) {
        while (now->rows > end - row) now--;
        if (far) ask_for_results(c, now, row, block);
        if (tile % turns) {
            int n = take_ahead(c->ahead, mine, a_step, steps_ahead(c, s), &keys);
            now->compute(c, row, block, keys, n, decoded);
        } else {
            now->compute(c, row, block, soon, soon < stop ? n_soon : 0, decoded);
            soon += n_soon * a_step;
        }
    }
}

/* Floats of the scales and minima of a block of Q4_K. */
#define DECODED(c) ((int64_t)(c)->n_groups * 2 * BLOCK)

/* `column` for several rows and weights in Q4_K, whose scales and minima it decodes once, to `decoded`. */
static __attribute__((noinline)) void decoded_column(const call *c, const shape *s, int block, int top, int end, float *decoded,
                                                     cursor *mine) {
    const int64_t bytes = (int64_t)c->n_groups * RECORD(Q4_K), n = DECODED(c);
    for (int b = 0; b < s->blocks; b++) decode_block(c->w->packed + (block + b) * bytes, c->n_groups, decoded + b * n);
    column(c, s, block, top, end, decoded, mine);
}

/* Computes rows top..end-1 of blocks first..last-1. It reads weights from memory once, and rows from the cache. */
static void columns(const call *c, int first, int last, int top, int end, int thread) {
    cursor *mine = c->ahead ? c->ahead->cursors + thread : 0;
    const shape *s = c->shape;
    const int decodes = c->w->format == Q4_K && end - top > 1;
    const int64_t fit = THREAD_BYTES / 4 / DECODED(c); /* blocks: at least 2, with at most MAX_CHANNELS */
    for (int block = first; top < end && block < last; block += s->blocks) {
        s = narrower(s, decodes ? (int)least_of(last - block, fit) : last - block);
        if (decodes) decoded_column(c, s, block, top, end, noria_memory(thread), mine);
        else column(c, s, block, top, end, 0, mine);
    }
}
