/* Stands in for ggml's check whether its tiled product takes an operation, which every product of weights in plain layouts
 * passes first: with several rows of activations and weights of a type we have, the whole operation is computed here.
 * ggml keeps its threads, its work buffer and the order of every sum; everything else goes to the original function.
 *
 * Source: ggml-cpu/ggml-cpu.c of ggml 0.25.3: ggml_compute_forward_mul_mat. */
#include "unpacked.h"

#include <string.h>

#include "hook.h"
#include "k.h"
#include "shares.h"

/* The weights of a chunk are read once for each tile of rows, so they should stay in a near cache. */
enum { TYPE_F32 = 0, TYPE_Q4_1 = 3, TYPE_Q5_0 = 6, TYPE_Q8_0 = 8, MOST_CHUNK = 64 };

typedef void quantiser(const float *from, void *to, int64_t n);

static struct {
    bool (*tiled)(const struct params *params, struct tensor *op);
    quantiser *q8_0, *q8_1;
} ggml;

bool edgespec_find_for_unpacked(void) {
    edgespec_find(&ggml.tiled, "ggml_compute_forward_mul_mat_tiled");
    edgespec_find(&ggml.q8_0, "quantize_row_q8_0");
    edgespec_find(&ggml.q8_1, "quantize_row_q8_1");
    return ggml.tiled && ggml.q8_0 && ggml.q8_1;
}

/* Bytes of 32 activations for weights of this type; 0: not ours. */
static size_t block_bytes(const struct params *params, const struct tensor *op) {
    const struct tensor *w = op->src[0], *x = op->src[1];
    size_t bytes;
    if (w->type == TYPE_Q4_1 && w->nb[0] == sizeof(block_q4_1)) bytes = sizeof(block_q8_1);
    else if (w->type == TYPE_Q5_0 && w->nb[0] == sizeof(block_q5_0)) bytes = sizeof(block_q8_0);
    else if (w->type == TYPE_Q8_0 && w->nb[0] == sizeof(block_q8_0)) bytes = sizeof(block_q8_0);
    else return 0;
    const bool matrices = w->ne[2] == 1 && w->ne[3] == 1 && x->ne[2] == 1 && x->ne[3] == 1;
    const bool plain = x->type == TYPE_F32 && x->nb[0] == sizeof(float) && op->nb[0] == sizeof(float);
    const bool fits = w->ne[0] == x->ne[0] && w->ne[0] % PLAIN_BLOCK == 0 && w->ne[1] % TILE_WEIGHTS == 0;
    if (params->use_ref || !matrices || !plain || !fits || x->ne[1] < 2) return 0;
    return params->wsize >= (size_t)(w->ne[0] / PLAIN_BLOCK) * (size_t)x->ne[1] * bytes ? bytes : 0;
}

/* This thread's share of the blocks of all rows, quantised as ggml does and laid out for the tiles. */
static void read_activations(const struct params *params, const struct tensor *x, size_t bytes) {
    const int64_t n_blocks = x->ne[0] / PLAIN_BLOCK, n_rows = x->ne[1];
    const int64_t begin = params->ith * n_blocks / params->nth, end = (params->ith + 1) * n_blocks / params->nth;
    const bool sums = bytes == sizeof(block_q8_1);
    for (int64_t row = 0; row < n_rows; row++) {
        const int64_t first = row / TILE_ROWS * TILE_ROWS, r = row - first;
        const int64_t n = n_rows - first < TILE_ROWS ? n_rows - first : TILE_ROWS;
        const float *from = (const float *)(const void *)((const char *)x->data + row * (int64_t)x->nb[1]);
        for (int64_t b = begin; b < end; b++) {
            char *to = (char *)params->wdata + (size_t)(first * n_blocks + b * n) * bytes;
            if (sums) {
                block_q8_1 block;
                ggml.q8_1(from + b * PLAIN_BLOCK, &block, PLAIN_BLOCK);
                memcpy(to + r * PLAIN_BLOCK, block.qs, PLAIN_BLOCK);
                memcpy(to + n * PLAIN_BLOCK + 2 * r, &block.d, 2);
                memcpy(to + n * (PLAIN_BLOCK + 2) + 2 * r, &block.s, 2);
            } else {
                block_q8_0 block;
                ggml.q8_0(from + b * PLAIN_BLOCK, &block, PLAIN_BLOCK);
                memcpy(to + r * PLAIN_BLOCK, block.qs, PLAIN_BLOCK);
                memcpy(to + n * PLAIN_BLOCK + 2 * r, &block.d, 2);
            }
        }
    }
}

/* Activations in the work buffer, so many bytes a block. */
typedef struct {
    const char *rows;
    size_t bytes;
} activations;

static void compute(const struct tensor *op, const void *rows, int64_t begin, int64_t end) {
    const struct tensor *w = op->src[0];
    const activations *x = rows;
    edgespec_tile *tile = edgespec_q8_0_tile;
    if (w->type == TYPE_Q4_1) tile = edgespec_q4_1_tile;
    if (w->type == TYPE_Q5_0) tile = edgespec_q5_0_tile;
    const int64_t n_rows = op->ne[1], n_blocks = w->ne[0] / PLAIN_BLOCK;
    const size_t stride = op->nb[1] / sizeof(float);
    for (int64_t first = 0; first < n_rows; first += TILE_ROWS) {
        const int n = (int)(n_rows - first < TILE_ROWS ? n_rows - first : TILE_ROWS);
        const char *tile_rows = x->rows + (size_t)(first * n_blocks) * x->bytes;
        for (int64_t weight = begin; weight < end; weight += TILE_WEIGHTS) {
            const char *weights = (const char *)w->data + weight * (int64_t)w->nb[1];
            float *out = (float *)op->data + weight + first * (int64_t)stride;
            tile((int)n_blocks, weights, w->nb[1], tile_rows, n, out, stride);
        }
    }
}

EXPORTED bool ggml_compute_forward_mul_mat_tiled(const struct params *params, struct tensor *op);
bool ggml_compute_forward_mul_mat_tiled(const struct params *params, struct tensor *op) {
    edgespec_need_ggml();
    if (edgespec_q6_k(params, op)) return true;
    const size_t bytes = edgespec_is_armed() ? block_bytes(params, op) : 0;
    if (bytes == 0) return ggml.tiled(params, op);
    read_activations(params, op->src[1], bytes);
    edgespec_share_out(params, op, &(activations){params->wdata, bytes}, TILE_WEIGHTS, MOST_CHUNK, compute);
    return true;
}
