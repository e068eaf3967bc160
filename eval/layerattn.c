/*
 * layerattn.c - see layerattn.h. Heads of a layer run in parallel, each on one thread, or on a GPU
 * as one call.
 */
#include "eval/layerattn.h"

#include "core/mem.h"
#include "core/pool.h"
#include "eval/callattn.h"
#include "eval/headattn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t all_heads(const struct layer_attn *a)
{
    return (int64_t)a->shape.layers * a->shape.heads;
}

/* The sums, [layers * heads]; those of layers use the first [layers]. */
enum { N_SUMS = 10 };
static double **sum_of(struct layer_attn *a, int i)
{
    double **const sums[N_SUMS] = {&a->calls,        &a->elem,     &a->exec,     &a->sparse,
                                   &a->sparse_calls, &a->attn_ns,  &a->dense_ns, &a->plan_ns,
                                   &a->local_err,    &a->local_ref};
    return sums[i];
}

void layer_attn_free(struct layer_attn *a)
{
    carries_free(a->carry, a->branches * all_heads(a));
    carries_free(a->shared, all_heads(a));
    for (int i = 0; i < N_SUMS; i++)
        free(*sum_of(a, i));
    memset(a, 0, sizeof *a);
}

int layer_attn_init(struct layer_attn *a, const struct method_run *run, const struct eval_how *how,
                    const struct attn_shape *shape, const char *model, int jobs, struct err *err)
{
    int rc = 0;

    *a = (struct layer_attn){.run = run, .how = how, .shape = *shape, .model = model, .jobs = jobs};
    a->timestep = a->exact_ns = NAN;
    for (int i = 0; i < N_SUMS; i++)
        TRY(mem_zalloc(sum_of(a, i), all_heads(a), sizeof(double), "sums of heads", err));
out:
    if (rc)
        layer_attn_free(a);
    return rc;
}

int layer_attn_keep_state(struct layer_attn *a, int branches, struct err *err)
{
    int rc = 0;
    a->branches = branches;
    TRY(mem_zalloc(&a->carry, branches * all_heads(a), sizeof *a->carry, "state of methods", err));
    TRY(mem_zalloc(&a->shared, all_heads(a), sizeof *a->shared, "state of methods", err));
out:
    return rc;
}

void layer_attn_reset(struct layer_attn *a)
{
    for (int i = 0; i < N_SUMS; i++)
        memset(*sum_of(a, i), 0, (size_t)all_heads(a) * sizeof(double));
    a->target = (struct target_sum){0};
    a->heads_without_calib = 0;
    a->was_skip_dense = false;
    a->skip[0] = '\0';
}

/* ---- the layer ------------------------------------------------------------------------------ */

bool layer_attn_is_dense(const struct layer_attn *a, int layer, int64_t n)
{
    const bool *dense = a->how->dense_head + (int64_t)layer * a->shape.heads;
    bool all = true;
    for (int h = 0; h < a->shape.heads; h++)
        all = all && dense[h];
    return all || n < a->how->dense_below || (a->decoding && !a->how->decode_method) ||
           (!a->decoding && a->dense_rows >= n);
}

void layer_attn_count_dense(struct layer_attn *a, int layer)
{
    for (int h = 0; h < a->shape.heads; h++) {
        int64_t at = (int64_t)layer * a->shape.heads + h;
        a->calls[at]++;
        a->elem[at] += 1;
        a->exec[at] += 1;
        a->attn_ns[at] += a->exact_ns;
        a->dense_ns[at] += a->exact_ns;
        a->plan_ns[at] += isnan(a->exact_ns) ? NAN : 0; /* the model's own launch has no plan */
    }
}

