/* y = W x with weights of 8 or 4 bits and activations of 8 bits, or with both in bfloat16.
 *
 * Weights are packed [N/16][K/group] into records. A record has the weights of a group of channels for 16 outputs:
 *   INT8    group 64: [16 quads][16 outputs][4] bytes w + 128 (|w| <= 127), one scale an output for all groups
 *   Q8      group 32: [8 quads][16 outputs][4] bytes w + 128, then 16 scales in float16
 *   Q4      group 32: [4 quads][16 outputs][4] bytes, quad i in the low halves and i + 4 in the high ones, each w + 8;
 *           then 16 scales
 *   Q8_MIN, Q4_MIN    the same, then 16 minima; here a 4-bit weight is 0..15
 *   BF16    group 64: [32 pairs][16 outputs][2] in bfloat16
 * An INT8 record of 1024 bytes is also a B tile of AMX. Sums within a group are exact integers. Groups are added in
 * float, in order, by the same operations for any number of rows: a row's result depends on that row alone.
 * In bfloat16 it also depends on that row alone. Each output is one chain of additions in float, pair after pair of
 * channels. vdpbf16ps adds the second product of a pair first, and replaces subnormal floats by 0.
 */
#include "linear/amx.h"
#include "linear/lora.h"
#include <stdlib.h>

#define F(name) FIELD(weights, name)
MIRRORED(weights, F(packed), F(scales), F(n_out), F(n_in), F(format));
#undef F

enum { BLOCK = 16, VECTORS = BLOCK / LANES };

/* Sizes of tiles that fill the registers. BF16 has only one kind of sums, and therefore tiles of twice the height. */
#if defined(__AVX512VNNI__)
enum { TALL = 4, BROAD = 2, BROAD_ONE = 4 };
#elif defined(__AVX2__)
enum { TALL = 2, BROAD = 1, BROAD_ONE = 2 };
#else
enum { TALL = 1, BROAD = 1, BROAD_ONE = 1 };
#endif

#define IS_NIBBLES(format) (format == Q4 || format == Q4_MIN)
#define HAS_MINIMA(format) (format == Q8_MIN || format == Q4_MIN)
#define QUADS(format) (format == INT8 || format == BF16 ? 16 : 8)
#define RECORD(format) \
    (format == INT8 ? 1024 : format == BF16 ? 2048 : (IS_NIBBLES(format) ? 256 : 512) + (HAS_MINIMA(format) ? 4 : 2) * BLOCK)

INLINE void finish(const call *c, const int FORMAT, int row, int block, const vf *totals) {
    const weights *w = c->w;
    for (int v = 0; v < VECTORS; v++) {
        int n = block * BLOCK + v * LANES, left = (int)w->n_out - n;
        if (left <= 0) return;
        float *y = c->y + (int64_t)row * w->n_out + n;
        vf value = FORMAT == INT8 ? totals[v] * load(w->scales + n) : totals[v];
        if (left >= LANES) {
            store(y, c->add ? load(y) + value : value);
            continue;
        }
        if (c->add) value += load_some(y, left);
        memcpy(y, &value, (size_t)left * 4);
    }
}

/* Adds quad q of a group to the integer sums of R rows; `part` holds it for V vectors of outputs. */
INLINE void add_quad(const int FORMAT, const int R, const int V, vi acc[][4 * VECTORS], const quads *part, const int8_t *x,
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
    vf exact = __builtin_convertvector(sums, vf);
    if (FORMAT != INT8) exact *= weight_scale;
    total = fused(exact, splat(scale), total);
    return HAS_MINIMA(FORMAT) ? fused(minimum, splat(row_sum), total) : total;
}

