/* Small products for attention: rows of words that queries multiply, see cells.h.
 *
 * float32: an output is one chain of additions in the order of the words, and of the pages.
 * bfloat16: the order of AMX (tdpbf16ps), which all variants have. Of 32 elements (channels of keys, positions of
 * values) the even ones are one chain of fused additions from 0, the odd ones another; even + odd is then added.
 *
 * Tiles have about 12 chains or more where registers suffice: a processor needs as many to start a multiply-add in
 * every cycle.
 */
#pragma once
#include "attention/cells.h"

/* STEP: words of 32 elements in bfloat16. */
enum { BLOCK = 4, TILE = 8, WIDE = WIDTH == 64, MOST_VECTORS = 4, STEP = 16 };

/* Rows of words `a` times the pages `from`..`end` - 1 of a block.
 *
 * The rows of a are `a_row` floats apart, what a page multiplies `a_page`. The rows of b, keys or values, are `stride`
 * bytes apart, those of y `y_stride` floats. The sums of a page run over its words `first`..`last` - 1. In bfloat16
 * `rest` more positions, 1 to 3 of a quad, may follow those of the very last page: the others of the quad may hold
 * anything. `soon` are as many bytes as b, to be prefetched, `to_second` level of cache or to the first. */
typedef struct {
    const float *a;
    float *y;
    int64_t a_row, a_page, stride, y_stride;
    int from, end, rest, to_second;
    int first[BLOCK], last[BLOCK];
    const char *b[BLOCK], *soon[BLOCK];
} product_t;

/* The chains of an output: of even and odd elements in bfloat16, else only the first. */
typedef vf chains[2];
/* The place of a word in its quad. A pair ALONE is the last one of heads that are no multiple of 4. */
enum { FIRST, SECOND, ALONE };

/* Adds the products of a row of words and the i-th word of a query. */
INLINE void multiply(const int kind, const int place, chains sums, vi words, const float *a, int i) {
    if (kind == FLOAT32) {
        sums[0] = fused(splat(a[i]), (vf)words, sums[0]);
        return;
    }
#if CHAINED
    if (place != ALONE) {
        sums[place] = add_pair(sums[place], words, a + i, 0);
        return;
    }
    sums[0] = add_pair(sums[0], words & splat_int(UPPER), a + i, 0);
    sums[1] = add_pair(sums[1], words << 16, a + i + 1, 0);
#else
    sums[0] = fused(splat(a[2 * i]), (vf)(words << 16), sums[0]);
    sums[1] = fused(splat(a[2 * i + 1]), (vf)(words & splat_int(UPPER)), sums[1]);
#endif
}

INLINE vi load_words(const char *b, int n) {
    vi words = {0};
    memcpy(&words, b, n == LANES ? sizeof words : (size_t)n * 4);
    return words;
}

/* Prefetches n vectors, if they are those of the first rows: one tile of a column does it for all. */
INLINE void prefetch(const product_t *p, const char *soon, int row, int n) {
    if (row) return;
    if (p->to_second) UNROLL for (int c = 0; c < n; c += 64 / WIDTH) __builtin_prefetch(soon + c * WIDTH, 0, 2);
    else UNROLL for (int c = 0; c < n; c += 64 / WIDTH) __builtin_prefetch(soon + c * WIDTH);
}

INLINE void clear(const int M, const int C, chains sums[TILE][MOST_VECTORS]) {
    UNROLL for (int m = 0; m < M; m++) UNROLL for (int c = 0; c < C; c++) sums[m][c][0] = sums[m][c][1] = splat(0);
}

INLINE vf joined(const int kind, const chains sums) { return kind == FLOAT32 ? sums[0] : sums[0] + sums[1]; }

/* Multiplies the i-th rows of words of P pages by M rows. */
INLINE void score_words(const int M, const int P, const int C, const int kind, const int place, const product_t *p, int row, int page,
                        int column, int i, chains sums[TILE][MOST_VECTORS]) {
    const int64_t at = i * p->stride + column * 4;
    vi words[MOST_VECTORS];
    UNROLL for (int k = 0; k < P; k++) {
        prefetch(p, p->soon[page + k] + at, row, C);
        UNROLL for (int c = 0; c < C; c++) words[k * C + c] = load_words(p->b[page + k] + at + c * WIDTH, LANES);
    }
    UNROLL for (int m = 0; m < M; m++) UNROLL for (int c = 0; c < P * C; c++)
        multiply(kind, place, sums[m][c], words[c], p->a + (row + m) * p->a_row, i);
}

