/*
 * decodelayer.c - the flow of a layer (decodelayer.h): blocks of steps, and in each block
 *
 *   score      scores, dense outputs and heavy keys of every head                threads, by KV
 * head choose     a setting with state: append, step, evict, step after step others, and `then=`:
 * the set of each row                          threads, by cache measure    attention over the set,
 * metrics                                   threads, by cache
 */
#include "sim/decode/decodelayer.h"

#include "core/intmath.h"
#include "core/mem.h"
#include "core/method_run.h"
#include "core/pool.h"
#include "sim/decode/lane.h"
#include "sim/decode/stepselect.h"
#include "sim/registry.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Steps of a block: as many as have this many scores, over all heads. */
#define BLOCK_SCORES ((int64_t)70 << 20)
#define BLOCK_STEPS 64

/* The exact attention of a head in the steps at hand. */
struct truth {
    const double *out, *lse;
    int32_t hot[BLOCK_STEPS][DECODE_HOT];
    double *mass; /* [nk], owned: sum over all steps so far; NULL where nobody evicts */
};

/* A cache in the steps at hand. */
struct held {
    struct keysets sets; /* of each step; none where all keys are held */
    double *n;           /* [all steps], owned: keys during attention */
    double union_keys;   /* read by the heads together, summed over steps */
    int64_t prompt;      /* keys of the prompt that are left after it */
};

struct setting {
    const struct sim_call *run;
    const struct method *method; /* that evicts, of the heads whose lanes are cached */
    const struct sim_cell *cell; /* the first of them */
    struct lane *lanes;          /* [n], owned */
    struct step_state *select;   /* [n], owned: of a method without hooks, or of `then` */
    bool evicts, late; /* has hooks of the decode phase; evicted a key of the prompt later */
    struct decode_layer layer; /* caches [n / share], owned */
    struct held *held;         /* [n / share], owned */
    void *state;
    struct method_run *then;      /* owned; NULL: the whole cache is read */
    const struct method_ctx *why; /* its reason to skip the layer */
    struct method_ctx *then_ctx;  /* [n], owned */
};

struct decode {
    const struct decode_call *c;
    const struct head_in **heads; /* [n], owned */
    struct truth *truth;          /* [n], owned */
    struct exact **exact;         /* [n], owned */
    double **score;               /* [n][steps][stride], owned */
    int64_t stride;
    struct setting *settings; /* [n_runs], owned */
    struct row_work *work;    /* [jobs], owned */
    int64_t block, t0, steps; /* steps of a full block; the block at hand */
    struct setting *now;
};

static int64_t row_of(const struct decode *d, int64_t step)
{
    return d->c->phase.window + step;
}

static struct step step_at(const struct decode *d, int h, int64_t i)
{
    const struct truth *t = d->truth + h;
    const struct attn_in *x = &d->heads[h]->x;
    int64_t row = row_of(d, d->t0 + i);
    return (struct step){.step = d->t0 + i,
                         .first = attn_first(x, row),
                         .limit = attn_limit(x, row),
                         .score = d->score[h] + i * d->stride,
                         .out = t->out + i * x->dv,
                         .lse = t->lse + i,
                         .hot = t->hot[i]};
}

/* ---- exact attention ------------------------------------------------------------------------ */

static void add_mass(const struct step *s, double *z, double *mass)
{
    int64_t n = s->limit - s->first;
    memcpy(z, s->score + s->first, (size_t)n * sizeof *z);
    exp_sum_f64(z, n, *s->lse);
    for (int64_t j = 0; j < n; j++)
        mass[s->first + j] += z[j];
}

