/*
 * checkcu_select.c - every method's GPU selection against its CPU side on the same bf16 values: the
 * units that only one of them keeps are counted and must stay below 1 in 10^4 of the units with an
 * allowed pair, over all cases of a setting; a second launch must give the same bits. Masks of
 * methods that are exact (is_exact) must be the same pair by pair. Where all tokens are equal,
 * one-hot or tiny the scores are one number to the precision of a float, and scores of 1e4 carry an
 * error of 1e-3 there: rounding orders the units, and such differences are printed, but no failure.
 * An oracle that counts ties (core/rules.h) has as many as it has rows of units that differ, or
 * more, whatever the data.
 */
#include "tests/gpu/checkcu.h"

#include "core/mem.h"
#include "core/method_run.h"
#include "cuda/select/select.h"
#include "sim/blocks/blockpool.h"
#include "sim/blocks/exact.h"
#include "sim/blocks/quant.h"
#include "sim/registry.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const settings[] = {
    "spargeattn:theta=-0.1:tau=0.9",
    "spargeattn:tau=0.5",
    "spargeattn:arch=sm90:theta=0.3:tau=0.7",
    "spargeattn:profile=paper:theta=0.3:tau=0.7",
    "spargeattn:select=topk:topk=0.3:sink=1",
    "spargeattn:smooth_k=0:theta=0.2",
    "spargeattn:dense=1",
    "sampleattention",
    "sampleattention:block=64:chunks=4:alpha_c=0.8:alpha_s=0.7",
    "sampleattention:extend=centred:chunks=3:alpha_c=0.6",
    "sampleattention:merge=union:chunks=3:extend=cover1:alpha_s=0.5",
    "sampleattention:merge=mean:chunks=4:profile=safe:alpha_c=0.7",
    "sampleattention:profile=strict:alpha_c=0.3:alpha_s=0",
    "sampleattention:preset=internlm2-spd:block=64",
    "sampleattention:profile=v2",
    "sampleattention:profile=v2:alpha=0.5:rows=0.3:window=0.02:bottom=5",
    "xattention",
    "xattention:stride=8:tau=0.6:profile=clean",
    "xattention:stride=4:tau=0.3:chunk=256",
    "xattention:stride=64:profile=paper:norm=0.5",
    "xattention:tau=0.7:chunk=65536", /* rows of more masses than a warp has in registers */
    "flexprefill:min_budget=128",
    "flexprefill:gamma=0.7:tau=0.5:min_budget=0:block=64",
    /* Rows of nearly uniform maps sum to 1: gamma nb must not be whole, or rounding decides. */
    "flexprefill:gamma=0.55:tau=0.8:min_budget=0",
    "flexprefill:preset=api",
    "flexprefill:profile=frontier:preset=readme:min_budget=80",
    "flexprefill:profile=frontier",
    "flexprefill:profile=frontier:gamma=0.3:min_budget=80",
    "minference:pattern=block:top=3",
    "minference:pattern=block:profile=paper:top=20",
    "minference",
    "minference:pattern=vs:v=60:s=120",
    "minference:v=300:s=500:last_q=128:force_cols=0:force_dists=0",
    "minference:budget=0.2:last_q=40:min_v=4",
    "minference:v=80:s=150:last_q=300",
    "minference:mask=requested:v=100:s=300:last_q=64:force_cols=4:force_dists=10",
    "minference:preset=light",
    "minference:sparsity=0.5",
    "minference:sparsity=0.9:force_cols=2:force_dists=3",
    "minference:sparsity=0.3:mask=requested",
    "minference:sparsity=0.6:pattern=block",
    "fg-attn:refresh=1",
    "fg-attn:refresh=1:M=64:tau=2",
    "fg-attn:refresh=1:M=16:tau=8",
    "fg-attn:mode=pooled",
    "fg-attn:mode=pooled:M=48:c1=2",
    "fg-attn:mode=pooled:pool=literal:tau1=0.01:M=32",
    "fg-attn:mode=pooled:pool=topk:kappa=0.2:M=64",
    "fg-attn:refresh=1:M=64:width=16:tau=4",
    "fg-attn:mode=pooled:M=64:width=16:c1=3",
    "fg-attn:mode=pooled:M=48:width=64:c1=3",
    "fg-attn:mode=pooled:pool=topk:kappa=0.2:M=64:width=16",
    "sale:dense_below=0",
    "sale:dense_below=0:tau=0.05:local=256",
    "sale:dense_below=0:tau=0.3:sl_mask=none",
    "oracle",
    "oracle:alpha=0.5",
    "oracle:alpha=0.999:forced=window-70",
    "oracle:alpha=0.2:forced=sink-3",
    "oracle:kind=topk:k=10%",
    "oracle:kind=topk:k=77:forced=diag",
    "oracle:kind=topk:k=5:forced=window-9",
    "oracle:kind=block:unit=64x64:alpha=0.9",
    "oracle:kind=block:unit=128x1:alpha=0.8",
    "oracle:kind=block:unit=16x48:alpha=0.7:forced=diag",
    "oracle:kind=mean:alpha=0.6",
    "oracle:kind=mean:k=15%:forced=diag",
    "oracle:kind=block:unit=128x1:scope=head:alpha=0.8",
    "oracle:kind=block:unit=16x16:scope=head:k=25%:forced=sink-20",
    "hash-sparse",
    "hash-sparse:buckets=128:strict=1",
    "hash-sparse:buckets=6:proj_dir=axes",
    "qk-sparse",
    "qk-sparse:drop=0.8:drop_q=0.1",
    "hyperattention:min_len=64:block=32:samples=40",
    "hyperattention:min_len=0:block=16:samples=9:gray=inverse:projs=16",
    "hyperattention:min_len=100:block=300:samples=256:proj_dir=axes:projs=9",
    "hyperattention:min_len=1100:block=128:samples=0",
    "hyperattention",
    "longnet",
    "longnet:segments=40+300+1000:ratios=2+4+7",
    "sparse-transformer",
    "sparse-transformer:pattern=merged:stride=21",
    "oracle:kind=block:unit=32x300:alpha=0.6:forced=sink-400",
    "svg1:dense_layers=0:dense_steps=0",
    "svg1:dense_layers=0:dense_steps=0:profile=plain:target=0.6:rows=200",
    "svg1:dense_layers=0:dense_steps=0:trial=executed:sink=0:rows=7:target=0.9",
    "svg2:dense_layers=0:dense_steps=0:cold=1:qc=7:kc=20",
    "svg2:dense_layers=0:dense_steps=0:cold=1:qc=40:kc=100:top_p=0.6:iter_init=9",
    "chipmunk:dense_layers=0:norm=exact:delta=0:local_voxels=0",
    "chipmunk:dense_layers=0:profile=clean:delta=0:local_voxels=3:voxel=4x4x12:top_keys=0.3",
    "chipmunk:dense_layers=0:norm=exact:delta=0:local_voxels=0:local_1d=0.2:multiple=112",
    "vsa:sparsity=0.6",
    "vsa:sparsity=0.3:tile=4x8x8",
    "sla:topk=0.3",
    "sla:topk=0.5:block=128x64",
    "sla:topk=0.05:block=64x128",
    "draft:sparsity=0.6",
    "subblock:skip_first_steps=0:min_seq=0",
    "subblock:skip_first_steps=0:min_seq=0:sparsity=0.95:nq=1:nk=8",
    "sol:dense_layers=0:dense_steps=0",
    "sol:dense_layers=0:dense_steps=0:var=exact:tau=0.5:near=0:sink_from=70:sink_to=200",
    "moba:chunk=64:topk=3:dense_last=0",
    "moba:chunk=33:topk=9:dense_last=0",
    "nsa:block=32:top=6",
    "nsa:share=head:profile=fla:block=16:top=9",
    "nsa:profile=infllm:block=16:top=20:local=3:dense_below=0",
    "skip-softmax:lambda=0.3",
    "skip-softmax:lambda=1:unit=64x128",
    "skip-softmax:lambda=0.5:profile=calib",
};

