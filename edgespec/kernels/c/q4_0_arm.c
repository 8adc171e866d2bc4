/* Q4_0 weights times 2 to 15 rows with Arm's dot products (SDOT) or, if compiled for it, matrix products (SMMLA): four
 * columns at a time.
 *
 * A block of weights is unpacked once for all rows, which are read as ggml lays them out: fours share their loads and
 * scales as in ggml's own function for four rows, single ones (one to three) follow in the same pass. The float
 * operations of an output are those of ggml's single-row function in the same order: an exact integer sum of the block,
 * converted (a sixteenth of it, as weights are used in the high half of a byte), times the rounded product of both
 * scales, added with one rounding. */
#include "rows_arm.h"

#include <arm_neon.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum { MOST_SINGLE = 3, MOST_IN_GROUP = 4 + MOST_SINGLE };

INLINE float32x4_t four_halves(const uint16_t *from) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from))); }

INLINE float one_half(const uint16_t *from) {
    __fp16 half;
    memcpy(&half, from, sizeof half);
    return half;
}

INLINE int8x16_t sixteen(const int8_t *from) { return vld1q_s8(from); }

/* Sums of a block for a four of rows x, if there is one, and then for n_single rows y, `stride` blocks apart. Rows take
 * turns, as each sum waits for itself. q: the low nibbles of the weights, then the high ones, in 16-byte pieces. */
#if defined(__ARM_FEATURE_MATMUL_INT8)

/* What two rows give for columns 0 and 1 (left), and 2 and 3 (right), as sums of each row. */
INLINE void by_row(int32x4_t left, int32x4_t right, int32x4_t *sum) {
    const int64x2_t a = vreinterpretq_s64_s32(left), b = vreinterpretq_s64_s32(right);
    sum[0] = vreinterpretq_s32_s64(vuzp1q_s64(a, b));
    sum[1] = vreinterpretq_s32_s64(vuzp2q_s64(a, b));
}

INLINE void sums_of_group(const int8x16_t *q, const bool four, const row_4 *x, const int n_single, const row_1 *y,
                          size_t stride, int32x4_t *sum) {
    const int n_pairs = (four ? 2 : 0) + n_single / 2, odd = n_single % 2;
    int32x4_t left[4], right[4]; /* of each pair of rows, and of the odd row: two partial sums a column */
    for (int p = 0; p < n_pairs + odd; p++) left[p] = right[p] = vdupq_n_s32(0);
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        int64x2_t single[MOST_SINGLE];
        for (int r = 0; r < n_single; r++) {
            single[r] = vreinterpretq_s64_s8(sixteen(y[(size_t)r * stride].qs + 16 * h));
        }
#pragma GCC unroll 2
        for (int k = 2 * h; k < 2 * h + 2; k++) {
            int8x16_t pair[3];
            if (four) {
                pair[0] = sixteen(x->qs + 32 * k);
                pair[1] = sixteen(x->qs + 32 * k + 16);
            }
            if (n_single >= 2) {
                pair[n_pairs - 1] = vreinterpretq_s8_s64(
                    k % 2 ? vzip2q_s64(single[0], single[1]) : vzip1q_s64(single[0], single[1]));
            }
            for (int p = 0; p < n_pairs; p++) {
                left[p] = vmmlaq_s32(left[p], pair[p], q[2 * k]);
                right[p] = vmmlaq_s32(right[p], pair[p], q[2 * k + 1]);
            }
            if (odd) {
                const int64x2_t last = single[n_single - 1];
                const int64x2_t chunk = k % 2 ? vdupq_laneq_s64(last, 1) : vdupq_laneq_s64(last, 0);
                left[n_pairs] = vdotq_s32(left[n_pairs], q[2 * k], vreinterpretq_s8_s64(chunk));
                right[n_pairs] = vdotq_s32(right[n_pairs], q[2 * k + 1], vreinterpretq_s8_s64(chunk));
            }
        }
    }
    for (int p = 0; p < n_pairs; p++) by_row(left[p], right[p], sum + 2 * p);
    if (odd) sum[2 * n_pairs] = vpaddq_s32(left[n_pairs], right[n_pairs]);
}

#else

INLINE void sums_of_group(const int8x16_t *q, const bool four, const row_4 *x, const int n_single, const row_1 *y,
                          size_t stride, int32x4_t *sum) {
    const int first = four ? 4 : 0;
    for (int r = 0; r < first + n_single; r++) sum[r] = vdupq_n_s32(0);
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        int8x16_t single[MOST_SINGLE], next = q[0];
        if (four) next = sixteen(x->qs + 64 * h);
        for (int r = 0; r < n_single; r++) single[r] = sixteen(y[(size_t)r * stride].qs + 16 * h);
/* Four values of each row. */
#define STEP(lane)                                                                                                    \
    do {                                                                                                              \
        const int8x16_t w = q[4 * h + lane], a = next;                                                                \
        if (four) {                                                                                                   \
            if (lane < 3) next = sixteen(x->qs + 64 * h + 16 * (lane + 1));                                           \
            sum[0] = vdotq_laneq_s32(sum[0], w, a, 0);                                                                \
            sum[1] = vdotq_laneq_s32(sum[1], w, a, 1);                                                                \
            sum[2] = vdotq_laneq_s32(sum[2], w, a, 2);                                                                \
            sum[3] = vdotq_laneq_s32(sum[3], w, a, 3);                                                                \
        }                                                                                                             \
        for (int r = 0; r < n_single; r++) sum[first + r] = vdotq_laneq_s32(sum[first + r], w, single[r], lane);      \
    } while (0)
        STEP(0);
        STEP(1);
        STEP(2);
        STEP(3);
#undef STEP
    }
}

