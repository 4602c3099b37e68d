/* Attention over pages in place.
 *
 * A task is up to ROWS neighbouring rows of one sequence and one key head, with all query heads that share this key
 * head. It covers all visible pages or some of them. A task computes BLOCK pages at a time: scores, their maximum,
 * weights, then the weighted values. After every SPLIT pages it starts new sums and joins the finished sums to those
 * before. Positions alone decide where a block or a split begins. What a query adds up, and in which order, depends
 * only on its own visible keys and their positions: keys that only its neighbours see have a weight of exactly 0.
 *
 * Attention inside an image is the same work with one difference: every row sees all keys.
 */
#include "attention/plan.h"
#include "attention/sums.h"
#include "attention/registers.h"
#include "attention/tiles.h"
#include "attention/write.h"

/* QUERY: floats between queries, so many that their words do not meet in one set of the cache. AHEAD: how many bytes
 * before their use keys and values are prefetched, where the caller does not choose. */
enum { MOST_EXPONENT = 8, QUERY = MAX_DIM + 16, AHEAD = 11 * 1024, KEYS = BLOCK * PAGE };

typedef attention_call call;
#define F(name) FIELD(attention_call, name)
FIELDS(attention_call, F(qkv), F(rotations), F(q_factors), F(out), F(parts), F(cells), F(slots), F(pages), F(tasks), F(joins),
         F(n_rows), F(n_tasks), F(n_joins), F(n_heads), F(n_kv_heads), F(head_dim), F(latent), F(window), F(kind),
         F(part_queries), F(n_keys));
#undef F
CONSTANTS(limits, {"PAGE_SIZE", PAGE}, {"MAX_QUERIES", MAX_QUERIES}, {"MAX_HEAD_DIM", MAX_VALUE}, {"MAX_KEY_DIM", MAX_DIM});
CONSTANTS(cells, {"bfloat16", BF16}, {"float32", FLOAT32}, {"int8", INT8});

typedef struct {
    float q[MAX_QUERIES * QUERY], acc[MAX_QUERIES * MAX_VALUE], joined[MAX_QUERIES * MAX_VALUE], p[MAX_QUERIES * KEYS];
    char some[2][PAGE * MAX_VALUE * 2]; /* partly read pages, or values in another layout */
    sums16 total[MAX_QUERIES];
    float most[MAX_QUERIES], joined_most[MAX_QUERIES], joined_total[MAX_QUERIES];
    float q_factor[MAX_QUERIES], p_factor[MAX_QUERIES * BLOCK];
    int32_t q_offset[MAX_QUERIES];
} state;
_Static_assert(sizeof(state) <= THREAD_BYTES, "a thread of the pool has less memory");
_Static_assert(QUERY * 4 % 4096 && KEYS * 4 % 4096 && MAX_DIM * 4 < 4096, "rows 4096 bytes apart meet in one set of the cache");

/* Converts n weights, or a query, to what a product multiplies; n is a multiple of LANES. `words` may be `x`. */
INLINE void to_words(const int kind, const float *x, int n, float *words) {
    if (in_words(kind)) to_pairs(x, n, (uint16_t *)words);
    else if (kind == BF16) for (int i = 0; i < n; i += LANES) store(words + i, (vf)(to_halves(load(x + i)) << 16));
    else if (words != x) memcpy(words, x, (size_t)n * 4);
}

/* Makes q the query m of a row: rotated, and multiplied by the scale of scores and by the row's factor. */
INLINE void load_query(const int kind, const call *c, const float *q, int64_t row, int m, state *s) {
    const int dim = (int)c->head_dim, padded = round_up(dim);
    const float scale = LOG2_E / sqrtf((float)dim) * (c->q_factors ? c->q_factors[row] : 1);
    float *x = s->q + m * QUERY;
    turn(c, q, row, x);
    for (int d = dim; d < padded; d++) x[d] = 0;
    for (int d = 0; d < padded; d += LANES) store(x + d, load(x + d) * splat(scale));
    if (kind == INT8) {
        int8_t q[2 * MAX_DIM];
        int32_t total;
        s->q_factor[m] = to_bytes(x, padded, q, q + padded, &total);
        s->q_offset[m] = -OFFSET * total;
        memcpy(x, q, (size_t)padded * 2);
    } else {
        to_words(kind, x, padded, x);
    }
}

