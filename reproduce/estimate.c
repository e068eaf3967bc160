/*
 * estimate.c - seconds = allowed pairs x layers x heads x calls x settings x time per pair, and a
 * second for each job.
 */
#include "reproduce/jobplan.h"

#include "core/human.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Nanoseconds per allowed pair of a head: one thread of a processor with --precision f32; an H200.
 */
static const double pair_ns[DO_COUNT][2] = {[DO_CAPTURE] = {4, 0.01},
                                            [DO_CALIBRATE] = {100, 3},
                                            [DO_REPLAY] = {20, 0.5},
                                            [DO_EVAL] = {20, 1}};

/* Bytes of records per head. */
#define RECORD_BYTES 1500

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

static double tokens_of(const struct plan *p, const struct step *s, const struct model_use *m)
{
    int t, h, w;
    if (m->trace)
        return (double)m->n;
    if (sscanf(option_of(p, s, "--size"), "%dx%dx%d", &t, &h, &w) == 3)
        return (double)t / m->patch[0] * h / m->patch[1] * w / m->patch[2];
    double n = size_value(option_of(p, s, "--tokens"));
    return isfinite(n) ? n : 4096;
}

static double count_of(const char *list)
{
    double n = 1;
    for (; *list; list++)
        n += *list == ',';
    return n;
}

/* Adds seconds and bytes of a step; its settings are methods with lists of parameters. */
static void estimate(const struct plan *p, const struct step *s, int threads, double cost[2])
{
    const struct recipe_job *j = step_job(p, s);
    double runs = 0;
    size_t i;
    json_t *v;
    cost[0] += 1;
    if (s->model < 0) {
        cost[1] += 1e5;
        return;
    }
    const struct model_use *m = &p->models->m[s->model];
    double n = tokens_of(p, s, m), heads = (double)m->shape.layers * m->shape.heads;
    const char *steps = option_of(p, s, j->kind == DO_REPLAY ? "--steps" : "--capture-steps");
    double calls = count_of(steps) * (j->kind != DO_CAPTURE && s->n_from ? s->n_from : 1);
    json_array_foreach(j->methods, i, v) runs += calls * count_of(json_string_value(v));
    if (j->kind == DO_CAPTURE && !m->causal) /* every denoising step up to the last */
        runs = 1 + atof(strrchr(steps, ',') ? strrchr(steps, ',') + 1 : steps);
    runs = runs > 0 ? runs : calls;
    cost[0] += n * n * (m->causal ? 0.5 : 1) * heads * runs * 1e-9 *
               (p->cuda ? pair_ns[j->kind][1] : pair_ns[j->kind][0] / threads);
    cost[1] += j->kind == DO_CAPTURE ? calls * m->shape.layers * n * m->shape.head_dim * 2 *
                                           (m->shape.heads + 2.0 * m->shape.kv_heads)
               : j->kind == DO_REPLAY || j->kind == DO_EVAL ? runs * heads * RECORD_BYTES
                                                            : 1e5;
}

/* Steps of one job of a recipe: how many are done, and what the others cost that no step before
 * stands for. */
static void job_line(const struct plan *p, int recipe, int job, int threads, double all[2],
                     struct buf *b)
{
    int n = 0, done = 0, out = 0;
    double cost[2] = {0, 0};
    const char *why = "";
    struct buf values = {0};
    char size[24];
    for (const struct step *s = NULL; (s = next_step(p, recipe, s));) {
        const struct step *first = p->s;
        if (s->job != job)
            continue;
        n++;
        done += s->done;
        out += s->left_out;
        why = s->left_out ? s->reason : why;
        if (s->n_vars && values.len < 50) {
            buf_puts(&values, values.len ? ", " : "");
            step_text(s, &values);
        }
        while (strcmp(first->id, s->id) != 0)
            first++;
        if (!s->done && !s->left_out && first == s)
            estimate(p, s, threads, cost);
    }
    const struct recipe_job *j = &p->recipes[recipe].jobs[job];
    bytes_text(cost[1], size);
    buf_printf(b, "  %-10s %-9s %-52.52s %d of %d done", j->name, job_do_names[j->kind],
               buf_str(&values), done, n);
    if (done + out < n)
        buf_printf(b, ", %.0f s, %s", cost[0], size);
    if (out)
        buf_printf(b, ", %d %s", out, why);
    buf_puts(b, "\n");
    buf_free(&values);
    all[0] += cost[0];
    all[1] += cost[1];
}

void plan_text(const struct plan *p, int threads, struct buf *b)
{
    double all[2] = {0, 0};
    char size[24];
    for (int r = 0; r < p->n_recipes; r++) {
        buf_printf(b, "%s%s%s\n", p->recipes[r].id, p->quick ? "  --quick" : "",
                   p->recipes[r].n_jobs ? "" : "  printed numbers and reasons only");
        for (int j = 0; j < p->recipes[r].n_jobs; j++)
            job_line(p, r, j, threads, all, b);
    }
    bytes_text(all[1], size);
    buf_printf(b, "total about %.2f hours, %s; work that tables share counts once; GPU: %s\n",
               all[0] / 3600, size, p->cuda ? "yes" : "no");
}
