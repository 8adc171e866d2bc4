/* Layouts shared by the hook and the arithmetic, and the reading of ggml's quantised activations.
 *
 * Source: ggml-cpu/repack.h and ggml-common.h of ggml 0.25.3 (block_q4_0x8, block_q8_0x4, block_q8_0). */
#ifndef EDGESPEC_ROWS_H
#define EDGESPEC_ROWS_H

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { BLOCK = 32, MAX_ROWS = 16 };

/* 32 weights of 8 columns: 8-byte chunks of one column after the other; low nibbles are weights 0..15, high ones
 * 16..31, as 4-bit two's complement. */
typedef struct {
    uint16_t d[8];
    uint8_t qs[4 * BLOCK];
} weights_8;

/* 32 activations of one row, and of four rows in 8-byte chunks. */
typedef struct {
    uint16_t d;
    int8_t qs[BLOCK];
} row_1;
typedef struct {
    uint16_t d[4];
    int8_t qs[4 * BLOCK];
} row_4;

_Static_assert(sizeof(weights_8) == 144 && sizeof(row_1) == 34 && sizeof(row_4) == 136, "ggml's blocks have no padding");

/* What the arithmetic reads for one row and one block. */
typedef struct {
    int8_t qs[BLOCK];
    float d;
    int32_t offset; /* -8 times the sum of qs: weights are used as 0..15 instead of -8..7 */
} row_block;

/* What ggml's gemm and gemv look like: n weights a column, nr rows, nc columns, bs floats from row to row of s. */
typedef void product(int n, float *s, size_t bs, const void *w, const void *rows, int nr, int nc);

/* Looks for ggml's library, which is loaded by now; false if it lacks the functions that are stood in for. */
bool edgespec_has_ggml(void);

/* s[r * bs + c] = row r times column c, for n_rows rows (1..MAX_ROWS) and 8 * n_w columns of n_blocks blocks each.
 * x holds n_rows entries for block 0, then n_rows for block 1, and so on. */
void edgespec_q4_0_rows(int n_blocks, const weights_8 *w, int n_w, const row_block *x, int n_rows, float *s, size_t bs);

/* Reads rows as ggml lays them out: fours first, then single ones. False if a value is -128, which no finite activation
 * gives, and which the stock kernels multiply in a way of their own. */
static inline bool read_rows(int n_blocks, const void *rows, int n_rows, row_block *x) {
    const __m256i ones_8 = _mm256_set1_epi8(1), ones_16 = _mm256_set1_epi16(1), lowest = _mm256_set1_epi8(-128);
    __m256i bad = _mm256_setzero_si256();
    const char *base = (const char *)rows;
    const int n_fours = n_rows / 4 * 4;
    for (int r = 0; r < n_rows; r++) {
        const bool four = r < n_fours;
        const int step = four ? 32 : 8; /* bytes from one chunk of a row to the next */
        const row_4 *fours = (const row_4 *)base + (size_t)(r / 4) * n_blocks;
        const row_1 *ones = (const row_1 *)(base + (size_t)r * n_blocks * sizeof(row_1));
        for (int b = 0; b < n_blocks; b++) {
            row_block *to = x + (size_t)b * n_rows + r;
            const int8_t *from = four ? fours[b].qs + 8 * (r % 4) : ones[b].qs;
            for (int k = 0; k < 4; k++) memcpy(to->qs + 8 * k, from + step * k, 8);
            const __m256i q = _mm256_loadu_si256((const __m256i *)to->qs);
            bad = _mm256_or_si256(bad, _mm256_cmpeq_epi8(q, lowest));
            const __m256i pairs = _mm256_madd_epi16(_mm256_maddubs_epi16(ones_8, q), ones_16);
            __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
            sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4E));
            sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xB1));
            to->offset = -8 * _mm_cvtsi128_si32(sum);
            to->d = _cvtsh_ss(four ? fours[b].d[r % 4] : ones[b].d);
        }
    }
    return _mm256_testz_si256(bad, bad);
}

#endif
