/*
 * paper_verdict.c - the conditions of a printed number against those of our records.
 */
#include "analyze/paper_verdict.h"

#include "analyze/params.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How SpargeAttn calibrates: once per layer, on five inputs that it does not measure. */
static const char calib_per[] = "layer";
enum { CALIB_INPUTS = 5 };

/* What keeps a number from being judged: conditions that are others, and gaps of either side. */
struct case_file {
    const struct printed *p;
    const struct wanted *w;
    const struct grouping *gs;
    const struct group *g;
    struct buf differs, paper_lacks, records_lack;
};

static const struct record *member(const struct case_file *c, int64_t i)
{
    return &c->gs->set->r[c->g->at[i]];
}

static struct buf *next_reason(struct buf *b, const char *separator)
{
    buf_puts(b, b->len ? separator : "");
    return b;
}

static struct buf *differs(struct case_file *c)
{
    return next_reason(&c->differs, "; ");
}

static struct buf *paper_lacks(struct case_file *c)
{
    return next_reason(&c->paper_lacks, ", ");
}

/* 1536, but 17,776. */
static void put_count(struct buf *b, int64_t n)
{
    if (n >= 10000) {
        put_count(b, n / 1000);
        buf_printf(b, ",%03d", (int)(n % 1000));
    } else {
        buf_printf(b, "%lld", (long long)n);
    }
}

/* ---- conditions ------------------------------------------------------------------------------ */

static void check_model(struct case_file *c)
{
    const struct paper_model *m = c->w->model;
    const struct record *r = c->g->first;
    if (!m) {
        buf_puts(paper_lacks(c), "the model");
        return;
    }
    if (!paper_names(m, r))
        buf_printf(differs(c), "model %s, the paper's is %s", r->model[0] ? r->model : "unnamed",
                   m->printed);
    else if (m->d && r->d != m->d)
        buf_printf(differs(c), "head dimension %d, that of %s is %d", r->d, m->printed, m->d);
    else if (!m->d)
        buf_printf(paper_lacks(c), "the size of %s", m->printed);
}

/* A grid of tokens is one number; a printed K is 1000 or 1024, within 2 %. */
static void check_length(struct case_file *c)
{
    const struct wanted *w = c->w;
    int64_t n = c->g->first->n_q, exact = w->model ? w->model->n : 0;
    double low = exact ? (double)exact : 980 * w->k_low;
    double high = exact ? (double)exact : 1.02 * 1024 * w->k_high;
    if (!exact && w->k_high == 0) {
        buf_puts(paper_lacks(c), "the length");
        return;
    }
    if ((double)n >= low && (double)n <= high)
        return;
    struct buf *b = differs(c);
    buf_puts(b, "length ");
    put_count(b, n);
    buf_puts(b, ", the paper's is ");
    if (exact)
        put_count(b, exact);
    else if (w->k_low < w->k_high)
        buf_printf(b, "%g-%gK", w->k_low, w->k_high);
    else
        buf_printf(b, "%gK", w->k_high);
}

/* SpargeAttn runs visual models in Hilbert order, and table 10 is a mean over all five. */
static void check_order(struct case_file *c)
{
    const struct wanted *w = c->w;
    size_t len;
    const char *order = paper_order(c->g->first, &len);
    if (w->order || strncmp(c->p->paper, "SpargeAttn", 10) != 0 || !w->model || w->model->text)
        return;
    if (strcmp(c->p->table, "10") == 0)
        buf_printf(differs(c), "token order %.*s, the paper's number is a mean over five", (int)len,
                   order);
    else if (len != 7 || strncmp(order, "hilbert", 7) != 0)
        buf_printf(differs(c), "token order %.*s, the paper's is hilbert", (int)len, order);
}

/* Is every word of a one of b, but for those that are conditions of their own? */
static bool words_in(const char *a, const char *b)
{
    size_t len, other;
    for (const char *word; (word = params_next(&a, &len));) {
        bool found = strncmp(word, "calib=", 6) == 0 || strncmp(word, "permute=", 8) == 0;
        const char *p = b;
        for (const char *x; !found && (x = params_next(&p, &other));)
            found = other == len && strncmp(word, x, len) == 0;
        if (!found)
            return false;
    }
    return true;
}

