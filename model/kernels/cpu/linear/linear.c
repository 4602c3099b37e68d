/* y = W x with weights of 8 or 4 bits and activations of 15 (INT8) or 8 bits, or with both in bfloat16.
 *
 * Weights are packed [N/16][K/group] into records. A record has the weights of a group of channels for 16 outputs:
 *   INT8    group 64: [16 quads][16 outputs][4] bytes w + 128 (|w| <= 127), one scale an output (bytes.h)
 *   Q8      group 32: [8 quads][16 outputs][4] bytes w + 128, then 16 scales in float16
 *   Q4      group 32: [4 quads][16 outputs][4] bytes, quad i in the low halves and i + 4 in the high ones, each w + 8;
 *           then 16 scales
 *   Q8_MIN, Q4_MIN    the same, then 16 minima; here a 4-bit weight is 0..15
 *   Q4_K    256 channels, 8 groups of 32: the quads of each as in Q4_MIN; then [3][16] words of 32 bits, with 8 scales
 *           and 8 minima of an output, 6 bits each: word i has numbers 5 i to 5 i + 4 and 2 bits of the last; then
 *           [2][16] factors in float16. A factor times a scale, and one times a minimum, is rounded to float16.
 *   NVFP4   group 32: the quads of Q4, in codes of FP4; behind those of all groups, for each group, 16 scales of
 *           channels 0..15 in e4m3 and 16 of channels 16..31; one scale an output for all groups
 *   MXFP4   the same with 16 scales in e8m0 for all 32 channels of a group
 *   BF16    group 64: [32 words][16 outputs] of two channels each in bfloat16 (words.h); for AMX neighbouring ones
 * An INT8 record of 1024 bytes is also a B tile of AMX, and so is half a record of BF16. Sums within a group are exact
 * integers. Groups are added in float, in order, by the same operations for any number of rows: a row's result depends
 * on that row alone. pairs.h has the order of BF16, which does not depend on other rows either.
 */
#include "linear/blocks.h"
#include "linear/i8mm.h"
#include "linear/lora.h"
#include "linear/shapes.h"

#define F(name) FIELD(weights, name)
FIELDS(weights, F(packed), F(scales), F(n_out), F(n_in), F(format));
#undef F
CONSTANTS(formats, {"int8", INT8}, {"q8", Q8}, {"q8_min", Q8_MIN}, {"q4", Q4}, {"q4_min", Q4_MIN}, {"bfloat16", BF16}, {"q4_k", Q4_K},
          {"nvfp4", NVFP4}, {"mxfp4", MXFP4});
CONSTANTS(inputs, {"PLAIN", PLAIN}, {"NORMED", NORMED}, {"GATED", GATED});
CONSTANTS(adapters, {"RANKS", LORA_PAD}, {"CHANNELS", LORA_GROUP}, {"OUTPUTS", LORA_BLOCK});

enum { TASK_BYTES = 48 * 1024 };
#define TASKS(c) ((c)->n_grains * (((c)->n_rows + TASK_ROWS - 1) / TASK_ROWS))

static void products(void *context, int task, int thread) {
    const call *c = *(const call *const *)context;
    for (; task >= TASKS(c); c++) task -= TASKS(c);
    int first = task % c->n_grains * c->grain, last = first + c->grain < c->n_blocks ? first + c->grain : c->n_blocks;
    int row = task / c->n_grains * TASK_ROWS, end = row + TASK_ROWS < c->n_rows ? row + TASK_ROWS : c->n_rows;
#if defined(AMX)
    if (c->w->format == BF16) all_pairs(c, first, last, row, end);
    else if (c->w->format == INT8) all_bytes(c, first, last, row, end, thread);
    else if (in_slabs(c)) all_blocks(c, first, last, row, end, thread);
    else columns(c, first, last, row, end, thread);
#elif defined(__ARM_FEATURE_MATMUL_INT8)
    columns(c, first, last, all_slabs(c, first, last, row, end), end, thread);
#else
    columns(c, first, last, row, end, thread);
#endif
}

