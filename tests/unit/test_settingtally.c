/* What finished cells of a setting come to: dense attention in fact, empty, beside the target. */
#include "tests/harness/suite.h"

#include "sim/settingtally.h"

static struct err e;
static struct setting_tally t;

static void add(enum record_status status, double density, const char *note)
{
    OWN(record_free) struct record r;
    record_init(&r);
    r.status = status;
    if (status == RECORD_OK)
        assert_ok(record_metric(&r, "density_elem", density, &e), &e);
    else
        record_text(&r, &r.reason, "%s", note);
    if (status == RECORD_OK && note)
        record_note(&r, "%s", note);
    setting_tally_add(&t, &r);
}

static void begin(void)
{
    t = (struct setting_tally){0};
}

TEST(full_and_empty_cells_are_counted_with_the_first_reason)
{
    begin();
    add(RECORD_OK, 1, "full=4 tokens are not above 8");
    add(RECORD_OK, 1 + 2e-15, "full=another reason"); /* a mean over heads */
    add(RECORD_OK, 0.999, NULL);
    add(RECORD_OK, 0, NULL);
    ck_assert_int_eq(t.ok, 4);
    ck_assert_int_eq(t.full, 2);
    ck_assert_int_eq(t.empty, 1);
    ck_assert_int_eq(t.missed, 0);
    ck_assert_str_eq(t.why, "4 tokens are not above 8");
}

TEST(heads_and_models_say_in_their_own_words_that_a_target_was_missed)
{
    static const struct {
        const char *note;
        int missed;
    } cases[] = {
        {"budget=met", 0},
        {"budget=coarse", 1},
        {"budget=range", 1},
        {"budget=48 heads met, 0 between two values, 0 at the end of the range", 0},
        {"budget=47 heads met, 1 between two values, 0 at the end of the range", 1},
        {"budget=47 heads met, 0 between two values, 1 at the end of the range", 1},
        {"kernel=x", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin();
        add(RECORD_OK, 0.5, cases[i].note);
        ck_assert_msg(t.missed == cases[i].missed, "%s: %d", cases[i].note, (int)t.missed);
    }
}

TEST(a_setting_without_results_has_one_of_its_reasons)
{
    begin();
    add(RECORD_SKIP, 0, "causal only");
    add(RECORD_ERROR, 0, "out of memory");
    ck_assert_int_eq(t.ok, 0);
    ck_assert_int_eq(t.skip, 1);
    ck_assert_int_eq(t.error, 1);
    ck_assert_str_eq(t.bad, "causal only");
    ck_assert_int_eq(t.full + t.empty + t.missed, 0);
}
