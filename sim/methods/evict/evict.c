/*
 * evict.c - keys leave the cache for good in the decode phase. One engine; `by` says what a key is
 * worth, `when` at which moments the cache is cut to its capacity.
 *
 *   snapkv     SnapKV, arXiv 2404.14469: the last `window` rows of the prompt vote
 *   adakv      AdaKV, arXiv 2407.11550: the same, and the caches of a layer compete for its keys
 *   tova       TOVA, arXiv 2401.06104: the last row, mean over the heads of the layer
 *   h2o        H2O, arXiv 2306.14048: softmax columns of all rows so far, added up
 *   streaming  StreamingLLM, arXiv 2309.17453: the first and the last keys. Positions stay as they
 *              are: renumbered ones cannot be replayed from keys that have theirs applied
 *   knorm      arXiv 2406.11430: small keys
 *   keydiff    KeyDiff, arXiv 2504.15364: keys unlike the mean direction
 *   observed   the mean weight of the rows that could see a key (kvpress)
 *   random     a hash of seed and position
 *
 * In a step the new key joins the cache, the row attends, and then keys leave.
 */
#include "core/intmath.h"
#include "core/mem.h"
#include "sim/methods/evict/score.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum when { WHEN_AUTO, WHEN_PROMPT, WHEN_STEP, WHEN_EVERY };

struct params {
    int by, profile, when, unit;
    int64_t every, sink, window, pool;
    struct share capacity, recent;
    double safe;
    char *then;
};

static const struct opt options[] = {
    OPT_ENUM(struct params, by, "snapkv",
             TEXTS("snapkv", "adakv", "tova", "h2o", "streaming", "knorm", "keydiff", "observed",
                   "random"),
             "what a key is worth"),
    OPT_SHARE(struct params, capacity, "2048", 1, 1e9, "tokens",
              "keys of a cache that stay; a share is of the prompt, rounded up"),
    OPT_ENUM(
        struct params, profile, "official", TEXTS("official", "kvpress", "frontier"),
        "snapkv, adakv: published settings; they fill window, pool, unit, sink and recent where "
        "these are not given"),
    OPT_ENUM(struct params, when, "auto", TEXTS("auto", "prompt", "step", "every"),
             "once after the prompt; after it and after every step; or after every so many steps. "
             "auto: step for tova, h2o and streaming, else prompt"),
    OPT_INT(struct params, every, "512", 1, 1e9, "steps",
            "when=every: steps between two evictions"),
    OPT_INT(struct params, sink, NULL, 0, 1e9, "tokens",
            "first keys that stay; streaming: 4, else 0"),
    OPT_SHARE(
        struct params, recent, NULL, 0, 1e9, "tokens",
        "last keys that stay; a share is of the capacity. snapkv, adakv: the window; h2o: 50%; "
        "else 0"),
    OPT_INT(struct params, window, NULL, 1, 1e6, "rows", "snapkv, adakv: rows that vote; 32"),
    OPT_INT(struct params, pool, NULL, 1, 1e6, "tokens",
            "snapkv, adakv: keys whose votes are averaged, an odd number; 5"),
    OPT_ENUM(
        struct params, unit, "auto", TEXTS("auto", "head", "group", "layer"),
        "what has a cache of its own: a query head, a KV head (mean over its query heads), or one "
        "set for the layer (mean over all). auto: head for snapkv official, layer for tova"),
    OPT_NUM(struct params, safe, NULL, 0, 1, "share",
            "of its keys that a cache keeps in any case, the rest goes to the layer's best; adakv: "
            "0.2, "
            "else 1"),
    OPT_STR(struct params, then, "", "METHOD",
            "selects among the keys that are left, in every step: quest+budget=64, with + for :"),
    {0},
};

struct state {
    struct evict_rule rule;
    struct evict_work work;
    struct evict_size *size; /* [caches], owned */
};

static bool votes(const struct params *p)
{
    return p->by == BY_SNAPKV || p->by == BY_ADAKV;
}

static enum evict_unit unit_of(const struct params *p)
{
    if (p->unit != UNIT_AUTO)
        return (enum evict_unit)p->unit;
    return p->by == BY_TOVA ? UNIT_LAYER : votes(p) && p->profile == 0 ? UNIT_HEAD : UNIT_GROUP;
}

static struct evict_rule rule_of(const struct params *p, uint64_t seed)
{
    static const int64_t windows[] = {32, 64, 256}, pools[] = {5, 5, 21};
    bool frontier = votes(p) && p->profile == 2;
    return (struct evict_rule){.by = (enum evict_by)p->by,
                               .unit = unit_of(p),
                               .window = p->window >= 0 ? p->window : windows[p->profile],
                               .pool = p->pool >= 0 ? p->pool : pools[p->profile],
                               .sink = p->sink >= 0                        ? p->sink
                                       : p->by == BY_STREAMING || frontier ? 4
                                                                           : 0,
                               .safe = !isnan(p->safe)     ? p->safe
                                       : p->by == BY_ADAKV ? 0.2
                                                           : 1,
                               .seed = seed};
}

