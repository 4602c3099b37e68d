/* What callers of network.c must know. */
#pragma once
#include "attention/attention.h"
#include "linear/experts.h"
#include "step/latent.h"

/* One layer. `pool` is an index of `pools`; the pointers are arguments of the functions below. A layer has `experts`,
 * or w13 and w2; and `latent`, or wqkv. */
typedef struct {
    const float *attention_norm, *ffn_norm;
    const weights *wqkv, *wo, *w13, *w2;
    const experts_t *experts;
    const latent_t *latent;
    char *cells;
    int64_t pool;
} layer;

/* Entries of an adapter for one layer, in the order of `lora_rows.targets`. The head comes after all layers. */
enum { WQKV, WO, W13, W2, TARGETS };

/* The ranks that share layers. An attention or a feed-forward writes what this rank has of its output to `part`
 * [n_rows, dim]. The calling thread then calls `join`, which adds the parts of all ranks to x. It returns 0, or another
 * number if it could not. A process that shares no layer has no `part`. */
typedef struct {
    float *part;
    int64_t (*join)(void);
} ranks_t;

/* Replaces x [n_rows, dim]. `pools` have all arguments of the attention but `cells`. gate_up is [n_rows, 2 hidden_dim];
 * `rows` are memory for latent attention, `runs` are the rows with adapters; a layer with experts has none for w13 and
 * w2. Returns 0, or what `join` returned where it failed. */
int64_t GLUE(network, VARIANT)(const layer *layers, int64_t n_layers, attention_call *pools, float *x, int64_t n_rows, float eps,
                               float *gate_up, const latent_rows *rows, const lora_rows *runs, int64_t n_runs, ranks_t ranks,
                               arena *scratch);
