/*
 * sort.c - see sort.h. A radix sort over the bits of a double, in the order of its values: six
 * passes over the numbers, where comparisons would take log2 n. Few numbers are compared.
 */
#include "core/sort.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define FEW 512
#define DIGIT 11 /* bits */
#define BUCKETS (1 << DIGIT)
#define PASSES 6

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Bits that order like the numbers: negative ones have all bits turned, others their sign. */
static uint64_t key_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits >> 63 ? ~bits : bits | 1ull << 63;
}

static double number_of(uint64_t key)
{
    uint64_t bits = key >> 63 ? key & ~(1ull << 63) : ~key;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* From a to b by one digit; false where all have the same, and b is not written. */
static bool pass(const uint64_t *a, uint64_t *b, int64_t n, int shift)
{
    int64_t place[BUCKETS] = {0}, sum = 0;
    for (int64_t i = 0; i < n; i++)
        place[a[i] >> shift & (BUCKETS - 1)]++;
    if (place[a[0] >> shift & (BUCKETS - 1)] == n)
        return false;
    for (int d = 0; d < BUCKETS; d++) {
        int64_t count = place[d];
        place[d] = sum;
        sum += count;
    }
    for (int64_t i = 0; i < n; i++)
        b[place[a[i] >> shift & (BUCKETS - 1)]++] = a[i];
    return true;
}

void sort_f64(double *x, int64_t n)
{
    uint64_t *a = n > FEW ? malloc(2 * (size_t)n * sizeof *a) : NULL;
    if (!a) {
        qsort(x, (size_t)n, sizeof *x, ascending);
        return;
    }
    uint64_t *from = a, *to = a + n;
    for (int64_t i = 0; i < n; i++)
        from[i] = key_of(x[i]);
    for (int p = 0; p < PASSES; p++)
        if (pass(from, to, n, p * DIGIT)) {
            uint64_t *swap = from;
            from = to;
            to = swap;
        }
    for (int64_t i = 0; i < n; i++)
        x[i] = number_of(from[i]);
    free(a);
}