/* The heads of a KV head. */
static int score_group(void *self, int64_t c, int worker, struct err *err)
{
    struct decode *d = self;
    int group = d->c->group, first = (int)c * group;
    int64_t row0 = row_of(d, d->t0), row1 = row0 + d->steps;

    PASS_ON(exact_score(d->exact + first, group, row0, row1, d->score + first, d->stride, err));
    for (int h = first; h < first + group; h++) {
        struct truth *t = d->truth + h;
        PASS_ON(exact_out(d->exact[h], row0, row1, &t->out, err));
        PASS_ON(exact_lse(d->exact[h], row0, row1, &t->lse, err));
        for (int64_t i = 0; t->mass && i < d->steps; i++) {
            struct step s = step_at(d, h, i);
            add_mass(&s, d->work[worker].z, t->mass);
            PASS_ON(heavy_keys(&s, d->work + worker, t->hot[i], err));
        }
    }
    return 0;
}

/* ---- caches --------------------------------------------------------------------------------- */

static int n_caches(const struct setting *s)
{
    return s->layer.n / s->layer.share;
}

static int fill_prompt(const struct decode *d, struct setting *s, struct err *err)
{
    int64_t nk = d->heads[0]->x.nk;
    PASS_ON(mem_zalloc(&s->layer.caches, n_caches(s), sizeof *s->layer.caches, "caches", err));
    for (int c = 0; c < n_caches(s); c++) {
        struct kv_cache *k = s->layer.caches + c;
        PASS_ON(mem_alloc(&k->at, nk, sizeof *k->at, "positions of a cache", err));
        PASS_ON(mem_zalloc(&k->drop, nk, sizeof *k->drop, "evicted keys", err));
        for (k->n = 0; k->n < d->c->phase.from; k->n++)
            k->at[k->n] = (int32_t)k->n;
    }
    return 0;
}

/* Take out what the method dropped. */
static void evict(struct decode *d, struct setting *s)
{
    for (int c = 0; c < n_caches(s); c++) {
        struct kv_cache *k = s->layer.caches + c;
        int64_t n = 0;
        for (int64_t i = 0; i < k->n; i++) {
            s->late |= k->drop[i] && s->held[c].prompt > 0 && k->at[i] < d->c->phase.from;
            if (!k->drop[i])
                k->at[n++] = k->at[i];
            k->drop[i] = false;
        }
        k->n = n;
    }
}

static int append_and_hold(struct decode *d, struct setting *s, int64_t step, struct err *err)
{
    for (int c = 0; c < n_caches(s); c++) {
        struct kv_cache *k = s->layer.caches + c;
        k->at[k->n++] = (int32_t)(d->c->phase.from + step);
        s->held[c].n[step] = (double)k->n;
        PASS_ON(keysets_add_positions(&s->held[c].sets, k->at, k->n, err));
    }
    return 0;
}

/* The steps of the block for a method with state. */
static int walk(struct decode *d, struct setting *s, struct err *err)
{
    OWN(free_at) const double **score = NULL;
    PASS_ON(mem_alloc(&score, d->c->n, sizeof *score, "scores of a step", err));
    for (int64_t i = 0; i < d->steps; i++) {
        PASS_ON(append_and_hold(d, s, d->t0 + i, err));
        for (int h = 0; h < d->c->n; h++)
            score[h] = d->score[h] + i * d->stride;
        if (!s->method->decode.step)
            continue;
        PASS_ON(s->method->decode.step(s->state, &s->layer, row_of(d, d->t0 + i), score, err));
        evict(d, s);
    }
    return 0;
}

/* ---- choosing and measuring ----------------------------------------------------------------- */

static void lane_ends(struct lane *l, const struct sim_cell *cell, int rc)
{
    l->off = true;
    if (rc != METHOD_SKIP)
        return;
    l->out->record->status = RECORD_SKIP;
    record_text(l->out->record, &l->out->record->reason, "%s", cell->ctx->skip);
}

