/*
 * paper_rules.c - the rules of paper.def applied (paper_rules.h).
 */
#include "analyze/paper_rules.h"

#include "analyze/group.h"
#include "analyze/paper.h"
#include "analyze/params.h"

#include <ctype.h>
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct paper_rule rules[] = {
#define RULE(paper, table, row, column, metric, method, params, spread, flags)                     \
    {paper, table, row, column, metric, method, params, spread, flags},
#include "analyze/paper.def"
#undef RULE
};

/* Models by the names that the papers print; longer names before their beginnings. */
static const struct {
    const char *printed, *name; /* name: shell pattern over the trace's model, any case */
    bool text;                  /* causal language model, else bidirectional */
} models[] = {
    {"Llama3.1", "*llama*3.1*", true},
    {"Llama-3.1", "*llama*3.1*", true},
    {"Qwen-2.5", "*qwen*2.5*", true},
    {"ChatGLM", "*chatglm*", true},
    {"InternLM", "*internlm*", true},
    {"GLM", "*glm*4*", true},
    {"Yi", "*yi-*", true},
    {"CogvideoX", "*cogvideox*", false},
    {"Mochi", "*mochi*", false},
    {"Open-Sora-Plan", "*open*sora*", false},
    {"Flux", "*flux*", false},
    {"Stable-Diffusion3.5", "*stable*diffusion*3.5*", false},
    {"Wan", "*wan*", false},
};

static const struct {
    const char *printed, *name;
} orders[] = {
    {"Random", "random"},  {"Rowmajor", "row"},         {"Columnmajor", "column"},
    {"Timemajor", "time"}, {"HilbertCurve", "hilbert"},
};

/* ---- reading the printed side -------------------------------------------------------------- */

const struct paper_rule *paper_rule_find(const struct printed *p)
{
    if (strcmp(p->needs, "traces") != 0 && strcmp(p->needs, "kernel") != 0)
        return NULL; /* quality scores, end-to-end times, settings */
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const struct paper_rule *r = &rules[i];
        if (strncmp(p->paper, r->paper, strlen(r->paper)) == 0 &&
            fnmatch(r->table, p->table, 0) == 0 && fnmatch(r->row, p->row, 0) == 0 &&
            fnmatch(r->column, p->column, 0) == 0)
            return r;
    }
    return NULL;
}

static void find_model(const struct printed *p, struct wanted *w)
{
    const char *places[] = {p->row, p->column, p->title};
    for (int k = 0; k < 3; k++)
        for (size_t i = 0; i < sizeof models / sizeof *models; i++)
            if (strstr(places[k], models[i].printed)) {
                w->model = models[i].name;
                w->causal = models[i].text;
                return;
            }
    /* No model is named: the paper's kind of model. */
    w->causal = strncmp(p->paper, "FG-Attn", 7) == 0            ? 0
                : strncmp(p->paper, "SampleAttention", 15) == 0 ? 1
                                                                : -1;
}

/* "4K", "128k", "N = 32K", "16-28K" -> tokens within 10 %, K read as 1000 or 1024. */
static void find_length(const char *text, struct wanted *w)
{
    for (const char *s = text; *s && !w->n_high; s++) {
        char *end;
        if (!isdigit((unsigned char)*s))
            continue;
        double low = strtod(s, &end), high = low;
        if (*end == '-' && isdigit((unsigned char)end[1]))
            high = strtod(end + 1, &end);
        if ((*end == 'K' || *end == 'k') && !isalnum((unsigned char)end[1])) {
            w->n_low = (int64_t)ceil(0.9 * 1000 * low);
            w->n_high = (int64_t)floor(1.1 * 1024 * high);
        }
        s = end - 1;
    }
}

struct wanted paper_want(const struct printed *p, const struct paper_rule *rule)
{
    struct wanted w = {.rule = rule, .layer = -1};
    find_model(p, &w);
    find_length(p->row, &w);
    find_length(p->column, &w);
    find_length(p->title, &w);
    if ((rule->flags & LAYER) && p->row[0] == 'L')
        w.layer = atoi(p->row + 1);
    for (size_t i = 0; (rule->flags & PERMUTE) && i < sizeof orders / sizeof *orders; i++)
        if (strcmp(p->row, orders[i].printed) == 0)
            w.order = orders[i].name;
    return w;
}

/* ---- choosing records ---------------------------------------------------------------------- */

/* NAME=PATTERN over the parameters; len characters. */
static bool value_matches(const char *condition, size_t len, const char *params)
{
    char name[32], pattern[32], value[64];
    size_t n = strcspn(condition, "=");
    snprintf(name, sizeof name, "%.*s", (int)n, condition);
    snprintf(pattern, sizeof pattern, "%.*s", (int)(len - n - 1), condition + n + 1);
    const char *is = params_value(params, name);
    if (!is)
        return false;
    snprintf(value, sizeof value, "%.*s", (int)strcspn(is, ":"), is);
    return fnmatch(pattern, value, 0) == 0;
}

static bool any_matches(const char *alternatives, size_t len, const char *params)
{
    const char *end = alternatives + len;
    for (const char *p = alternatives; p < end;) {
        size_t one = strcspn(p, "| ");
        if (value_matches(p, one, params))
            return true;
        p += one + 1;
    }
    return false;
}

bool paper_params_match(const char *conditions, const char *params)
{
    for (const char *p = conditions; *p;) {
        size_t len = strcspn(p, " ");
        bool negate = *p == '!';
        if (any_matches(p + negate, len - negate, params) == negate)
            return false;
        p += len + (p[len] == ' ');
    }
    return true;
}

const char *paper_order(const struct record *r, size_t *len)
{
    const char *own = params_value(r->params, "permute"), *used = own ? own : r->permute;
    *len = strcspn(used, ":");
    return used;
}

/* Raster is row-major. */
static bool order_matches(const struct record *r, const char *order)
{
    size_t len;
    const char *used = paper_order(r, &len);
    if (strcmp(order, "row") == 0 && len == 4 && strncmp(used, "none", 4) == 0)
        return true;
    return strlen(order) == len && strncmp(used, order, len) == 0;
}

/* Of the length that the paper names, if it does. */
static bool has_length(const struct wanted *w, const struct record *r)
{
    return !w->n_high || (r->n_q >= w->n_low && r->n_q <= w->n_high);
}

bool paper_wants(const void *ctx, const struct record *r)
{
    const struct wanted *w = ctx;
    return r->status == RECORD_OK && record_has(r, w->rule->metric) &&
           fnmatch(w->rule->method, r->method, 0) == 0 &&
           paper_params_match(w->rule->params, r->params) &&
           /* Layer 3 of another model is not layer 3. */
           (w->layer < 0 || !w->model || fnmatch(w->model, r->model, FNM_CASEFOLD) == 0) &&
           (w->causal < 0 || w->causal == (int)r->causal) &&
           (w->layer < 0 || w->layer == r->layer) &&
           (!(w->rule->flags & LENGTH) || has_length(w, r)) &&
           (!w->order || order_matches(r, w->order));
}

const char *paper_verdict(const struct printed *p, const struct wanted *w, const struct record *r,
                          double ours, double printed)
{
    if (strcmp(p->needs, "kernel") == 0)
        return "other machine";
    if (!w->model)
        return "model not stated";
    if (fnmatch(w->model, r->model, FNM_CASEFOLD) != 0)
        return "other model";
    if (!has_length(w, r))
        return "other length";
    return fabs(ours - printed) <= PAPER_RTOL * fabs(printed) ? "agrees" : "differs";
}
