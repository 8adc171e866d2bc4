/* The comparison for blocks of 256: Q4_K against ggml's function for one row of repacked weights, Q6_K against the one for
 * one row of plain ones, and both against their portable forms where nothing is rounded. */
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>

#include "k.h"
#include "selftest.h"

enum { MOST_BLOCKS = 3, MOST_W = 3, STRIDE = K_COLUMNS * MOST_W + 3, N_OUT = K_ROWS * STRIDE };

typedef void repacked(int n, float *s, size_t bs, const void *w, const void *rows, int n_rows, int n_columns);
typedef void plain(int n, float *s, size_t bs, const void *w, size_t bw, const void *row, size_t br, int n_rows);

typedef struct {
    _Alignas(64) int8_t qs[K_ROWS * MOST_BLOCKS * K_BLOCK];
    int16_t sums[K_ROWS * MOST_BLOCKS * K_SUMS];
    float d[K_ROWS * MOST_BLOCKS];
    block_q8_k rows[K_ROWS * MOST_BLOCKS]; /* row after row, as ggml has them */
    block_q4_k_8 q4[MOST_W * MOST_BLOCKS];
    block_q6_k q6[MOST_W * K_COLUMNS * MOST_BLOCKS];
    float ours[N_OUT], theirs[N_OUT];
} problem;

static void fill_bytes(void *to, size_t n, bool flat) {
    static const uint8_t patterns[] = {0x00, 0xFF, 0x0F, 0xF0, 0x80, 0x7F};
    if (flat) {
        memset(to, patterns[draw(sizeof patterns)], n);
        return;
    }
    for (size_t i = 0; i < n; i += 8) {
        const uint64_t bits = draw_bits();
        memcpy((char *)to + i, &bits, n - i < 8 ? n - i : 8);
    }
}

static float row_scale(int kind) {
    const uint32_t bits = (uint32_t)(draw_bits() >> 32);
    float any;
    memcpy(&any, &bits, 4);
    return kind == 2 && draw(3) == 0 ? any : _cvtsh_ss(scale(kind));
}

static void fill(problem *p, int kind, int n_weights, int n_rows, int n_blocks) {
    for (int i = 0; i < n_weights / K_COLUMNS * n_blocks; i++) {
        for (int c = 0; c < K_COLUMNS; c++) {
            p->q4[i].d[c] = scale(kind);
            p->q4[i].dmin[c] = scale(kind);
        }
        fill_bytes(p->q4[i].scales, sizeof p->q4[i].scales, kind == 2 && draw(2));
        fill_bytes(p->q4[i].qs, sizeof p->q4[i].qs, kind == 2 && draw(2));
    }
    for (int i = 0; i < n_weights * n_blocks; i++) {
        block_q6_k *w = p->q6 + i;
        w->d = scale(kind);
        fill_bytes(w->scales, sizeof w->scales, kind == 2 && draw(2));
        fill_bytes(w->ql, sizeof w->ql, kind == 2 && draw(2));
        fill_bytes(w->qh, sizeof w->qh, kind == 2 && draw(2));
    }
    for (int r = 0; r < n_rows; r++) {
        for (int b = 0; b < n_blocks; b++) {
            block_q8_k *row = p->rows + r * n_blocks + b;
            const bool flat = kind == 2 && draw(2);
            const int8_t value = activation(2);
            row->d = row_scale(kind);
            memset(row->sums, 0, sizeof row->sums);
            for (int i = 0; i < K_BLOCK; i++) {
                row->qs[i] = flat ? value : activation(kind);
                row->sums[i / 16] = (int16_t)(row->sums[i / 16] + row->qs[i]);
            }
        }
    }
}

const char *edgespec_self_test_k(uint64_t seed, int n_cases, char *text, size_t n_text) {
    repacked *gemv[2];
    plain *dot[2];
    edgespec_find(&gemv[0], "ggml_gemv_q4_K_8x8_q8_K");
    edgespec_find(&gemv[1], "ggml_gemv_q4_K_8x8_q8_K_generic");
    edgespec_find(&dot[0], "ggml_vec_dot_q6_K_q8_K");
    edgespec_find(&dot[1], "ggml_vec_dot_q6_K_q8_K_generic");
    if (gemv[0] == NULL || gemv[1] == NULL || dot[0] == NULL || dot[1] == NULL) return "ggml has nothing to compare with";
    problem *p = aligned_alloc(64, (sizeof *p + 63) / 64 * 64);
    if (p == NULL) return "no memory for the self-test";
    const char *found = NULL;
    state = seed * 2 + 1;
    for (int i = 0; i < n_cases && found == NULL; i++) {
        const int kind = i % 3, n_rows = 1 + i % K_ROWS, n_blocks = 1 + (int)draw(MOST_BLOCKS);
        const int n = n_blocks * K_BLOCK, n_weights = K_COLUMNS * (1 + (int)draw(MOST_W));
        const int n_q6 = n_weights - (int)draw(K_COLUMNS); /* any number of plain weights */
        fill(p, kind, n_weights, n_rows, n_blocks);
        const k_rows x = {p->qs, p->sums, p->d, n_rows};
        for (int by = 0; by < 4 && found == NULL; by++) {
            const bool q4 = by % 2 == 0, portable = by >= 2;
            if (portable && !(kind == 1 && n_blocks == 1)) continue; /* they add in another order */
            for (int b = 0; b < n_blocks; b++) {
                for (int r = 0; r < n_rows; r++) {
                    edgespec_put_block(p->rows + r * n_blocks + b, &x, (size_t)(b * n_rows + r), q4);
                }
            }
            wipe(p->ours, N_OUT);
            wipe(p->theirs, N_OUT);
            if (q4) edgespec_q4_k_product(n_blocks, p->q4, n_weights, &x, p->ours, STRIDE);
            else edgespec_q6_k_product(n_blocks, p->q6, n_q6, &x, p->ours, STRIDE);
            for (int r = 0; r < n_rows; r++) {
                const block_q8_k *row = p->rows + r * n_blocks;
                float *to = p->theirs + r * STRIDE;
                if (q4) gemv[portable](n, to, (size_t)n_weights, p->q4, row, 1, n_weights);
                for (int w = 0; !q4 && w < n_q6; w++) dot[portable](n, to + w, 0, p->q6 + w * n_blocks, 0, row, 0, 1);
            }
            const int at = difference(p->ours, p->theirs, N_OUT);
            if (at < 0) continue;
            snprintf(text, n_text, "case %d of %s, %d rows, %d blocks: row %d, weights %d give %a, %s %a", i,
                     q4 ? "Q4_K" : "Q6_K", n_rows, n_blocks, at / STRIDE, at % STRIDE, p->ours[at],
                     portable ? "the portable form" : "ggml", p->theirs[at]);
            found = text;
        }
    }
    free(p);
    return found;
}
