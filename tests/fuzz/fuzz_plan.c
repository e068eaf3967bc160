/*
 * fuzz_plan.c - plans of `lacuna choose`: -m plan:file=FILE as far as the first head.
 */
#include "tests/fuzz/fuzz.h"
#include "core/mem.h"
#include "core/method_run.h"
#include "core/sealed.h"
#include "sim/registry.h"

#include <string.h>
#include <unistd.h>

static void add_entry(struct jw *w, int i, const char *method, const char *params)
{
    jw_obj(w);
    jw_kint(w, "layer", i / 4);
    jw_kint(w, "head", i % 4);
    jw_kstr(w, "method", method);
    jw_kstr(w, "params", params);
    jw_key(w, "expected");
    jw_obj(w);
    jw_key(w, "density_exec");
    jw_arr(w);
    for (int q = 1; q < 4; q++)
        jw_num(w, 0.1 * q);
    jw_arr_end(w);
    jw_obj_end(w);
    jw_kint(w, "cells", 3);
    jw_obj_end(w);
}

/* A plan of one method's variants, so that many settings are met. */
static void add_plan(struct fuzz_corpus *c, const struct method *m)
{
    OWN(buf_free) struct buf b = {0};
    struct jw w;
    jw_init(&w, &b, 1);
    jw_obj(&w);
    jw_kstr(&w, "format", "lacuna-plan");
    jw_kint(&w, "version", 1);
    jw_kstr(&w, "model", "code-lm");
    jw_kstr(&w, "permute", "none");
    jw_kstr(&w, "limits", "err_l1_rel<=0.05,cra_p1>=0.9");
    jw_kstr(&w, "cost", "density_exec");
    jw_key(&w, "runs");
    jw_arr(&w);
    jw_str(&w, "xxh3:960e54403ad978ba74ee0df9b81cabe8");
    jw_arr_end(&w);
    jw_kstr(&w, "default", "dense");
    jw_key(&w, "entries");
    jw_arr(&w);
    add_entry(&w, 0, m->name, "");
    for (int i = 0; m->tests.variants && m->tests.variants[i] && i < 6; i++)
        if (!strstr(m->tests.variants[i], "permute="))
            add_entry(&w, i + 1, m->name, m->tests.variants[i]);
    jw_arr_end(&w);
    jw_obj_end(&w);
    seal_put(&b, 0);
    fuzz_unseal(&b);
    fuzz_add(c, b.data, b.len);
}

static int seeds(struct fuzz_corpus *c, struct err *err)
{
    static const char *const names[] = {"minference", "flexprefill", "spargeattn", "sale",
                                        "streaming",  "xattention",  "fg-attn"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct method *m = method_find(sim_methods, names[i], err);
        if (!m)
            return err->code;
        add_plan(c, m);
    }
    return 0;
}

static int run(const void *data, size_t len, struct err *err)
{
    OWN(buf_free) struct buf text = {0};
    struct method_run *runs = NULL;
    int64_t n = 0;
    const char *path = fuzz_file("plan.json", data, len);
    buf_printf(&text, "plan:file=%s", path);
    int rc = method_runs_parse(sim_methods, buf_str(&text), &runs, &n, err);
    if (!rc && (n != 1 || !strstr(runs[0].canonical, "id=")))
        fuzz_wild("a plan without an id: '%s'", n ? runs[0].canonical : "");
    if (!rc)
        rc = method_run_open(&runs[0], err);
    if (!rc)
        rc = runs[0].method->session.fits(runs[0].params, "code-lm", "none", err);
    if (unlink("started") == 0)
        fuzz_wild("a plan ran a program");
    method_runs_free(runs, n);
    return rc;
}

const struct fuzz_target fuzz_plan = {"plan", seeds, NULL, true, run};
