/* Stores weights of a checkpoint in the records of linear.c. A task is a block of 16 outputs. */
#include "linear/linear.h"
#include "linear/words.h"
#include "pool.h"

enum { OUTPUTS = 16, CHANNELS = 64, GROUP = 32 };
CONSTANTS(floats, {"float32", FLOAT32}, {"float16", FLOAT16}, {"bfloat16", BFLOAT16});
CONSTANTS(packing, {"OUTPUTS", OUTPUTS}, {"INT8_GROUP", CHANNELS}, {"BLOCK_GROUP", GROUP}, {"SUPERBLOCK", IN_SUPERBLOCK * GROUP},
          {"SUPERBLOCK_BYTES", SUPERBLOCK / OUTPUTS}, {"MAX_CHANNELS", MAX_CHANNELS});

typedef struct {
    const char *rows;
    int64_t kind, n, first;
    const weights *w;
    int broken;
} floats;

INLINE vf value(const int KIND, const char *x, int i) {
    typedef uint16_t halves __attribute__((vector_size(WIDTH / 2)));
    halves h;
    if (KIND == FLOAT32) return load(x + i * 4);
    if (KIND == FLOAT16) return load_half(x + i * 2);
    memcpy(&h, x + i * 2, sizeof h);
    return (vf)(__builtin_convertvector(h, vi) << 16);
}

/* Group g of a row. If the last group is not full, it is copied to `copy` and padded with zeros. */
INLINE const char *group(const char *row, int64_t g, int64_t n_in, int size, char *copy) {
    int64_t left = n_in - g * CHANNELS;
    const char *x = row + g * CHANNELS * size;
    if (left >= CHANNELS) return x;
    memset(copy, 0, CHANNELS * 4);
    return memcpy(copy, x, (size_t)(left * size));
}

/* Stores one output as bytes. The greatest magnitude becomes 127. Returns whether a value is not finite. */
INLINE int quantize_row(const int KIND, const char *row, const weights *w, uint8_t *to, float *scale) {
    const int size = KIND == FLOAT32 ? 4 : 2;
    const int64_t groups = (w->n_in + CHANNELS - 1) / CHANNELS;
    char copy[CHANNELS * 4];
    int8_t q[CHANNELS];
    vi most = {0};
    for (int64_t g = 0; g < groups; g++) {
        const char *x = group(row, g, w->n_in, size, copy);
        for (int i = 0; i < CHANNELS; i += LANES) most = larger_bits(magnitude(value(KIND, x, i)), most);
    }
    const float amax = greatest_magnitude(most), inverse = amax <= 1e-30f ? 0 : 127 / amax;
    *scale = amax <= 1e-30f ? 0 : amax / 127;
    for (int64_t g = 0; g < groups; g++, to += CHANNELS * OUTPUTS) {
        const char *x = group(row, g, w->n_in, size, copy);
        for (int i = 0; i < CHANNELS; i += LANES) {
            vb bytes = __builtin_convertvector(nearest(value(KIND, x, i) * splat(inverse)), vb);
            memcpy(q + i, &bytes, sizeof bytes);
        }
        for (int i = 0; i < CHANNELS; i += 4) {
            uint32_t quad;
            memcpy(&quad, q + i, 4);
            quad ^= 0x80808080;
            memcpy(to + i * OUTPUTS, &quad, 4);
        }
    }
    return !(amax < INFINITY);
}

/* Stores one output as words of bfloat16, rounded to nearest. Returns whether a rounded value is not finite. */
INLINE int round_row(const int KIND, const char *row, const weights *w, uint8_t *to) {
    const int size = KIND == FLOAT32 ? 4 : 2;
    char copy[CHANNELS * 4];
    uint32_t bits[CHANNELS];
    vi most = {0};
    for (int64_t g = 0; g < (w->n_in + CHANNELS - 1) / CHANNELS; g++) {
        const char *x = group(row, g, w->n_in, size, copy);
        for (int i = 0; i < CHANNELS; i += LANES) {
            vu some = (vu)value(KIND, x, i);
            most = larger_bits(magnitude((vf)some), most);
            some += 0x7FFFu + (some >> 16 & 1u);
            memcpy(bits + i, &some, sizeof some);
        }
        for (int p = 0; p < CHANNELS / 2; p++, to += OUTPUTS * 4) {
            const uint32_t *step = bits + p / WORDS_A_STEP * CHANNELS_A_STEP;
            uint32_t word = step[in_word(p % WORDS_A_STEP, 0)] >> 16 | (step[in_word(p % WORDS_A_STEP, 1)] & 0xFFFF0000);
            memcpy(to, &word, 4);
        }
    }
    return !(greatest_magnitude(most) < 0x1.FFp127f);
}

INLINE int pack_row(const int KIND, const char *row, const weights *w, uint8_t *to, float *scale) {
    return w->format == BF16 ? round_row(KIND, row, w, to) : quantize_row(KIND, row, w, to, scale);
}

