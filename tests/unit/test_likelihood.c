/* Likelihoods and divergences against numbers worked out by hand: three positions, four tokens.
 *
 *   p        (1/2 1/4 1/8 1/8)   uniform   (1/8 1/8 1/4 1/2)
 *   q        (1/4 1/2 1/8 1/8)   uniform   (1/8 1/8 1/2 1/4)
 *   target    0                  1          3
 */
#include "eval/likelihood.h"
#include "tests/harness/suite.h"

#include <math.h>
#include <string.h>

enum { V = 4, ROWS = 4 };

static struct err err;

/* A model whose logits are its hidden state. */
static void open_model(struct llm_model *m)
{
    float eye[V * V] = {0};
    for (int i = 0; i < V; i++)
        eye[i * V + i] = 1;
    struct st_out t = {"head", DT_F32, 2, {V, V}, eye};
    const char *path = test_path("head.safetensors");
    assert_ok(st_write(path, &t, 1, &err), &err);
    memset(m, 0, sizeof *m);
    m->c.hidden = m->c.vocab = V;
    assert_ok(st_open(path, &m->file, &err), &err);
    m->head = st_find(m->file, "head");
}

static const double p[ROWS][V] = {
    {.5, .25, .125, .125}, {.25, .25, .25, .25}, {.125, .125, .25, .5}, {.25, .25, .25, .25}};
static const double q[ROWS][V] = {
    {.25, .5, .125, .125}, {.25, .25, .25, .25}, {.125, .125, .5, .25}, {.25, .25, .25, .25}};
static const int32_t tokens[ROWS] = {2, 0, 1, 3};

static void score(double shift, struct scores s[2])
{
    OWN(llm_close) struct llm_model m;
    struct stream streams[2] = {{0}};
    float h[2][ROWS * V];
    struct lockstep l = {.model = &m, .jobs = 2, .s = streams, .n_streams = 2, .n = ROWS};
    open_model(&m);
    for (int i = 0; i < ROWS * V; i++) {
        h[0][i] = (float)log(p[i / V][i % V]);
        h[1][i] = (float)(log(q[i / V][i % V]) + shift);
    }
    streams[0].h = h[0];
    streams[1].h = h[1];
    assert_ok(likelihood_add(&l, tokens, 1, s, &err), &err);
}

static void near(const struct record *r, const char *name, double want)
{
    ck_assert_msg(fabs(record_get(r, name) - want) < 2e-6, "%s: %.9g, wanted %.9g", name,
                  record_get(r, name), want);
}

/* A constant added to all logits changes nothing. */
TEST_N(numbers_by_hand, 2)
{
    struct scores s[2] = {{0}};
    struct record r;
    score(_i * 4.0, s);
    ck_assert_int_eq(s[1].n, 3);
    record_init(&r);
    assert_ok(likelihood_record(s + 1, s, &r, &err), &err);
    near(&r, "tokens_scored", 3);
    near(&r, "nll_mean", 1.386294);
    near(&r, "nll_mean_dense", 0.924196);
    near(&r, "ppl", 4);
    near(&r, "ppl_dense", 2.519842);
    near(&r, "nll_delta", 0.462098);
    near(&r, "nll_delta_se", 0.231049);
    near(&r, "ppl_ratio", 1.587401);
    near(&r, "kl_mean", 0.115525);
    near(&r, "kl_p50", 0.173287);
    near(&r, "kl_p99", 0.173287);
    near(&r, "kl_max", 0.173287);
    near(&r, "top1_agree", 1.0 / 3);
    near(&r, "top1_acc", 0);
    near(&r, "top1_acc_dense", 2.0 / 3);
    near(&r, "p_rms", 0.204124);
    near(&r, "nll_sum", 3 * 1.386294361);
    ck_assert(isnan(record_get(&r, "nll_mean@0-256"))); /* one range: nothing to tell apart */
    record_free(&r);
    scores_free(s);
    scores_free(s + 1);
}

TEST(exact_attention_is_itself)
{
    struct scores s[2] = {{0}};
    struct record r;
    score(0, s);
    record_init(&r);
    assert_ok(likelihood_record(s, s, &r, &err), &err);
    ck_assert_double_eq(record_get(&r, "kl_max"), 0);
    ck_assert_double_eq(record_get(&r, "nll_delta"), 0);
    ck_assert_double_eq(record_get(&r, "top1_agree"), 1);
    record_free(&r);
    scores_free(s);
    scores_free(s + 1);
}

/* Positions of two windows fall into their ranges. */
TEST(ranges_of_positions)
{
    struct scored v[] = {{.nll = 1, .pos = 255, .agree = true},
                         {.nll = 2, .pos = 256},
                         {.nll = 4, .pos = 1023, .agree = true},
                         {.nll = 8, .pos = 40000}};
    struct scores s = {v, 4, 4};
    OWN(record_free) struct record r;
    record_init(&r);
    assert_ok(likelihood_record(&s, &s, &r, &err), &err);
    near(&r, "nll_mean@0-256", 1);
    near(&r, "nll_mean@256-1024", 3);
    near(&r, "top1_agree@256-1024", 0.5);
    near(&r, "nll_mean@32768-65536", 8);
    ck_assert(isnan(record_get(&r, "nll_mean@1024-4096")));
}
