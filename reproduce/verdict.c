/*
 * verdict.c - what differs between a number of ours and the printed one, as letters, and the state
 * of a cell. "agrees" and "differs" are only ever said when nothing differs: model, length,
 * prompts, settings, calibration, GPU, metric and heads.
 */
#include "reproduce/page.h"
#include "core/mem.h"

#include "analyze/params.h"
#include "core/metricdef.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *letter_text(char c)
{
    static const char letters[] = "abcdefghq";
    static const char *const texts[] = {"other model",
                                        "other length",
                                        "other prompts",
                                        "other settings or arithmetic",
                                        "other calibration",
                                        "other GPU",
                                        "a metric that stands in for the paper's",
                                        "a selection of layers or heads",
                                        "quick"};
    const char *at = strchr(letters, c);
    return c && at ? texts[at - letters] : "";
}

/* Letters stay in the order of the alphabet. */
static void put_letter(char letters[16], char c)
{
    size_t n = strlen(letters), i = 0;
    if (strchr(letters, c))
        return;
    while (i < n && letters[i] < c)
        i++;
    if (n < 15) {
        memmove(&letters[i + 1], &letters[i], n - i + 1);
        letters[i] = c;
    }
}

void add_letter(struct page *p, struct page_cell *c, char letter)
{
    put_letter(c->letters, letter);
    put_letter(p->letters, letter);
}

/* The first record behind a cell, and whether a prompt of them lost its middle. */
static const struct record *first_record(const struct page *p, const struct page_cell *c, bool *cut)
{
    struct choice choice = {c->model, c->job, c->where, NULL};
    const struct record *first = NULL;
    *cut = false;
    for (const struct proof *v = NULL; (v = next_proof(&p->evidence, &choice, v));) {
        first = first ? first : v->r;
        *cut = *cut || record_get(v->r, "truncated") > 0;
    }
    return first;
}

/* Are the questions those of a benchmark's file? They are the paper's own. */
static bool is_of_file(const struct record *r)
{
    return r->task && strncmp(r->task, "file:", 5) == 0;
}

/* ---- conditions ------------------------------------------------------------------------------ */

static bool near(double n, double k)
{
    return fabs(n - 1000 * k) <= 20 * k || fabs(n - 1024 * k) <= 0.02 * 1024 * k;
}

/* A model's own grid, or the printed K times 1000 or 1024 within 2 %. */
static bool length_fits(const struct page *p, const struct model_use *m, const struct page_cell *c,
                        double n)
{
    const json_t *want = json_object_get(p->recipe->match, "length");
    char text[32];
    if (json_is_number(want))
        return near(n, json_number_value(want) / 1024);
    if (json_is_string(want) && strcmp(json_string_value(want), "model") == 0) {
        double own = m->paper ? json_number_value(json_object_get(m->paper, "n")) : 0;
        double k = m->paper ? json_number_value(json_object_get(m->paper, "k")) : 0;
        return own > 0 ? n == own : k > 0 && near(n, k);
    }
    return (entry_field(c->row, "length", text, sizeof text) ||
            entry_field(c->column, "length", text, sizeof text)) &&
           !isfinite(c->row->length) && !isfinite(c->column->length) &&
           near(n, strtod(text, NULL) / 1024);
}

/* The kind of prompt that the paper names for a cell: a text, or by patterns of its labels. */
static const char *prompt_wanted(const struct page *p, const struct page_cell *c)
{
    const json_t *want = json_object_get(p->recipe->match, "prompt");
    const char *pattern;
    json_t *v;
    json_object_foreach((json_t *)want, pattern, v)
    {
        if (fnmatch(pattern, c->column->path, 0) == 0 || fnmatch(pattern, c->row->path, 0) == 0)
            return json_string_value(v);
    }
    return json_is_string(want) ? json_string_value(want) : "";
}

