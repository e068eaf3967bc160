/*
 * streaming.c - window + sink: the last keys and the first few.
 *
 *   causal          keep j iff 0 <= p - j < window or j < sink,  p = i + N_k - N_q
 *   bidirectional   keep j iff |p - j| < window or j < sink
 *
 * and the last `last` query rows see everything (Tri-shape). StreamingLLM, arXiv 2309.17453;
 * A-shape of MInference, arXiv 2407.02490; Tri-shape of SCBench, arXiv 2412.10319. O(N (s + w)).
 *
 * Deviations: StreamingLLM proper evicts the KV cache during decoding and re-indexes positions
 * inside it; a trace whose positions are already applied cannot replay that, so this is its prefill
 * form. The symmetric bidirectional window is ours. `dilate` takes MInference's two dilated
 * windows; their slash distances are odd, so distance 0 is added lest rows lose themselves. The
 * official kernel widens every distance to a 64-key block: density_exec is that of the widened
 * band, while the mask is the exact list.
 */
#include "core/intmath.h"
#include "core/method.h"

enum dilate { DILATE_NONE, DILATE_1, DILATE_2 };

struct params {
    struct share sink, window, last;
    int dilate, preset;
};

static const char *const dilates[] = {"none", "dilated1", "dilated2", NULL};
static const char *const presets[] = {
    "none", "a-shape", "tri-shape", "streamingllm", "streamingllm-demo", "sample", NULL};

/* sink, window and last of the presets; of "none" the defaults. */
static const struct share preset_values[][3] = {
    {{128, false}, {3968, false}, {0, false}},   {{128, false}, {3968, false}, {0, false}},
    {{128, false}, {3968, false}, {100, false}}, {{4, false}, {512, false}, {0, false}},
    {{4, false}, {2000, false}, {0, false}},     {{4, false}, {0.08, true}, {0, false}},
};

static const struct opt options[] = {
    OPT_SHARE(struct params, sink, "128", 0, 1e9, "tokens", "first keys kept; a share is of N_k"),
    OPT_SHARE(struct params, window, "3968", 1, 1e9, "tokens",
              "keys at distance 0 .. window-1, the query's own included; a share is of N_k"),
    OPT_SHARE(struct params, last, "0", 0, 1e9, "rows",
              "last query rows that see everything; a share is of N_q"),
    OPT_ENUM(struct params, dilate, "none", dilates,
             "dilated window of MInference instead of sink and window"),
    OPT_ENUM(struct params, preset, "none", presets,
             "published settings; they fill sink, window and last where these have their default"),
    {0},
};

struct state {
    struct attn_in x;
    struct band band;
    int dilate;
};

/* Value of field k (0 sink, 1 window, 2 last): the given one, or the preset's when it is at the
 * default. */
static int64_t resolve(const struct params *p, int k, struct share given, int64_t of)
{
    const struct share *def = preset_values[0] + k;
    bool is_default = given.value == def->value && given.is_share == def->is_share;
    return share_resolve(is_default ? preset_values[p->preset][k] : given, of);
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    const struct params *p = params;
    struct state *s = state;
    if (p->dilate != DILATE_NONE && reach_any(&in->x.reach))
        return method_skip(ctx, "dilate=%s cannot combine a window or chunk of the model",
                           dilates[p->dilate]);
    if (p->dilate != DILATE_NONE && !in->x.causal)
        return method_skip(ctx, "dilated windows are causal");
    int64_t last = resolve(p, 2, p->last, in->x.nq);
    s->x = in->x;
    s->dilate = p->dilate;
    s->band.sink = resolve(p, 0, p->sink, in->x.nk);
    s->band.window = MAX(1, resolve(p, 1, p->window, in->x.nk));
    s->band.dense_from = last > 0 ? in->x.nq - MIN(last, in->x.nq - 1) : in->x.nq;
    return 0;
}

/* ---- dilated windows ------------------------------------------------------------------------ */

#define DILATED_COLUMNS 1024

/* Distances of the two variants: contiguous ones 0 .. near - 1, odd ones up to far. */
static const struct {
    int64_t near, far;
} dilated[] = {[DILATE_1] = {1, 8191}, [DILATE_2] = {2048, 6143}};

