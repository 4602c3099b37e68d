/* Products by AMX with weights that have a scale, and perhaps a minimum, for each output and group of 32 channels, or a
 * scale for each half of it. They have the bits of `tile` and of `tile_halves`. A task unpacks a panel, some groups of
 * a block, once for all rows. One product computes a group of 16 rows, a slab. Its sums are stored while the next
 * product runs, and are added to the totals while the one after that runs. Registers hold the totals meanwhile.
 */
#pragma once
#include "linear/halves.h"

#if defined(AMX)

enum { SLAB = 16, PANEL = 4 * IN_SUPERBLOCK }; /* rows; groups: with a slab's activations they fit into 48 KiB */
_Static_assert(VECTORS == 1, "a vector has a block's outputs");

typedef struct {
    uint8_t weights[PANEL][8][64]; /* of each group: [8 quads][16 outputs][4] */
    float tables[PANEL][2][BLOCK]; /* those of load_tables */
    int32_t sums[2][2][SLAB][BLOCK]; /* of two groups; those with halves have two */
    float totals[TASK_ROWS / SLAB][SLAB][BLOCK]; /* at the end of a panel */
    const uint8_t *soon, *stop; /* weights to prefetch */
    int block, first, n_groups;
} panel;
_Static_assert(sizeof(panel) <= THREAD_BYTES, "a panel lies in a thread's memory");

/* What a group has for each output: a scale, also a minimum, or a scale for each half. */
enum { SCALE, MINIMUM, HALVES };
INLINE int tables_of(int64_t format) { return format == NVFP4 ? HALVES : HAS_MINIMA(format) ? MINIMUM : SCALE; }

/* Writes the weights of a group as signed bytes: their sums need no correction. */
INLINE void unpack_group(const int FORMAT, const uint8_t *record, uint8_t to[8][64]) {
    typedef int8_t bytes __attribute__((vector_size(64)));
    const bytes beyond = (bytes)splat_int((int32_t)(0x01010101u * (uint32_t)excess(FORMAT)));
    quads w[8];
    UNROLL for (int i = 0; i < 4; i++) {
        if (IS_NIBBLES(FORMAT)) load_nibbles(IS_FP4(FORMAT), record + i * 64, w + i, w + i + 4);
        else w[i] = load_quads(record + i * 64), w[i + 4] = load_quads(record + (i + 4) * 64);
    }
    UNROLL for (int i = 0; i < 8; i++) {
        bytes weights = (bytes)w[i] - beyond;
        memcpy(to[i], &weights, 64);
    }
}

INLINE void unpack_panel(const int FORMAT, const uint8_t *record, int n_groups, panel *p) {
    if (FORMAT == Q4_K) decode_block(record, p->n_groups, p->tables[0][0]);
    for (int g = 0; g < p->n_groups; record += AFTER(FORMAT, g), g++) {
        unpack_group(FORMAT, record, p->weights[g]);
        if (FORMAT == Q4_K) continue;
        vf scale, minimum;
        load_tables(FORMAT, record, p->first + g, n_groups, 0, &scale, &minimum);
        store(p->tables[g][0], scale);
        store(p->tables[g][1], minimum);
    }
}

/* Unpacks the panel of block p->block that begins with group p->first. Its products will prefetch the next panel, as
 * far as it lies before `end`. */
static void unpack_any(const call *c, panel *p, const uint8_t *end) {
    const int64_t bytes = RECORD(c->w->format), before = p->first * (IS_FP4(c->w->format) ? 256 : bytes);
    const uint8_t *record = c->w->packed + (int64_t)p->block * c->n_groups * bytes + before;
    p->soon = record + p->n_groups * bytes;
    p->stop = end - p->soon < PANEL * bytes ? end : p->soon + PANEL * bytes;
#define UNPACK(F) case F: unpack_panel(F, record, c->n_groups, p); break;
    switch (c->w->format) { UNPACK(Q8) UNPACK(Q8_MIN) UNPACK(Q4) UNPACK(Q4_MIN) UNPACK(Q4_K) UNPACK(NVFP4) UNPACK(MXFP4) }
#undef UNPACK
}

/* A group of a panel, and the row with which a slab of R rows begins. `at` is the group's number (group_at). */
typedef struct {
    int64_t at;
    int group, row;
} place;
INLINE void advance(const call *c, const panel *p, int R, place *of) {
    of->at += R;
    if (++of->group < p->n_groups) return;
    of->at += (int64_t)(c->n_groups - p->n_groups) * R;
    of->group = 0, of->row += R;
}

/* Products take two sets of tiles in turns: none waits until the sums before it are stored. */
INLINE void multiply_group(const call *c, const panel *p, const int TABLES, const int ODD, place of) {
    const int8_t *x = c->q + of.at * 32;
    const uint8_t *w = p->weights[of.group][0];
#define PRODUCT(sums, rows, weights, half) \
    TILE_ZERO(sums); \
    TILE_LOAD(rows, x + half * 16, 32); \
    TILE_LOAD(weights, w + half * 256, 64); \
    TILE_SIGNED(sums, rows, weights);
    if (ODD) { PRODUCT(1, 5, 7, 0) } else { PRODUCT(0, 4, 6, 0) }
    if (TABLES != HALVES) return;
    if (ODD) { PRODUCT(3, 4, 6, 1) } else { PRODUCT(2, 5, 7, 1) }
#undef PRODUCT
}

INLINE void store_group(panel *p, const int TABLES, const int ODD) {
    if (ODD) TILE_STORE(1, p->sums[1][0], 64);
    else TILE_STORE(0, p->sums[0][0], 64);
    if (TABLES != HALVES) return;
    if (ODD) TILE_STORE(3, p->sums[1][1], 64);
    else TILE_STORE(2, p->sums[0][1], 64);
}

