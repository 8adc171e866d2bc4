/* Q4_K and Q6_K weights with AVX2 or, if compiled for it, AVX-VNNI: 8 columns (Q4_K) or one weight row (Q6_K) at a time. The
 * float operations are as in k_avx512vnni.c. */
#include "k.h"

#include <immintrin.h>
#include <string.h>

enum { ROWS_AT_ONCE = 4 };

#define INLINE static inline __attribute__((always_inline))

/* The i-th 32 weights' scales and mins of 8 columns: 6 bits each, packed as k_avx512vnni.c says. */
INLINE void read_scales(const block_q4_k_8 *w, int i, uint8_t *scales, uint8_t *mins) {
    uint32_t packed[3];
    memcpy(packed, w->scales + 12 * i, sizeof packed);
    const uint32_t s[2] = {packed[0] & 0x3F3F3F3F, (packed[2] & 0x0F0F0F0F) | ((packed[0] >> 2) & 0x30303030)};
    const uint32_t m[2] = {packed[1] & 0x3F3F3F3F, ((packed[2] >> 4) & 0x0F0F0F0F) | ((packed[1] >> 2) & 0x30303030)};
    memcpy(scales, s, sizeof s);
    memcpy(mins, m, sizeof m);
}

INLINE __m256i broadcast(const void *from) {
    int32_t bytes;
    memcpy(&bytes, from, 4);
    return _mm256_set1_epi32(bytes);
}

/* Adds the scale of each column times 32 products of weights and activations. */
INLINE __m256i add_scaled(__m256i sum, const __m256i q[8], const int8_t *x, __m256i scale) {
#if defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__)) /* one instruction, two encodings */
    __m256i part = _mm256_setzero_si256();
    for (int i = 0; i < 8; i++) {
#if defined(__AVXVNNI__)
        part = _mm256_dpbusd_avx_epi32(part, q[i], broadcast(x + 4 * i));
#else
        part = _mm256_dpbusd_epi32(part, q[i], broadcast(x + 4 * i));
#endif
    }
    return _mm256_add_epi32(sum, _mm256_mullo_epi32(part, _mm256_srli_epi32(scale, 16)));
#else
    /* At most 8 * 2 * 15 * 128 = 30720 in 16 bits: no sum saturates. */
    __m256i part = _mm256_maddubs_epi16(q[0], broadcast(x));
    for (int i = 1; i < 8; i++) part = _mm256_add_epi16(part, _mm256_maddubs_epi16(q[i], broadcast(x + 4 * i)));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(part, scale));
#endif
}

INLINE __m256 eight_halves(const uint16_t *from) { /* columns 0 1 4 5 2 3 6 7, as the shuffles leave them */
    const __m128i halves = _mm_loadu_si128((const __m128i *)(const void *)from);
    return _mm256_cvtph_ps(_mm_shuffle_epi32(halves, _MM_SHUFFLE(3, 1, 2, 0)));
}

INLINE void q4_tile(const int R, int n_blocks, const block_q4_k_8 *w, const k_rows *x, int first, float *out,
                    size_t stride) {
    const __m256i nibble = _mm256_set1_epi8(0x0F);
    const __m128i twice = _mm_setr_epi8(0, 0, 1, 1, 4, 4, 5, 5, 2, 2, 3, 3, 6, 6, 7, 7);
    const __m128i pairs = _mm_setr_epi8(0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15);
    __m256 acc[ROWS_AT_ONCE], rest[ROWS_AT_ONCE];
    for (int r = 0; r < R; r++) acc[r] = rest[r] = _mm256_setzero_ps();
    for (int b = 0; b < n_blocks; b++) {
        const size_t at = (size_t)b * (size_t)x->n + (size_t)first;
        const int8_t *qs = x->qs + at * K_BLOCK;
        const int16_t *sums = x->sums + at * K_SUMS;
        __m256i sum[ROWS_AT_ONCE], min[ROWS_AT_ONCE];
        for (int r = 0; r < R; r++) sum[r] = min[r] = _mm256_setzero_si256();
        for (int p = 0; p < 4; p++) { /* 64 weights */
            uint8_t scales[2][8], mins[2][8];
            read_scales(w + b, 2 * p, scales[0], mins[0]);
            read_scales(w + b, 2 * p + 1, scales[1], mins[1]);
            __m256i packed[8]; /* bytes 4i..4i+3 of each column */
            for (int i = 0; i < 4; i++) {
                const float *chunk = (const float *)(const void *)(w[b].qs + 256 * p + 64 * i);
                const __m256 e = _mm256_loadu_ps(chunk), f = _mm256_loadu_ps(chunk + 8);
                packed[2 * i] = _mm256_castps_si256(_mm256_shuffle_ps(e, f, 0x88));
                packed[2 * i + 1] = _mm256_castps_si256(_mm256_shuffle_ps(e, f, 0xDD));
            }
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++) { /* low nibbles, then high ones */
                __m256i q[8];
                for (int i = 0; i < 8; i++) {
                    q[i] = _mm256_and_si256(half ? _mm256_srli_epi16(packed[i], 4) : packed[i], nibble);
                }
                const __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)scales[half]);
                const __m256i scale = _mm256_cvtepu8_epi16(_mm_shuffle_epi8(bytes, twice));
                for (int r = 0; r < R; r++) {
                    sum[r] = add_scaled(sum[r], q, qs + r * K_BLOCK + 64 * p + 32 * half, scale);
                }
            }
            const __m128i both = _mm_unpacklo_epi8(_mm_loadl_epi64((const __m128i *)(const void *)mins[0]),
                                                   _mm_loadl_epi64((const __m128i *)(const void *)mins[1]));
            const __m256i two = _mm256_cvtepu8_epi16(_mm_shuffle_epi8(both, pairs));
            for (int r = 0; r < R; r++) {
                min[r] = _mm256_add_epi32(min[r], _mm256_madd_epi16(two, broadcast(sums + r * K_SUMS + 2 * p)));
            }
        }
        const __m256 dw = eight_halves(w[b].d), dmin = eight_halves(w[b].dmin);
        for (int r = 0; r < R; r++) {
            const __m256 dx = _mm256_set1_ps(x->d[at + r]);
            acc[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r]), _mm256_mul_ps(dw, dx), acc[r]);
            rest[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(min[r]), _mm256_mul_ps(dmin, dx), rest[r]);
        }
    }
    for (int r = 0; r < R; r++) {
        const __m256 eight = _mm256_sub_ps(acc[r], rest[r]);
        _mm256_storeu_ps(out + r * stride, _mm256_permutevar8x32_ps(eight, _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7)));
    }
}

