/* Compares the arithmetic with ggml's own functions, bit for bit: random and extreme blocks, every number of rows,
 * ragged columns. */
#include <stdio.h>
#include <stdlib.h>

#include "hook.h"
#include "rows.h"
#include "selftest.h"
#include "unpacked.h"

enum { MOST_BLOCKS = 9, MOST_W = 5, STRIDE = 8 * MOST_W + 3, N_OUT = MAX_ROWS * STRIDE };

typedef struct {
    weights_8 w[MOST_W * MOST_BLOCKS];
    row_1 single[MAX_ROWS * MOST_BLOCKS];
    char rows[MAX_ROWS * MOST_BLOCKS * sizeof(row_1)];
    row_block x[MAX_ROWS * MOST_BLOCKS];
    float ours[N_OUT], theirs[N_OUT];
} problem;

static void fill(problem *p, int kind, int n_blocks, int n_w, int n_rows) {
    static const uint8_t patterns[] = {0x00, 0x88, 0x77, 0xFF, 0x8F};
    for (int i = 0; i < n_w * n_blocks; i++) {
        const bool flat = kind == 2 && draw(2);
        const uint8_t pattern = patterns[draw(sizeof patterns)];
        for (int j = 0; j < 8; j++) p->w[i].d[j] = scale(kind);
        for (int j = 0; j < 4 * BLOCK; j++) p->w[i].qs[j] = flat ? pattern : (uint8_t)draw(256);
    }
    for (int i = 0; i < n_rows * n_blocks; i++) {
        p->single[i].d = scale(kind);
        for (int j = 0; j < BLOCK; j++) p->single[i].qs[j] = activation(kind);
    }
    /* As ggml lays rows out: fours in 8-byte chunks, then the rest. */
    const int n_fours = n_rows / 4 * 4;
    for (int r = 0; r < n_fours; r++) {
        row_4 *four = (row_4 *)(void *)p->rows + (r / 4) * n_blocks;
        for (int b = 0; b < n_blocks; b++) {
            const row_1 *from = p->single + r * n_blocks + b;
            four[b].d[r % 4] = from->d;
            for (int k = 0; k < 4; k++) memcpy(four[b].qs + 32 * k + 8 * (r % 4), from->qs + 8 * k, 8);
        }
    }
    const size_t done = (size_t)n_fours * n_blocks;
    memcpy(p->rows + done * sizeof(row_1), p->single + done, (size_t)(n_rows - n_fours) * n_blocks * sizeof(row_1));
}

/* Plain weights and rows, and the rows once more as the tiles read them. */
typedef struct {
    char weights[TILE_WEIGHTS * MOST_BLOCKS * sizeof(block_q8_0)];
    char rows[TILE_ROWS * MOST_BLOCKS * sizeof(block_q8_1)];
    char x[TILE_ROWS * MOST_BLOCKS * sizeof(block_q8_1)];
} plain;

typedef void one_product(int n, float *s, size_t bs, const void *w, size_t bw, const void *row, size_t br, int n_rows);

/* Blocks of `n_scales` halves and `n_bytes` bytes, signed values if they are activations. */
static void fill_blocks(char *to, int n_blocks, int kind, int n_scales, int n_bytes, bool activations) {
    for (int b = 0; b < n_blocks; b++) {
        for (int i = 0; i < n_scales; i++, to += 2) {
            const uint16_t half = scale(kind);
            memcpy(to, &half, 2);
        }
        for (int i = 0; i < n_bytes; i++) *to++ = activations ? (char)activation(kind) : (char)draw(256);
    }
}

/* A type of plain weights: scales and bytes of a block. */
typedef struct {
    const char *name, *stock;
    edgespec_tile *tile;
    int n_scales, weight_bytes;
} form;
static const form forms[] = {
    {"Q4_1", "ggml_vec_dot_q4_1_q8_1", edgespec_q4_1_tile, 2, sizeof(block_q4_1)},
    {"Q5_0", "ggml_vec_dot_q5_0_q8_0", edgespec_q5_0_tile, 1, sizeof(block_q5_0)},
    {"Q8_0", "ggml_vec_dot_q8_0_q8_0", edgespec_q8_0_tile, 1, sizeof(block_q8_0)},
};
enum { N_FORMS = sizeof forms / sizeof *forms };

