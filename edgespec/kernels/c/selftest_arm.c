/* Compares the arithmetic for Arm with ggml's own functions, bit for bit: random and extreme blocks, every number of
 * rows, ragged columns. As selftest.c does on x86, with the layouts of rows_arm.h. */
#include <stdio.h>
#include <stdlib.h>

#include "hook.h"
#include "rows_arm.h"
#include "selftest.h"

enum { MOST_BLOCKS = 9, MOST_W = 5, STRIDE = COLUMNS * MOST_W + 3, N_OUT = MOST_ROWS * STRIDE };

typedef struct {
    weights_4 w[MOST_W * MOST_BLOCKS];
    row_1 single[MOST_ROWS * MOST_BLOCKS];
    char rows[MOST_ROWS * MOST_BLOCKS * sizeof(row_1)];
    float ours[N_OUT], theirs[N_OUT];
} problem;

static void fill(problem *p, int kind, int n_blocks, int n_w, int n_rows) {
    static const uint8_t patterns[] = {0x00, 0x88, 0x77, 0xFF, 0x8F};
    for (int i = 0; i < n_w * n_blocks; i++) {
        const bool flat = kind == 2 && draw(2);
        const uint8_t pattern = patterns[draw(sizeof patterns)];
        for (int j = 0; j < COLUMNS; j++) p->w[i].d[j] = scale(kind);
        for (size_t j = 0; j < sizeof p->w->qs; j++) p->w[i].qs[j] = flat ? pattern : (uint8_t)draw(256);
    }
    for (int i = 0; i < n_rows * n_blocks; i++) {
        p->single[i].d = scale(kind);
        for (int j = 0; j < BLOCK; j++) p->single[i].qs[j] = kind == 2 && draw(64) == 0 ? -128 : activation(kind);
    }
    /* As ggml lays rows out: fours in chunks, then the rest. */
    const int n_fours = n_rows / 4 * 4;
    for (int r = 0; r < n_fours; r++) {
        row_4 *four = (row_4 *)(void *)p->rows + (r / 4) * n_blocks;
        for (int b = 0; b < n_blocks; b++) {
            const row_1 *from = p->single + r * n_blocks + b;
            four[b].d[r % 4] = from->d;
            for (int k = 0; k < BLOCK; k += CHUNK) memcpy(four[b].qs + 4 * k + CHUNK * (r % 4), from->qs + k, CHUNK);
        }
    }
    const size_t done = (size_t)(n_fours * n_blocks);
    memcpy(p->rows + done * sizeof(row_1), p->single + done, (size_t)((n_rows - n_fours) * n_blocks) * sizeof(row_1));
}

EXPORTED const char *edgespec_self_test(uint64_t seed, int n_cases) {
    static _Thread_local char text[200];
    product *gemv, *gemm, *generic;
    void (*prepare)(void); /* fills ggml's tables of half precision numbers, once a process */
    const char *found = edgespec_misfit();
    if (found != NULL) return found;
    edgespec_find(&gemv, LAYOUT_IS("ggml_gemv_q4_0_4x4_q8_0", "ggml_gemv_q4_0_4x8_q8_0"));
    edgespec_find(&gemm, LAYOUT_IS("ggml_gemm_q4_0_4x4_q8_0", "ggml_gemm_q4_0_4x8_q8_0"));
    edgespec_find(&generic, LAYOUT_IS("ggml_gemv_q4_0_4x4_q8_0_generic", "ggml_gemv_q4_0_4x8_q8_0_generic"));
    edgespec_find(&prepare, "ggml_cpu_init");
    if (generic == NULL || prepare == NULL) return "ggml has nothing to compare with";
    prepare();
    problem *p = aligned_alloc(64, (sizeof *p + 63) / 64 * 64);
    if (p == NULL) return "no memory for the self-test";
    state = seed * 2 + 1;
    for (int i = 0; i < n_cases && found == NULL; i++) {
        const int kind = i % 3, n_rows = 2 + i % (MOST_ROWS - 1);
        const int n_blocks = 1 + (int)draw(MOST_BLOCKS), n_w = 1 + (int)draw(MOST_W);
        const int n = n_blocks * BLOCK, nc = COLUMNS * n_w;
        fill(p, kind, n_blocks, n_w, n_rows);
        wipe(p->ours, N_OUT);
        edgespec_q4_0_rows(n_blocks, p->w, n_w, p->rows, n_rows, p->ours, STRIDE);
        for (int by = 0; by < 3 && found == NULL; by++) {
            static const char *const names[] = {"single rows", "rows in fours", "the portable form"};
            if (by == 2 && kind != 1) continue; /* it rounds twice as often: the same where nothing is rounded */
            wipe(p->theirs, N_OUT);
            const int n_fours = by == 1 ? n_rows / 4 * 4 : 0;
            if (n_fours > 0) gemm(n, p->theirs, STRIDE, p->w, p->rows, n_fours, nc);
            for (int r = n_fours; r < n_rows; r++) {
                (by == 2 ? generic : gemv)(n, p->theirs + r * STRIDE, 0, p->w, p->single + r * n_blocks, 1, nc);
            }
            const int at = difference(p->ours, p->theirs, N_OUT);
            if (at < 0) continue;
            snprintf(text, sizeof text, "case %d, %d rows, %d columns, %d blocks: row %d, column %d is %a, %s give %a",
                     i, n_rows, nc, n_blocks, at / STRIDE, at % STRIDE, p->ours[at], names[by], p->theirs[at]);
            found = text;
        }
    }
    free(p);
    return found;
}