/* Methods whose masks are the CPU's to the last bit, whatever the data: sums of products of bf16
 * are exact in double. */
static bool is_exact(const char *setting)
{
    static const char *const exact[] = {"hyperattention", "vsa", "sla", "moba"};
    for (size_t i = 0; i < sizeof exact / sizeof *exact; i++)
        if (strncmp(setting, exact[i], strlen(exact[i])) == 0)
            return true;
    return false;
}

struct tally {
    int64_t cases, units, differ; /* compared; units with an allowed pair */
    int64_t unlike;               /* cases whose second launch gave other bits */
    int64_t worst;                /* most differing units of a head */
    int64_t unsaid;               /* differing rows of units of oracles beyond their ties */
    int64_t by_data[DATA_COUNT];  /* differing units */
};

struct selection {
    const struct method_run *run;
    struct cu_case c;
    float *q, *k, *v;
    struct select_job job;
    int64_t *ptr[2];
    int32_t *col[2];
    struct prepared *heads;       /* [n_asked], owned; rules and data of the choices are theirs */
    struct accel_choice *choices; /* [n_asked], owned */
    int n_asked;                  /* all heads, or one for all */
};

/* A method that is about to choose. */
struct prepared {
    struct exact exact;
    struct method_ctx ctx;
    struct head_in in;
    void *state;
    struct rule rule;
};