/* The kind of prompt behind a model's records: the task of the prompt job. */
static bool prompt_fits(const struct page *p, const struct model_use *m, const struct page_cell *c)
{
    const char *want = prompt_wanted(p, c);
    if (!m->causal)
        return m->paper && strcmp(want, "text-to-video") == 0 && !m->trace;
    if (m->trace)
        return false;
    for (int i = 0; i < p->recipe->n_jobs; i++) {
        const struct recipe_job *j = &p->recipe->jobs[i];
        const char *task = j->kind == DO_PROMPT ? j->args
                           : j->kind == DO_EVAL ? strstr(j->args, "--task ")
                                                : NULL;
        task = task && j->kind == DO_EVAL ? task + strlen("--task ") : task;
        size_t len = task ? strcspn(task, " :") : 0;
        if (len && strlen(want) == len && strncmp(task, want, len) == 0)
            return true;
    }
    return false;
}

/* Is every word of `a` one of `b`, but for those that are conditions of their own? */
static bool words_in(const char *a, const char *b)
{
    for (const char *p = a; *p;) {
        size_t len = strcspn(p, ":");
        bool found = strncmp(p, "calib=", 6) == 0 || strncmp(p, "arith=", 6) == 0 ||
                     strncmp(p, "permute=", 8) == 0;
        for (const char *q = b; *q && !found;) {
            size_t n = strcspn(q, ":");
            found = n == len && strncmp(p, q, len) == 0;
            q += n + (q[n] != '\0');
        }
        if (!found)
            return false;
        p += len + (p[len] != '\0');
    }
    return true;
}

/* Setting k that the paper names: the first is of its own method, others of its baselines. */
static const char *setting_at(const json_t *want, size_t k)
{
    return json_string_value(json_is_array(want) ? json_array_get(want, k) : k ? NULL : want);
}

/* Does the record have this setting, of a method with its parameters? */
static bool has_setting(const struct record *r, const char *want)
{
    size_t n = strlen(r->method);
    OWN(buf_free) struct buf have = {0};
    buf_printf(&have, "%s%s%s", r->method, r->params && r->params[0] ? ":" : "",
               r->params ? r->params : "");
    return strncmp(want, r->method, n) == 0 && (!want[n] || want[n] == ':') &&
           words_in(want, buf_str(&have)) && words_in(buf_str(&have), want);
}

/* A count of what a mask keeps is no number of an arithmetic. */
static bool arith_counts(const struct page_cell *c)
{
    const struct metric_def *d = metric_def_find(c->metric[0]);
    return !d || d->noise != NOISE_NONE;
}

static bool settings_fit(const struct page *p, const struct page_cell *c, const struct record *r)
{
    const json_t *all = json_object_get(p->recipe->match, "settings");
    const char *arith = json_str_or(p->recipe->match, "arith", NULL), *want;
    const char *at = params_value(r->params ? r->params : "", "arith");
    char own[64] = "exact";
    if (strcmp(r->method, "dense") == 0)
        return all && !strchr(setting_at(all, 0), ' ');
    if (at)
        snprintf(own, sizeof own, "%.*s", (int)params_value_len(at), at);
    for (size_t k = 0; (want = setting_at(all, k)); k++)
        if (has_setting(r, want))
            return k || !arith || !arith_counts(c) || strcmp(arith, own) == 0;
    return false;
}

static void note_text(const struct record *r, const char *key, char *text, size_t size)
{
    size_t len = 0;
    const char *value = record_note_value(r, key, &len);
    snprintf(text, size, "%.*s", (int)len, value ? value : "");
}

/* Bounds, granularity and number of inputs as published, none of them a measured one; of methods
 * without a calibration nothing. */
static bool calibration_fits(const struct page *p, const struct record *r)
{
    const json_t *want = json_object_get(p->recipe->match, "calibration");
    const char *of = setting_at(json_object_get(p->recipe->match, "settings"), 0);
    size_t n = strlen(r->method);
    char search[200], own[8], name[40], have[40], text[40], bound[90];
    const char *key;
    json_t *v;
    if (!want || !r->params || !strstr(r->params, "calib="))
        return !want || !of || strncmp(of, r->method, n) != 0 || (of[n] && of[n] != ':');
    note_text(r, "calib_search", search, sizeof search);
    note_text(r, "calib_own", own, sizeof own);
    json_object_foreach((json_t *)want, key, v)
    {
        snprintf(name, sizeof name, "calib_%.30s", key);
        note_text(r, name, have, sizeof have);
        json_text(want, key, text, sizeof text);
        snprintf(bound, sizeof bound, "%.40s=%s", key, text);
        if (have[0] ? strcmp(have, text) != 0 : !words_in(bound, search))
            return false;
    }
    return strcmp(own, "0") == 0;
}

