/* y = W x with 8-bit weights and activations.
 *
 * Weights: bytes w + 128 (|w| <= 127) packed [N/16][K/64][16 quads][16 outputs][4], one scale an output; a packed
 * group of 1024 bytes is also what a B tile of AMX looks like. Activations: signed bytes with one scale for each row
 * and group of 64 channels. Sums within a group are exact integers; groups are added in float, in order, by the same
 * operations however many rows there are: what a row gives depends on that row alone.
 */
#include "pool.h"
#include "vectors.h"
#include <stdlib.h>

enum { GROUP = 64, QUADS = GROUP / 4, BLOCK = 16, PACKED = GROUP * BLOCK, VECTORS = BLOCK / LANES };
enum { PLAIN, NORMED, GATED };

/* Padded to whole groups and blocks, `scales` too. */
typedef struct {
    const uint8_t *packed;
    const float *scales;
    int64_t n_out, n_in;
} weights;

typedef struct {
    const weights *w;
    const float *x, *norm;
    float *y;
    float eps;
    int kind, add, n_rows, n_groups, n_blocks, grain, n_grains;
    int8_t *q;
    float *scale;
    int32_t *offset;
} call;

/* ---- rows to bytes ------------------------------------------------------------------------------------------- */

/* 1 / rms of a row: lanes are summed in a fixed order. */
static float inverse_rms(const float *x, int n, float eps) {
    vf total = {0};
    for (int i = 0; i < n; i += LANES) {
        vf v = i + LANES <= n ? load(x + i) : load_some(x + i, n - i);
        total = fused(v, v, total);
    }
    return 1.0f / sqrtf(sum(total) / (float)n + eps);
}

/* Channels i.. of a row as the kind says; 0 beyond the row's end. */
INLINE vf channel(const call *c, const float *x, int i, float factor) {
    int n = (int)c->w->n_in, whole = i + LANES <= n, some = n - i;
    if (some <= 0) return splat(0);
    vf v = whole ? load(x + i) : load_some(x + i, some);
    if (c->kind == NORMED) return v * splat(factor) * (whole ? load(c->norm + i) : load_some(c->norm + i, some));
    if (c->kind == GATED) {
        vf up = whole ? load(x + n + i) : load_some(x + n + i, some);
        return v / (splat(1) + exponential(-v)) * up;
    }
    return v;
}

static void quantize_row(const call *c, int row) {
    int n = (int)c->w->n_in;
    const float *x = c->x + (int64_t)row * n * (c->kind == GATED ? 2 : 1);
    float factor = c->kind == NORMED ? inverse_rms(x, n, c->eps) : 1;
    for (int g = 0; g < c->n_groups; g++) {
        vf v[GROUP / LANES], most = {0};
        for (int i = 0; i < GROUP / LANES; i++) {
            v[i] = channel(c, x, g * GROUP + i * LANES, factor);
            most = larger(absolute(v[i]), most);
        }
        float amax = largest(most), inverse = amax > 1e-30f ? 127.0f / amax : 0;
        int64_t at = (int64_t)row * c->n_groups + g;
        vi total = {0};
        for (int i = 0; i < GROUP / LANES; i++) {
            vi q = nearest(v[i] * splat(inverse));
            vb bytes = __builtin_convertvector(q, vb);
            memcpy(c->q + at * GROUP + i * LANES, &bytes, sizeof bytes);
            total += q;
        }
        int32_t s = 0;
        for (int i = 0; i < LANES; i++) s += total[i];
        c->scale[at] = inverse == 0 ? 0 : amax / 127.0f;
        c->offset[at] = -OFFSET * s;
    }
}

enum { ROWS_A_TASK = 8 };

static void quantize_some(void *context, int task, int thread) {
    const call *c = context;
    (void)thread;
    for (int row = task * ROWS_A_TASK; row < c->n_rows && row < (task + 1) * ROWS_A_TASK; row++) quantize_row(c, row);
}

/* ---- products ------------------------------------------------------------------------------------------------ */

INLINE void finish(const call *c, int row, int block, const vf *totals) {
    const weights *w = c->w;
    for (int v = 0; v < VECTORS; v++) {
        int n = block * BLOCK + v * LANES, left = (int)w->n_out - n;
        if (left <= 0) return;
        float *y = c->y + (int64_t)row * w->n_out + n;
        vf value = totals[v] * load(w->scales + n);
        if (left >= LANES) {
            store(y, c->add ? load(y) + value : value);
            continue;
        }
        if (c->add) value += load_some(y, left);
        memcpy(y, &value, (size_t)left * 4);
    }
}