/* Keys first..last-1 of a block: those that a query sees. */
typedef struct {
    int first, last;
} range;

/* Makes the scores of all other keys of n -inf. They may have been anything, also NaN. */
INLINE void hide_rest(float *p, range seen, int n) {
    for (int i = 0; i < n; i++) p[i] = i < seen.first || i >= seen.last ? -INFINITY : p[i];
}

INLINE float greatest(const float *p, int n) {
    vf high = load(p);
    for (int i = LANES; i < n; i += LANES) high = larger(load(p + i), high);
    return largest(high);
}

/* Raises the score that has a weight of 1 to `now`, and scales the sums of its query accordingly. That is rare: weights
 * may become 2^MOST_EXPONENT first, which floats bear. Before its first key a query has no sums. */
INLINE void raise(float now, float *most, sums16 *total, float *acc, int padded) {
    if (!(now > *most + MOST_EXPONENT)) return;
    if (*most == -INFINITY) {
        *most = now;
        return;
    }
    vf shrink = weight_of(splat(*most), now);
    UNROLL for (int i = 0; i < 16 / LANES; i++) total->part[i] *= shrink;
    for (int d = 0; d < padded; d += LANES) store(acc + d, load(acc + d) * shrink);
    *most = now;
}

/* The words that the weights of a page take. */
INLINE int words_of_page(const int kind) { return kind == INT8 ? PAGE / 4 : in_words(kind) ? PAGE / 2 : PAGE; }

/* Converts the scores of query m over a block's pages from..end-1 to weights as words, in their place, and adds them to
 * its sum of weights. `all` says that it sees all their keys. */
INLINE void weigh(const int kind, const int all, state *s, int m, int from, int end, const char *const *values, int dim) {
    float *p = s->p + m * KEYS, weights[PAGE];
    sums16 total = s->total[m];
    for (int page = from; page < end; page++) {
        const float *scores = p + page * PAGE;
        UNROLL for (int i = 0; i < PAGE; i += LANES) {
            vf x = load(scores + i);
            vf weight = kind == FLOAT32 || kind == INT8 ? weight_of(x, s->most[m]) : short_weight_of(x, s->most[m]);
            total.part[i % 16 / LANES] += weight;
            if (kind == INT8) weight *= load(factors(values[page], dim) + i);
            if (kind == INT8 && !all) weight = choose(x > splat(-INFINITY), weight, splat(0)); /* it may be NaN */
            store(weights + i, weight);
        }
        float *words = p + page * words_of_page(kind);
        if (kind == INT8) s->p_factor[m * BLOCK + page] = to_bytes(weights, PAGE, (int8_t *)words, 0, 0);
        else to_words(kind, weights, PAGE, words);
    }
    s->total[m] = total;
}

/* Prefetches the queries of a task. */
INLINE void ask_for_rows(const call *c, int index) {
    const task_t *t = c->tasks + index / c->n_kv_heads;
    const int64_t a_row = row_floats(c), some = c->n_heads / c->n_kv_heads * c->head_dim;
    for (int64_t row = t->row; row < t->row + t->n_rows; row++)
        for (int64_t i = 0; i < some; i += 16) __builtin_prefetch(c->qkv + row * a_row + index % c->n_kv_heads * some + i, 0, 2);
}

/* The n-th cell that a task reads, or its last cell if it reads fewer. */
INLINE char *nth_cell(const call *c, const int kind, int index, int64_t n) {
    const task_t *t = c->tasks + index / c->n_kv_heads;
    return cell(c, kind, c->pages[t->page + least_of(n, t->end - t->block - 1)], (int)(index % c->n_kv_heads));
}

