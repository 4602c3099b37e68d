/* LoRA adapters (arXiv 2106.09685): y += B (A f(x)) for the rows of a step that have one, beside the base's product.
 *
 * u = A f(x) is computed while the base's activations are converted, as tasks of the same job. The task that computes
 * outputs of the base's product then adds B u to them. There is no further pass over the threads. Weights are bfloat16
 * and all else is float. Each entry of u is one chain of additions over vectors of channels, whose lanes are then summed
 * in a fixed order. Each output of B u is one chain over its ranks. A row's bits depend on that row and its adapter alone.
 */
#pragma once
#include "linear/activations.h"

#define F(name) FIELD(lora, name)
MIRRORED(lora, F(a), F(b), F(begins), F(firsts), F(rank), F(stride), F(n_blocks));
#undef F
#define F(name) FIELD(lora_rows, name)
MIRRORED(lora_rows, F(targets), F(rows), F(u), F(n_rows));
#undef F

/* Rows of a tile; ranks of a tile with one row and with several; ranks of a task; channels that are converted at once. */
enum { LORA_ROWS = LANES == 16 ? 4 : 2, LORA_FEW = 4, LORA_RANKS = 32, LORA_CHANNELS = 256 };

#define LORA_TASKS(run, l) \
    ((int)((((run)->n_rows + LORA_ROWS - 1) / LORA_ROWS) * (((l)->rank + LORA_RANKS - 1) / LORA_RANKS)))

/* LANES values of bfloat16. */
INLINE vf load_bfloat16(const uint16_t *p) {
    typedef uint16_t half __attribute__((vector_size(WIDTH / 2)));
    half h;
    memcpy(&h, p, sizeof h);
    return (vf)(__builtin_convertvector(h, vi) << 16);
}

INLINE const float *lora_input(const call *c, const lora_rows *run, int64_t i) {
    return c->x + run->rows[i] * c->w->n_in * (c->kind == GATED ? 2 : 1);
}

/* Adds n channels to the sums of ROWS rows and RANKS ranks. `x` are the converted channels. */
INLINE void shrink_tile(const int ROWS, const int RANKS, vf acc[][LORA_RANKS], float x[][LORA_CHANNELS], int n,
                        const uint16_t *a, int64_t stride, int row, int rank) {
    vf totals[LORA_ROWS][LORA_RANKS];
    UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int k = 0; k < RANKS; k++) totals[r][k] = acc[row + r][rank + k];
    for (int i = 0; i < n; i += LANES) {
        vf v[LORA_ROWS];
        UNROLL for (int r = 0; r < ROWS; r++) v[r] = load(x[row + r] + i);
        UNROLL for (int k = 0; k < RANKS; k++) {
            vf w = load_bfloat16(a + (rank + k) * stride + i);
            UNROLL for (int r = 0; r < ROWS; r++) totals[r][k] = fused(v[r], w, totals[r][k]);
        }
    }
    UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int k = 0; k < RANKS; k++) acc[row + r][rank + k] = totals[r][k];
}

/* Entries first..first+n_ranks-1 of u, of rows i..i+n-1 of a run. n_ranks is a multiple of LORA_PAD. */
static void shrink(const call *c, const lora_rows *run, const lora *l, int64_t i, int n, int first, int n_ranks) {
    vf acc[LORA_ROWS][LORA_RANKS];
    float x[LORA_ROWS][LORA_CHANNELS], factors[LORA_ROWS];
    for (int r = 0; r < n; r++) {
        factors[r] = c->kind == NORMED ? inverse_rms(lora_input(c, run, i + r), (int)c->w->n_in, c->eps) : 1;
        for (int k = 0; k < n_ranks; k++) acc[r][k] = splat(0);
    }
    for (int at = 0; at < l->stride; at += LORA_CHANNELS) {
        int some = l->stride - at < LORA_CHANNELS ? (int)l->stride - at : LORA_CHANNELS;
        const uint16_t *a = l->a + first * l->stride + at;
        for (int r = 0; r < n; r++) {
            const float *from = lora_input(c, run, i + r);
            for (int j = 0; j < some; j += LANES) store(x[r] + j, channel(c, from, at + j, factors[r]));
        }
        if (n == LORA_ROWS)
            for (int k = 0; k < n_ranks; k += LORA_FEW) shrink_tile(LORA_ROWS, LORA_FEW, acc, x, some, a, l->stride, 0, k);
        else
            for (int k = 0; k < n_ranks; k += LORA_PAD)
                for (int r = 0; r < n; r++) shrink_tile(1, LORA_PAD, acc, x, some, a, l->stride, r, k);
    }
    for (int r = 0; r < n; r++)
        for (int k = 0; k < n_ranks; k++) run->u[(i + r) * l->rank + first + k] = sum(acc[r][k]);
}

