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

/* y [n_rows, n_out] = or += W f(x), f by kind: x [n_rows, n_in] itself, its RMSNorm (scale `norm`), or
 * silu(gate) * up of x [n_rows, 2 n_in]. `scratch` has group + 12 bytes for each row and group,
 * with BF16 weights 4 bytes for each channel. */
void EXPORT(linear)(const weights *w, const float *x, int64_t n_rows, int64_t kind, const float *norm, float eps, float *y,
                    int64_t add, void *scratch);