/* The keys of query m of a task that it sees of the block whose first position is `start`. */
INLINE range seen_by(const call *c, const task_t *t, int m, int group, int64_t start) {
    int64_t position = t->position + m / group - start;
    return (range){c->window ? (int)most_of(position - c->window + 1, 0) : 0,
                   (int)least_of(c->n_keys ? c->n_keys - start : position + 1, KEYS)};
}

/* Makes weights of the scores of queries first..first+many-1, and returns the range of keys that any of them sees. The
 * greatest scores of all come first: a query's weights need not wait for its own. */
INLINE range weigh_all(const int kind, const call *c, const task_t *t, state *s, int first, int many, int64_t start,
                       const product_t *v, int padded) {
    const int group = (int)(c->n_heads / c->n_kv_heads), from = v->from * PAGE, n = v->end * PAGE - from;
    range any = {KEYS, 0};
    int all = 1;
    for (int m = first; m < first + many; m++) {
        range seen = seen_by(c, t, m, group, start);
        float *p = s->p + m * KEYS + from;
        if (seen.first > from || seen.last < from + n) {
            all = 0;
            hide_rest(p, (range){seen.first - from, seen.last - from}, n);
        }
        raise(n == KEYS ? greatest(p, KEYS) : greatest(p, n), s->most + m, s->total + m, s->acc + m * padded, padded);
        any.first = seen.first < any.first ? seen.first : any.first;
        any.last = seen.last > any.last ? seen.last : any.last;
    }
    for (int m = first; m < first + many; m++)
        if (kind == INT8 && all) weigh(kind, 1, s, m, v->from, v->end, v->b, (int)c->head_dim);
        else weigh(kind, 0, s, m, v->from, v->end, v->b, (int)c->head_dim);
    return any;
}

/* Computes the scores of queries from..from+many-1 over the block's pages k.from..k.end-1. */
INLINE void score(const int kind, state *s, product_t k, int from, int many, int dim) {
    const int words = kind == INT8 ? byte_width(dim) / 4 : kind == FLOAT32 ? dim : dim / 2;
    k.a = s->q + from * QUERY, k.a_row = QUERY, k.stride = PAGE * 4;
    k.y = s->p + from * KEYS, k.y_stride = KEYS;
    for (int n = k.from; n < k.end; n++) k.last[n] = words;
    if (kind == INT8) multiply_key_bytes(&(bytes_t){k, s->q_factor + from, s->q_offset + from}, many, dim);
    else if (kind == PAIRS_BY_TILES) multiply_keys_by_tiles(&k, many, dim);
    else multiply_keys(kind, &k, many);
}

/* Adds the weighted values at positions `any` of the block to the sums of these queries. */
INLINE void add_values(const int kind, state *s, product_t v, int from, int many, range any, int dim, int padded) {
    const int each = kind == FLOAT32 ? 1 : 4, words = kind == BF16 ? 2 : 1; /* positions and words of a quad */
    v.a = s->p + from * KEYS, v.a_row = KEYS, v.a_page = words_of_page(kind);
    v.y = s->acc + from * padded, v.y_stride = padded;
    v.stride = (kind == INT8 ? byte_width(dim) : dim) * 4;
    v.from = (int)most_of(v.from, any.first / PAGE), v.end = (int)least_of(v.end, (any.last - 1) / PAGE + 1);
    v.rest = kind == BF16 ? (int)least_of(any.last, v.end * PAGE) % 4 : 0;
    for (int n = v.from; n < v.end; n++) {
        const range here = {(int)most_of(any.first - n * PAGE, 0), (int)least_of(any.last - n * PAGE, PAGE)};
        v.first[n] = here.first / each * words;
        v.last[n] = (here.last + (kind == INT8 ? each - 1 : 0)) / each * words;
        if (kind == PAIRS_BY_TILES && here.last - here.first < PAGE)
            v.b[n] = only(v.b[n], dim, here.first, here.last, s->some[n != v.from]);
    }
    if (kind == INT8) multiply_value_bytes(&(bytes_t){v, s->p_factor + from * BLOCK, 0}, many, dim);
    else if (kind == PAIRS_BY_TILES) multiply_values_by_tiles(&v, many, dim);
    else multiply_values(kind, &v, many, dim);
}