/* `tile` for BF16. */
INLINE void tile_pairs(const call *c, const int R, const int C, int row, int block, int ahead) {
    const int V = C * VECTORS, PAIRS = c->n_groups * 32, WORDS = PAIRED ? 1 : 2;
    const int64_t stride = (int64_t)PAIRS * WORDS, next = (int64_t)c->n_groups * RECORD(BF16);
    const uint8_t *w = c->w->packed + block * next;
    const float *x = (const float *)c->q + row * stride;
    vf totals[2 * TALL][4 * VECTORS];
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) totals[r][v] = splat(0);
    for (int p = 0; p < PAIRS; p++, w += 64, x += WORDS) {
        vi part[4 * VECTORS];
        UNROLL for (int b = 0; b < C; b++) __builtin_prefetch(w + (b + ahead) * next, 0, 2);
        UNROLL for (int v = 0; v < V; v++) part[v] = load_int(w + v / VECTORS * next + v % VECTORS * WIDTH);
        UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++)
            totals[r][v] = add_pair(totals[r][v], part[v], x + r * stride, 1);
    }
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int b = 0; b < C; b++)
        finish(c, BF16, row + r, block + b, totals[r] + b * VECTORS);
}

/* Multiplies R rows by C blocks of 16 outputs. FORMAT, R and C are constants after inlining. It also prefetches the
 * block `ahead` blocks further, because hardware does not prefetch beyond a memory page. */
INLINE void tile(const call *c, const int FORMAT, const int R, const int C, int row, int block, int ahead) {
    if (FORMAT == BF16) {
        tile_pairs(c, R, C, row, block, ahead);
        return;
    }
    const int V = C * VECTORS, G = c->n_groups, CHANNELS = QUADS(FORMAT) * 4;
    const int64_t stride = (int64_t)G * CHANNELS, next = (int64_t)G * RECORD(FORMAT), first = (int64_t)row * G;
    const uint8_t *record = c->w->packed + block * next;
    const int8_t *x = c->q + first * CHANNELS;
    const float *scale = c->scale + first, *total = c->total + first;
    const int32_t *zero = c->zero + first;
    vf totals[4][4 * VECTORS];
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) totals[r][v] = splat(0);
    for (int g = 0; g < G; g++, record += RECORD(FORMAT), x += CHANNELS) {
        vi acc[4][4 * VECTORS];
        quads part[4 * VECTORS], high[4 * VECTORS];
#define AT(v) (record + (v) / VECTORS * next + (v) % VECTORS * WIDTH)
        UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) acc[r][v] = splat_int(zero[r * G + g]);
        for (int q = 0; q < (IS_NIBBLES(FORMAT) ? 4 : QUADS(FORMAT)); q++) {
            UNROLL for (int b = 0; b < C; b++) __builtin_prefetch(record + (b + ahead) * next + q * 64, 0, 2);
            UNROLL for (int v = 0; v < V; v++) {
                if (IS_NIBBLES(FORMAT)) load_nibbles(AT(v) + q * 64, part + v, high + v);
                else part[v] = load_quads(AT(v) + q * 64);
            }
            add_quad(FORMAT, R, V, acc, part, x, stride, q);
            if (IS_NIBBLES(FORMAT)) add_quad(FORMAT, R, V, acc, high, x, stride, q + 4);
        }
        UNROLL for (int v = 0; v < V; v++) {
            const uint8_t *after = record + v / VECTORS * next + (IS_NIBBLES(FORMAT) ? 256 : 512) + v % VECTORS * LANES * 2;
            vf weight_scale = FORMAT == INT8 ? splat(0) : load_half(after);
            vf minimum = HAS_MINIMA(FORMAT) ? load_half(after + 2 * BLOCK) : splat(0);
            UNROLL for (int r = 0; r < R; r++)
                totals[r][v] = add_group(FORMAT, totals[r][v], acc[r][v], weight_scale, minimum, scale[r * G + g], total[r * G + g]);
        }
#undef AT
    }
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int b = 0; b < C; b++)
        finish(c, FORMAT, row + r, block + b, totals[r] + b * VECTORS);
}

