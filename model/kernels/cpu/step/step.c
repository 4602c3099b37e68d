/* A whole step in one call: rows are placed in their pages, all layers are computed, and tokens are sampled. */
#include "pool.h"
#include "step/place.h"

#define F(name) FIELD(pool_t, name)
FIELDS(pool_t, F(rotations), F(q_factors), F(window));
#undef F
#define F(name) FIELD(adapter_t, name)
FIELDS(adapter_t, F(targets), F(rank));
#undef F
#define F(name) FIELD(network_t, name)
FIELDS(network_t, F(embeddings), F(layers), F(pools), F(norm), F(head), F(n_layers), F(n_pools), F(n_positions), F(n_tokens),
         F(dim), F(hidden_dim), F(n_heads), F(n_kv_heads), F(head_dim), F(latent), F(kind), F(embedding_kind), F(eps));
#undef F
#define F(name) FIELD(step_t, name)
FIELDS(step_t, F(slices), F(tokens), F(pages), F(sampling), F(adapters), F(embedded_rows), F(embedded), F(x), F(sampled), F(part), F(join),
         F(n_slices), F(n_adapters), F(n_embedded_rows), F(block_rows));
#undef F

CONSTANTS(refusals, {"NO_PAGE", NO_PAGE}, {"OUTSIDE", OUTSIDE}, {"NO_MEMORY", NO_MEMORY},
          {"NOT_JOINED", NOT_JOINED});

enum { ROWS_A_LOOKUP = 32 };

static float *take_floats(arena *a, int64_t n) { return take(a, n * 4); }

/* A step in one pool: its attention, the memory of that, and the bytes of its `tasks`. */
typedef struct {
    attention_call call;
    span_t *spans;
    int64_t *slots;
    float *rotations, *q_factors;
    void *tasks;
    int64_t task_bytes;
} pool_work;

/* A step and its memory. `n_samples` of its rows are followed by a token to sample. `runs` have up to one entry for
 * each adapter; `adapted` are their rows, `u` their sums. */
typedef struct {
    const network_t *m;
    const step_t *s;
    int64_t n_rows, n_samples;
    pool_work *pools;
    int64_t *positions;
    float *qkv, *out, *gate_up, *states, *logits;
    latent_rows latent;
    lora_rows *runs;
    int64_t *adapted;
    float *u;
} work;

/* Places the spans of a pool, and counts the bytes of its tasks. */
static void begin_pool(const work *w, int64_t p, span_t *spans) {
    const network_t *m = w->m;
    pool_work *pool = w->pools + p;
    pool->call = (attention_call){
        .n_rows = w->n_rows, .n_heads = m->n_heads, .n_kv_heads = m->n_kv_heads, .head_dim = m->head_dim,
        .latent = m->latent, .window = m->pools[p].window, .kind = m->kind,
    };
    place_spans(m, w->s, p, spans);
    pool->spans = spans;
    pool->task_bytes = GLUE(plan, VARIANT)(&pool->call, spans, w->s->n_slices, 0);
}

static void take_pool(const work *w, int64_t p, arena *a) {
    pool_work *pool = w->pools + p;
    pool->slots = take(a, w->n_rows * 8);
    pool->rotations = take_floats(a, w->n_rows * (w->m->head_dim - w->m->latent));
    pool->q_factors = w->m->pools[p].q_factors ? take_floats(a, w->n_rows) : 0;
    pool->tasks = take(a, pool->task_bytes);
}

/* Memory for latent attention, which all layers have or none. */
static void take_latent(work *w, arena *a) {
    const latent_t *l = w->m->layers->latent;
    if (!l) return;
    w->latent = (latent_rows){take_floats(a, w->n_rows * rank_of(l)), take_floats(a, w->n_rows * l->wq_b->n_out),
                              take_floats(a, w->n_rows * w->m->head_dim),
                              take_floats(a, w->n_rows * w->m->n_heads * l->values[0]->n_out)};
}

