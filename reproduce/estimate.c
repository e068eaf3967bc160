/*
 * estimate.c - seconds = allowed pairs x heads x calls x nanoseconds per pair, measured on two
 * processors (one thread each) with --precision f32; with a GPU other rules (gpurates.c).
 */
#include "reproduce/estimate.h"

#include "core/hash.h"
#include "core/human.h"
#include "core/strmap.h"
#include "reproduce/schedule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ns per allowed pair and head with two threads: text (D 64) and video (D 128). */
static const struct rate {
    const char *method;
    double text, video;
} replay_rates[] = {{"dense", 6.4, 17}, {"spargeattn", 5, 17},      {"oracle", 11, 19},
                    {"sale", 9, 18},    {"sampleattention", 4, 18}, {"", 6, 18}},
  calibrate_rates[] = {{"spargeattn", 100, 270}, {"sale", 9, 30}, {"", 61, 120}};

static double rate_of(const struct rate *r, const char *method, bool video)
{
    for (; r->method[0]; r++)
        if (strncmp(method, r->method, strlen(r->method)) == 0)
            break;
    return video ? r->video : r->text;
}

/* The number behind an option in the words of a job or of the prompt job that it reads. */
static const char *option_of(const struct plan *p, const struct step *s, const char *name)
{
    for (int64_t i = 0; i + 1 < s->words.n; i++)
        if (strcmp(s->words.items[i], name) == 0)
            return s->words.items[i + 1];
    for (int i = 0; i < s->n_in; i++) {
        const char *v = option_of(p, &p->s[s->in[i]], name);
        if (v)
            return v;
    }
    return NULL;
}

/* Tokens of the call that a step works on; 0: not known. */
static double tokens_of(const struct plan *p, const struct step *s)
{
    const struct model_use *m = &p->models->m[s->model];
    const char *size = option_of(p, s, "--size"), *n = option_of(p, s, "--tokens");
    const char *own = step_value(s, "n");
    int t, h, w;
    if (m->trace)
        return (double)m->n;
    if (size && sscanf(size, "%dx%dx%d", &t, &h, &w) == 3)
        return (double)t / m->patch[0] * h / m->patch[1] * w / m->patch[2];
    double x = n ? size_value(n) : own ? size_value(own) : NAN;
    return isfinite(x) ? x : 0;
}

static double pairs(const struct model_use *m, double n)
{
    return m->causal ? n * (n + 1) / 2 : n * n;
}

struct naming {
    const struct plan *p;
    const struct step *s;
    struct buf *b;
};

static int put_value(void *ctx, const char *literal, size_t len, const char *word, struct err *err)
{
    struct naming *n = ctx;
    char name[64];
    (void)err;
    buf_put(n->b, literal, len);
    if (!word)
        return 0;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "."), word);
    const char *value = step_variable(n->p, n->s, name);
    buf_printf(n->b, "%s%s", value ? value : "", strchr(word, '.') ? strchr(word, '.') : "");
    return 0;
}

void estimate_args(const struct plan *p, const struct step *s, struct buf *b)
{
    struct naming n = {p, s, b};
    struct err ignored = {0};
    (void)template_each(step_job(p, s)->args, "", put_value, &n, &ignored);
}

int64_t estimate_steps(const struct plan *p, const struct step *s)
{
    struct buf b = {0};
    int64_t n = 1;
    if (s->wanted.n)
        return s->wanted.n;
    estimate_args(p, s, &b);
    const char *at = strstr(buf_str(&b), "--capture-steps ");
    for (at = at ? at + strlen("--capture-steps ") : ""; *at && *at != ' '; at++)
        n += *at == ',';
    buf_free(&b);
    return n;
}

/* Steps of captures that a replay or calibration reads. */
double estimate_calls(const struct plan *p, const struct step *s)
{
    double calls = 0;
    for (int i = 0; i < s->n_from; i++)
        calls += (double)estimate_steps(p, &p->s[s->in[i]]);
    return calls > 0 ? calls : 1;
}

static void estimate(struct plan *p, struct step *s, int threads)
{
    const struct recipe_job *j = step_job(p, s);
    s->seconds = s->bytes = 0;
    if (s->model < 0 || s->done || s->failed || s->left_out)
        return;
    const struct model_use *m = &p->models->m[s->model];
    const struct shape *a = &m->shape;
    double n = tokens_of(p, s), one = pairs(m, n) * a->layers * a->heads * 1e-9 * 2 / threads;
    size_t i;
    json_t *v;
    if (j->kind == DO_CAPTURE && !m->trace) {
        double last = s->wanted.n ? atof(s->wanted.items[s->wanted.n - 1]) + 1 : 1;
        s->seconds = (m->causal ? 1.5 * one + n * 8e-4 * 2 / threads
                                : 2.3 * one + n * 1.3e-4 * 2 / threads) *
                     last;
        s->bytes = (double)estimate_steps(p, s) * a->layers * n * a->head_dim * 2 *
                   (a->heads + 2.0 * a->kv_heads);
    } else if (j->kind == DO_CALIBRATE) {
        s->seconds =
            one * estimate_calls(p, s) *
            rate_of(calibrate_rates, json_string_value(json_array_get(j->methods, 0)), !m->causal);
    } else if (j->kind == DO_REPLAY) {
        json_array_foreach(j->methods, i, v) s->seconds +=
            one * estimate_calls(p, s) * rate_of(replay_rates, json_string_value(v), !m->causal);
        s->bytes = estimate_calls(p, s) * a->layers * a->heads * 1500 *
                   (double)json_array_size(j->methods);
    } else if (j->kind == DO_DRAW || j->kind == DO_PROMPT) {
        s->seconds = 0.3;
        s->bytes = 1e5;
    }
    if (p->cuda && !m->trace)
        s->seconds = gpu_seconds(p, s, n);
}

