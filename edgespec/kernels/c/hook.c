/* Stands in for three functions of ggml's CPU library, which finds them here when this library is loaded first with
 * RTLD_GLOBAL: the product of repacked Q4_0 weights with groups of four rows (gemm), with single rows (gemv), and the
 * operation that calls both. ggml keeps its threads, its layout, its quantised activations and its split of columns;
 * only the arithmetic of passes with two rows and more changes. Everything else goes to the original functions.
 *
 * gemm is asked for rows in fours and gemv for each row left over. The operation around them tells how many rows there
 * are in all, so the first call of a share of columns computes every row, and the calls that follow for the same share
 * find theirs done.
 *
 * Source: ggml-cpu/repack.cpp of ggml 0.25.3: forward_mul_mat, forward_mul_mat_one_chunk. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "hook.h"
#include "rows.h"

#define CLASS "N4ggml3cpu6repack13tensor_traitsI10block_q4_0Ll8ELl8EL9ggml_type8EE"
#define FORWARD "_Z" CLASS "15compute_forwardEP19ggml_compute_paramsP11ggml_tensor"
#define TABLE "_ZTV" CLASS "E"
enum { N_TABLE = 7 }; /* entries of the class's table of virtual functions */

enum { OP_MUL_MAT = 29 };

static struct {
    void *library;
    product *gemm, *gemv;
    forward *forward;
    bool has_rest;
} ggml;
static pthread_once_t ggml_once = PTHREAD_ONCE_INIT;
static atomic_bool armed;
static atomic_uint_fast64_t n_shares;

/* One call of gemv, but for the sizes that all calls of an operation have in common. */
typedef struct {
    const void *w;
    const char *row;
    float *s;
    int nc;
} single;

/* What a thread knows of the operation it is in. */
static _Thread_local struct {
    const char *rows; /* all its activations; NULL outside of an operation for us */
    int n_rows;
    size_t bs;   /* floats from one row of the result to the next */
    bool is_read; /* x holds the activations */
    row_block *x;
    size_t n_x;
    single next; /* the next call of gemv for a row already computed ... */
    int n_next;  /* ... and how many such calls are to come */
} now;

static pthread_key_t at_thread_end;

/* ISO C has no conversion from an object's address to a function's; POSIX asks for it. */
void edgespec_find(void *function, const char *name) {
    void *symbol = ggml.library == NULL ? NULL : dlsym(ggml.library, name);
    memcpy(function, &symbol, sizeof symbol);
}

static void find_ggml(void) {
    ggml.library = dlopen(GGML_CPU, RTLD_NOLOAD | RTLD_LAZY);
    edgespec_find(&ggml.gemm, "ggml_gemm_q4_0_8x8_q8_0");
    edgespec_find(&ggml.gemv, "ggml_gemv_q4_0_8x8_q8_0");
    edgespec_find(&ggml.forward, FORWARD);
    ggml.has_rest = edgespec_find_for_unpacked() && edgespec_find_for_shares() && edgespec_find_for_k() &&
                    edgespec_find_for_attention();
    if (pthread_key_create(&at_thread_end, free) != 0) ggml.forward = NULL;
}

bool edgespec_has_ggml(void) {
    pthread_once(&ggml_once, find_ggml);
    return ggml.gemm != NULL && ggml.gemv != NULL && ggml.forward != NULL && ggml.has_rest;
}

/* The original functions must be there when ggml calls: its library holds them. */
void edgespec_need_ggml(void) {
    if (!edgespec_has_ggml()) {
        fputs("edgespec: " GGML_CPU " calls functions that it does not have\n", stderr);
        abort();
    }
}

bool edgespec_is_armed(void) { return atomic_load_explicit(&armed, memory_order_relaxed); }

void edgespec_count_share(void) { atomic_fetch_add_explicit(&n_shares, 1, memory_order_relaxed); }

/* This thread's memory for n entries, or NULL. */
static row_block *room(size_t n) {
    if (n <= now.n_x) return now.x;
    free(now.x);
    now.n_x = 0;
    now.x = aligned_alloc(64, (n * sizeof(row_block) + 63) / 64 * 64);
    /* Also where there is none: what was freed must not be freed again at the end of the thread. */
    if (pthread_setspecific(at_thread_end, now.x) != 0 || now.x == NULL) return NULL;
    now.n_x = n;
    return now.x;
}

static const char *row_at(const void *rows, int n, int row) {
    return (const char *)rows + (size_t)row * (size_t)(n / BLOCK) * sizeof(row_1);
}