/* The same where the values are the first channels of keys. They are brought to the layout of values page by page,
 * which gives the same sums as all pages at once. */
INLINE void add_latents(const int kind, const call *c, state *s, product_t v, int from, int many, range any, int padded) {
    const int dim = (int)c->head_dim, latent = (int)c->latent;
    product_t one = v;
    for (int n = v.from; n < v.end; n++) {
        if (n < any.first / PAGE || n * PAGE >= any.last) continue;
        one.from = n, one.end = n + 1, one.b[n] = values_of(kind, v.b[n], dim, latent, s->some[0]);
        add_values(kind, s, one, from, many, any, latent, padded);
    }
}

/* Attends to pages from..end-1, all of one block, for those queries of a task that see any of them. `next` is the task
 * after it, whose first cells are prefetched. */
INLINE void attend_block(const int kind, const call *c, int index, int64_t from, int64_t end, int next, state *s, int padded) {
    const task_t *t = c->tasks + index / c->n_kv_heads;
    const int dim = (int)c->head_dim, group = (int)(c->n_heads / c->n_kv_heads);
    const int64_t half = half_bytes(kind, dim);
    int64_t low = 0, high = t->n_rows; /* rows that see any of the pages */
    if (!c->n_keys) low = most_of(from * PAGE - t->position, 0);
    if (c->window) high = least_of(high, end * PAGE + c->window - 1 - t->position);
    if (low >= high) return;
    /* Tiles compute 16 rows at a time: those that see none of the pages have weights of 0. */
    if (kind == PAIRS_BY_TILES) low = 0, high = t->n_rows;
    const int first = (int)low * group, many = (int)(high - low) * group;
    const int n = (int)(end - from), one = (int)(from % BLOCK);
    const int ahead = (int)most_of(least_of(AHEAD / half, 2 * BLOCK), 1);
    const char *used[4 * BLOCK]; /* keys and values in the order of their use, these and the next block's */
    for (int i = 0; i < n + BLOCK; i++) {
        int64_t b = from - t->block + i;
        char *here = nth_cell(c, kind, b < t->end - t->block ? index : next, b < t->end - t->block ? b : b - (t->end - t->block));
        int at = i < n ? i : i + n;
        used[at] = here, used[at + (i < n ? n : BLOCK)] = c->latent ? here : here + half;
    }
    product_t keys = {.from = one, .end = one + n, .to_second = noria_prefetches_to_second()}, values = keys;
    for (int i = 0; i < n; i++) {
        keys.b[one + i] = used[i], keys.soon[one + i] = used[i + ahead];
        values.b[one + i] = used[n + i], values.soon[one + i] = used[n + i + ahead];
    }
    score(kind, s, keys, first, many, dim);
    range any = weigh_all(kind, c, t, s, first, many, from / BLOCK * KEYS, &values, padded);
    if (c->latent) add_latents(kind, c, s, values, first, many, any, padded);
    else add_values(kind, s, values, first, many, any, dim, padded);
}

