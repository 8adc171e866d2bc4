/* Q4_K and Q6_K weights with AVX-512 VNNI. Sums of integers are exact and in any order; the float operations of an output
 * are those of ggml's AVX2 function for one row, in its order.
 *
 * Q4_K: 16 columns at a time, one 32-bit lane a column, as in q4_0_avx512vnni.c. Of each block an output gets two roundings:
 * the sum of products, converted, times the rounded product of both scales, and the same for what the mins give, each added
 * up with one rounding; the difference of the two comes last.
 *
 * Q6_K: one weight row and all rows at a time. An output is summed up in eight lanes, lane i for bytes 4i..4i+3 of each 32
 * weights; at the end the lanes.
 *
 * Source: ggml-cpu/arch/x86/repack.cpp and quants.c of ggml 0.25.3: ggml_gemv_q4_K_8x8_q8_K, ggml_vec_dot_q6_K_q8_K. */
#include "k.h"

#include <immintrin.h>
#include <string.h>

enum {
    ROWS_AT_ONCE = 8, /* of Q4_K: more come again for the same columns, which are in a near cache by then */
    WEIGHT_ROWS = 4   /* of Q6_K that share a block of activations while it is in the nearest cache */
};

#define INLINE static inline __attribute__((always_inline))

/* Scales and mins of one block of 8 columns: bytes of columns 0..3 in `low`, of 4..7 in `high`; lane i has the scales of
 * the i-th 32 weights, lane 8 + i their mins. Of the 12 bytes for 32 weights, the first 8 have the low 6 bits of the
 * scales and mins of columns 0..3 and the top 2 bits of the others, whose low 4 bits are in the last 4. */
INLINE void scales_of(const block_q4_k_8 *w, __m512i *low, __m512i *high) {
    const __m512i six = _mm512_setr_epi32(0, 3, 6, 9, 12, 15, 18, 21, 1, 4, 7, 10, 13, 16, 19, 22);
    const __m512i four = _mm512_setr_epi32(2, 5, 8, 11, 14, 17, 20, 23, 2, 5, 8, 11, 14, 17, 20, 23);
    const __m512i first = _mm512_loadu_si512(w->scales);
    const __m512i last = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)(w->scales + 64)));
    const __m512i a = _mm512_permutex2var_epi32(first, six, last), b = _mm512_permutex2var_epi32(first, four, last);
    const __m512i shifted = _mm512_srlv_epi32(b, _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4));
    *low = _mm512_and_si512(a, _mm512_set1_epi8(0x3F));
    const __m512i top = _mm512_and_si512(_mm512_srli_epi32(a, 2), _mm512_set1_epi8(0x30));
    *high = _mm512_ternarylogic_epi32(top, shifted, _mm512_set1_epi8(0x0F), 0xF8); /* a | (b & c) */
}

/* to[16 * i + lane]: scale of the column of that lane for the i-th 32 weights, i < 8, and mins for i >= 8. */
INLINE void read_scales(const block_q4_k_8 *w0, const block_q4_k_8 *w1, uint8_t *to) {
    const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    __m512i low0, high0, low1, high1;
    scales_of(w0, &low0, &high0);
    scales_of(w1, &low1, &high1);
    const __m512i a = _mm512_unpacklo_epi32(low0, high0), b = _mm512_unpacklo_epi32(low1, high1);
    const __m512i c = _mm512_unpackhi_epi32(low0, high0), d = _mm512_unpackhi_epi32(low1, high1);
    const __m512i by[4] = {_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b), _mm512_unpacklo_epi64(c, d),
                           _mm512_unpackhi_epi64(c, d)};
    for (int i = 0; i < 4; i++) { /* its quarters: i, 4 + i, 8 + i, 12 + i */
        const __m512i bytes = _mm512_shuffle_epi8(by[i], order);
        _mm_store_si128((__m128i *)(void *)(to + 16 * i), _mm512_castsi512_si128(bytes));
        _mm_store_si128((__m128i *)(void *)(to + 16 * (4 + i)), _mm512_extracti32x4_epi32(bytes, 1));
        _mm_store_si128((__m128i *)(void *)(to + 16 * (8 + i)), _mm512_extracti32x4_epi32(bytes, 2));
        _mm_store_si128((__m128i *)(void *)(to + 16 * (12 + i)), _mm512_extracti32x4_epi32(bytes, 3));
    }
}