static void quantize_outputs(void *context, int task, int thread) {
    floats *c = context;
    const weights *w = c->w;
    const int64_t groups = (w->n_in + CHANNELS - 1) / CHANNELS, block = c->first / OUTPUTS + task;
    const int64_t bytes = groups * CHANNELS * OUTPUTS * (w->format == BF16 ? 2 : 1);
    for (int64_t n = block * OUTPUTS; n < (block + 1) * OUTPUTS; n++) {
        if (n < c->first || n >= c->first + c->n) continue;
        const char *row = c->rows + (n - c->first) * w->n_in * (c->kind == FLOAT32 ? 4 : 2);
        uint8_t *to = (uint8_t *)w->packed + block * bytes + n % OUTPUTS * 4;
        float *scale = (float *)w->scales + n;
        int broken = c->kind == FLOAT32   ? pack_row(FLOAT32, row, w, to, scale)
                     : c->kind == FLOAT16 ? pack_row(FLOAT16, row, w, to, scale)
                                          : pack_row(BFLOAT16, row, w, to, scale);
        if (broken) __atomic_store_n(&c->broken, 1, __ATOMIC_RELAXED);
    }
}

/* Stores rows [n, n_in] as outputs first..first+n-1 of INT8 or BF16 weights. Returns whether a value is not finite. */
int64_t EXPORT(quantize)(const weights *w, int64_t first, const void *rows, int64_t kind, int64_t n) {
    floats c = {rows, kind, n, first, w, 0};
    noria_parallel(quantize_outputs, &c, (int)((first + n - 1) / OUTPUTS - first / OUTPUTS + 1));
    return c.broken;
}

/* Values [n][n_in/32] of each output and group; `output` and `group` are the bytes between neighbours. */
typedef struct {
    const char *at;
    int64_t output, group;
} grid;
#define F(name) FIELD(grid, name)
FIELDS(grid, F(at), F(output), F(group));
#undef F

typedef struct {
    const grid *quants, *scales, *mins;
    const weights *w;
    int64_t n_bytes, n, first;
} blocks;

static void pack_outputs(void *context, int task, int thread) {
    const blocks *c = context;
    const int64_t groups = c->w->n_in / GROUP, n_bytes = c->n_bytes, block = c->first / OUTPUTS + task;
    const int64_t bytes = OUTPUTS * (n_bytes + (c->mins ? 4 : 2));
    for (int64_t n = block * OUTPUTS; n < (block + 1) * OUTPUTS; n++) {
        const int64_t from = n - c->first, within = n % OUTPUTS;
        uint8_t *record = (uint8_t *)c->w->packed + block * groups * bytes;
        if (from < 0 || from >= c->n) continue;
#define AT(part, g) (c->part->at + from * c->part->output + (g) * c->part->group)
        for (int64_t g = 0; g < groups; g++, record += bytes) {
            uint8_t q[GROUP];
            memcpy(q, AT(quants, g), (size_t)n_bytes);
            for (int i = 0; n_bytes == GROUP && i < GROUP; i++) q[i] = q[i] == 128 ? 1 : q[i] ^ 128;
            for (int i = 0; i < n_bytes; i += 4) memcpy(record + i * OUTPUTS + within * 4, q + i, 4);
            memcpy(record + n_bytes * OUTPUTS + within * 2, AT(scales, g), 2);
            if (c->mins) memcpy(record + (n_bytes + 2) * OUTPUTS + within * 2, AT(mins, g), 2);
        }
#undef AT
    }
}

typedef struct {
    const uint8_t *rows;
    const weights *w;
    int64_t stride, n, first;
} superblocks;

/* Field i of 16: see `six_bits` in tiles.h. */
INLINE void put_six_bits(uint32_t *words, int i, uint32_t value) {
    if (i < 15) words[i / 5] |= value << i % 5 * 6;
    for (int k = 0; i == 15 && k < 3; k++) words[k] |= value >> 2 * k << 30;
}

/* Stores a block of 144 bytes of one output: see _q4_k and _scales_and_minima in gguf/blocks.py. */
static void pack_superblock(const uint8_t *from, uint8_t *to, int64_t within) {
    enum { LOW = 0x0F0F0F0F };
    const uint8_t *six = from + 4;
    uint32_t words[3] = {0};
    for (int i = 0; i < 16; i++) { /* quad i % 4 of groups i / 4 * 2 and i / 4 * 2 + 1 */
        uint32_t a, b, pair[2];
        memcpy(&a, from + 16 + i / 4 * 32 + i % 4 * 4, 4);
        memcpy(&b, from + 32 + i / 4 * 32 + i % 4 * 4, 4);
        pair[0] = (a & LOW) | (b & LOW) << 4;
        pair[1] = (a >> 4 & LOW) | (b & ~(uint32_t)LOW);
        for (int k = 0; k < 2; k++) memcpy(to + (i / 4 * 2 + k) * 256 + i % 4 * 64 + within * 4, pair + k, 4);
    }
    for (int g = 0; g < IN_SUPERBLOCK; g++) {
        uint32_t s = g < 4 ? six[g] & 63u : (six[g + 4] & 15u) | (six[g - 4] >> 6) << 4;
        uint32_t m = g < 4 ? six[g + 4] & 63u : six[g + 4] >> 4 | (six[g] >> 6) << 4;
        put_six_bits(words, g, s);
        put_six_bits(words, IN_SUPERBLOCK + g, m);
    }
    uint16_t factors[2];
    memcpy(factors, from, 4);
    factors[1] ^= 0x8000; /* a minimum of Q4_K is subtracted */
    to += IN_SUPERBLOCK * 256;
    for (int k = 0; k < 3; k++) memcpy(to + k * 64 + within * 4, words + k, 4);
    for (int k = 0; k < 2; k++) memcpy(to + 192 + k * 32 + within * 2, factors + k, 2);
}

