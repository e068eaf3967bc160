/*
 * The decode phase: hand-computed caches, recalls and errors of evictions and selections.
 */
#include "sim/decode/decodelayer.h"
#include "sim/replay.h"
#include "tests/harness/golden.h"
#include "tests/harness/suite.h"
#include "tests/harness/testmethods.h"
#include "tests/harness/trace_fixture.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

/* ---- a layer -------------------------------------------------------------------------------- */

#define MOST 8 /* heads; settings */

struct layer {
    struct sim_head heads[MOST];
    int n, group;
    struct trace_decode phase;
    const float *col_sum[MOST];
};

static void layer_free(struct layer *l)
{
    for (int h = 0; h < l->n; h++)
        sim_head_free(l->heads + h);
}

/* A head whose scores are logit[rows][nk] in units of ln 2, with d = nk and one-hot keys; v = k. */
static void add_head(struct layer *l, int64_t rows, int64_t nk, const double *logit)
{
    float *q = calloc((size_t)(rows * nk), sizeof *q), *k = calloc((size_t)(nk * nk), sizeof *k);
    for (int64_t i = 0; i < rows * nk; i++)
        q[i] = (float)logit[i];
    for (int64_t j = 0; j < nk; j++)
        k[j * nk + j] = 1;
    struct head_in in = one_head(q, k, k, rows, nk, (int)nk, true);
    in.x.scale = log(2);
    in.head = l->n;
    in.src_dtype = DT_F32;
    MUST(head_init(l->heads + l->n++, &in, PREC_F64, ERR));
    free(q);
    free(k);
}

/* What a setting did: records, and the keys that each step attended to, as bits. */
struct done {
    struct record r[MOST];
    uint64_t kept[MOST][64];
    double out[MOST][64]; /* the first channel */
};

struct tap {
    uint64_t *kept;
    double *out;
};

static int tap_row(void *ctx, const struct mask *m, const double *out, const double *lse,
                   struct err *err)
{
    struct tap *t = ctx;
    (void)lse, (void)err;
    for (int64_t e = 0; e < m->ptr[1] && m->col[e] < 64; e++)
        t->kept[m->row0] |= 1ull << m->col[e];
    t->out[m->row0] = out[0];
    return 0;
}

static void done_free(struct done *d)
{
    for (int h = 0; h < MOST; h++)
        record_free(d->r + h);
}

static int try_run(const struct layer *l, const struct method_run *run, struct done *d,
                   struct err *err)
{
    struct method_ctx ctx[MOST];
    struct sim_cell cells[MOST];
    struct call_outcome out[MOST];
    struct tap taps[MOST];
    memset(d, 0, sizeof *d);
    for (int h = 0; h < l->n; h++) {
        ctx[h] = (struct method_ctx){.seed = 7, .session = run->session};
        taps[h] = (struct tap){d->kept[h], d->out[h]};
        record_init(d->r + h);
        cells[h] = (struct sim_cell){.method = run->method,
                                     .params = run->params,
                                     .ctx = ctx + h,
                                     .in = &l->heads[h].in,
                                     .sink = tap_row,
                                     .sink_ctx = taps + h};
        out[h] = (struct call_outcome){.record = d->r + h};
    }
    struct sim_call c = {.cells = cells, .heads = out, .n = l->n, .group = l->group};
    struct decode_call call = {.heads = l->heads,
                               .n = l->n,
                               .group = l->group,
                               .phase = l->phase,
                               .col_sum = l->col_sum[0] ? l->col_sum : NULL,
                               .runs = &c,
                               .n_runs = 1,
                               .jobs = 1};
    PASS_ON(decode_run(&call, err));
    for (int h = 0; h < l->n; h++)
        if (out[h].err.code) {
            *err = out[h].err;
            PASS_ON(err->code);
        }
    return 0;
}

static int try_layer(const struct layer *l, const char *text, struct done *d, struct err *err)
{
    OWN(run_free) struct method_run *run = run_of(text);
    return try_run(l, run, d, err);
}