#ifdef TILES
/* Computes the same bits as `tile` for 16 rows and one block. */
INLINE void slab(const call *c, const int FORMAT, int row, int block) {
    const int G = c->n_groups, CHANNELS = QUADS(FORMAT) * 4;
    const int64_t stride = (int64_t)G * CHANNELS, first = (int64_t)row * G;
    const uint8_t *record = c->w->packed + (int64_t)block * G * RECORD(FORMAT);
    vf totals[TILE_ROWS];
    UNROLL for (int r = 0; r < TILE_ROWS; r++) totals[r] = splat(0);
    for (int g = 0; g < G; g++, record += RECORD(FORMAT)) {
        int32_t sums[TILE_ROWS][16] __attribute__((aligned(64)));
        quads wide[8];
        if (IS_NIBBLES(FORMAT))
            for (int q = 0; q < 4; q++) load_nibbles(record + q * 64, wide + q, wide + q + 4);
        const uint8_t *w = IS_NIBBLES(FORMAT) ? (const uint8_t *)wide : record;
        multiply_tiles(c->q + first * CHANNELS + g * CHANNELS, stride, w, CHANNELS, sums);
        const uint8_t *after = record + (IS_NIBBLES(FORMAT) ? 256 : 512);
        vf weight_scale = FORMAT == INT8 ? splat(0) : load_half(after);
        vf minimum = HAS_MINIMA(FORMAT) ? load_half(after + 2 * BLOCK) : splat(0);
        UNROLL for (int r = 0; r < TILE_ROWS; r++) {
            int64_t at = first + r * G + g;
            vi exact = load_int(sums[r]) + splat_int(c->zero[at]);
            totals[r] = add_group(FORMAT, totals[r], exact, weight_scale, minimum, c->scale[at], c->total[at]);
        }
    }
    UNROLL for (int r = 0; r < TILE_ROWS; r++) finish(c, FORMAT, row + r, block, totals + r);
}
#endif

enum { TASK_BYTES = 48 * 1024, TASK_ROWS = 128 };
#define TASKS(c) ((c)->n_grains * (((c)->n_rows + TASK_ROWS - 1) / TASK_ROWS))

/* Computes rows top..end-1 of blocks first..last-1. It reads weights from memory once, and rows from the cache. */
INLINE void columns(const call *c, const int FORMAT, int first, int last, int top, int end) {
    int block = first;
#ifdef TILES
    int whole = FORMAT == BF16 ? top : end - (end - top) % TILE_ROWS;
    tiles_begin(QUADS(FORMAT) * 4);
    for (; block < last; block++)
        for (int row = top; row < whole; row += TILE_ROWS) slab(c, FORMAT, row, block);
    tiles_end();
    top = whole;
    block = first;
#endif
    for (; block + BROAD <= last; block += BROAD) {
        int row = top;
        for (; FORMAT == BF16 && row + 2 * TALL <= end; row += 2 * TALL)
            tile(c, FORMAT, 2 * TALL, BROAD, row, block, row == top ? BROAD : 0);
        for (; row + TALL <= end; row += TALL) tile(c, FORMAT, TALL, BROAD, row, block, row == top ? BROAD : 0);
        for (; TALL > 2 && BROAD > 1 && row + 2 <= end; row += 2) tile(c, FORMAT, 2, BROAD, row, block, row == top ? BROAD : 0);
        for (; row < end; row++)
            for (int b = 0; b < BROAD; b++) tile(c, FORMAT, 1, 1, row, block + b, row == top ? BROAD : 0);
    }
    for (; block < last; block++) {
        int row = top;
        for (; row + TALL <= end; row += TALL) tile(c, FORMAT, TALL, 1, row, block, row == top);
        for (; row < end; row++) tile(c, FORMAT, 1, 1, row, block, row == top);
    }
}

INLINE void products(const call *c, const int FORMAT, int task) {
    int first = task % c->n_grains * c->grain, last = first + c->grain < c->n_blocks ? first + c->grain : c->n_blocks;
    int row = task / c->n_grains * TASK_ROWS, end = row + TASK_ROWS < c->n_rows ? row + TASK_ROWS : c->n_rows;
    if (c->n_rows > 1) {
        columns(c, FORMAT, first, last, row, end);
        return;
    }
    for (; first + BROAD_ONE <= last; first += BROAD_ONE) tile(c, FORMAT, 1, BROAD_ONE, 0, first, BROAD_ONE);
    for (; first < last; first++) tile(c, FORMAT, 1, 1, 0, first, 1);
}

#define PRODUCTS(FORMAT) \
    static void products_##FORMAT(void *context, int task, int thread) { \
        const call *c = *(const call *const *)context; \
        (void)thread; \
        for (; task >= TASKS(c); c++) task -= TASKS(c); \
        products(c, FORMAT, task); \
    }
