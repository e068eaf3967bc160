/* Hash-sparse attention: buckets, kept pairs and executed tiles worked out by hand, and masks of
 * the shipped models whose counts and recalls were computed elsewhere. */
#include "tests/harness/methodrun.h"

#include "core/mask.h"

/* A head of dimension d over the given queries and keys; values are 1. */
static void head_of(const float *q, const float *k, int64_t nq, int64_t nk, int d, bool causal,
                    struct sim_head *h)
{
    OWN(free_at) float *v = malloc((size_t)(nk * d) * sizeof *v);
    for (int64_t i = 0; i < nk * d; i++)
        v[i] = 1;
    struct head_in in = one_head(q, k, v, nq, nk, d, causal);
    in.x.scale = 1;
    MUST(head_init(h, &in, PREC_F64, ERR));
}

/* Four buckets in the plane: along +x, +y, -x, -y. */
static void put_bucket(int bucket, float x[2])
{
    x[0] = bucket == 0 ? 1 : bucket == 2 ? -1 : 0;
    x[1] = bucket == 1 ? 1 : bucket == 3 ? -1 : 0;
}

static void plane(const int *buckets, int64_t n, float *x)
{
    for (int64_t i = 0; i < n; i++)
        put_bucket(buckets[i], x + 2 * i);
}

/* ---- buckets -------------------------------------------------------------------------------- */

/* A vector between two directions goes to the first, the zero vector to bucket 0. */
TEST(buckets_by_hand)
{
    static const float x[7][2] = {{1, 0}, {0, 1}, {-1, 0}, {0, -1}, {1, 1}, {-1, -1}, {0, 0}};
    static const int want[7] = {0, 1, 2, 3, 0, 2, 0};
    static const int all[4] = {0, 1, 2, 3};
    float k[4][2];
    OWN(sim_head_free) struct sim_head h;
    OWN(record_free) struct record r;
    uint8_t bits[7 * 4] = {0};
    plane(all, 4, k[0]);
    head_of(x[0], k[0], 7, 4, 2, false, &h);
    run_text_carry("hash-sparse:buckets=4:proj_dir=axes", &h.in, NULL, 1, sink_bits, bits, &r);
    ck_assert_int_eq(r.status, RECORD_OK);
    for (int i = 0; i < 7; i++)
        for (int b = 0; b < 4; b++)
            ck_assert_int_eq(bits[i * 4 + b], b == want[i]);
    ck_assert_ptr_nonnull(strstr(buf_str(&r.notes), "buckets_q=3 1 2 1;buckets_k=1 1 1 1"));
    HAS(&r, 0, "bucket_most_q bucket_most_k", 3, 1);
}

/* ---- pairs ---------------------------------------------------------------------------------- */

static void assert_rows(const char *text, const struct head_in *in, const char *const *rows)
{
    OWN(record_free) struct record r;
    int64_t kept = 0, empty = 0;
    uint8_t bits[6 * 6] = {0};
    run_text_carry(text, in, NULL, 1, sink_bits, bits, &r);
    ck_assert_int_eq(r.status, RECORD_OK);
    for (int i = 0; i < 6; i++) {
        char got[8] = {0};
        for (int j = 0; j < 6; j++) {
            got[j] = bits[i * 6 + j] ? '1' : '.';
            kept += bits[i * 6 + j];
        }
        ck_assert_msg(strcmp(got, rows[i]) == 0, "%s: row %d is %s, expected %s", text, i, got,
                      rows[i]);
        empty += strcmp(got, "......") == 0;
    }
    HAS(&r, 0, "pairs_kept rows_empty", (double)kept, (double)empty);
}

