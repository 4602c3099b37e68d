/* The layout of keys and values. A page holds a cell for each key head: its keys, then its values.
 *
 * float32   keys [head_dim][PAGE], values [PAGE][head_dim].
 * bfloat16  keys [head_dim/2][PAGE][2], values [PAGE/2][head_dim][2]: words of two elements along the summed axis. Four
 *           elements have two words, see `in_order`.
 * int8      keys [width/4][PAGE][4], bytes q + 128, values [PAGE/4][width][4], bytes q, |q| <= 127. A float for each
 *           position follows the keys, and another one follows the values: the factors of their q. width is head_dim
 *           rounded up to a multiple of 16.
 *
 * With latent attention a cell has only keys. Their first channels are the values, which `values_of` moves here.
 *
 * With this layout q k' and p v are the same small product: rows of words (a float, a pair, a quad) that every query
 * multiplies.
 */
#pragma once
#include "amx.h"
#include "attention/attention.h"

/* Even and odd elements are two chains of additions, see tiles.h. An instruction that adds both products of a word to
 * one sum needs two elements of one chain in a word. All others need two neighbours. */
#if defined(__AVX512BF16__) && !defined(AMX)
#define CHAINED 1
#else
#define CHAINED 0
#endif

/* PAIRS_BY_TILES: bfloat16 where the tile registers compute; its cells are those of BF16. */
enum { BF16, FLOAT32, INT8, PAIRS_BY_TILES };
/* MAX_DIM, MAX_VALUE: channels at most of a key, and of a value. */
enum { MAX_DIM = 576, MAX_VALUE = 512, UPPER = (int32_t)0xFFFF0000 };
/* Whether queries and weights of `kind` are words of bfloat16 too: else floats, rounded to bfloat16. */
INLINE int in_words(const int kind) { return kind == PAIRS_BY_TILES || (kind == BF16 && CHAINED); }

INLINE int byte_width(int dim) { return (dim + 15) / 16 * 16; }
/* The number of bytes of the keys of a cell, or of its values. */
INLINE int64_t half_bytes(int kind, int dim) {
    return kind == FLOAT32 ? PAGE * dim * 4 : kind == INT8 ? PAGE * (byte_width(dim) + 4) : PAGE * dim * 2;
}
INLINE const float *factors(const char *half, int dim) { return (const float *)(half + PAGE * byte_width(dim)); }

