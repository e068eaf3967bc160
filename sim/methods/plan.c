/*
 * plan.c - a method and its parameters per head, as `lacuna choose` wrote them: every head runs the
 * method of its own entry, heads without one the default of the file.
 *
 * All hooks hand over to that method. The parameter id is the hash of the file's content, so that
 * records belong to a plan and not to a path.
 */
#include "core/fileio.h"
#include "core/hash.h"
#include "core/mem.h"
#include "core/method_run.h"
#include "core/sealed.h"
#include "core/strmap.h"
#include "sim/registry.h"

#include <stdlib.h>
#include <string.h>

struct params {
    char *file, *id;
    bool trust;
};

static const struct opt options[] = {
    OPT_STR(struct params, file, NULL, NULL, "plan of `lacuna choose`",
            .flags = OPT_REQUIRED | OPT_IDENTITY_NOT | OPT_OUTSIDE, .unit = "file"),
    OPT_STR(struct params, id, NULL, NULL,
            "hash of the file, filled in; given as well, it must fit"),
    OPT_BOOL(struct params, trust, "0",
             "1: entries may name files and commands, which are then read and run: for a plan of "
             "your own",
             .flags = OPT_IDENTITY_NOT),
    {0},
};

#define PLAN_MOST ((size_t)64 << 20)

/* A plan that is open: every setting once. */
struct plan_file {
    json_t *doc;
    bool trusted;
    struct method_run **runs; /* owned; the default is the first */
    int64_t n, cap;
    struct strmap known;  /* the number of a setting's text in runs */
    struct strmap run_of; /* that of a head, "LAYER HEAD" */
};

struct state {
    struct plan_file *own;        /* opened here, without a session */
    const struct method_run *run; /* of the open plan */
    void *inner;                  /* of the run's method */
    const char *id;               /* of the plan, borrowed from the parameters */
    struct buf made;              /* notes on how the plan was made */
};

/* ---- the file ------------------------------------------------------------------------------- */

/* Read a plan. The caller owns *doc; id gets the hex hash of the file, without "xxh3:". */
static int load(const char *path, json_t **doc, char id[HASH_TEXT_MAX], struct err *err)
{
    OWN(buf_free) struct buf file = {0};
    const char *format = NULL;
    char text[HASH_TEXT_MAX];
    int64_t version = 0;
    PASS_ON(buf_read_file(&file, path, PLAN_MOST, err));
    PASS_ON(seal_json(buf_str(&file), file.len, path, doc, err));
    PASS_ON(jget_str(*doc, "format", path, &format, err));
    PASS_ON(jget_int(*doc, "version", path, &version, err));
    if (strcmp(format, "lacuna-plan") != 0 || version != 1)
        return err_set(err, ERR_INPUT,
                       "%s: a plan (format lacuna-plan, version 1) was expected, found %s %lld",
                       path, format, (long long)version);
    if (!json_is_array(json_object_get(*doc, "entries")))
        return err_set(err, ERR_INPUT, "%s: \"entries\": an array was expected", path);
    hash_text(hash_bytes(buf_str(&file), file.len), text);
    snprintf(id, HASH_TEXT_MAX, "%s", strchr(text, ':') + 1);
    return 0;
}

/* The text of an entry's setting, or of the default (entry NULL). */
static int entry_text(const json_t *doc, const json_t *entry, const char *where, struct buf *text,
                      struct err *err)
{
    const char *method = "dense", *params = "";
    PASS_ON(jget_str_opt(doc, "default", where, &method, err));
    if (entry) {
        PASS_ON(jget_str(entry, "method", where, &method, err));
        PASS_ON(jget_str_opt(entry, "params", where, &params, err));
    }
    if (strcspn(method, ":@") == 4 && strncmp(method, "plan", 4) == 0)
        return err_set(err, ERR_INPUT, "%s: a plan within a plan: put its entries into this one",
                       where);
    if (strcmp(method, "dense") == 0 && !*params)
        params = "map=0"; /* statistics of the map are no matter of a plan */
    buf_printf(text, "%s%s%s", method, *params ? ":" : "", params);
    return buf_check(text, where, err);
}