static void run_layer(const struct layer *l, const char *text, struct done *d)
{
    MUST(try_layer(l, text, d, ERR));
    for (int h = 0; h < l->n; h++)
        ck_assert_msg(d->r[h].status == RECORD_OK, "%s: %s", text, d->r[h].reason);
}

#define RUN(d, l, text)                                                                            \
    OWN(done_free) struct done d;                                                                  \
    run_layer(l, text, &d)

#define KEYS(...) keys_of((const int[]){__VA_ARGS__, -1})
static uint64_t keys_of(const int *k)
{
    uint64_t bits = 0;
    for (; *k >= 0; k++)
        bits |= 1ull << *k;
    return bits;
}

static double metric(const struct done *d, int h, const char *name)
{
    double x = record_get(d->r + h, name);
    ck_assert_msg(!isnan(x), "no %s", name);
    return x;
}

#define NEAR(d, h, name, want) ck_assert_double_eq_tol(metric(d, h, name), want, 5e-7)

/* ---- the steps of M9 ------------------------------------------------------------------------ */

static const double step_logits[6][6] = {{0},           {0, 0},           {1, 0, 0},
                                         {1, 0, -1, 0}, {0, 2, 0, -1, 0}, {0, 2, 1, 0, -1, 0}};
static const float prompt_sums[] = {2, 0.75f, 0.25f};

static void steps_layer(struct layer *l, bool sums)
{
    *l = (struct layer){.group = 1, .phase = {.from = 3, .window = sums ? 1 : 3, .steps = 3}};
    add_head(l, sums ? 4 : 6, 6, step_logits[sums ? 2 : 0]);
    l->col_sum[0] = sums ? prompt_sums : NULL;
}

TEST(tova_walks_its_steps)
{
    OWN(layer_free) struct layer l;
    steps_layer(&l, false);
    RUN(d, &l, "evict:by=tova:capacity=3");
    ck_assert_uint_eq(d.kept[0][0], KEYS(0, 1, 2, 3));
    ck_assert_uint_eq(d.kept[0][1], KEYS(0, 1, 3, 4));
    ck_assert_uint_eq(d.kept[0][2], KEYS(0, 1, 4, 5));
    NEAR(&d, 0, "recall@token=0", 1);
    NEAR(&d, 0, "recall@token=1", 0.866667); /* evicting before the attention would give .8 */
    NEAR(&d, 0, "recall@token=2", 0.684211);
    NEAR(&d, 0, "lost@token=2", 1 - 0.684211);
    NEAR(&d, 0, "cum_lost", (0.133333 + 0.315789) / 3);
    NEAR(&d, 0, "hot_lost", 2. / 3);
    NEAR(&d, 0, "cache_keys", 4);
    NEAR(&d, 0, "cache_keys_end", 3);
    NEAR(&d, 0, "reuse", (3. / 4 + 3. / 4) / 2);
}

/* With the sums of a capture, or from all rows of the prompt. */
TEST_N(h2o_walks_its_steps, 2)
{
    OWN(layer_free) struct layer l;
    steps_layer(&l, _i);
    RUN(d, &l, "evict:by=h2o:capacity=3:recent=2");
    ck_assert_uint_eq(d.kept[0][0], KEYS(0, 1, 2, 3));
    ck_assert_uint_eq(d.kept[0][1], KEYS(0, 2, 3, 4));
    ck_assert_uint_eq(d.kept[0][2], KEYS(0, 3, 4, 5));
    NEAR(&d, 0, "recall@token=1", 0.466667);
    NEAR(&d, 0, "recall@token=2", 0.368421);
}

TEST(h2o_asks_for_column_sums)
{
    OWN(layer_free) struct layer l;
    OWN(done_free) struct done d;
    steps_layer(&l, true);
    l.col_sum[0] = NULL;
    MUST(try_layer(&l, "evict:by=h2o:capacity=3", &d, ERR));
    ck_assert_int_eq(d.r[0].status, RECORD_SKIP);
    ck_assert_ptr_nonnull(strstr(d.r[0].reason, "--col-sums"));
}

