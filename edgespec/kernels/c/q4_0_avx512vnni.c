/* Q4_0 weights times 1 to 16 rows with AVX-512 VNNI: 16 columns at a time, one 32-bit lane a column.
 *
 * A block of weights is unpacked once for all rows; then a row costs 8 vpdpbusd whose activations are broadcast by the
 * load itself. The float operations of an output are those of ggml's AVX2 single-row kernel in the same order: an exact
 * integer sum of the block, converted, times the rounded product of both scales, added with one rounding. */
#include "rows.h"

enum {
    ROWS_IN_TURN = 8 /* whose sums are independent: the instruction takes four cycles, and one starts in each */
};

static inline __attribute__((always_inline)) void tile(const int R, int n_blocks, const weights_8 *w0,
                                                       const weights_8 *w1, const row_block *x, float *s, size_t bs,
                                                       bool both) {
    const __m512i nibble = _mm512_set1_epi8(0x0F), eight = _mm512_set1_epi8((char)0x88);
    /* What the next columns need is fetched to the second cache: there are more requests on their way than the first one
     * keeps count of. */
    const size_t tile_bytes = 2 * (size_t)n_blocks * sizeof *w0;
    __m512 acc[MAX_ROWS];
    for (int r = 0; r < R; r++) acc[r] = _mm512_setzero_ps();
    for (int b = 0; b < n_blocks; b++, x += R) {
        for (int line = 0; line < 3; line++) {
            _mm_prefetch((const char *)(w0 + b) + 64 * line + tile_bytes, _MM_HINT_T1);
            _mm_prefetch((const char *)(w1 + b) + 64 * line + tile_bytes, _MM_HINT_T1);
        }
        const __m512i a0 = _mm512_loadu_si512(w0[b].qs), a1 = _mm512_loadu_si512(w0[b].qs + 64);
        const __m512i c0 = _mm512_loadu_si512(w1[b].qs), c1 = _mm512_loadu_si512(w1[b].qs + 64);
#define LANES(p, q, odd) _mm512_castps_si512(_mm512_shuffle_ps(_mm512_castsi512_ps(p), _mm512_castsi512_ps(q), odd ? 0xDD : 0x88))
        /* packed[i]: bytes 4i..4i+3 of each column; bytes 16 further on in the high nibbles. */
        const __m512i packed[4] = {LANES(a0, c0, 0), LANES(a0, c0, 1), LANES(a1, c1, 0), LANES(a1, c1, 1)};
        __m512i q[8];
        for (int i = 0; i < 4; i++) {
            q[i] = _mm512_ternarylogic_epi32(packed[i], eight, nibble, 0x28); /* (a ^ b) & c */
            q[i + 4] = _mm512_ternarylogic_epi32(_mm512_srli_epi16(packed[i], 4), eight, nibble, 0x28);
        }
        const __m128i d0 = _mm_loadu_si128((const __m128i *)w0[b].d), d1 = _mm_loadu_si128((const __m128i *)w1[b].d);
        const __m512 d = _mm512_cvtph_ps(_mm256_set_m128i(_mm_unpackhi_epi32(d0, d1), _mm_unpacklo_epi32(d0, d1)));
#pragma GCC unroll 4
        for (int g = 0; g < R; g += ROWS_IN_TURN) {
            __m512i sum[ROWS_IN_TURN];
            const int n = R - g < ROWS_IN_TURN ? R - g : ROWS_IN_TURN;
#pragma GCC unroll 8
            for (int r = 0; r < n; r++) sum[r] = _mm512_set1_epi32(x[g + r].offset);
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
#pragma GCC unroll 8
                for (int r = 0; r < n; r++) {
                    int32_t four;
                    memcpy(&four, x[g + r].qs + 4 * i, 4);
                    sum[r] = _mm512_dpbusd_epi32(sum[r], q[i], _mm512_set1_epi32(four));
                }
            }
#pragma GCC unroll 8
            for (int r = 0; r < n; r++) {
                const __m512 scale = _mm512_mul_ps(d, _mm512_set1_ps(x[g + r].d));
                acc[g + r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r]), scale, acc[g + r]);
            }
        }
    }
    const __m512i order = _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    for (int r = 0; r < R; r++, s += bs) {
        const __m512 out = _mm512_permutexvar_ps(order, acc[r]);
        if (both) _mm512_storeu_ps(s, out);
        else _mm256_storeu_ps(s, _mm512_castps512_ps256(out));
    }
}

#define ROWS(R)                                                                                                       \
    static __attribute__((noinline)) void rows_##R(int n_blocks, const weights_8 *w, int n_w, const row_block *x,     \
                                                   float *s, size_t bs) {                                             \
        for (int i = 0; i < n_w; i += 2) {                                                                            \
            const weights_8 *w0 = w + (size_t)i * n_blocks;                                                           \
            const bool both = i + 1 < n_w;                                                                            \
            tile(R, n_blocks, w0, both ? w0 + n_blocks : w0, x, s + 8 * i, bs, both);                                 \
        }                                                                                                             \
    }
ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) ROWS(7) ROWS(8)
ROWS(9) ROWS(10) ROWS(11) ROWS(12) ROWS(13) ROWS(14) ROWS(15) ROWS(16)

void edgespec_q4_0_rows(int n_blocks, const weights_8 *w, int n_w, const row_block *x, int n_rows, float *s, size_t bs) {
    static void (*const by_rows[])(int, const weights_8 *, int, const row_block *, float *, size_t) = {
        rows_1, rows_2, rows_3, rows_4, rows_5, rows_6, rows_7, rows_8,
        rows_9, rows_10, rows_11, rows_12, rows_13, rows_14, rows_15, rows_16};
    by_rows[n_rows - 1](n_blocks, w, n_w, x, s, bs);
}