static struct evict_size size_of(const struct params *p, const struct evict_rule *rule,
                                 int64_t prompt)
{
    struct share recent = {0, false};
    int64_t keys = share_resolve(p->capacity, prompt);
    if (!isnan(p->recent.value))
        recent = p->recent;
    else if (votes(p))
        recent.value = p->profile == 2 ? 128 : (double)rule->window;
    else if (p->by == BY_H2O)
        recent = (struct share){0.5, true};
    return (struct evict_size){keys, MIN(share_resolve(recent, keys), MAX(0, keys - rule->sink))};
}

static int validate(void *params, struct err *err)
{
    const struct params *p = params;
    if (p->pool >= 0 && p->pool % 2 == 0)
        return err_set(err, ERR_USAGE, "pool: an odd number was expected, found %lld",
                       (long long)p->pool);
    if (p->by == BY_TOVA && p->unit != UNIT_AUTO && p->unit != UNIT_LAYER)
        return err_set(err, ERR_USAGE, "by=tova keeps one set for the layer: unit=layer");
    if (!isnan(p->safe) && p->safe < 1 && unit_of(p) == UNIT_LAYER)
        return err_set(err, ERR_USAGE,
                       "safe: with unit=layer all caches are equal; unit=group or "
                       "unit=head lets them compete");
    return 0;
}

/* ---- the decode phase ----------------------------------------------------------------------- */

static bool own_caches(const void *params)
{
    return unit_of(params) == UNIT_HEAD;
}

static const char *then(const void *params)
{
    return ((const struct params *)params)->then;
}

static const struct params *first_params(const struct decode_layer *layer)
{
    int h = 0;
    while (!layer->params[h])
        h++;
    return layer->params[h];
}

/* Are they equal in all but what a cache keeps? */
static bool same_rule(const struct params *a, const struct params *b)
{
    struct evict_rule x = rule_of(a, 0), y = rule_of(b, 0);
    return x.by == y.by && x.unit == y.unit && x.window == y.window && x.pool == y.pool &&
           x.sink == y.sink && x.safe == y.safe && a->when == b->when && a->every == b->every &&
           strcmp(a->then, b->then) == 0;
}

static int begin(struct method_ctx *ctx, const struct decode_layer *layer, void *state,
                 struct err *err)
{
    struct state *s = state;
    const struct params *p = first_params(layer);
    bool steps = p->by == BY_TOVA || p->by == BY_H2O || p->by == BY_STREAMING;
    int when = p->when != WHEN_AUTO ? p->when : steps ? WHEN_STEP : WHEN_PROMPT;

    s->rule = rule_of(p, ctx->seed);
    s->rule.every = when == WHEN_STEP ? 1 : when == WHEN_EVERY ? p->every : 0;
    PASS_ON(evict_work_init(&s->work, &s->rule, layer, ctx, err));
    PASS_ON(mem_alloc(&s->size, layer->n, sizeof *s->size, "sizes of caches", err));
    for (int h = 0; h < layer->n; h++) {
        const struct params *own = layer->params[h];
        struct evict_size size =
            own ? size_of(own, &s->rule, layer->prompt) : (struct evict_size){-1, 0};
        if (own && !same_rule(p, own))
            return method_skip(
                ctx, "heads of a layer may differ in capacity and recent, and in nothing else");
        if (h % layer->share && size.keys != s->size[h / layer->share].keys)
            return method_skip(
                ctx, "query heads of one cache with different capacities: choose with --per "
                     "kv-head");
        s->size[h / layer->share] = size;
    }
    if (when != WHEN_EVERY)
        return evict_apply(&s->work, layer->from - 1, NULL, s->size, err);
    return 0;
}

static int step(void *state, const struct decode_layer *layer, int64_t row,
                const double *const *score, struct err *err)
{
    struct state *s = state;
    if (!s->rule.every)
        return 0;
    evict_add_row(&s->work, row, score);
    if ((row - layer->from + 1) % s->rule.every != 0)
        return 0;
    return evict_apply(&s->work, row, score, s->size, err);
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    (void)params, (void)in, (void)state, (void)err;
    return method_skip(ctx, "keys are evicted while tokens are generated: --phase decode");
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    (void)state, (void)row0, (void)row1, (void)out;
    return err_set(err, ERR_RUN, "evict chooses no mask of a prefill");
}

static void release(void *state)
{
    struct state *s = state;
    evict_work_free(&s->work);
    free(s->size);
}

const struct method method_evict = {
    .name = "evict",
    .summary = "keys leave the cache while tokens are generated (SnapKV, AdaKV, TOVA, H2O, ...)",
    .paper =
        "Li et al., SnapKV, arXiv 2404.14469; Oren et al., TOVA, arXiv 2401.06104; Zhang et al., "
        "H2O, arXiv 2306.14048",
    .flags = METHOD_CAUSAL | METHOD_ANY_SCORE | METHOD_RANDOM,
    .params = {.table = options,
               .size = sizeof(struct params),
               .scopes = PARAM_SCOPES({"profile window pool", "by=snapkv|adakv"},
                                      {"every", "when=every"}),
               .validate = validate},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .release = release,
    .decode = {.own_caches = own_caches, .then = then, .begin = begin, .step = step},
};
