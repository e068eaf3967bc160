/* Row-wise methods of decoding, quest, ds and twilight: choices worked out by hand. tests/numpy
 * compares their masks on random data with the published rules. */
#include "sim/blocks/rowselect.h"
#include "tests/harness/conform.h"

/* The kept keys of the last of the rows, "1 2 5", and the record of the run. */
static const char *kept(const char *text, const struct head_in *in, struct record *r)
{
    static char out[200];
    uint8_t bits[400];
    OWN(buf_free) struct buf b = {0};
    ck_assert_int_le(in->x.nq * in->x.nk, sizeof bits);
    run_text_carry(text, in, NULL, 1, sink_bits, bits, r);
    ck_assert_msg(r->status == RECORD_OK, "%s: %s", text, r->reason);
    for (int64_t j = 0; j < in->x.nk; j++)
        if (bits[(in->x.nq - 1) * in->x.nk + j])
            buf_printf(&b, "%s%lld", b.len ? " " : "", (long long)j);
    snprintf(out, sizeof out, "%s", buf_str(&b));
    return out;
}

static void keeps(const char *text, const struct head_in *in, const char *want, double recall)
{
    OWN(record_free) struct record r;
    const char *have = kept(text, in, &r);
    ck_assert_msg(strcmp(have, want) == 0, "%s keeps %s", text, have);
    ck_assert_double_eq_tol(record_get(&r, "cra_mean"), recall, 1.5e-6);
}

/* ---- quest ---------------------------------------------------------------------------------- */

static const float pages[16] = {1, 0, 0, 1, 2, -1, -1, 2, 0, 0, 1, 1, -2, 3, 3, -2};

TEST(pages_of_largest_bound)
{
    static const float q[2] = {1, -1};
    OWN(sim_head_free) struct sim_head h;
    struct head_in in = one_head(q, pages, pages, 1, 8, 2, true);

    MUST(head_init(&h, &in, PREC_F64, ERR));
    keeps("quest:dense_layers=0:page=2:floor=1:budget=2", &h.in, "6 7", 0.725663);
    keeps("quest:dense_layers=0:page=2:floor=1:budget=4", &h.in, "2 3 6 7", 0.904467);
    keeps("quest:dense_layers=0:page=2:budget=2", &h.in, "0 1 2 3 6 7", 0.957740);
    keeps("quest:dense_layers=0:page=2:budget=4:profile=kernel", &h.in, "2 3 6 7", 0.904467);
    keeps("quest:page=2:budget=2:profile=frontier", &h.in, "2 3 6 7", 0.904467);
    keeps("quest:dense_layers=0:page=2:budget=8:profile=kernel", &h.in, "0 1 2 3 4 5 6 7", 1);
    keeps("quest:budget=2:page=2", &h.in, "0 1 2 3 4 5 6 7", 1); /* layer 0 */

    keeps("oracle:kind=topk:k=2", &h.in, "2 7", 0.901318);
    keeps("oracle:kind=topk:k=4", &h.in, "0 2 4 7", 0.965302);

    OWN(key_pages_free) struct key_pages p;
    MUST(key_pages_init(&p, &h.in.x, 2, false, ERR));
    ck_assert_int_eq(key_pages_bounds(&p, q, 8), 4);
    ck_assert_double_eq(p.bound[0], 1);
    ck_assert_double_eq(p.bound[1], 3);
    ck_assert_double_eq(p.bound[2], 1);
    ck_assert_double_eq(p.bound[3], 5);
    ck_assert_int_eq(key_pages_bounds(&p, q, 7), 4); /* the row of token 6 does not see token 7 */
    ck_assert_double_eq(p.bound[3], -5);
}

/* What a step reads: 2 d numbers of every page beside its query. */
TEST(bounds_are_counted)
{
    OWN(sim_head_free) struct sim_head h;
    OWN(record_free) struct record r;
    conform_head(NORMAL, 4, 103, true, PREC_F64, &h);
    h.in.layer = 5;
    run_text("quest:floor=1:budget=32", &h.in, &r);
    ck_assert_double_eq(record_get(&r, "pages_bound"), 7);
    ck_assert_double_eq(record_get(&r, "pages_kept"), 2);
    ck_assert_double_eq(record_get(&r, "cost_select_flops"), 4 * 7 * 2 * 64);
    ck_assert_double_eq(record_get(&r, "cost_select_bytes"), (4 + 2 * 4 * 7) * 64 * 4);
}

/* ---- ds ------------------------------------------------------------------------------------- */

TEST(channels_that_matter)
{
    static const float q[8] = {1, 0, 2, -1, 0, 1, 1, 1}, k[8] = {1, 3, 0, 1, 2, 0, 1, 0};
    struct attn_in x = {.nq = 2, .nk = 2, .d = 4, .q = q, .k = k};
    double sum[4] = {0};
    int64_t channel[4];

    ck_assert_int_eq(channel_products(&x, sum), 2);
    ck_assert_double_eq(sum[0] / 2, 0.5);
    ck_assert_double_eq(sum[1] / 2, 0);
    ck_assert_double_eq(sum[2] / 2, 0.5);
    ck_assert_double_eq(sum[3] / 2, 0.5);
    channels_of(sum, 4, 2, channel);
    ck_assert_int_eq(channel[0], 0);
    ck_assert_int_eq(channel[1], 2);
}

