/* Samples one token from each row of logits, after penalties: the greatest, or by temperature, min_p, top_k, top_p.
 *
 * It does not sort. To find the limit of top_k or top_p it counts the values, or adds the weights, that share their
 * leading bits, and repeats this in the group that holds the limit. A row's token depends on that row alone. Sums of
 * weights are sums of integers. Their order does not matter.
 */
#include "pool.h"
#include "step/sample.h"
#include <stdlib.h>

#define F(name) FIELD(params, name)
FIELDS(params, F(ids), F(outputs), F(n_ids), F(repetition_penalty), F(presence_penalty), F(frequency_penalty), F(temperature),
       F(min_p), F(top_p), F(top_k), F(start), F(step));
#undef F

typedef struct {
    float *logits;
    const params *rows;
    int64_t *tokens, n_tokens;
    int no_memory;
} call;

/* Load values i.. of n, with zeros beyond the end, and store them. */
INLINE vf load_at(const float *x, int64_t i, int64_t n) {
    return n - i >= LANES ? load(x + i) : load_some(x + i, (int)(n - i));
}
INLINE void store_at(float *x, int64_t i, int64_t n, vf v) {
    if (n - i >= LANES) store(x + i, v);
    else memcpy(x + i, &v, (size_t)(n - i) * 4);
}

enum { STRETCH = 1024 };

/* Results for a row without a token: its values are all hidden, or one is NaN or infinite. */
enum { NO_TOKEN = -1, NOT_FINITE = -2 };
CONSTANTS(samples, {"NO_TOKEN", NO_TOKEN}, {"NOT_FINITE", NOT_FINITE});

/* Lowest index of the greatest of n values, or one of the results above. */
static int64_t greatest(const float *x, int64_t n) {
    float best = -INFINITY;
    int64_t found = 0, i = 0;
    vi none = {0};
    for (int64_t first = 0; first < n; first += STRETCH) {
        int64_t end = first + STRETCH < n ? first + STRETCH : n;
        vf most = splat(-INFINITY);
        for (i = first; i + LANES <= end; i += LANES) {
            vf v = load(x + i);
            most = larger(v, most);
            none |= v != v;
        }
        float top = largest(most);
        for (; i < end; i++) {
            top = x[i] > top ? x[i] : top;
            none[0] |= -(x[i] != x[i]);
        }
        if (top > best) best = top, found = first;
    }
    if (sum_int(none) || best == INFINITY) return NOT_FINITE;
    if (best == -INFINITY) return NO_TOKEN;
    for (i = found; i < n; i++)
        if (x[i] == best) return i;
    return 0;
}

/* Replaces logits [n] by weights exp((x - top) / temperature). Weights below min_p become 0, which hides the token. */
static void weigh(float *x, int64_t n, float top, float temperature, float min_p) {
    vf scale = splat(temperature), least = splat(min_p);
    for (int64_t i = 0; i < n; i += LANES) {
        vf weight = exponential((load_at(x, i, n) - splat(top)) / scale);
        store_at(x, i, n, choose(weight < least, splat(0), weight));
    }
}

/* A weight from 0 to 1 in units of 2^-41, rounded down. 2^22 of them fit into a sum. */
INLINE int64_t fixed(float weight) { return (int64_t)(weight * 0x1p41f); }

static int64_t total_of(const float *x, int64_t n) {
    int64_t total = 0;
    for (int64_t first = 0; first < n; first += STRETCH) {
        int64_t end = first + STRETCH < n ? first + STRETCH : n;
        vi high = {0}, low = {0}; /* `fixed` in two parts: 1024 of each fit into 31 bits */
        for (int64_t i = first; i < end; i += LANES) {
            vf scaled = load_at(x, i, end) * splat(0x1p20f);
            vi whole = __builtin_convertvector(scaled, vi);
            high += whole;
            low += __builtin_convertvector((scaled - __builtin_convertvector(whole, vf)) * splat(0x1p21f), vi);
        }
        total += ((int64_t)sum_int(high) << 21) + sum_int(low);
    }
    return total;
}

enum { DIGITS = 11, BUCKETS = 1 << DIGITS };

/* The n values that still contain the limit, and what to find among them: the `needed` greatest if they are `counted`,
 * else those whose `fixed` weights have this sum. */
typedef struct {
    float *x;
    int64_t n, needed;
    int counted;
} search;

INLINE int64_t measure(const search *s, float x) { return s->counted ? 1 : fixed(x); }

/* Returns the next `digits` bits, from `shift` on, of the value at the limit. Afterwards the search contains only the
 * values with these bits. */
static uint32_t descend(search *s, int shift, int digits) {
    int64_t amount[BUCKETS] = {0};
    const uint32_t mask = (1u << digits) - 1;
    uint32_t bits, b = mask;
    int64_t left = 0;
    for (int64_t i = 0; i < s->n; i++) {
        memcpy(&bits, s->x + i, 4);
        amount[bits >> shift & mask] += measure(s, s->x[i]);
    }
    for (; b > 0 && amount[b] < s->needed; b--) s->needed -= amount[b];
    for (int64_t i = 0; i < s->n; i++) { /* no branch: its prediction would often be wrong */
        memcpy(&bits, s->x + i, 4);
        memcpy(s->x + left, &bits, 4);
        left += (bits >> shift & mask) == b;
    }
    s->n = left;
    return b << shift;
}