INLINE __m512i sixteen(const uint8_t *bytes) {
    return _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)(const void *)bytes));
}

/* Halves of two times 8 columns as floats, in the order of the lanes: 0 1 (of the first eight) 0 1 (of the others) 2 3 .. */
INLINE __m512 sixteen_halves(const uint16_t *h0, const uint16_t *h1) {
    const __m128i a = _mm_loadu_si128((const __m128i *)(const void *)h0);
    const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)h1);
    return _mm512_cvtph_ps(_mm256_set_m128i(_mm_unpackhi_epi32(a, b), _mm_unpacklo_epi32(a, b)));
}

INLINE __m512i broadcast(const void *from) {
    int32_t bytes;
    memcpy(&bytes, from, 4);
    return _mm512_set1_epi32(bytes);
}

/* Rows first..first+R-1 of x times 16 columns, or 8 if there are not both. */
INLINE void q4_tile(const int R, int n_blocks, const block_q4_k_8 *w0, const block_q4_k_8 *w1, const k_rows *x, int first,
                    float *out, size_t stride, bool both) {
    const __m512i nibble = _mm512_set1_epi8(0x0F);
    /* What the next columns need is fetched to the second cache: there are more requests on their way than the first one
     * keeps count of. */
    const size_t tile_bytes = 2 * (size_t)n_blocks * sizeof *w0;
    __m512 acc[ROWS_AT_ONCE], rest[ROWS_AT_ONCE];
    for (int r = 0; r < R; r++) acc[r] = rest[r] = _mm512_setzero_ps();
    for (int b = 0; b < n_blocks; b++) {
        const size_t at = (size_t)b * (size_t)x->n + (size_t)first;
        const int8_t *qs = x->qs + at * K_BLOCK;
        const int16_t *sums = x->sums + at * K_SUMS;
        const float *d = x->d + at;
        _Alignas(64) uint8_t scales[2 * 8 * 16];
        read_scales(w0 + b, w1 + b, scales);
        for (int line = 0; line < 2; line++) { /* scales; the values follow below */
            _mm_prefetch((const char *)(w0 + b) + 64 * line + tile_bytes, _MM_HINT_T1);
            _mm_prefetch((const char *)(w1 + b) + 64 * line + tile_bytes, _MM_HINT_T1);
        }
        __m512i sum[ROWS_AT_ONCE];
        for (int r = 0; r < R; r++) sum[r] = _mm512_setzero_si512();
        for (int p = 0; p < 4; p++) { /* 64 weights */
            const uint8_t *a = w0[b].qs + 256 * p, *c = w1[b].qs + 256 * p;
            for (int line = 0; line < 4; line++) {
                _mm_prefetch((const char *)(a + 64 * line) + tile_bytes, _MM_HINT_T1);
                _mm_prefetch((const char *)(c + 64 * line) + tile_bytes, _MM_HINT_T1);
            }
            __m512i packed[8]; /* bytes 4i..4i+3 of each column */
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                const __m512 e = _mm512_loadu_ps(a + 64 * i), f = _mm512_loadu_ps(c + 64 * i);
                packed[2 * i] = _mm512_castps_si512(_mm512_shuffle_ps(e, f, 0x88));
                packed[2 * i + 1] = _mm512_castps_si512(_mm512_shuffle_ps(e, f, 0xDD));
            }
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++) { /* low nibbles, then high ones */
                __m512i q[8];
                for (int i = 0; i < 8; i++) {
                    q[i] = _mm512_and_si512(half ? _mm512_srli_epi16(packed[i], 4) : packed[i], nibble);
                }
                const __m512i scale = sixteen(scales + 16 * (2 * p + half));
                const int8_t *from = qs + 64 * p + 32 * half;
                __m512i part[ROWS_AT_ONCE]; /* independent sums in turn: vpdpbusd takes four cycles */
#pragma GCC unroll 8
                for (int r = 0; r < R; r++) part[r] = _mm512_setzero_si512();
#pragma GCC unroll 8
                for (int i = 0; i < 8; i++) {
#pragma GCC unroll 8
                    for (int r = 0; r < R; r++) {
                        part[r] = _mm512_dpbusd_epi32(part[r], q[i], broadcast(from + r * K_BLOCK + 4 * i));
                    }
                }
#pragma GCC unroll 8
                for (int r = 0; r < R; r++) sum[r] = _mm512_add_epi32(sum[r], _mm512_mullo_epi32(part[r], scale));
            }
        }
        __m512i mins[4]; /* two in the halves of each lane */
        for (int i = 0; i < 4; i++) {
            const uint8_t *two = scales + 16 * (8 + 2 * i);
            mins[i] = _mm512_or_si512(sixteen(two), _mm512_slli_epi32(sixteen(two + 16), 16));
        }
        const __m512 dw = sixteen_halves(w0[b].d, w1[b].d), dmin = sixteen_halves(w0[b].dmin, w1[b].dmin);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            __m512i min = _mm512_setzero_si512();
            for (int i = 0; i < 4; i++) min = _mm512_dpwssd_epi32(min, mins[i], broadcast(sums + r * K_SUMS + 2 * i));
            const __m512 dx = _mm512_set1_ps(d[r]);
            acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r]), _mm512_mul_ps(dw, dx), acc[r]);
            rest[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(min), _mm512_mul_ps(dmin, dx), rest[r]);
        }
    }
    const __m512i order = _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    for (int r = 0; r < R; r++, out += stride) {
        const __m512 result = _mm512_permutexvar_ps(order, _mm512_sub_ps(acc[r], rest[r]));
        if (both) _mm512_storeu_ps(out, result);
        else _mm256_storeu_ps(out, _mm512_castps512_ps256(result));
    }
}

