/*
 * cover.c - greedy set multicover with reverse delete (oracle.h).
 */
#include "sim/methods/oracle/oracle.h"

#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

#define SLACK 1e-12

struct gain {
    double value;
    int64_t col, round; /* round in which the value was computed */
};

struct work {
    const double *m;
    int64_t rows, cols;
    double *need;      /* [rows] still missing */
    double *have;      /* [rows] mass covered */
    struct gain *heap; /* largest gain first, ties by lower column */
    int64_t n_heap;
    int64_t *order; /* selected columns */
    int64_t n_order;
    double *sorted; /* [cols] scratch of the lower bound */
};

/* ---- lower bound ---------------------------------------------------------------------------- */

static int descending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Fewest blocks that give row i its need. */
static int64_t row_needs(const struct work *w, int64_t i, double need)
{
    double sum = 0;
    int64_t k = 0;
    for (int64_t c = 0; c < w->cols; c++)
        w->sorted[c] = w->m[c * w->rows + i];
    qsort(w->sorted, (size_t)w->cols, sizeof *w->sorted, descending);
    while (k < w->cols && sum < need - SLACK && w->sorted[k] > 0)
        sum += w->sorted[k++];
    return k;
}

/* ---- heap ----------------------------------------------------------------------------------- */

static bool before(const struct gain *a, const struct gain *b)
{
    return a->value > b->value || (a->value == b->value && a->col < b->col);
}

static void sift_down(struct gain *h, int64_t n, int64_t at)
{
    struct gain x = h[at];
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && before(&h[child + 1], &h[child]))
            child++;
        if (!before(&h[child], &x))
            break;
        h[at] = h[child];
    }
    h[at] = x;
}

/* ---- greedy --------------------------------------------------------------------------------- */

static double gain_of(const struct work *w, int64_t c)
{
    const double *m = w->m + c * w->rows;
    double sum = 0;
    for (int64_t i = 0; i < w->rows; i++)
        sum += m[i] < w->need[i] ? m[i] : w->need[i];
    return sum;
}

static void take(struct work *w, int64_t c)
{
    const double *m = w->m + c * w->rows;
    for (int64_t i = 0; i < w->rows; i++) {
        w->have[i] += m[i];
        w->need[i] = w->need[i] > m[i] ? w->need[i] - m[i] : 0;
    }
}

static bool satisfied(const struct work *w)
{
    for (int64_t i = 0; i < w->rows; i++)
        if (w->need[i] > SLACK)
            return false;
    return true;
}

static void greedy(struct work *w, bool *taken)
{
    for (int64_t c = 0; c < w->cols; c++)
        if (!taken[c])
            w->heap[w->n_heap++] = (struct gain){gain_of(w, c), c, 0};
    for (int64_t at = w->n_heap / 2 - 1; at >= 0; at--)
        sift_down(w->heap, w->n_heap, at);
    for (int64_t round = 0; w->n_heap > 0 && !satisfied(w); round++) {
        while (w->heap[0].round != round) {
            w->heap[0].value = gain_of(w, w->heap[0].col);
            w->heap[0].round = round;
            sift_down(w->heap, w->n_heap, 0);
        }
        if (w->heap[0].value <= 0)
            break; /* what is missing lies in no block */
        int64_t c = w->heap[0].col;
        w->heap[0] = w->heap[--w->n_heap];
        sift_down(w->heap, w->n_heap, 0);
        take(w, c);
        taken[c] = true;
        w->order[w->n_order++] = c;
    }
}

/* Would every row keep its need without column c? */
static bool dispensable(const struct work *w, const double *need, int64_t c)
{
    const double *m = w->m + c * w->rows;
    for (int64_t i = 0; i < w->rows; i++)
        if (m[i] > 0 && w->have[i] - m[i] < need[i] - SLACK)
            return false;
    return true;
}

static int64_t reverse_delete(struct work *w, const double *need, bool *taken)
{
    int64_t kept = w->n_order;
    for (int64_t k = w->n_order - 1; k >= 0; k--) {
        int64_t c = w->order[k];
        if (!dispensable(w, need, c))
            continue;
        for (int64_t i = 0; i < w->rows; i++)
            w->have[i] -= w->m[c * w->rows + i];
        taken[c] = false;
        kept--;
    }
    return kept;
}

static int work_init(struct work *w, struct err *err)
{
    int rc = 0;
    TRY(mem_alloc(&w->need, w->rows, sizeof(double), "needs of rows", err));
    TRY(mem_zalloc(&w->have, w->rows, sizeof(double), "mass of rows", err));
    TRY(mem_alloc(&w->heap, w->cols + 1, sizeof *w->heap, "gains of blocks", err));
    TRY(mem_alloc(&w->order, w->cols, sizeof *w->order, "selected blocks", err));
    TRY(mem_alloc(&w->sorted, w->cols, sizeof(double), "sorted masses", err));
out:
    return rc;
}

int cover_greedy(const double *m, int64_t rows, int64_t cols, const double *need, bool *taken,
                 struct cover *out, struct err *err)
{
    struct work w = {.m = m, .rows = rows, .cols = cols};
    int64_t given = 0;
    int rc = 0;

    TRY(work_init(&w, err));
    memcpy(w.need, need, (size_t)rows * sizeof *need);
    *out = (struct cover){0};
    for (int64_t i = 0; i < rows; i++) {
        int64_t k = row_needs(&w, i, need[i]);
        out->lower = k > out->lower ? k : out->lower;
    }
    for (int64_t c = 0; c < cols; c++) {
        if (!taken[c])
            continue;
        take(&w, c);
        given++;
    }
    greedy(&w, taken);
    out->greedy = given + w.n_order;
    out->upper = given + reverse_delete(&w, need, taken);
    out->lower = out->lower > given ? out->lower : given;
out:
    free(w.need);
    free(w.have);
    free(w.heap);
    free(w.order);
    free(w.sorted);
    return rc;
}