/* Was it measured on the paper's GPU, which the manifest of its job tells? */
static bool gpu_fits(const struct page *p, const struct page_cell *c)
{
    const char *want = json_str_or(p->recipe->match, "gpu", NULL);
    OWN(buf_free) struct buf path = {0};
    struct err ignored = {0};
    OWN(json_decrefp) json_t *manifest = NULL;
    bool fits = false;
    buf_printf(&path, "%s/manifest.json", c->n_jobs ? c->jobs[0] : "");
    if (want && c->n_jobs &&
        json_read_file(buf_str(&path), (size_t)1 << 26, &manifest, &ignored) == 0)
        fits = fnmatch(want, json_str_or(json_object_get(manifest, "gpu"), "name", ""), 0) == 0;
    return fits;
}

/* Does the metric stand in for the paper's? */
static bool stands_in(const struct page *p, const struct page_cell *c)
{
    size_t i;
    json_t *v;
    json_array_foreach(json_object_get(p->recipe->match, "stands_in"), i, v)
    {
        const char *pattern = json_string_value(v);
        if (fnmatch(pattern, c->row->path, 0) == 0 || fnmatch(pattern, c->column->path, 0) == 0)
            return true;
    }
    return false;
}

/* ---- verdict --------------------------------------------------------------------------------- */

static double tolerance(const struct page_cell *c, double scale)
{
    double unit = pow(10, -printed_digits(c->printed)), t;
    if (strncmp(c->metric[0], "err_", 4) == 0 || strncmp(c->metric[0], "ppl", 3) == 0)
        t = 0.05 * fabs(c->number);
    else if (metric_is_time(c->metric[0]))
        t = 0.1 * fabs(c->number);
    else if (strstr(c->metric[0], "score"))
        t = 1;
    else
        t = 0.02 * scale;
    return fmax(t, unit / 2) * (1 + 1e-9);
}

static void set_state(struct page_cell *c)
{
    if (!c->printed || c->letters[0] || !isfinite(c->number))
        return;
    double t = tolerance(c, cell_scale(c));
    if (!(c->stats.hi - c->stats.lo <= 2 * t))
        return;
    c->state = fabs(c->value[0] - c->number) <= t ? CELL_AGREES : CELL_DIFFERS;
}

/* How many units a number over the whole model has; prompts are no selection of heads. */
static int64_t units_of_model(const struct model_use *m, const struct page_cell *c)
{
    if (c->stats.of && strcmp(c->stats.of, "prompts") == 0)
        return 0;
    if (c->stats.of && strcmp(c->stats.of, "layers") == 0)
        return m->shape.layers;
    return (int64_t)m->shape.layers *
           (metric_of_keys(c->metric[0]) ? m->shape.kv_heads : m->shape.heads);
}

int page_judge(struct page *p, struct page_cell *c, struct err *err)
{
    const struct model_use *m = &p->plan->models->m[c->model];
    bool cut;
    const struct record *first = first_record(p, c, &cut);
    if (!first)
        return err_set(err, ERR_RUN, "%s: a cell has a value and no record", p->recipe->id);
    const struct {
        char letter;
        bool differs;
    } letters[] = {
        {'a', !m->paper || !m->has_weights},
        {'b', is_of_file(first) ? cut : !length_fits(p, m, c, (double)first->n_q)},
        {'c', !is_of_file(first) && !prompt_fits(p, m, c)},
        {'d', !settings_fit(p, c, first)},
        {'e', !calibration_fits(p, first)},
        {'f', metric_is_time(c->metric[0]) && !gpu_fits(p, c)},
        {'g', stands_in(p, c)},
        {'h', c->stats.units < units_of_model(m, c)},
        {'q', p->quick},
    };
    for (size_t i = 0; i < sizeof letters / sizeof *letters; i++)
        if (letters[i].differs)
            add_letter(p, c, letters[i].letter);
    set_state(c);
    return 0;
}
