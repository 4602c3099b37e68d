/* Attention over pages in place.
 *
 * A page holds for each key head the keys [head_dim/2][page_size][2] and the values [page_size/2][head_dim][2] in
 * bfloat16 (pairs of what is summed over stand together, as bf16 dot products and AMX want them), or the keys
 * [head_dim][page_size] and the values [page_size][head_dim] in float32. So q k' and p v are the same small product.
 *
 * A task is up to ROWS neighbouring rows of one sequence and one key head; the query heads that share it go together.
 * Softmax is computed page by page, in order of position, with a running maximum. What a query adds up, and in which
 * order, depends on its own visible keys and their positions alone: keys that only its neighbours see weigh exactly 0.
 */
#include "pool.h"
#include "vectors.h"

enum { BF16, FLOAT32 };
enum { ROWS = 16, MAX_QUERIES = 64, PAGE = 32, MAX_DIM = 512, TILE = 8 };

typedef struct {
    int64_t row, n_rows, position, page, block; /* `pages[page]` holds logical block `block`, the first one visible */
} task_t;

typedef struct {
    const float *q, *k, *v, *turn;
    float *out;
    void *keys, *values;
    const int64_t *slots, *pages;
    const task_t *tasks;
    int64_t q_stride, kv_stride, n_rows, n_tasks, n_heads, n_kv_heads, head_dim, window, kind;
} call;

/* ---- rotate and store ---------------------------------------------------------------------------------------- */

INLINE uint16_t to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (x != x) return 0x7FC0;
    return (uint16_t)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

/* One head by cos [dim/2] and sin [dim/2]: pairs are (i, i + dim/2). */
INLINE void rotate(const float *x, const float *turn, float *y, int half) {
    for (int i = 0; i < half; i++) {
        float a = x[i], b = x[i + half], c = turn[i], s = turn[half + i];
        y[i] = a * c - b * s;
        y[i + half] = b * c + a * s;
    }
}

static void store_key(const call *c, int64_t at, int within, const float *x) {
    int dim = (int)c->head_dim;
    if (c->kind == FLOAT32) {
        float *k = (float *)c->keys + at;
        for (int d = 0; d < dim; d++) k[d * PAGE + within] = x[d];
    } else {
        uint16_t *k = (uint16_t *)c->keys + at;
        for (int d = 0; d < dim; d++) k[(d / 2 * PAGE + within) * 2 + d % 2] = to_bf16(x[d]);
    }
}

static void store_value(const call *c, int64_t at, int within, const float *x) {
    int dim = (int)c->head_dim;
    if (c->kind == FLOAT32) {
        memcpy((float *)c->values + at + within * dim, x, (size_t)dim * 4);
    } else {
        uint16_t *v = (uint16_t *)c->values + at + (int64_t)(within / 2) * dim * 2 + within % 2;
        for (int d = 0; d < dim; d++) v[d * 2] = to_bf16(x[d]);
    }
}

enum { ROWS_A_WRITE = 16 };

static void write_some(void *context, int task, int thread) {
    const call *c = context;
    int dim = (int)c->head_dim;
    float turned[MAX_DIM];
    (void)thread;
    for (int64_t row = task * ROWS_A_WRITE; row < c->n_rows && row < (task + 1) * ROWS_A_WRITE; row++)
        for (int64_t head = 0; head < c->n_kv_heads; head++) {
            const float *k = c->k + row * c->kv_stride + head * dim;
            if (c->turn) {
                rotate(k, c->turn + row * dim, turned, dim / 2);
                k = turned;
            }
            int64_t at = (c->slots[row] / PAGE * c->n_kv_heads + head) * PAGE * dim;
            store_key(c, at, (int)(c->slots[row] % PAGE), k);
            store_value(c, at, (int)(c->slots[row] % PAGE), c->v + row * c->kv_stride + head * dim);
        }
}

/* ---- the small product ---------------------------------------------------------------------------------------- */

/* Rows i and i + 1 of b, n columns (at most LANES); the second may be unwritten memory: see `single`. */
INLINE void load_pair(const int kind, const char *b, int64_t stride, int n, vf *even, vf *odd) {
    if (kind == FLOAT32) {
        const float *p = (const float *)b;
        *even = n == LANES ? load(p) : load_some(p, n);
        *odd = n == LANES ? load(p + stride) : load_some(p + stride, n);
    } else {
        vi both = {0};
        memcpy(&both, b, n == LANES ? sizeof both : (size_t)n * 4);
        *even = (vf)(both << 16);
        *odd = (vf)(both & splat_int((int32_t)0xFFFF0000));
    }
}