INLINE uint16_t to_bf16(float x) {
    uint32_t bits;
    x += 0.0f;
    memcpy(&bits, &x, 4);
    return x != x ? 0x7FC0 : (uint16_t)((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

/* The elements of eight quads in the order of their halves. */
#if CHAINED
static const uint16_t in_order[32] = EIGHT_QUADS(CHAINED_QUAD);
#else
static const uint16_t in_order[32] = EIGHT_QUADS(PLAIN_QUAD);
#endif

/* Which half holds element i of n. A last pair alone has one word: its upper half is first, if there are chains. */
INLINE int place_of(int i, int n) {
    const int at = i % 4;
    if (!CHAINED) return i;
    if ((i | 3) >= n) return i - at + 1 - at;
    int place = 0;
    while (in_order[place] != at) place++;
    return i - at + place;
}

/* The halves of a word that hold the first n positions of a quad; `word` is 0 or 1. */
INLINE int32_t mask_of(int word, int n) {
    int32_t mask = 0;
    for (int i = 0; i < n; i++)
        if (place_of(i, 4) / 2 == word) mask |= place_of(i, 4) % 2 ? UPPER : ~UPPER;
    return mask;
}

/* Rounds x [n] to bfloat16 and stores it as words. */
INLINE void to_pairs(const float *x, int n, uint16_t *words) {
    int i = 0;
#if defined(__AVX512BF16__)
    for (; i + 32 <= n; i += 32) {
        __m512i pairs = (__m512i)_mm512_cvtne2ps_pbh((__m512)load(x + i + 16), (__m512)load(x + i));
        if (CHAINED) pairs = _mm512_permutexvar_epi16((__m512i)load_int(in_order), pairs);
        memcpy(words + i, &pairs, sizeof pairs);
    }
#endif
    for (; i < n; i++) words[place_of(i, n)] = to_bf16(x[i]);
}

/* Rotates one head by cos [dim/2] and sin [dim/2], both in `rotations`: pairs are (i, i + dim/2). y is not x. */
INLINE void rotate(const float *x, const float *rotations, float *y, int half) {
    int i = 0;
    for (; i + LANES <= half; i += LANES) {
        vf a = load(x + i), b = load(x + i + half), c = load(rotations + i), s = load(rotations + half + i);
        store(y + i, a * c - b * s);
        store(y + i + half, b * c + a * s);
    }
    for (; i < half; i++) {
        float a = x[i], b = x[i + half], c = rotations[i], s = rotations[half + i];
        y[i] = a * c - b * s;
        y[i + half] = b * c + a * s;
    }
}

/* Quantizes x [n], padded with zeros to a multiple of 16, to q [n], and returns the factor: x = q * factor, |q| <= 127.
 * With `rest` [n], x = (128 q + rest) * factor, and `total` is the sum of 128 q + rest. */
INLINE float to_bytes(const float *x, int n, int8_t *q, int8_t *rest, int32_t *total) {
    const float units = rest ? 127 * 128 : 127;
    vi most = {0};
    for (int i = 0; i < n; i += LANES) most = larger_bits(magnitude(load(x + i)), most);
    float amax = greatest_magnitude(most), inverse = amax <= 1e-30f ? 0 : units / amax;
    vi sums = {0};
    for (int i = 0; i < n; i += LANES) {
        vi whole = nearest(load(x + i) * splat(inverse)), high = rest ? (whole + splat_int(64)) >> 7 : whole;
        vb bytes = __builtin_convertvector(high, vb);
        memcpy(q + i, &bytes, sizeof bytes);
        if (!rest) continue;
        sums += whole;
        bytes = __builtin_convertvector(whole - (high << 7), vb);
        memcpy(rest + i, &bytes, sizeof bytes);
    }
    if (rest) *total = sum_int(sums);
    return amax <= 1e-30f ? 0 : amax / units;
}

/* Quantizes a key or a value x [dim] for its position `within`, and returns the number of its bytes. */
INLINE int quantize(char *half, int dim, int within, const float *x, int8_t *q) {
    int width = byte_width(dim);
    float whole[MAX_DIM];
    memcpy(whole, x, (size_t)dim * 4);
    memset(whole + dim, 0, (size_t)(width - dim) * 4);
    float factor = to_bytes(whole, width, q, 0, 0);
    memcpy((float *)(half + PAGE * width) + within, &factor, 4);
    return width;
}

INLINE void store_key(const int kind, char *keys, int dim, int within, const float *x) {
    uint16_t half[MAX_DIM];
    int8_t q[MAX_DIM];
    if (kind == INT8) {
        int width = quantize(keys, dim, within, x, q);
        for (int d = 0; d < width; d++) q[d] ^= (int8_t)128;
        for (int d = 0; d < width; d += 4) memcpy(keys + (d / 4 * PAGE + within) * 4, q + d, 4);
    }
    for (int d = 0; kind == FLOAT32 && d < dim; d++) ((float *)keys)[d * PAGE + within] = x[d];
    if (kind == BF16) to_pairs(x, dim, half);
    for (int d = 0; kind == BF16 && d < dim; d += 2) memcpy(keys + (d / 2 * PAGE + within) * 4, half + d, 4);
}

INLINE void store_value(const int kind, char *values, int dim, int within, const float *x) {
    int8_t q[MAX_DIM];
    if (kind == INT8) {
        int width = quantize(values, dim, within, x, q);
        char *to = values + within / 4 * width * 4 + within % 4;
        for (int d = 0; d < width; d++) to[d * 4] = q[d];
    }
    if (kind == FLOAT32) memcpy((float *)values + within * dim, x, (size_t)dim * 4);
    const int place = place_of(within, PAGE);
    uint16_t *halves = (uint16_t *)values + place / 2 * dim * 2 + place % 2;
    for (int d = 0; kind == BF16 && d < dim; d++) halves[d * 2] = to_bf16(x[d]);
}

/* Stores the values x of a quad of positions in bfloat16: whole words. */
INLINE void store_quad(char *values, int dim, int within, const float *const *x) {
    const float *at[4];
    for (int i = 0; i < 4; i++) at[place_of(i, 4)] = x[i];
    for (int word = 0; word < 2; word++) {
        const float *low = at[2 * word], *high = at[2 * word + 1];
        char *to = values + (within / 2 + word) * dim * 4;
        int d = 0;
        for (; d + LANES <= dim; d += LANES) store((float *)to + d, (vf)(to_halves(load(low + d)) | to_halves(load(high + d)) << 16));
        for (; d < dim; d++) {
            uint16_t both[2] = {to_bf16(low[d]), to_bf16(high[d])};
            memcpy(to + d * 4, both, 4);
        }
    }
}

/* The elements of a quad in the lower and in the upper half of word j. */
#define LOWER(j) (CHAINED ? 2 + (j) : 2 * (j))
#define UPPER_OF(j) (CHAINED ? (j) : 2 * (j) + 1)

/* `values_of` for four channels of bfloat16, whose words of keys are two rows of `words`: of two positions that share a
 * word of values, both halves of each word. */
INLINE void turn_quad(const uint32_t *words, int n, char *to) {
    uint32_t found[4][PAGE / 2];
    UNROLL for (int j = 0; j < 2; j++)
        for (int p = 0; p < PAGE / 2; p++) {
            const uint32_t *quad = words + j * PAGE + p / 2 * 4, low = quad[LOWER(p % 2)], high = quad[UPPER_OF(p % 2)];
            found[LOWER(j)][p] = (low & ~(uint32_t)UPPER) | high << 16;
            found[UPPER_OF(j)][p] = low >> 16 | (high & (uint32_t)UPPER);
        }
    for (int p = 0; p < PAGE / 2; p++) {
        const uint32_t four[4] = {found[0][p], found[1][p], found[2][p], found[3][p]};
        memcpy(to + p * n * 4, four, 16);
    }
}

/* The layout of values of the first n channels of a page's keys of `dim` channels, made in `to`. */
INLINE const char *values_of(const int kind, const char *keys, int dim, int n, char *to) {
    const int width = byte_width(n);
    int d = 0;
    for (; kind == FLOAT32 && d < n; d++)
        for (int i = 0; i < PAGE; i++) memcpy(to + (i * n + d) * 4, keys + (d * PAGE + i) * 4, 4);
    for (; kind == INT8 && d < width; d++)
        for (int i = 0; i < PAGE; i++) to[(i / 4 * width + d) * 4 + i % 4] = (char)(keys[(d / 4 * PAGE + i) * 4 + d % 4] ^ 128);
    if (kind == FLOAT32 || kind == INT8) return to;
    for (; d + 4 <= n; d += 4) turn_quad((const uint32_t *)keys + d / 2 * PAGE, n, to + d * 4);
    for (; d < n; d++)
        for (int i = 0; i < PAGE; i++) {
            const int half = place_of(d, dim), place = place_of(i, PAGE);
            memcpy(to + (place / 2 * n + d) * 4 + place % 2 * 2, keys + (half / 2 * PAGE + i) * 4 + half % 2 * 2, 2);
        }
    return to;
}
