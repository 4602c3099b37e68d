/* Products with weights in bfloat16. All variants add in one order, that of tdpbf16ps (Intel's manual, volume 2): of
 * each 32 channels the even ones are one chain of fused additions from 0, the odd ones another, and their sum is added
 * to the total. Products of two such numbers are exact, so that processors without fused additions have the same bits.
 */
#pragma once
#include "linear/bytes.h"

#if defined(AMX)

/* Where results of a block are stored from a tile: no other block shares their memory, and nothing is added. Rows 4096
 * bytes apart meet in one set of the cache: a store then takes eight times as long. */
INLINE int stores_tiles(const call *c, int block) {
    return !c->add && (block + 1) * BLOCK <= c->w->n_out && c->y_stride * 4 % 4096;
}

static void finish_sums(const call *c, int R, int row, int block, float sums[][BLOCK]) {
    for (int r = 0; r < R; r++) {
        vf totals[1][MOST_BLOCKS * VECTORS];
        UNROLL for (int v = 0; v < VECTORS; v++) totals[0][v] = load(sums[r] + v * LANES);
        finish(c, BF16, 1, 1, row + r, block, totals);
    }
}

/* A tile's results go to memory at once or to `sums`: reading fresh stores is slow, so all are stored first. */
#define STORE_RESULTS(t, row, block, sums) \
    if (stores_tiles(c, block)) TILE_STORE(t, c->y + (row) * c->y_stride + (block) * BLOCK, c->y_stride * 4); \
    else TILE_STORE(t, sums, 64);

/* 32 rows and two blocks. */
static void square(const call *c, int row, int block) {
    const int steps = 2 * c->n_groups;
    const int64_t next = (int64_t)c->n_groups * RECORD(BF16);
    const uint8_t *w0 = c->w->packed + block * next, *w1 = w0 + next;
    const char *x0 = activations(c, row, 0), *x1 = activations(c, row + 16, 0);
    float sums[4][16][BLOCK] __attribute__((aligned(64)));
    ZERO_SUMS();
    for (int s = 0; s < steps; s++, x0 += 1024, x1 += 1024, w0 += 1024, w1 += 1024) SQUARE_STEP(TILE_PAIRS, x0, x1, w0, w1);
    STORE_RESULTS(0, row, block, sums[0])
    STORE_RESULTS(1, row, block + 1, sums[1])
    STORE_RESULTS(2, row + 16, block, sums[2])
    STORE_RESULTS(3, row + 16, block + 1, sums[3])
    for (int t = 0; t < 4; t++)
        if (!stores_tiles(c, block + t % 2)) finish_sums(c, 16, row + t / 2 * 16, block + t % 2, sums[t]);
}

/* R rows, for which the tiles are configured, and up to 4 blocks. */
static void strip(const call *c, int R, int row, int block, int C) {
    const int steps = 2 * c->n_groups;
    const int64_t next = (int64_t)c->n_groups * RECORD(BF16);
    const uint8_t *w = c->w->packed + block * next;
    const char *x = activations(c, row, 0);
    float sums[STRIP_BLOCKS][16][BLOCK] __attribute__((aligned(64)));
#define RESULTS(t) \
    if (t < C) { STORE_RESULTS(t, row, block + t, sums[t]) }
    ZERO_SUMS();
    for (int s = 0; s < steps; s++, x += R * 64, w += 1024) STRIP_STEP(TILE_PAIRS, C, x, w, next, 0);
    RESULTS(0) RESULTS(1) RESULTS(2) RESULTS(3)
#undef RESULTS
    for (int t = 0; t < C; t++)
        if (!stores_tiles(c, block + t)) finish_sums(c, R, row, block + t, sums[t]);
}

static void strips(const call *c, int R, int row, int first, int last) {
    for (int block = first; block < last; block += STRIP_BLOCKS)
        strip(c, R, row, block, (int)least_of(STRIP_BLOCKS, last - block));
}