TEST(tokens_of_largest_label_score)
{
    static const float q[4] = {0, 1, 1, 1},
                       k[16] = {1, 3, 0, 1, 2, 0, 1, 0, 0, 1, -1, 2, -1, 0, 2, 2};
    OWN(sim_head_free) struct sim_head h;
    OWN(record_free) struct record r;
    struct head_in in = one_head(q, k, k, 1, 4, 4, true);

    MUST(head_init(&h, &in, PREC_F64, ERR));
    ck_assert_str_eq(kept("ds:channels=0+2:label_bits=16:budget=1", &h.in, &r), "3");
    record_free(&r);
    ck_assert_str_eq(kept("ds:channels=0+2:label_bits=16:budget=3", &h.in, &r), "0 1 3");
    record_free(&r);
    /* All channels: 4 1 2 4, of the equal ones the lower. */
    ck_assert_str_eq(kept("ds:channels=0+1+2+3:label_bits=16:budget=1", &h.in, &r), "0");
    assert_skips("ds:channels=1+4", &h.in, "channel 4 of a head of dimension 4");
}

/* ---- twilight ------------------------------------------------------------------------------- */

TEST(keys_on_a_grid)
{
    static const float x[3][4] = {{1, 0, .25F, -.5F}, {2, -1, .1F, .7F}, {.3F, -.3F, .1F, .2F}};
    static const float want[3][4] = {{1, 0, .3F, -.5F}, {2, -1, .2F, .6F}, {.3F, -.3F, .1F, .18F}};
    float out[4], equal[3] = {7, 7, 7};

    for (int i = 0; i < 3; i++) {
        token_quantise(x[i], 4, 4, out);
        for (int c = 0; c < 4; c++)
            ck_assert_float_eq_tol(out[c], want[i][c], 1e-6F);
        token_quantise(x[i], 4, 16, out);
        ck_assert_mem_eq(out, x[i], sizeof out);
    }
    token_quantise(equal, 3, 4, out);
    ck_assert_mem_eq(out, equal, sizeof equal);
}

/* Probabilities as a head: d = 1, q = 1, k = ln p. */
TEST(thresholds_of_both_profiles)
{
    static const struct {
        double mass[5], p;
        const char *official, *exact;
    } cases[] = {
        {{.5, .2, .15, .1, .05}, .8, "0 1 2", "0 1 2"},
        {{.5, .2, .15, .1, .05}, .86, "0 1 2 3", "0 1 2 3"},
        {{.1, .4, .3, .2}, .5, "0 1 2 3", "1 2"},
        {{0, .5, .3, .2}, .5, "1 2 3", "1"},
        {{.3, .3, .2, .2}, .5, "0 1", "0 1"},
    };
    static const float q = 1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int exact = 0; exact < 2; exact++) {
            OWN(sim_head_free) struct sim_head h;
            OWN(record_free) struct record r;
            float k[5];
            char text[120];
            int n = 0;
            for (; n < 5 && (n == 0 || cases[i].mass[n] > 0); n++)
                k[n] = cases[i].mass[n] > 0 ? (float)log(cases[i].mass[n]) : -1000;
            struct head_in in = one_head(&q, k, k, 1, n, 1, true);
            MUST(head_init(&h, &in, PREC_F64, ERR));
            snprintf(text, sizeof text, "twilight:dense_layers=0:select=all:bits=16:p=%g%s",
                     cases[i].p, exact ? ":profile=exact" : "");
            ck_assert_str_eq(kept(text, &h.in, &r), exact ? cases[i].exact : cases[i].official);
        }
}

TEST(estimates_of_four_bits)
{
    static const float q[4] = {1, 1, 0, -1}, k[16] = {1, 0,  .25F, -.5F, .3F, -.3F, .1F, .2F,
                                                      2, -1, .1F,  .7F,  -1,  -1,   1,   1};
    OWN(sim_head_free) struct sim_head h;
    OWN(record_free) struct record r;
    struct head_in in = one_head(q, k, k, 1, 4, 4, true);

    MUST(head_init(&h, &in, PREC_F64, ERR));
    keeps("twilight:dense_layers=0:select=all", &h.in, "0 1 2", .480394 + .205327 + .263646);
    keeps("twilight:dense_layers=0:select=all:p=0.7", &h.in, "0 2", .480394 + .263646);
    keeps("twilight:dense_layers=0:select=all:p=0.7:profile=exact", &h.in, "0 2",
          .480394 + .263646);
    /* Estimates .473024 .204209 .272911 .049856: p is between sums of them. */
    keeps("twilight:dense_layers=0:select=all:p=0.9501:profile=exact", &h.in, "0 1 2", .949367);
    keeps("twilight:dense_layers=0:select=all:p=0.9502:profile=exact", &h.in, "0 1 2 3", 1);
    keeps("twilight:dense_layers=0:select=all:p=0.9501:profile=exact:bits=16", &h.in, "0 1 2 3", 1);
    run_text("twilight:dense_layers=0:select=quest:page=2:budget=2:p=0.3", &h.in, &r);
    ck_assert_double_eq(record_get(&r, "budget_select"), 2);
    ck_assert_double_eq(record_get(&r, "budget_final"), 1);
    ck_assert_double_eq_tol(record_get(&r, "recall_select"), .480394 + .205327, 1e-6);
}

