/*
 * resolve.c - what is known of each step: its key, what of it is kept, and whether it can be run.
 */
#include "core/hash.h"
#include "core/mem.h"
#include "core/method_run.h"
#include "reproduce/jobplan.h"

#include <stdlib.h>
#include <string.h>

/* Raised when a command's results change, so that kept jobs of older programs are not used. */
static const int result_version[DO_COUNT] = {1, 1, 1, 1, 1, 3};

static void hash_word(struct hash_state *h, const char *s)
{
    hash_update(h, s, strlen(s) + 1);
}

static int add_kept(struct step *s, int at, struct err *err)
{
    for (int i = 0; i < s->n_kept; i++)
        if (s->kept[i] == at)
            return 0;
    int *kept = realloc(s->kept, (size_t)(s->n_kept + 1) * sizeof *kept);
    if (!kept)
        return err_set(err, ERR_NOMEM, "plan: out of memory");
    s->kept = kept;
    s->kept[s->n_kept++] = at;
    return 0;
}

/* The key of a step whose inputs are all finished. */
static int make_key(struct plan *p, struct step *s, struct err *err)
{
    const struct recipe_job *j = step_job(p, s);
    struct hash_state *h = NULL;
    char version[16];
    int rc = 0;

    TRY(hash_new(&h, err));
    snprintf(version, sizeof version, "%d", result_version[j->kind]);
    hash_word(h, job_do_names[j->kind]);
    hash_word(h, version);
    hash_word(h, s->model >= 0 && j->kind != DO_DRAW ? p->models->m[s->model].id : "");
    if (j->kind == DO_REPLAY || j->kind == DO_EVAL || j->kind == DO_CAPTURE)
        hash_word(h, p->cuda ? "cuda" : "cpu");
    if (j->kind == DO_CALIBRATE && p->cuda)
        hash_word(h, "cuda");
    hash_word(h, j->kind == DO_DRAW ? j->figure : "");
    if (j->kind == DO_DRAW)
        hash_word(h, p->style);
    if (j->marks.len)
        hash_word(h, buf_str(&j->marks));
    if (j->series) {
        struct buf text = {0};
        struct jw w;
        jw_init(&w, &text, 0);
        jw_value(&w, j->series);
        hash_word(h, buf_str(&text));
        buf_free(&text);
    }
    for (int64_t i = 0; i < s->words.n; i++)
        hash_word(h, s->words.items[i]);
    if (s->task)
        hash_word(h, s->task->hash);
    if (j->kind == DO_CALIBRATE)
        for (int64_t i = 0; i < s->texts.n; i++)
            hash_word(h, s->texts.items[i]);
    for (int i = 0; i < s->n_in; i++)
        if (i < s->n_from || j->kind == DO_CAPTURE)
            hash_word(h, p->s[s->in[i]].output);
    hash_text(hash_digest(h), s->key);
out:
    hash_free(h);
    return rc;
}

/* Which kept captures of the sample hold the steps: one that holds all, else several. */
static int resolve_capture(struct plan *p, struct step *s, struct err *err)
{
    int64_t found = 0;
    int rc = 0;
    for (int i = 0; i < p->store->n && !s->done; i++) {
        const struct kept_job *k = &p->store->j[i];
        int64_t has = 0;
        if (k->kind != DO_CAPTURE || strcmp(k->key, s->key) != 0)
            continue;
        for (int64_t w = 0; w < s->wanted.n; w++)
            has += str_list_has(&k->steps, s->wanted.items[w]);
        if (has == s->wanted.n) {
            s->n_kept = 0;
            s->done = true;
        }
        if (has || s->done)
            TRY(add_kept(s, i, err));
        found += has;
    }
    s->done = s->done || (s->wanted.n && found >= s->wanted.n);
    if (!s->done)
        goto out;
    struct buf b = {0};
    for (int i = 0; i < s->n_kept; i++)
        buf_puts(&b, p->store->j[s->kept[i]].output);
    hash_text(hash_bytes(buf_str(&b), b.len), s->output);
    buf_free(&b);
out:
    return rc;
}

static int add_unit(struct step *s, const struct method_run *r, const char *text, bool timed,
                    struct err *err)
{
    struct step_unit *u = realloc(s->units, (size_t)(s->n_units + 1) * sizeof *u);
    struct buf b = {0};
    if (!u)
        return err_set(err, ERR_NOMEM, "plan: out of memory");
    s->units = u;
    u += s->n_units++;
    *u = (struct step_unit){.method = strdup(r->method->name),
                            .params = strdup(r->canonical),
                            .text = text,
                            .needs_steps = (r->method->flags & METHOD_NEEDS_STEPS) != 0,
                            .kept = -1};
    buf_printf(&b, "%s:%s:%s", s->key, r->method->name, r->canonical);
    hash_text(hash_bytes(buf_str(&b), b.len), u->any);
    if (timed)
        buf_puts(&b, ":timed");
    hash_text(hash_bytes(buf_str(&b), b.len), u->id);
    int rc = buf_check(&b, "plan", err);
    buf_free(&b);
    if (!rc && (!u->method || !u->params))
        rc = err_set(err, ERR_NOMEM, "plan: out of memory");
    return rc;
}