/* Is the method for video alone? Its choice may be something else than the mask of the call. */
static bool is_video(const struct selection *s)
{
    return !(s->run->method->flags & METHOD_CAUSAL);
}

/* Do heads have data of their own beside the rule? */
static bool by_head(const struct selection *s)
{
    return is_video(s) || strcmp(s->run->method->name, "hyperattention") == 0;
}

/* ---- the CPU side --------------------------------------------------------------------------- */

static struct attn_in view(const struct selection *s, int head)
{
    const struct attn_problem *p = &s->c.problem;
    int kv = head * p->kv_heads / p->heads;
    return (struct attn_in){.nq = p->nq,
                            .nk = p->nk,
                            .d = p->d,
                            .dv = p->d,
                            .q = s->q + head * p->nq * p->d,
                            .k = s->k + kv * p->nk * p->d,
                            .v = s->v + kv * p->nk * p->d,
                            .scale = p->scale,
                            .causal = p->causal};
}

/* A video, and the rest as text behind it: little enough for every width of a band. */
static struct geometry geometry_of(int64_t n)
{
    struct geometry g = {.t = n < 1000 ? 2 : 4, .w = n < 1000 ? 4 : 16};
    g.h = n / (g.t * g.w);
    g.text = n % (g.t * g.w);
    g.text_place = g.text ? 2 : 0;
    return g.h ? g : (struct geometry){0};
}

/* The queries of a head that shares the keys; queries_from: those of the first of them. */
static int queries_of(const struct head_in *in, int g, float *q, struct err *err)
{
    int64_t n = in->x.nq * in->x.d;
    memcpy(q, (const float *)in->queries_from + g * n, (size_t)n * sizeof *q);
    return 0;
}

static int prepare_head(const struct selection *s, int head, int step, struct carry *carry,
                        struct prepared *p, struct err *err)
{
    int kv = head * s->c.problem.kv_heads / s->c.problem.heads;
    p->ctx = (struct method_ctx){.seed = s->c.seed, .carry = carry};
    p->in = (struct head_in){.x = view(s, head),
                             .src_dtype = DT_BF16,
                             .branch = "main",
                             .head = by_head(s) ? head : s->c.problem.heads - 1,
                             .kv_head = by_head(s) ? kv : s->c.problem.kv_heads - 1,
                             .n_heads = s->c.problem.heads,
                             .n_kv_heads = s->c.problem.kv_heads,
                             .n_layers = 1,
                             .step = step,
                             .n_steps = is_video(s) ? 10 : 0,
                             .timestep = NAN,
                             .exact = &p->exact,
                             .queries = queries_of};
    p->in.queries_from = view(s, kv * (s->c.problem.heads / s->c.problem.kv_heads)).q;
    if (is_video(s))
        p->in.geom = geometry_of(p->in.x.nq);
    exact_init(&p->exact, &p->in.x, PREC_F64);
    return method_prepare(s->run->method, &p->ctx, s->run->params, &p->in, &p->state, err);
}

static void prepared_free(const struct selection *s, struct prepared *p)
{
    method_release(s->run->method, p->state);
    exact_free(&p->exact);
}

/* The mask of all rows of a head. */
static int reference_mask(const struct selection *s, int head, struct mask *m, struct err *err)
{
    struct prepared p = {0};
    int rc = prepare_head(s, head, 0, NULL, &p, err);
    if (!rc)
        rc = s->run->method->select(p.state, 0, p.in.x.nq, m, err);
    prepared_free(s, &p);
    return rc;
}

/* ---- methods for video ---------------------------------------------------------------------- */

/* The mask that a head attends to, in the step of the choice or, if that is dense, in the next one:
 * from the device's answer or, where that is NULL, as the method chooses. */