/* M rows times C vectors of P pages each, for scores. */
INLINE void score_tile(const int M, const int P, const int C, const int kind, const product_t *p, int row, int page, int column) {
    const int n = p->last[page];
    float *y = p->y + row * p->y_stride + page * PAGE + column;
    chains sums[TILE][MOST_VECTORS];
    for (int i = 0, begin = 0; i < n; begin = i) {
        const int end = kind == FLOAT32 || i + STEP > n ? n : i + STEP;
        clear(M, P * C, sums);
        for (; i + 2 <= end; i += 2) {
            score_words(M, P, C, kind, FIRST, p, row, page, column, i, sums);
            score_words(M, P, C, kind, SECOND, p, row, page, column, i + 1, sums);
        }
        if (i < end) score_words(M, P, C, kind, ALONE, p, row, page, column, i++, sums);
        UNROLL for (int m = 0; m < M; m++) UNROLL for (int k = 0; k < P; k++) UNROLL for (int c = 0; c < C; c++) {
            float *to = y + m * p->y_stride + k * PAGE + c * LANES;
            vf total = joined(kind, sums[m][k * C + c]);
            store(to, begin ? load(to) + total : total);
        }
    }
}

/* Whether a tile of M of the `left` rows is best: small tiles of bfloat16 have few chains, so 8 rows are 4 + 4. */
INLINE int suits(const int kind, const int M, int left) {
    if (kind == FLOAT32 || M < 4) return left >= M;
    return left == M || (M == 6 ? left > 8 : left > 6);
}

/* The scores of all rows over all pages. */
INLINE void multiply_keys(const int kind, const product_t *p, int rows) {
    for (int page = p->from, pages; page < p->end; page += pages) {
        int m = 0;
        pages = WIDE && page + 2 <= p->end ? 2 : 1;
#define TILES(M, P, C) \
    for (; suits(kind, M, rows - m); m += M) \
        for (int k = 0; k < pages; k += P) \
            for (int column = 0; column < PAGE; column += (C) * LANES) score_tile(M, P, C, kind, p, m, page + k, column);
        if (kind == FLOAT32) {
            if (WIDE) TILES(8, 1, 2)
            if (pages == 2) {
                TILES(4, 2, 2)
                TILES(3, 2, 2)
                TILES(1, 2, 2)
            }
            TILES(4, 1, 2)
            TILES(3, 1, 2)
            TILES(1, 1, 2)
        } else {
            if (WIDE) TILES(6, 1, 2)
            if (WIDE) TILES(4, 1, 2)
            if (pages == 2) {
                TILES(3, 2, 2)
                TILES(2, 2, 2)
                TILES(1, 2, 2)
            }
            if (WIDE) TILES(3, 1, 2)
            TILES(2, 1, 2)
            TILES(1, 1, WIDE ? 2 : 4)
        }
#undef TILES
    }
}

/* Multiplies the i-th row of words of a page by the weights of M rows. */
INLINE void value_words(const int M, const int C, const int kind, const int place, const product_t *p, int row, int page, int column,
                        int n, int i, int mask, chains sums[TILE][MOST_VECTORS]) {
    const int64_t at = i * p->stride + column * 4;
    vi words[MOST_VECTORS];
    prefetch(p, p->soon[page] + at, row, C);
    UNROLL for (int c = 0; c < C; c++) words[c] = load_words(p->b[page] + at + c * WIDTH, n) & splat_int(mask);
    UNROLL for (int m = 0; m < M; m++) UNROLL for (int c = 0; c < C; c++)
        multiply(kind, place, sums[m][c], words[c], p->a + (row + m) * p->a_row + page * p->a_page, i);
}