static void check_settings(struct case_file *c)
{
    const struct record *r = c->g->first;
    const struct paper_stated *s = c->w->stated;
    const char *params = r->params ? r->params : "";
    if (s->missing[0])
        buf_puts(paper_lacks(c), s->missing);
    if (s->missing[0] || c->w->rule->flags & MAP ||
        (words_in(params, s->settings) && words_in(s->settings, params)))
        return;
    struct buf *b = differs(c), own = {0};
    params_without(params, "calib", &own);
    buf_printf(b, "settings %s%s%s, the paper's are %s:%s", r->method, own.len ? ":" : "",
               buf_str(&own), r->method, s->settings);
    buf_free(&own);
}

/* ---- calibration ----------------------------------------------------------------------------- */

/* The value of a note of a record, "" when it has none. */
static void note_value(const struct record *r, const char *key, char *text, size_t size)
{
    const char *notes = r->notes.len ? r->notes.data : "";
    size_t n = strlen(key);
    text[0] = '\0';
    for (const char *p = notes; *p;) {
        size_t len = strcspn(p, ";");
        if (len > n && strncmp(p, key, n) == 0 && p[n] == '=')
            snprintf(text, size, "%.*s", (int)(len - n - 1), p + n + 1);
        p += len + (p[len] == ';');
    }
}

/* "l1=0.05:l2=0.06" as "l1=0.05, l2=0.06", with the values that `from` has for these names. */
static void put_bounds(struct buf *b, const char *bounds, const char *from)
{
    size_t len;
    const char *p = bounds, *sep = "";
    for (const char *word; (word = params_next(&p, &len)); sep = ", ") {
        char name[16];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
        const char *value = params_value(from, name);
        buf_printf(b, "%s%s=%.*s", sep, name, value ? (int)strcspn(value, ":") : 1,
                   value ? value : "?");
    }
}

/* One record's calibration, as its notes tell it (replay). */
static void check_calibrated(struct case_file *c, const struct record *r, const char *bounds)
{
    char search[160], per[16], inputs[24], own[8], absent[16];
    note_value(r, "calib", absent, sizeof absent);
    note_value(r, "calib_search", search, sizeof search);
    note_value(r, "calib_per", per, sizeof per);
    note_value(r, "calib_inputs", inputs, sizeof inputs);
    note_value(r, "calib_own", own, sizeof own);
    if (strcmp(absent, "absent") == 0)
        buf_puts(differs(c), "heads without calibration");
    if (!search[0] || !per[0] || !inputs[0] || !own[0]) {
        buf_puts(next_reason(&c->records_lack, ", "), "how their calibration was made");
        return;
    }
    if (!words_in(bounds, search)) {
        buf_puts(differs(c), "calibrated with ");
        put_bounds(&c->differs, bounds, search);
        buf_puts(&c->differs, ", the paper's bounds are ");
        put_bounds(&c->differs, bounds, bounds);
    }
    if (strcmp(per, calib_per) != 0)
        buf_printf(differs(c), "calibrated per %s, in the paper per %s", per, calib_per);
    if (atoi(inputs) != CALIB_INPUTS)
        buf_printf(differs(c), "calibrated on %s input%s, in the paper on %d", inputs,
                   strcmp(inputs, "1") ? "s" : "", CALIB_INPUTS);
    if (strcmp(own, "0") != 0)
        buf_puts(differs(c), "calibrated on a measured trace");
}

static void check_calibration(struct case_file *c)
{
    const char *bounds = c->w->model ? c->w->model->bounds : NULL;
    if (c->w->rule->flags & MAP || strcmp(c->w->rule->method, "spargeattn") != 0 || !c->w->model)
        return;
    if (!bounds) {
        buf_printf(paper_lacks(c), "the bounds of the calibration for %s", c->w->model->printed);
        return;
    }
    if (!params_value(c->g->first->params, "calib")) {
        buf_puts(differs(c), "not calibrated, the paper's bounds are ");
        put_bounds(&c->differs, bounds, bounds);
        return;
    }
    /* The first record that says anything else than the paper speaks for the group. */
    for (int64_t i = 0; i < c->g->n; i++) {
        size_t before = c->differs.len + c->records_lack.len;
        check_calibrated(c, member(c, i), bounds);
        if (c->differs.len + c->records_lack.len > before)
            return;
    }
}

/* ---- unit ------------------------------------------------------------------------------------ */

/* The printed unit in which a metric of ours is the same number; NULL = none. */
static const char *other_unit(const char *metric)
{
    return strncmp(metric, "err_l1_rel", 10) == 0 ? "relative L1"
           : strncmp(metric, "sim_", 4) == 0      ? "cosine"
                                                  : "fraction";
}