/* y [M, n] (+)= a [M, length] b [length, n], b in pairs of rows as stored, a row of it `stride` values long. M, C, kind
 * and, where C > 1, n = C * LANES are constants after inlining; every output is summed in the order of `length`
 * whatever they are. */
INLINE void tile(const int M, const int C, const int kind, const float *a, int64_t a_stride, const char *b, int64_t stride,
                 int first, int length, int n, int add, float *y, int64_t y_stride) {
    const int64_t step = kind == FLOAT32 ? stride * 8 : stride * 4;
    const int width = n < LANES ? n : LANES;
    vf acc[TILE][2], even[2], odd[2];
    UNROLL for (int m = 0; m < M; m++) UNROLL for (int c = 0; c < C; c++) {
        const float *from = y + m * y_stride + c * LANES;
        acc[m][c] = !add ? splat(0) : width == LANES ? load(from) : load_some(from, width);
    }
    for (int i = first; i + 1 < length; i += 2) {
        UNROLL for (int c = 0; c < C; c++) load_pair(kind, b + i / 2 * step + c * WIDTH, stride, width, even + c, odd + c);
        UNROLL for (int m = 0; m < M; m++) {
            vf one = splat(a[m * a_stride + i]), two = splat(a[m * a_stride + i + 1]);
            UNROLL for (int c = 0; c < C; c++) acc[m][c] = fused(one, even[c], acc[m][c]);
            UNROLL for (int c = 0; c < C; c++) acc[m][c] = fused(two, odd[c], acc[m][c]);
        }
    }
    if (length % 2) /* the other of the pair was never written */
        UNROLL for (int c = 0; c < C; c++) {
            load_pair(kind, b + length / 2 * step + c * WIDTH, 0, width, even + c, odd + c);
            UNROLL for (int m = 0; m < M; m++)
                acc[m][c] = fused(splat(a[m * a_stride + length - 1]), even[c], acc[m][c]);
        }
    UNROLL for (int m = 0; m < M; m++) UNROLL for (int c = 0; c < C; c++)
        memcpy(y + m * y_stride + c * LANES, &acc[m][c], width == LANES ? sizeof(vf) : (size_t)width * 4);
}

/* As `tile` for any number of rows and columns; first is even. */
INLINE void product(const int kind, int rows, const float *a, int64_t a_stride, const char *b, int64_t stride, int first,
                    int length, int columns, int add, float *y, int64_t y_stride) {
    int n;
    for (int column = 0; column < columns; column += n) {
        const char *at = b + (int64_t)column * 4; /* a pair of bf16 or one float */
        int m = 0, wide = columns - column >= 2 * LANES;
        n = wide ? 2 * LANES : columns - column < LANES ? columns - column : LANES;
#define TILES(M, C, N) \
    for (; m + M <= rows; m += M) \
        tile(M, C, kind, a + m * a_stride, a_stride, at, stride, first, length, N, add, y + m * y_stride + column, y_stride);
        if (wide) {
            if (WIDTH == 64) TILES(8, 2, 2 * LANES)
            TILES(4, 2, 2 * LANES)
            TILES(3, 2, 2 * LANES)
            TILES(2, 2, 2 * LANES)
            TILES(1, 2, 2 * LANES)
        }
        TILES(4, 1, n)
        TILES(1, 1, n)
#undef TILES
    }
}

/* ---- attend ---------------------------------------------------------------------------------------------------- */

typedef struct {
    float q[MAX_QUERIES * MAX_DIM], acc[MAX_QUERIES * MAX_DIM], p[MAX_QUERIES * PAGE];
    float most[MAX_QUERIES], total[MAX_QUERIES];
} state;

/* Scores of one query over a page to weights; the running maximum and sum follow. Keys first..last-1 are its own. */
static void weigh(float *p, int first, int last, float *most, float *total, float *acc, int dim) {
    float top[PAGE];
    for (int i = 0; i < PAGE; i++) top[i] = i < first || i >= last ? -INFINITY : p[i];
    vf high = load(top);
    for (int i = LANES; i < PAGE; i += LANES) high = larger(load(top + i), high);
    float now = largest(high), before = *most;
    if (before > now) now = before;
    vf part = {0};
    for (int i = 0; i < PAGE; i += LANES) {
        vf weight = exponential(load(top + i) - splat(now));
        store(p + i, weight);
        part += weight;
    }
    if (now != before) {
        vf shrink = exponential(splat(before - now));
        *total *= shrink[0];
        for (int d = 0; d < dim; d += LANES) store(acc + d, load(acc + d) * shrink);
        *most = now;
    }
    *total += sum(part);
}