static int parse_setting(const char *text, bool trusted, const char *where, struct method_run **run,
                         struct err *err)
{
    static const char way_out[] = "; plan:file=FILE:trust=1 allows it in a plan of your own";
    struct err why = {0};
    int rc = 0;
    if (method_setting_parse(sim_methods, text, trusted ? NULL : way_out, run, &why))
        return err_set(err, ERR_INPUT, "%s: %s", where, why.msg);
    const struct method *m = (*run)->method;
    const char *order = m->params.order ? m->params.order((*run)->params) : NULL;
    if (order && strcmp(order, "none") != 0) {
        rc = err_set(err, ERR_INPUT,
                     "%s: '%s' is a setting that reorders tokens, which a head of a plan cannot",
                     where, text);
        method_runs_free(*run, 1);
    }
    return rc;
}

/* Number of the run of an entry (NULL: of the default); settings that are there stand once. */
static int add_run(struct plan_file *f, const json_t *entry, const char *where, int64_t *at,
                   struct err *err)
{
    struct method_run *run = NULL;
    OWN(buf_free) struct buf text = {0};
    PASS_ON(entry_text(f->doc, entry, where, &text, err));
    *at = strmap_get(&f->known, buf_str(&text));
    if (*at >= 0)
        return 0;
    PASS_ON(mem_grow(&f->runs, &f->cap, f->n + 1, sizeof *f->runs, "settings", err));
    PASS_ON(parse_setting(buf_str(&text), f->trusted, where, &run, err));
    f->runs[ *at = f->n++] = run;
    return strmap_put(&f->known, buf_str(&text), *at, err);
}

static void head_key(int64_t layer, int64_t head, char key[48])
{
    snprintf(key, 48, "%lld %lld", (long long)layer, (long long)head);
}

static void close_plan(void *session)
{
    struct plan_file *f = session;
    if (!f)
        return;
    for (int64_t i = 0; i < f->n; i++)
        method_runs_free(f->runs[i], 1);
    free(f->runs);
    strmap_free(&f->known);
    strmap_free(&f->run_of);
    json_decref(f->doc);
    free(f);
}
OWN_AT(close_plan, struct plan_file *)

static int read_entries(struct plan_file *f, const char *path, struct err *err)
{
    char where[512], key[48];
    int64_t at, layer, head;
    size_t i;
    json_t *e;
    PASS_ON(add_run(f, NULL, path, &at, err));
    json_array_foreach(json_object_get(f->doc, "entries"), i, e)
    {
        snprintf(where, sizeof where, "%s: entries[%zu]", path, i);
        PASS_ON(jget_int(e, "layer", where, &layer, err));
        PASS_ON(jget_int(e, "head", where, &head, err));
        head_key(layer, head, key);
        if (strmap_get(&f->run_of, key) >= 0)
            return err_set(err, ERR_INPUT, "%s: layer %lld head %lld occurs twice", where,
                           (long long)layer, (long long)head);
        PASS_ON(add_run(f, e, where, &at, err));
        PASS_ON(strmap_put(&f->run_of, key, at, err));
    }
    return 0;
}

static int read_plan(const struct params *p, char id[HASH_TEXT_MAX], struct plan_file **out,
                     struct err *err)
{
    OWN(close_plan_at) struct plan_file *f = NULL;
    PASS_ON(mem_zalloc(&f, 1, sizeof *f, "plan", err));
    f->trusted = p->trust;
    PASS_ON(load(p->file, &f->doc, id, err));
    PASS_ON(read_entries(f, p->file, err));
    *out = HAND_OVER(f);
    return 0;
}

static int open_plan(const void *params, void **session, struct err *err)
{
    const struct params *p = params;
    OWN(close_plan_at) struct plan_file *f = NULL;
    char id[HASH_TEXT_MAX];
    PASS_ON(read_plan(p, id, &f, err));
    for (int64_t i = 0; i < f->n; i++)
        PASS_ON(method_run_open(f->runs[i], err));
    *session = HAND_OVER(f);
    return 0;
}

