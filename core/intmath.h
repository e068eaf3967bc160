/*
 * intmath.h - whole-number arithmetic of sizes and units.
 */
#pragma once

#include <assert.h>
#include <stdint.h>

/* The smaller and the larger of two numbers of one type; each is evaluated twice. */
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

/* a / b rounded up; a >= 0, b > 0. */
static inline int64_t ceil_div(int64_t a, int64_t b)
{
    assert(b > 0);
    return (a + b - 1) / b;
}

/* Greatest common divisor; that of a and 0 is a. */
static inline int64_t gcd(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}
