/* What callers of experts.c must know. */
#pragma once
#include "linear/linear.h"

/* A block of sparse experts. `gate` is [n_experts, dim]. w13 and w2 have an entry for each expert; all w13 have one
 * size, and all w2. They are null for an expert that is not here: its output is left out. Shared experts
 * are one more feed-forward, or null. */
typedef struct {
    const float *gate;
    const weights *const *w13, *const *w2;
    const weights *shared_w13, *shared_w2;
    int64_t n_experts, n_used;
    float routed_scale;
} experts_t;

/* y [n_rows, dim] += the block over RMSNorm(x) (scale `norm`), or over x itself without `norm`. y may be x. */
void GLUE(sparse, VARIANT)(const experts_t *e, const float *x, int64_t n_rows, const float *norm, float eps, float *y,
                           arena *scratch);

/* The same; returns what `linear` does. */
int64_t EXPORT(experts)(const experts_t *e, const float *x, int64_t n_rows, const float *norm, float eps, float *y,
                        void *memory, int64_t n_bytes);
