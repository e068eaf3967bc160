/*
 * plancost.c - what the jobs that are missing cost in time and on the disk, and how a plan is shown
 * to people: seconds = allowed pairs of all heads x time per pair, tokens x the products with the
 * model's weights, and a share for each head and job.
 */
#include "core/progress.h"
#include "core/mem.h"
#include "core/text.h"
#include "reproduce/jobplan.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Nanoseconds per allowed pair of a head, and seconds per head and call: one thread of a processor
 * with --precision f32; an H100. */
static const struct rate {
    double pair_ns[2], head_s[2];
} rates[DO_COUNT] = {[DO_CAPTURE] = {{4, 0.003}, {0, 0}},
                     [DO_CALIBRATE] = {{100, 0.4}, {0, 0.1}},
                     [DO_REPLAY] = {{20, 0.05}, {0, 0.005}},
                     [DO_EVAL] = {{20, 0.005}, {0, 0.0005}}};

/* Products with weights: operations per second of a thread and of an H100. Two are made per token
 * and weight, which has two bytes. Weights are read once per capture and task. */
static const double weight_ops[2] = {20e9, 40e12};
#define READ_BYTES 1e9

/* Bytes of records per head, and questions of a file that nobody has counted. */
#define RECORD_BYTES 1500
#define FILE_QUESTIONS 200

/* The word behind an option in the commands of a step or of a step that it reads; "": none. */
static const char *option_of(const struct plan *p, const struct step *s, const char *name)
{
    const struct str_list *a = &s->argv[0];
    for (int64_t i = 0; i + 1 < a->n; i++)
        if (strcmp(a->items[i], name) == 0)
            return a->items[i + 1];
    for (int i = 0; i < s->n_in; i++) {
        const char *v = option_of(p, &p->s[s->in[i]], name);
        if (v[0])
            return v;
    }
    return "";
}

static double count_of(const char *list)
{
    double n = 1;
    for (; *list; list++)
        n += *list == ',';
    return n;
}

/* Sums over the inputs of a step, of which each has some tokens. */
struct load {
    double inputs, tokens, square;
};

static void add_input(struct load *l, double n, double times)
{
    l->inputs += times;
    l->tokens += times * n;
    l->square += times * n * n;
}

static struct load load_of(const struct plan *p, const struct step *s, const struct model_use *m)
{
    const char *list = option_of(p, s, "--tokens"), *trials = option_of(p, s, "--trials");
    struct load l = {0};
    int t, h, w;
    double times = 1;
    if (sscanf(option_of(p, s, "--size"), "%dx%dx%d", &t, &h, &w) == 3) {
        add_input(&l, (double)t / m->patch[0] * h / m->patch[1] * w / m->patch[2], 1);
        return l;
    }
    if (step_job(p, s)->kind == DO_EVAL && trials[0]) {
        times = atof(trials) * count_of(option_of(p, s, "--depth"));
        double tasks = 0;
        for (int64_t i = 0; i < s->argv[0].n; i++)
            tasks += strcmp(s->argv[0].items[i], "--task") == 0;
        times *= tasks;
    }
    if (s->task)
        times = FILE_QUESTIONS;
    if (m->trace)
        add_input(&l, (double)m->n, 1);
    else if (!list[0])
        add_input(&l, m->positions && m->positions < 8192 ? (double)m->positions : 8192, times);
    else
        for (const char *n = list; n; n = strchr(n, ',') ? strchr(n, ',') + 1 : NULL) {
            char one[32];
            snprintf(one, sizeof one, "%.*s", (int)strcspn(n, ","), n);
            add_input(&l, isfinite(size_value(one)) ? size_value(one) : 4096, times);
        }
    return l;
}

/* Settings of a step's methods; those with lists of parameters count each. */
static double settings_of(const struct recipe_job *j)
{
    double n = 0;
    size_t i;
    json_t *v;
    json_array_foreach(j->methods, i, v) n += count_of(json_string_value(v));
    return n > 0 ? n : 1;
}

/* Denoising steps that are run. */
static double evaluations(const struct plan *p, const struct step *s, const struct model_use *m)
{
    const char *kept = option_of(p, s, "--capture-steps"), *last = strrchr(kept, ',');
    if (m->causal)
        return 1;
    return step_job(p, s)->kind == DO_EVAL ? atof(option_of(p, s, "--steps"))
                                           : 1 + atof(last ? last + 1 : kept);
}

