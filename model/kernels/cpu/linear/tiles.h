/* Tiles of a product: some rows by some blocks of 16 outputs. linear.c describes the records of weights. Every tile
 * adds in the same order, so that the bits of a row do not depend on the tile that computes it.
 */
#pragma once
#include "linear/activations.h"

enum { BLOCK = 16, VECTORS = BLOCK / LANES };
#if defined(__AVX512VNNI__) || defined(__ARM_FEATURE_DOTPROD)
enum { REGISTERS = 26 }; /* for sums and totals */
#else
enum { REGISTERS = 12 };
#endif
enum { MOST_ROWS = 8, MOST_BLOCKS = 4 }; /* of a tile */

#define IS_NIBBLES(format) (format == Q4 || format == Q4_MIN || format == Q4_K || IS_FP4(format))
#define HAS_MINIMA(format) (format == Q8_MIN || format == Q4_MIN || format == Q4_K)
#define HAS_SCALES(format) (format == INT8 || IS_FP4(format)) /* of outputs */
#define QUADS(format) (format == INT8 || format == BF16 ? 16 : 8)
#define RECORD(format) \
    (format == INT8 ? 1024 : format == BF16 ? 2048 : format == Q4_K ? SUPERBLOCK / IN_SUPERBLOCK \
     : (IS_NIBBLES(format) ? 256 : 512) + (HAS_MINIMA(format) ? 4 : format == MXFP4 ? 1 : 2) * BLOCK)
/* Bytes from the weights of group g to the next ones: a superblock of Q4_K has the weights of its groups, then their
 * tables, and a block of FP4 the weights of all groups, then their scales: no load crosses a cache line. */
#define AFTER(format, g) \
    (format == Q4_K  ? (g % IN_SUPERBLOCK < IN_SUPERBLOCK - 1 ? 256 : SUPERBLOCK - 7 * 256) \
     : IS_FP4(format) ? 256 : RECORD(format))

/* Steps of a group in `tile`, and the bytes of a block that one step reads. */
#define STEPS(format) (IS_NIBBLES(format) ? 4 : format == BF16 ? 32 : QUADS(format))
#define STEP(format) (RECORD(format) / STEPS(format))

/* Stores the totals of one row and any block, also an incomplete one. */
static __attribute__((noinline)) void finish_some(const call *c, int row, int block, const vf *totals) {
    const weights *w = c->w;
    for (int v = 0; v < VECTORS; v++) {
        int n = block * BLOCK + v * LANES, left = (int)w->n_out - n;
        if (left <= 0) return;
        left = left < LANES ? left : LANES;
        float *y = c->y + (int64_t)row * c->y_stride + n;
        vf value = HAS_SCALES(w->format) ? totals[v] * load(w->scales + n) : totals[v];
        if (c->add) value += load_some(y, left);
        memcpy(y, &value, (size_t)left * 4);
    }
}

/* Stores the totals of R rows and C blocks. Without calls, a product of 576 inputs takes 6 % less. */
INLINE void finish(const call *c, const int FORMAT, const int R, const int C, int row, int block, vf totals[][MOST_BLOCKS * VECTORS]) {
    const int64_t stride = c->y_stride;
    float *y = c->y + row * stride + block * BLOCK;
    if ((block + C) * BLOCK > c->w->n_out) {
        for (int r = 0; r < R; r++)
            for (int b = 0; b < C; b++) finish_some(c, row + r, block + b, totals[r] + b * VECTORS);
        return;
    }
    const int add = c->add;
    UNROLL for (int v = 0; v < C * VECTORS; v++) {
        vf scale = HAS_SCALES(FORMAT) ? load(c->w->scales + block * BLOCK + v * LANES) : splat(1);
        UNROLL for (int r = 0; r < R; r++) {
            float *to = y + r * stride + v * LANES;
            vf value = HAS_SCALES(FORMAT) ? totals[r][v] * scale : totals[r][v];
            store(to, add ? load(to) + value : value);
        }
    }
}

/* Adds quad q of a group to the integer sums of R rows; `part` holds it for V vectors of outputs. */
INLINE void add_quad(const int FORMAT, const int R, const int V, vi acc[][MOST_BLOCKS * VECTORS], const quads *part, const int8_t *x,
                     int64_t stride, int q) {
    UNROLL for (int r = 0; r < R; r++) {
        int32_t four;
        memcpy(&four, x + r * stride + q * 4, 4);
        UNROLL for (int v = 0; v < V; v++)
            acc[r][v] = IS_NIBBLES(FORMAT) ? dot_unsigned(acc[r][v], part[v], four) : dot(acc[r][v], part[v], four);
    }
}

/* A row's total with one more group: exact sums times the scales of weights and row, plus minima times its sum. */
INLINE vf add_group(const int FORMAT, vf total, vi sums, vf weight_scale, vf minimum, float scale, float row_sum) {
    total = fused(__builtin_convertvector(sums, vf) * weight_scale, splat(scale), total);
    return HAS_MINIMA(FORMAT) ? fused(minimum, splat(row_sum), total) : total;
}

/* Field `i` of 16, six bits each, of the tables of Q4_K, for LANES outputs: 5 in a word, the last in free bits. */
INLINE vf six_bits(const uint8_t *tables, int i) {
    if (i < 15) return __builtin_convertvector((vi)((vu)load_int(tables + i / 5 * 64) >> i % 5 * 6) & splat_int(63), vf);
    vu left[3];
    UNROLL for (int k = 0; k < 3; k++) left[k] = (vu)load_int(tables + k * 64) >> 30 << 2 * k;
    return __builtin_convertvector((vi)(left[0] | left[1] | left[2]), vf);
}