static int video_mask(const struct selection *s, int head, const struct mask *answer,
                      const struct accel_own *own, struct mask *m, struct err *err)
{
    const struct method *me = s->run->method;
    struct carry carry = {0};
    struct prepared p = {0};
    int rc = 0;

    for (int step = 1; step < 3; step++) {
        p = (struct prepared){0};
        if ((rc = prepare_head(s, head, step, &carry, &p, err)) != 0)
            goto out;
        if (answer && step == 1)
            TRY(me->device.take(p.state, &(struct device_choice){.lists = answer, .own = own},
                                err));
        mask_free(m);
        TRY(me->select(p.state, 0, p.in.x.nq, m, err));
        prepared_free(s, &p);
        if (m->form != MASK_FULL)
            break;
    }
    p = (struct prepared){0};
out:
    prepared_free(s, &p);
    if (carry.free)
        carry.free(carry.data);
    return rc;
}

/* What the device chose for a head, as a mask over it. */
static int answer_of(const struct selection *s, int head, struct mask *m, struct err *err)
{
    const struct attn_problem *p = &s->c.problem;
    const struct select_lists *l = &s->job.lists;
    PASS_ON(mask_lists_init(m, p->nq, p->nk, 0, p->nq, p->causal, l->bq, l->bk, err));
    for (int64_t g = 0; g < l->groups; g++) {
        const int64_t *row = s->ptr[0] + head * l->groups + g;
        PASS_ON(mask_lists_add_all(m, g, s->col[0] + row[0], row[1] - row[0], err));
    }
    mask_lists_finish(m);
    return 0;
}

/* Units in which two masks of a head differ; all of them, 1 at least, where their forms do. */
static void count_unlike(const struct mask *a, const struct mask *b, struct tally *t)
{
    bool bands = a->form == MASK_BAND && b->form == MASK_BAND;
    if (a->form == MASK_LISTS && b->form == MASK_LISTS && a->bq == b->bq && a->bk == b->bk) {
        t->units += a->ngroups * ((a->nk + a->bk - 1) / a->bk);
        t->differ += mask_lists_differ(a, b);
        return;
    }
    t->units++;
    t->differ += a->form != b->form || a->form == MASK_LISTS ||
                 (bands && (a->sink != b->sink || a->window != b->window));
}

static int compare_video(struct gpu *g, const struct selection *s, int head, struct tally *t,
                         struct err *err)
{
    struct mask answer = {0}, adopted = {0}, own = {0};
    struct accel_own extra = {0};
    int64_t before = t->differ;
    int rc = 0;

    TRY(answer_of(s, head, &answer, err));
    TRY(select_fetch_own(g, &s->job, head, &extra, err));
    TRY(video_mask(s, head, &answer, &extra, &adopted, err));
    TRY(video_mask(s, head, NULL, NULL, &own, err));
    count_unlike(&adopted, &own, t);
    t->by_data[s->c.data] += t->differ - before;
    if (t->differ - before > t->worst)
        t->worst = t->differ - before;
    if (s->c.data != DATA_NORMAL && s->c.data != DATA_OFFSET && s->c.data != DATA_SMOOTH)
        t->differ = before;
out:
    mask_free(&answer);
    mask_free(&adopted);
    mask_free(&own);
    free(extra.data);
    return rc;
}

/* ---- rules ---------------------------------------------------------------------------------- */

static void forget_heads(struct selection *s)
{
    for (int h = 0; s->heads && h < s->n_asked; h++) {
        struct carry *carry = s->heads[h].ctx.carry;
        prepared_free(s, s->heads + h);
        if (carry && carry->free)
            carry->free(carry->data);
        free(carry);
    }
    free(s->heads);
    free(s->choices);
    s->heads = NULL;
    s->choices = NULL;
}

/* The rule by which a head is chosen; METHOD_SKIP where nothing is chosen. */
static int ask_head(struct selection *s, int head, struct err *err)
{
    const struct method *me = s->run->method;
    struct prepared *p = s->heads + head;
    struct carry *carry = NULL;
    char why[160];

    if (by_head(s))
        PASS_ON(mem_zalloc(&carry, 1, sizeof *carry, "state between steps", err));
    p->ctx.carry = carry;
    PASS_ON(prepare_head(s, head, is_video(s), carry, p, err));
    enum mask_source source = method_origin(me, p->state).source;
    if (source == SOURCE_REUSED || (by_head(s) && source != SOURCE_OWN) ||
        !me->device.rule(p->state, &p->rule, why))
        return METHOD_SKIP;
    s->choices[head].rule = &p->rule.of;
    s->choices[head].given = p->rule.data;
    return 0;
}

