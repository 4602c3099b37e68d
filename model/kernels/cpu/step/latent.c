/* Products around latent attention in the absorbed form: what a head's key or value would be is never made. A row's
 * bits depend on that row alone, as those of linear.c do. */
#include "step/latent.h"
#include "linear/calls.h"

#define F(name) FIELD(latent_t, name)
FIELDS(latent_t, F(q_a_norm), F(kv_a_norm), F(wq_a), F(wq_b), F(wkv_a), F(absorb), F(values));
#undef F

/* The products of all heads. A row of x has x_row floats, the heads side by side; in y they are y_head floats apart. */
static void multiply_heads(call *calls, const weights *const *w, const attention_call *a, const float *x, int64_t x_row, float *y,
                           int64_t y_head, int64_t y_row, arena *scratch) {
    for (int64_t h = 0; h < a->n_heads; h++)
        calls[h] = (call){.w = w[h], .x = x + h * (x_row / a->n_heads), .x_stride = x_row, .y = y + h * y_head, .y_stride = y_row,
                          .kind = PLAIN, .n_rows = (int)a->n_rows};
    GLUE(multiply, VARIANT)(calls, (int)a->n_heads, scratch);
}

typedef struct {
    const latent_t *l;
    const attention_call *a;
    const latent_rows *rows;
    float eps;
} placing;

/* Copies the rotating channels to the queries of some rows, and makes their keys: normed latent, then the others. */
static void place_some(void *context, int task, int thread) {
    const placing *p = context;
    const attention_call *a = p->a;
    const int64_t rope = rope_dim(a), head = p->l->absorb[0]->n_in + rope, latent = a->latent;
    for (int64_t row = task * ROWS_A_TASK; row < a->n_rows && row < (task + 1) * ROWS_A_TASK; row++) {
        const float *q = p->rows->q + row * a->n_heads * head + head - rope, *kv = p->rows->kv + row * a->head_dim;
        float *to = (float *)a->qkv + row * row_floats(a);
        for (int64_t h = 0; h < a->n_heads; h++)
            memcpy(to + h * a->head_dim + latent, q + h * head, (size_t)rope * 4);
        float *key = to + a->n_heads * a->head_dim;
        const vf factor = splat(inverse_rms(kv, (int)latent, p->eps));
        memcpy(key, kv, (size_t)a->head_dim * 4);
        for (int64_t d = 0; d < latent; d += LANES) {
            const int left = (int)least_of(LANES, latent - d);
            vf v = load_row(kv, (int)latent, (int)d) * factor * load_row(p->l->kv_a_norm, (int)latent, (int)d);
            memcpy(key + d, &v, (size_t)left * 4);
        }
    }
}

void GLUE(latent_queries, VARIANT)(const latent_t *l, const float *x, const float *norm, float eps, const attention_call *a,
                                   const latent_rows *rows, arena *scratch) {
    const int64_t n = a->n_rows, q = l->wq_b->n_out;
    call calls[a->n_heads];
#define PRODUCT(w, x, norm, y) GLUE(adapted, VARIANT)(w, x, n, NORMED, norm, eps, y, 0, 0, 0, 0, 0, scratch)
    PRODUCT(l->wkv_a, x, norm, rows->kv);
    if (l->wq_a) PRODUCT(l->wq_a, x, norm, rows->q_a);
    PRODUCT(l->wq_b, l->wq_a ? rows->q_a : x, l->wq_a ? l->q_a_norm : norm, rows->q);
#undef PRODUCT
    multiply_heads(calls, l->absorb, a, rows->q, q, (float *)a->qkv, a->head_dim, row_floats(a), scratch);
    placing p = {l, a, rows, eps};
    in_parallel(scratch, place_some, &p, ROW_TASKS((int)n));
}

void GLUE(latent_values, VARIANT)(const latent_t *l, const attention_call *a, const latent_rows *rows, arena *scratch) {
    const int64_t width = l->values[0]->n_out;
    call calls[a->n_heads];
    multiply_heads(calls, l->values, a, a->out, a->n_heads * a->latent, rows->values, width, a->n_heads * width, scratch);
}
