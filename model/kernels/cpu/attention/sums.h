/* The sums of a softmax over some keys, and how those of several parts are joined. */
#pragma once
#include "attention/cells.h"

INLINE int round_up(int n) { return (n + 15) / 16 * 16; }

/* Scores are exponents of 2: the scale of q includes log2(e). A score of -inf, or NaN, has a weight of 0: 2^-127 has
 * the bits of 0 here, and what is between it and 2^-126 counts as 0, see pool.c. */
static const float LOG2_E = 1.44269504088896341f;
INLINE vf exponent(vf score, float most) { return larger(score - splat(most), splat(-127.0f)); }
INLINE vf weight_of(vf score, float most) { return power_of_two(exponent(score, most)); }
/* The same to 1e-4: enough for a weight that is rounded to bfloat16. */
INLINE vf short_weight_of(vf score, float most) {
    vf x = exponent(score, most), shifted = x + splat(12582912.0f); /* its last bits are the nearest integer */
    vf r = x - (shifted - splat(12582912.0f)), p = splat(5.500893554e-2f);
    p = fused(p, r, splat(2.422109585e-1f));
    p = fused(p, r, splat(6.932829260e-1f));
    p = fused(p, r, splat(1.0f));
    return (vf)((vi)p + ((vi)shifted << 23));
}

/* Joins the sums of one softmax over two sets of keys: the greatest score, the sum of weights relative to it, and the
 * sum of weighted values. `acc` may hold anything while `most` is -inf. */
static void join(float *most, float *total, float *acc, float new_most, float new_total, const float *new_acc, int dim) {
    if (new_most == -INFINITY) return;
    if (*most == -INFINITY) {
        *most = new_most, *total = new_total;
        memcpy(acc, new_acc, (size_t)dim * 4);
        return;
    }
    float now = *most > new_most ? *most : new_most;
    vf old_share = weight_of(splat(*most), now), new_share = weight_of(splat(new_most), now);
    *most = now;
    *total = *total * old_share[0] + new_total * new_share[0];
    for (int d = 0; d < dim; d += LANES) store(acc + d, load(acc + d) * old_share + load(new_acc + d) * new_share);
}

/* The memory for the sums of query m of a part: most, total, acc. */
static float *part(const attention_call *c, int64_t index, int head, int m) {
    return c->parts + ((index * c->n_kv_heads + head) * c->part_queries + m) * part_floats(c);
}

static void leave(float *part, float most, float total, const float *acc, int padded) {
    part[0] = most;
    part[1] = total;
    memcpy(part + 2, acc, (size_t)padded * 4);
}

static void finish(const attention_call *c, int64_t row, int head, float total, const float *acc) {
    const int dim = (int)value_dim(c);
    float *y = c->out + (row * c->n_heads + head) * dim;
    int d = 0;
    for (; d + LANES <= dim; d += LANES) store(y + d, load(acc + d) / splat(total));
    for (; d < dim; d++) y[d] = acc[d] / total;
}

static void join_some(void *context, int task, int thread) {
    const attention_call *c = context;
    const join_t *t = c->joins + task / c->n_kv_heads;
    const int group = (int)(c->n_heads / c->n_kv_heads), head = (int)(task % c->n_kv_heads);
    const int padded = round_up((int)value_dim(c));
    for (int m = 0; m < t->n_rows * group; m++) {
        float most = -INFINITY, total = 0, acc[MAX_VALUE];
        for (int64_t i = t->first; i < t->first + t->n; i++) {
            const float *p = part(c, i, head, m);
            join(&most, &total, acc, p[0], p[1], p + 2, padded);
        }
        finish(c, t->row + m / group, head * group + m % group, total, acc);
    }
}