/* Computes rows top..end-1 of blocks first..last-1. `top` is a multiple of 16. The weights of two blocks stay in the
 * cache for all rows. */
static void all_pairs(const call *c, int first, int last, int top, int end) {
    const int whole = end - (end - top) % SQUARE_ROWS, even = last - (last - first) % 2;
    int row = whole;
    if (end - top >= 16) configure_tiles(16, 64);
    for (int block = first; block < even; block += 2)
        for (int r = top; r < whole; r += SQUARE_ROWS) square(c, r, block);
    for (int r = top; even < last && r < whole; r += 16) strip(c, 16, r, even, 1);
    if (end - row >= 16) strips(c, 16, row, first, last), row += 16;
    if (row < end) configure_tiles(end - row, 64), strips(c, end - row, row, first, last);
    release_tiles();
}

#else

/* Shapes of tiles, see shapes.h. Tall ones compute ROWS_AT_ONCE rows at a time. */
#if defined(__AVX512VNNI__)
#define PAIR_SHAPES(X, F) \
    X(F, 1, 1) X(F, 2, 1) X(F, 4, 1) X(F, 8, 1) X(F, 1, 2) X(F, 2, 2) X(F, 4, 2) X(F, 8, 2) X(F, 16, 2) X(F, 32, 2)
#define BF16_TILES {{1, 1}, {8, 1}, {32, 2}}
#elif defined(__AVX2__)
#define PAIR_SHAPES(X, F) X(F, 1, 1) X(F, 2, 1) X(F, 4, 1) X(F, 6, 1) X(F, 1, 2)
#define BF16_TILES {{1, 2}, {4, 1}, {6, 1}}
#elif defined(__ARM_FEATURE_DOTPROD)
#define PAIR_SHAPES(X, F) X(F, 1, 1) X(F, 2, 1) X(F, 4, 1) X(F, 1, 2)
#define BF16_TILES {{1, 2}, {4, 1}, {4, 1}}
#else
#define PAIR_SHAPES(X, F) X(F, 1, 1) X(F, 2, 1)
#define BF16_TILES {{1, 1}, {2, 1}, {2, 1}}
#endif

/* Steps in which the weights of a tall tile stay in the first level of the cache. */
enum { STEPS_AT_ONCE = 9 };
#define ROWS_AT_ONCE(R, C) (R <= 4 || C == 1 ? R : 4)

/* A chain with the two products of word p: w has those of LANES outputs, x the activations of 32 channels. */
INLINE vf add_word(vf chain, vi w, const char *x, int p) {
#if defined(__AVX512BF16__)
    int32_t word;
    memcpy(&word, x + p * 4, 4);
    return (vf)_mm512_dpbf16_ps((__m512)chain, (__m512bh)_mm512_set1_epi32(word), (__m512bh)w);
#else
    const float *channels = (const float *)x;
    chain = fused(splat(channels[in_word(p, 1)]), (vf)(w & splat_int((int32_t)0xFFFF0000)), chain);
    return fused(splat(channels[in_word(p, 0)]), (vf)(w << 16), chain);
#endif
}

typedef vf pair_sums[][MOST_BLOCKS * VECTORS];

/* A step of 32 channels: the weights of a block, those of the next block `next` bytes after them, and the activations
 * of a row, those of the next row after `stride` bytes. `n` of its words prefetch what follows `soon`. */
typedef struct {
    const uint8_t *w;
    int64_t next;
    const char *x;
    int64_t stride;
    const uint8_t *soon;
    int n;
} pair_step;

/* Adds word p to chains of R rows and C blocks. The first SOON words may prefetch. */
INLINE void add_words(const int R, const int C, const int SOON, pair_sums sums, const pair_step *s, int p) {
    const int V = C * VECTORS;
    vi part[MOST_BLOCKS * VECTORS];
    if (p < SOON && p < s->n) UNROLL for (int b = 0; b < C; b++) __builtin_prefetch(s->soon + (p * C + b) * 64, 0, 2);
    UNROLL for (int v = 0; v < V; v++) part[v] = load_int(s->w + p * 64 + v / VECTORS * s->next + v % VECTORS * WIDTH);
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++)
        sums[r][v] = add_word(sums[r][v], part[v], s->x + r * s->stride, p);
}

