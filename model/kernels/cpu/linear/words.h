/* How numbers in bfloat16 lie in memory for products: two in a word of 32 bits, of 32 channels in 16 words. A record of
 * weights has a word of each of its 16 outputs, then the next one (linear.c). pairs.h multiplies.
 */
#pragma once
#include "../amx.h"

enum { CHANNELS_A_STEP = 32, WORDS_A_STEP = 16 };

/* The channel whose number is in the high or in the low half of word p. Weights and activations have the same order.
 * AMX adds neighbouring channels to two chains, vdpbf16ps adds two to one chain. */
#if defined(AMX)
static const uint16_t word_order[CHANNELS_A_STEP] = EIGHT_QUADS(PLAIN_QUAD);
#else
static const uint16_t word_order[CHANNELS_A_STEP] = EIGHT_QUADS(CHAINED_QUAD);
#endif
INLINE int in_word(int p, int high) { return word_order[2 * p + high]; }

/* Writes the activations of 32 channels: words as those of weights, or floats in the order of channels where no
 * instruction multiplies words. ACTIVATION is the bytes of each. */
#if defined(__AVX512BF16__)
enum { ACTIVATION = 2 };
INLINE void store_activations(char *to, const vf *x) {
    __m512i words = (__m512i)_mm512_cvtne2ps_pbh((__m512)x[1], (__m512)x[0]);
    words = _mm512_permutexvar_epi16((__m512i)load_int(word_order), words);
    memcpy(to, &words, sizeof words);
}
#elif defined(AMX)
enum { ACTIVATION = 2 };
INLINE void store_activations(char *to, const vf *x) {
    for (int p = 0; p < WORDS_A_STEP; p++)
        for (int high = 0; high < 2; high++) {
            int i = in_word(p, high);
            uint16_t bits = (uint16_t)to_halves(x[i / LANES])[i % LANES];
            memcpy(to + p * 4 + high * 2, &bits, 2);
        }
}
#else
enum { ACTIVATION = 4 };
INLINE void store_activations(char *to, const vf *x) {
    for (int i = 0; i < CHANNELS_A_STEP / LANES; i++) store((float *)to + i * LANES, (vf)(to_halves(x[i]) << 16));
}
#endif
