/* The AVX-512 instructions that the kernels use, in AVX2, for a compiler that emulating.py stands for. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

/* Only now, because the header above declares its functions by these. */
#if defined(EMULATED_VNNI)
#define __AVX512VNNI__ 1
#endif
#if defined(EMULATED_BF16)
#define __AVX512BF16__ 1
#endif

#define EMULATED(type) static inline __attribute__((always_inline, unused)) type
#define HALVES(type, part, each) \
    type y; \
    for (int i = 0; i < 2; i++) ((part *)&y)[i] = each; \
    return y;
#define OF(part, x) (((const part *)&x)[i])

EMULATED(__m512) emulated_fmadd(__m512 a, __m512 b, __m512 c) {
    HALVES(__m512, __m256, _mm256_fmadd_ps(OF(__m256, a), OF(__m256, b), OF(__m256, c)))
}
EMULATED(__m512) emulated_max(__m512 a, __m512 b) { HALVES(__m512, __m256, _mm256_max_ps(OF(__m256, a), OF(__m256, b))) }
EMULATED(__m512i) emulated_max_int(__m512i a, __m512i b) { HALVES(__m512i, __m256i, _mm256_max_epi32(OF(__m256i, a), OF(__m256i, b))) }
EMULATED(__m512) emulated_from_half(__m256i x) { HALVES(__m512, __m256, _mm256_cvtph_ps(OF(__m128i, x))) }
EMULATED(__m256i) emulated_to_half(__m512 x) { HALVES(__m256i, __m128i, _mm256_cvtps_ph(OF(__m256, x), _MM_FROUND_TO_NEAREST_INT)) }
EMULATED(__m512i) emulated_shuffle(__m512i a, __m512i b) { HALVES(__m512i, __m256i, _mm256_shuffle_epi8(OF(__m256i, a), OF(__m256i, b))) }
EMULATED(__m512i) emulated_broadcast(__m128i x) {
    __m512i y;
    for (int i = 0; i < 4; i++) ((__m128i *)&y)[i] = x;
    return y;
}
EMULATED(__m512i) emulated_set(int x) { HALVES(__m512i, __m256i, _mm256_set1_epi32(x)) }

/* Four products of unsigned and signed bytes a lane. */
EMULATED(__m512i) emulated_dot(__m512i acc, __m512i u, __m512i s) {
    for (int i = 0; i < 4; i++) {
        __m256i pairs = _mm256_madd_epi16(_mm256_cvtepu8_epi16(OF(__m128i, u)), _mm256_cvtepi8_epi16(OF(__m128i, s)));
        __m128i sums = _mm_hadd_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
        ((__m128i *)&acc)[i] = _mm_add_epi32(OF(__m128i, acc), sums);
    }
    return acc;
}

/* Numbers below the normal range are zeros. */
EMULATED(float) emulated_normal(float x) { return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0, x) : x; }
EMULATED(float) emulated_bf16(int16_t bits) {
    uint32_t wide = (uint32_t)(uint16_t)bits << 16;
    float x;
    memcpy(&x, &wide, 4);
    return emulated_normal(x);
}
/* Two products of bfloat16 a lane, the second one first. */
EMULATED(__m512) emulated_two_products(__m512 acc, __m512bh a, __m512bh b) {
    const int16_t *x = (const int16_t *)&a, *y = (const int16_t *)&b;
    float *sum = (float *)&acc;
    for (int i = 0; i < 16; i++)
        for (int k = 1; k >= 0; k--)
            sum[i] = emulated_normal(__builtin_fmaf(emulated_bf16(x[2 * i + k]), emulated_bf16(y[2 * i + k]), sum[i]));
    return acc;
}
EMULATED(void) emulated_round_each(__m512 x, int16_t *to) {
    for (int i = 0; i < 16; i++) {
        float each = emulated_normal(((const float *)&x)[i]);
        uint32_t bits;
        memcpy(&bits, &each, 4);
        bits = each != each ? bits | 0x400000 : bits + 0x7FFF + (bits >> 16 & 1);
        to[i] = (int16_t)(bits >> 16);
    }
}
EMULATED(__m256bh) emulated_round(__m512 x) {
    __m256bh y;
    emulated_round_each(x, (int16_t *)&y);
    return y;
}
EMULATED(__m512bh) emulated_round_two(__m512 high, __m512 low) {
    __m512bh y;
    emulated_round_each(low, (int16_t *)&y);
    emulated_round_each(high, (int16_t *)&y + 16);
    return y;
}
EMULATED(__m512i) emulated_permute(__m512i order, __m512i x) {
    __m512i y;
    for (int i = 0; i < 32; i++) ((int16_t *)&y)[i] = ((const int16_t *)&x)[((const int16_t *)&order)[i] & 31];
    return y;
}

EMULATED(uint16_t) emulated_common_bits(__m512i a, __m512i b) {
    uint16_t mask = 0;
    for (int i = 0; i < 16; i++) mask |= (uint16_t)((((const int *)&a)[i] & ((const int *)&b)[i]) != 0) << i;
    return mask;
}
EMULATED(int) emulated_sum(__m512i x) {
    int y = 0;
    for (int i = 0; i < 16; i++) y += ((const int *)&x)[i];
    return y;
}
EMULATED(int) emulated_greatest_int(__m512i x) {
    int y = ((const int *)&x)[0];
    for (int i = 1; i < 16; i++) y = ((const int *)&x)[i] > y ? ((const int *)&x)[i] : y;
    return y;
}
EMULATED(float) emulated_greatest(__m512 x) {
    float y = ((const float *)&x)[0];
    for (int i = 1; i < 16; i++) y = ((const float *)&x)[i] > y ? ((const float *)&x)[i] : y;
    return y;
}

#define _mm512_fmadd_ps emulated_fmadd
#define _mm512_max_ps emulated_max
#define _mm512_max_epi32 emulated_max_int
#define _mm512_cvtph_ps emulated_from_half
#define _mm512_cvtps_ph(x, rounding) emulated_to_half(x)
#define _mm512_set1_epi32 emulated_set
#define _mm512_shuffle_epi8 emulated_shuffle
#define _mm512_broadcast_i32x4 emulated_broadcast
#define _mm512_dpbusd_epi32 emulated_dot
#define _mm512_dpbf16_ps emulated_two_products
#define _mm512_cvtneps_pbh emulated_round
#define _mm512_cvtne2ps_pbh emulated_round_two
#define _mm512_permutexvar_epi16 emulated_permute
#define _mm512_test_epi32_mask emulated_common_bits
#define _mm512_reduce_add_epi32 emulated_sum
#define _mm512_reduce_max_epi32 emulated_greatest_int
#define _mm512_reduce_max_ps emulated_greatest
