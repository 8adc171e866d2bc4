/* Random and extreme numbers for the comparison with ggml, and the comparison of outputs. */
#ifndef EDGESPEC_SELFTEST_H
#define EDGESPEC_SELFTEST_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { SENTINEL = 0x7FC0ED6E };

static uint64_t state;

static inline uint64_t draw_bits(void) { /* xorshift64*: Vigna, ACM TOMS 42 (2016) */
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545F4914F6CDD1DULL;
}

static inline uint32_t draw(uint32_t below) { return (uint32_t)(draw_bits() >> 32) % below; }

/* A scale as half precision: kinds from ordinary to those that break arithmetic. */
static inline uint16_t scale(int kind) {
    static const uint16_t odd[] = {0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E01, 0x0400};
    if (kind == 0) return (uint16_t)((draw(2) << 15) | ((10 + draw(8)) << 10) | draw(1024)); /* 2^-5 .. 2^2 */
    if (kind == 1) return (uint16_t)((13 + draw(3)) << 10); /* powers of two: every sum is exact */
    return draw(3) == 0 ? odd[draw(sizeof odd / sizeof *odd)] : (uint16_t)(draw(65536) & 0xBFFF); /* all below 2 */
}

static inline int8_t activation(int kind) {
    if (kind < 2 || draw(2)) return (int8_t)((int)draw(255) - 127);
    return (int8_t)(draw(2) ? 127 : -127);
}

static inline void wipe(float *s, int n) {
    const uint32_t sentinel = SENTINEL;
    for (int i = 0; i < n; i++) memcpy(s + i, &sentinel, 4);
}

/* Position of the first difference, or -1. Any NaN equals any other: which of two meets the other first is not said. */
static inline int difference(const float *a, const float *b, int n) {
    for (int i = 0; i < n; i++) {
        uint32_t x, y;
        memcpy(&x, a + i, 4);
        memcpy(&y, b + i, 4);
        if (x != y && !(isnan(a[i]) && isnan(b[i]) && x != SENTINEL && y != SENTINEL)) return i;
    }
    return -1;
}

/* The comparison for blocks of 256: NULL, or what differs, written to `text`. */
const char *edgespec_self_test_k(uint64_t seed, int n_cases, char *text, size_t n_text);

#endif