PRODUCTS(INT8)
PRODUCTS(Q8)
PRODUCTS(Q8_MIN)
PRODUCTS(Q4)
PRODUCTS(Q4_MIN)
PRODUCTS(BF16)

/* The first tasks compute u of adapters, the others convert activations. */
static void prepare_some(void *context, int task, int thread) {
    const call *c = *(const call *const *)context;
    int first = shrink_tasks(c);
    if (task < first) shrink_some(c, task);
    else quantize_some(context, task - first, thread);
}

static void expand_some(void *context, int task, int thread) {
    (void)thread;
    expand_task(*(const call *const *)context, task);
}

/* Adds what adapters give to the result of a call, whose u is computed. */
static void expand_all(const call *c) {
    if (c->n_runs) noria_parallel(expand_some, &c, expand_tasks(c));
}

void GLUE(multiply, VARIANT)(call *calls, int n, void *scratch) {
    static const task_fn by_format[] = {products_INT8, products_Q8, products_Q8_MIN, products_Q4, products_Q4_MIN, products_BF16};
    int format = (int)calls->w->format, group = QUADS(format) * 4, row_tasks = 0, tasks = 0;
    int64_t n_groups = (calls->w->n_in + group - 1) / group, n_rows = 0, at = 0;
    for (int i = 0; i < n; i++) n_rows += calls[i].n_rows;
    int8_t *q = scratch;
    float *scale = (float *)(q + n_rows * n_groups * group); /* what follows is unused for BF16 */
    for (call *c = calls; c < calls + n; at += c->n_rows * n_groups, c++) {
        c->group = group;
        c->n_groups = (int)n_groups;
        c->n_blocks = (int)((c->w->n_out + BLOCK - 1) / BLOCK);
        c->q = q + at * group * (format == BF16 ? FACTOR : 1);
        c->scale = scale + at;
        c->total = scale + n_rows * n_groups + at;
        c->zero = (int32_t *)scale + 2 * n_rows * n_groups + at;
        c->grain = balanced(c->n_blocks, TASK_BYTES / (c->n_groups * RECORD(format)), c->n_rows > 1 ? BROAD : 1);
        c->n_grains = (c->n_blocks + c->grain - 1) / c->grain;
        row_tasks += ROW_TASKS(c->n_rows);
        tasks += TASKS(c);
    }
    noria_parallel(prepare_some, &calls, shrink_tasks(calls) + row_tasks);
    noria_parallel(by_format[format], &calls, tasks);
    expand_all(calls);
}

void GLUE(adapted, VARIANT)(const weights *w, const float *x, int64_t n_rows, int64_t kind, const float *norm, float eps,
                            float *y, int64_t add, const lora_rows *runs, int64_t n_runs, int64_t target, void *scratch) {
    call c = {.w = w, .x = x, .norm = norm, .y = y, .eps = eps, .kind = (int)kind, .add = (int)add, .n_rows = (int)n_rows,
              .runs = runs, .n_runs = (int)n_runs, .target = target};
    GLUE(multiply, VARIANT)(&c, 1, scratch);
}

void EXPORT(linear)(const weights *w, const float *x, int64_t n_rows, int64_t kind, const float *norm, float eps, float *y,
                    int64_t add, void *scratch) {
    GLUE(adapted, VARIANT)(w, x, n_rows, kind, norm, eps, y, add, 0, 0, 0, scratch);
}

void EXPORT(adapt)(const float *x, int64_t n_in, int64_t kind, const float *norm, float eps, float *y, int64_t n_rows,
                   int64_t n_out, const lora_rows *runs, int64_t n_runs) {
    weights w = {.n_in = n_in, .n_out = n_out};
    call c = {.w = &w, .x = x, .norm = norm, .y = y, .eps = eps, .kind = (int)kind, .n_rows = (int)n_rows, .runs = runs,
              .n_runs = (int)n_runs};
    const call *calls = &c;
    noria_parallel(prepare_some, &calls, shrink_tasks(&c));
    expand_all(&c);
}