#endif

INLINE void add_group(const int8x16_t *q, float32x4_t d, const bool four, const row_4 *x, const int n_single,
                      const row_1 *y, size_t stride, float32x4_t *acc) {
    const int first = four ? 4 : 0;
    int32x4_t sum[MOST_IN_GROUP];
    float32x4_t scale[MOST_IN_GROUP], part[MOST_IN_GROUP];
    sums_of_group(q, four, x, n_single, y, stride, sum);
    if (four) {
        const float32x4_t dx = four_halves(x->d);
        scale[0] = vmulq_laneq_f32(d, dx, 0);
        scale[1] = vmulq_laneq_f32(d, dx, 1);
        scale[2] = vmulq_laneq_f32(d, dx, 2);
        scale[3] = vmulq_laneq_f32(d, dx, 3);
    }
    for (int r = 0; r < n_single; r++) scale[first + r] = vmulq_n_f32(d, one_half(&y[(size_t)r * stride].d));
    for (int r = 0; r < first + n_single; r++) part[r] = vcvtq_n_f32_s32(sum[r], 4);
    for (int r = 0; r < first + n_single; r++) acc[r] = vfmaq_f32(acc[r], part[r], scale[r]);
}

INLINE void tile(const int n_fours, const int n_single, int n_blocks, const weights_4 *w, const void *rows, float *s,
                 size_t bs) {
    const row_4 *fours = rows;
    const row_1 *single = (const row_1 *)(const void *)(fours + (size_t)n_fours * (size_t)n_blocks);
    const int8x16_t high = vdupq_n_s8((int8_t)0xF0);
    float32x4_t acc[MOST_ROWS];
    for (int r = 0; r < 4 * n_fours + n_single; r++) acc[r] = vdupq_n_f32(0.0f);
    for (int b = 0; b < n_blocks; b++) {
        int8x16_t q[8];
        const float32x4_t d = four_halves(w[b].d);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) q[i + 4] = vreinterpretq_s8_u8(vld1q_u8(w[b].qs + 16 * i));
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            q[i] = vshlq_n_s8(q[i + 4], 4);
            q[i + 4] = vandq_s8(q[i + 4], high);
        }
#pragma GCC unroll 3
        for (int f = 0; f < n_fours - 1; f++) {
            add_group(q, d, true, fours + (size_t)f * (size_t)n_blocks + b, 0, single, 0, acc + 4 * f);
        }
        const int last = n_fours > 0 ? n_fours - 1 : 0; /* with the single rows, so that more sums take turns */
        add_group(q, d, n_fours > 0, fours + (size_t)last * (size_t)n_blocks + b, n_single, single + b,
                  (size_t)n_blocks, acc + 4 * last);
    }
    for (int r = 0; r < 4 * n_fours + n_single; r++) vst1q_f32(s + (size_t)r * bs, acc[r]);
}

#define ROWS(fours, single)                                                                                           \
    static __attribute__((noinline)) void rows_##fours##_##single(int n_blocks, const weights_4 *w, int n_w,          \
                                                                  const void *rows, float *s, size_t bs) {            \
        for (int i = 0; i < n_w; i++) {                                                                               \
            tile(fours, single, n_blocks, w + (size_t)i * (size_t)n_blocks, rows, s + COLUMNS * i, bs);               \
        }                                                                                                             \
    }
ROWS(0, 2) ROWS(0, 3)
ROWS(1, 0) ROWS(1, 1) ROWS(1, 2) ROWS(1, 3)
ROWS(2, 0) ROWS(2, 1) ROWS(2, 2) ROWS(2, 3)
ROWS(3, 0) ROWS(3, 1) ROWS(3, 2) ROWS(3, 3)

void edgespec_q4_0_rows(int n_blocks, const weights_4 *w, int n_w, const void *rows, int n_rows, float *s, size_t bs) {
    static void (*const by_rows[])(int, const weights_4 *, int, const void *, float *, size_t) = {
        rows_0_2, rows_0_3, rows_1_0, rows_1_1, rows_1_2, rows_1_3, rows_2_0,
        rows_2_1, rows_2_2, rows_2_3, rows_3_0, rows_3_1, rows_3_2, rows_3_3};
    by_rows[n_rows - 2](n_blocks, w, n_w, rows, s, bs);
}
