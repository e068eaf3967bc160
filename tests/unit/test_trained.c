/* Selectors that were trained with their model: operands, masks and refusals worked out by hand.
 * tests/numpy/check_selectors.py has them again on random data, tests/torch/test_trained.py against
 * models. */
#include "tests/harness/methodrun.h"

/* Operands of layer 4; the other layers have none. */
struct given {
    struct aux_shape shape[AUX_COUNT];
    const float *x[AUX_COUNT];
};

static int give(const struct head_in *in, int layer, enum trace_aux which, struct aux_shape *shape,
                float **x, struct err *err)
{
    const struct given *g = in->operand_from;
    size_t bytes;
    (void)err;
    *shape = layer == 4 ? g->shape[which] : (struct aux_shape){0};
    bytes = (size_t)(shape->heads * shape->rows * shape->dim) * sizeof **x;
    if (x && bytes)
        *x = memcpy(malloc(bytes), g->x[which], bytes);
    return 0;
}

/* A causal head of n keys and nq queries, all zeros, in layer 4. */
static int zeros(int64_t nq, int64_t nk, const struct given *g, struct sim_head *h, struct err *err)
{
    OWN(free_at) float *x = calloc((size_t)nk, sizeof *x);
    struct head_in in = one_head(x, x, x, nq, nk, 1, true);
    in.layer = 4;
    in.operand = give;
    in.operand_from = g;
    return head_init(h, &in, PREC_F64, err);
}

/* The keys or blocks that a row keeps, as digits. */
static void keeps(const char *text, const struct head_in *in, int64_t row, int64_t unit,
                  const char *want)
{
    OWN(free_at) uint8_t *bits = run_bits(text, in);
    char got[64] = {0};
    for (int64_t j = 0, n = 0; j < in->x.nk; j += unit)
        if (bits[row * in->x.nk + j])
            n += snprintf(got + n, sizeof got - (size_t)n, "%lld", (long long)(j / unit));
    ck_assert_msg(strcmp(got, want) == 0, "%s: row %lld keeps %s, expected %s", text,
                  (long long)row, got, want);
}

/* ---- dsa ------------------------------------------------------------------------------------- */

/* Scores 1.5, 1, 2, 1; without max(0, .) they would be 1.5, -2, 1.5, 1. */
static const float iq[2][4][2] = {{{0}, {0}, {0}, {1, 0}}, {{0}, {0}, {0}, {0, 1}}};
static const float ik[4][2] = {{1, 1}, {2, -3}, {-1, 2}, {0, 1}},
                   iw[2][4] = {{0, 0, 0, .5f}, {0, 0, 0, 1}};
static const struct given index_of = {
    .shape = {[AUX_IQ] = {2, 4, 2}, [AUX_IK] = {1, 4, 2}, [AUX_IW] = {2, 4, 1}},
    .x = {[AUX_IQ] = iq[0][0], [AUX_IK] = ik[0], [AUX_IW] = iw[0]},
};

TEST(an_index_ranks_tokens)
{
    HEAD(h, zeros, 4, 4, &index_of);
    keeps("dsa:topk=2", &h.in, 3, 1, "02");
    keeps("dsa:topk=3", &h.in, 3, 1, "012");
    keeps("dsa:topk=3:emulate=fp8", &h.in, 3, 1, "012"); /* whole numbers below 16 are e4m3 */
    keeps("dsa:topk=1", &h.in, 2, 1, "0");               /* all scores are 0 */
    keeps("dsa", &h.in, 3, 1, "0123");
    RUN(r, "dsa:topk=3", &h.in);
    HAS(&r, 0, "cost_select_flops", 2 * 4 * (2 * 2 + 2)); /* one row of 2 heads, 4 keys */
}

/* Scores 449, 450 and 451 of one channel: by a scale of 2 they become 448, 448 and 448. */
TEST(an_index_of_eight_bits)
{
    static const float q[] = {0, 0, 1}, k[] = {449, 450, 451}, w[] = {0, 0, 1};
    const struct given g = {
        .shape = {[AUX_IQ] = {1, 3, 1}, [AUX_IK] = {1, 3, 1}, [AUX_IW] = {1, 3, 1}},
        .x = {[AUX_IQ] = q, [AUX_IK] = k, [AUX_IW] = w},
    };
    HEAD(h, zeros, 3, 3, &g);
    keeps("dsa:topk=1", &h.in, 2, 1, "2");
    keeps("dsa:topk=1:emulate=fp8", &h.in, 2, 1, "0");
}

TEST(layers_that_share_an_index)
{
    HEAD(h, zeros, 4, 4, &index_of);
    h.in.layer = 6;
    assert_skips("dsa", &h.in, "no aux/iq of layer 6: record it with cap.aux(6, \"iq\", x)");
    assert_skips("dsa:share=2", &h.in, "of layer 6");
    keeps("dsa:topk=2:share=4", &h.in, 3, 1, "02");
    keeps("dsa:topk=2:share=0", &h.in, 3, 1, "02");
    h.in.layer = 3;
    assert_skips("dsa:share=0", &h.in, "no aux/iq of layer 0");
    h.in.operand = NULL;
    assert_skips("dsa", &h.in, "neither inside of a model nor behind then=");
}

/* ---- seer ------------------------------------------------------------------------------------ */

/* Gates whose softmax over the blocks up to a row's own is 1 | .7 .3 | .9 .0985 .0015 | .5 .499
 * .0005 .0005: query i has the i-th channel alone. */
