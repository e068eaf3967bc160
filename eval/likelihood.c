/*
 * likelihood.c - see likelihood.h.
 *
 *   kl = sum_v p_v (a_v - b_v) - (LSE_a - LSE_b)      a, b the logits of p and q
 *
 * so that one pass over the slices is enough: running maxima and sums, rescaled where a maximum
 * rises. Sums are double.
 */
#include "eval/likelihood.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/pool.h"
#include "core/sort.h"
#include "sim/metrics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As in a capture, whose likelihoods are then the same to the last bit. */
#define VOCAB_SLICE 8192
#define ROWS 512

void scores_free(struct scores *s)
{
    free(s->v);
    memset(s, 0, sizeof *s);
}

/* What is known of one row of one stream so far. */
struct tally {
    double top, sum, target;
    double cross;   /* sum of e^(a - top of a) (a - b) */
    int64_t likely; /* id of the largest logit, the lowest of equals */
};

/* A slice of the vocabulary against a block of rows. */
struct slice {
    const int32_t *tokens; /* [rows]: what each row should predict */
    int n_streams;
    const bool *out;     /* [n_streams] */
    int64_t v0, nv;      /* ids of the slice */
    const float *logits; /* [n_streams][ROWS][nv] */
    struct tally *t;     /* [rows][n_streams] */
};

/* Returns the factor by which older sums of the row shrink. */
static double tally_row(struct tally *t, const float *x, const struct slice *s, int32_t target)
{
    double top = t->top, sum = 0, old = t->top;
    for (int64_t j = 0; j < s->nv; j++)
        if (x[j] > top) {
            top = x[j];
            t->likely = s->v0 + j;
        }
    for (int64_t j = 0; j < s->nv; j++)
        sum += exp(x[j] - top);
    double shrink = exp(old - top);
    t->sum = t->sum * shrink + sum;
    t->top = top;
    if (target >= s->v0 && target < s->v0 + s->nv)
        t->target = x[target - s->v0];
    return shrink;
}

static int tally_rows(void *ctx, int64_t row, int worker, struct err *err)
{
    const struct slice *s = ctx;
    struct tally *t = s->t + row * s->n_streams;
    const float *a = s->logits + row * s->nv;
    double shrink = tally_row(t, a, s, s->tokens[row]);
    for (int k = 1; k < s->n_streams; k++) {
        const float *b = a + (int64_t)k * ROWS * s->nv;
        double cross = 0;
        if (s->out[k])
            continue;
        tally_row(t + k, b, s, s->tokens[row]);
        for (int64_t j = 0; j < s->nv; j++)
            cross += exp(a[j] - t->top) * ((double)a[j] - b[j]);
        t[k].cross = t[k].cross * shrink + cross;
    }
    return 0;
}

struct work {
    struct lockstep *l;
    float *w, *logits;
    bool *out;
    struct tally *t; /* [rows of the sequence][n_streams] */
};

static int score_slice(struct work *k, const int32_t *tokens, int64_t from, int64_t n, int64_t v0,
                       int64_t nv, struct err *err)
{
    const struct llm_model *m = k->l->model;
    int64_t hidden = m->c.hidden;
    PASS_ON(st_read_f32(m->file, m->head, v0 * hidden, nv * hidden, k->w, err));
    /* The row at i predicts the token at i + 1. */
    for (int64_t r = from - 1; r < n - 1; r += ROWS) {
        int64_t rows = n - 1 - r < ROWS ? n - 1 - r : ROWS;
        struct slice s = {tokens + r + 1, k->l->n_streams, k->out, v0, nv, k->logits, NULL};
        s.t = k->t + (r - from + 1) * s.n_streams;
        for (int i = 0; i < s.n_streams; i++)
            if (!k->out[i])
                PASS_ON(nn_linear(k->l->s[i].h + r * hidden, rows, hidden, k->w, NULL, nv,
                                  k->l->jobs, k->logits + (int64_t)i * ROWS * nv, err));
        PASS_ON(pool_run(k->l->jobs, rows, tally_rows, &s, err));
    }
    return 0;
}