static int ask_heads(struct selection *s, struct err *err)
{
    s->n_asked = by_head(s) ? s->c.problem.heads : 1;
    PASS_ON(mem_zalloc(&s->heads, s->n_asked, sizeof *s->heads, "heads", err));
    PASS_ON(mem_zalloc(&s->choices, s->n_asked, sizeof *s->choices, "heads", err));
    for (int h = 0; h < s->n_asked; h++)
        PASS_ON(ask_head(s, h, err));
    return 0;
}

/* ---- comparison ----------------------------------------------------------------------------- */

static int64_t allowed_units(const struct mask *m, int64_t g)
{
    int64_t last = (g + 1) * m->bq < m->nq ? (g + 1) * m->bq : m->nq;
    return (mask_limit(m, last - 1) + m->bk - 1) / m->bk;
}

/* `rows` rows of units of an oracle's head differ: does it say so? */
static int check_ties(struct gpu *g, const struct selection *s, int head, int64_t rows,
                      struct tally *t, struct err *err)
{
    struct accel_own own = {0};
    int32_t ties = 0;
    int rc = 0;
    if (strcmp(s->run->method->name, "oracle") != 0 || !s->job.lists.own)
        return 0;
    TRY(select_fetch_own(g, &s->job, head, &own, err));
    TRY(accel_own_check(&own, sizeof ties, err));
    memcpy(&ties, own.data, sizeof ties);
    t->unsaid += rows > ties ? rows - ties : 0;
out:
    free(own.data);
    return rc;
}

static int compare_masks(struct gpu *gpu, const struct selection *s, int head, const struct mask *m,
                         struct tally *t, struct err *err)
{
    const struct select_lists *l = &s->job.lists;
    int64_t before = t->differ, rows = 0;
    if (m->form != MASK_LISTS || m->bq != l->bq || m->bk != l->bk || m->ngroups != l->groups)
        return err_set(err, ERR_RUN, "the CPU keeps units of %lld x %lld, the GPU of %lld x %lld",
                       (long long)m->bq, (long long)m->bk, (long long)l->bq, (long long)l->bk);
    for (int64_t g = 0; g < m->ngroups; g++) {
        const int64_t *row = s->ptr[0] + head * l->groups + g;
        t->units += allowed_units(m, g);
        int64_t differ = list_differ(s->col[0] + row[0], row[1] - row[0], m->col + m->ptr[g],
                                     m->ptr[g + 1] - m->ptr[g]);
        t->differ += differ;
        rows += differ > 0;
    }
    if (t->differ - before > t->worst)
        t->worst = t->differ - before;
    t->by_data[s->c.data] += t->differ - before;
    bool counts = s->c.data == DATA_NORMAL || s->c.data == DATA_OFFSET ||
                  s->c.data == DATA_SMOOTH ||
                  (s->c.data == DATA_SIGNS && strcmp(s->run->method->name, "sale") == 0) ||
                  is_exact(s->run->method->name);
    if (!counts)
        t->differ = before;
    return check_ties(gpu, s, head, rows, t, err);
}

static bool same_bits(const struct selection *s)
{
    int64_t rows = s->job.lists.rows, n = s->ptr[0][rows];
    return memcmp(s->ptr[0], s->ptr[1], (size_t)(rows + 1) * 8) == 0 &&
           (n == 0 || memcmp(s->col[0], s->col[1], (size_t)n * 4) == 0);
}

static int launch_and_fetch(struct gpu *g, struct selection *s, int i, struct err *err)
{
    const struct select_method *me = s->job.method;
    free(s->ptr[i]);
    free(s->col[i]);
    s->ptr[i] = NULL;
    s->col[i] = NULL;
    PASS_ON(me->launch(g, &s->job, err));
    return select_fetch_rows(g, &s->job, 0, s->job.lists.rows, &s->ptr[i], &s->col[i], err);
}

/* ---- cases ---------------------------------------------------------------------------------- */

