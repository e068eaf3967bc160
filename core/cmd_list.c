/*
 * cmd_list.c - lacuna list: what there is to choose from.
 *
 * Every registry is turned into a JSON array first, and the text form is printed from that array,
 * so that both forms agree.
 */
#include "core/cmd.h"
#include "core/environment.h"
#include "core/gpumodel.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/metricdef.h"
#include "core/method_run.h"
#include "core/text.h"

#include <glob.h>
#include <stdio.h>
#include <string.h>

static const struct opt list_options[] = {
    COMMON_OPTS,
    {0},
};

/* ---- registries as JSON --------------------------------------------------------------------- */

/* What kind of method it is, in a word each. */
static void list_flags(const struct method *m, struct jw *w)
{
    const struct {
        bool is;
        const char *name;
    } flags[] = {
        {m->flags & METHOD_CAUSAL, "causal"},
        {m->flags & METHOD_BIDIRECTIONAL, "bidirectional"},
        {m->flags & METHOD_NEEDS_STEPS, "needs-steps"},
        {m->flags & METHOD_RANDOM, "random"},
        {m->search.calibrate, "calibrated"},
        {m->arith.attend, "changes-math"},
        {m->flags & METHOD_BOUND, "bound"},
    };
    jw_karr(w, "flags");
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (flags[i].is)
            jw_str(w, flags[i].name);
    jw_arr_end(w);
}

/* "profile=v2: alpha window rows bottom": which parameters count only there. */
static void list_scopes(const struct method *m, struct jw *w)
{
    if (!m->params.scopes)
        return;
    jw_karr(w, "only with");
    for (const struct param_scope *s = m->params.scopes; s->params; s++) {
        OWN(buf_free) struct buf text = {0};
        buf_printf(&text, "%s: %s", s->only, s->params);
        jw_str(w, buf_str(&text));
    }
    jw_arr_end(w);
}

/* "tau with select=cdf: larger keeps more": what @METRIC=TARGET searches. */
static void list_budget(const struct method *m, struct jw *w)
{
    if (!m->params.budget)
        return;
    jw_karr(w, "budget");
    for (const struct budget_param *b = m->params.budget; b->params; b++) {
        OWN(buf_free) struct buf text = {0};
        buf_printf(&text, "%s%s%s: %s keeps more", b->params, b->only ? " with " : "",
                   b->only ? b->only : "", b->falls ? "smaller" : "larger");
        jw_str(w, buf_str(&text));
    }
    jw_arr_end(w);
}

/* Which phases of a method run where in `replay --backend cuda`. Some settings of a method may have
 * no GPU side: its page says which. */
static void list_on_gpu(const struct method *m, struct jw *w)
{
    static const char *const attention[] = {
        [ARITH_SOFTMAX] = "attention on the GPU",
        [ARITH_FILTER] = "attention on the GPU, exact or in its own arithmetic",
        [ARITH_KERNEL] = "attention on the GPU, in its own arithmetic",
        [ARITH_ADDED] = "attention on the GPU, with what is added to it",
        [ARITH_CPU] = ("attention on the GPU, unless a setting changes its arithmetic: such heads "
                       "are skipped"),
    };
    bool is_static = m->reuse.always_static;
    bool cpu_only = m->arith.attend && !m->arith.how;
    const char *choice = m->flags & METHOD_KEEPS_ALL   ? "no mask to choose"
                         : is_static && m->device.rule ? "mask static, built on the GPU"
                         : is_static                   ? "mask static, made once"
                         : m->device.rule              ? "mask chosen on the GPU"
                                                       : "mask chosen on the CPU";
    jw_karr(w, "on a GPU");
    jw_str(w, choice);
    if (m->reuse.of && (m->flags & METHOD_NEEDS_STEPS))
        jw_str(w, "used again by later steps at no cost");
    jw_str(w, cpu_only ? "attention on the CPU only: heads are skipped" : attention[m->arith.kind]);
    jw_arr_end(w);
}