/* The same from the device, which keeps logits to itself. */
static int add_from_device(struct lockstep *l, const int32_t *tokens, int64_t from,
                           struct scores *scores, struct err *err)
{
    int streams = l->n_streams;
    int64_t n = l->n - from;
    OWN(free_at) struct decoder_score *all = NULL, **out = NULL;
    OWN(free_at) bool *wants = NULL;
    PASS_ON(mem_alloc(&all, streams * n, sizeof *all, "likelihoods", err));
    PASS_ON(mem_alloc(&out, streams, sizeof *out, "likelihoods", err));
    PASS_ON(mem_zalloc(&wants, streams, sizeof *wants, "streams", err));
    for (int i = 0; i < streams; i++) {
        out[i] = all + i * n;
        wants[i] = stream_runs(l->s + i);
    }
    double since = clock_ns();
    PASS_ON(lockstep_device_score(l, tokens, from, wants, out, err));
    log_debug("likelihoods of %lld tokens: %.3f s", (long long)n, 1e-9 * (clock_ns() - since));
    for (int i = 0; i < streams; i++) {
        struct scores *s = scores + i;
        if (!wants[i])
            continue;
        PASS_ON(mem_grow(&s->v, &s->cap, s->n + n, sizeof *s->v, "likelihoods", err));
        for (int64_t r = 0; r < n; r++) {
            const struct decoder_score *x = out[i] + r;
            double nll = (float)x->nll;
            s->v[s->n++] = (struct scored){.nll = nll,
                                           .kl = x->kl,
                                           .p = exp(-nll),
                                           .pos = from + r,
                                           .agree = x->likely == out[0][r].likely,
                                           .correct = x->likely == tokens[from + r]};
        }
    }
    return 0;
}

static int put_scores(const struct work *k, const int32_t *tokens, int64_t from, int64_t n,
                      struct scores *scores, struct err *err)
{
    int streams = k->l->n_streams;
    for (int i = 0; i < streams; i++) {
        struct scores *s = scores + i;
        if (k->out[i])
            continue;
        PASS_ON(mem_grow(&s->v, &s->cap, s->n + n - from, sizeof *s->v, "likelihoods", err));
        for (int64_t r = 0; r < n - from; r++) {
            const struct tally *dense = k->t + r * streams, *t = dense + i;
            double lse = t->top + log(t->sum), dense_lse = dense->top + log(dense->sum);
            double kl = i ? t->cross / dense->sum - (dense_lse - lse) : 0;
            double nll = (float)(lse - t->target);
            s->v[s->n++] = (struct scored){.nll = nll,
                                           .kl = kl > 0 ? kl : 0,
                                           .p = exp(-nll),
                                           .pos = from + r,
                                           .agree = t->likely == dense->likely,
                                           .correct = t->likely == tokens[from + r]};
        }
    }
    return 0;
}

int likelihood_add(struct lockstep *l, const int32_t *tokens, int64_t from, struct scores *scores,
                   struct err *err)
{
    const struct llm_config *c = &l->model->c;
    int64_t n = l->n, slice = c->vocab < VOCAB_SLICE ? c->vocab : VOCAB_SLICE;
    struct work k = {.l = l};
    int rc = 0;
    if (from < 1 || from >= n)
        return 0;
    if (l->device)
        return add_from_device(l, tokens, from, scores, err);
    TRY(mem_alloc(&k.w, slice * c->hidden, sizeof *k.w, "output weights", err));
    TRY(mem_alloc(&k.logits, l->n_streams * ROWS * slice, sizeof *k.logits, "logits", err));
    TRY(mem_zalloc(&k.out, l->n_streams, sizeof *k.out, "streams", err));
    TRY(mem_zalloc(&k.t, (n - from) * l->n_streams, sizeof *k.t, "likelihoods", err));
    for (int64_t i = 0; i < (n - from) * l->n_streams; i++)
        k.t[i].top = -INFINITY;
    for (int i = 0; i < l->n_streams; i++)
        k.out[i] = !stream_runs(l->s + i);
    for (int64_t v = 0; v < c->vocab; v += slice)
        TRY(score_slice(&k, tokens, from, n, v, c->vocab - v < slice ? c->vocab - v : slice, err));
    TRY(put_scores(&k, tokens, from, n, scores, err));
out:
    free(k.w);
    free(k.logits);
    free(k.out);
    free(k.t);
    return rc;
}

/* ---- the numbers of a record ---------------------------------------------------------------- */

/* Sums over scored tokens. */
struct sums {
    double nll, dense_nll, delta2, kl, p2;
    int64_t n, agree, correct, dense_correct;
};

