/* Stands in for the operation on Q4_K weights that ggml repacks, and offers the one on Q6_K weights to `unpacked.c`: with 2
 * to 16 rows of activations the whole operation is computed here; ggml keeps its threads, its work buffer and its quantiser,
 * and computes everything else, prompts among it.
 *
 * ggml's functions for four rows of Q4_K, and for eight rows and more of Q6_K, add in another order than those for one
 * row. A pass that checks drafted tokens has to give what they would get one by one, so here each row equals the row alone.
 *
 * Source: ggml-cpu/repack.cpp and ggml-cpu.c of ggml 0.25.3: forward_mul_mat, ggml_compute_forward_mul_mat. */
#include "k.h"

#include <string.h>

#include "shares.h"

#define CLASS "N4ggml3cpu6repack13tensor_traitsI10block_q4_KLl8ELl8EL9ggml_type15EE"
#define FORWARD "_Z" CLASS "15compute_forwardEP19ggml_compute_paramsP11ggml_tensor"

enum { OP_MUL_MAT = 29, TYPE_F32 = 0, TYPE_Q4_K = 12, TYPE_Q6_K = 14, UNIT = 16, MOST_CHUNK = 1024 };

static struct {
    forward *forward;
    void (*quantise)(const float *from, void *to, int64_t n);
} ggml;

bool edgespec_find_for_k(void) {
    edgespec_find(&ggml.forward, FORWARD);
    edgespec_find(&ggml.quantise, "quantize_row_q8_K");
    return ggml.forward && ggml.quantise;
}

static bool is_ours(const struct params *params, const struct tensor *op, int type, int64_t column_bytes, int multiple) {
    const struct tensor *w = op->src[0], *x = op->src[1];
    if (!edgespec_is_armed() || op->op != OP_MUL_MAT || params->use_ref || w->type != type) return false;
    const bool matrices = w->ne[2] == 1 && w->ne[3] == 1 && x->ne[2] == 1 && x->ne[3] == 1;
    const bool plain = x->type == TYPE_F32 && x->nb[0] == sizeof(float) && op->nb[0] == sizeof(float);
    const int64_t n_blocks = w->ne[0] / K_BLOCK;
    const bool fits = w->ne[0] == x->ne[0] && w->ne[0] % K_BLOCK == 0 && w->ne[1] % multiple == 0;
    if (!matrices || !plain || !fits || x->ne[1] < 2 || x->ne[1] > K_ROWS) return false;
    if ((int64_t)w->nb[1] != n_blocks * column_bytes) return false;
    /* ggml asks for a cache line a thread more than the activations need: room to begin at a multiple of 64. */
    return params->wsize >= (size_t)(n_blocks * x->ne[1]) * sizeof(block_q8_k) + 63;
}

void edgespec_put_block(const block_q8_k *block, const k_rows *x, size_t at, bool for_q4_k) {
    memcpy((int8_t *)x->qs + at * K_BLOCK, block->qs, K_BLOCK);
    memcpy((float *)x->d + at, &block->d, sizeof(float));
    int16_t *sums = (int16_t *)x->sums + at * K_SUMS;
    memcpy(sums, block->sums, sizeof block->sums);
    for (int i = 0; for_q4_k && i < K_SUMS / 2; i++) sums[i] = (int16_t)(block->sums[2 * i] + block->sums[2 * i + 1]);
}

static void compute(const struct params *params, struct tensor *op, share *product) {
    const struct tensor *x = op->src[1];
    const int64_t n_blocks = x->ne[0] / K_BLOCK, n_rows = x->ne[1], n = n_blocks * n_rows;
    const uintptr_t begin = ((uintptr_t)params->wdata + 63) / 64 * 64;
    const k_rows rows = {(const int8_t *)begin, (const int16_t *)(begin + (uintptr_t)n * K_BLOCK),
                         (const float *)(begin + (uintptr_t)n * (K_BLOCK + K_SUMS * sizeof(int16_t))), (int)n_rows};
    const int64_t first = params->ith * n_blocks / params->nth, end = (params->ith + 1) * n_blocks / params->nth;
    for (int64_t b = first; b < end; b++) {
        for (int64_t r = 0; r < n_rows; r++) {
            block_q8_k block = {0}; /* the quantiser leaves the sums of a block of zeros as they are */
            const char *row = (const char *)x->data + r * (int64_t)x->nb[1];
            ggml.quantise((const float *)(const void *)row + b * K_BLOCK, &block, K_BLOCK);
            edgespec_put_block(&block, &rows, (size_t)(b * n_rows + r), op->src[0]->type == TYPE_Q4_K);
        }
    }
    edgespec_share_out(params, op, &rows, UNIT, MOST_CHUNK, product);
}

static void product_of(edgespec_k_product *product, const struct tensor *op, const k_rows *rows, int64_t begin, int64_t end) {
    const struct tensor *w = op->src[0];
    const char *weights = (const char *)w->data + begin * (int64_t)w->nb[1];
    float *out = (float *)op->data + begin;
    product((int)(w->ne[0] / K_BLOCK), weights, (int)(end - begin), rows, out, op->nb[1] / sizeof(float));
}

static void share_of_q4_k(const struct tensor *op, const void *rows, int64_t begin, int64_t end) {
    product_of(edgespec_q4_k_product, op, rows, begin, end);
}

static void share_of_q6_k(const struct tensor *op, const void *rows, int64_t begin, int64_t end) {
    product_of(edgespec_q6_k_product, op, rows, begin, end);
}

bool edgespec_q6_k(const struct params *params, struct tensor *op) {
    if (!is_ours(params, op, TYPE_Q6_K, sizeof(block_q6_k), 1)) return false;
    compute(params, op, share_of_q6_k);
    return true;
}

EXPORTED forward edgespec_q4_k_forward __asm__(FORWARD);
bool edgespec_q4_k_forward(void *self, struct params *params, struct tensor *op) {
    edgespec_need_ggml();
    if (!is_ours(params, op, TYPE_Q4_K, sizeof(block_q4_k_8) / K_COLUMNS, K_COLUMNS)) return ggml.forward(self, params, op);
    compute(params, op, share_of_q4_k);
    return true;
}

bool edgespec_k_is_called(void) { return edgespec_is_virtual("_ZTV" CLASS "E", edgespec_q4_k_forward); }
