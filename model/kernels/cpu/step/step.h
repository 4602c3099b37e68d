/* The arguments of a step. */
#pragma once
#include "step/network.h"
#include "step/sample.h"

/* A pool of pages. `rotations` [n_positions, rope_dim] and `q_factors` [n_positions], or null, are those of its layers.
 * window 0 is full attention. */
typedef struct {
    const float *rotations, *q_factors;
    int64_t window;
} pool_t;

/* A LoRA adapter: its entries for each projection of the network, then the head; and its greatest rank. */
typedef struct {
    const lora *targets;
    int64_t rank;
} adapter_t;

/* A network, or a stage of one, with its pages and its head; `latent` is its attention's latent width. Nothing in it
 * changes. `embeddings` [n_tokens, dim] are floats of `embedding_kind`. A stage may have no `embeddings`, or no `norm`
 * and `head`. `kind` is the cache's format. */
typedef struct {
    const void *embeddings;
    const layer *layers;
    const pool_t *pools;
    const float *norm;
    const weights *head;
    int64_t n_layers, n_pools, n_positions, n_tokens, dim, hidden_dim, n_heads, n_kv_heads, head_dim, latent, kind,
        embedding_kind;
    float eps;
} network_t;

/* A step. A slice is a row of `slices`: start, stop, the number of last rows after which a token is sampled, and the
 * index of its adapter, or -1; then for each pool the first block of its table and the number of its pages. `pages` are
 * those of all slices in the first pool, then those in the second. `tokens` has all rows; null: x has the layers'
 * inputs. Rows `embedded_rows` get the embeddings `embedded` [n_embedded_rows, dim] in place of their tokens'.
 * `sampling` has an entry for each token to sample, or is null: then none is. Logits: `block_rows` at once. Ranks that
 * share layers have `part` and `join`, see ranks_t. */
typedef struct {
    const int64_t *slices, *tokens, *pages;
    const params *sampling;
    const adapter_t *adapters;
    const int64_t *embedded_rows;
    const float *embedded;
    float *x;         /* hidden states [rows, dim] after the last layer */
    int64_t *sampled; /* tokens, as `sample` gives them */
    float *part;
    int64_t (*join)(void);
    int64_t n_slices, n_adapters, n_embedded_rows, block_rows;
} step_t;

/* What `step` returns if it did nothing: a slice has no page; a token, position, adapter or row of an image does not
 * exist; or, after the layers, if there was no memory to sample. NOT_JOINED: it ended where `join` failed. */
enum { DONE = 0, NO_PAGE = -1, OUTSIDE = -2, NO_MEMORY = -3, NOT_JOINED = -4 };
