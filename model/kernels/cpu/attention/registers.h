/* Products of bfloat16 by tile registers, in the order of tiles.h. A page is tiles as it lies: its keys two of 16 for
 * each 32 channels, its values one for each 16 channels. Tiles of 32 rows and 32 outputs have the fewest loads; without
 * more than 16 rows there is one tile of them. */
#pragma once
#include "attention/tiles.h"

#if defined(AMX)

/* Adds to the sums a step of 32 elements: rows from `a` on times two tiles of b, 64 bytes apart. */
INLINE void step_tiles(const int two, const char *a, int64_t a_stride, const char *b, int64_t b_stride) {
    TILE_LOAD(4, a, a_stride);
    TILE_LOAD(6, b, b_stride);
    TILE_PAIRS(0, 4, 6);
    TILE_LOAD(7, b + 64, b_stride);
    TILE_PAIRS(1, 4, 7);
    if (!two) return;
    TILE_LOAD(5, a + 16 * a_stride, a_stride);
    TILE_PAIRS(2, 5, 6);
    TILE_PAIRS(3, 5, 7);
}

INLINE void store_tiles(const int two, float *y, int64_t stride) {
    TILE_STORE(0, y, stride * 4);
    TILE_STORE(1, y + 16, stride * 4);
    if (!two) return;
    TILE_STORE(2, y + 16 * stride, stride * 4);
    TILE_STORE(3, y + 16 * stride + 16, stride * 4);
}

INLINE void load_tiles(const int two, const float *y, int64_t stride) {
    TILE_LOAD(0, y, stride * 4);
    TILE_LOAD(1, y + 16, stride * 4);
    if (!two) return;
    TILE_LOAD(2, y + 16 * stride, stride * 4);
    TILE_LOAD(3, y + 16 * stride + 16, stride * 4);
}

/* Prefetches a page's keys or values to the second level, for a few rows: memory is then what a task waits for. Many
 * rows wait for loads, and prefetches would take their place. */
INLINE void prefetch_half(const char *soon, int rows, int dim) {
    for (int i = 0; rows <= 16 && i < PAGE * dim * 2; i += 64) __builtin_prefetch(soon + i, 0, 2);
}

INLINE void score_by_tiles(const int two, const product_t *p, int row, int dim) {
    const char *a = (const char *)(p->a + row * p->a_row);
    for (int page = p->from; page < p->end; page++) {
        ZERO_SUMS();
        for (int d = 0; d < dim; d += 32) step_tiles(two, a + d * 2, p->a_row * 4, p->b[page] + d / 2 * p->stride, p->stride);
        store_tiles(two, p->y + row * p->y_stride + page * PAGE, p->y_stride);
    }
}

INLINE void multiply_keys_by_tiles(const product_t *p, int rows, int dim) {
    for (int page = p->from; page < p->end; page++) prefetch_half(p->soon[page], rows, dim);
    for (int m = 0; m < rows; m += 32)
        if (rows - m > 16) score_by_tiles(1, p, m, dim);
        else score_by_tiles(0, p, m, dim);
}

INLINE void value_by_tiles(const int two, const product_t *p, int row, int dim) {
    for (int d = 0; d < dim; d += 32) {
        float *y = p->y + row * p->y_stride + d;
        load_tiles(two, y, p->y_stride);
        for (int page = p->from; page < p->end; page++)
            step_tiles(two, (const char *)(p->a + row * p->a_row + page * p->a_page), p->a_row * 4, p->b[page] + d * 4, p->stride);
        store_tiles(two, y, p->y_stride);
    }
}

INLINE void multiply_values_by_tiles(const product_t *p, int rows, int dim) {
    for (int page = p->from; page < p->end; page++) prefetch_half(p->soon[page], rows, dim);
    for (int m = 0; m < rows; m += 32)
        if (rows - m > 16) value_by_tiles(1, p, m, dim);
        else value_by_tiles(0, p, m, dim);
}

/* The values of positions first..last-1 of a page, and zeros for all others, in `copy`. Others may never have been
 * written: a tile would multiply them, and 0 times NaN is NaN. */
INLINE const char *only(const char *values, int dim, int first, int last, char *copy) {
    for (int i = 0; i < PAGE; i += 2) {
        const int mask = (i >= first && i < last ? ~UPPER : 0) | (i + 1 >= first && i + 1 < last ? UPPER : 0);
        for (int d = 0; d < dim; d += LANES)
            store((float *)copy + i / 2 * dim + d, (vf)(load_int(values + (i / 2 * dim + d) * 4) & splat_int(mask)));
    }
    return copy;
}

#else

INLINE void configure_tiles(int rows, int bytes) {}
INLINE void release_tiles(void) {}
INLINE void multiply_keys_by_tiles(const product_t *p, int rows, int dim) {}
INLINE void multiply_values_by_tiles(const product_t *p, int rows, int dim) {}
INLINE const char *only(const char *values, int dim, int first, int last, char *copy) { return values; }

#endif
