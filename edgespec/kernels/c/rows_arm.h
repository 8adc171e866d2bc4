/* Layouts of Q4_0 weights and activations on 64-bit Arm, shared by the hook, the arithmetic and the self-test.
 *
 * Source: ggml-cpu/repack.h, repack.cpp and ggml-common.h of ggml 0.25.3 (block_q4_0x4, block_q8_0x4, block_q8_0). */
#ifndef EDGESPEC_ROWS_ARM_H
#define EDGESPEC_ROWS_ARM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BLOCK = 32, COLUMNS = 4, MOST_ROWS = 15 };

/* The layout that ggml chooses by the instructions that it is compiled for: columns by bytes of a chunk. WORTH: the
 * numbers of rows, as bits, for which at least a fifth of ggml's instructions is saved (docs/cheap-rows-arm.md). */
#if defined(__ARM_FEATURE_MATMUL_INT8)
#define LAYOUT_IS(with_4, with_8) with_8
enum { CHUNK = 8, WORTH = 0xFEEC };
#else
#define LAYOUT_IS(with_4, with_8) with_4
enum { CHUNK = 4, WORTH = 0xCCCC };
#endif

/* 32 weights of 4 columns: chunks of one column after the other; low nibbles are weights 0..15, high ones 16..31, as
 * 4-bit two's complement. */
typedef struct {
    uint16_t d[COLUMNS];
    uint8_t qs[COLUMNS * BLOCK / 2];
} weights_4;

/* 32 activations of one row, and of four rows in chunks. */
typedef struct {
    uint16_t d;
    int8_t qs[BLOCK];
} row_1;
typedef struct {
    uint16_t d[4];
    int8_t qs[4 * BLOCK];
} row_4;

_Static_assert(sizeof(weights_4) == 72 && sizeof(row_1) == 34 && sizeof(row_4) == 136, "ggml's blocks have no padding");

/* What ggml's gemm and gemv look like: n weights a column, nr rows, nc columns, bs floats from row to row of s. */
typedef void product(int n, float *s, size_t bs, const void *w, const void *rows, int nr, int nc);

/* Looks for ggml's library, which is loaded by now. Why it does not call the functions that are stood in for here, or
 * NULL. */
const char *edgespec_misfit(void);

/* s[r * bs + c] = row r times column c, for n_rows rows (2..MOST_ROWS) and 4 * n_w columns of n_blocks blocks each.
 * `rows` as ggml lays them out: fours first, then single ones. */
void edgespec_q4_0_rows(int n_blocks, const weights_4 *w, int n_w, const void *rows, int n_rows, float *s, size_t bs);

#endif