static const float shares[4][4] = {
    {1, .7f, .9f, .5f}, {1, .3f, .0985f, .499f}, {1, 1, .0015f, .0005f}, {1, 1, 1, .0005f}};
static float gate_q[4][4], gate_k[4][4];
static const struct given gates = {
    .shape = {[AUX_GATE_Q] = {1, 4, 4}, [AUX_GATE_K] = {1, 4, 4}},
    .x = {[AUX_GATE_Q] = gate_q[0], [AUX_GATE_K] = gate_k[0]},
};

static void set_gates(void)
{
    for (int i = 0; i < 4; i++)
        for (int c = 0; c < 4; c++) {
            gate_q[i][c] = i == c ? 2 : 0; /* over sqrt(4) */
            gate_k[i][c] = logf(shares[i][c]);
        }
}

static const struct {
    const char *text, *rows[4];
} gated[] = {
    {"seer:block=2", {"0", "01", "012", "0123"}}, /* the last two are dense */
    {"seer:block=2:last_dense=0", {"0", "01", "01", "01"}},
    {"seer:block=2:last_dense=0:threshold=0.31", {"0", "0", "0", "01"}},
    {"seer:block=2:last_dense=0:nz=0.5", {"0", "0", "0", "0"}},
    {"seer:block=2:last_dense=0:nz=0.9", {"0", "01", "01", "01"}},
};

TEST_EACH(a_gate_keeps_blocks, gated)
{
    set_gates();
    for (int odd = 0; odd < 2; odd++) { /* the last block has two tokens, or one */
        HEAD(h, zeros, 8 - odd, 8 - odd, &gates);
        for (int i = 0; i < 4; i++)
            keeps(gated[_i].text, &h.in, 2 * i, 2, gated[_i].rows[i]);
    }
}

/* int((1 - sqrt(1 - nz)) n) blocks, at least one. */
static const struct {
    int64_t n, kept;
    const char *nz;
} numbers[] = {{4, 1, "0.1"},   {4, 1, "0.5"},    {4, 2, "0.9"},
               {100, 5, "0.1"}, {100, 29, "0.5"}, {100, 68, "0.9"}};

TEST_EACH(shares_of_pairs, numbers)
{
    int64_t n = numbers[_i].n;
    char text[64];
    OWN(free_at) float *x = calloc((size_t)n, sizeof *x);
    const struct given g = {
        .shape = {[AUX_GATE_Q] = {1, n, 1}, [AUX_GATE_K] = {1, n, 1}},
        .x = {[AUX_GATE_Q] = x, [AUX_GATE_K] = x},
    };
    HEAD(h, zeros, n, n, &g);
    snprintf(text, sizeof text, "seer:block=1:last_dense=0:nz=%s", numbers[_i].nz);
    OWN(free_at) uint8_t *bits = run_bits(text, &h.in);
    for (int64_t j = 0; j < n; j++)
        ck_assert_int_eq(bits[(n - 1) * n + j], j < numbers[_i].kept); /* ties: the lower */
}

/* Rows 5, 6 and 7 have gates; row 6 has an incomplete block of key 0: its logit is 0 = ln 1. */
TEST(a_gate_of_generated_tokens)
{
    static const float q[3] = {1, 1, 1};
    const float k[4] = {logf(4), logf(2), logf(3), logf(0.5f)};
    const struct given g = {
        .shape = {[AUX_GATE_Q] = {1, 3, 1}, [AUX_GATE_K] = {1, 4, 1}},
        .x = {[AUX_GATE_Q] = q, [AUX_GATE_K] = k},
    };
    HEAD(h, zeros, 8, 8, &g);
    static const char *const text = "seer:profile=decode:block=2:threshold=0.29";
    keeps(text, &h.in, 4, 2, "012"); /* no gate */
    keeps(text, &h.in, 5, 2, "02");  /* 4 2 3 of 9 */
    keeps(text, &h.in, 6, 2, "023"); /* 4 2 3 1 of 10 */
    keeps(text, &h.in, 7, 2, "023"); /* 4 2 3 .5 of 9.5 */
    keeps("seer:profile=decode:block=2:budget=2", &h.in, 7, 2, "03");
    keeps("seer:profile=decode:block=2:budget=5", &h.in, 7, 2, "023");
    keeps("seer:profile=decode:block=2:budget=6", &h.in, 5, 2, "012");
    keeps("seer:profile=decode:block=2:budget=8", &h.in, 7, 2, "0123");
}

TEST(what_does_not_fit_a_gate)
{
    struct record r;
    OWN(run_free) struct method_run *run = run_of("seer:block=3");
    struct method_ctx ctx = {.seed = 1};
    HEAD(h, zeros, 8, 8, &gates);
    struct sim_cell cell = {.method = run->method, .params = run->params, .ctx = &ctx, .in = &h.in};
    record_init(&r);
    FAILS(sim_run(&cell, &r, ERR), ERR_INPUT,
          "do not fit profile=prefill, 8 queries and blocks of 3");
    record_free(&r);
    h.in.layer = 0;
    assert_skips("seer", &h.in, "no aux/gate_q of layer 0");
    HEAD(part, zeros, 4, 8, &gates);
    assert_skips("seer:block=2", &part.in, "whole prompts only");
    assert_refused("seer:threshold=0.1:nz=0.3", "give one");
}