/* Keys and values of a cache at a step. */
static void gather(const struct attn_in *x, struct keyset held, struct cached_kv *kv, int32_t *at)
{
    kv->n = keyset_list(held, 0, x->nk, false, at);
    kv->at = at;
    for (int64_t i = 0; i < kv->n; i++) {
        memcpy(kv->k + i * x->d, x->k + at[i] * (int64_t)x->d, (size_t)x->d * sizeof *kv->k);
        memcpy(kv->v + i * x->dv, x->v + at[i] * (int64_t)x->dv, (size_t)x->dv * sizeof *kv->v);
    }
}

/* The sets that the heads over cache c choose in the steps [i0, i1) of the block. */
static void choose_rows(struct decode *d, const struct setting *s, int c, int64_t i0, int64_t i1,
                        const struct cached_kv *kv)
{
    for (int h = c * s->layer.share; h < (c + 1) * s->layer.share; h++) {
        struct lane *l = s->lanes + h;
        struct sim_cell cell = *l->cell;
        if (l->off || (l->cached && !s->then))
            continue;
        if (l->cached) {
            cell.method = s->then->method;
            cell.params = s->then->params;
            cell.ctx = s->then_ctx + h;
        }
        int rc = i0 + d->t0 == 0 ? sim_admits(&cell) : 0;
        if (!rc)
            rc = step_select(&cell, d->heads + h / d->c->group * d->c->group, s->select + h,
                             row_of(d, d->t0 + i0), row_of(d, d->t0 + i1), l->cached ? kv : NULL,
                             &l->kept, &l->out->err);
        if (rc)
            lane_ends(l, &cell, rc);
    }
}

/* at [nk]: scratch. */
static int choose(struct decode *d, const struct setting *s, int c, int32_t *at, struct err *err)
{
    const struct attn_in *x = &d->heads[c * s->layer.share]->x;
    struct cached_kv kv = {.k = NULL};
    int rc = 0;
    for (int h = c * s->layer.share; h < (c + 1) * s->layer.share; h++)
        keysets_clear(&s->lanes[h].kept);
    if (!s->then) {
        choose_rows(d, s, c, 0, d->steps, NULL);
        goto out;
    }
    TRY(mem_alloc(&kv.k, x->nk * x->d, sizeof *kv.k, "keys of a cache", err));
    TRY(mem_alloc(&kv.v, x->nk * x->dv, sizeof *kv.v, "values of a cache", err));
    for (int64_t i = 0; i < d->steps; i++) {
        gather(x, keysets_at(&s->held[c].sets, i), &kv, at);
        choose_rows(d, s, c, i, i + 1, &kv);
    }
out:
    free(kv.k);
    free(kv.v);
    return rc;
}

static struct keyset held_at(const struct setting *s, int h, int64_t i)
{
    return s->lanes[h].cached ? keysets_at(&s->held[h / s->layer.share].sets, i)
                              : (struct keyset){NULL, 0};
}

static struct keyset kept_at(const struct setting *s, int h, int64_t i)
{
    return s->lanes[h].cached && !s->then ? held_at(s, h, i) : keysets_at(&s->lanes[h].kept, i);
}

/* Keys that the heads of a cache read in step i, each once. */
static int64_t union_size(const struct decode *d, const struct setting *s, int c, int64_t i,
                          bool *mark)
{
    int64_t n = 0, limit = 0;
    int first = c * s->layer.share, end = first + s->layer.share;
    for (int h = first; h < end; h++) {
        struct keyset k = s->lanes[h].off ? (struct keyset){NULL, 0} : kept_at(s, h, i);
        for (int64_t e = 0; e < k.n; e++) {
            memset(mark + k.s[e].lo, 1, (size_t)(k.s[e].hi - k.s[e].lo));
            limit = MAX(limit, k.s[e].hi);
        }
    }
    for (int64_t j = 0; j < limit; j++)
        n += mark[j];
    memset(mark, 0, (size_t)limit);
    return n;
}