TEST(streaming_attends_to_one_more_than_it_keeps)
{
    OWN(layer_free) struct layer l = {.group = 1, .phase = {.from = 2, .window = 1, .steps = 6}};
    double logits[7 * 8] = {0};
    add_head(&l, 7, 8, logits);
    RUN(d, &l, "evict:by=streaming:sink=1:capacity=3");
    for (int t = 1; t < 6; t++) {
        char name[32];
        int p = 2 + t;
        snprintf(name, sizeof name, "recall@token=%d", t);
        NEAR(&d, 0, name, 4. / (p + 1));
        ck_assert_uint_eq(d.kept[0][t], KEYS(0, p - 2, p - 1, p));
    }
    NEAR(&d, 0, "cache_keys_peak", 4);
    NEAR(&d, 0, "cache_keys_end", 3);
}

/* ---- choices after the prompt --------------------------------------------------------------- */

/* A prompt of 6 + 1 keys and a step; the last row of the prompt gives the keys these weights. */
static void votes_layer(struct layer *l, const double *weights, int64_t n, int heads)
{
    double logits[2 * 16] = {0};
    *l = (struct layer){.group = 1, .phase = {.from = n, .window = 1, .steps = 1}};
    for (int h = 0; h < heads; h++) {
        for (int64_t j = 0; j < n; j++)
            logits[j] = log2(weights[h * n + j]);
        add_head(l, 2, n + 1, logits);
    }
}

TEST(snapkv_pools_its_votes)
{
    static const double votes[] = {.30, .02, .03, .40, .05, .10, .10};
    OWN(layer_free) struct layer l;
    votes_layer(&l, votes, 7, 1);
    RUN(pooled, &l, "evict:by=snapkv:window=1:pool=3:capacity=4");
    ck_assert_uint_eq(pooled.kept[0][0], KEYS(2, 3, 4, 6, 7));
    RUN(plain, &l, "evict:by=snapkv:window=1:pool=1:capacity=4");
    ck_assert_uint_eq(plain.kept[0][0], KEYS(0, 3, 5, 6, 7));
    NEAR(&plain, 0, "cache_keys", 5);
}

TEST(adakv_lets_caches_compete)
{
    static const double votes[] = {.6, .2, .1, .1, 1e-9, .26, .25, .25, .24, 1e-9};
    OWN(layer_free) struct layer l;
    votes_layer(&l, votes, 5, 2);
    RUN(d, &l, "evict:by=adakv:window=1:pool=1:capacity=3:safe=0.5");
    ck_assert_uint_eq(d.kept[0][0], KEYS(0, 4, 5));
    ck_assert_uint_eq(d.kept[1][0], KEYS(0, 1, 2, 4, 5));
    NEAR(&d, 0, "cache_keys_end", 3);
    NEAR(&d, 1, "cache_keys_end", 5);
    NEAR(&d, 0, "cache_keys_padded", 5);
}

TEST(keydiff_keeps_unlike_keys)
{
    static const float q[2 * 2] = {0}, k[5 * 2] = {1, 0, 0, 1, 1, 1, -1, 0, 1, 1};
    OWN(layer_free)
    struct layer l = {.n = 1, .group = 1, .phase = {.from = 4, .window = 1, .steps = 1}};
    struct head_in in = one_head(q, k, k, 2, 5, 2, true);
    in.src_dtype = DT_F32;
    MUST(head_init(l.heads, &in, PREC_F64, ERR));
    RUN(d, &l, "evict:by=keydiff:capacity=2");
    ck_assert_uint_eq(d.kept[0][0], KEYS(0, 3, 4));
    RUN(small, &l, "evict:by=knorm:capacity=3");
    ck_assert_uint_eq(small.kept[0][0], KEYS(0, 1, 3, 4));
}