/* Scales and minima of group g of a superblock of Q4_K, for LANES outputs from `lane` of its `tables`. */
INLINE void decode_tables(const uint8_t *tables, int g, int lane, vf *scale, vf *minimum) {
    *scale = as_half(load_half(tables + 192 + lane * 2) * six_bits(tables + lane * 4, g));
    *minimum = as_half(load_half(tables + 224 + lane * 2) * six_bits(tables + lane * 4, IN_SUPERBLOCK + g));
}

/* The scales of all groups of a block of Q4_K, then their minima: to [n_groups][2][BLOCK]. */
static __attribute__((noinline)) void decode_block(const uint8_t *record, int n_groups, float *to) {
    for (record += IN_SUPERBLOCK * 256; n_groups > 0; n_groups -= IN_SUPERBLOCK, record += SUPERBLOCK)
        UNROLL for (int g = 0; g < IN_SUPERBLOCK; g++, to += 2 * BLOCK)
            UNROLL for (int lane = 0; lane < BLOCK; lane += LANES) {
                vf scale, minimum;
                decode_tables(record, g, lane, &scale, &minimum);
                store(to + lane, scale);
                store(to + BLOCK + lane, minimum);
            }
}

/* Scales and minima of group g of n_groups for LANES outputs from `lane`; of NVFP4 the scales of the lower half and of
 * the upper one. `record` has the weights of the group. */
INLINE void load_tables(const int FORMAT, const uint8_t *record, int g, int n_groups, int lane, vf *scale, vf *minimum) {
    if (FORMAT == Q4_K) {
        decode_tables(record + (IN_SUPERBLOCK - g % IN_SUPERBLOCK) * 256, g % IN_SUPERBLOCK, lane, scale, minimum);
        return;
    }
    *minimum = splat(0);
    if (IS_FP4(FORMAT)) {
        const uint8_t *scales = record + (n_groups - g) * 256 + g * (RECORD(FORMAT) - 256) + lane;
        *scale = FORMAT == MXFP4 ? load_e8m0(scales) : load_e4m3(scales);
        if (FORMAT == NVFP4) *minimum = load_e4m3(scales + BLOCK);
        return;
    }
    const uint8_t *tables = record + (IS_NIBBLES(FORMAT) ? 256 : 512) + lane * 2;
    *scale = load_half(tables);
    if (HAS_MINIMA(FORMAT)) *minimum = load_half(tables + 2 * BLOCK);
}

/* Multiplies R rows by C blocks of 16 outputs in groups of 32 channels. FORMAT, R and C are constants after inlining.
 * In the first `n_soon` steps of each group it prefetches what follows `soon`: memory is fastest when read in one
 * stream. For several rows `decoded` has the scales and minima of Q4_K. */
INLINE void tile(const call *c, const int FORMAT, const int R, const int C, int row, int block, const uint8_t *soon, int n_soon,
                 const float *decoded) {
    const int V = C * VECTORS, G = c->n_groups, CHANNELS = QUADS(FORMAT) * 4;
    const int64_t stride = (int64_t)G * CHANNELS, next = (int64_t)G * RECORD(FORMAT), first = (int64_t)row * G;
    const uint8_t *record = c->w->packed + block * next;
    const int8_t *x = c->q + first * CHANNELS;
    const float *scale = c->scale + first, *total = c->total + first;
    const int32_t *zero = c->zero + first;
    vf totals[MOST_ROWS][MOST_BLOCKS * VECTORS];
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) totals[r][v] = splat(0);
    for (int g = 0; g < G; record += AFTER(FORMAT, g), g++, x += CHANNELS) {
        vi acc[MOST_ROWS][MOST_BLOCKS * VECTORS];
        quads part[MOST_BLOCKS * VECTORS], high[MOST_BLOCKS * VECTORS];
#define AT(v) (record + (v) / VECTORS * next + (v) % VECTORS * WIDTH)
        UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) acc[r][v] = splat_int(zero[r * G + g]);
        if (2 * R * V > REGISTERS) __asm__ volatile("" : : "r"(totals) : "memory"); /* totals stay in memory */
        for (int q = 0; q < STEPS(FORMAT); q++) {
            if (q < n_soon) {
                UNROLL for (int b = 0; b < C; b++) __builtin_prefetch(soon + b * STEP(FORMAT), 0, 2);
                soon += C * STEP(FORMAT);
            }
            UNROLL for (int v = 0; v < V; v++) {
                if (IS_NIBBLES(FORMAT)) load_nibbles(IS_FP4(FORMAT), AT(v) + q * 64, part + v, high + v);
                else part[v] = load_quads(AT(v) + q * 64);
            }
            add_quad(FORMAT, R, V, acc, part, x, stride, q);
            if (IS_NIBBLES(FORMAT)) add_quad(FORMAT, R, V, acc, high, x, stride, q + 4);
        }
        UNROLL for (int v = 0; v < V; v++) {
            vf weight_scale, minimum;
            if (FORMAT == Q4_K && R > 1) {
                const float *from = decoded + (v / VECTORS * G + g) * 2 * BLOCK + v % VECTORS * LANES;
                weight_scale = load(from), minimum = load(from + BLOCK);
            } else {
                load_tables(FORMAT, record + v / VECTORS * next, g, G, v % VECTORS * LANES, &weight_scale, &minimum);
            }
            UNROLL for (int r = 0; r < R; r++)
                totals[r][v] = add_group(FORMAT, totals[r][v], acc[r][v], weight_scale, minimum, scale[r * G + g], total[r * G + g]);
        }
#undef AT
    }
    finish(c, FORMAT, R, C, row, block, totals);
}
