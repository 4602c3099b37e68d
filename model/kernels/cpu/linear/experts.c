/* A block of sparse experts (Mixtral, arXiv 2401.04088): every token uses its n_used best experts, and the gate weighs
 * their outputs. Shared experts serve every token.
 *
 * Pairs of a token and an expert are sorted by expert. The products of all experts are then one job for the threads:
 * as many tasks as there are experts, blocks of outputs and tiles of rows. A token's logits are chains of additions in
 * a fixed order, its products are those of linear.c, and its outputs are added in the order of its choices: its result
 * depends on that token alone.
 */
#include "linear/experts.h"
#include "linear/calls.h"

#define F(name) FIELD(experts_t, name)
FIELDS(experts_t, F(gate), F(w13), F(w2), F(shared_w13), F(shared_w2), F(n_experts), F(n_used), F(routed_scale));
#undef F

enum { GATES = 8 };
enum { A_PRODUCT = 5 * (64 + RED_ZONE) }; /* bytes at most that the arrays of a product lose between them */

/* The memory of one call. Pair i is choice i % n_used of token i / n_used. In the order of experts it is pair
 * `places[i]`, and `rows` has the token of each pair in that order. */
typedef struct {
    const experts_t *e;
    const float *x, *norm;
    float eps, *y;
    int n_rows, dim;
    float *logits, *shares; /* [n_rows, n_experts], [n_rows, n_used] */
    int32_t *chosen, *places, *rows;
    int32_t *begins; /* [n_experts + 1]: the first pair of each expert */
    call *calls;
    float *gate_up, *shared_gate_up, *out; /* [pairs, 2 hidden_dim], [n_rows, 2 of the shared], [pairs, dim] */
} block;

/* An expert that is here: all have its sizes. */
INLINE int64_t some_expert(const experts_t *e) {
    int64_t i = 0;
    while (!e->w13[i]) i++;
    return i;
}

/* Takes the arrays from scratch memory. */
static void take_arrays(block *b, arena *scratch) {
    const experts_t *e = b->e;
    const weights *w13 = e->w13[some_expert(e)];
    int64_t n = b->n_rows, pairs = n * e->n_used, gate_up = w13->n_out, dim = w13->n_in;
    int64_t shared = e->shared_w13 ? e->shared_w13->n_out : 0;
    b->dim = (int)dim;
    b->logits = take(scratch, n * e->n_experts * 4);
    b->shares = take(scratch, pairs * 4);
    b->chosen = take(scratch, pairs * 4);
    b->places = take(scratch, pairs * 4);
    b->rows = take(scratch, pairs * 4);
    b->begins = take(scratch, (e->n_experts + 1) * 4);
    b->calls = take(scratch, e->n_experts * (int64_t)sizeof(call));
    b->gate_up = take(scratch, pairs * gate_up * 4);
    b->shared_gate_up = take(scratch, n * shared * 4);
    b->out = take(scratch, pairs * dim * 4);
}

/* A number that can be compared: NaN is the least. */
INLINE float ordered(float x) { return x != x || x < -3e38f ? -3e38f : x > 3e38f ? 3e38f : x; }

/* Logits of experts from..end-1 for a token, GATES experts at a time. Beyond the last expert the last one repeats. */
INLINE void score(const block *b, const float *x, float *logits, int from, int end) {
    int n = b->dim, n_experts = (int)b->e->n_experts;
    float factor = b->norm ? inverse_rms(x, n, b->eps) : 1;
    for (int first = from; first < end; first += GATES) {
        const float *gates[GATES];
        wide totals[GATES] = {0};
        for (int j = 0; j < GATES; j++) gates[j] = b->e->gate + least_of(first + j, n_experts - 1) * n;
        for (int i = 0; i < n; i += WIDE_LANES)
            UNROLL for (int k = 0; k < PARTS; k++) {
                const int at = i + k * LANES;
                vf v = load_row(x, n, at);
                if (b->norm) v = v * splat(factor) * load_row(b->norm, n, at);
                UNROLL for (int j = 0; j < GATES; j++) totals[j].part[k] = fused(v, load_row(gates[j], n, at), totals[j].part[k]);
            }
        for (int j = 0; j < GATES && first + j < n_experts; j++) logits[first + j] = ordered(sum_wide(totals[j]));
    }
}