/* The prompt's keys have these weights in two steps; generated ones have none. */
static void two_steps(struct layer *l)
{
    static const double w[2][3] = {{.5, .3, .2}, {.1, .2, .7}};
    double logits[3 * 5];
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 5; j++)
            logits[i * 5 + j] = j < 3 ? log2(w[i > 1][j]) : -60;
    *l = (struct layer){.group = 1, .phase = {.from = 3, .window = 1, .steps = 2}};
    add_head(l, 3, 5, logits);
}

TEST(fixed_set_oracle_knows_all_steps)
{
    OWN(layer_free) struct layer l;
    two_steps(&l);
    RUN(d, &l, "oracle:kind=evict:k=1");
    ck_assert_uint_eq(d.kept[0][0], KEYS(2, 3));
    NEAR(&d, 0, "cra_mean", .45);
    NEAR(&d, 0, "regret_evict", 0);
    NEAR(&d, 0, "regret_topk", (.8 + 1) / 2 - .45); /* the best 2 and 3 keys: new ones count */
    RUN(top, &l, "oracle:kind=topk:k=1");
    NEAR(&top, 0, "cra_mean", .6);
    RUN(worse, &l, "evict:by=snapkv:window=1:pool=1:recent=0:capacity=1");
    ck_assert_uint_eq(worse.kept[0][1], KEYS(0, 3, 4));
    NEAR(&worse, 0, "regret_evict", .45 - .3);
}

/* ---- what every setting must say ------------------------------------------------------------ */

static int queries_of_layer(const struct head_in *in, int g, float *q, struct err *err)
{
    const struct layer *l = in->queries_from;
    const struct attn_in *x = &l->heads[in->head / l->group * l->group + g].in.x;
    (void)err;
    memcpy(q, x->q, (size_t)(x->nq * x->d) * sizeof *q);
    return 0;
}

static int operand_of_layer(const struct head_in *in, int layer, enum trace_aux which,
                            struct aux_shape *shape, float **x, struct err *err)
{
    (void)layer;
    return drawn_operand(in, which, in->x.nq, shape, x, err);
}

static void random_layer(struct layer *l, int heads, int group, int64_t prompt, int64_t steps,
                         int64_t window)
{
    *l = (struct layer){.n = heads, .group = group, .phase = {prompt, window, steps}};
    for (int h = 0; h < heads; h++) {
        HEAD(own, random_head, (uint64_t)h, window + steps, prompt + steps, 8, true, 1, PREC_F64);
        HEAD(kv, random_head, (uint64_t)(100 + h / group), window + steps, prompt + steps, 8, true,
             1, PREC_F64);
        struct head_in in = own.in;
        in.x.k = kv.in.x.k;
        in.x.v = kv.in.x.v;
        in.src_dtype = DT_F32;
        in.head = h;
        in.kv_head = h / group;
        in.n_heads = heads;
        in.n_kv_heads = heads / group;
        in.queries = queries_of_layer;
        in.queries_from = l;
        in.operand = operand_of_layer;
        MUST(head_init(l->heads + h, &in, PREC_F64, ERR));
    }
}

/* Heads that share a cache have one best set, which is no head's own. */
TEST(fixed_set_oracle_is_the_bound_of_its_cache)
{
    OWN(layer_free) struct layer l;
    random_layer(&l, 4, 2, 12, 6, 12);
    RUN(d, &l, "oracle:kind=evict:k=5");
    RUN(worse, &l, "evict:by=knorm:capacity=5");
    for (int h = 0; h < 4; h++) {
        ck_assert_double_eq_tol(metric(&d, h, "regret_evict"), 0, 1e-12);
        ck_assert_double_gt(metric(&worse, h, "regret_evict"), 0.01);
        double mean =
            (metric(&d, h / 2 * 2, "cra_mean") + metric(&d, h / 2 * 2 + 1, "cra_mean") -
             metric(&worse, h / 2 * 2, "cra_mean") - metric(&worse, h / 2 * 2 + 1, "cra_mean")) /
            2;
        NEAR(&worse, h, "regret_evict", mean);
    }
}