static int identify(void *params, struct err *err)
{
    struct params *p = params;
    char id[HASH_TEXT_MAX];
    OWN(close_plan_at) struct plan_file *f = NULL;
    PASS_ON(read_plan(p, id, &f, err));
    if (p->id && strcmp(p->id, id) != 0)
        return err_set(err, ERR_INPUT, "%s has the id %s, not %s: it has changed", p->file, id,
                       p->id);
    free(p->id);
    if (!(p->id = strdup(id)))
        return err_set(err, ERR_NOMEM, "plan: out of memory");
    return 0;
}

static int fits(const void *params, const char *model, const char *permute, struct err *err)
{
    const struct params *p = params;
    const char *of = NULL, *order = NULL;
    char id[HASH_TEXT_MAX];
    OWN(json_decrefp) json_t *doc = NULL;
    PASS_ON(load(p->file, &doc, id, err));
    PASS_ON(jget_str_opt(doc, "model", p->file, &of, err));
    PASS_ON(jget_str_opt(doc, "permute", p->file, &order, err));
    if (of && strcmp(of, model) != 0)
        return err_set(err, ERR_INPUT, "%s was chosen for model %s, this trace is of %s", p->file,
                       of, model);
    if (order && strcmp(order, permute) != 0)
        return err_set(err, ERR_INPUT, "%s was chosen in token order %s, this is a replay in %s",
                       p->file, order, permute);
    return 0;
}

/* ---- hooks ---------------------------------------------------------------------------------- */

static void release(void *state)
{
    struct state *s = state;
    if (s->run)
        method_release(s->run->method, s->inner);
    close_plan(s->own);
    buf_free(&s->made);
}

/* Limits, cost and the first digits of the traces' ids: a table tells by them how well the plan
 * does on what it was made from and on others. */
static int note_making(const json_t *doc, const char *path, struct buf *b, struct err *err)
{
    const char *limits = "", *cost = "density_exec";
    size_t i;
    json_t *t;
    PASS_ON(jget_str_opt(doc, "limits", path, &limits, err));
    PASS_ON(jget_str_opt(doc, "cost", path, &cost, err));
    buf_printf(b, "plan_limits=%s;plan_cost=%s;plan_runs=", limits, cost);
    json_array_foreach(json_object_get(doc, "runs"), i, t)
    {
        const char *id = json_string_value(t), *hex = id ? strchr(id, ':') : NULL;
        if (i < 32 && hex)
            buf_printf(b, "%s%.8s", i ? "," : "", hex + 1);
    }
    return buf_check(b, "notes of the plan", err);
}

/* What the replay asks of a method (sim/simulate.c) the plan asks of its entry's. */
static int check_inner(const struct method *m, struct method_ctx *ctx, const struct head_in *in)
{
    unsigned need = in->x.causal ? METHOD_CAUSAL : METHOD_BIDIRECTIONAL;
    char why[128];
    if (!(m->flags & need))
        return method_skip(ctx, "%s: %s", m->name,
                           in->x.causal ? "bidirectional only" : "causal only");
    if (!method_combines(m, &in->x, why))
        return method_skip(ctx, "%s %s", m->name, why);
    return m->flags & METHOD_ROWS ? 0 : method_all_rows(ctx, in, m->name);
}

/* The entry's method on the head. */
static int prepare_inner(struct state *s, struct method_ctx *ctx, const struct head_in *in,
                         struct err *err)
{
    const struct method *m = s->run->method;
    struct method_ctx own = *ctx;
    int fits_not = check_inner(m, ctx, in);
    if (fits_not)
        return fits_not;
    if (!(m->flags & METHOD_NEEDS_STEPS))
        own.carry = NULL;
    if (!(m->reuse.shares_branches))
        own.shared = NULL;
    own.session = s->run->session;
    int rc = method_prepare(m, &own, s->run->params, in, &s->inner, err);
    ctx->unit_rows = own.unit_rows;
    return rc == METHOD_SKIP ? method_skip(ctx, "%s: %.200s", m->name, own.skip) : rc;
}

