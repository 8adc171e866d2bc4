/* What the files that stand in for functions of ggml share: its structures, its names, and whether they compute. */
#ifndef EDGESPEC_HOOK_H
#define EDGESPEC_HOOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORTED __attribute__((visibility("default")))

/* The first fields of ggml_tensor, all of them up to the data, and ggml_compute_params. The trial runs whole operations to
 * see that they fit. */
struct tensor {
    int32_t type;
    void *buffer;
    int64_t ne[4];
    size_t nb[4];
    int32_t op, op_params[16], flags;
    struct tensor *src[10];
    struct tensor *view_src;
    size_t view_offs;
    void *data;
};
struct params {
    int ith, nth;
    size_t wsize;
    void *wdata;
    void *threadpool;
    bool use_ref;
};

/* ggml's virtual function that computes an operation on repacked weights; false: it does not know the operation. */
typedef bool forward(void *self, struct params *params, struct tensor *op);

/* Sets the pointer at `function` to ggml's own function of this name, or to NULL. */
void edgespec_find(void *function, const char *name);

/* Returns if ggml's functions are known, which they are once ggml calls; ends the process otherwise. */
void edgespec_need_ggml(void);

/* Whether the kernels compute; if so, and only then, a share of a product may be counted. */
bool edgespec_is_armed(void);
void edgespec_count_share(void);

/* Look for the functions of ggml that these files need. */
bool edgespec_find_for_unpacked(void), edgespec_find_for_shares(void), edgespec_find_for_k(void);
bool edgespec_find_for_attention(void);

/* Whether the class whose virtual functions have this table calls `function`. */
bool edgespec_is_virtual(const char *table, forward *function);
bool edgespec_k_is_called(void);

#endif