static const char *const whole[] = {
    "dense",
    "streaming:window=100%",
    "oracle:kind=topk:k=100%",
    "quest:dense_layers=0:budget=100",
    "ds:budget=100",
    "twilight:dense_layers=0:select=all:p=1:profile=exact",
    "moba:chunk=8:topk=20:dense_last=0",
    "nsa:block=4:top=30",
    "dsa:topk=100",
    "seer:profile=decode:block=8:budget=100",
    "skip-softmax:lambda=1e-300",
    "nm:n=4",
    "evict:by=snapkv:window=4:capacity=100",
    "evict:by=adakv:window=4:capacity=100",
    "evict:by=tova:capacity=100",
    "evict:by=h2o:capacity=100",
    "evict:by=streaming:capacity=100",
    "evict:by=knorm:capacity=100",
    "evict:by=observed:capacity=100:when=step",
    "evict:by=random:capacity=100:when=every:every=2",
    "evict:by=random:capacity=100:then=streaming+window=100",
};

TEST_EACH(a_budget_of_all_keys_is_dense, whole)
{
    OWN(layer_free) struct layer l;
    random_layer(&l, 4, 2, 12, 70, 12);
    RUN(d, &l, whole[_i]);
    for (int h = 0; h < 4; h++) {
        ck_assert_double_eq(metric(&d, h, "cra_min"), 1);
        ck_assert_double_eq(metric(&d, h, "err_max"), 0);
        ck_assert_double_eq(metric(&d, h, "density_elem"), 1);
        ck_assert_double_eq(metric(&d, h, "regret_topk"), 0);
        ck_assert_double_eq(metric(&d, h, "bytes_kv"), metric(&d, h, "bytes_dense"));
        if (strncmp(whole[_i], "evict", 5) == 0) {
            ck_assert_double_eq(metric(&d, h, "lost_max"), 0);
            ck_assert_double_eq(metric(&d, h, "hot_lost"), 0);
        }
    }
}

TEST(heads_of_a_group_read_the_union)
{
    static const double logits[2][2 * 4] = {{0, 0, 0, 0, 5, 4, 0, 0}, {0, 0, 0, 0, 0, 5, 4, 0}};
    OWN(layer_free) struct layer l = {.group = 2, .phase = {.from = 3, .window = 1, .steps = 1}};
    add_head(&l, 2, 4, logits[0]);
    add_head(&l, 2, 4, logits[1]);
    RUN(d, &l, "oracle:kind=topk:k=2");
    ck_assert_uint_eq(d.kept[0][0], KEYS(0, 1));
    ck_assert_uint_eq(d.kept[1][0], KEYS(1, 2));
    ck_assert_double_eq(metric(&d, 0, "bytes_kv"), 3 * (4 + 4) * 4);
    ck_assert_double_eq(metric(&d, 1, "bytes_dense"), 4 * (4 + 4) * 4);
    for (int h = 0; h < 2; h++) {
        l.heads[h].in.queries = queries_of_layer;
        l.heads[h].in.queries_from = &l;
        l.heads[h].in.head = h;
        l.heads[h].in.n_heads = 2;
        l.heads[h].in.n_kv_heads = 1;
    }
    RUN(shared, &l, "nsa:profile=fla:block=1:top=2"); /* a set for both: the own key, and another */
    ck_assert_uint_eq(shared.kept[0][0], shared.kept[1][0]);
    ck_assert_double_eq(metric(&shared, 0, "bytes_kv"), 2 * (4 + 4) * 4);
}

static int prepare_nothing(struct method_ctx *ctx, const void *params, const struct head_in *in,
                           void *state, struct err *err)
{
    *(struct attn_in *)state = in->x;
    return 0;
}

static int select_nothing(void *state, int64_t row0, int64_t row1, struct mask *out,
                          struct err *err)
{
    const struct attn_in *x = state;
    PASS_ON(mask_lists_init(out, x->nq, x->nk, row0, row1, true, 1, 1, err));
    mask_lists_finish(out);
    return 0;
}