#define ROWS(R)                                                                                                       \
    static __attribute__((noinline)) void rows_##R(int n_blocks, const block_q4_k_8 *w, const k_rows *x, int first,   \
                                                   float *out, size_t stride, bool both) {                            \
        q4_tile(R, n_blocks, w, both ? w + n_blocks : w, x, first, out, stride, both);                                \
    }
ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7) ROWS(8)

void edgespec_q4_k_product(int n_blocks, const void *weights, int n_weights, const k_rows *x, float *out, size_t stride) {
    static void (*const by_rows[])(int, const block_q4_k_8 *, const k_rows *, int, float *, size_t, bool) = {
        rows_1, rows_2, rows_3, rows_4, rows_5, rows_6, rows_7, rows_8};
    const block_q4_k_8 *w = weights;
    for (int i = 0; i < n_weights; i += 2 * K_COLUMNS, w += 2 * n_blocks, out += 2 * K_COLUMNS) {
        for (int r = 0; r < x->n; r += ROWS_AT_ONCE) {
            const int n = x->n - r < ROWS_AT_ONCE ? x->n - r : ROWS_AT_ONCE;
            by_rows[n - 1](n_blocks, w, x, r, out + (size_t)r * stride, stride, i + K_COLUMNS < n_weights);
        }
    }
}