static int measure_lane(struct decode *d, const struct setting *s, int h, struct row_work *w,
                        struct err *err)
{
    for (int64_t i = 0, n; i < d->steps; i += n) {
        struct step at[LANE_STEPS];
        for (n = 0; n < MIN(LANE_STEPS, d->steps - i); n++) {
            at[n] = step_at(d, h, i + n);
            at[n].kept = kept_at(s, h, i + n);
            at[n].held = held_at(s, h, i + n);
        }
        PASS_ON(lane_steps(s->lanes + h, at, (int)n, w, err));
    }
    return 0;
}

/* Choose and measure the heads of one cache. */
static int do_cache(void *self, int64_t c, int worker, struct err *err)
{
    struct decode *d = self;
    struct setting *s = d->now;
    OWN(free_at) bool *mark = NULL;
    PASS_ON(choose(d, s, (int)c, d->work[worker].at, err));
    PASS_ON(mem_zalloc(&mark, d->heads[0]->x.nk, sizeof *mark, "keys that are read", err));
    for (int64_t i = 0; i < d->steps; i++)
        s->held[c].union_keys += (double)union_size(d, s, (int)c, i, mark);
    for (int h = (int)c * s->layer.share; h < ((int)c + 1) * s->layer.share; h++)
        if (!s->lanes[h].off && measure_lane(d, s, h, d->work + worker, &s->lanes[h].out->err))
            s->lanes[h].off = true;
    return 0;
}

/* ---- settings ------------------------------------------------------------------------------- */

/* A skip or an error of all heads. */
static void end_setting(struct setting *s, int rc, const struct err *err)
{
    for (int h = 0; h < s->layer.n; h++) {
        struct lane *l = s->lanes + h;
        if (l->off)
            continue;
        if (rc == METHOD_SKIP && s->why != l->cell->ctx)
            memcpy(l->cell->ctx->skip, s->why->skip, sizeof s->why->skip);
        else if (rc != METHOD_SKIP)
            l->out->err = *err;
        lane_ends(l, l->cell, rc);
    }
}

/* "quest+budget=64": the method that chooses among the keys of a cache. */
static int open_then(struct setting *s, const char *text, struct err *err)
{
    OWN(buf_free) struct buf b = {0};
    int n = s->layer.n;
    for (const char *c = text; *c; c++)
        buf_printf(&b, "%c", *c == '+' ? ':' : *c);
    PASS_ON(buf_check(&b, "then", err));
    PASS_ON(method_setting_parse(sim_methods, buf_str(&b), NULL, &s->then, err));
    if (method_decodes(s->then->method, s->then->params))
        return err_set(err, ERR_USAGE,
                       "then=%s: a method that selects keys was expected, not one that evicts",
                       text);
    PASS_ON(mem_zalloc(&s->then_ctx, n, sizeof *s->then_ctx, "settings", err));
    for (int h = 0; h < n; h++)
        s->then_ctx[h].seed = s->run->cells[h].ctx->seed;
    return 0;
}

/* State and caches of a method that has them, after the prompt. */
static int begin(struct decode *d, struct setting *s, struct err *err)
{
    const struct method_decode *m = &s->method->decode;
    const struct sim_cell *cell = s->cell;
    const char *then = m->then ? m->then(cell->params) : NULL;
    if (m->own_caches && m->own_caches(cell->params))
        s->layer.share = 1;
    if (then && *then)
        PASS_ON(open_then(s, then, err));
    PASS_ON(fill_prompt(d, s, err));
    for (int h = 0; h < d->c->n; h++) {
        s->why = s->run->cells[h].ctx;
        if (s->lanes[h].cached && s->run->cells[h].method != s->method)
            PASS_ON(method_skip(cell->ctx, "heads of a layer with different evictions"));
        if (s->lanes[h].cached)
            PASS_ON(sim_admits(s->run->cells + h));
    }
    s->why = cell->ctx;
    PASS_ON(mem_zalloc(&s->state, 1, s->method->state_size, "state of a method", err));
    PASS_ON(m->begin(cell->ctx, &s->layer, s->state, err));
    evict(d, s);
    for (int c = 0; c < n_caches(s); c++)
        s->held[c].prompt = s->layer.caches[c].n;
    return 0;
}