TEST(an_empty_row_counts)
{
    static const struct method nothing = {.name = "nothing",
                                          .flags = METHOD_CAUSAL,
                                          .state_size = sizeof(struct attn_in),
                                          .prepare = prepare_nothing,
                                          .select = select_nothing};
    const struct method_run run = {.method = &nothing};
    OWN(layer_free) struct layer l;
    OWN(done_free) struct done d;
    steps_layer(&l, false);
    MUST(try_run(&l, &run, &d, ERR));
    ck_assert_double_eq(metric(&d, 0, "rows_empty"), 3);
    ck_assert_double_eq(metric(&d, 0, "cra_mean"), 0);
    ck_assert_double_eq(metric(&d, 0, "err_l2_rel"), 1);
    ck_assert_double_eq(metric(&d, 0, "bytes_kv"), 0);
}

/* What is left of a cache is what a selector sees. */
TEST(a_selector_reads_what_is_cached)
{
    OWN(layer_free) struct layer l;
    steps_layer(&l, false);
    RUN(d, &l, "evict:by=tova:capacity=3:then=streaming+sink=1+window=1");
    ck_assert_uint_eq(d.kept[0][1], KEYS(0, 4));
    RUN(top, &l, "evict:by=tova:capacity=3:then=oracle+kind=topk+k=2");
    ck_assert_uint_eq(top.kept[0][2], KEYS(0, 1)); /* key 2 is gone; 0 and 5 are equal */
    NEAR(&top, 0, "lost@token=2", 1 - 0.684211);
    NEAR(&top, 0, "recall@token=2", (4 + 1) / 9.5);
}

/* ---- the prefill and the decode phase ------------------------------------------------------- */

#define LONGEST 200 /* tokens */
#define DV 8        /* of random_layer */

static int tap_rows(void *ctx, const struct mask *m, const double *out, const double *lse,
                    struct err *err)
{
    const struct tap *t = ctx;
    struct span s[LONGEST];
    (void)lse, (void)err;
    for (int64_t i = m->row0; i < m->row1; i++) {
        t->out[i] = out[(i - m->row0) * DV];
        for (int64_t n = mask_row_spans(m, i, s) - 1; n >= 0; n--)
            for (int64_t j = s[n].lo; j < s[n].hi && j < 64; j++)
                t->kept[i] |= 1ull << j;
    }
    return 0;
}

static const char *const stateless[] = {"dense",
                                        "streaming:sink=2:window=5",
                                        "oracle:kind=topk:k=5",
                                        "oracle:alpha=0.7",
                                        "quest:page=4:budget=12:floor=1:dense_layers=0",
                                        "quest:page=4:budget=12:profile=kernel:dense_layers=0",
                                        "ds:budget=6:dense_layers=0:channels=1+3",
                                        "twilight:page=4:budget=24:p=0.6:dense_layers=0",
                                        "moba:chunk=8:topk=3:dense_last=0",
                                        "nsa:block=4:kernel=4:stride=2:top=4",
                                        "nsa:profile=triton:block=4:kernel=4:stride=2:top=4",
                                        "nsa:share=head:block=4:kernel=4:stride=2:top=4",
                                        "nsa:profile=infllm:block=4:top=4:local=2:dense_below=0",
                                        "dsa:topk=7",
                                        "dsa:topk=7:emulate=fp8",
                                        "seer:profile=decode:block=4:threshold=0.05",
                                        "seer:profile=decode:block=4:budget=12",
                                        "exec:cmd=" EXEC_PEER " window 5"};

/* Those that choose by each row alone are all there. */
TEST_N(methods_of_single_rows_are_listed, test_methods_count())
{
    const struct method *m = test_methods[_i];
    size_t n = strlen(m->name), at = 0;
    while (m->decode.each_row && strncmp(stateless[at], m->name, n) != 0)
        ck_assert_msg(++at < sizeof stateless / sizeof *stateless, "%s", m->name);
}

