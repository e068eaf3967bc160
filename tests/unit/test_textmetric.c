/* Grades of texts: values of the Python code of LongBench (PyPI rouge 1.0.1, python-Levenshtein)
 * and by hand. */
#include "core/fileio.h"
#include "eval/taskfile.h"
#include "tests/harness/suite.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static struct err err;

static double score_of(enum text_metric m, const char *prediction, const char *answers,
                       const char *choices, bool first_line, bool ignore_case)
{
    OWN(str_list_free) struct str_list a = {0}, c = {0};
    char text[256], *rest = text, *word;
    double x = NAN;
    snprintf(text, sizeof text, "%s", answers);
    while ((word = strsep(&rest, "|")) != NULL)
        str_list_add(&a, word);
    snprintf(text, sizeof text, "%s", choices ? choices : "");
    rest = choices ? text : NULL;
    while (rest && (word = strsep(&rest, "|")) != NULL)
        str_list_add(&c, word);
    struct text_case t = {m, &a, &c, first_line, ignore_case};
    assert_ok(text_score(&t, prediction, &x, &err), &err);
    return x;
}

struct pair {
    const char *a, *b;
    double want, want2;
};

TEST_N(f1, 7)
{
    static const struct pair cases[] = {{"The cat's hat, a red one.", "cats red hat", 0.857143, 0},
                                        {"an apple", "the apple", 1, 0},
                                        {"Paris, France", "Paris", 0.666667, 0},
                                        {"to be or not to be", "to be", 0.5, 0},
                                        {"a the", "the", 0, 0},
                                        {"", "x", 0, 0},
                                        {"theme", "theme", 1, 0}};
    const struct pair *p = cases + _i;
    ck_assert_double_eq_tol(score_of(TEXT_F1, p->a, p->b, NULL, false, false), p->want, 1e-6);
}

TEST_N(rouge_l, 10)
{
    static const struct pair cases[] = {
        {"the cat sat on the mat", "the cat is on the mat", 0.8, 0},
        {"the cat sat on the mat", "the mat sat on the cat", 0.6, 0},
        {"a b c. d e f", "a c. d f", 0.8, 0},
        {"d e f. a b c", "a b c. d e f", 1, 0},
        {"a b a b", "a b", 1, 0},
        {"a b. ", "a b", 0.8, 0},
        {"x y a b", "a b x y", 0.5, 0},
        {"Hello World", "hello world", 0, 0},
        {"..", "x", 0, 0},
        {"", "x", 0, 0}};
    const struct pair *p = cases + _i;
    ck_assert_double_eq_tol(score_of(TEXT_ROUGE_L, p->a, p->b, NULL, false, false), p->want, 1e-7);
}

TEST_N(edits, 7)
{
    static const struct pair cases[] = {{"return x + 1;", "return x - 1;", 0.923077, 0.92},
                                        {"abcd", "bcde", 0.5, 0.75},
                                        {"kitten", "sitting", 0.571429, 0.62},
                                        {"ab", "ba", 0, 0.5},
                                        {"abcabba", "cbabac", 0.428571, 0.62},
                                        {"", "", 1, 1},
                                        {"", "x", 0, 0}};
    const struct pair *p = cases + _i;
    ck_assert_double_eq_tol(score_of(TEXT_EDIT_SIM, p->a, p->b, NULL, false, false), p->want, 1e-6);
    ck_assert_double_eq_tol(score_of(TEXT_CODE_SIM, p->a, p->b, NULL, false, false), p->want2,
                            1e-9);
}

TEST(code_lines)
{
    ck_assert_double_eq(
        score_of(TEXT_CODE_SIM, "\n\n# x\n```\nint a; // b\nabcd\nz", "bcde", NULL, false, false),
        0.75);
    ck_assert_double_eq(score_of(TEXT_CODE_SIM, "// only", "x", NULL, false, false), 0);
    /* Characters, not bytes. */
    ck_assert_double_eq(score_of(TEXT_EDIT_SIM, "\xc3\xa4z", "\xc3\xb6z", NULL, false, false), 0.5);
}

