/* Vector types of the compiler, as wide as those of the instruction set: one source for AVX-512, AVX2, NEON and plain
 * C. Only the multiply-adds are written with intrinsics. Compile with -ffp-contract=off: only `fused` multiplies and
 * adds with one rounding, so that a row's bits do not depend on other rows.
 */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#define GLUE2(a, b) a##_##b
#define GLUE(a, b) GLUE2(a, b)
#define EXPORT(name) __attribute__((visibility("default"))) GLUE(name, VARIANT)
/* What Python reads in the library: the names of a struct's fields in the order of the declaration, with their types,
 * and at last the struct's bytes; and the names of numbers, which records.py repeats. */
typedef struct {
    const char *name;
    int64_t value;
} entry_t;
#define FIELD(type, name) {#name, _Generic(((type *)0)->name, float: 'f', int32_t: 'i', int64_t: 'q', default: 'P')}
#define FIELDS(type, ...) const entry_t EXPORT(fields_##type)[] = {__VA_ARGS__, {0, sizeof(type)}}
#define CONSTANTS(group, ...) const entry_t EXPORT(constants_##group)[] = {__VA_ARGS__, {0, 0}}
#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#if defined(__AVX512VNNI__)
enum { WIDTH = 64 };
#elif defined(__AVX2__)
enum { WIDTH = 32 };
#else
enum { WIDTH = 16 };
#endif
enum { LANES = WIDTH / 4 };

typedef float vf __attribute__((vector_size(WIDTH)));
typedef int32_t vi __attribute__((vector_size(WIDTH)));
typedef uint32_t vu __attribute__((vector_size(WIDTH))); /* its sums and products may wrap around */
typedef int16_t vh __attribute__((vector_size(WIDTH)));
typedef int8_t vb __attribute__((vector_size(WIDTH / 4)));

INLINE int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t most_of(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE vf splat(float x) { return x - (vf){0}; }
INLINE vi splat_int(int32_t x) { return x - (vi){0}; }
INLINE vf load(const void *p) { vf v; memcpy(&v, p, sizeof v); return v; }
INLINE vi load_int(const void *p) { vi v; memcpy(&v, p, sizeof v); return v; }
INLINE void store(float *p, vf v) { memcpy(p, &v, sizeof v); }
/* The first n floats, then zeros. */
INLINE vf load_some(const float *p, int n) { vf v = {0}; memcpy(&v, p, (size_t)n * 4); return v; }
INLINE vf choose(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); }
/* LANES values of float16, at any address. */
INLINE vf load_half(const void *p) {
#if defined(__AVX512VNNI__)
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256(p));
#elif defined(__AVX2__)
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128(p));
#else
    typedef uint16_t half __attribute__((vector_size(WIDTH / 2)));
    half h;
    memcpy(&h, p, sizeof h);
    vi bits = __builtin_convertvector(h, vi);
    vi endless = (bits & splat_int(0x7C00)) == splat_int(0x7C00); /* infinity or NaN */
    vi tiny = (bits & splat_int(0x7C00)) == splat_int(0); /* subnormal as floats, which count as 0 */
    vf normal = (vf)((bits & splat_int(0x7FFF)) << 13) * splat(0x1p112f);
    vf magnitude = choose(tiny, __builtin_convertvector(bits & splat_int(0x3FF), vf) * splat(0x1p-24f), normal);
    return (vf)((vi)magnitude | (endless & splat_int(0x7F800000)) | (bits & splat_int(0x8000)) << 16);
#endif
}
/* LANES numbers of e4m3 that are not negative, times 2^-8: as float16 with a zero bit before the exponent. */
INLINE vf load_e4m3(const void *p) {
#if defined(__AVX512VNNI__)
    return (vf)_mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128(p)), 7));
#elif defined(__AVX2__)
    return (vf)_mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(_mm_loadl_epi64(p)), 7));
#else
    uint16_t half[LANES];
    for (int i = 0; i < LANES; i++) half[i] = (uint16_t)(((const uint8_t *)p)[i] << 7);
    return load_half(half);
#endif
}
/* LANES powers of two from their exponents in a byte each: 2^(e - 127), and 0 for e 0, below the normal range. */
INLINE vf load_e8m0(const void *p) {
#if defined(__AVX2__) && !defined(__AVX512VNNI__)
    return (vf)_mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p)), 23);
