/* What callers of linear.c must know. */
#pragma once
#include "vectors.h"

/* Layouts of weights, see linear.c. In Q layouts a group of 32 channels has a scale (and a minimum) for each output. */
enum { INT8, Q8, Q8_MIN, Q4, Q4_MIN, BF16 };
enum { PLAIN, NORMED, GATED };

/* Weights, padded to whole groups and blocks of 16 outputs. Only INT8 has `scales`, one for each output. */
typedef struct {
    const uint8_t *packed;
    const float *scales;
    int64_t n_out, n_in, format;
} weights;

enum { LORA_BLOCK = 16, LORA_PAD = 8 };

/* A LoRA adapter of one projection, in bfloat16. A is [rank, stride]: rows of zeros fill the last LORA_PAD ranks, and
 * zeros the last channels. B is in blocks of LORA_BLOCK outputs. Block i multiplies entries firsts[i].. of u = A f(x) and
 * has rows begins[i]..begins[i+1]-1 of `b`, one a rank, LORA_BLOCK values each. rank 0: there is no adapter. */
typedef struct {
    const uint16_t *a, *b;
    const int32_t *begins, *firsts;
    int64_t rank, stride;
} lora;

/* The rows of a step that use one adapter, in ascending order. `targets` are its parts: four for each layer (wqkv, wo,
 * w13, w2), then the head. `u` is memory of n_rows times the greatest rank. */
typedef struct {
    const lora *targets;
    const int32_t *rows;
    float *u;
    int64_t n_rows;
} lora_rows;

/* y [n_rows, n_out] = or += W f(x), f by kind: x [n_rows, n_in] itself, its RMSNorm (scale `norm`), or
 * silu(gate) * up of x [n_rows, 2 n_in]. The rows of `runs` also get part `target` of their adapter.
 * `scratch` has group + 12 bytes for each row and group, with BF16 weights 4 bytes for each channel. */
void EXPORT(linear)(const weights *w, const float *x, int64_t n_rows, int64_t kind, const float *norm, float eps, float *y,
                    int64_t add, const lora_rows *runs, int64_t n_runs, int64_t target, void *scratch);
