/* All layers of a network over one step: the products and the attention of the other files, one after the other. */
#include "step/network.h"

#define F(name) FIELD(layer, name)
MIRRORED(layer, F(attention_norm), F(ffn_norm), F(wqkv), F(wo), F(w13), F(w2), F(experts), F(cells), F(pool));
#undef F

/* Parts of an adapter for one layer, in the order of `lora_rows.targets`. The head comes after all layers. */
enum { WQKV, WO, W13, W2, TARGETS };

void EXPORT(network)(const layer *layers, int64_t n_layers, attention_call *pools, float *x, int64_t n_rows, float eps,
                     float *gate_up, const lora_rows *runs, int64_t n_runs, void *scratch) {
    for (int64_t i = 0; i < n_layers; i++) {
        const layer *l = layers + i;
        attention_call *a = pools + l->pool;
        int64_t t = i * TARGETS;
        a->cells = l->cells;
#define ADAPTED(target) runs, n_runs, t + target, scratch
        GLUE(adapted, VARIANT)(l->wqkv, x, n_rows, NORMED, l->attention_norm, eps, (float *)a->qkv, 0, ADAPTED(WQKV));
        GLUE(attention, VARIANT)(a);
        GLUE(adapted, VARIANT)(l->wo, a->out, n_rows, PLAIN, 0, 0, x, 1, ADAPTED(WO));
        if (l->experts) {
            GLUE(experts, VARIANT)(l->experts, x, n_rows, l->ffn_norm, eps, x, scratch);
            continue;
        }
        GLUE(adapted, VARIANT)(l->w13, x, n_rows, NORMED, l->ffn_norm, eps, gate_up, 0, ADAPTED(W13));
        GLUE(adapted, VARIANT)(l->w2, gate_up, n_rows, GATED, 0, 0, x, 1, ADAPTED(W2));
#undef ADAPTED
    }
}
