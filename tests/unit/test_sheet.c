/* What people see of a table: rows, columns, marks, sentences, and that it fits. */

#include "tests/harness/table_fixture.h"
#include "analyze/format.h"
#include "analyze/table.h"
#include "analyze/sheet.h"

static struct sheet s;
static struct buf text;

static void end_sheet(void)
{
    end();
    sheet_free(&s);
    buf_free(&text);
}
FIXTURE(begin, end_sheet)

/* A head of 8 whose density is `kept` and recall `recall`, both moved by +-spread. */
static void add_setting(const char *method, const char *params, double kept, double recall,
                        double spread)
{
    for (int h = 0; h < 8; h++) {
        struct record *r = fixture_record(&f, method, params, 0, h);
        double sign = h % 2 ? 1 : -1;
        fixture_metric(r, "density_elem", kept + sign * spread);
        fixture_metric(r, "cra_min", recall / 2);
        fixture_metric(r, "cra_p1", recall);
        fixture_metric(r, "err_l1_rel", 1 - recall);
    }
}

static void build_columns(const char *name, const char *columns)
{
    build(name, &(struct table_request){.columns = columns});
}

/* The sheet of a table of the records so far. */
static void make(const char *name, const char *columns)
{
    build_columns(name, columns);
    sheet_free(&s);
    sheet_make(&t, &(struct sheet_opts){0}, &s);
    ck_assert(!s.failed);
}

static void write_as(const char *format, bool wide)
{
    buf_reset(&text);
    format_table(format_find(format, &e), &t, &(struct sheet_opts){.wide = wide}, &text);
    assert_ok(buf_check(&text, "table", &e), &e);
}

static void has_text(const char *part)
{
    ck_assert_msg(strstr(buf_str(&text), part) != NULL, "no '%s' in\n%s", part, buf_str(&text));
}

/* The cell below a head; "worst HEAD": of the worst head or layer. */
static const struct sheet_cell *at(int64_t row, const char *head)
{
    bool worst = strncmp(head, "worst ", 6) == 0;
    for (int64_t c = 0; c < s.n_cols; c++)
        if (strcmp(s.cols[c].head, head + 6 * worst) == 0 &&
            (!worst || strcmp(s.cols[c].unit, "worst") == 0))
            return sheet_cell(&s, row, c);
    ck_abort_msg("no column %s", head);
    return NULL;
}

static void is(int64_t row, const char *head, const char *want)
{
    ck_assert_str_eq(at(row, head)->text, want);
}

static bool says(const struct str_list *l, const char *part)
{
    for (int64_t i = 0; i < l->n; i++)
        if (strstr(l->items[i], part))
            return true;
    return false;
}

/* ---- rows and columns ----------------------------------------------------------------------- */

TEST(rows_stand_as_given_with_dense_first_and_bounds_last)
{
    add_setting("oracle", "", 0.1, 0.95, 0.01);
    add_setting("streaming", "window=8", 0.2, 0.5, 0.01);
    add_setting("sale", "", 0.4, 0.9, 0.01);
    add_setting("dense", "", 1, 1, 0);
    make("summary", NULL);
    is(0, "method", "dense");
    is(0, "setting", "");
    is(1, "method", "streaming");
    is(2, "method", "sale");
    is(2, "setting", "defaults");
    is(3, "method", "oracle (bound)");
}

TEST(what_is_the_same_in_every_row_is_named_below)
{
    add_setting("sale", "tau=0.1", 0.25, 0.9, 0.01);
    add_setting("sale", "tau=0.2", 0.25, 0.8, 0.01);
    fixture_add(&f, "radial status=skip");
    make("summary", NULL);
    ck_assert_int_eq(s.n_rows, 2);
    ck_assert(says(&s.notes, "Without a number: radial"));
    ck_assert(says(&s.notes, "The same in every row: method sale, density_elem 25.0 %."));
    ck_assert(says(&s.notes, "Medians over n = 8 cells."));
    ck_assert(says(&s.notes, "recall p1: cra_p1, share of mass, 1st percentile of rows."));
    ck_assert(says(&s.hints, "With --wide: means and deviations; cra_min."));
    is(0, "recall p1", "0.900");
    is(1, "error L1", "20.0 %");
}

