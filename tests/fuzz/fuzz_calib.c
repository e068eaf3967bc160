/*
 * fuzz_calib.c - calibration files: -m METHOD:calib=FILE, then the parameters of every head.
 */
#include "tests/fuzz/fuzz.h"
#include "core/mem.h"
#include "core/method_run.h"
#include "sim/registry.h"

#include <stdlib.h>
#include <string.h>

/* Heads with the defaults of all parameters that have one: as text, and numbers as numbers. */
static void add_method(struct fuzz_corpus *c, const struct method *m)
{
    OWN(buf_free) struct buf b = {0};
    struct jw w;
    jw_init(&w, &b, 1);
    jw_obj(&w);
    jw_kstr(&w, "method", m->name);
    jw_key(&w, "heads");
    jw_arr(&w);
    for (int i = 0; i < 4; i++) {
        jw_obj(&w);
        jw_kint(&w, "layer", i / 2);
        jw_kint(&w, "head", i % 2);
        for (const struct opt *o = m->params.table; o->type != OPT_END && i > 0; o++)
            if (o->def && i < 3)
                jw_kstr(&w, o->name, o->def);
            else if (o->def && (o->type == OPT_INT || o->type == OPT_NUM) && strcmp(o->def, "off"))
                jw_knum(&w, o->name, atof(o->def));
        jw_obj_end(&w);
    }
    jw_arr_end(&w);
    jw_obj_end(&w);
    fuzz_add(c, b.data, b.len);
}

static int seeds(struct fuzz_corpus *c, struct err *err)
{
    for (const struct method *const *m = sim_methods; *m; m++)
        if ((*m)->search.calibrate)
            add_method(c, *m);
    return c->n > 0 ? 0 : err_set(err, ERR_RUN, "no method is calibrated");
}

/* The calibrated method whose name is in the text, or the first. */
static const char *method_in(const char *text)
{
    const char *first = NULL;
    for (const struct method *const *m = sim_methods; *m; m++) {
        struct buf quoted = {0};
        if (!(*m)->search.calibrate)
            continue;
        first = first ? first : (*m)->name;
        buf_printf(&quoted, "\"%s\"", (*m)->name);
        bool there = strstr(text, buf_str(&quoted)) != NULL;
        buf_free(&quoted);
        if (there)
            return (*m)->name;
    }
    return first;
}

static int run(const void *data, size_t len, struct err *err)
{
    OWN(buf_free) struct buf text = {0};
    struct method_run *runs = NULL;
    int64_t n = 0;
    buf_printf(&text, "%s:calib=%s", method_in(data), fuzz_file("calib.json", data, len));
    int rc = method_runs_parse(sim_methods, buf_str(&text), &runs, &n, err);
    for (int i = 0; !rc && i < 6; i++) {
        OWN(free_at) void *params = NULL;
        rc = method_params_for_head(&runs[0], i / 2, i % 2, 1000, &params, err);
        if (rc)
            fuzz_wild("an accepted file fails for a head: %s", err->msg);
        else
            opt_free(runs[0].method->params.table, params);
    }
    method_runs_free(runs, n);
    return rc;
}

const struct fuzz_target fuzz_calib = {"calib", seeds, NULL, true, run};
