/* Stands in for three functions of ggml's CPU library on 64-bit Arm, as hook.c does on x86 and explains: the product of
 * repacked Q4_0 weights with groups of four rows (gemm), with single rows (gemv), and the operation that calls both.
 *
 * ggml's own gemm is good at fours; what is dear are the one to three rows left over, each of which unpacks all weights
 * again. So only passes whose number of rows is WORTH it are taken, with all their rows: gemm's call, or the first of
 * gemv, computes them, and the calls that follow for the same share of columns find theirs done.
 *
 * Source: ggml-cpu/repack.cpp of ggml 0.25.3: forward_mul_mat, forward_mul_mat_one_chunk,
 * ggml_repack_get_optimal_repack_type. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hook.h"
#include "rows_arm.h"

#define CLASS "N4ggml3cpu6repack13tensor_traitsI10block_q4_0" LAYOUT_IS("Ll4ELl4E", "Ll8ELl4E") "L9ggml_type8EE"
#define FORWARD "_Z" CLASS "15compute_forwardEP19ggml_compute_paramsP11ggml_tensor"
#define TABLE "_ZTV" CLASS "E"
#define GEMM LAYOUT_IS("ggml_gemm_q4_0_4x4_q8_0", "ggml_gemm_q4_0_4x8_q8_0")
#define GEMV LAYOUT_IS("ggml_gemv_q4_0_4x4_q8_0", "ggml_gemv_q4_0_4x8_q8_0")
enum { N_TABLE = 7 }; /* entries of the class's table of virtual functions */

enum { OP_MUL_MAT = 29, TYPE_Q4_0 = 2 };

static struct {
    void *library;
    product *gemm, *gemv;
    forward *forward;
    bool has_rest;
} ggml;
static pthread_once_t ggml_once = PTHREAD_ONCE_INIT;
static atomic_bool armed;
static atomic_uint_fast64_t n_shares;

/* What a thread knows of the operation it is in. */
static _Thread_local struct {
    const char *rows; /* all its activations; NULL outside of an operation for us */
    int n_rows;
    size_t bs; /* floats from one row of the result to the next */
    struct {   /* the next call of gemv for a row already computed */
        const void *w;
        const char *row;
        float *s;
        int nc;
    } next;
    int n_next; /* how many such calls are to come */
} now;

/* ISO C has no conversion from an object's address to a function's; POSIX asks for it. */
void edgespec_find(void *function, const char *name) {
    void *symbol = ggml.library == NULL ? NULL : dlsym(ggml.library, name);
    memcpy(function, &symbol, sizeof symbol);
}

static void find_ggml(void) {
    ggml.library = dlopen(GGML_CPU, RTLD_NOLOAD | RTLD_LAZY);
    edgespec_find(&ggml.gemm, GEMM);
    edgespec_find(&ggml.gemv, GEMV);
    edgespec_find(&ggml.forward, FORWARD);
    ggml.has_rest = edgespec_find_for_attention();
}

static bool has_ggml(void) {
    pthread_once(&ggml_once, find_ggml);
    return ggml.gemm != NULL && ggml.gemv != NULL && ggml.forward != NULL && ggml.has_rest;
}

bool edgespec_is_armed(void) { return atomic_load_explicit(&armed, memory_order_relaxed); }

/* The original functions must be there when ggml calls: its library holds them. */
void edgespec_need_ggml(void) {
    if (!has_ggml()) {
        fputs("edgespec: " GGML_CPU " calls functions that it does not have\n", stderr);
        abort();
    }
}

/* Whether a pass of so many rows of such weights is computed here. */
EXPORTED int edgespec_takes(int type, int n_rows) {
    return type == TYPE_Q4_0 && n_rows >= 2 && n_rows <= MOST_ROWS && (WORTH >> n_rows & 1);
}

/* All rows of a share of the columns, if the operation is ours. */
static bool compute(int n, float *s, const void *w, const void *rows, int nc) {
    if (rows != now.rows || n % BLOCK != 0 || nc % COLUMNS != 0) return false;
    edgespec_q4_0_rows(n / BLOCK, w, nc / COLUMNS, rows, now.n_rows, s, now.bs);
    atomic_fetch_add_explicit(&n_shares, 1, memory_order_relaxed);
    return true;
}