/* The first tasks compute u of adapters, the others convert activations. */
static void prepare_some(void *context, int task, int thread) {
    const call *c = *(const call *const *)context;
    int first = shrink_tasks(c);
    if (task < first) shrink_some(c, task);
    else quantize_some(context, task - first, thread);
}

static void expand_some(void *context, int task, int thread) {
    expand_task(*(const call *const *)context, task);
}

/* Divides scratch memory for the activations of a call. */
static void take_activations(call *c, arena *a) {
    const int64_t groups = (int64_t)c->n_rows * c->n_groups;
    c->q = take(a, groups * c->group * (c->w->format == BF16 ? ACTIVATION : 1));
    if (c->w->format == INT8) {
        c->high = take(a, groups * c->group);
        c->masks = take(a, (int64_t)c->n_rows * MASKS(c) * 8);
        c->scale = take(a, (int64_t)c->n_rows * 4);
        c->zero = take(a, (int64_t)c->n_rows * 4);
    } else if (c->w->format != BF16) {
        c->scale = take(a, groups * 4);
        c->total = take(a, groups * 4);
        c->zero = take(a, groups * (c->w->format == NVFP4 ? 8 : 4));
    }
}

static void measure(call *c) {
    c->group = QUADS(c->w->format) * 4;
    c->n_groups = (int)((c->w->n_in + c->group - 1) / c->group);
}

static void divide(call *c) {
    const int format = (int)c->w->format;
    c->n_blocks = (int)((c->w->n_out + BLOCK - 1) / BLOCK);
    if (!c->x_stride) c->x_stride = c->w->n_in * (c->kind == GATED ? 2 : 1);
    if (!c->y_stride) c->y_stride = c->w->n_out;
    c->shape = chosen(c->w, c->n_rows);
    c->grain = balanced(c->n_blocks, TASK_BYTES / (c->n_groups * RECORD(format)), c->n_rows > 1 ? c->shape->blocks : 1);
    c->n_grains = (c->n_blocks + c->grain - 1) / c->grain;
}

void GLUE(multiply, VARIANT)(call *calls, int n, arena *scratch) {
    const int64_t used = scratch->used;
    int row_tasks = 0, tasks = 0;
    for (call *c = calls; c < calls + n; c++) {
        measure(c);
        take_activations(c, scratch);
        if (!scratch->begin) continue;
        divide(c);
        row_tasks += ROW_TASKS(c->n_rows);
        tasks += TASKS(c);
    }
    if (scratch->begin) {
        noria_parallel(prepare_some, &calls, shrink_tasks(calls) + row_tasks);
        noria_parallel(products, &calls, tasks);
        if (calls->n_runs) noria_parallel(expand_some, &calls, expand_tasks(calls));
    }
    give_back(scratch, used);
}

void GLUE(adapted, VARIANT)(const weights *w, const float *x, int64_t n_rows, int64_t kind, const float *norm, float eps,
                            float *y, int64_t add, const lora_rows *runs, int64_t n_runs, int64_t target, const ahead_t *ahead,
                            arena *scratch) {
    call c = {.w = w, .x = x, .norm = norm, .y = y, .eps = eps, .kind = (int)kind, .add = (int)add, .n_rows = (int)n_rows,
              .runs = runs, .n_runs = (int)n_runs, .target = target, .ahead = ahead};
    GLUE(multiply, VARIANT)(&c, 1, scratch);
}

int64_t EXPORT(linear)(const weights *w, const float *x, int64_t n_rows, int64_t kind, const float *norm, float eps, float *y,
                       int64_t add, const lora_rows *runs, int64_t n_runs, void *memory, int64_t n_bytes) {
    arena dry = {0};
    GLUE(adapted, VARIANT)(w, x, n_rows, kind, norm, eps, y, add, runs, n_runs, 0, 0, &dry);
    if (dry.most > n_bytes) return dry.most;
    arena scratch = {(uintptr_t)memory, dry.most};
    GLUE(adapted, VARIANT)(w, x, n_rows, kind, norm, eps, y, add, runs, n_runs, 0, 0, &scratch);
    return 0;
}