TEST(pairs_by_hand)
{
    static const int q_buckets[] = {0, 1, 0, 1, 0, 0}, k_buckets[] = {0, 0, 1, 1, 0, 1};
    static const char *const loose[] = {"1.....", "......", "11....", "..11..", "11..1.", "11..1."};
    static const char *const strict[] = {"......", "......", "11....",
                                         "..1...", "11....", "11..1."};
    static const char *const all[] = {"11..1.", "..11.1", "11..1.", "..11.1", "11..1.", "11..1."};
    float q[6][2], k[6][2];
    struct sim_head h;
    plane(q_buckets, 6, q[0]);
    plane(k_buckets, 6, k[0]);
    head_of(q[0], k[0], 6, 6, 2, true, &h);
    assert_rows("hash-sparse:buckets=4:proj_dir=axes", &h.in, loose);
    assert_rows("hash-sparse:buckets=4:proj_dir=axes:strict=1", &h.in, strict);
    sim_head_free(&h);
    head_of(q[0], k[0], 6, 6, 2, false, &h);
    assert_rows("hash-sparse:buckets=4:proj_dir=axes", &h.in, all);
    assert_rows("hash-sparse:buckets=4:proj_dir=axes:strict=1", &h.in, all);
    sim_head_free(&h);
}

/* The last query sees the last key: two queries after four keys of bucket 0 each. */
TEST(queries_count_from_the_end)
{
    static const int same[4] = {0};
    float q[2][2], k[4][2];
    OWN(sim_head_free) struct sim_head h;
    plane(same, 2, q[0]);
    plane(same, 4, k[0]);
    head_of(q[0], k[0], 2, 4, 2, true, &h);
    RUN_HAS("hash-sparse:buckets=4:proj_dir=axes", &h.in, 0, "pairs_kept", 7);
    RUN_HAS("hash-sparse:buckets=4:proj_dir=axes:strict=1", &h.in, 0, "pairs_kept", 5);
}

/* ---- tiles ---------------------------------------------------------------------------------- */

/* 1024 tokens in four equal buckets, interleaved or one after the other: two tiles of 128 each, of
 * which the first one's queries do not see the second one's keys. */
TEST(tiles_of_the_sorted_order)
{
    enum { N = 1024 };
    static float x[N][2];
    for (int blocks = 0; blocks < 2; blocks++)
        for (int causal = 0; causal < 2; causal++) {
            OWN(sim_head_free) struct sim_head h;
            for (int i = 0; i < N; i++)
                put_bucket(blocks ? i / 256 : i % 4, x[i]);
            head_of(x[0], x[0], N, N, 2, causal, &h);
            RUN(r, "hash-sparse:buckets=4:proj_dir=axes", &h.in);
            HAS(&r, 1e-15, "pairs_exec pairs_kept density_exec", (causal ? 12 : 16) * 128.0 * 128.0,
                causal ? 131584 : 4 * 256.0 * 256.0,
                record_get(&r, "pairs_exec") / record_get(&r, "pairs_allowed"));
        }
}

/* Two buckets of 64 tokens share the one tile: whoever is in it is multiplied. */
TEST(a_tile_of_several_buckets_meets_the_tiles_of_all)
{
    enum { N = 128 };
    static float x[N][2];
    OWN(sim_head_free) struct sim_head h;
    for (int i = 0; i < N; i++)
        put_bucket(i % 2, x[i]);
    head_of(x[0], x[0], N, N, 2, true, &h);
    RUN(r, "hash-sparse:buckets=4:proj_dir=axes", &h.in);
    HAS(&r, 0, "pairs_exec pairs_kept", 128.0 * 128.0, 2 * 64 * 65 / 2);
}

/* ---- keys of unit length -------------------------------------------------------------------- */

/* Keys (2, 0) and (6, 0), values 1 and 3, query (1, 0): scores 2 and 6, or with unit keys twice 1.
 */
TEST(unit_keys_change_weights_and_no_bucket)
{
    static const float q[2] = {1, 0}, k[4] = {2, 0, 6, 0}, v[2] = {1, 3};
    OWN(sim_head_free) struct sim_head h;
    double out[2], e = exp(4.0);
    struct head_in in = one_head(q, k, v, 1, 2, 2, false);
    in.x.dv = 1;
    in.x.scale = 1;
    MUST(head_init(&h, &in, PREC_F64, ERR));
    out[0] = (1 + 3 * e) / (1 + e);
    out[1] = 2;
    for (int unit = 0; unit < 2; unit++) {
        RUN_HAS(unit ? "hash-sparse:proj_dir=axes:buckets=2:normalize_k=1"
                     : "hash-sparse:proj_dir=axes:buckets=2",
                &h.in, 1e-6, "pairs_kept err_max", 2, fabs(out[unit] - out[0]));
    }
}