void step_cost(const struct plan *p, const struct step *s, int threads, struct cost *c)
{
    const struct recipe_job *j = step_job(p, s);
    enum job_do kind = j->kind;
    bool runs_model = kind == DO_CAPTURE || kind == DO_EVAL;
    c->seconds += 1;
    if (s->model < 0 || kind == DO_PROMPT || kind == DO_DRAW) {
        c->bytes += 1e5;
        return;
    }
    const struct model_use *m = &p->models->m[s->model];
    struct load l = load_of(p, s, m);
    double heads = (double)m->shape.layers * m->shape.heads, share = p->cuda ? 1 : 1.0 / threads;
    double kept = count_of(option_of(p, s, kind == DO_REPLAY ? "--steps" : "--capture-steps"));
    double calls = runs_model ? evaluations(p, s, m) : kept * (s->n_from ? s->n_from : 1);
    double runs = calls * (kind == DO_CAPTURE ? 1 : settings_of(j) + (kind == DO_EVAL));
    c->seconds += share * heads * runs *
                  (l.square * (m->causal ? 0.5 : 1) * 1e-9 * rates[kind].pair_ns[p->cuda] +
                   l.inputs * rates[kind].head_s[p->cuda]);
    if (runs_model)
        c->seconds += l.tokens * runs * (double)m->bytes / weight_ops[p->cuda] * share +
                      (double)m->bytes / READ_BYTES;
    c->bytes += kind == DO_CAPTURE ? kept * m->shape.layers * l.tokens * m->shape.head_dim *
                                         m->value_bytes * (m->shape.heads + 2.0 * m->shape.kv_heads)
                : kind == DO_CALIBRATE ? 1e5
                                       : runs * l.inputs * heads * RECORD_BYTES;
}

void plan_cost(const struct plan *p, int threads, struct cost *c)
{
    for (int i = 0; i < p->n; i++)
        if (step_missing(p, i) && step_is_first(p, &p->s[i]))
            step_cost(p, &p->s[i], threads, c);
}

/* ---- as text --------------------------------------------------------------------------------- */

void cost_text(const struct cost *c, struct buf *b)
{
    char time[DURATION_TEXT], size[24];
    duration_text(c->seconds, time);
    bytes_text(c->bytes, size);
    buf_printf(b, "%s, %s", time, size);
}

/* Steps of one job of a recipe: how many are done, and what the others cost that no step before
 * stands for. */
static void job_line(const struct plan *p, int recipe, int job, int threads, struct buf *b)
{
    int n = 0, done = 0, out = 0;
    struct cost cost = {0};
    const char *why = "";
    OWN(buf_free) struct buf values = {0};
    for (const struct step *s = NULL; (s = next_step(p, recipe, s));) {
        if (s->job != job)
            continue;
        n++;
        done += s->done;
        out += s->left_out;
        why = s->reason[0] ? s->reason : why;
        if (s->n_vars && values.len < 50) {
            buf_puts(&values, values.len ? ", " : "");
            step_text(s, &values);
        }
        if (!s->done && !s->left_out && step_is_first(p, s))
            step_cost(p, s, threads, &cost);
    }
    const struct recipe_job *j = &p->recipes[recipe].jobs[job];
    buf_printf(b, "  %-10s %-9s %-52.52s %d of %d done", j->name, job_do_names[j->kind],
               buf_str(&values), done, n);
    if (done + out < n) {
        buf_puts(b, ", ");
        cost_text(&cost, b);
    }
    if (out)
        buf_printf(b, ", %d %s", out, why);
    else if (why[0])
        buf_printf(b, ", in part %s", why);
    buf_puts(b, "\n");
}

void plan_text(const struct plan *p, int threads, struct buf *b)
{
    struct cost all = {0};
    for (int r = 0; r < p->n_recipes; r++) {
        buf_printf(b, "%s%s%s\n", p->recipes[r].id, p->quick ? "  --quick" : "",
                   p->recipes[r].n_jobs ? "" : "  printed numbers and reasons only");
        for (int j = 0; j < p->recipes[r].n_jobs; j++)
            job_line(p, r, j, threads, b);
    }
    plan_cost(p, threads, &all);
    buf_puts(b, "total about ");
    cost_text(&all, b);
    if (p->cuda)
        buf_puts(b, "; on an H100; work that tables share counts once\n");
    else
        buf_printf(b,
                   "; on %d threads of a processor without other work; work that tables share "
                   "counts once\n",
                   threads);
}

int own_model_text(const struct plan *p, int recipe, const struct paper_data *d, struct buf *b,
                   struct err *err)
{
    struct recipe r = p->recipes[recipe];
    struct model_set models = {0};
    struct plan q = *p;
    struct cost all = {0};
    double least = 0;
    int rc = 0;
    if (!r.n_jobs)
        return 0;
    r.on_gpu = true;
    r.lengths = (json_t *)(uintptr_t)r.paper;
    q.recipes = &r;
    q.n_recipes = 1;
    q.models = &models;
    q.quick = false;
    q.cuda = true;
    q.s = NULL;
    q.n = 0;
    q.cap = 0;
    q.texts = (struct str_list){0};
    TRY(model_set_of_papers(&r, d, &models, err));
    TRY(plan_expand(&q, err));
    plan_cost(&q, 1, &all);
    TRY(plan_least_disk(&q, &least, err));
    buf_printf(b, "`lacuna reproduce %s", r.id);
    for (int i = 0; i < models.n; i++)
        buf_printf(b, " --model %s=DIR", models.m[i].role);
    buf_printf(b, "%s --backend cuda -o DIR`: with", r.paper ? " --lengths paper" : "");
    for (int i = 0; i < models.n; i++)
        buf_printf(b, "%s %s", i ? " and" : "", models.m[i].name);
    buf_puts(b, " about ");
    cost_text(&all, b);
    buf_puts(b, " on an H100");
    if (least > 1e9 && least < 0.9 * all.bytes)
        buf_printf(b, "; --disk %.0f makes its traces in turns of that many GB", ceil(least / 1e9));
out:
    plan_free(&q);
    model_set_free(&models);
    return rc;
}
