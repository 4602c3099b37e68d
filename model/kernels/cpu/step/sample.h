/* What callers of sample.c must know. */
#pragma once
#include "vectors.h"

/* The n_ids distinct `ids` of prompt and output get the penalties, by how often each is in the output, `outputs`.
 * Temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 allow all tokens. `start` and `step` (odd) are of the noise. */
typedef struct {
    const int64_t *ids, *outputs;
    int64_t n_ids;
    float repetition_penalty, presence_penalty, frequency_penalty;
    float temperature, min_p, top_p;
    int32_t top_k, start, step;
} params;

/* Samples tokens [n_rows] from logits [n_rows, n_tokens], which it overwrites. Returns whether memory ran out. */
int64_t EXPORT(sample)(float *logits, int64_t n_rows, int64_t n_tokens, const params *rows, int64_t *tokens);
