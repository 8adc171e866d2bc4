/* `count_rows GGML_CPU LAYOUT N COLUMNS [ROWS_LIBRARY]`, on 64-bit Arm: 1 to 16 rows times a matrix of random Q4_0
 * weights, by the functions that ggml would call and, if given, by edgespec's. For each number of rows a line: the
 * number, whether edgespec takes it, and how many outputs of ggml's functions for several rows, and of edgespec's, are
 * not, bit for bit, those of ggml's function for one. Around each product a system call that count_plugin.c knows.
 * Buffers end where memory ends: a byte too many ends the program.
 *
 * LAYOUT: bytes of a chunk, 4 or 8, of ggml's repacked blocks; 0: not repacked, one product for each output. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BLOCK = 32, MOST_ROWS = 16, MARK = 0x7e57 };
typedef struct {
    uint16_t d;
    int8_t qs[BLOCK];
} row_1;
typedef struct {
    uint16_t d[4];
    int8_t qs[4 * BLOCK];
} row_4;
typedef void product(int n, float *s, size_t bs, const void *w, const void *rows, int nr, int nc);
typedef void one_product(int n, float *s, size_t bs, const void *w, size_t bw, const void *row, size_t br, int n_rows);
typedef void own_product(int n_blocks, const void *w, int n_w, const void *rows, int n_rows, float *s, size_t bs);

static void *library(const char *path) {
    void *found = dlopen(path, RTLD_NOW);
    if (found == NULL) fprintf(stderr, "%s\n", dlerror()), exit(1);
    return found;
}

static void find(void *function, void *in, const char *name) {
    void *symbol = dlsym(in, name);
    if (symbol == NULL) fprintf(stderr, "%s\n", dlerror()), exit(1);
    memcpy(function, &symbol, sizeof symbol);
}

/* Zeros, with nothing behind them. */
static void *room(size_t n) {
    const size_t page = 65536, whole = (n + page - 1) / page * page;
    char *found = mmap(NULL, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (found == MAP_FAILED || mprotect(found + whole, page, PROT_NONE) != 0) perror("mmap"), exit(1);
    return found + whole - n;
}

static uint32_t draw(void) {
    static uint32_t state = 1;
    return (state = state * 1664525u + 1013904223u) >> 16;
}

static uint16_t half(void) { return (uint16_t)((10 + draw() % 4) << 10 | draw() % 1024); }

static int n_different(const float *a, const float *b, int n) {
    int different = 0;
    for (int i = 0; i < n; i++) different += memcmp(a + i, b + i, sizeof *a) != 0;
    return different;
}

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    void *ggml = library(argv[1]), *own = argc > 5 ? library(argv[5]) : NULL;
    const int chunk = atoi(argv[2]), n = atoi(argv[3]), nc = atoi(argv[4]), n_blocks = n / BLOCK;
    void (*prepare)(void);
    product *gemm = NULL, *gemv = NULL;
    one_product *dot = NULL;
    own_product *ours = NULL;
    int (*takes)(int type, int n_rows) = NULL;
    find(&prepare, ggml, "ggml_cpu_init");
    prepare();
    if (chunk == 0) {
        find(&dot, ggml, "ggml_vec_dot_q4_0_q8_0");
    } else {
        find(&gemm, ggml, chunk == 4 ? "ggml_gemm_q4_0_4x4_q8_0" : "ggml_gemm_q4_0_4x8_q8_0");
        find(&gemv, ggml, chunk == 4 ? "ggml_gemv_q4_0_4x4_q8_0" : "ggml_gemv_q4_0_4x8_q8_0");
    }
    if (own != NULL) {
        find(&ours, own, "edgespec_q4_0_rows");
        find(&takes, own, "edgespec_takes");
    }
    /* A block is a scale and 16 bytes, repacked or not; scales of four come first where it is repacked. */
    const size_t n_weights = (size_t)n_blocks * nc, weight_bytes = 18, n_group = chunk == 0 ? 1 : 4;
    uint8_t *w = room(n_weights * weight_bytes);
    for (size_t i = 0; i < n_weights * weight_bytes; i++) w[i] = (uint8_t)draw();
    for (size_t i = 0; i < n_weights; i++) {
        const uint16_t d = half();
        memcpy(w + i / n_group * n_group * weight_bytes + 2 * (i % n_group), &d, 2);
    }
    row_1 *single = malloc(MOST_ROWS * n_blocks * sizeof *single);
    for (int i = 0; i < MOST_ROWS * n_blocks; i++) {
        single[i].d = half();
        for (int j = 0; j < BLOCK; j++) single[i].qs[j] = (int8_t)(draw() % 255 - 127);
    }
    float *right = room((size_t)MOST_ROWS * nc * sizeof *right);
    for (int r = 0; r < MOST_ROWS; r++) {
        const row_1 *row = single + r * n_blocks;
        if (dot == NULL) gemv(n, right + r * nc, 0, w, row, 1, nc);
        for (int c = 0; dot != NULL && c < nc; c++) {
            dot(n, right + r * nc + c, 0, w + c * n_blocks * weight_bytes, 0, row, 0, 1);
        }
    }
    for (int n_rows = 1; n_rows <= MOST_ROWS; n_rows++) {
        const int n_fours = dot == NULL ? n_rows / 4 * 4 : 0, n_out = n_rows * nc;
        char *rows = room(n_rows * n_blocks * sizeof *single);
        float *stock = room(n_out * sizeof *stock), *fast = room(n_out * sizeof *fast);
        for (int r = 0; r < n_fours; r++) {
            row_4 *four = (row_4 *)(void *)rows + (r / 4) * n_blocks;
            for (int b = 0; b < n_blocks; b++) {
                const row_1 *from = single + r * n_blocks + b;
                four[b].d[r % 4] = from->d;
                for (int k = 0; k < BLOCK; k += chunk) {
                    memcpy(four[b].qs + 4 * k + chunk * (r % 4), from->qs + k, (size_t)chunk);
                }
            }
        }
        const size_t row_bytes = n_blocks * sizeof *single;
        memcpy(rows + n_fours * row_bytes, single + n_fours * n_blocks, (n_rows - n_fours) * row_bytes);
        syscall(MARK);
        if (n_fours > 0) gemm(n, stock, (size_t)nc, w, rows, n_fours, nc);
        for (int r = n_fours; r < n_rows; r++) {
            if (dot == NULL) gemv(n, stock + r * nc, 0, w, rows + r * row_bytes, 1, nc);
            for (int c = 0; dot != NULL && c < nc; c++) {
                dot(n, stock + r * nc + c, 0, w + c * n_blocks * weight_bytes, 0, rows + r * row_bytes, 0, 1);
            }
        }
        syscall(MARK);
        const bool can = ours != NULL && n_rows > 1 && n_rows < MOST_ROWS;
        if (can) ours(n_blocks, w, nc / 4, rows, n_rows, fast, (size_t)nc);
        syscall(MARK);
        printf("%d %d %d %d\n", n_rows, can && takes(2, n_rows), n_different(stock, right, n_out),
               can ? n_different(fast, right, n_out) : 0);
    }
    return 0;
}
