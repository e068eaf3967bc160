/* Tasks of `lacuna eval` on code-lm: exact attention answers as a decoder without a cache does,
 * and a method that keeps everything answers as exact attention. The program is $LACUNA (default
 * build/lacuna). */
#include "core/fileio.h"
#include "core/json.h"
#include "core/sealed.h"
#include "eval/decode.h"
#include "eval/evaltask.h"
#include "eval/prompt.h"
#include "sim/registry.h"
#include "tests/harness/evalcmd.h"
#include "tests/harness/suite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL "datasets/models/code-lm"

enum { N = 160, N_COPY = 340, SEED = 3 }; /* the room of a copied answer is 256 tokens */

static const char *const tasks[] = {"needle", "multi:n=3", "kv", "chain:h=2",
                                    "track:domain=en:h=2"};
enum { TASKS = sizeof tasks / sizeof *tasks };

static const char lines[] =
    "{\"prompt\":\"int main(int argc, char *\",\"answers\":\"argv\",\"metric\":\"edit_sim\","
    "\"max_new_tokens\":12}\n"
    "{\"prompt\":\"static int count;\\nstatic int \",\"answers\":\"next\",\"metric\":\"choice\","
    "\"choices\":[\"next\",\"zebra crossing\",\"long\"]}\n";

static struct err err;

/* The likeliest id again and again, each from a prefill of its own. Ids of `ids` grow. */
static void decode_plainly(const struct eval_model *m, struct id_list *ids, int64_t most,
                           struct buf *text)
{
    struct lockstep l;
    OWN(free_at) int32_t *got = calloc((size_t)most, sizeof *got);
    ck_assert_ptr_nonnull(got);
    assert_ok(lockstep_open(&l, (struct llm_model *)(uintptr_t)&m->llm, NULL, 0, ids->n + most,
                            true, DT_F32, 2, NULL, &err),
              &err);
    for (int64_t i = 0; i < most; i++) {
        struct decode d;
        lockstep_reset(&l);
        assert_ok(lockstep_prefill(&l, ids->v, ids->n, &err), &err);
        assert_ok(decode_open(&d, &l, 0, &err), &err);
        got[i] = decode_likeliest(&d);
        decode_close(&d);
        ids->v = realloc(ids->v, (size_t)(ids->n + 1) * sizeof *ids->v);
        ck_assert_ptr_nonnull(ids->v);
        ids->v[ids->n++] = got[i];
    }
    lockstep_close(&l);
    tokenizer_decode_bytes(m->tok, got, most, text);
}

static const char *text_of(const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));
    ck_assert_ptr_nonnull(text);
    return text;
}

/* What predictions.jsonl says of a cell (or the first of a task) and a method; NULL: nothing. */
static const char *predicted(json_t *const *p, int n, const char *task, const char *method,
                             const char *params)
{
    size_t len = strlen(task);
    for (int i = 0; i < n; i++)
        if (strncmp(text_of(p[i], "task"), task, len) == 0 &&
            strcmp(text_of(p[i], "method"), method) == 0 &&
            strcmp(text_of(p[i], "params"), params) == 0)
            return text_of(p[i], "prediction");
    return NULL;
}

static int read_predictions(const char *dir, json_t **p, int most)
{
    OWN(io_lines_close) struct io_lines l = {0};
    enum io_line kind;
    const char *text;
    char path[700];
    size_t len;
    int n = 0;
    snprintf(path, sizeof path, "%s/predictions.jsonl", dir);
    assert_ok(io_lines_open(&l, path, 1 << 20, 1 << 24, &err), &err);
    while (io_line(&l, &kind, &text, &len, &err) == 0 && kind == IO_LINE_WHOLE) {
        ck_assert_int_lt(n, most);
        assert_ok(seal_json(text, len, path, &p[n++], &err), &err);
    }
    return n;
}