/* Number of tasks that compute u for all rows of a call. */
static int shrink_tasks(const call *c) {
    int n = 0;
    for (int i = 0; i < c->n_runs; i++) n += LORA_TASKS(c->runs + i, c->runs[i].targets + c->target);
    return n;
}

static void shrink_some(const call *c, int task) {
    const lora_rows *run = c->runs;
    for (; task >= LORA_TASKS(run, run->targets + c->target); run++) task -= LORA_TASKS(run, run->targets + c->target);
    const lora *l = run->targets + c->target;
    int chunks = (int)(l->rank + LORA_RANKS - 1) / LORA_RANKS, first = task % chunks * LORA_RANKS;
    int64_t row = task / chunks * LORA_ROWS, left = run->n_rows - row, ranks = l->rank - first;
    shrink(c, run, l, row, left < LORA_ROWS ? (int)left : LORA_ROWS, first, ranks < LORA_RANKS ? (int)ranks : LORA_RANKS);
}

/* y += B u for rows i..i+ROWS-1 of a run and one block of outputs. */
INLINE void expand_tile(const call *c, const int ROWS, const lora_rows *run, const lora *l, int64_t i, int block) {
    enum { VECTORS = LORA_BLOCK / LANES };
    const uint16_t *b = l->b + (int64_t)l->begins[block] * LORA_BLOCK;
    const float *u = run->u + i * l->rank + l->firsts[block];
    int n_ranks = l->begins[block + 1] - l->begins[block];
    vf totals[LORA_ROWS][VECTORS];
    UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int v = 0; v < VECTORS; v++) totals[r][v] = splat(0);
    for (int k = 0; k < n_ranks; k++, b += LORA_BLOCK)
        UNROLL for (int v = 0; v < VECTORS; v++) {
            vf w = load_bfloat16(b + v * LANES);
            UNROLL for (int r = 0; r < ROWS; r++) totals[r][v] = fused(splat(u[r * l->rank + k]), w, totals[r][v]);
        }
    UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int v = 0; v < VECTORS; v++) {
        int n = block * LORA_BLOCK + v * LANES, left = (int)c->w->n_out - n;
        if (left <= 0) break;
        float *y = c->y + run->rows[i + r] * c->w->n_out + n;
        vf value = totals[r][v] + (left >= LANES ? load(y) : load_some(y, left));
        memcpy(y, &value, (size_t)(left >= LANES ? LANES : left) * 4);
    }
}

/* Adds what adapters give to rows top..end-1 of blocks first..last-1, which the base's product has written. */
static void expand(const call *c, int first, int last, int top, int end) {
    for (const lora_rows *run = c->runs; run < c->runs + c->n_runs; run++) {
        const lora *l = run->targets + c->target;
        int64_t begin = 0, stop;
        int end_block = last < l->n_blocks ? last : (int)l->n_blocks;
        if (!l->rank) continue;
        while (begin < run->n_rows && run->rows[begin] < top) begin++;
        for (stop = begin; stop < run->n_rows && run->rows[stop] < end;) stop++;
        for (int block = first; block < end_block; block++) {
            int64_t i = begin;
            if (l->begins[block] == l->begins[block + 1]) continue;
            for (; i + LORA_ROWS <= stop; i += LORA_ROWS) expand_tile(c, LORA_ROWS, run, l, i, block);
            for (; i < stop; i++) expand_tile(c, 1, run, l, i, block);
        }
    }
}