static int list_methods(const struct app *app, struct jw *w, struct err *err)
{
    for (const struct method *const *p = app->methods; *p; p++) {
        const struct method *m = *p;
        jw_obj(w);
        jw_members(w, JW_STR("name", m->name), JW_STR("summary", m->summary),
                   JW_STR("paper", m->paper));
        if (m->alias)
            jw_kstr(w, "alias", m->alias);
        list_flags(m, w);
        list_on_gpu(m, w);
        list_scopes(m, w);
        list_budget(m, w);
        jw_key(w, "parameters");
        opt_table_json(m->params.table, w);
        jw_obj_end(w);
    }
    return 0;
}

static void list_metric(const struct metric_def *m, const char *method, struct jw *w)
{
    static const char *const better[] = {NULL, "higher", "lower"};
    OWN(buf_free) struct buf text = {0};
    jw_obj(w);
    jw_members(w, JW_STR("name", m->name), JW_STR("unit", m->unit),
               JW_STR("section", m->section ? m->section : "method"));
    if (method || m->method)
        jw_kstr(w, "method", method ? method : m->method);
    if (m->denominator)
        jw_kstr(w, "shown as", m->denominator);
    if (better[m->better])
        jw_kstr(w, "better", better[m->better]);
    buf_printf(&text, "%s%s%s", method ? method : "", method ? ": " : "", m->definition);
    jw_kstr(w, "summary", buf_str(&text));
    jw_obj_end(w);
}

static int list_metrics(const struct app *app, struct jw *w, struct err *err)
{
    for (const struct metric_def *m = metric_defs; m->name; m++)
        list_metric(m, NULL, w);
    for (const struct method *const *p = app->methods; *p; p++)
        for (const struct metric_def *m = (*p)->metrics; m && m->name; m++)
            list_metric(m, (*p)->name, w);
    return 0;
}

static int list_entries(const struct listed *const *entries, struct jw *w)
{
    for (; entries && *entries; entries++) {
        jw_obj(w);
        jw_members(w, JW_STR("name", (*entries)->name), JW_STR("summary", (*entries)->summary));
        if ((*entries)->details)
            jw_kstr(w, "details", (*entries)->details);
        jw_obj_end(w);
    }
    return 0;
}

static int list_tables(const struct app *app, struct jw *w, struct err *err)
{
    return list_entries(app->tables, w);
}

static int list_figures(const struct app *app, struct jw *w, struct err *err)
{
    return list_entries(app->figures, w);
}

static int list_kernels(const struct app *app, struct jw *w, struct err *err)
{
    return app->list_kernels ? app->list_kernels(w, err) : 0;
}

static void list_gpu_model(const struct gpu_model *g, struct jw *w)
{
    char text[160];
    snprintf(text, sizeof text,
             "for --gpu: sm_%.0f, %.0f multiprocessors, %.0f TFLOP/s at %.2f GHz, %.0f GB/s%s",
             g->architecture, g->multiprocessors, g->peak_bf16, g->clock_rated, g->memory,
             g->sustained_clock > 0 ? "; clock measured" : "");
    jw_obj(w);
    jw_kstr(w, "name", g->name);
    jw_kstr(w, "summary", text);
    jw_kstr(w, "for", "analyze --table model --gpu");
    jw_obj_end(w);
}

/* Those of this machine, and those of datasets/gpus. */
static int list_gpus(const struct app *app, struct jw *w, struct err *err)
{
    OWN(buf_free) struct buf path = {0};
    struct gpu_model g;
    OWN(globfree) glob_t files = {0};
    if (app->list_gpus)
        PASS_ON(app->list_gpus(w, err));
    PASS_ON(datadir_find("gpus", &path, err));
    buf_puts(&path, "/*.json");
    if (glob(buf_str(&path), 0, NULL, &files))
        return err_set(err, ERR_INPUT, "%s: no file of a GPU", buf_str(&path));
    for (size_t i = 0; i < files.gl_pathc; i++) {
        PASS_ON(gpu_model_load(files.gl_pathv[i], &g, err));
        list_gpu_model(&g, w);
    }
    return 0;
}

static const struct topic {
    const char *name, *entry; /* of the whole, of one */
    int (*list)(const struct app *app, struct jw *w, struct err *err);
    bool needs_cuda;
} topics[] = {
    {"methods", "method", list_methods, false}, {"metrics", "metric", list_metrics, false},
    {"tables", "table", list_tables, false},    {"figures", "figure", list_figures, false},
    {"kernels", "kernel", list_kernels, true},  {"gpus", "gpu", list_gpus, true},
};