static const struct method_run *entry(const void *session, const struct head_in *in)
{
    const struct plan_file *f = session;
    char key[48];
    head_key(in->layer, in->head, key);
    int64_t run = strmap_get(&f->run_of, key);
    return f->runs[run < 0 ? 0 : run];
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    const struct params *p = params;
    const struct plan_file *f = ctx->session;
    struct state *s = state;
    char id[HASH_TEXT_MAX];
    if (!f) {
        PASS_ON(read_plan(p, id, &s->own, err));
        f = s->own;
    }
    s->id = p->id;
    s->run = entry(f, in);
    PASS_ON(note_making(f->doc, p->file, &s->made, err));
    return prepare_inner(s, ctx, in, err);
}

static const struct method *inner(const struct state *s)
{
    return s->run->method;
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    return inner(s)->select(s->inner, row0, row1, out, err);
}

/* Heads of several methods do not share masks. */
static struct mask_origin origin(void *state)
{
    struct state *s = state;
    struct mask_origin o = method_origin(inner(s), s->inner);
    return (struct mask_origin){.source = o.source, .calls = o.calls};
}

static bool cost(const void *state, struct select_cost *c)
{
    const struct state *s = state;
    return inner(s)->flags & METHOD_KEEPS_ALL || (inner(s)->cost && inner(s)->cost(s->inner, c));
}

/* A plan has heads of several methods: no kernels of one method's own arithmetic run for it. */
static void how(const void *state, struct arithmetic *a, char why[160])
{
    const struct state *s = state;
    method_arithmetic(inner(s), s->inner, a, why);
    if (a->kind != ARITH_KERNEL && (a->kind != ARITH_CPU || inner(s)->arith.kind == ARITH_FILTER))
        return;
    a->kind = ARITH_CPU;
    snprintf(why, 160, "%s has arithmetic of its own", inner(s)->name);
}

static int attend(void *state, const struct mask *m, double *out, double *lse, double *tiles_pv,
                  struct err *err)
{
    struct state *s = state;
    return inner(s)->arith.attend(s->inner, m, out, lse, tiles_pv, err);
}

static int done(void *state, double tiles_pv, const double *lse, struct err *err)
{
    struct state *s = state;
    const struct method_arith *a = &inner(s)->arith;
    return a->done ? a->done(s->inner, tiles_pv, lse, err) : 0;
}

static bool why_full(const void *state, char why[160])
{
    const struct state *s = state;
    return inner(s)->why_full && inner(s)->why_full(s->inner, why);
}

static int report(void *state, struct record *r, struct err *err)
{
    struct state *s = state;
    record_note(r, "plan=%s;plan_method=%s;plan_params=%s", s->id, inner(s)->name,
                s->run->canonical);
    record_note(r, "%s", buf_str(&s->made));
    return inner(s)->report ? inner(s)->report(s->inner, r, err) : 0;
}

const struct method method_plan = {
    .name = "plan",
    .summary = "a method per head, as lacuna choose found it",
    .paper = "none: a file of choices",
    .flags = METHOD_ROWS | METHOD_CAUSAL | METHOD_BIDIRECTIONAL | METHOD_NEEDS_STEPS |
             METHOD_RANDOM | METHOD_ANY_SCORE |
             METHOD_PREFIX, /* as far as the entry's method can (check_inner) */
    .params = {.table = options,
               .size = sizeof(struct params),
               .identify = identify,
               /* Whatever the entries' methods may be. */
               .may_be_empty = method_always},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .cost = cost,
    .why_full = why_full,
    .arith = {.kind = ARITH_FILTER, .how = how, .attend = attend, .done = done},
    .reuse = {.shares_branches = true, .of = origin},
    .session = {.entry = entry, .open = open_plan, .close = close_plan, .fits = fits},
};
