/* What callers of latent.c must know. */
#pragma once
#include "attention/attention.h"
#include "linear/linear.h"

/* Latent attention of a layer (MLA). Without wq_a, wq_b makes queries of the input. `absorb` and `values` have entries
 * for each head: they take its query, without the channels that rotate, to latent channels, and a latent to a value. */
typedef struct {
    const float *q_a_norm, *kv_a_norm;
    const weights *wq_a, *wq_b, *wkv_a;
    const weights *const *absorb, *const *values;
} latent_t;

/* Memory for all layers: a row's low-rank queries, its queries, its latent and key, and the values of its heads. */
typedef struct {
    float *q_a, *q, *kv, *values;
} latent_rows;

INLINE int64_t rank_of(const latent_t *l) { return l->wq_a ? l->wq_a->n_out : 0; }

/* Makes `qkv` of the attention: queries in the channels of latents, then the key. */
void GLUE(latent_queries, VARIANT)(const latent_t *l, const float *x, const float *norm, float eps, const attention_call *a,
                                   const latent_rows *rows, arena *scratch);

/* Makes the values [n_rows, n_heads * width] of what the attention gave. */
void GLUE(latent_values, VARIANT)(const latent_t *l, const attention_call *a, const latent_rows *rows, arena *scratch);