INLINE float sum_of_lanes(__m256 x) {
    __m128 sum = _mm_add_ps(_mm256_extractf128_ps(x, 1), _mm256_castps256_ps128(x));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

/* Adds one block of a weight row times a block of each row. */
INLINE void q6_block(const block_q6_k *w, const int8_t *qs, const int16_t *sums, const float *d, int n_rows, __m256 *acc) {
    const __m512i nibble = _mm512_set1_epi8(0x0F), two = _mm512_set1_epi8(0x30);
    const __m512i up = _mm512_setr_epi64(4, 4, 4, 4, 2, 2, 2, 2), down = _mm512_setr_epi64(0, 0, 0, 0, 2, 2, 2, 2);
    const __m256i scales = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)w->scales));
    __m512i q[4], scale[4];
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) { /* 128 weights */
        const __m512i low = _mm512_loadu_si512(w->ql + 64 * i);
        const __m512i high = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)(w->qh + 32 * i)));
        const __m512i first = _mm512_and_si512(low, nibble);
        const __m512i second = _mm512_and_si512(_mm512_srli_epi16(low, 4), nibble);
        q[2 * i] = _mm512_ternarylogic_epi32(first, _mm512_rolv_epi64(high, up), two, 0xF8); /* a | (b & c) */
        q[2 * i + 1] = _mm512_ternarylogic_epi32(second, _mm512_rorv_epi64(high, down), two, 0xF8);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) { /* each for 16 weights, that is eight 16-bit lanes */
        const __m512i which = _mm512_add_epi16(
            _mm512_set_epi64(0x0003000300030003, 0x0003000300030003, 0x0002000200020002, 0x0002000200020002,
                             0x0001000100010001, 0x0001000100010001, 0, 0), _mm512_set1_epi16((short)(4 * i)));
        scale[i] = _mm512_permutexvar_epi16(which, _mm512_castsi256_si512(scales));
    }
    _Alignas(64) float scaled[K_ROWS];
    const __m512 dw = _mm512_set1_ps(_cvtsh_ss(w->d));
    _mm512_store_ps(scaled, _mm512_mul_ps(dw, _mm512_maskz_loadu_ps((__mmask16)((1u << n_rows) - 1), d)));
    for (int r = 0; r < n_rows; r++, qs += K_BLOCK, sums += K_SUMS) {
        __m512i sum = _mm512_madd_epi16(_mm512_maddubs_epi16(q[0], _mm512_loadu_si512(qs)), scale[0]);
#pragma GCC unroll 3
        for (int i = 1; i < 4; i++) {
            sum = _mm512_dpwssd_epi32(sum, _mm512_maddubs_epi16(q[i], _mm512_loadu_si512(qs + 64 * i)), scale[i]);
        }
        /* Weights are 0..63 here; 32 less of each is the same as 32 times these sums less. */
        const __m256i by = _mm256_loadu_si256((const __m256i *)(const void *)sums);
        const __m256i less = _mm256_slli_epi32(_mm256_madd_epi16(by, scales), 5);
        const __m256i lanes = _mm256_add_epi32(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
        const __m256 exact = _mm256_cvtepi32_ps(_mm256_sub_epi32(lanes, less));
        acc[r] = _mm256_fmadd_ps(_mm256_set1_ps(scaled[r]), exact, acc[r]);
    }
}

void edgespec_q6_k_product(int n_blocks, const void *weights, int n_weights, const k_rows *x, float *out, size_t stride) {
    const size_t n = (size_t)x->n;
    for (int first = 0; first < n_weights; first += WEIGHT_ROWS) {
        const block_q6_k *w = (const block_q6_k *)weights + (size_t)first * n_blocks;
        const int n_now = n_weights - first < WEIGHT_ROWS ? n_weights - first : WEIGHT_ROWS;
        __m256 acc[WEIGHT_ROWS][K_ROWS];
        for (int i = 0; i < n_now; i++) {
            for (size_t r = 0; r < n; r++) acc[i][r] = _mm256_setzero_ps();
        }
        for (size_t b = 0; b < (size_t)n_blocks; b++) {
            const size_t from = b * n;
            for (int i = 0; i < n_now; i++) {
                const block_q6_k *block = w + (size_t)i * n_blocks + b;
                const char *later = (const char *)(block + (size_t)WEIGHT_ROWS * n_blocks);
                for (size_t at = 0; at < sizeof *block; at += 64) _mm_prefetch(later + at, _MM_HINT_T1);
                q6_block(block, x->qs + from * K_BLOCK, x->sums + from * K_SUMS, x->d + from, x->n, acc[i]);
            }
        }
        for (int i = 0; i < n_now; i++) {
            for (size_t r = 0; r < n; r++) out[(size_t)(first + i) + r * stride] = sum_of_lanes(acc[i][r]);
        }
    }
}