/* Chooses the n_used greatest logits, of equals the first, and overwrites them. Their shares are the softmax over the
 * chosen, times routed_scale. That equals softmax over all experts, renormalised over the chosen. */
INLINE void choose_experts(const experts_t *e, float *logits, int32_t *chosen, float *shares) {
    float top = 0, total = 0;
    for (int k = 0; k < e->n_used; k++) {
        int best = -1;
        for (int i = 0; i < e->n_experts; i++)
            if (logits[i] > -INFINITY && (best < 0 || logits[i] > logits[best])) best = i;
        if (k == 0) top = logits[best];
        shares[k] = exponential(splat(logits[best] - top))[0];
        total += shares[k];
        chosen[k] = best;
        logits[best] = -INFINITY;
    }
    for (int k = 0; k < e->n_used; k++) shares[k] = shares[k] / total * e->routed_scale;
}

/* The number of tasks that share the logits of a row: several if there are fewer rows than threads would need. */
INLINE int gate_tasks(const block *b) {
    return ROW_TASKS(b->n_rows) < noria_thread_count() ? (int)(b->e->n_experts + 2 * GATES - 1) / (2 * GATES) : 1;
}

static void score_some(void *context, int task, int thread) {
    const block *b = context;
    const int64_t n_experts = b->e->n_experts, n = gate_tasks(b), each = n > 1 ? 2 * GATES : n_experts, from = task % n * each;
    for (int64_t row = task / n * ROWS_A_TASK; row < b->n_rows && row < (task / n + 1) * ROWS_A_TASK; row++)
        score(b, b->x + row * b->dim, b->logits + row * n_experts, (int)from, (int)least_of(from + each, n_experts));
}

static void choose_some(void *context, int task, int thread) {
    const block *b = context;
    const int64_t n_used = b->e->n_used;
    for (int64_t row = task * ROWS_A_TASK; row < b->n_rows && row < (task + 1) * ROWS_A_TASK; row++)
        choose_experts(b->e, b->logits + row * b->e->n_experts, b->chosen + row * n_used, b->shares + row * n_used);
}

/* Sorts the pairs by expert, in order of tokens. */
static void sort(block *b) {
    int n_experts = (int)b->e->n_experts, n_used = (int)b->e->n_used, pairs = b->n_rows * n_used;
    int32_t *begins = b->begins;
    memset(begins, 0, (size_t)(n_experts + 1) * 4);
    for (int i = 0; i < pairs; i++) begins[b->chosen[i] + 1]++;
    for (int i = 0; i < n_experts; i++) begins[i + 1] += begins[i];
    for (int i = 0; i < pairs; i++) {
        int32_t place = begins[b->chosen[i]]++; /* afterwards an entry is the end of its expert */
        b->places[i] = place;
        b->rows[place] = i / n_used;
    }
    memmove(begins + 1, begins, (size_t)n_experts * 4);
    begins[0] = 0;
}

/* y += the outputs of each token's pairs times their shares, in order, without those of experts elsewhere. */
static void add_some(void *context, int task, int thread) {
    const block *b = context;
    int64_t n_used = b->e->n_used, n = b->dim;
    for (int64_t row = task * ROWS_A_TASK; row < b->n_rows && row < (task + 1) * ROWS_A_TASK; row++) {
        float *y = b->y + row * n;
        for (int64_t i = 0; i < n; i += LANES) {
            int left = (int)(n - i), whole = left >= LANES;
            vf total = splat(0);
            for (int64_t pair = row * n_used; pair < (row + 1) * n_used; pair++) {
                if (!b->e->w2[b->chosen[pair]]) continue;
                const float *out = b->out + b->places[pair] * n + i;
                total += (whole ? load(out) : load_some(out, left)) * splat(b->shares[pair]);
            }
            total += whole ? load(y + i) : load_some(y + i, left);
            memcpy(y + i, &total, (size_t)(whole ? LANES : left) * 4);
        }
    }
}