static int upload(struct gpu *g, struct selection *s, struct select_problem *q, struct err *err)
{
    const struct attn_problem *p = &s->c.problem;
    PASS_ON(cu_make_tensor(&s->c, 0, p->heads, p->nq, &s->q, err));
    PASS_ON(cu_make_tensor(&s->c, 1, p->kv_heads, p->nk, &s->k, err));
    PASS_ON(cu_make_tensor(&s->c, 2, p->kv_heads, p->nk, &s->v, err));
    PASS_ON(cu_put(g, DT_BF16, s->q, p->heads * p->nq * p->d, &q->q, err));
    PASS_ON(cu_put(g, DT_BF16, s->k, p->kv_heads * p->nk * p->d, &q->k, err));
    return cu_put(g, DT_BF16, s->v, p->kv_heads * p->nk * p->d, &q->v, err);
}

/* The GPU side says that nothing is to be chosen: so does the CPU's? */
static int check_dense(const struct selection *s, struct tally *t, struct err *err)
{
    for (int h = 0; h < s->c.problem.heads; h++) {
        struct mask m = {0};
        int rc = reference_mask(s, h, &m, err);
        if (!rc && m.form != MASK_FULL)
            rc = err_set(err, ERR_RUN, "the GPU side takes the mask for full, the CPU does not");
        mask_free(&m);
        if (rc)
            return rc;
    }
    t->cases++;
    return 0;
}

/* METHOD_SKIP where the method, or its GPU side, does not apply. */
static int run_case(struct gpu *g, struct selection *s, struct tally *t, struct err *err)
{
    const struct attn_problem *p = &s->c.problem;
    const struct select_method *me = select_find(s->run->method->name);
    struct select_problem q = {.heads = p->heads,
                               .kv_heads = p->kv_heads,
                               .d = p->d,
                               .nq = p->nq,
                               .nk = p->nk,
                               .scale = p->scale,
                               .causal = p->causal};
    char why[160];
    int rc = 0;

    if (!me)
        return METHOD_SKIP;
    TRY(upload(g, s, &q, err));
    if ((rc = ask_heads(s, err)) != 0)
        goto out;
    q.choices = s->choices;
    q.n_choices = s->n_asked;
    if (me->dense && me->dense(&q)) {
        TRY(check_dense(s, t, err));
        goto out;
    }
    if (!me->fits(&q, why)) {
        rc = METHOD_SKIP;
        goto out;
    }
    TRY(select_job_init(g, me, &q, &s->job, err));
    TRY(launch_and_fetch(g, s, 0, err));
    if (!s->c.once) {
        TRY(launch_and_fetch(g, s, 1, err));
        t->unlike += !same_bits(s);
    }
    for (int h = 0; h < p->heads; h++) {
        struct mask m = {0};
        if (is_video(s)) {
            TRY(compare_video(g, s, h, t, err));
            continue;
        }
        rc = reference_mask(s, h, &m, err);
        if (!rc)
            rc = compare_masks(g, s, h, &m, t, err);
        mask_free(&m);
        if (rc)
            goto out;
    }
    t->cases++;
out:
    return rc;
}

/* Nonzero after an error. */
static int check_case(struct gpu *g, const struct method_run *run, struct cu_case c,
                      struct tally *t, struct err *err)
{
    struct selection s = {.run = run, .c = c};
    struct gpu_mark mark = gpu_mark(g);
    unsigned need = c.problem.causal ? METHOD_CAUSAL : METHOD_BIDIRECTIONAL;
    int rc = METHOD_SKIP;

    s.c.seed = (uint64_t)(c.problem.nq * 3 + c.problem.d + c.data);
    s.c.problem.scale = c.problem.d == 64 ? 0.125 : 0.08838834764831845;
    if (run->method->flags & need)
        rc = run_case(g, &s, t, err);
    select_job_free(&s.job);
    forget_heads(&s);
    for (int i = 0; i < 2; i++) {
        free(s.ptr[i]);
        free(s.col[i]);
    }
    free(s.q);
    free(s.k);
    free(s.v);
    gpu_release(g, mark);
    if (rc < 0)
        err_prefix(err, "%lld x %lld, d %d, data %s", (long long)c.problem.nq,
                   (long long)c.problem.nk, c.problem.d, cu_data_names[c.data]);
    return rc == METHOD_SKIP ? 0 : rc;
}

