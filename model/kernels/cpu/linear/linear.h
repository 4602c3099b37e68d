/* What callers of linear.c must know. */
#pragma once
#include "linear/ahead.h"
#include "pool.h"

/* Layouts of weights, see linear.c. In Q layouts a group of 32 channels has a scale (and a minimum) for each output. */
enum { INT8, Q8, Q8_MIN, Q4, Q4_MIN, BF16, Q4_K, NVFP4, MXFP4 };
#define IS_FP4(format) (format == NVFP4 || format == MXFP4)
enum { IN_SUPERBLOCK = 8, SUPERBLOCK = 2304 }; /* groups and bytes of a record of Q4_K */
enum { MAX_CHANNELS = 65536 }; /* inputs: sums of INT8 with more may not fit 32 bits, nor rows the memory of a thread */
enum { PLAIN, NORMED, GATED };
enum { FLOAT32, FLOAT16, BFLOAT16 }; /* kinds of floats in a checkpoint, and of embeddings */

/* Weights, padded to whole groups and blocks of 16 outputs. INT8 and FP4 have `scales`, one for each output. */
typedef struct {
    const uint8_t *packed;
    const float *scales;
    int64_t n_out, n_in, format;
} weights;

enum { LORA_BLOCK = 16, LORA_PAD = 8, LORA_GROUP = 32 };

/* A LoRA adapter of one projection, in bfloat16. A is [rank/LORA_PAD][n_groups][LORA_PAD ranks][LORA_GROUP channels]:
 * zeros fill the last ranks and channels. B is in blocks of LORA_BLOCK outputs; outputs beyond them get nothing. Block
 * i multiplies entries firsts[i].. of u = A f(x), firsts[i] even. Its pairs of ranks are begins[i]..begins[i+1]-1 of
 * `b`, which is [pairs][LORA_BLOCK outputs][2]. rank 0: the adapter has nothing for this projection. */
typedef struct {
    const uint16_t *a, *b;
    const int32_t *begins, *firsts;
    int64_t rank, n_groups, n_blocks;
} lora;

/* The rows of a step that use one adapter, in ascending order. `targets` has an entry for each projection of the
 * network. `u` is memory of 4 bytes for each row and rank of the widest entry. */
typedef struct {
    const lora *targets;
    const int64_t *rows;
    void *u;
    int64_t n_rows;
} lora_rows;

/* y [n_rows, n_out] = or += W f(x), f by kind: x [n_rows, n_in] itself, its RMSNorm (scale `norm`), or
 * silu(gate) * up of x [n_rows, 2 n_in]. The rows of `runs` get the first entry of their adapter, B A f(x). Returns 0;
 * or the bytes of scratch memory that it needs, if there are fewer: then it has done nothing. */
int64_t EXPORT(linear)(const weights *w, const float *x, int64_t n_rows, int64_t kind, const float *norm, float eps, float *y,
                       int64_t add, const lora_rows *runs, int64_t n_runs, void *memory, int64_t n_bytes);

/* The same with entry `target` of the adapters. Tiles prefetch the pages of `ahead`, if any. */
void GLUE(adapted, VARIANT)(const weights *w, const float *x, int64_t n_rows, int64_t kind, const float *norm, float eps,
                            float *y, int64_t add, const lora_rows *runs, int64_t n_runs, int64_t target, const ahead_t *ahead,
                            arena *scratch);