static struct sums add_up(const struct scores *s, const struct scores *dense, int64_t a, int64_t b)
{
    struct sums t = {0};
    for (int64_t i = 0; i < s->n; i++) {
        const struct scored *x = s->v + i, *d = dense->v + i;
        if (x->pos < a || x->pos >= b)
            continue;
        t.nll += x->nll;
        t.dense_nll += d->nll;
        t.kl += x->kl;
        t.p2 += (x->p - d->p) * (x->p - d->p);
        t.agree += x->agree;
        t.correct += x->correct;
        t.dense_correct += d->correct;
        t.n++;
    }
    double mean = t.n ? (t.nll - t.dense_nll) / (double)t.n : 0;
    for (int64_t i = 0; i < s->n; i++) {
        double d = s->v[i].nll - dense->v[i].nll - mean;
        if (s->v[i].pos >= a && s->v[i].pos < b)
            t.delta2 += d * d;
    }
    return t;
}

struct named {
    const char *name;
    double value;
};

static int put(struct record *r, const struct named *v, size_t n, const char *suffix,
               struct err *err)
{
    char name[64];
    for (size_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%s%s", v[i].name, suffix);
        PASS_ON(record_metric(r, name, v[i].value, err));
    }
    return 0;
}

/* KL, agreement and likelihood by position, where there are at least two ranges. */
static int put_positions(const struct scores *s, const struct scores *dense, int64_t last,
                         struct record *r, struct err *err)
{
    static const int64_t first[] = {0, 256, 1024, 4096, 8192, 16384};
    int64_t a = 0, b;
    for (int i = 1; a <= last; i++, a = b) {
        b = i < (int)(sizeof first / sizeof *first) ? first[i] : 2 * a;
        struct sums t = add_up(s, dense, a, b);
        double n = (double)t.n;
        char suffix[40];
        if (t.n == 0 || (a == 0 && last < b))
            continue;
        const struct named v[] = {{"nll_mean", t.nll / n},
                                  {"nll_delta", (t.nll - t.dense_nll) / n},
                                  {"kl_mean", t.kl / n},
                                  {"top1_agree", (double)t.agree / n}};
        snprintf(suffix, sizeof suffix, "@%lld-%lld", (long long)a, (long long)b);
        PASS_ON(put(r, v, sizeof v / sizeof *v, suffix, err));
    }
    return 0;
}

int likelihood_record(const struct scores *s, const struct scores *dense, struct record *r,
                      struct err *err)
{
    struct sums t = add_up(s, dense, 0, INT64_MAX);
    OWN(free_at) double *kl = NULL;
    double n = (double)t.n;
    int64_t last = 0;
    if (s->n == 0 || s->n != dense->n)
        return err_set(err, ERR_RUN, "%lld tokens were scored, and %lld by exact attention",
                       (long long)s->n, (long long)dense->n);
    PASS_ON(mem_alloc(&kl, s->n, sizeof *kl, "divergences", err));
    for (int64_t i = 0; i < s->n; i++) {
        kl[i] = s->v[i].kl;
        last = s->v[i].pos > last ? s->v[i].pos : last;
    }
    sort_f64(kl, s->n);
    double delta = (t.nll - t.dense_nll) / n;
    const struct named v[] = {
        {"nll_mean", t.nll / n},
        {"nll_sum", t.nll},
        {"tokens_scored", n},
        {"ppl", exp(t.nll / n)},
        {"nll_mean_dense", t.dense_nll / n},
        {"ppl_dense", exp(t.dense_nll / n)},
        {"nll_delta", delta},
        {"nll_delta_se", t.n > 1 ? sqrt(t.delta2 / (n - 1) / n) : NAN},
        {"ppl_ratio", exp(delta)},
        {"kl_mean", t.kl / n},
        {"kl_p50", percentile_sorted(kl, s->n, 50)},
        {"kl_p99", percentile_sorted(kl, s->n, 99)},
        {"kl_max", kl[s->n - 1]},
        {"top1_agree", (double)t.agree / n},
        {"top1_acc", (double)t.correct / n},
        {"top1_acc_dense", (double)t.dense_correct / n},
        {"p_rms", sqrt(t.p2 / n)},
    };
    PASS_ON(put(r, v, sizeof v / sizeof *v, "", err));
    return put_positions(s, dense, last, r, err);
}