INLINE void attend(const int kind, const call *c, int index, int next, state *s) {
    const task_t *t = c->tasks + index / c->n_kv_heads;
    const int dim = (int)c->head_dim, group = (int)(c->n_heads / c->n_kv_heads), head = (int)(index % c->n_kv_heads);
    const int n = (int)t->n_rows * group, padded = round_up((int)value_dim(c));
    ask_for_rows(c, next);
    if (kind == PAIRS_BY_TILES) configure_tiles((int)least_of(n, 16), 64); /* the tiles of this task's thread */
    for (int m = 0; m < n; m++) {
        int64_t row = t->row + m / group;
        load_query(kind, c, c->qkv + row * row_floats(c) + (head * group + m % group) * dim, row, m, s);
        s->joined_most[m] = -INFINITY;
        s->joined_total[m] = 0;
    }
    for (int64_t block = t->block, stop; block < t->end; block = stop) {
        stop = least_of(t->end, (block / SPLIT + 1) * SPLIT);
        for (int m = 0; m < n; m++) s->most[m] = -INFINITY, s->total[m] = (sums16){0};
        memset(s->acc, 0, (size_t)(n * padded) * 4);
        for (int64_t b = block, end; b < stop; b = end) {
            end = least_of(stop, (b / BLOCK + 1) * BLOCK);
            attend_block(kind, c, index, b, end, next, s, padded);
        }
        for (int m = 0; m < n; m++)
            join(s->joined_most + m, s->joined_total + m, s->joined + m * padded, s->most[m], sum16(s->total[m]),
                 s->acc + m * padded, padded);
    }
    for (int m = 0; m < n; m++)
        if (t->part < 0) finish(c, t->row + m / group, head * group + m % group, s->joined_total[m], s->joined + m * padded);
        else leave(part(c, t->part, head, m), s->joined_most[m], s->joined_total[m], s->joined + m * padded, padded);
    if (kind == PAIRS_BY_TILES) release_tiles();
}

/* A function for each kind, because compilers take three times as long for a single one of all. */
#define APART static __attribute__((noinline)) void
APART attend_bf16(const call *c, int index, int next, state *s) { attend(BF16, c, index, next, s); }
#if defined(AMX)
APART attend_by_tiles(const call *c, int index, int next, state *s) { attend(PAIRS_BY_TILES, c, index, next, s); }
#endif
APART attend_float32(const call *c, int index, int next, state *s) { attend(FLOAT32, c, index, next, s); }
APART attend_int8(const call *c, int index, int next, state *s) { attend(INT8, c, index, next, s); }

/* The number of tasks that a thread takes at once: all key heads of the same rows if there are enough tasks, else 1. */
static int bundle(const call *c) { return c->n_tasks < 4 * noria_thread_count() ? 1 : (int)c->n_kv_heads; }

/* Whole tiles have 32 channels. */
static void attend_pairs(const call *c, int index, int next, state *s) {
#if defined(AMX)
    if (c->head_dim % 32 == 0 && c->latent % 32 == 0) {
        attend_by_tiles(c, index, next, s);
        return;
    }
#endif
    attend_bf16(c, index, next, s);
}

static void attend_some(void *context, int number, int thread) {
    const call *c = context;
    state *mine = noria_memory(thread);
    const int each = bundle(c), n = (int)(c->n_tasks * c->n_kv_heads), then = (number + noria_thread_count()) * each;
    for (int i = number * each; i < (number + 1) * each; i++) {
        int next = i + 1 < (number + 1) * each ? i + 1 : then < n ? then : i;
        (c->kind == BF16 ? attend_pairs : c->kind == FLOAT32 ? attend_float32 : attend_int8)(c, i, next, mine);
    }
}

int64_t GLUE(page_bytes, VARIANT)(const call *c) {
    return (c->latent ? 1 : 2 * c->n_kv_heads) * half_bytes((int)c->kind, (int)c->head_dim);
}

void EXPORT(attention)(const call *c) {
    noria_parallel(write_some, (void *)c, (int)(c->n_rows + rows_a_write(c) - 1) / rows_a_write(c));
    noria_parallel(attend_some, (void *)c, (int)(c->n_tasks * c->n_kv_heads) / bundle(c));
    noria_parallel(join_some, (void *)c, (int)(c->n_joins * c->n_kv_heads));
}