static void take_all(work *w, arena *a) {
    const network_t *m = w->m;
    int64_t samples = w->s->sampling ? w->n_samples : 0, rank = 0;
    w->positions = take(a, w->n_rows * 8);
    const attention_call sizes = {.n_heads = m->n_heads, .n_kv_heads = m->n_kv_heads, .head_dim = m->head_dim, .latent = m->latent};
    w->qkv = take_floats(a, w->n_rows * row_floats(&sizes));
    w->out = take_floats(a, w->n_rows * m->n_heads * value_dim(&sizes));
    take_latent(w, a);
    w->gate_up = take_floats(a, w->n_rows * 2 * m->hidden_dim);
    w->states = take_floats(a, samples * m->dim);
    w->logits = samples ? take_floats(a, least_of(samples, w->s->block_rows) * m->head->n_out) : 0;
    for (int64_t i = 0; i < w->s->n_adapters; i++) rank = w->s->adapters[i].rank > rank ? w->s->adapters[i].rank : rank;
    w->runs = take(a, w->s->n_adapters * (int64_t)sizeof(lora_rows));
    w->adapted = take(a, w->s->n_adapters ? w->n_rows * 8 : 0);
    w->u = take_floats(a, w->n_rows * rank);
    for (int64_t p = 0; p < m->n_pools; p++) take_pool(w, p, a);
}

/* Completes the arguments of the attention in pool p, whose pages are `pages`. Returns the number of these pages. */
static int64_t place(const work *w, int64_t p, const int64_t *pages) {
    pool_work *pool = w->pools + p;
    attention_call *c = &pool->call;
    c->qkv = w->qkv, c->rotations = pool->rotations, c->q_factors = pool->q_factors, c->out = w->out;
    c->slots = pool->slots, c->pages = pages;
    GLUE(plan, VARIANT)(c, pool->spans, w->s->n_slices, pool->tasks);
    return place_rows(w->m, w->s, p, pages, pool->slots);
}

/* LANES values of bfloat16. */
INLINE vf widen(const uint16_t *from) {
    vi bits;
    for (int i = 0; i < LANES; i++) bits[i] = (int32_t)((uint32_t)from[i] << 16);
    return (vf)bits;
}

/* The embedding of a token [dim]. */
static void embed(const network_t *m, int64_t token, float *x) {
    if (m->embedding_kind == FLOAT32) {
        memcpy(x, (const float *)m->embeddings + token * m->dim, (size_t)m->dim * 4);
        return;
    }
    const uint16_t *from = (const uint16_t *)m->embeddings + token * m->dim;
    for (int64_t i = 0; i < m->dim; i += LANES) {
        int64_t n = least_of(LANES, m->dim - i);
        uint16_t halves[LANES] = {0};
        memcpy(halves, from + i, (size_t)n * 2);
        vf v = m->embedding_kind == FLOAT16 ? load_half(halves) : widen(halves);
        memcpy(x + i, &v, (size_t)n * 4);
    }
}

/* The embeddings and the rotations of some rows. */
static void look_up_some(void *context, int task, int thread) {
    const work *w = context;
    const network_t *m = w->m;
    for (int64_t i = task * ROWS_A_LOOKUP; i < w->n_rows && i < (task + 1) * ROWS_A_LOOKUP; i++) {
        int64_t position = w->positions[i];
        if (w->s->tokens) embed(m, w->s->tokens[i], w->s->x + i * m->dim);
        for (int64_t p = 0; p < m->n_pools; p++) {
            const int64_t rope = m->head_dim - m->latent;
            memcpy(w->pools[p].rotations + i * rope, m->pools[p].rotations + position * rope, (size_t)rope * 4);
            if (w->pools[p].q_factors) w->pools[p].q_factors[i] = m->pools[p].q_factors[position];
        }
    }
}

/* Puts the embeddings of images and audio into their rows. */
static void place_images(const network_t *m, const step_t *s) {
    for (int64_t i = 0; i < s->n_embedded_rows; i++)
        memcpy(s->x + s->embedded_rows[i] * m->dim, s->embedded + i * m->dim, (size_t)m->dim * 4);
}