/* Words of a step with variables in place, whatever its inputs: equal texts are the same work. A
 * capture runs once for all denoising steps that tables want of it. */
static void identity(const struct plan *p, const struct step *s, struct buf *b)
{
    const struct recipe_job *j = step_job(p, s);
    struct naming n = {p, s, b};
    struct err ignored = {0};
    size_t i;
    json_t *v;
    buf_printf(b, "%d %d %s ", j->kind, s->model, j->figure);
    size_t begin = b->len;
    estimate_args(p, s, b);
    char *steps =
        j->kind == DO_CAPTURE && b->data ? strstr(b->data + begin, "--capture-steps ") : NULL;
    if (steps) {
        size_t skip = strlen("--capture-steps ");
        skip += strcspn(steps + skip, " ");
        memmove(steps, steps + skip, strlen(steps + skip) + 1);
        b->len -= skip;
    }
    json_array_foreach(j->methods, i, v)
    {
        buf_puts(b, " ");
        (void)template_each(json_string_value(v), "", put_value, &n, &ignored);
    }
    buf_puts(b, "(");
    for (int k = 0; k < s->n_in; k++)
        identity(p, &p->s[s->in[k]], b);
    buf_puts(b, ")");
}

void plan_estimate(struct plan *p, int threads)
{
    struct strmap seen = {0};
    struct err ignored = {0};
    for (int i = 0; i < p->n; i++) {
        struct buf b = {0};
        identity(p, &p->s[i], &b);
        estimate(p, &p->s[i], threads);
        p->s[i].alone = p->s[i].seconds;
        if (strmap_get(&seen, buf_str(&b)) >= 0)
            p->s[i].seconds = p->s[i].bytes = 0;
        else
            (void)strmap_put(&seen, buf_str(&b), i, &ignored);
        buf_free(&b);
    }
    strmap_free(&seen);
}

/* Side by side: timed jobs one after the other, of the others no less than the longest. */
double plan_seconds(const struct plan *p)
{
    double alone = 0, beside = 0, longest = 0;
    for (int i = 0; i < p->n; i++) {
        const struct step *s = &p->s[i];
        if (step_timed(p, s)) {
            alone += s->seconds;
            continue;
        }
        beside += s->seconds;
        longest = fmax(longest, plan_remaining(p, i));
    }
    return p->at_once > 1 ? alone + fmax(beside / p->at_once, longest) : alone + beside;
}

void plan_fit(struct plan *p, double budget, int threads)
{
    plan_estimate(p, threads);
    while (plan_seconds(p) > 0.8 * budget) {
        int worst = -1;
        for (int i = 0; i < p->n; i++)
            if (step_job(p, &p->s[i])->drop && p->s[i].seconds > 0 &&
                (worst < 0 || p->s[i].seconds > p->s[worst].seconds))
                worst = i;
        if (worst < 0)
            return;
        for (int i = worst; i < p->n; i++) {
            struct step *s = &p->s[i];
            bool reads = i == worst;
            for (int k = 0; k < s->n_in; k++)
                reads = reads || p->s[s->in[k]].left_out;
            if (!reads || s->done || s->left_out)
                continue;
            s->left_out = true;
            snprintf(s->reason, sizeof s->reason, "left out: budget");
        }
        plan_estimate(p, threads);
    }
}

/* ---- for people ------------------------------------------------------------------------------ */

static void job_line(const struct plan *p, int recipe, int job, struct buf *b)
{
    int n = 0, done = 0, out = 0, failed = 0;
    double seconds = 0, bytes = 0;
    const char *why = "";
    struct buf values = {0};
    char size[24];
    for (int i = 0; i < p->n; i++) {
        const struct step *s = &p->s[i];
        if (s->recipe != recipe || s->job != job)
            continue;
        n++;
        done += s->done;
        out += s->left_out;
        why = s->left_out ? s->reason : why;
        failed += s->failed;
        seconds += s->seconds;
        bytes += s->bytes;
        if (s->n_vars && values.len < 50) {
            buf_puts(&values, values.len ? ", " : "");
            step_text(s, &values);
        }
    }
    const struct recipe_job *j = &p->recipes[recipe].jobs[job];
    buf_printf(b, "  %-10s %-9s %-52.52s %d of %d done", j->name, job_do_names[j->kind],
               buf_str(&values), done, n);
    if (done + out < n) {
        bytes_text(bytes, size);
        buf_printf(b, ", %.0f s, %s", seconds, size);
    }
    if (out)
        buf_printf(b, ", %d %s", out, why);
    if (failed)
        buf_printf(b, ", %d failed", failed);
    buf_puts(b, "\n");
    buf_free(&values);
}

void plan_text(const struct plan *p, struct buf *b)
{
    double bytes = 0;
    char size[24];
    for (int r = 0; r < p->n_recipes; r++) {
        buf_printf(b, "%s%s%s\n", p->recipes[r].id, p->quick ? "  --quick" : "",
                   p->recipes[r].n_jobs ? "" : "  printed numbers and reasons only");
        for (int j = 0; j < p->recipes[r].n_jobs; j++)
            job_line(p, r, j, b);
    }
    for (int i = 0; i < p->n; i++)
        bytes += p->s[i].bytes;
    bytes_text(bytes, size);
    buf_printf(b, "total about %.0f s, %s; work that tables share counts once; GPU: %s\n",
               plan_seconds(p), size, p->cuda ? "yes" : "no");
}