/* The first stage keeps what its selector keeps. */
TEST(recall_of_the_first_stage)
{
    static const char *const texts[][2] = {
        {"twilight:dense_layers=0:page=4:budget=24:p=0.5",
         "quest:dense_layers=0:page=4:budget=24:floor=1"},
        {"twilight:dense_layers=0:select=ds:budget=24:p=0.5", "ds:budget=24"},
        {"twilight:dense_layers=0:select=all:p=0.5", "dense"}};
    HEAD(h, random_head, 3, 90, 90, 16, true, 2, PREC_F64);
    for (int i = 0; i < 3; i++) {
        RUN(both, texts[i][0], &h.in);
        RUN(first, texts[i][1], &h.in);
        ck_assert_double_eq_tol(record_get(&both, "recall_select"), record_get(&first, "cra_mean"),
                                1e-12);
        ck_assert_double_lt(record_get(&both, "cra_mean"), record_get(&first, "cra_mean"));
    }
}

/* ---- all of them ---------------------------------------------------------------------------- */

/* A whole prompt is dense with rows=decode, a few last rows are not; layers that stay dense are. */
TEST(what_stays_dense)
{
    static const char *const texts[] = {"quest:floor=1:budget=16:dense_layers=%d",
                                        "ds:budget=16:dense_layers=%d",
                                        "twilight:budget=16:page=4:dense_layers=%d"};
    for (int i = 0; i < 3; i++)
        for (int n = 0; n < 8; n++) {
            OWN(sim_head_free) struct sim_head h;
            OWN(record_free) struct record r;
            char text[120], at[100];
            bool decode = n & 1, prompt = n & 2, layer = n & 4;
            conform_head(NORMAL, prompt ? 90 : 7, 90, true, PREC_F64, &h);
            h.in.layer = 3;
            snprintf(at, sizeof at, texts[i], layer ? 4 : 3);
            snprintf(text, sizeof text, "%s%s", at, decode ? ":rows=decode" : "");
            run_text(text, &h.in, &r);
            ck_assert_msg((record_get(&r, "density_elem") == 1) == (layer || (decode && prompt)),
                          "%s: %g", text, record_get(&r, "density_elem"));
        }
}

/* A row of a prompt keeps what it keeps as a step of decoding. */
TEST(a_row_is_a_step)
{
    static const char *const texts[] = {"quest:floor=1:budget=32:dense_layers=0",
                                        "ds:budget=16:channels=3+7+60",
                                        "twilight:budget=48:dense_layers=0:p=0.6"};
    enum { N = 100, T = 9 };
    for (int i = 0; i < 3; i++) {
        OWN(sim_head_free) struct sim_head all, last;
        static uint8_t a[N * N], b[T * N];
        struct record r;
        conform_head(NORMAL, N, N, true, PREC_F64, &all);
        struct head_in in = all.in;
        in.x.nq = T;
        in.x.q += (N - T) * in.x.d;
        MUST(head_init(&last, &in, PREC_F64, ERR));
        run_text_carry(texts[i], &all.in, NULL, 1, sink_bits, a, &r);
        record_free(&r);
        run_text_carry(texts[i], &last.in, NULL, 1, sink_bits, b, &r);
        record_free(&r);
        ck_assert_mem_eq(a + (N - T) * N, b, sizeof b);
    }
}

TEST(what_is_no_setting_is_refused)
{
    assert_refused("quest:profile=kernel:floor=2", "floor");
    assert_refused("ds:channels=1+x", "channels");
    assert_refused("twilight:channels=1+2", "channels");
}

/* calibrate writes the channels that the samples together find. */
TEST(calibrated_channels)
{
    static const float q[8] = {1, 0, 2, -1, 0, 1, 1, 1}, k[8] = {1, 3, 0, 1, 2, 0, 1, 0};
    OWN(sim_head_free) struct sim_head h;
    struct head_in in = one_head(q, k, k, 2, 2, 4, true);
    OWN(json_decrefp) json_t *doc = NULL;

    MUST(head_init(&h, &in, PREC_F64, ERR));
    MUST(calibrate_text("ds:group_factor=2", &h.in, 1, &doc, ERR));
    ck_assert_str_eq(json_string_value(json_object_get(doc, "channels")), "0+2");
}
