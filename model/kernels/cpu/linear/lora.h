/* LoRA adapters (arXiv 2106.09685): y += B (A f(x)) for the rows of a step that have one, beside the base's product.
 *
 * u = A f(x) is computed while the base's activations are converted, as tasks of the same job. B u is added in a job of
 * its own after the base's product: a separate pass keeps the base's matrix one long read, which is faster.
 *
 * Factors are bfloat16: both of them if the processor multiplies pairs, else only the weights. Sums are float. Each
 * entry of u is one chain of additions over vectors of channels, whose lanes are then added in a fixed order. Each
 * output of B u is one chain over its ranks. A row's bits therefore depend on that row and its adapter alone.
 */
#pragma once
#include "linear/activations.h"

#define F(name) FIELD(lora, name)
FIELDS(lora, F(a), F(b), F(begins), F(firsts), F(rank), F(n_groups), F(n_blocks));
#undef F
#define F(name) FIELD(lora_rows, name)
FIELDS(lora_rows, F(targets), F(rows), F(u), F(n_rows));
#undef F

/* A tile of u is LORA_ROWS rows by LORA_TILE ranks. A task is LORA_ROWS rows by LORA_TASK ranks, and converts
 * LORA_CHANNELS channels at once. VECTOR channels fill a vector of factors. */
enum { LORA_ROWS = 2, LORA_TILE = LANES == 16 ? LORA_PAD : 4, LORA_TASK = 32, LORA_CHANNELS = 2048, VECTOR = WIDTH / FACTOR };

#define LORA_TASKS(run, l) \
    ((int)((((run)->n_rows + LORA_ROWS - 1) / LORA_ROWS) * (((l)->rank + LORA_TASK - 1) / LORA_TASK)))

/* acc plus the products of VECTOR factors with VECTOR weights. */
INLINE vf add_channels(vf acc, vf x, const uint16_t *w) {
#if defined(__AVX512BF16__)
    return (vf)_mm512_dpbf16_ps((__m512)acc, (__m512bh)load(w), (__m512bh)x);
#else
    typedef uint16_t half __attribute__((vector_size(WIDTH / 2)));
    half h;
    memcpy(&h, w, sizeof h);
    return fused(x, (vf)(__builtin_convertvector(h, vi) << 16), acc);
#endif
}

INLINE const float *lora_input(const call *c, const lora_rows *run, int64_t i) {
    return c->x + run->rows[i] * c->x_stride;
}

/* Adds n channels to the sums of ROWS rows and LORA_TILE ranks. `x` are their factors, `a` the weights of channel 0. */
INLINE void shrink_tile(const int ROWS, vf acc[][LORA_TASK], float x[][LORA_CHANNELS], int n, const uint16_t *a) {
    vf totals[LORA_ROWS][LORA_TILE];
    UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int k = 0; k < LORA_TILE; k++) totals[r][k] = acc[r][k];
    for (int i = 0; i < n; i += VECTOR) {
        const uint16_t *w = a + i / LORA_GROUP * LORA_GROUP * LORA_PAD + i % LORA_GROUP;
        vf v[LORA_ROWS];
        UNROLL for (int r = 0; r < ROWS; r++) v[r] = load((char *)x[r] + i * FACTOR);
        UNROLL for (int k = 0; k < LORA_TILE; k++) UNROLL for (int r = 0; r < ROWS; r++)
            totals[r][k] = add_channels(totals[r][k], v[r], w + k * LORA_GROUP);
    }
    UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int k = 0; k < LORA_TILE; k++) acc[r][k] = totals[r][k];
}

/* Writes the sums of n ranks as factors. */
INLINE void store_sums(char *u, const vf *acc, int n) {
    float sums[LORA_TASK] = {0};
    char factors[LORA_TASK * FACTOR];
    for (int k = 0; k < n; k++) sums[k] = sum(acc[k]);
    for (int k = 0; k < LORA_TASK; k += LANES) store_factors(factors + k * FACTOR, load(sums + k));
    memcpy(u, factors, (size_t)n * FACTOR);
}

