/* A product of weights, shared out among ggml's threads. */
#ifndef EDGESPEC_SHARES_H
#define EDGESPEC_SHARES_H

#include "hook.h"

/* Computes the outputs begin..end-1 of all rows; `rows`: the activations, as the caller laid them out. */
typedef void share(const struct tensor *op, const void *rows, int64_t begin, int64_t end);

/* Waits for all threads of the operation, which have laid out activations until now, and calls `compute` for this
 * thread's part of the outputs, in chunks of at most `most`, which is a multiple of `unit`, as their beginnings are. */
void edgespec_share_out(const struct params *params, const struct tensor *op, const void *rows, int unit, int most,
                        share *compute);

#endif