/* `n_next` calls of gemv for rows of this share that are computed, from row `first` on, are to come. */
static void expect(int n, float *s, const void *w, const char *rows, int nc, int first) {
    now.n_next = now.n_rows - first;
    now.next.w = w;
    now.next.row = rows + (size_t)first * (size_t)(n / BLOCK) * sizeof(row_1);
    now.next.s = s + (size_t)first * now.bs;
    now.next.nc = nc;
}

static void leave(void) {
    now.rows = NULL;
    now.n_next = 0;
}

EXPORTED forward edgespec_forward __asm__(FORWARD);
bool edgespec_forward(void *self, struct params *params, struct tensor *op) {
    edgespec_need_ggml();
    leave();
    if (edgespec_is_armed() && op->op == OP_MUL_MAT && !params->use_ref) {
        const int64_t *ne = op->src[1]->ne;
        if (ne[1] <= MOST_ROWS && ne[2] == 1 && ne[3] == 1 && edgespec_takes(op->src[0]->type, (int)ne[1])) {
            now.rows = params->wdata;
            now.n_rows = (int)ne[1];
            now.bs = op->nb[1] / sizeof(float);
        }
    }
    const bool taken = ggml.forward(self, params, op);
    leave();
    return taken;
}

EXPORTED product edgespec_gemm __asm__(GEMM), edgespec_gemv __asm__(GEMV);

void edgespec_gemm(int n, float *s, size_t bs, const void *w, const void *rows, int nr, int nc) {
    now.n_next = 0;
    if (nr == now.n_rows / 4 * 4 && bs == now.bs && compute(n, s, w, rows, nc)) {
        expect(n, s, w, rows, nc, nr);
        return;
    }
    edgespec_need_ggml();
    ggml.gemm(n, s, bs, w, rows, nr, nc);
}

void edgespec_gemv(int n, float *s, size_t bs, const void *w, const void *row, int nr, int nc) {
    if (now.n_next == 0 && now.n_rows < 4 && compute(n, s, w, row, nc)) expect(n, s, w, row, nc, 0);
    if (now.n_next > 0 && w == now.next.w && row == now.next.row && s == now.next.s && nc == now.next.nc) {
        now.n_next--;
        now.next.row += (size_t)(n / BLOCK) * sizeof(row_1);
        now.next.s += now.bs;
        return;
    }
    now.n_next = 0;
    edgespec_need_ggml();
    ggml.gemv(n, s, bs, w, row, nr, nc);
}

const char *edgespec_misfit(void) {
    if (!has_ggml()) return "ggml has no such functions";
    int (*has_instructions)(void), (*has_sve)(void), (*n_sve_bytes)(void);
    edgespec_find(&has_instructions, LAYOUT_IS("ggml_cpu_has_dotprod", "ggml_cpu_has_matmul_int8"));
    edgespec_find(&has_sve, "ggml_cpu_has_sve");
    edgespec_find(&n_sve_bytes, "ggml_cpu_get_sve_cnt");
    if (has_instructions == NULL || has_sve == NULL || n_sve_bytes == NULL) return "ggml has no such functions";
    if (!has_instructions()) return "llama.cpp is compiled without " LAYOUT_IS("dot", "matrix") " products";
    if (LAYOUT_IS(false, true) && has_sve() && n_sve_bytes() == 32) return "ggml has kernels of its own for wide SVE";
    return NULL;
}

/* Takes over from ggml's functions, or gives back to them, for the whole process. NULL, or why it cannot. */
EXPORTED const char *edgespec_arm(bool on) {
    if (on) {
        const char *misfit = edgespec_misfit();
        if (misfit != NULL) return misfit;
        void *const *table = dlsym(ggml.library, TABLE);
        bool found = false;
        forward *function;
        for (int i = 0; table != NULL && i < N_TABLE; i++) {
            memcpy(&function, &table[i], sizeof function);
            found = found || function == edgespec_forward;
        }
        if (!found) return "ggml was loaded before and does not call here";
    }
    atomic_store(&armed, on);
    return NULL;
}

/* Shares of columns computed here so far, by all threads. */
EXPORTED uint64_t edgespec_n_shares(void) { return atomic_load(&n_shares); }
