/*
 * gpurates.c - seconds of jobs with --backend cuda, from those of the shipped models on an H200
 * with 16 processor cores, 8 to 12 jobs at a time.
 */
#include "reproduce/estimate.h"
#include "reproduce/schedule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Settings of a method's text: a comma is one more. */
static int64_t settings(const char *text)
{
    int64_t n = 1;
    for (; *text; text++)
        n += *text == ',';
    return n;
}

/* Does the processor choose the mask? */
static bool chosen_here(const char *text)
{
    return strstr(text, "kind=stripes") || strstr(text, "bits=16");
}

static double pairs(const struct model_use *m, double n)
{
    return (m->causal ? n * (n + 1) / 2 : n * n) * m->shape.heads;
}

static double capture(const struct plan *p, const struct step *s, double n)
{
    return p->models->m[s->model].causal ? 0.6 + 3.2e-5 * n
                                         : 1 + n / 24576 * (2 + 0.4 * (double)estimate_steps(p, s));
}

static double calibrate(const struct plan *p, const struct step *s, double n)
{
    const struct model_use *m = &p->models->m[s->model];
    const char *method = json_string_value(json_array_get(step_job(p, s)->methods, 0));
    double all = pairs(m, n) * m->shape.layers * estimate_calls(p, s);
    if (strncmp(method, "sampleattention", 15) == 0)
        return 1 + 3.7e-9 * all;
    if (chosen_here(method))
        return 1 + 12e-9 * all;
    return 1 + 1e-4 * n + 7e-10 * all;
}

/* Reading a call, and each setting of it. Times, 20 runs of each, are by one older replay. */
static double replay(const struct plan *p, const struct step *s, double n)
{
    const struct model_use *m = &p->models->m[s->model];
    double calls = estimate_calls(p, s) * m->shape.layers;
    bool timed = step_timed(p, s);
    double each = timed ? 0.3 : 0.005, seconds = (timed ? 2 : 0.6) + calls * 2.3e-6 * n;
    size_t i;
    json_t *v;
    json_array_foreach(step_job(p, s)->methods, i, v)
    {
        const char *text = json_string_value(v);
        double of = (double)settings(text);
        seconds += of * calls * each * n / 16384;
        if (chosen_here(text))
            seconds += of * calls * pairs(m, n) * 6e-9;
    }
    return seconds;
}

/* The list behind an option of words: its items, and the sum of their sizes. */
static double listed(const char *words, const char *option, double *sum)
{
    const char *at = strstr(words, option);
    char text[128], *save = NULL;
    double n = 0;
    *sum = 0;
    if (!at)
        return 0;
    at += strlen(option);
    at += strspn(at, " ");
    snprintf(text, sizeof text, "%.*s", (int)strcspn(at, " "), at);
    for (char *t = strtok_r(text, ",", &save); t; t = strtok_r(NULL, ",", &save)) {
        n++;
        *sum += size_value(t);
    }
    return n;
}

/* Exact attention runs beside the settings. */
static double eval(const struct plan *p, const struct step *s, double n)
{
    const struct model_use *m = &p->models->m[s->model];
    struct buf b = {0};
    double of = 0.3, each = 1, tokens = n, ignored, trials, steps = 50;
    size_t i;
    json_t *v;
    estimate_args(p, s, &b);
    if (!m->causal) {
        listed(buf_str(&b), "--steps ", &steps);
    } else if (strstr(buf_str(&b), "--tokens ")) {
        listed(buf_str(&b), "--tokens ", &tokens);
        each = fmax(1, listed(buf_str(&b), "--depth ", &ignored));
        listed(buf_str(&b), "--trials ", &trials);
        each *= fmax(1, trials);
    }
    buf_free(&b);
    json_array_foreach(step_job(p, s)->methods, i, v)
    {
        const char *text = json_string_value(v);
        if (strcmp(text, "dense") != 0)
            of += (double)settings(text) * (strncmp(text, "oracle", 6) == 0 ? 2.2 : 1);
    }
    return 1 + (m->causal ? 2e-4 * tokens * each : 4.2e-5 * n * steps) * of;
}

double gpu_seconds(const struct plan *p, const struct step *s, double n)
{
    switch (step_job(p, s)->kind) {
    case DO_CAPTURE:
        return capture(p, s, n);
    case DO_CALIBRATE:
        return calibrate(p, s, n);
    case DO_REPLAY:
        return replay(p, s, n);
    case DO_EVAL:
        return eval(p, s, n);
    default:
        return 0.2;
    }
}
