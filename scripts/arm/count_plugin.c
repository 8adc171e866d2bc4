/* A QEMU plugin that notes how many instructions were executed whenever the program makes the system call 0x7e57, which
 * does not exist. Its argument `out=FILE` names the file that gets one number a line.
 *
 * Source: QEMU's qemu-plugin.h, version 1 of the interface (QEMU 5 to 8), of which Debian ships no header. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MARK = 0x7e57 };
typedef uint64_t plugin_id;
struct qemu_plugin_tb;

typedef void on_translation(plugin_id id, struct qemu_plugin_tb *block);
typedef void on_call(plugin_id id, unsigned cpu, int64_t number, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                     uint64_t, uint64_t, uint64_t);
void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id id, on_translation *function);
void qemu_plugin_register_vcpu_syscall_cb(plugin_id id, on_call *function);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *block, int add_u64, void *to, uint64_t value);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

static uint64_t n_instructions;
static FILE *out;

static void translated(plugin_id id, struct qemu_plugin_tb *block) {
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_inline(block, 0, &n_instructions, qemu_plugin_tb_n_insns(block));
}

static void called(plugin_id id, unsigned cpu, int64_t number, uint64_t a, uint64_t b, uint64_t c, uint64_t d,
                   uint64_t e, uint64_t f, uint64_t g, uint64_t h) {
    (void)id, (void)cpu, (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
    if (number != MARK) return;
    fprintf(out, "%" PRIu64 "\n", n_instructions);
    fflush(out);
}

__attribute__((visibility("default"))) int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv) {
    (void)info;
    if (argc != 1 || strncmp(argv[0], "out=", 4) != 0 || (out = fopen(argv[0] + 4, "w")) == NULL) return 1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_vcpu_syscall_cb(id, called);
    return 0;
}
