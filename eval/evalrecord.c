/*
 * evalrecord.c - records of scope `model` (evalrun.h): identity, and the numbers that every cell
 * has.
 */
#include "eval/evalrun.h"
#include "core/mem.h"

#include "core/text.h"
#include "sim/budgetsearch.h"
#include "sim/metrics.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* "0,2-4" of the layers whose heads all attend exactly, then single heads as L:H. */
static void dense_text(const struct eval_how *how, const struct attn_shape *c, struct buf *b)
{
    const char *sep = "dense_layers=";
    for (int l = 0; l < c->layers; l++) {
        int n = 0;
        for (int h = 0; h < c->heads; h++)
            n += how->dense_head[(int64_t)l * c->heads + h];
        if (n == c->heads) {
            buf_printf(b, "%s%d", sep, l);
            sep = ",";
        }
    }
    sep = sep[0] == ',' ? ":dense_heads=" : "dense_heads=";
    for (int l = 0; l < c->layers; l++) {
        int n = 0;
        for (int h = 0; h < c->heads; h++)
            n += how->dense_head[(int64_t)l * c->heads + h];
        for (int h = 0; n < c->heads && h < c->heads; h++)
            if (how->dense_head[(int64_t)l * c->heads + h]) {
                buf_printf(b, "%s%d/%d", sep, l, h);
                sep = ",";
            }
    }
}

static void add_part(struct buf *b, const char *fmt, long long value)
{
    if (b->len)
        buf_puts(b, ":");
    buf_printf(b, fmt, value);
}

/* How the method stands in the model; of exact attention only what changes it. */
static void setting_text(const struct eval_how *how, const struct attn_shape *c, bool is_dense,
                         struct buf *b)
{
    if (!is_dense) {
        dense_text(how, c, b);
        if (how->dense_below)
            add_part(b, "dense_below=%lld", (long long)how->dense_below);
        if (how->dense_last == DENSE_LAST_QUESTION)
            add_part(b, "dense_last=question", 0);
        else if (how->dense_last)
            add_part(b, "dense_last=%lld", (long long)how->dense_last);
        if (how->prefill_chunk)
            add_part(b, "prefill_chunk=%lld", (long long)how->prefill_chunk);
        if (how->decode_method)
            add_part(b, "decode=method", 0);
        if (how->skip_is_dense)
            add_part(b, "on_skip=dense", 0);
    }
    if (how->round != DT_F32)
        add_part(b, "qkv=model", 0);
}

int eval_identity(const struct eval_subject *m, const struct eval_how *how, const char *task,
                  const struct method_run *run, struct record *r, struct err *err)
{
    OWN(buf_free) struct buf setting = {0};
    record_of_model(r);
    snprintf(r->trace, sizeof r->trace, "%s", m->weights);
    record_text(r, &r->model, "%s", m->name);
    snprintf(r->method, sizeof r->method, "%s", run ? run->method->name : "dense");
    snprintf(r->precision, sizeof r->precision, "%s",
             run && how->precision == PREC_F64 ? "f64" : "f32");
    if (how->device && (run || how->all_on_device)) {
        snprintf(r->backend, sizeof r->backend, "%s", how->device->accel->name);
        record_note(r, "operands=bf16");
    }
    r->seed = how->seed;
    r->causal = m->shape.causal;
    setting_text(how, &m->shape, !run, &setting);
    PASS_ON(buf_check(&setting, "setting", err));
    r->params = strdup(run ? run->canonical : "");
    r->task = strdup(task);
    r->setting = strdup(buf_str(&setting));
    if (!r->params || !r->task || !r->setting)
        return err_set(err, ERR_NOMEM, "record: out of memory");
    return 0;
}

int eval_append(struct record_file *f, const struct record *r, struct eval_count *n,
                struct setting_tally *tally, struct err *err)
{
    PASS_ON(record_file_append(f, r, err));
    n->ok += r->status == RECORD_OK;
    n->skip += r->status == RECORD_SKIP;
    n->error += r->status == RECORD_ERROR;
    if (tally)
        setting_tally_add(tally, r);
    return 0;
}

/* ---- layers --------------------------------------------------------------------------------- */

static int put_at(struct record *r, const char *name, int layer, double value, struct err *err)
{
    char full[48];
    snprintf(full, sizeof full, "%s@layer=%d", name, layer);
    return record_metric(r, full, value, err);
}

