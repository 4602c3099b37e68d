/* The compiled shapes of tiles, and how a task is divided among them. */
#pragma once
#include "linear/tiles.h"

/* Shapes of tiles: rows, blocks. Those of one width stand together, and their rows grow from 1. */
#if defined(__AVX512VNNI__)
#define SHAPES(X, F) \
    X(F, 1, 1) X(F, 2, 1) X(F, 4, 1) X(F, 8, 1) X(F, 1, 2) X(F, 2, 2) X(F, 4, 2) X(F, 6, 2) X(F, 8, 2) \
    X(F, 1, 3) X(F, 2, 3) X(F, 4, 3) X(F, 8, 3) X(F, 1, 4) X(F, 2, 4) X(F, 4, 4) X(F, 6, 4)
enum { TALL = 4, BROAD = 2, BROAD_ONE = 4 }; /* the default */
#elif defined(__AVX2__)
#define SHAPES(X, F) X(F, 1, 1) X(F, 2, 1) X(F, 4, 1) X(F, 1, 2) X(F, 2, 2)
enum { TALL = 2, BROAD = 1, BROAD_ONE = 2 };
#else
#define SHAPES(X, F) X(F, 1, 1) X(F, 2, 1)
enum { TALL = 1, BROAD = 1, BROAD_ONE = 1 };
#endif

struct shape {
    const char *name;
    int rows, blocks;
    void (*compute)(const call *c, int row, int block, int ahead);
};

#define TILE(F, R, C) \
    static __attribute__((noinline)) void tile_##F##_##R##x##C(const call *c, int row, int block, int ahead) { \
        tile(c, F, R, C, row, block, ahead); \
    }
#define ENTRY(F, R, C) {#R "x" #C, R, C, tile_##F##_##R##x##C},
#define COMPILED(F) \
    SHAPES(TILE, F) \
    static const shape shapes_##F[] = {SHAPES(ENTRY, F) {0}};
COMPILED(INT8)
COMPILED(Q8)
COMPILED(Q8_MIN)
COMPILED(Q4)
COMPILED(Q4_MIN)
COMPILED(BF16)
static const shape *const shapes[] = {shapes_INT8, shapes_Q8, shapes_Q8_MIN, shapes_Q4, shapes_Q4_MIN, shapes_BF16};

/* The first number of rows of each class. */
const int64_t EXPORT(row_classes)[ROW_CLASSES] = {1, 2, 17, 128};

static int row_class(int n_rows) {
    int i = ROW_CLASSES - 1;
    while (n_rows < GLUE(row_classes, VARIANT)[i]) i--;
    return i;
}

/* The name of choice i = 1, 2, .. for weights of a format, "rows x blocks"; null beyond the last. */
typedef const char *text;
text EXPORT(tile_name)(int64_t format, int64_t i) { return shapes[format][i - 1].name; }

/* The shape of a call's tiles. Without a choice it fills the registers; BF16 has only one kind of sums. */
static const shape *chosen(const weights *w, int n_rows) {
    const shape *s = shapes[w->format];
    int64_t choice = w->tiles[row_class(n_rows)];
    if (choice) return s + choice - 1;
    int rows = n_rows == 1 ? 1 : TALL * (w->format == BF16 ? 2 : 1), blocks = n_rows == 1 ? BROAD_ONE : BROAD;
    while (s->rows != rows || s->blocks != blocks) s++;
    return s;
}

/* The widest shape of at most `blocks` blocks and the rows of `s`. */
static const shape *narrower(const shape *s, int blocks) {
    int rows = s->rows;
    while (s->blocks > blocks || s->rows > rows) s--;
    return s;
}

/* Computes rows top..end-1 of blocks first..last-1. It reads weights from memory once, and rows from the cache. */
static void columns(const call *c, int first, int last, int top, int end) {
    const shape *s = c->shape;
    for (int block = first; block < last; block += s->blocks) {
        s = narrower(s, last - block);
        const shape *now = s;
        for (int row = top; row < end; row += now->rows) {
            while (now->rows > end - row) now--;
            now->compute(c, row, block, row == top ? s->blocks : 0);
        }
    }
}
