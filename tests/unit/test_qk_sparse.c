/* QK-sparse attention: kept tokens and tiles worked out by hand, masks of the shipped language
 * model whose counts and recalls were computed elsewhere. */
#include "tests/harness/conform.h"

static const struct {
    const char *text;
    double keys, pairs, mean;
} code[] = {
    {"qk-sparse:select=knorm", 385, 138218, 0.695440},
    {"qk-sparse:select=mass", 385, 164538, 0.871045},
};

TEST_N(masks_of_the_language_model, 2)
{
    HEAD(h, golden_code_lm, 5, 0, PREC_F64);
    RUN(r, code[_i].text, &h.in);
    ck_assert_double_eq(record_get(&r, "keys_kept"), code[_i].keys);
    ck_assert_double_eq(record_get(&r, "queries_kept"), 770);
    ck_assert_double_eq(record_get(&r, "pairs_kept"), code[_i].pairs);
    ck_assert_double_eq_tol(record_get(&r, "cra_mean"), code[_i].mean, 5e-7);
}

/* Norms of the keys of ten tokens, of which two pairs are equal. */
static void ten_tokens(bool causal, struct sim_head *h)
{
    static const float k[10] = {1, 5, 3, -5, 2, 0, 3, 9, 4, 1}, q[10] = {0};
    struct head_in in = one_head(q, k, k, 10, 10, 1, causal);
    MUST(head_init(h, &in, PREC_F64, ERR));
}

/* Kept are ceil(0.45 * 10) = 5 keys: 7, 1, 3, 8 and of the equal ones 2 and 6 the lower. */
TEST(the_largest_keys_stay)
{
    static const int keep[10] = {0, 1, 1, 1, 0, 0, 0, 1, 1, 0};
    for (int by_v = 0; by_v < 2; by_v++)
        for (int causal = 0; causal < 2; causal++) {
            OWN(sim_head_free) struct sim_head h;
            OWN(record_free) struct record r;
            uint8_t bits[100];
            ten_tokens(causal, &h);
            run_text_carry(by_v ? "qk-sparse:select=vnorm:drop=0.55"
                                : "qk-sparse:select=knorm:drop=0.55",
                           &h.in, NULL, 1, sink_bits, bits, &r);
            for (int i = 0; i < 10; i++)
                for (int j = 0; j < 10; j++)
                    ck_assert_int_eq(bits[i * 10 + j], keep[j] && (j <= i || !causal));
            ck_assert_double_eq(record_get(&r, "keys_kept"), 5);
            ck_assert_double_eq(record_get(&r, "rows_empty"), causal);
            ck_assert_double_eq(record_get(&r, "pairs_exec"), 128 * 128);
        }
}

/* Queries of a head and keys of a kv head are drawn each by themselves, (1 - drop) of them. */
TEST(random_tokens)
{
    enum { N = 2000 };
    static uint8_t bits[N * N];
    struct record r;
    double kept[2];
    HEAD(h, random_head, 3, N, N, 4, false, 1, PREC_F32);
    for (int head = 0; head < 2; head++) {
        h.in.head = head; /* of one kv head */
        run_text_carry("qk-sparse:drop=0.7", &h.in, NULL, 1, sink_bits, bits, &r);
        double queries = record_get(&r, "queries_kept"), keys = record_get(&r, "keys_kept");
        ck_assert_double_eq_tol(queries, 0.3 * N, 4.5 * sqrt(0.21 * N));
        ck_assert_double_eq_tol(keys, 0.3 * N, 4.5 * sqrt(0.21 * N));
        ck_assert_double_eq(record_get(&r, "pairs_kept"), queries * keys);
        ck_assert_double_eq(record_get(&r, "rows_empty"), N - queries);
        ck_assert_double_eq(record_get(&r, "pairs_exec"),
                            ceil(queries / 128) * ceil(keys / 128) * 128 * 128);
        kept[head] = keys;
        record_free(&r);
    }
    ck_assert_double_eq(kept[0], kept[1]);
    run_text("qk-sparse:drop=0.7:drop_q=0", &h.in, &r);
    ck_assert_double_eq(record_get(&r, "queries_kept"), N);
    ck_assert_double_eq(record_get(&r, "keys_kept"), kept[0]);
    record_free(&r);
}

/* All kept: tiles of the causal triangle, 1 + 2 + 3 of 300 tokens. */
TEST(tiles_of_all_tokens)
{
    OWN(sim_head_free) struct sim_head h;
    conform_head(NORMAL, 300, 300, true, PREC_F64, &h);
    RUN(r, "qk-sparse:drop=0", &h.in);
    ck_assert_double_eq(record_get(&r, "density_elem"), 1);
    ck_assert_double_eq(record_get(&r, "pairs_exec"), 6 * 128 * 128);
}