/* R rows times C blocks of 16 outputs; R and C are constants after inlining. */
INLINE void tile(const call *c, const int R, const int C, int row, int block) {
    const int V = C * VECTORS, G = c->n_groups;
    const uint8_t *w = c->w->packed + (int64_t)block * G * PACKED;
    const int8_t *x = c->q + (int64_t)row * G * GROUP;
    const float *scale = c->scale + (int64_t)row * G;
    const int32_t *offset = c->offset + (int64_t)row * G;
    vf totals[4][4 * VECTORS];
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) totals[r][v] = splat(0);
    for (int g = 0; g < G; g++) {
        vi acc[4][4 * VECTORS];
        UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++) acc[r][v] = splat_int(offset[r * G + g]);
        for (int q = 0; q < QUADS; q++) {
            quads part[4 * VECTORS];
            UNROLL for (int v = 0; v < V; v++)
                part[v] = load_quads(w + ((int64_t)(v / VECTORS) * G + g) * PACKED + q * 64 + v % VECTORS * WIDTH);
            UNROLL for (int r = 0; r < R; r++) {
                int32_t four;
                memcpy(&four, x + ((int64_t)r * G + g) * GROUP + q * 4, 4);
                UNROLL for (int v = 0; v < V; v++) acc[r][v] = dot(acc[r][v], part[v], four);
            }
        }
        UNROLL for (int r = 0; r < R; r++) UNROLL for (int v = 0; v < V; v++)
            totals[r][v] = fused(__builtin_convertvector(acc[r][v], vf), splat(scale[r * G + g]), totals[r][v]);
    }
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int b = 0; b < C; b++) finish(c, row + r, block + b, totals[r] + b * VECTORS);
}

/* Tiles that fill the registers there are. */
#if defined(__AVX512VNNI__)
enum { TALL = 4, BROAD = 2, BROAD_ONE = 4 };
#elif defined(__AVX2__)
enum { TALL = 2, BROAD = 1, BROAD_ONE = 2 };
#else
enum { TALL = 1, BROAD = 1, BROAD_ONE = 1 };
#endif

static __attribute__((noinline)) void tall(const call *c, int row, int block) { tile(c, TALL, BROAD, row, block); }
static __attribute__((noinline)) void flat(const call *c, int row, int block) { tile(c, 1, BROAD_ONE, row, block); }
static __attribute__((noinline)) void two(const call *c, int row, int block) { tile(c, 2, BROAD, row, block); }
static __attribute__((noinline)) void single(const call *c, int row, int block) { tile(c, 1, 1, row, block); }
static __attribute__((noinline)) void column(const call *c, int row, int block) { tile(c, TALL, 1, row, block); }

enum { TASK_BYTES = 48 * 1024, TASK_ROWS = 128 };

/* Rows top..end-1 of blocks first..last-1: weights come from memory once, rows from the cache. */
static void columns(const call *c, int first, int last, int top, int end) {
    int block = first;
    for (; block + BROAD <= last; block += BROAD) {
        int row = top;
        for (; row + TALL <= end; row += TALL) tall(c, row, block);
        for (; TALL > 2 && BROAD > 1 && row + 2 <= end; row += 2) two(c, row, block);
        for (; row < end; row++)
            for (int b = 0; b < BROAD; b++) single(c, row, block + b);
    }
    for (; block < last; block++) {
        int row = top;
        for (; row + TALL <= end; row += TALL) column(c, row, block);
        for (; row < end; row++) single(c, row, block);
    }
}

static void products(void *context, int task, int thread) {
    const call *c = context;
    int first = task % c->n_grains * c->grain, last = first + c->grain < c->n_blocks ? first + c->grain : c->n_blocks;
    int row = task / c->n_grains * TASK_ROWS, end = row + TASK_ROWS < c->n_rows ? row + TASK_ROWS : c->n_rows;
    (void)thread;
    if (c->n_rows > 1) {
        columns(c, first, last, row, end);
        return;
    }
    for (; first + BROAD_ONE <= last; first += BROAD_ONE) flat(c, 0, first);
    for (; first < last; first++) single(c, 0, first);
}

/* y [n_rows, n_out] = or += W f(x), f by kind: x [n_rows, n_in] itself, its RMSNorm (scale `norm`), or
 * silu(gate) * up of x [n_rows, 2 n_in]. `scratch` holds 72 bytes for each row and group. */
void EXPORT(linear)(const weights *w, const float *x, int64_t n_rows, int64_t kind, const float *norm, float eps, float *y,
                    int64_t add, void *scratch) {
    call c = {.w = w, .x = x, .norm = norm, .y = y, .eps = eps, .kind = (int)kind, .add = (int)add, .n_rows = (int)n_rows};
    c.n_groups = (int)((w->n_in + GROUP - 1) / GROUP);
    c.n_blocks = (int)((w->n_out + BLOCK - 1) / BLOCK);
    int64_t total = n_rows * c.n_groups;
    c.q = scratch;
    c.scale = (float *)(c.q + total * GROUP);
    c.offset = (int32_t *)(c.scale + total);
    noria_parallel(quantize_some, &c, (int)((n_rows + ROWS_A_TASK - 1) / ROWS_A_TASK));
    c.grain = TASK_BYTES / (c.n_groups * PACKED) / 4 * 4;
    if (c.grain < 4) c.grain = 4;
    c.n_grains = (c.n_blocks + c.grain - 1) / c.grain;
    noria_parallel(products, &c, c.n_grains * ((c.n_rows + TASK_ROWS - 1) / TASK_ROWS));
}