/* ---- text ----------------------------------------------------------------------------------- */

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

/* A scalar as in a JSON file, texts without quotes, a list joined by ", ". */
static void value_text(const json_t *v, struct buf *b)
{
    struct jw w;
    size_t i;
    json_t *item;
    if (json_is_string(v)) {
        buf_puts(b, json_string_value(v));
    } else if (json_is_array(v)) {
        json_array_foreach(v, i, item)
        {
            buf_puts(b, i ? ", " : "");
            value_text(item, b);
        }
    } else {
        jw_init(&w, b, 0);
        jw_value(&w, v);
    }
}

static void print_parameters(const struct opt *table, struct buf *b)
{
    enum { COLUMN = 26, WIDTH = 100 };
    for (const struct opt *o = table; o && o->type != OPT_END; o++) {
        OWN(buf_free) struct buf text = {0};
        size_t start = b->len;
        buf_printf(b, "      %s=%s", o->name, o->type == OPT_BOOL ? "0|1" : opt_arg_name(o));
        int used = (int)(b->len - start);
        buf_printf(b, "%*s", used + 2 > COLUMN ? 2 : COLUMN - used, "");
        opt_describe(o, &text);
        if (o->type == OPT_BOOL && o->def)
            buf_printf(&text, " [default %s]", o->def);
        text_wrap(b, buf_str(&text), used + 2 > COLUMN ? used + 2 : COLUMN, COLUMN, WIDTH);
    }
}

/* Everything about an entry beside its name and summary. */
static void print_details(const struct app *app, const struct topic *t, const json_t *entry,
                          struct buf *b)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)entry, key, v)
    {
        if (strcmp(key, "name") == 0 || strcmp(key, "summary") == 0 ||
            strcmp(key, "parameters") == 0)
            continue;
        OWN(buf_free) struct buf text = {0};
        value_text(v, &text);
        if (text.len) {
            buf_printf(b, "    %s: ", key);
            text_wrap(b, buf_str(&text), 6 + (int)strlen(key), 6, 100);
        }
    }
    if (t->list == list_methods) {
        const struct method *m = method_find(app->methods, text_of(entry, "name"), NULL);
        if (m && m->params.table && m->params.table->type != OPT_END) {
            buf_puts(b, "    parameters:\n");
            print_parameters(m->params.table, b);
            if (m->search.calibrate && !opt_find(m->params.table, "calib"))
                buf_puts(b, "      calib=FILE          parameters per head, as lacuna calibrate "
                            "writes them; others given beside it\n"
                            "                          win over the file\n");
        }
    }
    buf_puts(b, "\n");
}

static void print_text(const struct app *app, const struct topic *t, const json_t *list,
                       bool verbose, struct buf *b)
{
    size_t i;
    int width = 0;
    json_t *entry;
    json_array_foreach(list, i, entry)
    {
        int n = (int)strlen(text_of(entry, "name"));
        width = n > width ? n : width;
    }
    json_array_foreach(list, i, entry)
    {
        struct buf text = {0};
        const char *unit = text_of(entry, "unit");
        buf_printf(b, "%-*s  ", width, text_of(entry, "name"));
        buf_puts(&text, text_of(entry, "summary"));
        if (unit[0] && strcmp(unit, "1") != 0 && !verbose)
            buf_printf(&text, " [%s]", unit);
        text_wrap(b, buf_str(&text), width + 2, width + 2, 100);
        buf_free(&text);
        if (verbose)
            print_details(app, t, entry, b);
    }
}

static int unknown(const char *what, const char *name, const char *const *names, struct err *err)
{
    char hint[HINT_MAX];
    struct names all = {0};
    OWN(buf_free) struct buf text = {0};
    if (!did_you_mean(name, names, hint)[0]) {
        for (int i = 0; names[i]; i++)
            names_add(&all, names[i]);
        buf_puts(&text, " (there are ");
        names_text(&all, &text);
        buf_puts(&text, ")");
    }
    return err_set(err, ERR_USAGE, "list: unknown %s '%s'%s%s", what, name, hint, buf_str(&text));
}