/* ---- random directions ---------------------------------------------------------------------- */

static double pairs_with(const char *text, struct sim_head *h, uint64_t seed, int head, int step)
{
    OWN(record_free) struct record r;
    struct head_in in = h->in;
    in.head = head;
    in.step = step;
    run_text_carry(text, &in, NULL, seed, NULL, NULL, &r);
    ck_assert_int_eq(r.status, RECORD_OK);
    return record_get(&r, "pairs_kept");
}

TEST(directions_belong_to_seed_head_and_call)
{
    const char *text = "hash-sparse:buckets=8", *axes = "hash-sparse:buckets=8:proj_dir=axes";
    HEAD(h, golden_code_lm, 5, 0, PREC_F32);
    double one = pairs_with(text, &h, 1, 0, 0);
    ck_assert_double_eq(pairs_with(text, &h, 1, 0, 0), one);
    ck_assert_double_ne(pairs_with(text, &h, 2, 0, 0), one);
    ck_assert_double_ne(pairs_with(text, &h, 1, 1, 0), one);
    ck_assert_double_ne(pairs_with(text, &h, 1, 0, 1), one);
    ck_assert_double_eq(pairs_with(axes, &h, 2, 1, 1), pairs_with(axes, &h, 1, 0, 0));
}

/* ---- real data ------------------------------------------------------------------------------ */

static const struct {
    int head;
    const char *text;
    int pairs, empty;
    double p50, mean; /* NAN: not known */
} code[] = {
    {0, "hash-sparse:proj_dir=axes:buckets=8", 40519, 4, 0.116931, 0.163054},
    {0, "hash-sparse:proj_dir=axes:buckets=8:strict=1", 40348, 5, 0.103736, 0.150592},
    {7, "hash-sparse:proj_dir=axes:buckets=8", 36338, -1, NAN, NAN},
    {7, "hash-sparse:proj_dir=axes:buckets=8:strict=1", 36236, -1, NAN, NAN},
};

TEST_N(masks_of_the_language_model, 4)
{
    HEAD(h, golden_code_lm, 5, code[_i].head, PREC_F64);
    RUN(r, code[_i].text, &h.in);
    ck_assert_double_eq(record_get(&r, "pairs_kept"), code[_i].pairs);
    if (code[_i].empty >= 0)
        ck_assert_double_eq(record_get(&r, "rows_empty"), code[_i].empty);
    if (!isnan(code[_i].mean)) {
        HAS(&r, 5e-7, "cra_p50 cra_mean", code[_i].p50, code[_i].mean);
        ck_assert_ptr_nonnull(strstr(buf_str(&r.notes), "buckets_q=57 80 88 155 63 87 90 150;"));
    }
}

static const struct {
    const char *text, *buckets;
    int pairs;
    double min, p5, p50, mean;
} video[] = {
    {"hash-sparse:proj_dir=axes:buckets=4", "buckets_q=72 114 102 96;buckets_k=135 130 48 71",
     36252, 4.24e-7, 3.50e-4, 0.119601, 0.165623},
    {"hash-sparse:proj_dir=axes:buckets=8", "buckets_q=", 25593, 1.10e-6, 6.81e-6, 0.00129451,
     0.0244328},
};

TEST_N(masks_of_the_video_model, 2)
{
    HEAD(h, golden_video, 3, 5, 0, PREC_F64);
    RUN(r, video[_i].text, &h.in);
    ck_assert_double_eq(record_get(&r, "pairs_kept"), video[_i].pairs);
    ck_assert_double_eq_tol(record_get(&r, "cra_min") / video[_i].min, 1, 5e-3);
    ck_assert_double_eq_tol(record_get(&r, "cra_p5") / video[_i].p5, 1, 2e-3);
    ck_assert_double_eq_tol(record_get(&r, "cra_p50") / video[_i].p50, 1, 5e-6);
    ck_assert_double_eq_tol(record_get(&r, "cra_mean") / video[_i].mean, 1, 5e-6);
    assert_note(&r, video[_i].buckets);
}