/* Entries first..first+n_ranks-1 of u, of rows i..i+ROWS-1 of a run. */
INLINE void shrink(const call *c, const int ROWS, const lora_rows *run, const lora *l, int64_t i, int first, int n_ranks) {
    const int64_t n_channels = l->n_groups * LORA_GROUP;
    vf acc[LORA_ROWS][LORA_TASK];
    float x[LORA_ROWS][LORA_CHANNELS], factors[LORA_ROWS];
    for (int r = 0; r < ROWS; r++) {
        factors[r] = c->kind == NORMED ? inverse_rms(lora_input(c, run, i + r), (int)c->w->n_in, c->eps) : 1;
        for (int k = 0; k < n_ranks; k++) acc[r][k] = splat(0);
    }
    for (int64_t at = 0; at < n_channels; at += LORA_CHANNELS) {
        int n = n_channels - at < LORA_CHANNELS ? (int)(n_channels - at) : LORA_CHANNELS;
        for (int r = 0; r < ROWS; r++)
            for (int j = 0; j < n; j += LANES)
                store_factors((char *)x[r] + j * FACTOR, any_channel(c, lora_input(c, run, i + r), (int)at + j, factors[r]));
        for (int k = 0; k < n_ranks; k += LORA_TILE) {
            int64_t rank = first + k;
            const uint16_t *a = l->a + (rank - rank % LORA_PAD) * n_channels + at * LORA_PAD + rank % LORA_PAD * LORA_GROUP;
            vf(*some)[LORA_TASK] = (vf(*)[LORA_TASK])(acc[0] + k);
            shrink_tile(ROWS, some, x, n, a);
        }
    }
    for (int r = 0; r < ROWS; r++) store_sums((char *)run->u + ((i + r) * l->rank + first) * FACTOR, acc[r], n_ranks);
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
    int parts = (int)(l->rank + LORA_TASK - 1) / LORA_TASK, first = task % parts * LORA_TASK;
    int n_ranks = l->rank - first < LORA_TASK ? (int)l->rank - first : LORA_TASK;
    int64_t i = task / parts * LORA_ROWS;
    if (i + LORA_ROWS <= run->n_rows) shrink(c, LORA_ROWS, run, l, i, first, n_ranks);
    else shrink(c, 1, run, l, i, first, n_ranks);
}

enum { EXPAND_ROWS = 4 };

/* y += B u for rows i..i+ROWS-1 of a run and one block of outputs. */
INLINE void expand_tile(const call *c, const int ROWS, const lora_rows *run, const lora *l, int64_t i, int block) {
    enum { VECTORS = LORA_BLOCK / LANES };
    const char *b = (const char *)l->b + (int64_t)l->begins[block] * LORA_BLOCK * 4;
    const char *u = (const char *)run->u + (i * l->rank + l->firsts[block]) * FACTOR;
    int n_pairs = l->begins[block + 1] - l->begins[block];
    vf totals[EXPAND_ROWS][VECTORS];
    UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int v = 0; v < VECTORS; v++) totals[r][v] = splat(0);
    for (int k = 0; k < n_pairs; k++, b += LORA_BLOCK * 4, u += 2 * FACTOR)
        UNROLL for (int v = 0; v < VECTORS; v++) UNROLL for (int r = 0; r < ROWS; r++)
            totals[r][v] = add_pair(totals[r][v], load_int(b + v * WIDTH), (const float *)(u + r * l->rank * FACTOR), 1);
    UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int v = 0; v < VECTORS; v++) {
        int n = block * LORA_BLOCK + v * LANES, left = (int)c->w->n_out - n;
        float *y = c->y + run->rows[i + r] * c->y_stride + n;
        if (left >= LANES) {
            store(y, load(y) + totals[r][v]);
        } else if (left > 0) {
            vf value = load_some(y, left) + totals[r][v];
            memcpy(y, &value, (size_t)left * 4);
        }
    }
}

/* y += B u for all rows of a run and blocks first..last-1. */
static void expand(const call *c, const lora_rows *run, int first, int last) {
    const lora *l = run->targets + c->target;
    for (int block = first; block < last; block++) {
        int64_t i = 0;
        if (l->begins[block] == l->begins[block + 1]) continue;
        for (; i + EXPAND_ROWS <= run->n_rows; i += EXPAND_ROWS) expand_tile(c, EXPAND_ROWS, run, l, i, block);
        for (; i < run->n_rows; i++) expand_tile(c, 1, run, l, i, block);
    }
}

/* Number of blocks in a task. Where there are enough runs, a task has all blocks: B then comes from memory in order. */
INLINE int expand_grain(const call *c, const lora_rows *run) {
    int n = (int)run->targets[c->target].n_blocks;
    return run->n_rows <= EXPAND_ROWS && c->n_runs >= 2 * noria_thread_count() ? n : balanced(n, n, 1);
}

INLINE int run_tasks(const call *c, const lora_rows *run) {
    const lora *l = run->targets + c->target;
    int grain = l->rank ? expand_grain(c, run) : 1;
    return l->rank ? ((int)l->n_blocks + grain - 1) / grain : 0;
}

static int expand_tasks(const call *c) {
    int n = 0;
    for (int i = 0; i < c->n_runs; i++) n += run_tasks(c, c->runs + i);
    return n;
}

static void expand_task(const call *c, int task) {
    const lora_rows *run = c->runs;
    for (; task >= run_tasks(c, run); run++) task -= run_tasks(c, run);
    int grain = expand_grain(c, run), n = (int)run->targets[c->target].n_blocks;
    expand(c, run, task * grain, (task + 1) * grain < n ? (task + 1) * grain : n);
}