#else
    typedef uint8_t bytes __attribute__((vector_size(WIDTH / 4)));
    bytes e;
    memcpy(&e, p, sizeof e);
    return (vf)(__builtin_convertvector(e, vi) << 23);
#endif
}
/* Finite values rounded to float16: nearest, ties to even. */
INLINE vf as_half(vf x) {
#if defined(__AVX512VNNI__)
    return (vf)_mm512_cvtph_ps(_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(__AVX2__)
    return (vf)_mm256_cvtph_ps(_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
#else
    vu bits = (vu)x, sign = bits & 0x80000000u, size = bits & 0x7FFFFFFFu;
    vu normal = (size + 0xFFFu + (size >> 13 & 1u)) & ~0x1FFFu;
    vu small = (vu)((vf)size + splat(0.75f)) - (vu)splat(0.75f); /* in units of 2^-24, as those of 0.75 are */
    vu tiny = (vu)(size < (vu)splat(0x1p-14f));
    vf value = __builtin_convertvector((vi)small, vf) * splat(0x1p-24f);
    return (vf)(sign | (tiny & (vu)value) | (~tiny & normal));
#endif
}
INLINE vf larger(vf a, vf b) { /* b if either is NaN */
#if defined(__AVX512VNNI__)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return choose(a > b, a, b);
#endif
}
INLINE vi magnitude(vf a) { return (vi)a & splat_int(0x7FFFFFFF); }

/* a * b + c with one rounding where the hardware has it. */
INLINE vf fused(vf a, vf b, vf c) {
#if defined(__AVX512VNNI__)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_NEON)
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

/* Lanes i and i + LANES/2 are combined, then i and i + LANES/4, to the last: the same order at every width. */
typedef float f4 __attribute__((vector_size(16)));
typedef int32_t i4 __attribute__((vector_size(16)));
INLINE f4 larger4(f4 a, f4 b) { return (f4)(((a > b) & (i4)a) | (~(a > b) & (i4)b)); }
INLINE f4 plus4(f4 a, f4 b) { return a + b; }
#define FOLD(v, four, combine) \
    four part[LANES / 4]; \
    memcpy(part, &v, sizeof v); \
    for (int n = LANES / 8; n; n /= 2) \
        for (int i = 0; i < n; i++) part[i] = combine(part[i], part[i + n]);
INLINE float sum(vf v) {
    FOLD(v, f4, plus4)
    return (part[0][0] + part[0][2]) + (part[0][1] + part[0][3]);
}
INLINE float largest(vf v) {
#if defined(__AVX512VNNI__)
    return _mm512_reduce_max_ps((__m512)v);
#else
    FOLD(v, f4, larger4)
    float a = part[0][0] > part[0][2] ? part[0][0] : part[0][2], b = part[0][1] > part[0][3] ? part[0][1] : part[0][3];
    return a > b ? a : b;
#endif
}
/* The greatest of magnitudes. They have the order of their bits: NaN is above all, then infinity. */
INLINE vi larger_bits(vi a, vi b) {
#if defined(__AVX512VNNI__)
    return (vi)_mm512_max_epi32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (vi)_mm256_max_epi32((__m256i)a, (__m256i)b);
#else
    return ((a > b) & a) | (~(a > b) & b);
#endif
}
INLINE i4 larger4_int(i4 a, i4 b) { return ((a > b) & a) | (~(a > b) & b); }
INLINE float greatest_magnitude(vi v) {
#if defined(__AVX512VNNI__)
    int32_t most = _mm512_reduce_max_epi32((__m512i)v);
#else
    FOLD(v, i4, larger4_int)
    int32_t most = 0;
    for (int i = 0; i < 4; i++) most = part[0][i] > most ? part[0][i] : most;
#endif
    float x;
    memcpy(&x, &most, 4);
    return x;
}
INLINE i4 plus4_int(i4 a, i4 b) { return a + b; }
INLINE int32_t sum_int(vi v) {
#if defined(__AVX512VNNI__)
    return _mm512_reduce_add_epi32((__m512i)v);
#else
    FOLD(v, i4, plus4_int)
    return part[0][0] + part[0][2] + part[0][1] + part[0][3];
#endif
}

/* Sums of 64 or of 16 numbers at a time, in vectors of LANES each. Their total has the same order at every width. */
enum { WIDE_LANES = 64, PARTS = WIDE_LANES / LANES };
typedef struct {
    vf part[PARTS];
} wide;
typedef struct {
    vf part[16 / LANES];
} sums16;
INLINE float sum_parts(vf *part, int n) {
    for (n /= 2; n; n /= 2)
        for (int i = 0; i < n; i++) part[i] += part[i + n];
    return sum(part[0]);
}
INLINE float sum_wide(wide w) { return sum_parts(w.part, PARTS); }
INLINE float sum16(sums16 sums) { return sum_parts(sums.part, 16 / LANES); }

/* A bit for each lane that is not 0. */
INLINE uint64_t lanes_of(vi v) {
#if defined(__AVX512VNNI__)
    return _mm512_test_epi32_mask((__m512i)v, (__m512i)v);
#elif defined(__AVX2__)
    return (uint64_t)_mm256_movemask_ps((__m256)(v != splat_int(0)));
#else
    uint64_t bits = 0;
    UNROLL for (int i = 0; i < LANES; i++) bits |= (uint64_t)(v[i] != 0) << i;
    return bits;
#endif
}

/* How elements of bfloat16 lie in words of two if an instruction adds both products of a word to one chain, the upper
 * half first: even words then have the even elements of a quad. A quad's elements, the lower half of a word first. */
#define CHAINED_QUAD(i) i + 2, i, i + 3, i + 1
#define PLAIN_QUAD(i) i, i + 1, i + 2, i + 3
#define EIGHT_QUADS(Q) {Q(0), Q(4), Q(8), Q(12), Q(16), Q(20), Q(24), Q(28)}

/* Nearest integer, ties to even, for |x| < 2^22. */
INLINE vi nearest(vf x) { return (vi)(x + splat(12582912.0f)) - (vi)splat(12582912.0f); }

/* The bits of bfloat16 in the lower halves: nearest, ties to even; one NaN for all. */
INLINE vi half_bits(vf x) {
    vu bits = (vu)x, rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
    vi wrong = x != x;
    return (wrong & splat_int(0x7FC0)) | (~wrong & (vi)rounded);
}

/* Rounds to bfloat16. Numbers below the normal range are 0 before that, as in AMX and vcvtne2ps2bf16: an addition makes
 * them 0, see pool.c. */
INLINE vi to_halves(vf x) { return half_bits(x + splat(0)); }

/* exp, to about 1 unit in the last place; 0 below -87.3, at most exp(88.3) (the polynomial of Cephes' expf). */
INLINE vf exponential(vf x) {
    vi tiny = x < splat(-87.3f);
    x = choose(x > splat(88.3f), splat(88.3f), x);
    x = choose(tiny, splat(0), x);
    vi n = nearest(x * splat(1.44269504088896341f));
    vf k = __builtin_convertvector(n, vf);
    vf r = fused(k, splat(-0.693359375f), x);
    r = fused(k, splat(2.12194440e-4f), r);
    vf p = splat(1.9875691500e-4f);
    p = fused(p, r, splat(1.3981999507e-3f));
    p = fused(p, r, splat(8.3334519073e-3f));
    p = fused(p, r, splat(4.1665795894e-2f));
    p = fused(p, r, splat(1.6666665459e-1f));
    p = fused(p, r, splat(5.0000001201e-1f));
    p = fused(p, r * r, r + splat(1.0f));
    p = (vf)((vi)p + (n << 23));
    return choose(tiny, splat(0), p);
}

/* Natural logarithm of a normal, positive x, to about 1 unit in the last place (the polynomial of Cephes' logf). */
INLINE vf logarithm(vf x) {
    vi bits = (vi)x, n = (bits >> 23) - splat_int(126);
    vf m = (vf)((bits & splat_int(0x007FFFFF)) | splat_int(0x3F000000)); /* 0.5 <= m < 1 */
    vi small = m < splat(0.707106781186547524f);
    n += small; /* -1 where true */
    m = m + choose(small, m, splat(0)) - splat(1);
    vf k = __builtin_convertvector(n, vf), z = m * m;
    vf p = splat(7.0376836292e-2f);
    p = fused(p, m, splat(-1.1514610310e-1f));
    p = fused(p, m, splat(1.1676998740e-1f));
    p = fused(p, m, splat(-1.2420140846e-1f));
    p = fused(p, m, splat(1.4249322787e-1f));
    p = fused(p, m, splat(-1.6668057665e-1f));
    p = fused(p, m, splat(2.0000714765e-1f));
    p = fused(p, m, splat(-2.4999993993e-1f));
    p = fused(p, m, splat(3.3333331174e-1f));
    p = p * m * z;
    p = fused(k, splat(-2.12194440e-4f), p);
    p = fused(splat(-0.5f), z, p);
    return fused(k, splat(0.693359375f), m + p);
}

/* 2^x for -126 <= x <= 127, to about 1 unit in the last place (the polynomial of Cephes' exp2f). */
INLINE vf power_of_two(vf x) {
    vf shifted = x + splat(12582912.0f); /* its last bits are the nearest integer */
    vf r = x - (shifted - splat(12582912.0f));
    vf p = splat(1.535336188319500e-4f);
    p = fused(p, r, splat(1.339887440266574e-3f));
    p = fused(p, r, splat(9.618437357674640e-3f));
    p = fused(p, r, splat(5.550332471162809e-2f));
    p = fused(p, r, splat(2.402264791363012e-1f));
    p = fused(p, r, splat(6.931472028550421e-1f));
    p = fused(p, r, splat(1.0f));
    return (vf)((vi)p + ((vi)shifted << 23));
}

/* Four bytes in a lane, in the form that `dot` takes. */
#if defined(__AVX2__) || defined(__ARM_FEATURE_DOTPROD)
typedef vi quads;
INLINE quads as_quads(vi bytes) { return bytes; }
#else
typedef struct { vh even, odd; } quads;
INLINE quads as_quads(vi bytes) {
    vh v = (vh)bytes;
    return (quads){(vh)(v << 8) >> 8, v >> 8};
}
#endif

/* Dot products of bytes: `quads` of weights times 4 signed bytes of one row. For `dot` the weights are packed as
 * w + 128, and the result exceeds the signed product by OFFSET times the sum of the row's bytes. `dot_unsigned` takes
 * what `load_nibbles` reads. `dot_signed` takes signed weights as they are, times bytes 0..127. */
#if defined(__AVX2__)
/* acc plus bytes without a sign times signed ones. */
INLINE vi dot_mixed(vi acc, vi positive, vi other) {
#if defined(__AVX512VNNI__)
    return (vi)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)positive, (__m512i)other);
#else
    /* With |x| <= 127 and |w| <= 127, the sum of two products fits into 16 bits: nothing saturates. */
    __m256i pairs = _mm256_maddubs_epi16((__m256i)positive, (__m256i)other);
    return acc + (vi)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#endif
}
INLINE vi dot_unsigned(vi acc, quads w, int32_t x) { return dot_mixed(acc, w, splat_int(x)); }
INLINE vi dot_signed(vi acc, quads w, int32_t x) { return dot_mixed(acc, splat_int(x), w); }
#if defined(__AVX512VNNI__)
enum { OFFSET = 128 };
INLINE vi dot(vi acc, quads w, int32_t x) { return dot_unsigned(acc, w, x); }
#else
enum { OFFSET = 0 };
INLINE vi dot(vi acc, quads w, int32_t x) {
    __m256i row = _mm256_set1_epi32(x);
    return dot_mixed(acc, (vi)_mm256_abs_epi8(row), (vi)_mm256_sign_epi8((__m256i)w, row));
}
#endif
#else
#if defined(__ARM_FEATURE_MATMUL_INT8)
enum { OFFSET = 128 };
INLINE vi dot(vi acc, quads w, int32_t x) { return (vi)vusdotq_s32((int32x4_t)acc, (uint8x16_t)w, (int8x16_t)splat_int(x)); }
#elif defined(__ARM_FEATURE_DOTPROD)
enum { OFFSET = 0 };
INLINE vi dot(vi acc, quads w, int32_t x) { return (vi)vdotq_s32((int32x4_t)acc, (int8x16_t)w, (int8x16_t)splat_int(x)); }
#else
enum { OFFSET = 0 };
INLINE vi dot(vi acc, quads w, int32_t x) {
    vh row = (vh)splat_int(x);
    vi pairs = (vi)(w.even * ((vh)(row << 8) >> 8) + w.odd * (row >> 8)); /* |.| <= 2 * 127 * 127 fits */
    return acc + ((vi)(pairs << 16) >> 16) + (pairs >> 16);
}
#endif
INLINE vi dot_unsigned(vi acc, quads w, int32_t x) { return dot(acc, w, x); }
#if defined(__ARM_FEATURE_MATMUL_INT8)
INLINE vi dot_signed(vi acc, quads w, int32_t x) { return (vi)vdotq_s32((int32x4_t)acc, (int8x16_t)w, (int8x16_t)splat_int(x)); }
#else
INLINE vi dot_signed(vi acc, quads w, int32_t x) { return dot(acc, w, x); }
#endif
#endif
INLINE quads load_quads(const uint8_t *w) { return as_quads(OFFSET ? load_int(w) : load_int(w) ^ splat_int((int32_t)0x80808080)); }
INLINE quads load_signed(const void *w) { return as_quads(load_int(w)); }

/* Products of bfloat16, two in a lane. Their factors are pairs too if the processor has an instruction for that, else
 * floats. `store_factors` writes LANES factors of FACTOR bytes each. `add_pair` reads two factors, which are `stride`
 * floats apart if they are floats. */
#if defined(__AVX512BF16__)
enum { PAIRED = 1, FACTOR = 2 };
INLINE void store_factors(char *p, vf v) {
    __m256bh rounded = _mm512_cvtneps_pbh((__m512)v);
    memcpy(p, &rounded, sizeof rounded);
}
INLINE vf add_pair(vf acc, vi w, const float *x, int64_t stride) {
    int32_t pair;
    memcpy(&pair, x, 4);
    return (vf)_mm512_dpbf16_ps((__m512)acc, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)w);
}
#else
enum { PAIRED = 0, FACTOR = 4 };
INLINE void store_factors(char *p, vf v) { memcpy(p, &v, sizeof v); }
INLINE vf add_pair(vf acc, vi w, const float *x, int64_t stride) {
    acc = fused(splat(x[0]), (vf)(w << 16), acc);
    return fused(splat(x[stride]), (vf)(w & splat_int((int32_t)0xFFFF0000)), acc);
}
#endif