/* All rows of a share of the columns, MAX_ROWS at a time; false if that is left to the stock kernels. */
static bool compute(int n, float *s, size_t bs, const void *w, const void *rows, int n_rows, int nc) {
    if (!atomic_load_explicit(&armed, memory_order_relaxed) || n % BLOCK != 0 || nc % 8 != 0) return false;
    const int n_blocks = n / BLOCK;
    /* The rows of a verify pass are read once for all shares of an operation. */
    const bool same = rows == now.rows && n_rows == now.n_rows && n_rows <= MAX_ROWS;
    for (int r = 0; r < n_rows; r += MAX_ROWS) {
        const int n_now = n_rows - r < MAX_ROWS ? n_rows - r : MAX_ROWS;
        if (!(same && now.is_read)) {
            now.is_read = false; /* other rows take its place */
            if (room((size_t)n_blocks * n_now) == NULL) return false;
            if (!read_rows(n_blocks, row_at(rows, n, r), n_now, now.x)) return false;
            now.is_read = same;
        }
        edgespec_q4_0_rows(n_blocks, w, nc / 8, now.x, n_now, s + (size_t)r * bs, bs);
    }
    edgespec_count_share();
    return true;
}

static void leave(void) {
    now.rows = NULL;
    now.n_next = 0;
    now.is_read = false;
}

EXPORTED forward edgespec_forward __asm__(FORWARD);
bool edgespec_forward(void *self, struct params *params, struct tensor *op) {
    edgespec_need_ggml();
    leave();
    if (edgespec_is_armed() && op->op == OP_MUL_MAT && !params->use_ref) {
        const int64_t *ne = op->src[1]->ne;
        if (ne[1] >= 2 && ne[1] <= INT32_MAX && ne[2] == 1 && ne[3] == 1) {
            now.rows = params->wdata;
            now.n_rows = (int)ne[1];
            now.bs = op->nb[1] / sizeof(float);
        }
    }
    const bool taken = ggml.forward(self, params, op);
    leave();
    return taken;
}

EXPORTED product ggml_gemm_q4_0_8x8_q8_0, ggml_gemv_q4_0_8x8_q8_0;

void ggml_gemm_q4_0_8x8_q8_0(int n, float *s, size_t bs, const void *w, const void *rows, int nr, int nc) {
    const bool whole = rows == now.rows && nr == now.n_rows / 4 * 4 && bs == now.bs;
    const int n_rows = whole ? now.n_rows : nr;
    now.n_next = 0;
    if (compute(n, s, bs, w, rows, n_rows, nc)) {
        now.n_next = n_rows - nr;
        now.next = (single){w, row_at(rows, n, nr), s + (size_t)nr * bs, nc};
    } else {
        edgespec_need_ggml();
        ggml.gemm(n, s, bs, w, rows, nr, nc);
    }
}

void ggml_gemv_q4_0_8x8_q8_0(int n, float *s, size_t bs, const void *w, const void *row, int nr, int nc) {
    const single *next = &now.next;
    if (now.n_next == 0 && row == now.rows && now.n_rows < 4 && compute(n, s, now.bs, w, row, now.n_rows, nc)) {
        now.n_next = now.n_rows;
        now.next = (single){w, row, s, nc};
    }
    if (now.n_next > 0 && w == next->w && row == next->row && s == next->s && nc == next->nc) {
        now.n_next--;
        now.next.row = row_at(row, n, 1);
        now.next.s += now.bs;
        return;
    }
    now.n_next = 0;
    edgespec_need_ggml();
    ggml.gemv(n, s, bs, w, row, nr, nc);
}

bool edgespec_is_virtual(const char *table, forward *function) {
    void *const *entries = dlsym(ggml.library, table);
    forward *entry;
    for (int i = 0; entries != NULL && i < N_TABLE; i++) {
        memcpy(&entry, &entries[i], sizeof entry);
        if (entry == function) return true;
    }
    return false;
}

/* Takes over from ggml's functions, or gives back to them, for the whole process. NULL, or why it cannot. */
EXPORTED const char *edgespec_arm(bool on) {
    if (on && !edgespec_has_ggml()) return "ggml has no such functions";
    if (on && !(edgespec_is_virtual(TABLE, edgespec_forward) && edgespec_k_is_called())) {
        return "ggml was loaded before and does not call here";
    }
    atomic_store(&armed, on);
    return NULL;
}

/* Whether products of weights of this type with so many rows are computed here; others are ggml's. */
EXPORTED int edgespec_takes(int type, int n_rows) {
    const bool in_256 = type == 12 || type == 14; /* Q4_K, Q6_K */
    return n_rows >= 2 && (in_256 ? n_rows <= 16 : type == 2 || type == 3 || type == 6 || type == 8);
}

/* Shares of columns computed here so far, by all threads. */
EXPORTED uint64_t edgespec_n_shares(void) { return atomic_load(&n_shares); }
