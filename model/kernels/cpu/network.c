/* All layers of a network over one step: the products and the attention of the other files, one after the other. */
#include "pool.h"
#include "step/network.h"

#define F(name) FIELD(layer, name)
FIELDS(layer, F(attention_norm), F(ffn_norm), F(wqkv), F(wo), F(w13), F(w2), F(experts), F(latent), F(cells), F(pool));
#undef F

CONSTANTS(targets, {"wqkv", WQKV}, {"wo", WO}, {"w13", W13}, {"w2", W2});

/* Bytes of a layer's keys and values. Fewer stay in the caches of cores, and many rows compute more than they read. */
enum { LEAST_AHEAD = 1 << 20, MANY_ROWS = 128 };

static int64_t macs(const weights *w) { return w->n_in * w->n_out; }

/* Lets the products between the attention of layer l and that of `next` prefetch what the latter reads. Returns null if
 * this does not pay, as where half of the shared cache is too small. */
static const ahead_t *look_ahead(ahead_t *a, const layer *l, const layer *next, const attention_call *pools) {
    const attention_call *c = pools + next->pool;
    int64_t n_bytes = 0;
    if (l->experts || next->latent || c->n_rows < 2 || c->n_rows >= MANY_ROWS) return 0;
    a->attention = c, a->cells = next->cells, a->page_bytes = GLUE(page_bytes, VARIANT)(c);
    for (const task_t *t = c->tasks; t < c->tasks + c->n_tasks; t++) n_bytes += (t->end - t->block) * a->page_bytes;
    if (n_bytes < LEAST_AHEAD || n_bytes > noria_shared_cache() / 2) return 0;
    a->bytes_a_mac = (float)n_bytes / (float)(c->n_rows * (macs(l->wo) + macs(l->w13) + macs(l->w2) + macs(next->wqkv)));
    begin_ahead(a, noria_thread_count());
    return a;
}

int64_t GLUE(network, VARIANT)(const layer *layers, int64_t n_layers, attention_call *pools, float *x, int64_t n_rows, float eps,
                               float *gate_up, const latent_rows *rows, const lora_rows *runs, int64_t n_runs, ranks_t ranks,
                               arena *scratch) {
    const int64_t joins = ranks.part && scratch->begin, onto = !ranks.part;
    float *y = ranks.part ? ranks.part : x;
    int64_t failed = 0;
    cursor cursors[noria_thread_count()];
    ahead_t memory = {.cursors = cursors};
    const ahead_t *ahead = 0;
    for (int64_t i = 0; i < n_layers && !failed; i++) {
        const layer *l = layers + i;
        attention_call *a = pools + l->pool;
        int64_t t = i * TARGETS;
        a->cells = l->cells;
#define ADAPTED(target) runs, n_runs, t + target, ahead, scratch
        if (l->latent) GLUE(latent_queries, VARIANT)(l->latent, x, l->attention_norm, eps, a, rows, scratch);
        else GLUE(adapted, VARIANT)(l->wqkv, x, n_rows, NORMED, l->attention_norm, eps, (float *)a->qkv, 0, ADAPTED(WQKV));
        if (scratch->begin) GLUE(attention, VARIANT)(a);
        if (l->latent) GLUE(latent_values, VARIANT)(l->latent, a, rows, scratch);
        ahead = scratch->begin && i + 1 < n_layers ? look_ahead(&memory, l, l + 1, pools) : 0;
        GLUE(adapted, VARIANT)(l->wo, l->latent ? rows->values : a->out, n_rows, PLAIN, 0, 0, y, onto, ADAPTED(WO));
        if (joins && (failed = ranks.join())) break;
        if (l->experts) {
            if (joins) memset(y, 0, (size_t)(n_rows * l->wo->n_out) * 4);
            GLUE(sparse, VARIANT)(l->experts, x, n_rows, l->ffn_norm, eps, y, scratch);
        } else {
            GLUE(adapted, VARIANT)(l->w13, x, n_rows, NORMED, l->ffn_norm, eps, gate_up, 0, ADAPTED(W13));
            GLUE(adapted, VARIANT)(l->w2, gate_up, n_rows, GATED, 0, 0, y, onto, ADAPTED(W2));
        }
        if (joins) failed = ranks.join();
#undef ADAPTED
    }
    return failed;
}
