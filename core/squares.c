/*
 * squares.c - see ownrule.h.
 */
#include "core/ownrule.h"

#include "core/intmath.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

static bool is_leaf(const struct own_hashed *r, int64_t n)
{
    return n <= r->min_len || n < 2;
}

bool own_squares_any(const struct own_hashed *r, int64_t nq, bool causal)
{
    return causal ? !is_leaf(r, nq) && nq - nq / 2 >= r->min_len : nq >= r->min_len;
}

static void hash_square(const struct own_hashed *r, struct own_square *s, double *pairs)
{
    int64_t nq = s->q1 - s->q0, nk = s->k1 - s->k0, b = r->block;
    s->hashed = true;
    s->blocks = ceil_div(nk, b);
    /* The published code demands that the queries divide evenly. */
    s->per = nq == nk ? b : ceil_div(nq, s->blocks);
    s->draws = r->samples > 0 && nq > s->per && nk > b;
    s->zeros = r->padded ? s->blocks * b - nk : 0;
    *pairs += (double)nq * (double)MIN(b, nk);
    if (s->draws)
        *pairs += (double)nq * (double)r->samples;
}

static int add_square(const struct own_hashed *r, struct own_squares *s, struct own_square x,
                      struct err *err)
{
    PASS_ON(mem_grow(&s->square, &s->cap, s->n + 1, sizeof *s->square, "squares", err));
    if (x.q1 - x.q0 >= r->min_len) {
        hash_square(r, &x, &s->pairs);
        s->n_hashed++;
    } else {
        s->pairs += (double)(x.q1 - x.q0) * (double)(x.k1 - x.k0);
    }
    s->square[s->n++] = x;
    return 0;
}

static int add_exact(struct own_squares *s, int64_t lo, int64_t hi, struct err *err)
{
    PASS_ON(mem_grow(&s->exact, &s->cap_exact, s->n_exact + 1, sizeof *s->exact, "ranges", err));
    s->exact[s->n_exact++] = (struct own_range){lo, hi};
    return 0;
}

/* The rows [lo, hi) of a node. Halves of one with an exact square have less than min_len rows: they
 * and the square are one exact range. */
static int halve(const struct own_hashed *r, struct own_squares *s, int64_t node, int64_t lo,
                 int64_t hi, struct err *err)
{
    int64_t mid = lo + (hi - lo) / 2, n = hi - lo;
    if (is_leaf(r, n)) {
        s->pairs += (double)n * (double)(n + 1) / 2;
        return add_exact(s, lo, hi, err);
    }
    PASS_ON(add_square(r, s, (struct own_square){.q0 = mid, .q1 = hi, .k0 = lo, .k1 = mid}, err));
    if (!s->square[s->n - 1].hashed) {
        int64_t a = mid - lo, b = hi - mid;
        s->pairs += (double)a * (double)(a + 1) / 2 + (double)b * (double)(b + 1) / 2;
        return add_exact(s, lo, hi, err);
    }
    s->node[node] = (int32_t)(s->n - 1);
    PASS_ON(halve(r, s, 2 * node, lo, mid, err));
    return halve(r, s, 2 * node + 1, mid, hi, err);
}

/* The larger half of a node of n rows has ceil(n / 2) of them. */
static int make_nodes(const struct own_hashed *r, struct own_squares *s, int64_t n, struct err *err)
{
    s->n_nodes = 2;
    for (; !is_leaf(r, n); n -= n / 2)
        s->n_nodes *= 2;
    PASS_ON(mem_alloc(&s->node, s->n_nodes, sizeof *s->node, "halves of a head", err));
    for (int64_t i = 0; i < s->n_nodes; i++)
        s->node[i] = -1;
    return 0;
}

int own_squares_make(const struct own_hashed *r, int64_t nq, int64_t nk, bool causal,
                     struct own_squares *s, struct err *err)
{
    *s = (struct own_squares){.causal = causal, .nq = nq};
    if (!causal)
        return add_square(r, s, (struct own_square){.q1 = nq, .k1 = nk}, err);
    PASS_ON(make_nodes(r, s, nq, err));
    return halve(r, s, 1, 0, nq, err);
}

void own_squares_free(struct own_squares *s)
{
    free(s->square);
    free(s->exact);
    free(s->node);
    memset(s, 0, sizeof *s);
}