/* Sums of the heads in their order; METHOD_SKIP if a head has no answer. */
static int add_heads(struct layer_job *j)
{
    struct layer_attn *a = j->a;
    for (int h = 0; h < a->shape.heads; h++) {
        const struct head_sum *s = j->sums + h;
        if (s->searched) {
            a->target.n++;
            a->target.evals += s->found.evals;
            a->target.ends[s->found.end]++;
            a->target.miss += s->found.value - a->run->target->value;
        }
        a->heads_without_calib += s->lacks_calib && !a->decoding;
        a->local_err[j->layer] += s->err;
        a->local_ref[j->layer] += s->ref;
        if (!s->skip[0])
            continue;
        a->was_skip_dense = true;
        if (!a->how->skip_is_dense) {
            snprintf(a->skip, sizeof a->skip, "layer %d head %d: %s", j->layer, h, s->skip);
            return METHOD_SKIP;
        }
    }
    return 0;
}

static int attend_rows(struct layer_job *j, struct err *err)
{
    const struct layer_attn *a = j->a;
    int rc = 0;
    TRY(mem_zalloc(&j->sums, a->shape.heads, sizeof *j->sums, "sums of heads", err));
    TRY(layer_is_call(j) ? call_attend(j, err)
                         : pool_run(a->jobs, a->shape.heads, head_attend, j, err));
    rc = add_heads(j);
out:
    free(j->sums);
    j->sums = NULL;
    return rc;
}

/* Calls of at most `step` rows, each against the keys up to its last row. */
static int attend_in_chunks(const struct layer_job *whole, int64_t step, struct err *err)
{
    const struct attn_shape *c = &whole->a->shape;
    int64_t width = (int64_t)c->heads * c->head_dim, nq = whole->nq, before = whole->nk - nq;
    struct head_shape all = {nq, whole->nk, c->causal, whole->kv->reach};
    double pairs = (double)pairs_within(&all, 0, nq, 0, whole->nk);
    int rc = 0;

    for (int64_t r = 0; r < nq; r += step) {
        int64_t end = r + step < nq ? r + step : nq, dense = whole->dense_rows - (nq - end);
        struct layer_job j = *whole;
        j.q += whole->a->there ? 0 : r * width;
        j.out += r * width;
        j.nq = end - r;
        j.nk = before + end;
        j.row0 = r;
        j.dense_rows = dense < 0 ? 0 : dense < j.nq ? dense : j.nq;
        j.share = (double)pairs_within(&all, r, end, 0, whole->nk) / pairs;
        rc = attend_rows(&j, err);
        if (rc)
            return rc;
    }
    return rc;
}

int layer_attn_attend(void *ctx, int layer, const float *q, int64_t nq, const struct nn_kv *kv,
                      int64_t nk, float *out, struct err *err)
{
    struct layer_attn *a = ctx;
    const struct attn_shape *c = &a->shape;
    int64_t step = a->decoding ? 0 : a->how->prefill_chunk;
    struct layer_job j = {.a = a,
                          .layer = layer,
                          .q = q,
                          .nq = nq,
                          .nk = nk,
                          .dense_rows = a->dense_rows,
                          .share = 1,
                          .kv = kv,
                          .out = out};

    a->stayed = false;
    if (a->there && layer_attn_is_dense(a, layer, nk))
        return err_set(err, ERR_RUN, "a layer that attends exactly was not left to the device");
    if (layer_attn_is_dense(a, layer, nk)) {
        if (!a->decoding)
            layer_attn_count_dense(a, layer);
        return nn_attention(q, kv, nq, nk, c->heads, 1 / sqrt(c->head_dim), c->causal, a->jobs, out,
                            NULL, err);
    }
    a->stayed = j.stays = layer_may_stay(&j);
    return step > 0 && step < nq ? attend_in_chunks(&j, step, err) : attend_rows(&j, err);
}

static bool exact_after_all(void *ctx, int layer, int64_t n)
{
    struct layer_attn *a = ctx;
    bool dense = layer_attn_is_dense(a, layer, n);
    if (dense)
        layer_attn_count_dense(a, layer);
    return dense;
}

static void set_there(void *ctx, const struct decoder_operands *there, int64_t n)
{
    struct layer_attn *a = ctx;
    a->there = there;
    a->there_tokens = n;
}

static bool stayed(void *ctx)
{
    return ((const struct layer_attn *)ctx)->stayed;
}

struct layer_attention layer_attn_own(struct layer_attn *a)
{
    return (struct layer_attention){a, layer_attn_attend, exact_after_all, set_there, stayed};
}