TEST(numbers_round_to_neither_nothing_nor_everything)
{
    add_setting("sale", "", 0.9996, 0.9996, 0);
    add_setting("streaming", "", 0.000001, 0.5, 0);
    make("summary", NULL);
    is(0, "kept", "> 99.9 %");
    is(0, "recall p1", "> 0.999");
    is(0, "error L1", "0.04 %");
    is(1, "kept", "< 0.001 %");
}

TEST(the_worst_head_stands_beside_the_median)
{
    add_setting("sale", "", 0.3, 0.99, 0.01);
    add_setting("spargeattn", "", 0.9, 1, 0.01);
    struct record *lost = &f.r[f.n - 1]; /* one head in eight loses the sink */
    fixture_metric(lost, "cra_p1", 0.02);
    fixture_metric(lost, "err_l1_rel", 0.83);
    make("summary", NULL);
    is(1, "recall p1", "1.000");
    is(1, "worst recall p1", "0.020");
    is(1, "error L1", "0 %");
    is(1, "worst error L1", "83.0 %");
    ck_assert(says(&s.notes, "worst: the worst of the cells."));
    ck_assert(says(&s.sentences, "3.00 times fewer than spargeattn: recall p1 1.000, worst 0.020; "
                                 "error L1 0 %, worst 83 %"));
}

TEST(accuracies_are_means)
{
    fixture_add(
        &f, "sale needle_acc=0 density_elem=.1; sale head=1..3 needle_acc=1 density_elem=.2+.1i;"
            "streaming head=4 needle_acc=1 density_elem=.5");
    make("summary", "needle_acc,density_elem");
    is(0, "needle_acc", "0.750 [0.30, 0.95]"); /* the median is 1 */
    is(0, "kept", "25.0 %");
    ck_assert(says(&s.notes, "Medians over n cells; means of needle_acc."));
    write_as("md", true);
    has_text("0.7500 [0.30, 0.95]");
}

/* ---- best, sentences, warnings -------------------------------------------------------------- */

TEST(best_is_marked_beyond_the_spread_alone)
{
    add_setting("dense", "", 1, 1, 0);
    add_setting("sale", "", 0.30, 0.9, 0.01);
    add_setting("streaming", "", 0.40, 0.9, 0.01);
    make("summary", NULL);
    ck_assert(at(1, "kept")->best);
    ck_assert(!at(0, "recall p1")->best && !at(1, "recall p1")->best); /* equal */
    add_setting("sale", "", 0.30, 0.9, 0.2); /* 2 standard errors are 0.21 */
    add_setting("streaming", "", 0.40, 0.9, 0.2);
    make("summary", NULL);
    ck_assert(!at(0, "kept")->best);
}

TEST(a_sentence_compares_pairs_at_like_recall)
{
    add_setting("oracle", "", 0.01, 0.96, 0);
    add_setting("sale", "", 0.2, 0.96, 0.01);
    add_setting("xattention", "", 0.5, 0.97, 0.01);
    add_setting("flexprefill", "", 0.21, 0.99, 0.2); /* within the spread */
    add_setting("streaming", "", 0.1, 0.4, 0.01);    /* too little recall */
    make("summary", NULL);
    ck_assert(says(&s.sentences,
                   "sale keeps the fewest pairs of the settings with recall p1 of at "
                   "least 0.95 (medians and the worst of 8 cells): recall p1 0.960, worst 0.960"));
    ck_assert(says(&s.sentences, "2.50 times fewer than xattention: recall p1 0.970"));
    ck_assert(says(&s.sentences, "no fewer, within the spread over heads, than flexprefill"));
    ck_assert(!says(&s.sentences, "streaming"));
    ck_assert(!says(&s.sentences, "oracle"));
}

TEST(settings_that_keep_everything_are_warned_of)
{
    add_setting("dense", "", 1, 1, 0);
    add_setting("sageattention", "", 1, 1, 0); /* keeps everything by design */
    add_setting("minference", "", 1, 1, 0);
    for (int64_t i = f.n - 8; i < f.n; i++)
        record_note(&f.r[i], "pattern=vs;full=its budget of %d + 6096 columns is long",
                    1000 + (int)i);
    add_setting("sale", "", 0.5, 0.9, 0.01);
    add_setting("sale", "tau=0", 1, 1, 0);
    for (int k = 0; k < 2; k++) {
        add_setting("fg-attn", k ? "tau=1" : "tau=2", 1, 1, 0);
        record_note(&f.r[f.n - 1], "full=one reason for both");
    }
    make("summary", NULL);
    ck_assert(
        says(&s.notes, "! 100 % kept by minference: its budget of 1016 + 6096 columns is long."));
    ck_assert(says(&s.notes, "! 100 % kept by sale (tau=0): at this length"));
    ck_assert(!says(&s.notes, "by sale:"));
    ck_assert(
        says(&s.notes, "! 100 % kept by fg-attn (tau=1), fg-attn (tau=2): one reason for both."));
    ck_assert_int_eq(s.sentences.n, 0); /* no two settings are left to compare */
}