/* Adds a step of 32 channels to totals. Chains of both kinds are computed at the same time if the registers suffice. */
INLINE void add_step(const int R, const int C, const int SOON, pair_sums totals, const pair_step *s) {
    const int V = C * VECTORS, TOGETHER = 3 * R * V <= REGISTERS;
    vf even[MOST_ROWS][MOST_BLOCKS * VECTORS], odd[MOST_ROWS][MOST_BLOCKS * VECTORS], kept[MOST_ROWS][MOST_BLOCKS * VECTORS];
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) even[r][v] = odd[r][v] = splat(0);
    UNROLL for (int p = 0; p < WORDS_A_STEP; p += 2) {
        add_words(R, C, SOON, even, s, p);
        if (TOGETHER) add_words(R, C, SOON, odd, s, p + 1);
    }
    if (!TOGETHER) {
        UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) kept[r][v] = even[r][v];
        __asm__ volatile("" : : "r"(kept), "r"(totals) : "memory"); /* they stay in memory */
        UNROLL for (int p = 0; p < WORDS_A_STEP; p += 2) add_words(R, C, SOON, odd, s, p + 1);
        UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) even[r][v] = kept[r][v];
    }
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) totals[r][v] += even[r][v] + odd[r][v];
}

/* The number of n steps that are prefetched at turn i of `turns`. */
INLINE int share(int n, int i, const int turns) { return (int)((unsigned)(n * (i + 1)) / turns - (unsigned)(n * i) / turns); }

/* `tile` for BF16. */
INLINE void tile_pairs(const call *c, const int ROWS, const int C, int row, int block, const uint8_t *soon, int n_soon) {
    const int R = ROWS_AT_ONCE(ROWS, C), V = C * VECTORS, steps = 2 * c->n_groups, panel = R == ROWS ? steps : STEPS_AT_ONCE;
    const int64_t stride = (int64_t)steps * CHANNELS_A_STEP * ACTIVATION, next = (int64_t)c->n_groups * RECORD(BF16);
    vf totals[ROWS][MOST_BLOCKS * VECTORS];
    for (int r = 0; r < ROWS; r++) UNROLL for (int v = 0; v < V; v++) totals[r][v] = splat(0);
    for (int first = 0, last; first < steps; first = last) {
        last = (int)least_of(first + panel, steps);
        for (int top = 0; top < ROWS; top += R) {
            const int turns[2] = {share(n_soon, top / R, 2 * ROWS / R), share(n_soon, (ROWS + top) / R, 2 * ROWS / R)};
            pair_step step = {c->w->packed + block * next + first * 1024, next, activations(c, row + top, first), stride, 0, 0};
            vf some[MOST_ROWS][MOST_BLOCKS * VECTORS];
            UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) some[r][v] = totals[top + r][v];
            for (int s = first; s < last; s++, step.w += 1024, step.x += CHANNELS_A_STEP * ACTIVATION, soon += step.n * C * 64) {
                step.soon = soon, step.n = turns[s % 2];
                add_step(R, C, WORDS_A_STEP * R / ROWS, some, &step);
            }
            if (last == steps) finish(c, BF16, R, C, row + top, block, some);
            else UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) totals[top + r][v] = some[r][v];
        }
    }
}

#define PAIR_TILE(F, R, C) \
    static __attribute__((noinline)) void tile_##F##_##R##x##C(const call *c, int row, int block, const uint8_t *soon, int n_soon, \
                                                                const float *decoded) { \
        tile_pairs(c, R, C, row, block, soon, n_soon); \
    }

#endif