/* Is the setting of the method of the one before, and of the same kind of its masks? */
static bool like_before(size_t i)
{
    static const char *const kinds[] = {"kind=", "pattern=", "mode="};
    const char *a = settings[i], *b = i ? settings[i - 1] : "";
    size_t n = strcspn(a, ":");
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        if (a[n] && strncmp(a + n + 1, kinds[k], strlen(kinds[k])) == 0) {
            n += 1 + strcspn(a + n + 1, ":");
            break;
        }
    return strncmp(a, b, n) == 0;
}

/* Every third of the small cases; in brief, of a setting like the one before (`like`), only those
 * of 129 and 300 tokens. */
static int check_setting(struct gpu *g, const struct method_run *run,
                         const struct cu_choice *choice, bool like, struct tally *t,
                         struct err *err)
{
    static const int64_t shapes[][2] = {
        {1, 1},       {63, 63},     {64, 64},     {65, 65},     {127, 127}, {128, 128},
        {129, 129},   {300, 300},   {77, 1000},   {640, 1100},  {257, 400}, {1000, 1000},
        {2300, 2300}, {2048, 2048}, {1500, 4000}, {4097, 4097},
    };
    static const int heads[][2] = {{1, 1}, {4, 1}, {2, 2}};
    bool small = choice->small, little = choice->brief && like;
    int n = little ? 8 : small ? 11 : (int)(sizeof shapes / sizeof *shapes);
    for (int i = little ? 13 : 0; i < 2 * n; i += small && !little ? 3 : 1) {
        int h = i % 3, causal = i % 2;
        struct cu_case c = {.problem = {heads[h][0], heads[h][1], i / 2 % 2 ? 64 : 128,
                                        shapes[i / 2][0], shapes[i / 2][1], 0, causal, 0},
                            .once = choice->brief,
                            .data = i % 4 < 2 ? DATA_NORMAL : DATA_SMOOTH};
        PASS_ON(check_case(g, run, c, t, err));
    }
    if (t->cases == 0) { /* a video of whole frames, where the method takes no other */
        struct cu_case c = {
            .problem = {2, 1, 64, 1024, 1024, 0, 0, 0}, .once = choice->brief, .data = DATA_NORMAL};
        PASS_ON(check_case(g, run, c, t, err));
    }
    if (!small) { /* more heads than multiprocessors: some thread blocks have more than one tile */
        struct cu_case c = {.problem = {160, 40, 64, 300, 300, 0, 1, 0}, .data = DATA_NORMAL};
        PASS_ON(check_case(g, run, c, t, err));
    }
    for (int i = 0; i < 2 * DATA_COUNT && !small; i++) {
        struct cu_case c = {.problem = {2, 1, i % 2 ? 64 : 128, 1536, 1536, 0, i / 2 % 2 == 0, 0},
                            .data = (enum cu_data)(i / 2)};
        PASS_ON(check_case(g, run, c, t, err));
        c.problem.causal = !c.problem.causal;
        PASS_ON(check_case(g, run, c, t, err));
    }
    return 0;
}

int check_selections(struct gpu *g, struct cu_choice *choice)
{
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        struct method_run *runs = NULL;
        struct tally t = {0};
        struct err err = {0};
        int64_t n = 0;
        if (!cu_chosen(choice, settings[i]))
            continue;
        int rc = method_runs_parse(sim_methods, settings[i], &runs, &n, &err);
        if (!rc)
            rc = check_setting(g, runs, choice, like_before(i), &t, &err);
        method_runs_free(runs, n);
        bool ok = rc == 0 && t.cases > 0 && !t.unlike && !t.unsaid && t.differ * 10000 <= t.units &&
                  !(t.differ && is_exact(settings[i]));
        cu_checks += t.cases > 0 ? t.cases : 1;
        cu_failures += !ok;
        printf("  %-5s %s: %lld cases, %lld of %lld units differ (at most %lld in a head)",
               ok ? "ok" : "FAIL", settings[i], (long long)t.cases, (long long)t.differ,
               (long long)t.units, (long long)t.worst);
        for (int d = 0; d < DATA_COUNT; d++)
            if (t.by_data[d])
                printf(", %lld with data %s", (long long)t.by_data[d], cu_data_names[d]);
        if (t.unsaid)
            printf(", %lld rows differ beside ties", (long long)t.unsaid);
        printf("%s%s%s\n", t.unlike ? ", not repeatable" : "", rc ? ": " : "", rc ? err.msg : "");
        fflush(stdout);
        if (rc && cudaGetLastError() != cudaSuccess)
            return 1;
    }
    return 0;
}