/* Adds M rows times C vectors of the values of all pages. If C = 1, values have n columns. */
INLINE void value_tile(const int M, const int C, const int kind, const product_t *p, int row, int column, int n) {
    float *y = p->y + row * p->y_stride + column;
    chains sums[TILE][MOST_VECTORS];
    for (int page = p->from; page < p->end; page++) {
        const int last = p->last[page], rest = page == p->end - 1 ? p->rest : 0;
        int i = p->first[page];
        clear(M, C, sums);
        UNROLL for (int m = 0; m < M && kind == FLOAT32; m++) UNROLL for (int c = 0; c < C; c++)
            sums[m][c][0] = load(y + m * p->y_stride + c * LANES);
        for (; i + 2 <= last; i += 2) {
            value_words(M, C, kind, FIRST, p, row, page, column, n, i, -1, sums);
            value_words(M, C, kind, SECOND, p, row, page, column, n, i + 1, -1, sums);
        }
        if (kind == FLOAT32 && i < last) value_words(M, C, kind, FIRST, p, row, page, column, n, i, -1, sums);
        if (kind == BF16 && rest) {
            value_words(M, C, kind, FIRST, p, row, page, column, n, i, mask_of(0, rest), sums);
            value_words(M, C, kind, SECOND, p, row, page, column, n, i + 1, mask_of(1, rest), sums);
        }
        UNROLL for (int m = 0; m < M; m++) UNROLL for (int c = 0; c < C; c++) {
            float *to = y + m * p->y_stride + c * LANES;
            vf total = joined(kind, sums[m][c]);
            store(to, kind == FLOAT32 ? total : load(to) + total);
        }
    }
}

/* Adds the weighted values of all rows in `columns` columns. */
INLINE void multiply_values(const int kind, const product_t *p, int rows, int columns) {
    for (int column = 0, vectors; column < columns; column += vectors * LANES) {
        int m = 0, left = columns - column, n = left < LANES ? left : LANES;
        vectors = WIDE && left >= 4 * LANES ? 4 : left >= 2 * LANES ? 2 : 1;
#define TILES(M, C, n) \
    for (; suits(kind, M, rows - m); m += M) \
        for (int c = 0; c < vectors; c += (C)) value_tile(M, C, kind, p, m, column + c * LANES, n);
        if (kind == FLOAT32) {
            if (WIDE && vectors > 1) TILES(8, 2, LANES)
            if (vectors == 4) {
                TILES(4, 4, LANES)
                TILES(3, 4, LANES)
                TILES(1, 4, LANES)
            }
        }
        if (kind == BF16 && vectors == 4) {
            TILES(6, 2, LANES)
            TILES(4, 2, LANES)
            TILES(3, 4, LANES)
            TILES(2, 4, LANES)
            TILES(1, 4, LANES)
        }
        if (vectors == 2) {
            if (WIDE || kind == FLOAT32) TILES(4, 2, LANES)
            if (WIDE || kind == FLOAT32) TILES(3, 2, LANES)
            TILES(2, 2, LANES)
            TILES(1, 2, LANES)
        }
        TILES(1, 1, n)
#undef TILES
    }
}

/* A product of bytes: exact sums of a page, times the factor of the row. Queries have an offset and a factor each,
 * weights a factor for each page. */
typedef struct {
    product_t p;
    const float *factor;
    const int32_t *offset;
} bytes_t;

INLINE int32_t quad_at(const float *a) {
    int32_t quad;
    memcpy(&quad, a, 4);
    return quad;
}

/* Scores of M rows. The first words of a query count 128 times, its second words once. `by_column` are the factors of
 * the page's keys. */
INLINE void score_bytes_tile(const int M, const int C, const bytes_t *t, int row, int page, int column, const float *by_column) {
    const product_t *p = &t->p;
    const float *a = p->a + row * p->a_row;
    const int last = p->last[page];
    vi acc[2][TILE][MOST_VECTORS];
    quads words[MOST_VECTORS];
    UNROLL for (int m = 0; m < M; m++) UNROLL for (int c = 0; c < C; c++) acc[0][m][c] = acc[1][m][c] = splat_int(0);
    for (int i = 0; i < last; i++) {
        int64_t at = i * p->stride + column * 4;
        prefetch(p, p->soon[page] + at, row, C);
        UNROLL for (int c = 0; c < C; c++) words[c] = load_quads((const uint8_t *)p->b[page] + at + c * WIDTH);
        UNROLL for (int level = 0; level < 2; level++) UNROLL for (int m = 0; m < M; m++) UNROLL for (int c = 0; c < C; c++)
            acc[level][m][c] = dot(acc[level][m][c], words[c], quad_at(a + m * p->a_row + i + level * last));
    }
    float *y = p->y + row * p->y_stride + page * PAGE + column;
    UNROLL for (int m = 0; m < M; m++) UNROLL for (int c = 0; c < C; c++) {
        vi whole = (acc[0][m][c] << 7) + acc[1][m][c] + splat_int(t->offset[row + m]);
        store(y + m * p->y_stride + c * LANES,
              __builtin_convertvector(whole, vf) * splat(t->factor[row + m]) * load(by_column + column + c * LANES));
    }
}

