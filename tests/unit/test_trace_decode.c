/* Traces of a decode phase (format 1.2): written, read, packed; what contradicts itself is refused;
 * which rows they hold. */
#include "tests/harness/suite.h"
#include "core/h5util.h"
#include "core/trace.h"
#include "sim/headload.h"
#include "tests/harness/trace_fixture.h"

#include <stdio.h>
#include <string.h>

static int64_t minor_of(const char *path)
{
    int64_t minor = -1;
    h5_lock();
    hid_t f = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    MUST(h5_get_i64(f, "version_minor", &minor, ERR));
    H5Fclose(f);
    h5_unlock();
    return minor;
}

TEST(a_decode_phase_is_written_and_read)
{
    struct trace_meta m = fixture_decode(DT_BF16);
    OWN(trace_close) struct trace *t = NULL;
    OWN(trace_close) struct trace *packed = NULL;
    const char *path = test_path("d.h5"), *zip = test_path("z.h5");
    float sums[30];
    int64_t bad = -1;

    MUST(fixture_write(path, &m, 2, ERR));
    ck_assert_int_eq(minor_of(path), 2);
    MUST(trace_open(path, &t, ERR));
    ck_assert_int_eq(trace_meta(t)->question_from, 25);
    ck_assert_str_eq(trace_meta(t)->generated_by, "greedy");
    struct trace_decode d = trace_decode(trace_meta(t));
    ck_assert_int_eq(d.from, 30);
    ck_assert_int_eq(d.window, 6);
    ck_assert_int_eq(d.steps, 10);
    ck_assert(trace_call(t, 1)->has_col_sum);
    MUST(trace_read_values(t, 1, TRACE_COL_SUM, 3, sums, ERR));
    ck_assert_float_eq(sums[0], 90 / 8.F);
    ck_assert_float_eq(sums[29], 119 / 8.F);
    int64_t pairs = 0;
    for (int64_t p = 24; p < 40; p++)
        pairs += p + 1;
    ck_assert_int_eq(trace_call_pairs(t, 0), pairs);
    MUST(trace_verify(t, 1, NULL, NULL, &bad, ERR));
    ck_assert_int_eq(bad, 0);
    MUST(trace_pack(t, zip, TRACE_ZSTD, 1, true, ERR));
    MUST(trace_open(zip, &packed, ERR));
    ck_assert_str_eq(trace_id(packed), trace_id(t));
    ck_assert_int_eq(minor_of(zip), 2);
}

/* A head of it is the last rows of the sequence, at their positions. */
TEST(a_head_holds_the_last_rows)
{
    struct trace_meta m = fixture_decode(DT_F32);
    struct head_load how = {.precision = PREC_F64};
    struct trace *t = NULL;
    OWN(sim_head_free) struct sim_head h;

    MUST(fixture_write(test_path("d.h5"), &m, 1, ERR));
    MUST(trace_open(test_path("d.h5"), &t, ERR));
    MUST(head_load(t, 0, 2, &how, &h, ERR));
    ck_assert_ptr_null(h.in.rows);
    ck_assert_int_eq(h.in.x.nq, 16);
    ck_assert_int_eq(h.in.x.nk, 40);
    ck_assert_int_eq(attn_limit(&h.in.x, 6), 31); /* step 0 sees the prompt and itself */
    FAILS(traces_prefill(&t, 1, ERR), ERR_INPUT, "the last 6 of 30 tokens");
    trace_close(&t);

    m.n_q = 40; /* with all queries it is a prefill as well */
    MUST(fixture_write(test_path("d.h5"), &m, 1, ERR));
    MUST(trace_open(test_path("d.h5"), &t, ERR));
    MUST(traces_prefill(&t, 1, ERR));
    trace_close(&t);
}

/* An id covers what the decode phase says, and other traces have neither the words nor the version.
 */
TEST(the_content_id_covers_it)
{
    struct trace_meta m = fixture_decode(DT_F32);
    char seen[4][64];

    for (int i = 0; i < 4; i++) {
        struct trace *t = NULL;
        m.decode_from = i == 1 ? 29 : 30;
        m.question_from = i == 2 ? 0 : 25;
        strcpy(m.generated_by, i == 3 ? "" : "greedy");
        MUST(fixture_write(test_path("d.h5"), &m, 0, ERR));
        MUST(trace_open(test_path("d.h5"), &t, ERR));
        snprintf(seen[i], sizeof seen[i], "%s", trace_id(t));
        for (int j = 0; j < i; j++)
            ck_assert_str_ne(seen[i], seen[j]);
        trace_close(&t);
    }
    m = fixture_text(DT_F32, 2, 1, 20);
    MUST(fixture_write(test_path("t.h5"), &m, 1, ERR));
    ck_assert_int_eq(minor_of(test_path("t.h5")), 0);
}

TEST(what_is_no_decode_phase_is_refused)
{
    const struct {
        const char *text;
        int64_t n_q, from, question, group;
        bool bidirectional;
    } wrong[] = {
        {"at least 1", 16, 40, 0, 0, false},
        {"at least 1", 9, 30, 0, 0, false},
        {"question_from = 30", 16, 30, 30, 0, false},
        {"generated_by without", 16, 0, 0, 0, false},
        {"question_from without", 16, 0, 5, 0, false},
        {"is not within", 16, -1, 0, 0, false},
        {"sample", 16, 30, 0, 128, false},
        {"causal", 16, 30, 0, 0, true},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct trace_meta m = fixture_decode(DT_F32);
        m.n_q = wrong[i].n_q;
        m.decode_from = wrong[i].from;
        m.question_from = wrong[i].question;
        m.row_group = wrong[i].group;
        m.causal = !wrong[i].bidirectional;
        FAILS(fixture_write(test_path("d.h5"), &m, 1, ERR), ERR_USAGE, wrong[i].text);
    }

    struct trace_meta m = fixture_text(DT_F32, 2, 1, 20);
    struct trace_call c = fixture_call(&m, 0);
    struct trace_writer *w = NULL;
    MUST(trace_create(test_path("d.h5"), &m, 1, true, &w, ERR));
    c.has_col_sum = true;
    FAILS(trace_begin_call(w, &c, ERR), ERR_USAGE, "col_sum without decode_from");
    trace_abort(&w);
}
