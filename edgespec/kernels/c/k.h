/* Products of weights in blocks of 256 with up to 16 rows of activations: Q4_K as ggml repacks it for x86, eight columns
 * side by side, and Q6_K in its plain layout.
 *
 * Source: ggml-cpu/repack.h, repack.cpp and ggml-common.h of ggml 0.25.3 (block_q4_Kx8, block_q6_K, block_q8_K). */
#ifndef EDGESPEC_K_H
#define EDGESPEC_K_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hook.h"

enum { K_BLOCK = 256, K_ROWS = 16, K_COLUMNS = 8, K_SUMS = 16 };

/* Eight columns: scales of each, packed as in `scales_of`; values in 8-byte chunks of one column after the other, low
 * nibbles of the first 32 bytes of a column are weights 0..31, high ones 32..63, and so on. */
typedef struct {
    uint16_t d[K_COLUMNS], dmin[K_COLUMNS];
    uint8_t scales[12 * 8]; /* for each 32 weights: 6 bits for the scale and for the min of each column */
    uint8_t qs[K_BLOCK / 2 * K_COLUMNS];
} block_q4_k_8;
typedef struct {
    uint8_t ql[K_BLOCK / 2]; /* bits 0..3: of each 128 weights the first half in low nibbles, the other in high ones */
    uint8_t qh[K_BLOCK / 4]; /* bits 4..5 of weights 0..31, 32..63, 64..95 and 96..127 */
    int8_t scales[K_BLOCK / 16];
    uint16_t d;
} block_q6_k;
typedef struct {
    float d;
    int8_t qs[K_BLOCK];
    int16_t sums[K_SUMS]; /* of 16 values each */
} block_q8_k;

_Static_assert(sizeof(block_q4_k_8) == 1152 && sizeof(block_q6_k) == 210 && sizeof(block_q8_k) == 292, "no padding");

/* Activations of n rows, those of a block together: entry b * n + r is block b of row r. */
typedef struct {
    const int8_t *qs;    /* K_BLOCK an entry, beginning at a multiple of 64 bytes */
    const int16_t *sums; /* K_SUMS an entry; for Q4_K eight sums of 32 values, and eight unused */
    const float *d;      /* one an entry */
    int n;
} k_rows;

/* out[w + r * stride] = weights w (of n_weights) times row r. n_weights of Q4_K: columns, a multiple of 8. */
typedef void edgespec_k_product(int n_blocks, const void *weights, int n_weights, const k_rows *x, float *out,
                                size_t stride);
edgespec_k_product edgespec_q4_k_product, edgespec_q6_k_product;

/* Puts ggml's block at entry `at` of the arrays that x points to. */
void edgespec_put_block(const block_q8_k *block, const k_rows *x, size_t at, bool for_q4_k);

/* Computes the operation if it is a product of Q6_K weights with 2 to 16 rows; false: it is left as it is. */
bool edgespec_q6_k(const struct params *params, struct tensor *op);

#endif
