/* Products with weights in INT8: exact integer sums over all channels, times the scales of row and output: levels.h. */
#pragma once
#include "linear/tiles.h"

/* A row's result for LANES outputs. */
INLINE vf scaled(const call *c, int row, vi sums) { return __builtin_convertvector(sums, vf) * splat(c->scale[row]); }

#if defined(AMX)

/* The sums of 32 rows and two blocks: tiles 0 and 1 of the upper 16 rows, 2 and 3 of the lower. `high` counts 128 x. */
typedef struct {
    int32_t low[STRIP_BLOCKS][16][BLOCK], high[STRIP_BLOCKS][16][BLOCK];
    int row, block, has_high;
} byte_sums;

/* Results of rows first..last-1 of tile t. Outputs are those of block `block`, as far as they exist. */
INLINE void finish_tile(const call *c, const byte_sums *s, int t, int row, int block, int first, int last) {
    for (int r = first; r < last; r++) {
        vf totals[1][MOST_BLOCKS * VECTORS];
        UNROLL for (int v = 0; v < VECTORS; v++) {
            vi sums = load_int(s->low[t][r] + v * LANES) + splat_int(c->zero[row + r]);
            if (s->has_high) sums += load_int(s->high[t][r] + v * LANES) << 7;
            totals[0][v] = scaled(c, row + r, sums);
        }
        finish(c, INT8, 1, 1, row + r, block, totals);
    }
}

/* Part k of 8 of the results of a square. */
INLINE void finish_part(const call *c, const byte_sums *s, int k) {
    int t = k / 2, half = k % 2 * 8;
    finish_tile(c, s, t, s->row + t / 2 * 16, s->block + t % 2, half, half + 8);
}

#define STORE_SQUARE(sums) \
    do { \
        TILE_STORE(0, sums[0], 64); \
        TILE_STORE(1, sums[1], 64); \
        TILE_STORE(2, sums[2], 64); \
        TILE_STORE(3, sums[3], 64); \
    } while (0)

/* The groups of n rows from `row` on that have outliers, a bit each in `groups`. Returns whether there is one. */
INLINE int outlier_groups(const call *c, int row, int n, uint8_t *groups) {
    const uint64_t *masks = c->masks + (int64_t)row * MASKS(c);
    int found = 0;
    for (int g = 0; g < c->n_groups; g++) groups[g] = 0;
    for (int m = 0; m < MASKS(c); m++) {
        uint64_t all = 0;
        for (int r = 0; r < n; r++) all |= masks[r * MASKS(c) + m];
        for (int g = m * 4; all; g++, all >>= 16) found |= groups[g] = (all & 0xFFFF) != 0;
    }
    return found;
}

/* Sums of 32 rows and two blocks to `now`. Meanwhile it computes the results of the square before, if there is one. */
INLINE void square_bytes(const call *c, int row, int block, const uint8_t *outliers, byte_sums *now, const byte_sums *before) {
    const int64_t next = (int64_t)c->n_groups * 1024;
    const uint8_t *w = c->w->packed + block * next;
    const int64_t x = bytes_at(c, row, 0);
    int part = 0;
#define STEP_AT(x, g) \
    do { \
        const int8_t *rows = (x) + (g) * 1024; \
        const uint8_t *left = w + (g) * 1024; \
        SQUARE_STEP(TILE_BYTES, rows, rows + next, left, left + next); \
    } while (0)
    now->row = row, now->block = block, now->has_high = outliers != 0;
    if (outliers) {
        ZERO_SUMS();
        for (int g = 0; g < c->n_groups; g++)
            if (outliers[g]) STEP_AT(c->high + x, g);
        STORE_SQUARE(now->high);
    }
    ZERO_SUMS();
    for (int g = 0; g < c->n_groups; g++) {
        STEP_AT(c->q + x, g);
        if (before && part < 8) finish_part(c, before, part++);
    }
    STORE_SQUARE(now->low);
    for (; before && part < 8; part++) finish_part(c, before, part);
}

/* R rows, for which the tiles are configured, and up to 4 blocks. */
static void strip_bytes(const call *c, int R, int row, int block, int C, const uint8_t *outliers, byte_sums *s) {
    const int64_t next = (int64_t)c->n_groups * 1024;
    const uint8_t *w = c->w->packed + block * next;
    s->has_high = outliers != 0;
#define STRIP(x, active, sums) \
    ZERO_SUMS(); \
    for (int g = 0; g < c->n_groups; g++) { \
        if (!(active)) continue; \
        STRIP_STEP(TILE_BYTES, C, (x) + bytes_at(c, row, g), w, next, g * 1024); \
    } \
    STORE_SQUARE(sums);
    if (outliers) { STRIP(c->high, outliers[g], s->high) }
    STRIP(c->q, 1, s->low)
#undef STRIP
    for (int t = 0; t < C; t++) finish_tile(c, s, t, row, block + t, 0, R);
}

