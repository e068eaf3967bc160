/*
 * estimate.c - seconds = allowed pairs x layers x heads x calls x settings x time per pair, and a
 * second for each job.
 */
#include "reproduce/estimate.h"

#include "core/text.h"

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

/* Settings that a step runs, each a method with parameters. */
static double settings_of(const struct recipe_job *j)
{
    size_t i;
    json_t *v;
    double n = 0;
    json_array_foreach(j->methods, i, v) n += count_of(json_string_value(v));
    return n > 0 ? n : 1;
}

static void estimate(const struct plan *p, const struct step *s, int threads, double *seconds,
                     double *bytes)
{
    const struct recipe_job *j = step_job(p, s);
    *seconds = 1;
    *bytes = 1e5;
    if (s->model < 0)
        return;
    const struct model_use *m = &p->models->m[s->model];
    double n = tokens_of(p, s, m), heads = (double)m->shape.layers * m->shape.heads;
    const char *steps = option_of(p, s, j->kind == DO_REPLAY ? "--steps" : "--capture-steps");
    double calls = count_of(steps) * (j->kind != DO_CAPTURE && s->n_from ? s->n_from : 1);
    double runs = calls * (j->kind == DO_CAPTURE ? 1 : settings_of(j));
    if (j->kind == DO_CAPTURE && !m->causal) /* every denoising step up to the last */
        runs = 1 + atof(strrchr(steps, ',') ? strrchr(steps, ',') + 1 : steps);
    *seconds += n * n * (m->causal ? 0.5 : 1) * heads * runs * 1e-9 *
                (p->cuda ? pair_ns[j->kind][1] : pair_ns[j->kind][0] / threads);
    if (j->kind == DO_CAPTURE)
        *bytes = calls * m->shape.layers * n * m->shape.head_dim * 2 *
                 (m->shape.heads + 2.0 * m->shape.kv_heads);
    else if (j->kind == DO_REPLAY || j->kind == DO_EVAL)
        *bytes = runs * heads * RECORD_BYTES;
}

/* Steps of one job of a recipe: how many are done, and what the others cost that no step before
 * stands for. */
static void job_line(const struct plan *p, int recipe, int job, int threads, double all[2],
                     struct buf *b)
{
    int n = 0, done = 0, out = 0;
    double seconds = 0, bytes = 0;
    const char *why = "";
    struct buf values = {0};
    char size[24];
    for (int i = 0; i < p->n; i++) {
        const struct step *s = &p->s[i];
        bool before = false;
        double own[2];
        if (s->recipe != recipe || s->job != job)
            continue;
        n++;
        done += s->done;
        out += s->left_out;
        why = s->left_out ? s->reason : why;
        if (s->n_vars && values.len < 50) {
            buf_puts(&values, values.len ? ", " : "");
            step_text(s, &values);
        }
        for (int k = 0; k < i; k++)
            before = before || strcmp(p->s[k].id, s->id) == 0;
        if (s->done || s->left_out || before)
            continue;
        estimate(p, s, threads, &own[0], &own[1]);
        seconds += own[0];
        bytes += own[1];
    }
    const struct recipe_job *j = &p->recipes[recipe].jobs[job];
    bytes_text(bytes, size);
    buf_printf(b, "  %-10s %-9s %-52.52s %d of %d done", j->name, job_do_names[j->kind],
               buf_str(&values), done, n);
    if (done + out < n)
        buf_printf(b, ", %.0f s, %s", seconds, size);
    if (out)
        buf_printf(b, ", %d %s", out, why);
    buf_puts(b, "\n");
    buf_free(&values);
    all[0] += seconds;
    all[1] += bytes;
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