static void run_prefill(struct layer *l, int h, const char *text, struct tap *tap)
{
    OWN(run_free) struct method_run *run = run_of(text);
    OWN(record_free) struct record r;
    struct method_ctx ctx = {.seed = 7, .session = run->session};
    struct sim_cell cell = {.method = run->method,
                            .params = run->params,
                            .ctx = &ctx,
                            .in = &l->heads[h].in,
                            .sink = tap_rows,
                            .sink_ctx = tap};
    record_init(&r);
    MUST(sim_run(&cell, &r, ERR));
    ck_assert_msg(r.status == RECORD_OK, "%s: %s", text, r.reason);
}

/* A method without state keeps the same keys in both phases. */
TEST_EACH(a_row_is_the_same_in_both_phases, stateless)
{
    enum { N = 48, PROMPT = 30, HEADS = 4 };
    OWN(layer_free) struct layer l;
    random_layer(&l, HEADS, 2, PROMPT, N - PROMPT, PROMPT);
    RUN(d, &l, stateless[_i]);
    for (int h = 0; h < HEADS; h++) {
        uint64_t kept[N] = {0};
        double out[N];
        run_prefill(&l, h, stateless[_i], &(struct tap){kept, out});
        for (int t = 0; t < N - PROMPT; t++)
            ck_assert_msg(d.kept[h][t] == kept[PROMPT + t], "%s, head %d, step %d", stateless[_i],
                          h, t);
    }
}

/* Rows whose keys fill several tiles of values, few of them and most of them. */
static const char *const outputs[] = {"dense",
                                      "streaming:sink=2:window=90",
                                      "streaming:sink=2:window=180",
                                      "ds:budget=70:channels=1+3+2:label_bits=16",
                                      "twilight:select=all:p=0.7:dense_layers=0",
                                      "oracle:alpha=0.9",
                                      "oracle:kind=value:alpha=0.4"};

TEST_EACH(outputs_are_those_of_the_prefill, outputs)
{
    enum { PROMPT = 150, HEADS = 2 };
    OWN(layer_free) struct layer l;
    random_layer(&l, HEADS, 2, PROMPT, LONGEST - PROMPT, PROMPT);
    RUN(d, &l, outputs[_i]);
    for (int h = 0; h < HEADS; h++) {
        uint64_t kept[LONGEST] = {0};
        double out[LONGEST];
        run_prefill(&l, h, outputs[_i], &(struct tap){kept, out});
        for (int t = 0; t < LONGEST - PROMPT; t++) {
            ck_assert_uint_eq(d.kept[h][t], kept[PROMPT + t]);
            ck_assert_double_eq_tol(d.out[h][t], out[PROMPT + t], 1e-12);
        }
    }
}

/* ---- a replay ------------------------------------------------------------------------------- */

struct plan {
    struct replay r;
    struct method_run *runs;
    int64_t n_runs;
};

static void replay_run(const char *trace, const char *records, int jobs, int64_t shard,
                       int64_t shards, int64_t *done)
{
    static const char *const texts[] = {"dense", "evict:by=tova,h2o,knorm:capacity=12",
                                        "evict:by=adakv:window=4:capacity=12", "minference"};
    struct plan p = {.r = {.decode = true, .load = {.precision = PREC_F64}}};
    struct call_select sel = {NULL, NULL, NULL, NULL};
    char *args[] = {(char *)(uintptr_t)trace};
    MUST(method_runs_parse_all(test_methods, (char *const *)(uintptr_t)texts, 4, &p.runs, &p.n_runs,
                               ERR));
    p.r.runs = p.runs;
    p.r.n_runs = p.n_runs;
    MUST(traces_open(args, 1, &p.r.traces, &p.r.n_traces, ERR));
    MUST(record_file_open(records, &p.r.records, ERR));
    MUST(replay_plan(&p.r, &sel, ERR));
    MUST(replay_shard(&p.r, &(struct shard){.index = shard, .count = shards}, ERR));
    MUST(replay_groups(&p.r, ERR));
    MUST(replay_execute(&p.r, jobs, ERR));
    *done = p.r.done_ok + p.r.done_skip + p.r.done_error;
    record_file_close(&p.r.records);
    replay_free(&p.r);
    method_runs_free(p.runs, p.n_runs);
}