TEST(a_deviation_out_of_range_gives_way_to_quartiles)
{
    fixture_add(&f, "sale head=0..2 density_elem=.01+.01i; sale head=3 density_elem=.98");
    build_columns("summary", NULL);
    write_as("md", true);
    has_text("density_elem, median (quartiles) "
             "[kept/allowed pairs]");
    has_text("0.0250 (0.0100 to 0.0300)");
}

/* ---- widths --------------------------------------------------------------------------------- */

static int longest_line(void)
{
    int longest = 0;
    for (const char *p = buf_str(&text); *p;) {
        int len = (int)strcspn(p, "\n"), chars = 0;
        for (int i = 0; i < len; i++)
            chars += ((unsigned char)p[i] & 0xc0) != 0x80;
        longest = chars > longest ? chars : longest;
        p += len + (p[len] == '\n');
    }
    return longest;
}

TEST(long_texts_wrap_in_their_cells)
{
    char params[120];
    memset(params, 'x', sizeof params);
    memcpy(params, "tau=", 4);
    params[sizeof params - 1] = '\0';
    add_setting("sale", params, 0.2, 0.9, 0.01);
    add_setting("sale", "tau=1", 0.3, 0.9, 0.01);
    build_columns("summary", NULL);
    write_as("text", false);
    ck_assert_int_le(longest_line(), SHEET_WIDTH);
    ck_assert_ptr_null(strstr(buf_str(&text), params));
    write_as("md", false);
    has_text(params);
}

TEST(latex_fits_the_text_and_takes_notes_into_the_caption)
{
    add_setting("sale", "a_b=1", 0.2, 0.9, 0.01);
    add_setting("streaming", "", 0.3, 0.8, 0.01);
    build_columns("summary", NULL);
    write_as("tex", false);
    has_text("\\begin{table}\n");
    has_text("a\\_b=1 & \\textbf{20.0\\,\\%}");
    has_text("Medians over n = 8 cells.");
    has_text("\\resizebox{\\ifdim\\width>\\linewidth");
}

/* ---- --sort, --best, --top ------------------------------------------------------------------ */

static const char *method_of(int64_t row)
{
    return table_cell(&t, row, table_find(&t, "method"))->text;
}

TEST(rows_are_sorted_cut_and_named)
{
    add_setting("sale", "tau=1", 0.2, 0.5, 0.01);
    add_setting("sale", "tau=2", 0.3, 0.9, 0.01);
    add_setting("streaming", "", 0.4, 0.8, 0.01);
    build_columns("summary", NULL);
    assert_ok(table_choose_rows(&t, &(struct row_opts){.sort = "cra_p1", .best = "method"}, &e),
              &e);
    ck_assert_int_eq(t.n_rows, 2);
    ck_assert_str_eq(table_cell(&t, 0, table_find(&t, "params"))->text, "tau=2");
    ck_assert_str_eq(method_of(1), "streaming");
    ck_assert(says(&t.notes, "2 of 3 rows, sorted by cra_p1, the first of each method"));
    assert_ok(table_choose_rows(&t, &(struct row_opts){.sort = "-cra_p1", .top = 1}, &e), &e);
    ck_assert_int_eq(t.n_rows, 1);
    ck_assert_str_eq(method_of(0), "streaming");
}

TEST(unknown_columns_and_best_without_sort_are_refused)
{
    add_setting("sale", "", 0.2, 0.5, 0.01);
    build_columns("summary", NULL);
    assert_fails(table_choose_rows(&t, &(struct row_opts){.sort = "cra_p2"}, &e), &e, ERR_USAGE,
                 "did you mean 'cra_p1'");
    assert_fails(table_choose_rows(&t, &(struct row_opts){.best = "method"}, &e), &e, ERR_USAGE,
                 "add --sort METRIC");
}