static int setting_init(struct decode *d, struct setting *s, const struct sim_call *run,
                        struct err *err)
{
    int n = d->c->n;
    const void **params = NULL;
    s->run = run;
    s->layer = (struct decode_layer){.heads = d->heads,
                                     .col_sum = d->c->col_sum,
                                     .n = n,
                                     .share = d->c->group,
                                     .from = d->c->phase.window,
                                     .prompt = d->c->phase.from};
    PASS_ON(mem_zalloc(&s->lanes, n, sizeof *s->lanes, "heads", err));
    PASS_ON(mem_zalloc(&s->held, n, sizeof *s->held, "caches", err));
    PASS_ON(mem_zalloc(&s->select, n, sizeof *s->select, "heads", err));
    PASS_ON(mem_alloc(&params, n, sizeof *params, "parameters", err));
    s->layer.params = params;
    for (int h = 0; h < n; h++) {
        PASS_ON(lane_init(s->lanes + h, run->cells + h, run->heads + h, d->c->phase.steps, err));
        if (s->lanes[h].cached && !s->evicts) {
            s->evicts = true;
            s->cell = run->cells + h;
            s->method = s->cell->method;
        }
        params[h] = s->lanes[h].cached ? run->cells[h].params : NULL;
        PASS_ON(mem_zalloc(&s->held[h].n, d->c->phase.steps, sizeof *s->held[h].n, "caches", err));
    }
    return 0;
}

static void setting_free(struct setting *s)
{
    for (int h = 0; h < s->layer.n; h++) {
        if (s->select)
            method_release(s->run->cells[h].method, s->select[h].once);
        if (s->lanes)
            lane_free(s->lanes + h);
        if (s->held) {
            keysets_free(&s->held[h].sets);
            free(s->held[h].n);
        }
    }
    for (int c = 0; s->layer.caches && c < n_caches(s); c++) {
        free(s->layer.caches[c].at);
        free(s->layer.caches[c].drop);
    }
    if (s->method)
        method_release(s->method, s->state);
    if (s->then)
        method_runs_free(s->then, 1);
    free(s->then_ctx);
    free((void *)(uintptr_t)s->layer.params);
    free(s->layer.caches);
    free(s->lanes);
    free(s->select);
    free(s->held);
}

/* ---- the records ---------------------------------------------------------------------------- */

/* Mean over steps of the relative error of the layer's outputs. */
static double layer_error(const struct setting *s, int64_t steps)
{
    double sum = 0;
    for (int64_t t = 0; t < steps; t++) {
        double delta = 0, ref = 0;
        for (int h = 0; h < s->layer.n; h++) {
            delta += s->lanes[h].sq_delta[t];
            ref += s->lanes[h].sq_ref[t];
        }
        sum += ratio_or_inf(sqrt(delta), sqrt(ref));
    }
    return sum / (double)steps;
}

static double padded_cache(const struct setting *s, int64_t steps)
{
    double sum = 0;
    for (int64_t t = 0; t < steps; t++) {
        double most = 0;
        for (int c = 0; c < n_caches(s); c++)
            most = fmax(most, s->held[c].n[t]);
        sum += most;
    }
    return sum / (double)steps;
}

/* Mean over the heads of the cache of head h: recall of the fixed set of as many keys of the prompt
 * that is best for them together in all steps, beside every generated key, minus their own. */