/* Twice a number of FP4 (1 sign, 2 bits of exponent, 1 of mantissa), plus FP4_OFFSET, by its code. */
enum { FP4_OFFSET = 12 };
#define FP4_TABLE 12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0
/* Those of codes 0..15, one in a byte. */
INLINE vi look_up(vi codes) {
#if defined(__AVX512VNNI__)
    return (vi)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_setr_epi8(FP4_TABLE)), (__m512i)codes);
#elif defined(__AVX2__)
    return (vi)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_setr_epi8(FP4_TABLE)), (__m256i)codes);
#elif defined(__ARM_NEON)
    static const uint8_t table[16] = {FP4_TABLE};
    return (vi)vqtbl1q_u8(vld1q_u8(table), (uint8x16_t)codes);
#else
    typedef int8_t bytes __attribute__((vector_size(WIDTH)));
    const bytes code = (bytes)codes, negative = code > 7, m = code & 7;
    const bytes size = m - (m > 4) - (m > 5) - 3 * (m > 6); /* a comparison gives -1 */
    return (vi)((size ^ negative) - negative + FP4_OFFSET);
#endif
}

/* The lower halves of bytes (HALF 0) or the upper ones (HALF 1); those of FP4 are looked up. */
INLINE quads load_half_quads(const int FP4, const int HALF, const uint8_t *p) {
    vi codes = (HALF ? load_int(p) >> 4 : load_int(p)) & splat_int(0x0F0F0F0F);
    return as_quads(FP4 ? look_up(codes) : codes);
}

INLINE void load_nibbles(const int FP4, const uint8_t *p, quads *low, quads *high) {
    *low = load_half_quads(FP4, 0, p);
    *high = load_half_quads(FP4, 1, p);
}