int eval_record_densities(const struct layer_attn *a, struct record *r, struct err *err)
{
    const struct attn_shape *c = &a->shape;
    double elem = 0, exec = 0, sparse = 0, sparse_calls = 0;
    int64_t heads = (int64_t)c->layers * c->heads, dense = 0;
    for (int l = 0; l < c->layers; l++) {
        double layer = 0;
        for (int64_t i = (int64_t)l * c->heads; i < (int64_t)(l + 1) * c->heads; i++) {
            double n = a->calls[i];
            layer += a->elem[i] / n;
            exec += a->exec[i] / n;
            sparse += a->sparse[i];
            sparse_calls += a->sparse_calls[i];
            dense += a->sparse_calls[i] == 0;
        }
        elem += layer;
        PASS_ON(put_at(r, "density_elem", l, layer / c->heads, err));
        if (a->how->local_errors)
            PASS_ON(put_at(r, "err_local", l,
                           ratio_or_inf(sqrt(a->local_err[l]), sqrt(a->local_ref[l])), err));
    }
    PASS_ON(record_metric(r, "density_elem", elem / (double)heads, err));
    if (!isnan(exec))
        PASS_ON(record_metric(r, "density_exec", exec / (double)heads, err));
    if (sparse_calls > 0)
        PASS_ON(record_metric(r, "density_sparse", sparse / sparse_calls, err));
    PASS_ON(record_metric(r, "heads_dense", (double)dense, err));
    if (a->heads_without_calib)
        record_note(r, "calib=absent for %lld heads", (long long)a->heads_without_calib);
    if (a->target.n) {
        double n = (double)a->target.n;
        PASS_ON(record_metric(r, "budget_target", a->run->target->value, err));
        PASS_ON(record_metric(r, "budget_miss", a->target.miss / n, err));
        PASS_ON(record_metric(r, "budget_evals", (double)a->target.evals / n, err));
        budget_note_heads(r, a->target.ends);
    }
    if (a->was_skip_dense)
        record_note(r, "heads_that_did_not_apply=dense");
    return 0;
}

/* ---- times ---------------------------------------------------------------------------------- */

struct attention_ns eval_attention_ns(const struct layer_attn *a)
{
    struct attention_ns sum = {0};
    for (int64_t i = 0; i < (int64_t)a->shape.layers * a->shape.heads; i++) {
        sum.method += a->attn_ns[i];
        sum.dense += a->dense_ns[i];
        sum.plan += a->plan_ns[i];
    }
    return sum;
}

/* The whole that attention is a part of: dense, with the method, the first by the second. */
static const char *const names_of_prefill[] = {"ttft_dense_ns", "ttft_ns", "ttft_speedup"};
static const char *const names_of_clip[] = {"generation_dense_ns", "generation_ns",
                                            "generation_speedup"};

static int put_whole(const char *const names[3], double dense, double method, struct record *r,
                     struct err *err)
{
    PASS_ON(record_metric(r, names[0], dense, err));
    if (isnan(method))
        return 0;
    PASS_ON(record_metric(r, names[1], method, err));
    return record_metric(r, names[2], dense / method, err);
}

static int put_attention(const struct attention_ns *t, struct record *r, struct err *err)
{
    PASS_ON(record_metric(r, "time_attn_dense_ns", t->dense, err));
    if (isnan(t->method)) {
        record_note(r, "time_attn_ns=a part of it ran on the CPU");
        return 0;
    }
    PASS_ON(record_metric(r, "time_attn_ns", t->method, err));
    PASS_ON(record_metric(r, "attn_speedup", t->dense / t->method, err));
    return record_metric(r, "host_plan_ns", t->plan, err);
}

static struct attention_ns mean_of(struct attention_ns sum, double n)
{
    return (struct attention_ns){sum.method / n, sum.dense / n, sum.plan / n};
}

/* Device times of a prefill, the mean over prefills. */
static int put_times(const struct lockstep_device *dev, const struct layer_attn *a,
                     struct record *r, struct err *err)
{
    struct attention_ns t = mean_of(eval_attention_ns(a), dev->prefills);
    double linear = dev->linear_ns / dev->prefills;
    PASS_ON(record_metric(r, "time_linear_ns", linear, err));
    PASS_ON(put_attention(&t, r, err));
    return put_whole(names_of_prefill, linear + t.dense, linear + t.method, r, err);
}

int eval_record_clip_times(const struct clip_times *t, const struct layer_attn *a, struct record *r,
                           struct err *err)
{
    double steps = (double)t->steps, branches = (double)t->branches;
    double linear = branches * t->of.linear, product = branches * t->of.product;
    double own = branches * t->of.attention;
    struct attention_ns at =
        a ? mean_of(eval_attention_ns(a), steps) : (struct attention_ns){own, own, 0};
    PASS_ON(record_metric(r, "time_linear_ns", linear, err));
    PASS_ON(record_metric(r, "time_product_ns", product, err));
    PASS_ON(record_metric(r, "time_other_ns", linear - product, err));
    PASS_ON(put_attention(&at, r, err));
    if (!isnan(at.method))
        PASS_ON(record_metric(r, "attn_share", at.method / (linear + at.method), err));
    return put_whole(names_of_clip, steps * (linear + at.dense), steps * (linear + at.method), r,
                     err);
}

int eval_record_layers(const struct lockstep *l, int stream, struct record *r, struct err *err)
{
    const struct stream *s = l->s + stream;
    const struct layer_attn *a = s->attn;
    int layers = l->model->c.layers;
    if (!a)
        return record_metric(r, "density_elem", 1, err);
    PASS_ON(eval_record_densities(a, r, err));
    if (l->device && l->device->on->samples)
        PASS_ON(put_times(l->device, a, r, err));
    for (int i = 0; i < layers; i++) {
        PASS_ON(put_at(r, "err_attn", i, ratio_or_inf(sqrt(s->attn_err[i]), sqrt(s->attn_ref[i])),
                       err));
        PASS_ON(put_at(r, "err_resid", i,
                       ratio_or_inf(sqrt(s->resid_err[i]), sqrt(s->resid_ref[i])), err));
    }
    return 0;
}