/* A page's keys and values of one head, before they are wanted: pages lie anywhere, hardware does not foresee them. */
INLINE void prefetch(const call *c, int64_t page, int head, int bytes) {
    int64_t size = PAGE * c->head_dim * bytes, at = (page * c->n_kv_heads + head) * size;
    for (int64_t i = 0; i < size; i += 64) {
        __builtin_prefetch((const char *)c->keys + at + i);
        __builtin_prefetch((const char *)c->values + at + i);
    }
}

INLINE void attend(const int kind, const call *c, int index, state *s) {
    const task_t *t = c->tasks + index / c->n_kv_heads;
    const int dim = (int)c->head_dim, group = (int)(c->n_heads / c->n_kv_heads), head = (int)(index % c->n_kv_heads);
    const int n = (int)t->n_rows * group, bytes = kind == FLOAT32 ? 4 : 2;
    const int padded = (dim + LANES - 1) / LANES * LANES; /* `weigh` scales whole vectors */
    const float scale = 1.0f / sqrtf((float)dim);
    for (int m = 0; m < n; m++) {
        int64_t row = t->row + m / group;
        const float *q = c->q + row * c->q_stride + (head * group + m % group) * dim;
        float *mine = s->q + m * padded;
        if (c->turn) rotate(q, c->turn + row * dim, mine, dim / 2);
        else memcpy(mine, q, (size_t)dim * 4);
        for (int d = 0; d < dim; d++) mine[d] *= scale;
        memset(s->acc + m * padded, 0, (size_t)padded * 4);
        s->most[m] = -INFINITY;
        s->total[m] = 0;
    }
    int64_t end = t->position + t->n_rows;
    for (int64_t block = t->block; block * PAGE < end; block++) {
        int64_t start = block * PAGE, page = c->pages[t->page + block - t->block];
        int64_t at = (page * c->n_kv_heads + head) * PAGE * dim * bytes;
        /* Queries that see any of this page: rows from `low` (causal) to `high` (window). */
        int64_t low = start > t->position ? start - t->position : 0, high = t->n_rows;
        if (c->window && start + PAGE + c->window - 1 - t->position < high) high = start + PAGE + c->window - 1 - t->position;
        if (low >= high) continue;
        if ((block + 1) * PAGE < end) prefetch(c, c->pages[t->page + block + 1 - t->block], head, bytes);
        int from = (int)low * group, many = (int)(high - low) * group;
        float *p = s->p + from * PAGE;
        product(kind, many, s->q + from * padded, padded, (char *)c->keys + at, PAGE, 0, dim, PAGE, 0, p, PAGE);
        int least = PAGE, most = 0;
        for (int m = from; m < from + many; m++) {
            int64_t position = t->position + m / group, begin = c->window ? position - c->window + 1 - start : 0;
            int first = begin > 0 ? (int)begin : 0, last = position + 1 - start < PAGE ? (int)(position + 1 - start) : PAGE;
            weigh(s->p + m * PAGE, first, last, s->most + m, s->total + m, s->acc + m * padded, padded);
            least = first < least ? first : least;
            most = last > most ? last : most;
        }
        product(kind, many, p, PAGE, (char *)c->values + at, dim, least & ~1, most, dim, 1, s->acc + from * padded, padded);
    }
    for (int m = 0; m < n; m++) {
        float *y = c->out + (t->row + m / group) * c->n_heads * dim + (head * group + m % group) * dim;
        for (int d = 0; d < dim; d++) y[d] = s->acc[m * padded + d] / s->total[m];
    }
}

static void attend_some(void *context, int task, int thread) {
    const call *c = context;
    static _Thread_local state mine;
    (void)thread;
    if (c->kind == FLOAT32) attend(FLOAT32, c, task, &mine);
    else attend(BF16, c, task, &mine);
}

/* Store the keys and values of all rows, then attend. With `turn` [n_rows, 2, head_dim/2] q and k are rotated first. */
void EXPORT(attention)(const call *c) {
    noria_parallel(write_some, (void *)c, (int)((c->n_rows + ROWS_A_WRITE - 1) / ROWS_A_WRITE));
    noria_parallel(attend_some, (void *)c, (int)(c->n_tasks * c->n_kv_heads));
}