static void pack_rows(void *context, int task, int thread) {
    const superblocks *c = context;
    const int64_t n_blocks = c->w->n_in / GROUP / IN_SUPERBLOCK, block = c->first / OUTPUTS + task;
    for (int64_t n = block * OUTPUTS; n < (block + 1) * OUTPUTS; n++) {
        if (n < c->first || n >= c->first + c->n) continue;
        const uint8_t *from = c->rows + (n - c->first) * c->stride;
        uint8_t *to = (uint8_t *)c->w->packed + block * n_blocks * SUPERBLOCK;
        for (int64_t b = 0; b < n_blocks; b++) pack_superblock(from + b * 144, to + b * SUPERBLOCK, n % OUTPUTS);
    }
}

/* Rows of FP4: codes [n, n_in / 2], the even channel in the lower half of a byte, and scales [n, n_in / 16 or 32]. */
typedef struct {
    const uint8_t *codes, *scales;
    const weights *w;
    int64_t code_stride, scale_stride, n, first;
} fp4_rows;

/* A group of 32 channels of one output: those that are 16 apart share a byte of a record. */
INLINE void pack_fp4_group(const uint8_t *from, uint8_t *to) {
    uint8_t q[GROUP / 2];
    for (int i = 0; i < GROUP / 4; i++) {
        const uint8_t low = from[i], high = from[i + GROUP / 4];
        q[2 * i] = (uint8_t)((low & 15) | high << 4);
        q[2 * i + 1] = (uint8_t)(low >> 4 | (high & 0xF0));
    }
    for (int i = 0; i < GROUP / 2; i += 4) memcpy(to + i * OUTPUTS, q + i, 4);
}

static void pack_fp4_outputs(void *context, int task, int thread) {
    const fp4_rows *c = context;
    const int64_t groups = c->w->n_in / GROUP, a_group = c->w->format == NVFP4 ? 2 : 1, block = c->first / OUTPUTS + task;
    enum { CODES = OUTPUTS * GROUP / 2 };
    for (int64_t n = block * OUTPUTS; n < (block + 1) * OUTPUTS; n++) {
        const int64_t from = n - c->first, within = n % OUTPUTS;
        if (from < 0 || from >= c->n) continue;
        const uint8_t *codes = c->codes + from * c->code_stride, *scales = c->scales + from * c->scale_stride;
        uint8_t *to = (uint8_t *)c->w->packed + block * groups * (CODES + a_group * OUTPUTS);
        for (int64_t g = 0; g < groups; g++) pack_fp4_group(codes + g * GROUP / 2, to + g * CODES + within * 4);
        for (int64_t i = 0; i < groups * a_group; i++) to[groups * CODES + i * OUTPUTS + within] = scales[i];
    }
}

/* Outputs first..first+n-1 of weights in NVFP4 or MXFP4 from rows of a file, whose strides are in bytes. */
void EXPORT(pack_fp4)(const weights *w, int64_t first, int64_t n, const uint8_t *codes, int64_t code_stride, const uint8_t *scales,
                      int64_t scale_stride) {
    fp4_rows c = {codes, scales, w, code_stride, scale_stride, n, first};
    noria_parallel(pack_fp4_outputs, &c, (int)((first + n - 1) / OUTPUTS - first / OUTPUTS + 1));
}

/* Outputs first..first+n-1 of Q4_K weights from rows of a GGUF file, `stride` bytes apart. */
void EXPORT(pack_superblocks)(const weights *w, int64_t first, int64_t n, const uint8_t *rows, int64_t stride) {
    superblocks c = {rows, w, stride, n, first};
    noria_parallel(pack_rows, &c, (int)((first + n - 1) / OUTPUTS - first / OUTPUTS + 1));
}

/* Outputs first..first+n-1 of weights in blocks: n_bytes of a group's weights, float16 scales and minima (or 0). */
void EXPORT(pack)(const weights *w, int64_t first, int64_t n, const grid *quants, int64_t n_bytes, const grid *scales,
                  const grid *mins) {
    blocks c = {quants, scales, mins, w, n_bytes, n, first};
    noria_parallel(pack_outputs, &c, (int)((first + n - 1) / OUTPUTS - first / OUTPUTS + 1));
}