/* Makes the runs of n rows from `first` on: of the rows of the layers, or the `sampled` ones. Returns their number. */
static int64_t make_runs(const work *w, int sampled, int64_t first, int64_t n) {
    int64_t n_runs = 0, *rows = w->adapted;
    float *u = w->u;
    for (int64_t a = 0; a < w->s->n_adapters; a++) {
        lora_rows *run = w->runs + n_runs;
        *run = (lora_rows){w->s->adapters[a].targets, rows, u, 0};
        for (int64_t i = 0, row = -first, end; i < w->s->n_slices; i++, row = end) {
            const int64_t *slice = slice_at(w->m, w->s, i);
            end = row + (sampled ? slice[SAMPLES] : slice[STOP] - slice[START]);
            if (slice[ADAPTER] != a) continue;
            for (int64_t at = row < 0 ? 0 : row; at < end && at < n; at++) *rows++ = at;
        }
        run->n_rows = rows - run->rows;
        u += run->n_rows * w->s->adapters[a].rank;
        n_runs += run->n_rows > 0;
    }
    return n_runs;
}

/* The states of the rows after which a token is sampled: the last ones of each slice. */
static void gather(const work *w) {
    const float *end = w->s->x;
    float *to = w->states;
    for (int64_t i = 0; i < w->s->n_slices; i++) {
        const int64_t *slice = slice_at(w->m, w->s, i), n = slice[SAMPLES] * w->m->dim;
        end += (slice[STOP] - slice[START]) * w->m->dim;
        memcpy(to, end - n, (size_t)n * 4);
        to += n;
    }
}

static int sample_all(const work *w, arena *scratch) {
    const network_t *m = w->m;
    if (scratch->begin) gather(w);
    for (int64_t first = 0, n; first < w->n_samples; first += n) {
        n = least_of(w->s->block_rows, w->n_samples - first);
        int64_t n_runs = scratch->begin ? make_runs(w, 1, first, n) : 0;
        GLUE(adapted, VARIANT)(m->head, w->states + first * m->dim, n, NORMED, m->norm, m->eps, w->logits, 0, w->runs, n_runs,
                               m->n_layers * TARGETS, 0, scratch);
        if (scratch->begin &&
            GLUE(sample, VARIANT)(w->logits, n, m->head->n_out, w->s->sampling + first, w->s->sampled + first))
            return NO_MEMORY;
    }
    return DONE;
}

/* Places the rows of a step and looks up what belongs to them. Returns the number of runs. */
static int64_t place_all(const work *w) {
    const int64_t *pages = w->s->pages;
    place_positions(w->m, w->s, w->positions);
    for (int64_t p = 0; p < w->m->n_pools; p++) pages += place(w, p, pages);
    noria_parallel(look_up_some, (void *)w, (int)((w->n_rows + ROWS_A_LOOKUP - 1) / ROWS_A_LOOKUP));
    place_images(w->m, w->s);
    return make_runs(w, 0, 0, w->n_rows);
}

static int compute(work *w, arena *scratch) {
    const network_t *m = w->m;
    attention_call calls[m->n_pools];
    take_all(w, scratch);
    const int64_t n_runs = scratch->begin ? place_all(w) : 0;
    for (int64_t p = 0; p < m->n_pools; p++) calls[p] = w->pools[p].call;
    if (GLUE(network, VARIANT)(m->layers, m->n_layers, calls, w->s->x, w->n_rows, m->eps, w->gate_up, &w->latent, w->runs, n_runs,
                               (ranks_t){w->s->part, w->s->join}, scratch))
        return NOT_JOINED;
    return w->s->sampling ? sample_all(w, scratch) : DONE;
}

/* Computes a step. Returns DONE or the reason why not; or, if there is less memory, the bytes that it needs, or some of
 * them: then it has done nothing. */
int64_t EXPORT(step)(const network_t *m, const step_t *s, void *memory, int64_t n_bytes) {
    pool_work pools[m->n_pools];
    work w = {.m = m, .s = s, .pools = pools};
    arena dry = {0}, scratch = {(uintptr_t)memory, n_bytes};
    const int64_t span_bytes = s->n_slices * (int64_t)sizeof(span_t);
    int problem = count(m, s, &w.n_rows, &w.n_samples);
    if (problem) return problem;
    for (int64_t p = 0; p < m->n_pools; p++) take(&dry, span_bytes);
    if (dry.most > n_bytes) return dry.most; /* the dry pass reads spans */
    for (int64_t p = 0; p < m->n_pools; p++) begin_pool(&w, p, take(&scratch, span_bytes));
    compute(&w, &dry);
    scratch.size = dry.most;
    if (dry.most <= n_bytes) problem = compute(&w, &scratch);
    give_back(&scratch, 0);
    return dry.most <= n_bytes ? problem : dry.most;
}
