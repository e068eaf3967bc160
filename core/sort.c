/*
 * sort.c - see sort.h. sort_f64 is a radix sort over the bits of a double, in the order of its
 * values: six passes over the numbers, where comparisons would take log2 n. Few numbers are
 * compared.
 */
#include "core/sort.h"

#include "core/mem.h"

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

int compare_i32(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

int compare_i64(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

struct ranked {
    double value;
    int32_t index;
};

static int by_rank(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->value != y->value)
        return x->value < y->value ? 1 : -1;
    return (x->index > y->index) - (x->index < y->index);
}

int order_descending(const double *v, int64_t n, int32_t *order, struct err *err)
{
    OWN(free_at) struct ranked *r = NULL;
    PASS_ON(mem_alloc(&r, n, sizeof *r, "sorted scores", err));
    for (int64_t i = 0; i < n; i++)
        r[i] = (struct ranked){v[i], (int32_t)i};
    qsort(r, (size_t)n, sizeof *r, by_rank);
    for (int64_t i = 0; i < n; i++)
        order[i] = r[i].index;
    return 0;
}