/* The values that are at least `least`, packed in memory of this thread. The next call overwrites them. Without memory
 * its `x` is null. */
static search candidates(const float *x, int64_t n, float least) {
    static _Thread_local float *found;
    static _Thread_local int64_t size;
    if (size < n) {
        free(found);
        found = malloc((size_t)n * sizeof *found);
        size = found ? n : 0;
    }
    search s = {found, 0, 0, 0};
    for (int64_t i = 0; found && i < n; i++) {
        found[s.n] = x[i];
        s.n += x[i] >= least;
    }
    return s;
}

/* Hides all but the k greatest weights, or all but the fewest weights whose sum is `share` of the total. Of equal
 * weights those with the lowest index stay. Weights are not negative, and therefore have the order of their bits.
 * Returns whether there was memory for it. */
static int keep(float *x, int64_t n, int64_t k, double share) {
    int64_t total = k ? 0 : total_of(x, n);
    /* All weights below `least` together are less than the part that may be hidden: none of them is needed. */
    float least = k ? 0 : (float)(0.5 * (1 - share) * (double)total * 0x1p-41 / (double)n), cut;
    search s = candidates(x, n, least);
    if (!s.x) return 0;
    s.counted = k > 0;
    s.needed = k ? k : (int64_t)ceil(share * (double)total);
    uint32_t bits = descend(&s, 32 - DIGITS, DIGITS);
    bits |= descend(&s, 32 - 2 * DIGITS, DIGITS);
    bits |= descend(&s, 0, 32 - 2 * DIGITS);
    memcpy(&cut, &bits, 4);
    for (int64_t i = 0; i < n; i += LANES) {
        vf v = load_at(x, i, n);
        store_at(x, i, n, choose(v < splat(cut), splat(0), v));
    }
    int64_t one = measure(&s, cut), places = (s.needed + one - 1) / one; /* of the s.n values that equal the cut */
    for (int64_t i = 0; i < n && places < s.n; i++)
        if (x[i] == cut && places-- <= 0) x[i] = 0;
    return 1;
}

/* Uniforms strictly between 0 and 1: a 32-bit SplitMix stream mixed by Chris Wellons' lowbias32, as in noise.py. */
INLINE vf uniform(vu x) {
    x ^= x >> 16;
    x *= 0x7FEB352Du;
    x ^= x >> 15;
    x *= 0x846CA68Bu;
    x ^= x >> 16;
    vi bits = (vi)(x >> 9); /* 23 bits: more would round to 1, whose logarithm is 0 */
    return (__builtin_convertvector(bits, vf) + splat(0.5f)) * splat(0x1p-23f);
}

/* Replaces each weight by weight / E, where E is exponential noise. The token with the greatest result is the sample:
 * its exponential clock, whose rate is the weight, rings first. */
static void race(float *x, int64_t n, const params *p) {
    const uint32_t step = (uint32_t)p->step;
    vu lane;
    for (int i = 0; i < LANES; i++) lane[i] = step * (uint32_t)i + (uint32_t)p->start;
    for (int64_t i = 0; i < n; i += LANES, lane += step * LANES)
        store_at(x, i, n, load_at(x, i, n) / -logarithm(uniform(lane)));
}

/* The steps of PyTorch in logits.py, with the same bits. Ids that the row does not have are skipped. */
static void penalize(float *x, int64_t n, const params *p) {
    for (int64_t i = 0; i < p->n_ids; i++) {
        if ((uint64_t)p->ids[i] >= (uint64_t)n) continue;
        float *value = x + p->ids[i];
        *value = *value > 0 ? *value / p->repetition_penalty : *value * p->repetition_penalty;
        if (p->outputs[i] > 0) *value -= p->presence_penalty + p->frequency_penalty * (float)p->outputs[i];
    }
}

static void draw_row(void *context, int row, int thread) {
    call *c = context;
    const params *p = c->rows + row;
    int64_t n = c->n_tokens;
    float *x = c->logits + row * n;
    penalize(x, n, p);
    int64_t best = greatest(x, n);
    if (best >= 0 && p->temperature > 0) {
        weigh(x, n, x[best], p->temperature, p->min_p);
        if (p->top_k > 0 && p->top_k < n && !keep(x, n, p->top_k, 0)) c->no_memory = 1;
        if (p->top_p < 1 && !keep(x, n, 0, p->top_p)) c->no_memory = 1;
        race(x, n, p);
        best = greatest(x, n);
    }
    c->tokens[row] = best;
}

int64_t EXPORT(sample)(float *logits, int64_t n_rows, int64_t n_tokens, const params *rows, int64_t *tokens) {
    call c = {logits, rows, tokens, n_tokens, 0};
    noria_parallel(draw_row, &c, (int)n_rows);
    return c.no_memory;
}