void edgespec_q4_k_product(int n_blocks, const void *weights, int n_weights, const k_rows *x, float *out, size_t stride) {
    const block_q4_k_8 *w = weights;
    for (int i = 0; i < n_weights; i += K_COLUMNS, w += n_blocks, out += K_COLUMNS) {
        for (int r = 0; r < x->n; r += ROWS_AT_ONCE) { /* the columns are in the nearest caches after the first */
            float *to = out + (size_t)r * stride;
            switch (x->n - r) {
                case 1: q4_tile(1, n_blocks, w, x, r, to, stride); break;
                case 2: q4_tile(2, n_blocks, w, x, r, to, stride); break;
                case 3: q4_tile(3, n_blocks, w, x, r, to, stride); break;
                default: q4_tile(4, n_blocks, w, x, r, to, stride);
            }
        }
    }
}

INLINE float sum_of_lanes(__m256 x) {
    __m128 sum = _mm_add_ps(_mm256_extractf128_ps(x, 1), _mm256_castps256_ps128(x));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

/* Weights 0..63 of 32 in turn, and their scales in 16-bit lanes. */
INLINE void unpack_q6(const block_q6_k *w, __m256i q[8], __m256i scale[8]) {
    const __m256i nibble = _mm256_set1_epi8(0x0F), two = _mm256_set1_epi8(0x30);
    for (int i = 0; i < 2; i++) { /* 128 weights */
        const __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(w->ql + 64 * i));
        const __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(w->ql + 64 * i + 32));
        const __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(w->qh + 32 * i));
        const __m256i low[4] = {a, b, _mm256_srli_epi16(a, 4), _mm256_srli_epi16(b, 4)};
        const __m256i top[4] = {_mm256_slli_epi16(high, 4), _mm256_slli_epi16(high, 2), high, _mm256_srli_epi16(high, 2)};
        for (int j = 0; j < 4; j++) {
            q[4 * i + j] = _mm256_or_si256(_mm256_and_si256(low[j], nibble), _mm256_and_si256(top[j], two));
        }
    }
    for (int i = 0; i < 8; i++) {
        scale[i] = _mm256_set_m128i(_mm_set1_epi16(w->scales[2 * i + 1]), _mm_set1_epi16(w->scales[2 * i]));
    }
}

/* The sum over the rows' blocks of one weight row, all rows at a time. */
INLINE void q6_row(int n_blocks, const block_q6_k *w, const k_rows *x, float *out, size_t stride) {
    __m256 acc[K_ROWS];
    for (int r = 0; r < x->n; r++) acc[r] = _mm256_setzero_ps();
    for (int b = 0; b < n_blocks; b++) {
        const size_t at = (size_t)b * (size_t)x->n;
        const int8_t *qs = x->qs + at * K_BLOCK;
        const int16_t *sums = x->sums + at * K_SUMS;
        __m256i q[8], scale[8];
        unpack_q6(w + b, q, scale);
        const __m256i scales = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)w[b].scales));
        const float d = _cvtsh_ss(w[b].d);
        for (int r = 0; r < x->n; r++, qs += K_BLOCK, sums += K_SUMS) {
            /* Weights are 0..63 here; 32 less of each is the same as 32 times these sums less. */
            const __m256i by = _mm256_loadu_si256((const __m256i *)(const void *)sums);
            __m256i sum = _mm256_slli_epi32(_mm256_madd_epi16(by, scales), 5);
            sum = _mm256_sub_epi32(_mm256_setzero_si256(), sum);
            for (int i = 0; i < 8; i++) {
                const __m256i values = _mm256_loadu_si256((const __m256i *)(const void *)(qs + 32 * i));
                sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(q[i], values), scale[i]));
            }
            acc[r] = _mm256_fmadd_ps(_mm256_set1_ps(d * x->d[at + r]), _mm256_cvtepi32_ps(sum), acc[r]);
        }
    }
    for (int r = 0; r < x->n; r++) out[r * stride] = sum_of_lanes(acc[r]);
}

void edgespec_q6_k_product(int n_blocks, const void *weights, int n_weights, const k_rows *x, float *out, size_t stride) {
    for (int i = 0; i < n_weights; i++) q6_row(n_blocks, (const block_q6_k *)weights + (size_t)i * n_blocks, x, out + i, stride);
}
