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

static const struct paper_stated stated[] = {
#define STATED(paper, table, row, column, settings, missing)                                       \
    {paper, table, row, column, settings, missing},
#include "analyze/paper.def"
#undef STATED
};

/* Models by the names that the papers print; longer names before their beginnings. */
/* clang-format off */
static const struct paper_model models[] = {
    {"Llama3.1",  "*llama*3.1*", true, 32, 32, 128, 0, "l1=0.08:l2=0.09"},
    {"Llama-3.1", "*llama*3.1*", true, 32, 32, 128, 0, "l1=0.08:l2=0.09"},
    {"Qwen-2.5",  "*qwen*2.5*",  true, 64, 40, 128, 0, NULL},
    {"ChatGLM",   "*chatglm*",   true, 28, 32, 128, 0, NULL},
    {"InternLM",  "*internlm*",  true, 32, 32, 128, 0, NULL},
    {"GLM",       "*glm*4*",     true, 40, 32, 128, 0, NULL},
    {"Yi",        "*yi-*",       true, 48, 32, 128, 0, NULL},
    {"CogvideoX", "*cogvideox*", false, 30, 30, 64, 17776, "l1=0.05:l2=0.06"},
    {"Mochi",     "*mochi*",     false, 48, 24, 128, 0, "l1=0.05:l2=0.06"},
    {"Open-Sora-Plan", "*open*sora*", false, 0, 0, 0, 0, "l1=0.03:l2=0.035"},
    {"Flux",      "*flux*",      false, 57, 24, 128, 4608, "l1=0.07:l2=0.08"},
    {"Stable-Diffusion3.5", "*stable*diffusion*3.5*", false, 38, 38, 64, 0, "l1=0.07:l2=0.08"},
    {"Wan",       "*wan*",       false, 0, 0, 0, 0, NULL},
};
/* clang-format on */

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

static const struct paper_stated *find_stated(const struct printed *p)
{
    static const struct paper_stated nothing = {.settings = "", .missing = "the settings"};
    for (size_t i = 0; i < sizeof stated / sizeof *stated; i++) {
        const struct paper_stated *s = &stated[i];
        if (strncmp(p->paper, s->paper, strlen(s->paper)) == 0 &&
            fnmatch(s->table, p->table, 0) == 0 && fnmatch(s->row, p->row, 0) == 0 &&
            fnmatch(s->column, p->column, 0) == 0)
            return s;
    }
    return &nothing;
}

static void find_model(const struct printed *p, struct wanted *w)
{
    const char *places[] = {p->row, p->column, p->title};
    for (int k = 0; k < 3; k++)
        for (size_t i = 0; i < sizeof models / sizeof *models; i++)
            if (strstr(places[k], models[i].printed)) {
                w->model = &models[i];
                w->causal = models[i].text;
                return;
            }
    /* No model is named: the paper's kind of model. */
    w->causal = strncmp(p->paper, "FG-Attn", 7) == 0            ? 0
                : strncmp(p->paper, "SampleAttention", 15) == 0 ? 1
                                                                : -1;
}

/* "4K", "128k", "N = 32K", "16-28K" -> thousands of tokens. */
static void find_length(const char *text, struct wanted *w)
{
    for (const char *s = text; *s && w->k_high == 0; s++) {
        char *end;
        if (!isdigit((unsigned char)*s))
            continue;
        double low = strtod(s, &end), high = low;
        if (*end == '-' && isdigit((unsigned char)end[1]))
            high = strtod(end + 1, &end);
        if ((*end == 'K' || *end == 'k') && !isalnum((unsigned char)end[1])) {
            w->k_low = low;
            w->k_high = high;
        }
        s = end - 1;
    }
}

struct wanted paper_want(const struct printed *p, const struct paper_rule *rule)
{
    struct wanted w = {.rule = rule, .stated = find_stated(p), .layer = -1};
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
    snprintf(value, sizeof value, "%.*s", (int)params_value_len(is), is);
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
    *len = own ? params_value_len(used) : strcspn(used, ":");
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

/* Near the printed length, if one is printed, so that the two may stand side by side: within 10 %,
 * K read as 1000 or 1024. */
static bool near_length(const struct wanted *w, const struct record *r)
{
    return w->k_high == 0 ||
           ((double)r->n_q >= 900 * w->k_low && (double)r->n_q <= 1.1 * 1024 * w->k_high);
}

bool paper_names(const struct paper_model *m, const struct record *r)
{
    return fnmatch(m->name, r->model, FNM_CASEFOLD) == 0;
}

bool paper_wants(const void *ctx, const struct record *r)
{
    const struct wanted *w = ctx;
    return r->scope != RECORD_OF_MODEL && r->status == RECORD_OK &&
           record_has(r, w->rule->metric) &&
           !*params_target(r->params) && /* a searched setting is no printed one */
           fnmatch(w->rule->method, r->method, 0) == 0 &&
           paper_params_match(w->rule->params, r->params) &&
           /* Layer 3 of another model is not layer 3. */
           (w->layer < 0 || !w->model || paper_names(w->model, r)) &&
           (w->causal < 0 || w->causal == (int)r->causal) &&
           (w->layer < 0 || w->layer == r->layer) &&
           (!(w->rule->flags & LENGTH) || near_length(w, r)) &&
           (!w->order || order_matches(r, w->order));
}
