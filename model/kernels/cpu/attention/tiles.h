/* Small products for attention: rows of words that queries multiply, see cells.h.
 *
 * Every output is summed in the order of the words, whatever the number of rows and columns in a tile.
 */
#pragma once
#include "attention/cells.h"

enum { TILE = 8 };

/* A product over words `first`..`last` - 1. If `odd`, the second half of the last pair was never written.
 * The rows of a are `a_row` words apart, and the words of a row `a_word`. The rows of b are `stride` bytes apart, those
 * of y `y_stride` floats. The memory `ahead` bytes after b is prefetched. */
typedef struct {
    const float *a;
    const char *b;
    float *y;
    int64_t a_row, a_word, stride, y_stride, ahead;
    int first, last, odd, add;
} product_t;

/* acc + b times the i-th word of a query, where b is a loaded row of words. */
INLINE vf multiply(const int kind, vf acc, vi b, const float *a, int i, int64_t a_word) {
    a += (kind == BF16 && !PAIRED ? 2 : 1) * i * a_word;
    return kind == FLOAT32 ? fused(splat(*a), (vf)b, acc) : add_pair(acc, b, a, a_word);
}

INLINE vi load_words(const char *b, int n) {
    vi words = {0};
    memcpy(&words, b, n == LANES ? sizeof words : (size_t)n * 4);
    return words;
}

/* y [M, C * LANES] (+)= a b. M, C and kind are constants after inlining, also n = LANES if C > 1. If C = 1, y has n
 * columns. */
INLINE void tile(const int M, const int C, const int kind, const product_t *p, int row, int column, int n) {
    const float *a = p->a + row * p->a_row;
    const char *b = p->b + (int64_t)column * 4;
    float *y = p->y + row * p->y_stride + column;
    vf acc[TILE][4];
    vi words[4];
    UNROLL for (int m = 0; m < M; m++) UNROLL for (int c = 0; c < C; c++)
        acc[m][c] = p->add ? (vf)load_words((const char *)(y + m * p->y_stride + c * LANES), n) : splat(0);
    for (int i = p->first; i < p->last - p->odd; i++) {
        const char *from = b + i * p->stride;
        if (!row) UNROLL for (int c = 0; c < C; c += 64 / WIDTH) __builtin_prefetch(from + p->ahead + c * WIDTH, 0, 2);
        UNROLL for (int c = 0; c < C; c++) words[c] = load_words(from + c * WIDTH, n);
        UNROLL for (int m = 0; m < M; m++) UNROLL for (int c = 0; c < C; c++)
            acc[m][c] = multiply(kind, acc[m][c], words[c], a + m * p->a_row, i, p->a_word);
    }
    if (p->odd)
        UNROLL for (int c = 0; c < C; c++) {
            vi half = load_words(b + (p->last - 1) * p->stride + c * WIDTH, n) & splat_int(0xFFFF);
            UNROLL for (int m = 0; m < M; m++)
                acc[m][c] = multiply(kind, acc[m][c], half, a + m * p->a_row, p->last - 1, p->a_word);
        }
    UNROLL for (int m = 0; m < M; m++) UNROLL for (int c = 0; c < C; c++)
        memcpy(y + m * p->y_stride + c * LANES, &acc[m][c], n == LANES ? sizeof(vf) : (size_t)n * 4);
}

/* Computes all tiles of `rows` rows and `columns` columns. */
INLINE void product(const int kind, const product_t *p, int rows, int columns) {
    for (int column = 0, wide; column < columns; column += wide * LANES) {
        int m = 0, n = columns - column < LANES ? columns - column : LANES;
        wide = columns - column >= 2 * LANES ? 2 : 1;
#define TILES(M, C, n) for (; m + M <= rows; m += M) tile(M, C, kind, p, m, column, n);
        if (wide == 2) {
            if (WIDTH == 64) TILES(8, 2, LANES)
            TILES(4, 2, LANES)
            TILES(3, 2, LANES)
            TILES(1, 2, LANES)
        }
        TILES(1, 1, n)
#undef TILES
    }
}

/* A product of bytes: exact sums, times the factor of the query, and with `by_column` times the factor of the column.
 * With two levels, the query's first words count 128 times and its second words once. */
typedef struct {
    product_t p;
    const float *factor, *by_column; /* a row has `each` factors and offsets, of which this uses one */
    const int32_t *offset;
    int each, levels;
} bytes_t;

INLINE void tile_bytes(const int M, const int C, const bytes_t *t, int row, int column) {
    const product_t *p = &t->p;
    const float *a = p->a + row * p->a_row;
    const char *b = p->b + (int64_t)column * 4;
    vi acc[TILE][4];
    quads words[4];
    UNROLL for (int m = 0; m < M; m++) UNROLL for (int c = 0; c < C; c++) acc[m][c] = splat_int(0);
    for (int level = 0; level < t->levels; level++) {
        UNROLL for (int m = 0; m < M; m++) UNROLL for (int c = 0; c < C; c++) acc[m][c] <<= 7;
        for (int i = p->first; i < p->last; i++) {
            const char *from = b + i * p->stride;
            if (!row && !level) UNROLL for (int c = 0; c < C; c += 64 / WIDTH) __builtin_prefetch(from + p->ahead + c * WIDTH, 0, 2);
            UNROLL for (int c = 0; c < C; c++) words[c] = load_quads((const uint8_t *)from + c * WIDTH);
            UNROLL for (int m = 0; m < M; m++) {
                int32_t quad;
                memcpy(&quad, a + m * p->a_row + (i + level * p->last) * p->a_word, 4);
                UNROLL for (int c = 0; c < C; c++) acc[m][c] = dot(acc[m][c], words[c], quad);
            }
        }
    }
    UNROLL for (int m = 0; m < M; m++) UNROLL for (int c = 0; c < C; c++) {
        float *y = p->y + (row + m) * p->y_stride + column + c * LANES;
        vf value = __builtin_convertvector(acc[m][c] + splat_int(t->offset[(row + m) * t->each]), vf), by = splat(t->factor[(row + m) * t->each]);
        store(y, t->by_column ? value * by * load(t->by_column + column + c * LANES) : fused(value, by, load(y)));
    }
}

INLINE void product_bytes(const bytes_t *t, int rows, int columns) {
    for (int column = 0, wide; column < columns; column += wide * LANES) {
        int m = 0;
        wide = columns - column >= 2 * LANES ? 2 : 1;
#define TILES(M, C) for (; m + M <= rows; m += M) tile_bytes(M, C, t, m, column);
        if (wide == 2) {
            if (WIDTH == 64) TILES(8, 2)
            TILES(4, 2)
            TILES(3, 2)
            TILES(1, 2)
        }
        TILES(1, 1)
#undef TILES
    }
}
