/*
 * fuzz_budget.c - targets as in -m METHOD@density_elem=0.3:per=layer, the parameters that a search
 * found, and limits as in choose --limit.
 */
#include "tests/fuzz/fuzz.h"
#include "analyze/choose.h"
#include "analyze/params.h"
#include "core/budget.h"
#include "core/method_run.h"
#include "sim/registry.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Some parameters want others beside them: those are no seeds. */
static void add_accepted(struct fuzz_corpus *c, const struct buf *b)
{
    struct method_run *runs = NULL;
    struct err err = {0};
    int64_t n = 0;
    if (method_runs_parse(sim_methods, buf_str(b), &runs, &n, &err) == 0)
        fuzz_add(c, b->data, b->len);
    method_runs_free(runs, n);
}

static int seeds(struct fuzz_corpus *c, struct err *err)
{
    static const char *const targets[] = {"@density_elem=0.3", "@cra_p1>=0.95:per=layer",
                                          "@err_l1_rel<=0.05:per=model",
                                          "@density_tile@64x64=0.1,0.2,3e-1", "@pairs_kept=1e5"};
    int k = 0;
    for (const struct method *const *m = sim_methods; *m; m++)
        for (const struct budget_param *p = (*m)->params.budget; p && p->params; p++, k++) {
            struct buf b = {0};
            const char *only = p->only ? p->only : "";
            buf_printf(&b, "%s%s%.*s%s", (*m)->name, *only ? ":" : "", (int)strcspn(only, "| "),
                       only, targets[k % 5]);
            add_accepted(c, &b);
            buf_free(&b);
        }
    return k > 0 ? 0 : err_set(err, ERR_RUN, "no method has a budget");
}

/* The texts of a bound target: what it was parsed from, and every value that a search may find. */
static void check_target(const struct method_run *r)
{
    const struct budget_target *t = r->target;
    struct budget_range range;
    struct err err = {0};
    const char *text = params_target(r->canonical);
    if (!*text || !isfinite(t->value))
        fuzz_wild("'%s' has the target '%s' of %g", r->canonical, text, t->value);
    if (budget_range(t, r->method, 1000, &range, &err) != 0)
        return;
    for (int i = 0; i < 5; i++) {
        struct buf found = {0};
        int64_t at = (range.count - 1) * i / 4;
        if (budget_set(&range, t, r->method, at, r->params, &found, &err) == 0 &&
            budget_apply(t, r->method, buf_str(&found), r->params, &err) != 0)
            fuzz_wild("'%s' was found and cannot be set: %s", buf_str(&found), err.msg);
        err_clear(&err);
        buf_free(&found);
    }
}

/* The canonical text gives the same run again. */
static void check_again(const struct method_run *r)
{
    struct method_run *again = NULL;
    struct err err = {0};
    struct buf b = {0};
    int64_t n = 0;
    bool colon = r->canonical[0] && r->canonical[0] != '@';
    buf_printf(&b, "%s%s%s", r->method->name, colon ? ":" : "", r->canonical);
    if (method_runs_parse(sim_methods, buf_str(&b), &again, &n, &err) != 0)
        fuzz_wild("canonical text '%s' is refused: %s", buf_str(&b), err.msg);
    else if (n != 1 || strcmp(again[0].canonical, r->canonical) != 0 || !again[0].target)
        fuzz_wild("canonical text '%s' became '%s'", buf_str(&b), n ? again[0].canonical : "");
    method_runs_free(again, n);
    buf_free(&b);
}

static int run(const void *data, size_t len, struct err *err)
{
    const char *text = data, *target = budget_find(text);
    struct method_run *runs = NULL;
    struct limits limits = {.n = 0};
    struct err ignored = {0};
    int64_t n = 0;
    if (limits_add(&limits, target ? target + 1 : text, &ignored) == 0 && limits.n &&
        isnan(limits.c[0].limit))
        fuzz_wild("a limit of NaN");
    int rc = method_runs_parse(sim_methods, text, &runs, &n, err);
    for (int64_t i = 0; !rc && i < n && i < 20; i++)
        if (runs[i].target) {
            check_again(&runs[i]);
            check_target(&runs[i]);
        }
    method_runs_free(runs, n);
    return rc;
}

const struct fuzz_target fuzz_budget = {"budget", seeds, NULL, true, run};
