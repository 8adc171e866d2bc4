/* Products of weights in ggml's plain layouts (one row after the other, blocks of 32) with several rows of activations.
 *
 * Source: ggml-common.h of ggml 0.25.3 (block_q4_1, block_q5_0, block_q8_0, block_q8_1). */
#ifndef EDGESPEC_UNPACKED_H
#define EDGESPEC_UNPACKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { Q4_1, Q5_0, Q8_0 };
enum { PLAIN_BLOCK = 32, TILE_WEIGHTS = 4, TILE_ROWS = 8 };

typedef struct {
    uint16_t d, m;
    uint8_t qs[PLAIN_BLOCK / 2];
} block_q4_1;
typedef struct {
    uint16_t d;
    uint8_t qh[PLAIN_BLOCK / 8], qs[PLAIN_BLOCK / 2]; /* bit 4 of each weight, and bits 0..3; 16 is to be taken off */
} block_q5_0;
typedef struct {
    uint16_t d, s; /* s: d times the sum of qs */
    int8_t qs[PLAIN_BLOCK];
} block_q8_1;
typedef struct {
    uint16_t d;
    int8_t qs[PLAIN_BLOCK];
} block_q8_0;

_Static_assert(sizeof(block_q5_0) == 22, "no padding");
_Static_assert(sizeof(block_q4_1) == 20 && sizeof(block_q8_1) == 36 && sizeof(block_q8_0) == 34, "no padding");

/* Activations of up to TILE_ROWS rows, block after block, take as much room as in ggml's layout: for each block first
 * 32 values of each row, then a scale of each row, then, with Q4_1, a sum of each row. */

/* out[w + r * stride] = weight row w (of TILE_WEIGHTS, `bytes` apart) times row r (of n_rows, at most TILE_ROWS). */
typedef void edgespec_tile(int n_blocks, const char *weights, size_t bytes, const char *x, int n_rows, float *out,
                           size_t stride);

edgespec_tile edgespec_q4_1_tile, edgespec_q5_0_tile, edgespec_q8_0_tile;

#endif