/* The units of a replay or eval, and where their records are. */
static int resolve_units(struct plan *p, struct step *s, struct err *err)
{
    struct buf all = {0};
    int rc = 0;
    step_free_units(s);
    s->done = s->texts.n > 0;
    for (int64_t i = 0; i < s->texts.n; i++) {
        struct method_run *runs = NULL;
        int64_t n = 0;
        rc = method_runs_parse(p->app->methods, s->texts.items[i], &runs, &n, err);
        for (int64_t k = 0; !rc && k < n; k++)
            rc = add_unit(s, &runs[k], s->texts.items[i], step_timed(p, s), err);
        method_runs_free(runs, n);
        if (rc) {
            err_prefix(err, "%s: job '%s'", p->recipes[s->recipe].id, step_job(p, s)->name);
            goto out;
        }
    }
    for (int i = 0; i < s->n_units; i++) {
        const struct kept_job *k = job_store_unit(p->store, s->units[i].id);
        s->units[i].kept = k ? (int)(k - p->store->j) : -1;
        s->done = s->done && k;
        buf_puts(&all, s->units[i].id);
        if (k)
            TRY(add_kept(s, s->units[i].kept, err));
    }
    hash_text(hash_bytes(buf_str(&all), all.len), s->output);
out:
    buf_free(&all);
    return rc;
}

static int resolve_single(struct plan *p, struct step *s, struct err *err)
{
    for (int i = 0; i < p->store->n; i++) {
        const struct kept_job *k = &p->store->j[i];
        if (k->kind != step_job(p, s)->kind || strcmp(k->key, s->key) != 0)
            continue;
        if (k->damage[0]) {
            s->failed = true;
            snprintf(s->reason, sizeof s->reason, "%s", k->damage);
            return 0;
        }
        s->done = true;
        snprintf(s->output, sizeof s->output, "%s", k->output[0] ? k->output : k->key);
        return add_kept(s, i, err);
    }
    return 0;
}

/* A step on a trace that was given needs no capture: its output is that trace. */
static bool is_given(const struct plan *p, const struct step *s)
{
    enum job_do kind = step_job(p, s)->kind;
    return (kind == DO_CAPTURE || kind == DO_PROMPT) && s->model >= 0 &&
           p->models->m[s->model].trace;
}

/* A drawing waits for a machine that has gnuplot; what it reads is made here nevertheless. */
static void postpone_drawing(const struct plan *p, struct step *s)
{
    if (s->done || s->left_out || !p->no_gnuplot)
        return;
    s->left_out = true;
    snprintf(s->reason, sizeof s->reason,
             "gnuplot was not found; the same command draws where it is");
}

static int resolve(struct plan *p, struct step *s, struct err *err)
{
    enum job_do kind = step_job(p, s)->kind;
    int rc = 0;

    s->ready = s->done = false;
    s->n_kept = 0;
    if (is_given(p, s)) {
        s->ready = s->done = true;
        snprintf(s->output, sizeof s->output, "%s", p->models->m[s->model].id);
        return 0;
    }
    for (int i = 0; i < s->n_in; i++) {
        const struct step *in = &p->s[s->in[i]];
        if (in->failed && !s->failed) {
            s->failed = true;
            snprintf(s->reason, sizeof s->reason, "%s", in->reason);
        }
        if (!in->done)
            return 0;
    }
    s->ready = true;
    TRY(step_words(p, s, err));
    TRY(make_key(p, s, err));
    if (kind == DO_CAPTURE)
        TRY(resolve_capture(p, s, err));
    else if (kind == DO_REPLAY || kind == DO_EVAL)
        TRY(resolve_units(p, s, err));
    else
        TRY(resolve_single(p, s, err));
    if (kind == DO_DRAW)
        postpone_drawing(p, s);
out:
    return rc;
}

/* Times come with everything else: what will be run for them is not run without. */
static void leave_to_timed(struct plan *p)
{
    struct str_list timed = {0};
    for (int i = 0; i < p->n; i++) {
        const struct step *s = &p->s[i];
        for (int k = 0; k < s->n_units && step_timed(p, s) && !s->failed && !s->left_out; k++)
            if (s->units[k].kept < 0)
                str_list_add(&timed, s->units[k].any);
    }
    for (int i = 0; i < p->n; i++) {
        struct step *s = &p->s[i];
        for (int k = 0; k < s->n_units && !step_timed(p, s); k++)
            s->units[k].later = s->units[k].kept < 0 && str_list_has(&timed, s->units[k].any);
    }
    str_list_free(&timed);
}

int plan_resolve(struct plan *p, struct err *err)
{
    int rc = 0;
    for (int i = 0; i < p->n; i++)
        TRY(resolve(p, &p->s[i], err));
    leave_to_timed(p);
out:
    return rc;
}
