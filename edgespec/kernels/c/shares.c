/* Source: ggml-cpu/ggml-cpu.c of ggml 0.25.3: ggml_compute_forward_mul_mat, from the barrier on. */
#include "shares.h"

enum { LEAST_CHUNK = 16 };

static struct {
    void (*barrier)(void *threadpool);
    void (*chunk_set)(void *threadpool, int next);
    int (*chunk_add)(void *threadpool, int n);
} ggml;

bool edgespec_find_for_shares(void) {
    edgespec_find(&ggml.barrier, "ggml_barrier");
    edgespec_find(&ggml.chunk_set, "ggml_threadpool_chunk_set");
    edgespec_find(&ggml.chunk_add, "ggml_threadpool_chunk_add");
    return ggml.barrier && ggml.chunk_set && ggml.chunk_add;
}

void edgespec_share_out(const struct params *params, const struct tensor *op, const void *rows, int unit, int most,
                        share *compute) {
    const int64_t n = op->ne[0];
    /* Four chunks a thread, so that one that waits for its core holds up the others little. */
    int64_t chunk = n / (4 * params->nth) / unit * unit;
    chunk = chunk < LEAST_CHUNK ? LEAST_CHUNK : chunk > most ? most : chunk;
    if (params->ith == 0) ggml.chunk_set(params->threadpool, params->nth);
    ggml.barrier(params->threadpool);
    edgespec_count_share();
    for (int64_t i = params->ith; i * chunk < n; i = ggml.chunk_add(params->threadpool, 1)) {
        compute(op, rows, i * chunk, (i + 1) * chunk < n ? (i + 1) * chunk : n);
    }
}