static int by_key(const void *a, const void *b)
{
    OWN(buf_free) struct buf x = {0};
    OWN(buf_free) struct buf y = {0};
    record_key(a, &x);
    record_key(b, &y);
    return strcmp(buf_str(&x), buf_str(&y));
}

/* Both files hold the same records, in whatever order. */
static void assert_same(const char *a, const char *b, int64_t want)
{
    struct record *x = NULL, *y = NULL;
    int64_t nx, ny;
    MUST(records_load(a, &x, &nx, ERR));
    MUST(records_load(b, &y, &ny, ERR));
    ck_assert_int_eq(nx, want);
    ck_assert_int_eq(ny, want);
    qsort(x, (size_t)nx, sizeof *x, by_key);
    qsort(y, (size_t)ny, sizeof *y, by_key);
    for (int64_t i = 0; i < nx; i++) {
        ck_assert_int_eq(by_key(x + i, y + i), 0);
        ck_assert_int_eq(x[i].scope, RECORD_OF_DECODE);
        ck_assert_int_eq(x[i].n_q, 10);
        ck_assert_int_eq(x[i].status, y[i].status);
        ck_assert_int_eq(record_metrics(x + i), record_metrics(y + i));
        for (int64_t m = 0; m < record_metrics(x + i); m++)
            ck_assert_double_eq(x[i].values[m], record_get(y + i, record_metric_name(x + i, m)));
    }
    records_free(x, nx);
    records_free(y, ny);
}

TEST(a_replay_resumes_and_does_not_depend_on_threads_or_shards)
{
    struct trace_meta m = fixture_decode(DT_F32);
    const char *trace = test_path("t.h5"), *one = test_path("one.jsonl"),
               *two = test_path("two.jsonl");
    int64_t done;
    MUST(fixture_write(trace, &m, 2, ERR));
    replay_run(trace, one, 1, 0, 1, &done);
    ck_assert_int_eq(done, 2 * 4 * 6); /* layers, heads, settings */
    replay_run(trace, two, 2, 0, 2, &done);
    ck_assert_int_eq(done, 4 * 6); /* a layer stays together */
    replay_run(trace, two, 2, 1, 2, &done);
    ck_assert_int_eq(done, 4 * 6);
    assert_same(one, two, 2 * 4 * 6);
    replay_run(trace, one, 2, 0, 1, &done);
    ck_assert_int_eq(done, 0);
    ck_assert_int_eq(truncate(one, 0), 0);
    replay_run(trace, one, 2, 0, 1, &done);
    assert_same(one, two, 2 * 4 * 6);
}

TEST(what_the_decode_phase_refuses)
{
    struct trace_meta m = fixture_decode(DT_F32);
    const char *trace = test_path("r.h5");
    char *args[] = {(char *)(uintptr_t)trace};
    static const char *const texts[] = {"oracle@density_elem=0.2", "dense"};
    MUST(fixture_write(trace, &m, 1, ERR));
    for (int i = 0; i < 2; i++) {
        struct replay r = {.decode = true};
        struct call_select sel = {.heads = i ? "0-1" : "all"};
        struct method_run *runs = NULL;
        MUST(method_runs_parse_all(test_methods, (char *const *)(uintptr_t)(texts + i), 1, &runs,
                                   &r.n_runs, ERR));
        r.runs = runs;
        MUST(traces_open(args, 1, &r.traces, &r.n_traces, ERR));
        FAILS(replay_plan(&r, &sel, ERR), ERR_USAGE, i ? "all heads of a layer" : "sweep");
        replay_free(&r);
        method_runs_free(runs, 1);
    }
    m = fixture_text(DT_F32, 2, 2, 20);
    OWN(replay_free) struct replay r = {.decode = true};
    MUST(fixture_write(args[0] = (char *)(uintptr_t)test_path("p.h5"), &m, 1, ERR));
    MUST(traces_open(args, 1, &r.traces, &r.n_traces, ERR));
    FAILS(traces_decode(r.traces, 1, ERR), ERR_INPUT, "--generate");
}