static int dilated_row(const struct state *s, struct mask *m, int64_t i, struct err *err)
{
    int64_t p = i + s->x.nk - s->x.nq, g = i - m->row0;
    if (p < 0)
        return 0;
    if (i >= s->band.dense_from)
        return mask_lists_add_run(m, g, 0, (int32_t)(p + 1), err);
    int64_t near = MAX(0, p - dilated[s->dilate].near + 1), columns = MIN(DILATED_COLUMNS, near);
    PASS_ON(mask_lists_add_run(m, g, 0, (int32_t)columns, err));
    /* Odd distances, farthest first, so that keys ascend. */
    int64_t far = MIN(dilated[s->dilate].far, p - columns);
    for (int64_t d = far % 2 ? far : far - 1; p - d < near; d -= 2)
        PASS_ON(mask_lists_add(m, g, (int32_t)(p - d), err));
    return mask_lists_add_run(m, g, (int32_t)near, (int32_t)(p + 1), err);
}

static int dilated_select(const struct state *s, int64_t row0, int64_t row1, struct mask *m,
                          struct err *err)
{
    PASS_ON(mask_lists_init(m, s->x.nq, s->x.nk, row0, row1, true, 1, 1, err));
    m->exec_bq = m->exec_bk = 1;
    for (int64_t i = row0; i < row1; i++)
        PASS_ON(dilated_row(s, m, i, err));
    mask_lists_finish(m);
    return 0;
}

/* Pairs that the vertical-slash kernel multiplies: per 64 rows the keys from the farthest distance
 * (widened by 64) to the last row in steps of 64, and the columns before them. */
static int64_t dilated_exec(const struct state *s)
{
    int64_t pairs = 0;
    for (int64_t r = 0; r < s->x.nq; r += 64) {
        int64_t end = MIN(r + 64, s->x.nq) + s->x.nk - s->x.nq;
        if (end <= 0)
            continue;
        int64_t far = MIN(end, dilated[s->dilate].far + 64);
        int64_t band = r + 64 > s->band.dense_from ? end : far;
        int64_t columns = MIN(DILATED_COLUMNS, end - band);
        pairs += 64 * 64 * ((band + 63) / 64 + (columns + 63) / 64);
    }
    return pairs;
}

/* ---- callbacks ------------------------------------------------------------------------------ */

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    const struct state *s = state;
    if (s->dilate != DILATE_NONE)
        return dilated_select(s, row0, row1, out, err);
    mask_band(out, s->x.nq, s->x.nk, row0, row1, s->x.causal, s->band);
    return 0;
}

static bool why_full(const void *state, char why[160])
{
    const struct state *s = state;
    snprintf(why, 160,
             "its %lld first keys and window of %lld are not fewer than the sequence's %lld keys",
             (long long)s->band.sink, (long long)s->band.window, (long long)s->x.nk);
    return s->dilate == DILATE_NONE && s->band.sink + s->band.window >= s->x.nk;
}

static int report(void *state, struct record *r, struct err *err)
{
    const struct state *s = state;
    if (s->dilate == DILATE_NONE)
        return 0;
    double pairs = (double)dilated_exec(s);
    double allowed = (double)attn_pairs(&s->x);
    return RECORD_ALL(r, err, {"pairs_exec", pairs}, {"density_exec", pairs / allowed});
}

const struct method method_streaming = {
    .name = "streaming",
    .alias = "window-sink",
    .summary = "window + sink (StreamingLLM, A-shape, Tri-shape): the last keys and the first few",
    .paper =
        "Xiao et al., Efficient Streaming Language Models with Attention Sinks, arXiv 2309.17453",
    .flags = METHOD_ROWS | METHOD_CAUSAL | METHOD_BIDIRECTIONAL | METHOD_ANY_SCORE,
    .params = {.table = options,
               .size = sizeof(struct params),
               .budget = BUDGET_PARAMS(BUDGET_BY(BUDGET_COUNT, "window", .only = "dilate=none"))},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .why_full = why_full,
    .reuse = {.always_static = true},
    .tests = {.full = "window=100%",
              .variants = TEXTS("sink=4:window=16", "sink=0:window=1", "sink=3:window=10%:last=7",
                                "preset=tri-shape", "dilate=dilated1", "dilate=dilated2:last=5"),
              .budgets = METHOD_BUDGETS({"sink=2:window=%s", {"1", "8", "40", "100", "100%"}},
                                        {"window=9:sink=%s", {"0", "3", "50", "200"}})},
};