INLINE void multiply_key_bytes(const bytes_t *t, int rows, int dim) {
    for (int page = t->p.from; page < t->p.end; page++) {
        const float *by_column = factors(t->p.b[page], dim);
        int m = 0;
        for (int i = 0; i < PAGE; i += 16) __builtin_prefetch(factors(t->p.soon[page], dim) + i, 0, 2);
#define TILES(M) \
    for (; m + M <= rows; m += M) \
        for (int column = 0; column < PAGE; column += 2 * LANES) score_bytes_tile(M, 2, t, m, page, column, by_column);
        if (WIDE) TILES(4)
        if (WIDE) TILES(3)
        TILES(2)
        TILES(1)
#undef TILES
    }
}

INLINE void value_bytes_tile(const int M, const int C, const bytes_t *t, int row, int column) {
    const product_t *p = &t->p;
    float *y = p->y + row * p->y_stride + column;
    vf sums[TILE][MOST_VECTORS];
    quads words[MOST_VECTORS];
    UNROLL for (int m = 0; m < M; m++) UNROLL for (int c = 0; c < C; c++) sums[m][c] = load(y + m * p->y_stride + c * LANES);
    for (int page = p->from; page < p->end; page++) {
        const float *a = p->a + row * p->a_row + page * p->a_page;
        vi acc[TILE][MOST_VECTORS];
        UNROLL for (int m = 0; m < M; m++) UNROLL for (int c = 0; c < C; c++)
            acc[m][c] = splat_int(0);
        for (int i = p->first[page]; i < p->last[page]; i++) {
            int64_t at = i * p->stride + column * 4;
            prefetch(p, p->soon[page] + at, row, C);
            UNROLL for (int c = 0; c < C; c++) words[c] = load_signed(p->b[page] + at + c * WIDTH);
            UNROLL for (int m = 0; m < M; m++) UNROLL for (int c = 0; c < C; c++)
                acc[m][c] = dot_signed(acc[m][c], words[c], quad_at(a + m * p->a_row + i));
        }
        UNROLL for (int m = 0; m < M; m++) UNROLL for (int c = 0; c < C; c++)
            sums[m][c] = fused(__builtin_convertvector(acc[m][c], vf), splat(t->factor[(row + m) * BLOCK + page]), sums[m][c]);
    }
    UNROLL for (int m = 0; m < M; m++) UNROLL for (int c = 0; c < C; c++) store(y + m * p->y_stride + c * LANES, sums[m][c]);
}

INLINE void multiply_value_bytes(const bytes_t *t, int rows, int dim) {
    const int columns = byte_width(dim);
    for (int page = t->p.from; page < t->p.end; page++)
        for (int i = 0; i < PAGE; i += 16) __builtin_prefetch(factors(t->p.soon[page], dim) + i, 0, 2);
    for (int column = 0, vectors; column < columns; column += vectors * LANES) {
        int m = 0, left = columns - column;
        vectors = WIDE && left >= 4 * LANES ? 4 : left >= 2 * LANES ? 2 : 1;
#define TILES(M, C) \
    for (; m + M <= rows; m += M) \
        for (int c = 0; c < vectors; c += C) value_bytes_tile(M, C, t, m, column + c * LANES);
        if (vectors == 4) {
            TILES(3, 4)
            TILES(1, 4)
        }
        if (vectors == 2) {
            TILES(4, 2)
            TILES(3, 2)
            TILES(1, 2)
        }
        TILES(1, 1)
#undef TILES
    }
}
