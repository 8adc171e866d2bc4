/* Q4_1, Q5_0 and Q8_0 weights in ggml's plain layouts with AVX2 or, if compiled for it, AVX-VNNI: one weight row and up to 8
 * rows at a time. The float operations are as in unpacked_avx512vnni.c. */
#include "unpacked.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

INLINE float sum_of_lanes(__m256 x) {
    __m128 sum = _mm_add_ps(_mm256_extractf128_ps(x, 1), _mm256_castps256_ps128(x));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

/* Sums of four products of numbers without and with a sign in each lane; in 16 bits two products never saturate. */
INLINE __m256i dot(__m256i without, __m256i with) {
#if defined(__AVXVNNI__)
    return _mm256_dpbusd_avx_epi32(_mm256_setzero_si256(), without, with);
#else
    return _mm256_madd_epi16(_mm256_maddubs_epi16(without, with), _mm256_set1_epi16(1));
#endif
}

INLINE __m256 eight_halves(const char *from, int n) {
    uint16_t raw[TILE_ROWS] = {0};
    memcpy(raw, from, (size_t)n * sizeof *raw);
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)raw));
}

INLINE __m256i nibbles(const uint8_t *qs) {
    const __m128i low = _mm_loadu_si128((const __m128i *)(const void *)qs);
    const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(low), _mm_srli_epi16(low, 4), 1);
    return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

/* Weights of -16..15: where bit 4 is not set, 16 is taken off by setting all higher bits. */
INLINE __m256i five_bits(const block_q5_0 *block) {
    int32_t bits;
    memcpy(&bits, block->qh, 4);
    const __m256i which = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    const __m256i set = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(bits), which), bit);
    const __m256i high = _mm256_cmpeq_epi8(set, bit);
    return _mm256_or_si256(nibbles(block->qs), _mm256_andnot_si256(high, _mm256_set1_epi8((char)0xF0)));
}

INLINE void row_tile(const int type, const int n_rows, int n_blocks, const char *weights, const char *x, float *out,
                     size_t stride) {
    const bool q4_1 = type == Q4_1;
    const size_t step = (size_t)n_rows * (q4_1 ? sizeof(block_q8_1) : sizeof(block_q8_0));
    __m256 acc[TILE_ROWS], sums = _mm256_setzero_ps();
    for (int r = 0; r < n_rows; r++) acc[r] = _mm256_setzero_ps();
    for (int b = 0; b < n_blocks; b++, x += step) {
        const char *scales = x + (size_t)n_rows * PLAIN_BLOCK;
        __m256i values, weight;
        float d;
        if (q4_1) {
            const block_q4_1 *block = (const block_q4_1 *)(const void *)weights + b;
            weight = values = nibbles(block->qs);
            d = _cvtsh_ss(block->d);
            const __m256 sx = eight_halves(scales + 2 * n_rows, n_rows);
            sums = _mm256_fmadd_ps(_mm256_set1_ps(_cvtsh_ss(block->m)), sx, sums);
        } else if (type == Q5_0) {
            const block_q5_0 *block = (const block_q5_0 *)(const void *)weights + b;
            weight = five_bits(block);
            values = _mm256_sign_epi8(weight, weight);
            d = _cvtsh_ss(block->d);
        } else {
            const block_q8_0 *block = (const block_q8_0 *)(const void *)weights + b;
            weight = _mm256_loadu_si256((const __m256i *)(const void *)block->qs);
            values = _mm256_sign_epi8(weight, weight);
            d = _cvtsh_ss(block->d);
        }
        float scaled[TILE_ROWS];
        _mm256_storeu_ps(scaled, _mm256_mul_ps(_mm256_set1_ps(d), eight_halves(scales, n_rows)));
        for (int r = 0; r < n_rows; r++) {
            __m256i q = _mm256_loadu_si256((const __m256i *)(const void *)(x + PLAIN_BLOCK * r));
            if (!q4_1) q = _mm256_sign_epi8(q, weight);
            acc[r] = _mm256_fmadd_ps(_mm256_set1_ps(scaled[r]), _mm256_cvtepi32_ps(dot(values, q)), acc[r]);
        }
    }
    float rest[TILE_ROWS];
    _mm256_storeu_ps(rest, sums);
    for (int r = 0; r < n_rows; r++) {
        const float sum = sum_of_lanes(acc[r]);
        out[(size_t)r * stride] = q4_1 ? sum + rest[r] : sum;
    }
}

#define ROWS(type, n) case n: row_tile(type, n, n_blocks, weights, x, out, stride); break;
#define TILES(name, type)                                                                                             \
    void edgespec_##name##_tile(int n_blocks, const char *weights, size_t bytes, const char *x, int n_rows,           \
                                float *out, size_t stride) {                                                          \
        for (int w = 0; w < TILE_WEIGHTS; w++, weights += bytes, out++) {                                             \
            switch (n_rows) {                                                                                         \
                ROWS(type, 1) ROWS(type, 2) ROWS(type, 3) ROWS(type, 4)                                               \
                ROWS(type, 5) ROWS(type, 6) ROWS(type, 7) ROWS(type, 8)                                               \
            }                                                                                                         \
        }                                                                                                             \
    }

TILES(q4_1, Q4_1)
TILES(q5_0, Q5_0)
TILES(q8_0, Q8_0)