TEST(others)
{
    ck_assert_double_eq(score_of(TEXT_EXACT, " The Answer!", "answer", NULL, false, false), 1);
    ck_assert_double_eq(score_of(TEXT_EXACT, "answers", "answer|answers", NULL, false, false), 1);
    ck_assert_double_eq(score_of(TEXT_EXACT, "another", "other", NULL, false, false), 0);
    ck_assert_double_eq(score_of(TEXT_CONTAINS, "it is PARIS\x01.", "rome|paris", NULL, 0, 0), 1);
    ck_assert_double_eq(score_of(TEXT_CONTAINS_ALL, "ab cd", "AB|x|cd|y", NULL, 0, 0), 0.5);
    ck_assert_double_eq(score_of(TEXT_NUMBER, "3 of 12, or 3", "Paragraph 3", NULL, 0, 0), 2.0 / 3);
    ck_assert_double_eq(score_of(TEXT_NUMBER, "none", "3", NULL, 0, 0), 0);
    ck_assert_double_eq(score_of(TEXT_FIRST_INT, "the key 042 or 7", "042", NULL, 0, 0), 1);
    ck_assert_double_eq(score_of(TEXT_FIRST_INT, "42", "042", NULL, 0, 0), 0);
    /* An answer with a point reads numbers with one; a whole one reads runs of digits. */
    ck_assert_double_eq(score_of(TEXT_FIRST_INT, "it is 3.5.", "3.5", NULL, 0, 0), 1);
    ck_assert_double_eq(score_of(TEXT_FIRST_INT, "it is 3.50, not 3", "3.5", NULL, 0, 0), 1);
    ck_assert_double_eq(score_of(TEXT_FIRST_INT, "3. Or 3.5", "3.5", NULL, 0, 0), 0);
    ck_assert_double_eq(score_of(TEXT_FIRST_INT, "2", "2.0", NULL, 0, 0), 1);
    ck_assert_double_eq(score_of(TEXT_FIRST_INT, "20", "2.0", NULL, 0, 0), 0);
    ck_assert_double_eq(score_of(TEXT_FIRST_INT, "3.5", "3", NULL, 0, 0), 1);
    ck_assert_double_eq(score_of(TEXT_NUMBER, "3.5 or 4, 3.5", "3.5", NULL, 0, 0), 2.0 / 3);
    ck_assert_double_eq(score_of(TEXT_NUMBER, "3 or 5", "3.5", NULL, 0, 0), 0);
    ck_assert_double_eq(score_of(TEXT_WORD, "it is:{bob}!", "bob", NULL, 0, 0), 1);
    ck_assert_double_eq(score_of(TEXT_WORD, "BOB", "bob", NULL, false, false), 0);
    ck_assert_double_eq(score_of(TEXT_WORD, "BOB", "bob", NULL, false, true), 1);
    ck_assert_double_eq(score_of(TEXT_F1, "\n\nParis\nand more", "Paris", NULL, true, false), 1);
}

TEST(classes)
{
    static const char all[] = "Other number|number|Date|Food";
    ck_assert_double_eq(score_of(TEXT_CLASSIFY, "Date", "Date", all, 0, 0), 1);
    ck_assert_double_eq(score_of(TEXT_CLASSIFY, "Date or Food", "Date", all, 0, 0), 0.5);
    ck_assert_double_eq(score_of(TEXT_CLASSIFY, "Food", "Date", all, 0, 0), 0);
    /* A class inside the right one's name is not named by it. */
    ck_assert_double_eq(score_of(TEXT_CLASSIFY, "Other number", "Other number", all, 0, 0), 1);
    ck_assert_double_eq(score_of(TEXT_CLASSIFY, "Other number", "number", all, 0, 0), 0.5);
}

TEST_N(letters, 6)
{
    static const struct pair cases[] = {
        {" B. because", "B", 1, 0},    {"The answer is: C", "C", 1, 0},
        {"I say D then A", "D", 1, 0}, {"The answer is x", "A", 0, 0},
        {"nothing", "A", 0, 0},        {"", "A", 0, 0}};
    const struct pair *p = cases + _i;
    ck_assert_double_eq(score_of(TEXT_LETTER, p->a, p->b, NULL, false, false), p->want);
}

/* What a line does not say comes from the options; an option's letter is an answer, too. */
TEST(lines_and_defaults)
{
    static const char lines[] =
        "{\"context\":\"A "
        "story.\",\"input\":\"Who?\",\"answer\":[\"Bob\"],\"options\":[\"Ann\",\"Bob\"]}\n"
        "{\"context\":\"c\",\"input\":\"i\",\"answers\":\"x\",\"metric\":\"f1\",\"max_new_tokens\":"
        "7,"
        "\"options\":[\"y\",\"z\"]}\n"
        "{\"context\":\"c\",\"input\":\"i\",\"answers\":\"x\",\"dataset\":\"hotpotqa\",\"options\":"
        "[\"y\",\"z\"]}\n";
    const struct line_defaults d = {"{context} {input} A. {OPTION_A} B. {OPTION_B}", TEXT_LETTER,
                                    5};
    OWN(taskfile_free) struct taskfile f = {0};
    char path[300];
    snprintf(path, sizeof path, "%s/q.jsonl", test_tmpdir());
    assert_ok(file_write_atomic(path, lines, strlen(lines), &err), &err);
    assert_ok(taskfile_read(&f, path, &d, &err), &err);
    ck_assert_int_eq(f.n, 3);
    ck_assert_str_eq(buf_str(&f.q[0].prompt), "A story. Who? A. Ann B. Bob");
    ck_assert_int_eq(f.q[0].metric, TEXT_LETTER);
    ck_assert_int_eq(f.q[0].max_new, 5);
    struct text_case c = {TEXT_LETTER, &f.q[0].answers, &f.q[0].choices, false, false};
    double score = 0;
    assert_ok(text_score(&c, " B. because", &score, &err), &err);
    ck_assert_double_eq(score, 1);
    assert_ok(text_score(&c, "A", &score, &err), &err);
    ck_assert_double_eq(score, 0);
    ck_assert_int_eq(f.q[1].metric, TEXT_F1);
    ck_assert_int_eq(f.q[1].max_new, 7);
    ck_assert_int_eq(f.q[2].metric, TEXT_F1);
    ck_assert_int_eq(f.q[2].max_new, 32);
}
