/*
 * fuzz_tasks.c - files of questions with answers: lacuna's own lines, those of LongBench and of
 * RULER, with and without a template. Every answer is graded against itself.
 */
#include "tests/fuzz/fuzz.h"
#include "core/mem.h"
#include "eval/taskfile.h"

#include <string.h>

static int seeds(struct fuzz_corpus *c, struct err *err)
{
    static const char *const texts[] = {
        "{\"prompt\": \"Who?\", \"answers\": [\"a b\", \"c\"], \"metric\": \"f1\", "
        "\"max_new_tokens\": 8,"
        " \"stop\": [\"\\n\"], \"group\": \"one\"}\n"
        "{\"prompt\": \"Which?\", \"answers\": \"x\", \"choices\": [\"x\", \"y\"], \"metric\": "
        "\"classify\", \"first_line\": true, \"ignore_case\": true}\n",
        "{\"input\": \"Q?\", \"context\": \"long \xc3\xa9\", \"answers\": [\"12\"], "
        "\"all_classes\": "
        "null, \"dataset\": \"passage_count\", \"length\": 5}\n",
        "{\"index\": 0, \"input\": \"find\", \"outputs\": [\"1\", \"2\"], \"metric\": "
        "\"contains_all\", \"answer_prefix\": \" "
        "is\","
        " \"length\": 9}\n",
        "{\"id\": 1, \"context\": \"c\", \"input\": \"i\", \"answer\": [\"B\"], \"options\": "
        "[\"A\", "
        "\"B\"], \"metric\": \"f1\"}\n",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        fuzz_add(c, texts[i], strlen(texts[i]));
    return 0;
}

static int grade(const struct question *q, struct err *err)
{
    struct text_case c = {q->metric, &q->answers, &q->choices, q->first_line, q->ignore_case};
    double score = 0;
    if (q->metric == TEXT_CHOICE)
        return 0;
    PASS_ON(text_score(&c, q->answers.items[0], &score, err));
    if (!(score >= 0 && score <= 1))
        fuzz_wild("score %g", score);
    return 0;
}

static int read_with(const char *path, const char *tmpl, size_t len, struct err *err)
{
    OWN(taskfile_free) struct taskfile f = {0};
    const struct line_defaults d = {tmpl, tmpl ? TEXT_LETTER : -1, 32};
    PASS_ON(taskfile_read(&f, path, &d, err));
    if (f.n < 1 || f.n > (int64_t)len)
        fuzz_wild("%lld questions in %zu bytes", (long long)f.n, len);
    for (int64_t i = 0; i < f.n; i++) {
        if (f.q[i].answers.n < 1 || f.q[i].max_new < 0 || f.q[i].prompt.len == 0)
            fuzz_wild("question %lld has %lld answers, a prompt of %zu bytes and at most %lld "
                      "tokens",
                      (long long)i, (long long)f.q[i].answers.n, f.q[i].prompt.len,
                      (long long)f.q[i].max_new);
        else
            PASS_ON(grade(&f.q[i], err));
    }
    return 0;
}

static int run(const void *data, size_t len, struct err *err)
{
    const char *path = fuzz_file("tasks.jsonl", data, len);
    int rc = read_with(path, "{context} Q: {input}", len, err);
    if (rc) {
        err_clear(err);
        rc = read_with(path, NULL, len, err);
    }
    return rc;
}

const struct fuzz_target fuzz_tasks = {"tasks", seeds, NULL, true, run};