static int fixed_regret(struct decode *d, const struct setting *s, int h, double *regret,
                        struct err *err)
{
    int c = h / s->layer.share, first = c * s->layer.share, heads = 0;
    int64_t prompt = d->c->phase.from, steps = d->c->phase.steps, nk = d->heads[h]->x.nk;
    OWN(free_at) double *mass = NULL;
    double sum = 0;
    struct prefix p;
    PASS_ON(mem_zalloc(&mass, nk, sizeof *mass, "mass of keys", err));
    for (int i = first; i < first + s->layer.share; i++) {
        if (s->lanes[i].off)
            continue;
        heads++;
        for (int64_t j = 0; j < nk; j++)
            mass[j] += d->truth[i].mass[j];
        for (int64_t t = 0; t < steps; t++)
            sum -= s->lanes[i].acc.recall[t];
    }
    PASS_ON(prefix_topk(d->work->prefix, mass, prompt, s->held[c].prompt, &p, err));
    for (int64_t j = 0; j < nk; j++)
        if (j >= prompt || prefix_has(&p, mass[j], j))
            sum += mass[j];
    *regret = sum / (double)(steps * heads);
    return 0;
}

static int finish_lane(struct decode *d, struct setting *s, int h, double error, double padded,
                       struct err *err)
{
    struct lane *l = s->lanes + h;
    struct step_state *select = s->select + h;
    const struct attn_in *x = &d->heads[h]->x;
    const struct held *held = s->held + h / s->layer.share;
    int64_t steps = d->c->phase.steps;
    double per_key = (double)(x->d + x->dv) * (double)dtype_size(d->heads[h]->src_dtype);
    double all = (double)d->c->phase.from + (double)(steps + 1) / 2, cached = 0;
    step_state_end(select, l->cell->method);
    for (int64_t t = 0; t < steps; t++)
        cached += held->n[t] / (double)steps;
    struct lane_cache c = {.evicts = l->cached,
                           .held = held->n,
                           .padded = padded,
                           .kv = per_key * held->union_keys / (double)steps,
                           .meta = select->unknown ? NAN : select->bytes / (double)steps,
                           .dense = per_key * all,
                           .regret = NAN,
                           .err_layer = error};
    c.bytes = per_key * (l->cached ? cached : all);
    if (l->cached)
        c.end = (double)s->layer.caches[h / s->layer.share].n;
    if (l->cached && !s->late)
        PASS_ON(fixed_regret(d, s, h, &c.regret, err));
    l->out->record->n_q = steps;
    return lane_record(l, &c, err);
}

static void finish(struct decode *d, struct setting *s)
{
    double error = layer_error(s, d->c->phase.steps);
    double padded = s->evicts ? padded_cache(s, d->c->phase.steps) : 0;
    for (int h = 0; h < d->c->n; h++)
        if (!s->lanes[h].off)
            finish_lane(d, s, h, error, padded, &s->lanes[h].out->err);
}

/* ---- the layer ------------------------------------------------------------------------------ */

static int truth_init(struct decode *d, int h, bool evicts, struct err *err)
{
    struct truth *t = d->truth + h;
    const struct attn_in *x = &d->heads[h]->x;
    d->exact[h] = d->heads[h]->exact;
    PASS_ON(mem_alloc(&d->score[h], d->block * x->nk, sizeof **d->score, "scores of a block", err));
    if (evicts)
        PASS_ON(mem_zalloc(&t->mass, x->nk, sizeof *t->mass, "mass of keys", err));
    exact_by_rows(d->exact[h]);
    int first = h / d->c->group * d->c->group;
    if (h != first)
        return exact_borrow(d->exact[h], d->exact[first], err);
    return 0;
}

static int64_t block_steps(int64_t heads, int64_t nk)
{
    return MAX(1, MIN(BLOCK_STEPS, BLOCK_SCORES / (heads * nk)));
}

int64_t decode_memory(const struct trace_meta *m, enum precision prec)
{
    int64_t kv = m->kv_heads * m->n_k * (m->head_dim + m->v_dim) * (prec == PREC_F64 ? 12 : 4);
    int64_t rows = m->heads * m->n_q * (m->head_dim * 4 + (m->v_dim + 1) * 8);
    return kv + rows + block_steps(m->heads, m->n_k) * m->heads * m->n_k * 8;
}