/* A prediction is what a decoder without a cache says, up to what ends it. */
static void check_plain(const struct eval_model *m, const char *task, const char *said)
{
    struct prompt_spec spec;
    OWN(prompt_free) struct prompt p = {0};
    OWN(id_list_free) struct id_list ids = {0};
    OWN(buf_free) struct buf text = {0};
    ck_assert_ptr_nonnull(said);
    assert_ok(prompt_spec_parse(task, m->domain, &spec, &err), &err);
    assert_ok(eval_prompt_make(m, &spec, NULL, NULL, N, 0.5, 0, SEED, &p, &err), &err);
    assert_ok(prompt_ids(m, NULL, p.text.data, p.text.len, &ids, &err), &err);
    /* A turn of chain ends where its value does. */
    int64_t most = spec.kind == PROMPT_CHAIN ? 5 : 9;
    decode_plainly(m, &ids, most, &text);
    size_t same = spec.kind == PROMPT_CHAIN ? strspn(buf_str(&text), " 0123456789") : strlen(said);
    same = same < text.len ? same : text.len;
    ck_assert_msg(same >= 2 && strncmp(said, buf_str(&text), same) == 0, "%s: '%s', not '%s'", task,
                  said, buf_str(&text));
    bool stops = same == text.len || spec.kind == PROMPT_CHAIN;
    for (int64_t i = 0; i < p.stop.n; i++)
        stops = stops || strncmp(text.data + same, p.stop.items[i], strlen(p.stop.items[i])) == 0;
    ck_assert_msg(stops, "%s: ends before '%s'", task, text.data + same);
}

/* Records of one cell: those of exact attention and of everything kept have the same grades. */
static int same_grades(const struct evalcmd_records *r, const struct record *x)
{
    const struct record *dense = NULL;
    int grades = 0;
    for (int64_t i = 0; i < r->n; i++)
        if (strcmp(r->r[i].task, x->task) == 0 && strcmp(r->r[i].method, "dense") == 0)
            dense = r->r + i;
    ck_assert_ptr_nonnull(dense);
    ck_assert_double_eq(record_get(x, "density_elem"), 1);
    for (int64_t i = 0; i < record_metrics(dense); i++) {
        const char *name = record_metric_name(dense, i);
        double value = dense->values[i];
        ck_assert_msg(fabs(record_get(x, name) - value) < 2e-4, "%s %s: %s is %g, not %g", x->task,
                      x->method, name, record_get(x, name), value);
        grades += strcmp(name, "density_elem") != 0;
    }
    return grades;
}

/* Every method that can keep everything, on these tasks. */
static void run_tasks(const char *dir, int n, const char *asked)
{
    OWN(buf_free) struct buf line = {0};
    buf_printf(&line, "eval --model %s -n %d --depth 0.5 --trials 1 --seed %d -q -o %s%s", MODEL, n,
               SEED, dir, asked);
    for (int i = 0; sim_methods[i]; i++) {
        const struct method *m = sim_methods[i];
        if ((m->flags & METHOD_CAUSAL) && m->tests.full && strcmp(m->name, "dense") != 0)
            buf_printf(&line, " -m %s:%s", m->name, m->tests.full);
    }
    evalcmd_run_ok("%s", buf_str(&line));
}

TEST(tasks_are_plain_decoding)
{
    static json_t *p[1024];
    struct buf asked = {0};
    struct eval_model m;
    const char *dir = evalcmd_own_path("d"), *file = evalcmd_own_path("q.jsonl");
    char questions[700], name[32];
    int n, compared = 0;
    snprintf(questions, sizeof questions, "%s.jsonl", file);
    assert_ok(file_write_atomic(questions, lines, strlen(lines), &err), &err);
    for (int i = 0; i < TASKS; i++)
        buf_printf(&asked, " --task %s", tasks[i]);
    buf_printf(&asked, " --task %s", questions);
    run_tasks(dir, N, buf_str(&asked));
    run_tasks(dir, N_COPY, " --task copy:lines=4:cue=1");
    buf_free(&asked);

    n = read_predictions(dir, p, 1024);
    assert_ok(eval_model_open(&m, MODEL, 0, &err), &err);
    for (int i = 0; i < TASKS; i++) { /* the answer of copy is scored, not generated */
        snprintf(name, sizeof name, "%.*s:", (int)strcspn(tasks[i], ":"), tasks[i]);
        check_plain(&m, tasks[i], predicted(p, n, name, "dense", ""));
    }
    eval_model_close(&m);

    struct evalcmd_records r = evalcmd_load(dir);
    for (int64_t i = 0; i < r.n; i++) {
        const struct record *x = r.r + i;
        if (x->status != RECORD_OK || strcmp(x->method, "dense") == 0)
            continue;
        int grades = same_grades(&r, x);
        ck_assert_msg(grades >= 1, "%s: no grade", x->task);
        const char *said = predicted(p, n, x->task, x->method, x->params);
        if (said)
            ck_assert_str_eq(said, predicted(p, n, x->task, "dense", ""));
        compared++;
    }
    ck_assert_int_ge(compared, 7 * (TASKS + 3));
    records_free(r.r, r.n);
    for (int i = 0; i < n; i++)
        json_decref(p[i]);
}