/* Computes rows top..end-1 of blocks first..last-1. `top` is a multiple of 16. The weights of two blocks stay in the
 * cache for all rows. */
static void all_bytes(const call *c, int first, int last, int top, int end, int thread) {
    const int whole = end - (end - top) % SQUARE_ROWS, even = last - (last - first) % 2;
    byte_sums sums[2] __attribute__((aligned(64))), *now = sums, *before = 0;
    uint8_t *outliers = noria_memory(thread); /* [squares][groups] */
    const uint8_t *of[TASK_ROWS / SQUARE_ROWS];
    for (int i = 0; i < (whole - top) / SQUARE_ROWS; i++) {
        uint8_t *groups = outliers + i * c->n_groups;
        of[i] = outlier_groups(c, top + i * SQUARE_ROWS, SQUARE_ROWS, groups) ? groups : 0;
    }
    if (end - top >= 16) configure_tiles(16, 64);
    for (int block = first; block < even; block += 2)
        for (int row = top; row < whole; row += SQUARE_ROWS) {
            square_bytes(c, row, block, of[(row - top) / SQUARE_ROWS], now, before);
            before = now, now = sums + (now == sums);
        }
    for (int part = 0; before && part < 8; part++) finish_part(c, before, part);
    for (int row = top, R; row < end; row += R) { /* what the squares leave */
        const int from = row < whole ? even : first;
        R = (int)least_of(16, end - row);
        if (from == last) continue;
        if (R < 16) configure_tiles(R, 64);
        const uint8_t *groups = outlier_groups(c, row, R, outliers) ? outliers : 0;
        for (int block = from; block < last; block += STRIP_BLOCKS)
            strip_bytes(c, R, row, block, (int)least_of(STRIP_BLOCKS, last - block), groups, sums);
    }
    release_tiles();
}

#else

/* Adds the high bytes of R rows times the weights of V vectors of outputs, in quads where a row has an outlier. */
INLINE void add_outliers(const call *c, const int R, const int V, int row, const uint8_t *w, int64_t next, vi acc[][MOST_BLOCKS * VECTORS]) {
    const uint64_t *masks = c->masks + (int64_t)row * MASKS(c);
    const int8_t *high = c->high + bytes_at(c, row, 0);
    const int64_t stride = (int64_t)c->n_groups * 64;
    for (int m = 0; m < MASKS(c); m++) {
        uint64_t quad = 0;
        UNROLL for (int r = 0; r < R; r++) quad |= masks[r * MASKS(c) + m];
        for (; quad; quad &= quad - 1) {
            const int q = m * 64 + __builtin_ctzll(quad);
            quads part[MOST_BLOCKS * VECTORS];
            UNROLL for (int v = 0; v < V; v++) part[v] = load_quads(w + v / VECTORS * next + v % VECTORS * WIDTH + q * 64);
            add_quad(INT8, R, V, acc, part, high, stride, q);
        }
    }
}

/* `tile` for INT8. Few sums are several chains each: an instruction takes about 4 cycles, and two start in each. */
INLINE void tile_bytes(const call *c, const int R, const int C, int row, int block, const uint8_t *soon, int n_soon) {
    const int V = C * VECTORS, CHAINS = R * V >= 8 ? 1 : R * V >= 4 ? 2 : R * V >= 2 ? 4 : 8;
    const int64_t stride = (int64_t)c->n_groups * 64, next = (int64_t)c->n_groups * RECORD(INT8);
    const uint8_t *w = c->w->packed + block * next;
    const int8_t *x = c->q + bytes_at(c, row, 0);
    vi acc[8][MOST_ROWS][MOST_BLOCKS * VECTORS];
    vf totals[MOST_ROWS][MOST_BLOCKS * VECTORS];
    UNROLL for (int i = 0; i < CHAINS; i++) UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) acc[i][r][v] = splat_int(0);
    add_outliers(c, R, V, row, w, next, acc[0]);
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) acc[0][r][v] = (acc[0][r][v] << 7) + splat_int(c->zero[row + r]);
    for (int g = 0; g < c->n_groups; g++, w += 1024, x += 64)
        for (int first = 0; first < QUADS(INT8); first += CHAINS)
            UNROLL for (int i = 0; i < CHAINS; i++) {
                const int q = first + i;
                quads part[MOST_BLOCKS * VECTORS];
                if (q < n_soon) {
                    UNROLL for (int b = 0; b < C; b++) __builtin_prefetch(soon + b * STEP(INT8), 0, 2);
                    soon += C * STEP(INT8);
                }
                UNROLL for (int v = 0; v < V; v++) part[v] = load_quads(w + v / VECTORS * next + v % VECTORS * WIDTH + q * 64);
                add_quad(INT8, R, V, acc[i], part, x, stride, q);
            }
    UNROLL for (int i = 1; i < CHAINS; i++) UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) acc[0][r][v] += acc[i][r][v];
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) totals[r][v] = scaled(c, row + r, acc[0][r][v]);
    finish(c, INT8, R, C, row, block, totals);
}

#endif
