/*
 * fuzz_method.c - method texts as given to -m, and index lists as given to --layers.
 */
#include "tests/fuzz/fuzz.h"
#include "core/indexlist.h"
#include "core/mem.h"
#include "core/method_run.h"
#include "sim/registry.h"

#include <stdlib.h>
#include <string.h>

/* "name:key=default", a list and a range of every parameter. */
static void add_param(struct fuzz_corpus *c, const struct method *m, const struct opt *o)
{
    OWN(buf_free) struct buf b = {0};
    buf_printf(&b, "%s:%s=%s", m->name, o->name, o->def ? o->def : "1");
    struct method_run *runs = NULL;
    int64_t n = 0;
    struct err err = {0};
    /* A parameter without a default, or one that needs others, is no seed. */
    if (method_runs_parse(sim_methods, buf_str(&b), &runs, &n, &err) == 0)
        fuzz_add(c, b.data, b.len);
    method_runs_free(runs, n);
}

/* A method that needs a file or a program is no seed by its name alone. */
static bool has_defaults(const struct method *m)
{
    for (const struct opt *o = m->params.table; o->type != OPT_END; o++)
        if (o->flags & OPT_REQUIRED)
            return false;
    return true;
}

static int seeds(struct fuzz_corpus *c, struct err *err)
{
    static const char *const lists[] = {
        "streaming:window=64,128:sink=0..16/lin5", "streaming:window=1..4096/log7",
        "mask:file=tests/data/masks/five.npy:unit=1x1:order=hilbert",
        "exec:cmd=sh 'a b' \"c\":params=1,2:timeout=3"};
    for (const struct method *const *m = sim_methods; *m; m++) {
        if (has_defaults(*m))
            fuzz_add(c, (*m)->name, strlen((*m)->name));
        for (const struct opt *o = (*m)->params.table; o && o->type != OPT_END; o++)
            add_param(c, *m, o);
    }
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        fuzz_add(c, lists[i], strlen(lists[i]));
    return 0;
}

/* The canonical text of a run gives the same run again. */
static int check_canonical(const struct method_run *r, struct err *err)
{
    struct method_run *again = NULL;
    int64_t n = 0;
    OWN(buf_free) struct buf b = {0};
    void *params = NULL;
    int rc = 0;
    buf_printf(&b, "%s%s%s", r->method->name, r->canonical[0] ? ":" : "", r->canonical);
    if (method_runs_parse(sim_methods, buf_str(&b), &again, &n, err) != 0)
        fuzz_wild("canonical text '%s' is refused: %s", buf_str(&b), err->msg);
    else if (n != 1 || strcmp(again[0].canonical, r->canonical) != 0)
        fuzz_wild("canonical text '%s' became %lld runs, first '%s'", buf_str(&b), (long long)n,
                  n ? again[0].canonical : "");
    err_clear(err);
    rc = method_params_for_head(r, 0, 0, 1000, &params, err);
    if (rc == 0)
        opt_free(r->method->params.table, params);
    free(params);
    method_runs_free(again, n);
    return rc;
}

static int check_index_list(const char *text)
{
    int64_t *list = NULL, n = 0;
    struct err err = {0};
    int rc = index_list_parse(text, 64, "--layers", &list, &n, &err);
    for (int64_t i = 0; !rc && i < n; i++)
        if (list[i] < 0 || list[i] >= 64 || (i > 0 && list[i] <= list[i - 1]))
            fuzz_wild("index list '%s': item %lld is %lld", text, (long long)i, (long long)list[i]);
    if (rc && !err.msg[0])
        fuzz_wild("index list '%s': error without a message", text);
    free(list);
    return 0;
}

void fuzz_check_data(const char *text)
{
    struct method_run *run = NULL;
    struct err err = {0};
    if (method_setting_parse(sim_methods, text, "", &run, &err)) {
        if (!err.msg[0])
            fuzz_wild("data '%s': error without a message", text);
        return;
    }
    for (const struct opt *o = run->method->params.table; o->type != OPT_END; o++)
        if (run->calib || run->target || (o->flags & OPT_OUTSIDE && !opt_is_unset(o, run->params)))
            fuzz_wild("data '%s' sets %s", text, run->calib ? "calib" : o->name);
    method_runs_free(run, 1);
}

static int run(const void *data, size_t len, struct err *err)
{
    const char *text = data; /* NUL-terminated by buf; a NUL inside ends it as in argv */
    struct method_run *runs = NULL;
    int64_t n = 0;
    check_index_list(strchr(text, '=') ? strchr(text, '=') + 1 : text);
    fuzz_check_data(text);
    int rc = method_runs_parse(sim_methods, text, &runs, &n, err);
    for (int64_t i = 0; !rc && i < n && i < 50; i++)
        rc = check_canonical(&runs[i], err);
    if (!rc && n < 1)
        fuzz_wild("no run");
    method_runs_free(runs, n);
    return rc;
}

const struct fuzz_target fuzz_method = {"method", seeds, NULL, true, run};
