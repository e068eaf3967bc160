/*
 * longformer.c - a window on both sides, optionally dilated, and global tokens.
 *
 *   keep j iff |p - j| = m dil for an integer 0 <= m <= window, or j is global, or p is global;
 *   causal: and j <= p                                          p = i + N_k - N_q
 *   variant=no-overlap: keep j iff |p div window - j div window| <= 1
 *
 * Longformer, arXiv 2004.05150, section 3. `window` is ONE side, as in the code (the paper's 512
 * are 256 here). O(N (2 window + 1) + 2 g N) pairs.
 *
 * Deviations: global tokens use the same q, k, v as the others, since a trace has no separate
 * projections; N need not be a multiple of 2 window; entries outside are masked exactly, where the
 * code adds -10000. A global column inside the window counts once. The kernel with dilation and the
 * causal form multiplies kept pairs one by one: density_exec is density_elem.
 */
#include "core/indexlist.h"
#include "core/intmath.h"
#include "core/method.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

enum variant { SLIDING, NO_OVERLAP };

struct params {
    int64_t window, dilation;
    char *global;
    int variant;
};

static const struct opt options[] = {
    OPT_INT(struct params, window, "256", 1, 1e9, "tokens",
            "kept offsets on one side, or the block of variant=no-overlap"),
    OPT_INT(struct params, dilation, "1", 1, 1e9, "tokens", "step between kept offsets"),
    OPT_STR(struct params, global, "0", NULL,
            "global tokens: a count g (the first g), or indices and ranges such as 0+5+17-20",
            .unit = "tokens"),
    OPT_ENUM(struct params, variant, "sliding", TEXTS("sliding", "no-overlap"),
             "sliding window, or own, previous and next block"),
    {0},
};

struct state {
    const struct params *params;
    struct attn_in x;
    bool *global; /* [nk] */
};

static void release(void *state)
{
    struct state *s = state;
    free(s->global);
}

/* Indices of `text` below n ("a+b-c", or a count) into *list; those beyond n are left out, since
 * one setting serves traces of many lengths. */
static int parse_global(const char *text, int64_t **list, int64_t *count, struct err *err)
{
    char *copy = strdup(text), *end;
    int rc;
    long long g = strtoll(text, &end, 10);
    *list = NULL;
    *count = 0;
    if (!copy)
        return err_set(err, ERR_NOMEM, "global: out of memory");
    if (*text && !*end) {
        free(copy);
        if (g < 0)
            return err_set(err, ERR_USAGE, "global: '%s' is not a count", text);
        *count = g;
        return 0;
    }
    for (char *c = copy; *c; c++)
        *c = *c == '+' ? ',' : *c;
    rc = index_list_parse(copy, INT32_MAX, "global", list, count, err);
    free(copy);
    return rc;
}

static int validate(void *params, struct err *err)
{
    struct params *p = params;
    int64_t *list, count;
    int rc = parse_global(p->global, &list, &count, err);
    free(list);
    if (!rc && p->variant == NO_OVERLAP && p->dilation != 1)
        return err_set(err, ERR_USAGE, "variant=no-overlap has no dilation");
    return rc;
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    struct state *s = state;
    OWN(free_at) int64_t *list = NULL;
    int64_t count = 0;
    s->params = params;
    s->x = in->x;
    PASS_ON(mem_zalloc(&s->global, in->x.nk, sizeof *s->global, "global tokens", err));
    PASS_ON(parse_global(s->params->global, &list, &count, err));
    for (int64_t k = 0; k < count; k++) {
        int64_t j = list ? list[k] : k;
        if (j >= in->x.nk)
            break;
        s->global[j] = true;
    }
    return 0;
}

/* The local part of the row at position p. */
static bool is_local(const struct params *p, int64_t at, int64_t j)
{
    int64_t d = at < j ? j - at : at - j;
    if (p->variant == NO_OVERLAP) {
        int64_t blocks = at / p->window - j / p->window;
        return blocks >= -1 && blocks <= 1;
    }
    return d % p->dilation == 0 && d / p->dilation <= p->window;
}

/* Keys [lo, hi) outside which nothing is local. */
static void local_range(const struct params *p, int64_t at, int64_t limit, int64_t *lo, int64_t *hi)
{
    int64_t reach;
    if (p->variant == NO_OVERLAP) {
        *lo = MAX(0, at / p->window - 1) * p->window;
        *hi = MIN(limit, (at / p->window + 2) * p->window);
        return;
    }
    if (!mul_ok(p->window, p->dilation, &reach))
        reach = limit + at;
    *lo = MAX(0, at - reach);
    *hi = MIN(limit, at + MIN(reach, limit) + 1);
}

static int longformer_row(const struct state *s, struct mask *m, int64_t i, const int64_t *globals,
                          int64_t n_globals, struct err *err)
{
    int64_t at = i + s->x.nk - s->x.nq, limit = mask_limit(m, i), lo, hi, k = 0, g = i - m->row0;
    if (at >= 0 && at < s->x.nk && s->global[at])
        return mask_lists_add_run(m, g, 0, (int32_t)limit, err);
    if (at < 0)
        lo = hi = 0; /* more queries than keys: the row stands before the first key */
    else
        local_range(s->params, at, limit, &lo, &hi);
    for (; k < n_globals && globals[k] < MIN(lo, limit); k++)
        PASS_ON(mask_lists_add(m, g, (int32_t)globals[k], err));
    if (s->params->dilation == 1) { /* all of them are */
        PASS_ON(mask_lists_add_run(m, g, (int32_t)lo, (int32_t)hi, err));
        lo = hi;
    }
    for (int64_t j = lo; j < hi; j++)
        if (s->global[j] || is_local(s->params, at, j))
            PASS_ON(mask_lists_add(m, g, (int32_t)j, err));
    for (; k < n_globals && globals[k] < limit; k++)
        if (globals[k] >= hi)
            PASS_ON(mask_lists_add(m, g, (int32_t)globals[k], err));
    return 0;
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    const struct state *s = state;
    OWN(free_at) int64_t *globals = NULL;
    int64_t n = 0;
    PASS_ON(mask_lists_init(out, s->x.nq, s->x.nk, row0, row1, s->x.causal, 1, 1, err));
    out->exec_bq = out->exec_bk = 1;
    PASS_ON(mem_alloc(&globals, s->x.nk, sizeof *globals, "global tokens", err));
    for (int64_t j = 0; j < s->x.nk; j++)
        if (s->global[j])
            globals[n++] = j;
    for (int64_t i = row0; i < row1; i++)
        PASS_ON(longformer_row(s, out, i, globals, n, err));
    mask_lists_finish(out);
    return 0;
}

const struct method method_longformer = {
    .name = "longformer",
    .summary = "window on both sides, optionally dilated, and global tokens",
    .paper = "Beltagy et al., Longformer: The Long-Document Transformer, arXiv 2004.05150",
    .flags = METHOD_ROWS | METHOD_CAUSAL | METHOD_BIDIRECTIONAL | METHOD_ANY_SCORE,
    .params = {.table = options,
               .size = sizeof(struct params),
               .budget = BUDGET_PARAMS(BUDGET_BY(BUDGET_COUNT, "window")),
               .validate = validate},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .release = release,
    .reuse = {.always_static = true},
    .tests = {.full = "window=1000000000",
              .variants = TEXTS("window=9", "window=5:dilation=3:global=2",
                                "window=16:variant=no-overlap:global=7"),
              .budgets = METHOD_BUDGETS({"window=%s", {"1", "9", "100", "400"}},
                                        {"window=3:global=%s", {"0", "4", "90"}})},
};