static const char *compare_unpacked(const form *form, one_product *stock, int i, char *text, size_t n_text) {
    const int kind = i % 3, n_rows = 1 + i % TILE_ROWS, n_blocks = 1 + (int)draw(MOST_BLOCKS);
    const int n_scales = form->n_scales, weight_bytes = form->weight_bytes, weights = n_blocks * weight_bytes;
    const int bytes = n_scales == 2 ? sizeof(block_q8_1) : sizeof(block_q8_0);
    plain p;
    fill_blocks(p.weights, TILE_WEIGHTS * n_blocks, kind, n_scales, weight_bytes - 2 * n_scales, false);
    fill_blocks(p.rows, n_rows * n_blocks, kind, n_scales, BLOCK, true);
    for (int r = 0; r < n_rows; r++) {
        for (int b = 0; b < n_blocks; b++) {
            const char *from = p.rows + (r * n_blocks + b) * bytes;
            char *to = p.x + b * n_rows * bytes;
            memcpy(to + r * BLOCK, from + 2 * n_scales, BLOCK);
            for (int k = 0; k < n_scales; k++) memcpy(to + n_rows * (BLOCK + 2 * k) + 2 * r, from + 2 * k, 2);
        }
    }
    float ours[N_OUT], theirs[N_OUT];
    wipe(ours, N_OUT);
    wipe(theirs, N_OUT);
    form->tile(n_blocks, p.weights, (size_t)weights, p.x, n_rows, ours, STRIDE);
    for (int r = 0; r < n_rows; r++) {
        for (int w = 0; w < TILE_WEIGHTS; w++) {
            const char *row = p.rows + r * n_blocks * bytes;
            stock(n_blocks * BLOCK, theirs + r * STRIDE + w, 0, p.weights + w * weights, 0, row, 0, 1);
        }
    }
    const int at = difference(ours, theirs, N_OUT);
    if (at < 0) return NULL;
    snprintf(text, n_text, "case %d of %s, %d rows, %d blocks: row %d, weights %d give %a, ggml %a", i,
             form->name, n_rows, n_blocks, at / STRIDE, at % STRIDE, ours[at], theirs[at]);
    return text;
}

EXPORTED const char *edgespec_self_test(uint64_t seed, int n_cases) {
    static _Thread_local char text[200];
    one_product *one[N_FORMS];
    product *gemv, *gemm, *generic;
    void (*prepare)(void); /* fills ggml's tables of half precision numbers, once a process */
    if (!edgespec_has_ggml()) return "ggml has no such functions";
    edgespec_find(&gemv, "ggml_gemv_q4_0_8x8_q8_0");
    edgespec_find(&gemm, "ggml_gemm_q4_0_8x8_q8_0");
    edgespec_find(&generic, "ggml_gemv_q4_0_8x8_q8_0_generic");
    edgespec_find(&prepare, "ggml_cpu_init");
    if (generic == NULL || prepare == NULL) return "ggml has nothing to compare with";
    for (int f = 0; f < N_FORMS; f++) {
        edgespec_find(&one[f], forms[f].stock);
        if (one[f] == NULL) return "ggml has nothing to compare with";
    }
    prepare();
    problem *p = aligned_alloc(64, (sizeof *p + 63) / 64 * 64);
    if (p == NULL) return "no memory for the self-test";
    const char *found = NULL;
    state = seed * 2 + 1;
    for (int i = 0; i < n_cases && found == NULL; i++) {
        const int kind = i % 3, n_rows = 1 + i % MAX_ROWS, n_blocks = 1 + draw(MOST_BLOCKS), n_w = 1 + draw(MOST_W);
        const int n = n_blocks * BLOCK, nc = 8 * n_w;
        fill(p, kind, n_blocks, n_w, n_rows);
        wipe(p->ours, N_OUT);
        if (!read_rows(n_blocks, p->rows, n_rows, p->x)) found = "rows were refused";
        edgespec_q4_0_rows(n_blocks, p->w, n_w, p->x, n_rows, p->ours, STRIDE);
        for (int by = 0; by < 3 && found == NULL; by++) {
            static const char *const names[] = {"single rows", "rows in fours", "the portable form"};
            if (by == 2 && kind != 1) continue; /* it rounds twice as often: the same where nothing is rounded */
            wipe(p->theirs, N_OUT);
            const int n_fours = by == 1 ? n_rows / 4 * 4 : 0;
            if (n_fours > 0) gemm(n, p->theirs, STRIDE, p->w, p->rows, n_fours, nc);
            for (int r = n_fours; r < n_rows; r++) {
                (by == 2 ? generic : gemv)(n, p->theirs + r * STRIDE, nc, p->w, p->single + r * n_blocks, 1, nc);
            }
            const int at = difference(p->ours, p->theirs, N_OUT);
            if (at < 0) continue;
            snprintf(text, sizeof text, "case %d, %d rows, %d columns, %d blocks: row %d, column %d is %a, %s give %a", i,
                     n_rows, nc, n_blocks, at / STRIDE, at % STRIDE, p->ours[at], names[by], p->theirs[at]);
            found = text;
        }
    }
    free(p);
    for (int i = 0; i < n_cases && found == NULL; i++) {
        found = compare_unpacked(forms + i % N_FORMS, one[i % N_FORMS], i / N_FORMS, text, sizeof text);
    }
    return found != NULL ? found : edgespec_self_test_k(seed, n_cases, text, sizeof text);
}
