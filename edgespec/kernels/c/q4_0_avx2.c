/* Q4_0 weights times 1 to 16 rows with AVX2 or, if compiled for it, AVX-VNNI: 8 columns and up to 4 rows at a time.
 *
 * A block of weights is unpacked once for those rows; more rows come again for the same columns, which are in the cache
 * by then. The float operations are as in q4_0_avx512vnni.c. */
#include "rows.h"

enum { PREFETCH_BLOCKS = 12, ROWS_AT_ONCE = 4 };

/* offset + the sum over 32 products of weights 0..15 and activations: 4 bytes of a column in each 32-bit lane of q. */
static inline __m256i dot(const __m256i q[8], const int8_t *x, int32_t offset) {
    __m256i four[8];
    for (int i = 0; i < 8; i++) {
        int32_t bytes;
        memcpy(&bytes, x + 4 * i, 4);
        four[i] = _mm256_set1_epi32(bytes);
    }
#if defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__)) /* one instruction, two encodings */
    __m256i sum = _mm256_set1_epi32(offset);
    for (int i = 0; i < 8; i++) {
#if defined(__AVXVNNI__)
        sum = _mm256_dpbusd_avx_epi32(sum, q[i], four[i]);
#else
        sum = _mm256_dpbusd_epi32(sum, q[i], four[i]);
#endif
    }
    return sum;
#else
    /* At most 8 * 2 * 15 * 127 = 30480 in 16 bits: no sum saturates. */
    __m256i sum = _mm256_maddubs_epi16(q[0], four[0]);
    for (int i = 1; i < 8; i++) sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(q[i], four[i]));
    return _mm256_add_epi32(_mm256_madd_epi16(sum, _mm256_set1_epi16(1)), _mm256_set1_epi32(offset));
#endif
}

static inline __attribute__((always_inline)) void tile(const int R, int n_blocks, const weights_8 *w,
                                                       const row_block *x, int n_rows, float *s, size_t bs) {
    const __m256i nibble = _mm256_set1_epi8(0x0F), eight = _mm256_set1_epi8((char)0x88);
    __m256 acc[ROWS_AT_ONCE];
    for (int r = 0; r < R; r++) acc[r] = _mm256_setzero_ps();
    for (int b = 0; b < n_blocks; b++, x += n_rows) {
        for (int line = 0; line < 3; line++) {
            _mm_prefetch((const char *)(w + b + PREFETCH_BLOCKS) + 64 * line, _MM_HINT_T0);
        }
        __m256i q[8];
        for (int i = 0; i < 2; i++) {
            const __m256 a = _mm256_loadu_ps((const float *)(const void *)(w[b].qs + 64 * i));
            const __m256 c = _mm256_loadu_ps((const float *)(const void *)(w[b].qs + 64 * i + 32));
            /* bytes 0..3 (then 4..7) of the chunk of each column; those 16 further on in the high nibbles */
            const __m256i first = _mm256_xor_si256(_mm256_castps_si256(_mm256_shuffle_ps(a, c, 0x88)), eight);
            const __m256i second = _mm256_xor_si256(_mm256_castps_si256(_mm256_shuffle_ps(a, c, 0xDD)), eight);
            q[2 * i] = _mm256_and_si256(first, nibble);
            q[2 * i + 1] = _mm256_and_si256(second, nibble);
            q[2 * i + 4] = _mm256_and_si256(_mm256_srli_epi16(first, 4), nibble);
            q[2 * i + 5] = _mm256_and_si256(_mm256_srli_epi16(second, 4), nibble);
        }
        /* columns 0 1 4 5 2 3 6 7, as the shuffles leave them */
        const __m128i halves = _mm_loadu_si128((const __m128i *)w[b].d);
        const __m256 d = _mm256_cvtph_ps(_mm_shuffle_epi32(halves, _MM_SHUFFLE(3, 1, 2, 0)));
        for (int r = 0; r < R; r++) {
            const __m256 isum = _mm256_cvtepi32_ps(dot(q, x[r].qs, x[r].offset));
            acc[r] = _mm256_fmadd_ps(isum, _mm256_mul_ps(d, _mm256_set1_ps(x[r].d)), acc[r]);
        }
    }
    for (int r = 0; r < R; r++) {
        const __m256 out = _mm256_permutevar8x32_ps(acc[r], _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7));
        _mm256_storeu_ps(s + r * bs, out);
    }
}

void edgespec_q4_0_rows(int n_blocks, const weights_8 *w, int n_w, const row_block *x, int n_rows, float *s, size_t bs) {
    for (int i = 0; i < n_w; i++, w += n_blocks, s += 8) {
        for (int r = 0; r < n_rows; r += ROWS_AT_ONCE) {
            float *to = s + r * bs;
            switch (n_rows - r) {
                case 1: tile(1, n_blocks, w, x + r, n_rows, to, bs); break;
                case 2: tile(2, n_blocks, w, x + r, n_rows, to, bs); break;
                case 3: tile(3, n_blocks, w, x + r, n_rows, to, bs); break;
                default: tile(4, n_blocks, w, x + r, n_rows, to, bs);
            }
        }
    }
}
