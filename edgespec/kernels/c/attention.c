/* Stands in for ggml's flash attention where a single row asks. ggml splits that row's cache among its threads and adds
 * partial sums, from 512 cells of F16 or F32 on; several rows are taken head by head, each over the whole cache. So a row
 * alone got other last bits than the same row in a pass that checks drafts, and other ones for every number of threads.
 * Here it is taken head by head, too, by ggml's own code: its reference form is that without the split.
 *
 * Source: ggml-cpu/ops.cpp of ggml 0.25.3: ggml_compute_forward_flash_attn_ext_f16. */
#include "hook.h"

static void (*ggml_attention)(const struct params *params, struct tensor *op);

bool edgespec_find_for_attention(void) {
    edgespec_find(&ggml_attention, "ggml_compute_forward_flash_attn_ext");
    return ggml_attention != NULL;
}

EXPORTED void ggml_compute_forward_flash_attn_ext(const struct params *params, struct tensor *op);
void ggml_compute_forward_flash_attn_ext(const struct params *params, struct tensor *op) {
    edgespec_need_ggml();
    struct params whole = *params;
    if (edgespec_is_armed() && op->src[0]->ne[1] == 1) whole.use_ref = true;
    ggml_attention(&whole, op);
}