/* Integers below 2^22 as floats. While a tile is multiplied, the processor starts two additions a cycle, but only one
 * conversion or multiplication. */
INLINE vf as_floats(vi x) { return (vf)(x + (vi)splat(0x1.8p23f)) - splat(0x1.8p23f); }

/* Adds a group to the totals of R rows as `add_group` and `tile_halves` do. */
INLINE void join_group(const call *c, const int TABLES, const int R, const panel *p, const int ODD, place of,
                       vf *totals) {
    const vf weight_scale = load(p->tables[of.group][0]), second = load(p->tables[of.group][1]);
    UNROLL for (int r = 0; r < SLAB; r++) {
        if (r >= R) continue; /* a loop of any R rows would have its totals in memory */
        vf sums = as_floats(load_int(p->sums[ODD][0][r]));
        vf scaled = TABLES == HALVES ? add_halves(sums, as_floats(load_int(p->sums[ODD][1][r])), weight_scale, second) : sums * weight_scale;
        totals[r] = fused(scaled, splat(c->scale[of.at + r]), totals[r]);
        if (TABLES == MINIMUM) totals[r] = fused(second, splat(c->total[of.at + r]), totals[r]);
    }
}

INLINE void begin_slab(const panel *p, const float before[SLAB][BLOCK], vf *totals) {
    UNROLL for (int r = 0; r < SLAB; r++) totals[r] = p->first ? load(before[r]) : splat(0);
}

static __attribute__((noinline)) void finish_slab(const call *c, int R, int row, int block, float sums[SLAB][BLOCK]) {
    for (int r = 0; r < R; r++) {
        vf result[1][MOST_BLOCKS] = {{load(sums[r])}};
        finish(c, (int)c->w->format, 1, 1, row + r, block, result);
    }
}

/* Stores the totals of a slab for the next panel, or as results after the last one. */
INLINE void end_slab(const call *c, int R, const panel *p, int row, const vf *totals, float sums[SLAB][BLOCK]) {
    UNROLL for (int r = 0; r < SLAB; r++) store(sums[r], totals[r]);
    if (p->first + p->n_groups == c->n_groups) finish_slab(c, R, row, p->block, sums);
}

/* The products of a panel with `slabs` slabs of R rows from `row` on: multiplies group i, stores the sums of i - 1 and
 * adds those of i - 2. */
INLINE void stream(const call *c, const int TABLES, const int R, panel *p, int row, int slabs) {
    const int n = slabs * p->n_groups, lines = (int)RECORD(c->w->format) / 64 / slabs + 1;
    place made = {group_at(c, row, p->first), 0, row}, joined = made;
    float(*memory)[SLAB][BLOCK] = p->totals;
    vf totals[SLAB];
    begin_slab(p, *memory, totals);
#define BEAT(i, ODD) \
    if (i < n) { \
        multiply_group(c, p, TABLES, ODD, made); \
        advance(c, p, R, &made); \
        for (int k = 0; k < lines && p->soon < p->stop; k++, p->soon += 64) __builtin_prefetch(p->soon, 0, 2); \
    } \
    if (i >= 1 && i <= n) store_group(p, TABLES, !ODD); \
    if (i >= 2 && i < n + 2) { \
        join_group(c, TABLES, R, p, ODD, joined, totals); \
        advance(c, p, R, &joined); \
        if (!joined.group) { \
            end_slab(c, R, p, joined.row - R, totals, *memory++); \
            if (i < n + 1) begin_slab(p, *memory, totals); \
        } \
    }
    for (int i = 0; i < n + 2; i += 2) {
        BEAT(i, 0)
        BEAT(i + 1, 1)
    }
#undef BEAT
}

#define STREAM(name, TABLES, R, slabs) \
    static __attribute__((noinline)) void name(const call *c, panel *p, int row, int n) { \
        stream(c, TABLES, R, p, row, slabs); \
    }
STREAM(stream_scales, SCALE, SLAB, n)
STREAM(stream_minima, MINIMUM, SLAB, n)
STREAM(stream_halves, HALVES, SLAB, n)
STREAM(stream_rest, tables_of(c->w->format), n, 1)
#undef STREAM

/* Computes rows top..end-1 of blocks first..last-1: whole slabs, or fewer rows than one. */
static void some_blocks(const call *c, int first, int last, int top, int end, panel *p) {
    const int n = end - top, slabs = n / SLAB, tables = tables_of(c->w->format);
    const uint8_t *stop = c->w->packed + (int64_t)last * c->n_groups * RECORD(c->w->format);
    if (!n) return;
    configure_tiles(slabs ? SLAB : n, tables == HALVES ? 16 : 32);
    for (p->block = first; p->block < last; p->block++)
        for (p->first = 0; p->first < c->n_groups; p->first += PANEL) {
            p->n_groups = (int)least_of(PANEL, c->n_groups - p->first);
            unpack_any(c, p, stop);
            if (!slabs) stream_rest(c, p, top, n);
            else if (tables == MINIMUM) stream_minima(c, p, top, slabs);
            else if (tables == HALVES) stream_halves(c, p, top, slabs);
            else stream_scales(c, p, top, slabs);
        }
    release_tiles();
}

/* Computes rows top..end-1 of blocks first..last-1. `top` is a multiple of 16. */
static void all_blocks(const call *c, int first, int last, int top, int end, int thread) {
    const int whole = end - (end - top) % SLAB;
    some_blocks(c, first, last, top, whole, noria_memory(thread));
    some_blocks(c, first, last, whole, end, noria_memory(thread));
}

#endif
