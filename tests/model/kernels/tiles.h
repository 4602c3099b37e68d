/* The tile registers of AMX in plain C, in place of the instructions in model/kernels/cpu/amx.h. */
#pragma once

typedef struct {
    int rows, bytes;
    uint8_t data[16][64];
} tile_t;
static _Thread_local tile_t tile_registers[8];

INLINE void configure_tiles(int rows, int bytes) {
    for (int t = 0; t < 8; t++) {
        tile_registers[t] = (tile_t){.rows = t < 6 ? rows : bytes / 4, .bytes = t == 4 || t == 5 ? bytes : 64};
    }
}
INLINE void release_tiles(void) { memset(tile_registers, 0, sizeof tile_registers); } /* whoever forgets to configure gets zeros */
INLINE void emulated_zero(int t) { memset(tile_registers[t].data, 0, sizeof tile_registers[t].data); }
INLINE void emulated_load(int t, const void *from, int64_t stride) {
    tile_t *tile = tile_registers + t;
    for (int r = 0; r < tile->rows; r++) memcpy(tile->data[r], (const char *)from + r * stride, (size_t)tile->bytes);
}
INLINE void emulated_store(int t, void *to, int64_t stride) {
    const tile_t *tile = tile_registers + t;
    for (int r = 0; r < tile->rows; r++) memcpy((char *)to + r * stride, tile->data[r], (size_t)tile->bytes);
}
/* The hardware faults on other shapes. */
INLINE void check_shapes(const tile_t *sums, const tile_t *x, const tile_t *w) {
    if (x->bytes / 4 != w->rows || sums->rows != x->rows) __builtin_trap();
}
/* c [rows][16] += rows of a times the quads of b, signed bytes times unsigned or signed ones. */
INLINE void emulated_bytes(int c, int a, int b, int is_signed) {
    tile_t *sums = tile_registers + c, *x = tile_registers + a, *w = tile_registers + b;
    check_shapes(sums, x, w);
    for (int r = 0; r < sums->rows; r++)
        for (int n = 0; n < 16; n++)
            for (int k = 0; k < x->bytes; k++) {
                uint8_t weight = w->data[k / 4][n * 4 + k % 4];
                ((int32_t *)sums->data[r])[n] += ((int8_t *)x->data[r])[k] * (is_signed ? (int8_t)weight : weight);
            }
}
/* c [rows][16] += rows of a times the pairs of b, in bfloat16: the even channels are one chain of fused additions from 0, the odd
 * ones another, and their sum is added (Intel's manual, volume 2, TDPBF16PS). */
static __attribute__((noinline)) void emulated_pairs(int c, int a, int b) {
    tile_t *sums = tile_registers + c, *x = tile_registers + a, *w = tile_registers + b;
    check_shapes(sums, x, w);
    const vi upper = splat_int((int32_t)0xFFFF0000);
    for (int r = 0; r < sums->rows; r++)
        for (int n = 0; n < 16; n += LANES) {
            vf even = splat(0), odd = splat(0);
            float *to = (float *)sums->data[r] + n;
            for (int p = 0; p < x->bytes / 4; p++) {
                int32_t pair;
                memcpy(&pair, x->data[r] + p * 4, 4);
                vi channels = splat_int(pair), weights = load_int(w->data[p] + n * 4);
                even = fused((vf)(channels << 16), (vf)(weights << 16), even);
                odd = fused((vf)(channels & upper), (vf)(weights & upper), odd);
            }
            store(to, load(to) + (even + odd));
        }
}
#define TILE_ZERO(t) emulated_zero(t)
#define TILE_LOAD(t, from, stride) emulated_load(t, from, stride)
#define TILE_STORE(t, to, stride) emulated_store(t, to, stride)
#define TILE_BYTES(c, a, b) emulated_bytes(c, a, b, 0)
#define TILE_SIGNED(c, a, b) emulated_bytes(c, a, b, 1)
#define TILE_PAIRS(c, a, b) emulated_pairs(c, a, b)