/* Heads of the group, each counted once; a call has all of its layer, or of parts none is known. */
static int count_heads(const struct case_file *c, int64_t *n, struct err *err)
{
    const struct paper_model *m = c->w->model;
    int64_t all = (int64_t)m->layers * m->heads;
    bool *seen = NULL;
    int rc = 0;
    *n = 0;
    TRY(mem_zalloc(&seen, all, sizeof *seen, "heads", err));
    for (int64_t i = 0; i < c->g->n; i++) {
        const struct record *r = member(c, i);
        bool call = r->scope == RECORD_OF_CALL && !(r->heads && r->heads[0]);
        int first = call ? 0 : r->head, last = call ? m->heads - 1 : r->head;
        for (int h = first; h <= last; h++) {
            int64_t at = (int64_t)r->layer * m->heads + h;
            if (r->layer >= m->layers || h < 0 || h >= m->heads || seen[at])
                continue;
            seen[at] = true;
            ++*n;
        }
    }
out:
    free(seen);
    return rc;
}

/* What the number is a mean (or the largest) of: all heads of the model, or of the layer. */
static int check_unit(struct case_file *c, struct err *err)
{
    const struct paper_rule *rule = c->w->rule;
    const struct paper_model *m = c->w->model;
    const char *unit = other_unit(rule->metric);
    int64_t n, all;
    int rc = 0;

    if (strcmp(c->p->unit, "%") != 0 && strcmp(c->p->unit, unit) != 0)
        buf_printf(differs(c), "unit %s, the paper's is %s", unit, c->p->unit);
    if (!m || !m->layers || !paper_names(m, c->g->first))
        goto out;
    TRY(count_heads(c, &n, err));
    all = c->w->layer >= 0 ? m->heads : (int64_t)m->layers * m->heads;
    if (n != all)
        buf_printf(differs(c), "%lld of the %lld heads of %s%s", (long long)n, (long long)all,
                   c->w->layer >= 0 ? "this layer of " : "", m->printed);
    else if (rule->spread != SPREAD_MEAN && c->g->n > n)
        buf_puts(differs(c), "an extreme over calls, the paper's is over heads");
out:
    return rc;
}

/* ---- verdict --------------------------------------------------------------------------------- */

static double tolerance(const struct case_file *c, double printed)
{
    const char *dot = strchr(c->p->value, '.');
    double unit = dot ? pow(10, -(double)strspn(dot + 1, "0123456789")) : 1;
    double scale = strcmp(c->p->unit, "%") == 0 ? 100 : 1;
    double t = strncmp(c->w->rule->metric, "err_", 4) == 0 ? PAPER_TOL_L1 * fabs(printed)
                                                           : PAPER_TOL_SHARE * scale;
    return fmax(t, unit / 2) * (1 + 1e-9);
}

static void put_verdict(const struct case_file *c, double ours, double printed, struct buf *out)
{
    if (c->differs.len)
        buf_printf(out, "not comparable: %s", buf_str(&c->differs));
    else if (c->paper_lacks.len)
        buf_printf(out, "cannot be tested, because the paper does not state %s",
                   buf_str(&c->paper_lacks));
    else if (c->records_lack.len)
        buf_printf(out, "cannot be tested, because the records do not state %s",
                   buf_str(&c->records_lack));
    else if (isnan(ours) || isnan(printed))
        buf_puts(out, "cannot be tested, because a number is missing");
    else
        buf_puts(out, fabs(ours - printed) <= tolerance(c, printed) ? "agrees" : "differs");
}

int paper_verdict(const struct printed *p, const struct wanted *w, const struct grouping *gs,
                  const struct group *g, double ours, double printed, struct buf *out,
                  struct err *err)
{
    struct case_file c = {.p = p, .w = w, .gs = gs, .g = g};
    int rc = 0;

    if (strcmp(p->needs, "kernel") == 0) {
        buf_puts(&c.differs, "a time, which belongs to the paper's machine");
    } else {
        check_model(&c);
        check_length(&c);
        check_order(&c);
        check_settings(&c);
        check_calibration(&c);
        TRY(check_unit(&c, err));
    }
    put_verdict(&c, ours, printed, out);
    TRY(buf_check(&c.differs, "verdict", err));
    TRY(buf_check(&c.paper_lacks, "verdict", err));
    TRY(buf_check(&c.records_lack, "verdict", err));
    TRY(buf_check(out, "verdict", err));
out:
    buf_free(&c.differs);
    buf_free(&c.paper_lacks);
    buf_free(&c.records_lack);
    return rc;
}
