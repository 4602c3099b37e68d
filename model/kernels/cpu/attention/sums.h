/* The sums of a softmax over some keys, and how those of several parts are joined. */
#pragma once
#include "attention/cells.h"

INLINE int round_up(int n) { return (n + 15) / 16 * 16; }

/* Scores are exponents of 2: the scale of q includes log2(e). */
static const float LOG2_E = 1.44269504088896341f;
INLINE vf weight_of(vf score, float most) { return power_of_two(larger(score - splat(most), splat(-126.0f))); }

/* Joins the sums of one softmax over two sets of keys: the greatest score, the sum of weights relative to it, and the
 * sum of weighted values. */
static void join(float *most, float *total, float *acc, float new_most, float new_total, const float *new_acc, int dim) {
    if (new_most == -INFINITY) return;
    float now = *most > new_most ? *most : new_most;
    vf old_share = weight_of(splat(*most), now), new_share = weight_of(splat(new_most), now);
    *most = now;
    *total = *total * old_share[0] + new_total * new_share[0];
    for (int d = 0; d < dim; d += LANES) store(acc + d, load(acc + d) * old_share + load(new_acc + d) * new_share);
}

/* The memory for the sums of query m of a part: most, total, acc. */
static float *part(const attention_call *c, int64_t index, int head, int m) {
    return c->parts + ((index * c->n_kv_heads + head) * c->part_queries + m) * part_floats(c->head_dim);
}

static void leave(float *part, float most, float total, const float *acc, int padded) {
    part[0] = most;
    part[1] = total;
    memcpy(part + 2, acc, (size_t)padded * 4);
}

static void finish(const attention_call *c, int64_t row, int head, float total, const float *acc) {
    float *y = c->out + (row * c->n_heads + head) * c->head_dim;
    int d = 0;
    for (; d + LANES <= c->head_dim; d += LANES) store(y + d, load(acc + d) / splat(total));
    for (; d < c->head_dim; d++) y[d] = acc[d] / total;
}

static void join_some(void *context, int task, int thread) {
    const attention_call *c = context;
    const join_t *t = c->joins + task / c->n_kv_heads;
    const int group = (int)(c->n_heads / c->n_kv_heads), head = (int)(task % c->n_kv_heads);
    const int padded = round_up((int)c->head_dim);
    for (int m = 0; m < t->n_rows * group; m++) {
        float most = -INFINITY, total = 0, acc[MAX_DIM] = {0};
        for (int64_t i = t->first; i < t->first + t->n; i++) {
            const float *p = part(c, i, head, m);
            join(&most, &total, acc, p[0], p[1], p + 2, padded);
        }
        finish(c, t->row + m / group, head * group + m % group, total, acc);
    }
}