static int layer_init(struct decode *d, struct err *err)
{
    const struct decode_call *c = d->c;
    bool evicts = false;
    PASS_ON(mem_zalloc(&d->heads, c->n, sizeof *d->heads, "heads", err));
    PASS_ON(mem_zalloc(&d->truth, c->n, sizeof *d->truth, "heads", err));
    PASS_ON(mem_zalloc(&d->exact, c->n, sizeof *d->exact, "heads", err));
    PASS_ON(mem_zalloc(&d->score, c->n, sizeof *d->score, "heads", err));
    PASS_ON(mem_zalloc(&d->settings, c->n_runs, sizeof *d->settings, "settings", err));
    PASS_ON(mem_zalloc(&d->work, MAX(1, c->jobs), sizeof *d->work, "scratch of rows", err));
    for (int h = 0; h < c->n; h++)
        d->heads[h] = &c->heads[h].in;
    for (int i = 0; i < MAX(1, c->jobs); i++)
        PASS_ON(row_work_init(d->work + i, &d->heads[0]->x, err));
    d->block = block_steps(c->n, d->heads[0]->x.nk);
    for (int64_t k = 0; k < c->n_runs; k++) {
        struct setting *s = d->settings + k;
        PASS_ON(setting_init(d, s, c->runs + k, err));
        evicts |= s->evicts;
    }
    for (int h = 0; h < c->n; h++)
        PASS_ON(truth_init(d, h, evicts, err));
    for (int64_t k = 0; k < c->n_runs; k++) {
        struct setting *s = d->settings + k;
        struct err own = {0};
        int ended = s->evicts ? begin(d, s, &own) : 0;
        if (ended)
            end_setting(s, ended, &own);
    }
    return 0;
}

static void layer_free(struct decode *d)
{
    for (int64_t k = 0; d->settings && k < d->c->n_runs; k++)
        setting_free(d->settings + k);
    for (int h = 0; d->truth && h < d->c->n; h++) {
        exact_hold(d->heads[h]->exact, 0, 0, NULL, 0);
        free(d->score ? d->score[h] : NULL);
        free(d->truth[h].mass);
    }
    for (int i = 0; d->work && i < MAX(1, d->c->jobs); i++)
        row_work_free(d->work + i);
    free(d->work);
    free(d->truth);
    free(d->exact);
    free(d->score);
    free(d->heads);
    free(d->settings);
}

static int do_block(struct decode *d, struct err *err)
{
    d->stride = attn_limit(&d->heads[0]->x, row_of(d, d->t0 + d->steps) - 1);
    PASS_ON(pool_run(d->c->jobs, d->c->n / d->c->group, score_group, d, err));
    for (int64_t k = 0; k < d->c->n_runs; k++) {
        struct setting *s = d->now = d->settings + k;
        struct err own = {0};
        for (int h = 0; h < s->layer.n; h++)
            keysets_clear(&s->held[h].sets);
        bool done = true;
        for (int h = 0; h < s->layer.n; h++)
            done &= s->lanes[h].off;
        if (done)
            continue;
        if (s->evicts && walk(d, s, &own)) {
            end_setting(s, own.code, &own);
            continue;
        }
        PASS_ON(pool_run(d->c->jobs, n_caches(s), do_cache, d, err));
    }
    return 0;
}

int decode_run(const struct decode_call *c, struct err *err)
{
    OWN(layer_free) struct decode d = {.c = c};
    PASS_ON(layer_init(&d, err));
    for (d.t0 = 0; d.t0 < c->phase.steps; d.t0 += d.block) {
        d.steps = MIN(d.block, c->phase.steps - d.t0);
        PASS_ON(do_block(&d, err));
    }
    for (int64_t k = 0; k < c->n_runs; k++)
        finish(&d, d.settings + k);
    return 0;
}
