/* Q4_1, Q5_0 and Q8_0 weights in ggml's plain layouts with AVX-512 VNNI: 4 weight rows and up to 8 rows at a time.
 *
 * A block of weights is unpacked once for those rows; each half of a register belongs to one row, so that two rows share
 * an instruction. An output is summed up in the eight lanes, and in the order, of ggml's AVX2 function for one row: an
 * exact integer sum of four products a lane, converted, times the rounded product of both scales, added with one
 * rounding; at the end the lanes, and then what the sums give.
 *
 * Source: ggml-cpu/arch/x86/quants.c of ggml 0.25.3: ggml_vec_dot_q4_1_q8_1, ggml_vec_dot_q5_0_q8_0,
 * ggml_vec_dot_q8_0_q8_0. */
#include "unpacked.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

INLINE float sum_of_lanes(__m256 x) {
    __m128 sum = _mm_add_ps(_mm256_extractf128_ps(x, 1), _mm256_castps256_ps128(x));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

/* Two rows of activations of a block; the last row may be without a second one. */
INLINE __m512i two_rows(const char *x, bool both) {
    if (both) return _mm512_loadu_si512(x);
    return _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)x));
}

INLINE __m256i nibbles(const uint8_t *qs) {
    const __m128i low = _mm_loadu_si128((const __m128i *)(const void *)qs);
    const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(low), _mm_srli_epi16(low, 4), 1);
    return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

/* Weights of -16..15: where bit 4 is not set, 16 is taken off by setting all higher bits. */
INLINE __m256i five_bits(const block_q5_0 *block) {
    uint32_t bits;
    memcpy(&bits, block->qh, 4);
    return _mm256_or_si256(nibbles(block->qs), _mm256_maskz_set1_epi8(~bits, (char)0xF0));
}

INLINE __m128 halves(const void *from, size_t bytes) {
    int32_t raw = 0;
    memcpy(&raw, from, bytes);
    return _mm_cvtph_ps(_mm_cvtsi32_si128(raw));
}

INLINE void tile(const int type, const int n_pairs, int n_blocks, const char *weights, size_t bytes, const char *x,
                 int n_rows, float *out, size_t stride) {
    const bool q4_1 = type == Q4_1;
    const __m512i first_two = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    const __mmask8 rows = (__mmask8)((1u << n_rows) - 1);
    const size_t step = (size_t)n_rows * (q4_1 ? sizeof(block_q8_1) : sizeof(block_q8_0));
    __m512 acc[TILE_WEIGHTS][TILE_ROWS / 2];
    __m256 sums[TILE_WEIGHTS];
    for (int w = 0; w < TILE_WEIGHTS; w++) {
        sums[w] = _mm256_setzero_ps();
        for (int p = 0; p < n_pairs; p++) acc[w][p] = _mm512_setzero_ps();
    }
    for (int b = 0; b < n_blocks; b++, x += step) {
        const char *scales = x + (size_t)n_rows * PLAIN_BLOCK;
        const __m512 dx = _mm512_castps256_ps512(_mm256_cvtph_ps(_mm_maskz_loadu_epi16(rows, scales)));
        __m256 sx = _mm256_setzero_ps();
        if (q4_1) sx = _mm256_cvtph_ps(_mm_maskz_loadu_epi16(rows, scales + 2 * n_rows));
        __m512i q[TILE_ROWS / 2];
        __m512 d[TILE_ROWS / 2];
        for (int p = 0; p < n_pairs; p++) {
            q[p] = two_rows(x + 2 * PLAIN_BLOCK * p, 2 * p + 1 < n_rows);
            d[p] = _mm512_permutexvar_ps(_mm512_add_epi32(first_two, _mm512_set1_epi32(2 * p)), dx);
        }
#pragma GCC unroll 4
        for (int w = 0; w < TILE_WEIGHTS; w++) {
            __m512i values;
            __m512 dw;
            __mmask64 negative = 0;
            if (q4_1) {
                const block_q4_1 *block = (const block_q4_1 *)(const void *)(weights + (size_t)w * bytes) + b;
                const __m128 dm = halves(block, 4);
                dw = _mm512_broadcastss_ps(dm);
                sums[w] = _mm256_fmadd_ps(_mm256_broadcastss_ps(_mm_movehdup_ps(dm)), sx, sums[w]);
                values = _mm512_broadcast_i64x4(nibbles(block->qs));
            } else {
                if (type == Q5_0) {
                    const block_q5_0 *block = (const block_q5_0 *)(const void *)(weights + (size_t)w * bytes) + b;
                    dw = _mm512_broadcastss_ps(halves(block, 2));
                    values = _mm512_broadcast_i64x4(five_bits(block));
                } else {
                    const block_q8_0 *block = (const block_q8_0 *)(const void *)(weights + (size_t)w * bytes) + b;
                    dw = _mm512_broadcastss_ps(halves(block, 2));
                    values = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)block->qs));
                }
                negative = _mm512_movepi8_mask(values); /* vpdpbusd wants one factor without a sign */
                values = _mm512_abs_epi8(values);
            }
#pragma GCC unroll 4
            for (int p = 0; p < n_pairs; p++) {
                const __m512i zero = _mm512_setzero_si512();
                const __m512i other = q4_1 ? q[p] : _mm512_mask_sub_epi8(q[p], negative, zero, q[p]);
                const __m512 sum = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(zero, values, other));
                acc[w][p] = _mm512_fmadd_ps(_mm512_mul_ps(dw, d[p]), sum, acc[w][p]);
            }
        }
    }
    for (int w = 0; w < TILE_WEIGHTS; w++) {
        float rest[TILE_ROWS];
        _mm256_storeu_ps(rest, sums[w]);
        for (int r = 0; r < n_rows; r++) {
            const __m512 two = acc[w][r / 2];
            const float sum = sum_of_lanes(r % 2 ? _mm512_extractf32x8_ps(two, 1) : _mm512_castps512_ps256(two));
            out[w + (size_t)r * stride] = q4_1 ? sum + rest[r] : sum;
        }
    }
}

#define TILES(name, type)                                                                                             \
    void edgespec_##name##_tile(int n_blocks, const char *weights, size_t bytes, const char *x, int n_rows,           \
                                float *out, size_t stride) {                                                          \
        switch ((n_rows + 1) / 2) {                                                                                   \
        case 1: tile(type, 1, n_blocks, weights, bytes, x, n_rows, out, stride); break;                               \
        case 2: tile(type, 2, n_blocks, weights, bytes, x, n_rows, out, stride); break;                               \
        case 3: tile(type, 3, n_blocks, weights, bytes, x, n_rows, out, stride); break;                               \
        default: tile(type, 4, n_blocks, weights, bytes, x, n_rows, out, stride);                                     \
        }                                                                                                             \
    }

TILES(q4_1, Q4_1)
TILES(q5_0, Q5_0)
TILES(q8_0, Q8_0)