/* What the products of the experts need at most: all tokens may have the one with the widest activations, and the
 * arrays of each may lose some bytes. */
static void measure_all(const block *b, const weights *const *w, arena *scratch) {
    const int64_t used = scratch->used;
    take(scratch, b->e->n_experts * A_PRODUCT);
    for (int i = 0; i < b->e->n_experts; i++)
        if (w[i]) GLUE(multiply, VARIANT)(&(call){.w = w[i], .n_rows = b->n_rows * (int)b->e->n_used}, 1, scratch);
    give_back(scratch, used);
}

/* The products of all experts here that have tokens: w13 over x, or w2 over what w13 gave. */
static void multiply_all(const block *b, const weights *const *w, int kind, arena *scratch) {
    int n = 0;
    if (!scratch->begin) return measure_all(b, w, scratch);
    for (int i = 0; i < b->e->n_experts; i++) {
        int64_t first = b->begins[i];
        int n_rows = b->begins[i + 1] - b->begins[i];
        if (!n_rows || !w[i]) continue;
        if (n && b->calls->w->format != w[i]->format) { /* as in a file of which some experts are in other blocks */
            GLUE(multiply, VARIANT)(b->calls, n, scratch);
            n = 0;
        }
        call *c = b->calls + n++;
        *c = (call){.w = w[i], .n_rows = n_rows, .kind = kind, .eps = b->eps};
        if (kind == GATED) {
            c->x = b->gate_up + first * 2 * w[i]->n_in;
            c->y = b->out + first * w[i]->n_out;
        } else {
            c->x = b->x, c->norm = b->norm, c->rows = b->rows + first;
            c->y = b->gate_up + first * w[i]->n_out;
        }
    }
    if (n) GLUE(multiply, VARIANT)(b->calls, n, scratch);
}

void GLUE(sparse, VARIANT)(const experts_t *e, const float *x, int64_t n_rows, const float *norm, float eps, float *y,
                           arena *scratch) {
    const int64_t used = scratch->used;
    block b = {.e = e, .x = x, .norm = norm, .eps = eps, .y = y, .n_rows = (int)n_rows};
    int kind = norm ? NORMED : PLAIN, row_tasks = ROW_TASKS(b.n_rows);
    if (!n_rows) return;
    take_arrays(&b, scratch);
    in_parallel(scratch, score_some, &b, row_tasks * gate_tasks(&b));
    in_parallel(scratch, choose_some, &b, row_tasks);
    if (scratch->begin) sort(&b);
    multiply_all(&b, e->w13, kind, scratch);
    if (e->shared_w13)
        GLUE(adapted, VARIANT)(e->shared_w13, x, n_rows, kind, norm, eps, b.shared_gate_up, 0, 0, 0, 0, 0, scratch);
    multiply_all(&b, e->w2, GATED, scratch);
    in_parallel(scratch, add_some, &b, row_tasks); /* from here on x may have changed */
    if (e->shared_w2)
        GLUE(adapted, VARIANT)(e->shared_w2, b.shared_gate_up, n_rows, GATED, 0, 0, y, 1, 0, 0, 0, 0, scratch);
    give_back(scratch, used);
}

int64_t EXPORT(experts)(const experts_t *e, const float *x, int64_t n_rows, const float *norm, float eps, float *y,
                        void *memory, int64_t n_bytes) {
    arena dry = {0};
    GLUE(sparse, VARIANT)(e, x, n_rows, norm, eps, y, &dry);
    if (dry.most > n_bytes) return dry.most;
    arena scratch = {(uintptr_t)memory, dry.most};
    GLUE(sparse, VARIANT)(e, x, n_rows, norm, eps, y, &scratch);
    return 0;
}