/* Every name (or alias) must be there; the entries that were not asked for are removed. */
static int keep_named(const struct topic *t, json_t *list, const struct str_list *wanted,
                      struct err *err)
{
    size_t n = json_array_size(list);
    OWN(free_at) const char **names = NULL;
    OWN(free_at) bool *keep = NULL;
    PASS_ON(mem_zalloc(&names, (int64_t)n + 1, sizeof *names, "names", err));
    PASS_ON(mem_zalloc(&keep, (int64_t)n + 1, sizeof *keep, "names", err));
    for (size_t i = 0; i < n; i++)
        names[i] = text_of(json_array_get(list, i), "name");
    for (int64_t k = 0; k < wanted->n; k++) {
        bool found = false;
        for (size_t i = 0; i < n; i++) {
            const char *alias = text_of(json_array_get(list, i), "alias");
            bool same = strcmp(wanted->items[k], names[i]) == 0 ||
                        (alias[0] && strcmp(wanted->items[k], alias) == 0);
            keep[i] |= same;
            found |= same;
        }
        if (!found)
            PASS_ON(unknown(t->entry, wanted->items[k], names, err));
    }
    for (size_t i = n; i-- > 0;)
        if (!keep[i])
            json_array_remove(list, i);
    return 0;
}

/* GPUs that are only predicted for aside, an empty list is no error, but it must not be taken for a
 * machine without one. */
static void explain_empty(const struct app *app, const struct topic *t, const json_t *list)
{
    size_t i;
    json_t *entry;
    if (!t->needs_cuda)
        return;
    json_array_foreach(list, i, entry) if (!json_object_get(entry, "for")) return;
    if (!app->accel)
        log_warn("this lacuna was built without CUDA: it has no kernels and looks for no GPU "
                 "(build with make CUDA=1)");
    else
        log_warn("no GPU: the NVIDIA driver is missing or too old, or it finds no device");
}

/* All entries of the topic, or, with names, those in full. */
static int print_topic(const struct app *app, const struct topic *t, const struct common_opts *c,
                       const struct str_list *names, struct err *err)
{
    OWN(json_decrefp) json_t *list = NULL;
    OWN(buf_free) struct buf json = {0}, text = {0};
    struct jw w;
    jw_init(&w, &json, 0);
    jw_arr(&w);
    PASS_ON(t->list(app, &w, err));
    jw_arr_end(&w);
    PASS_ON(buf_check(&json, t->name, err));
    PASS_ON(json_read_text(buf_str(&json), json.len, t->name, &list, err));
    explain_empty(app, t, list);
    if (names->n)
        PASS_ON(keep_named(t, list, names, err));
    if (c->json) {
        jw_init(&w, &text, 2);
        jw_value(&w, list);
        buf_puts(&text, "\n");
    } else {
        print_text(app, t, list, c->verbose || names->n, &text);
    }
    PASS_ON(buf_check(&text, t->name, err));
    fputs(buf_str(&text), stdout);
    return 0;
}

static int find_topic(const char *name, const struct topic **out, struct err *err)
{
    const char *names[sizeof topics / sizeof *topics + 1] = {0};
    for (size_t i = 0; i < sizeof topics / sizeof *topics; i++) {
        names[i] = topics[i].name;
        if (strcmp(name, topics[i].name) == 0) {
            *out = &topics[i];
            return 0;
        }
    }
    return unknown("topic", name, names, err);
}

static int run(const struct app *app, void *opts, struct str_list *rest, struct err *err)
{
    const struct topic *t = NULL;
    if (rest->n == 0)
        return err_set(
            err, ERR_USAGE,
            "list: one of methods, metrics, tables, figures, kernels, gpus was expected");
    int rc = find_topic(rest->items[0], &t, err);
    const struct str_list names = {.n = rest->n - 1, .items = rest->items + 1};
    return rc ? rc : print_topic(app, t, opts, &names, err);
}

const struct command cmd_list = {
    .name = "list",
    .usage = "list methods|metrics|tables|figures|kernels|gpus [NAME...]",
    .summary = "Show what there is to choose from",
    .run = run,
    .options = list_options,
    .size = sizeof(struct common_opts),
    .details = "-v adds everything known about each entry: parameters with defaults, ranges and\n"
               "units, the paper, the formula. With names, those entries alone, in full.\n"
               "\n"
               "  lacuna list methods -v          parameters of every method\n"
               "  lacuna list methods spargeattn  parameters of one\n"
               "  lacuna list metrics --json      definitions for other programs\n",
};
