/*
 * taskfile.c - see taskfile.h.
 */
#include "eval/taskfile.h"

#include "core/fileio.h"
#include "core/hash.h"
#include "core/json.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_MAX_BYTES ((size_t)256 << 20)
#define FILE_MAX_BYTES ((int64_t)16 << 30)

/* How the English and code datasets of LongBench are graded, by the name that its lines carry, and
 * how much may be generated (its config/dataset2maxlen.json). */
static const struct known {
    const char *dataset;
    enum text_metric metric;
    int max_new;
    bool first_line;
} known[] = {
    {"narrativeqa", TEXT_F1, 128, false},
    {"qasper", TEXT_F1, 128, false},
    {"multifieldqa_en", TEXT_F1, 64, false},
    {"hotpotqa", TEXT_F1, 32, false},
    {"2wikimqa", TEXT_F1, 32, false},
    {"musique", TEXT_F1, 32, false},
    {"gov_report", TEXT_ROUGE_L, 512, false},
    {"qmsum", TEXT_ROUGE_L, 512, false},
    {"multi_news", TEXT_ROUGE_L, 512, false},
    {"trec", TEXT_CLASSIFY, 64, true},
    {"triviaqa", TEXT_F1, 32, true},
    {"samsum", TEXT_ROUGE_L, 128, true},
    {"lsht", TEXT_CLASSIFY, 64, true},
    {"passage_count", TEXT_NUMBER, 32, false},
    {"passage_retrieval_en", TEXT_NUMBER, 32, false},
    {"lcc", TEXT_CODE_SIM, 64, false},
    {"repobench-p", TEXT_CODE_SIM, 64, false},
};

static void question_free(struct question *q)
{
    buf_free(&q->prompt);
    str_list_free(&q->answers);
    str_list_free(&q->choices);
    str_list_free(&q->stop);
}

void taskfile_free(struct taskfile *f)
{
    for (int64_t i = 0; i < f->n; i++)
        question_free(f->q + i);
    free(f->q);
    memset(f, 0, sizeof *f);
}

/* A text or a list of texts; with `numbers` also numbers. */
static int get_texts(const json_t *o, const char *key, bool numbers, const char *where,
                     struct str_list *out, struct err *err)
{
    const json_t *v = json_object_get(o, key);
    char number[32];
    size_t n = json_is_array(v) ? json_array_size(v) : v && !json_is_null(v);
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_is_array(v) ? json_array_get(v, i) : v;
        if (numbers && json_is_integer(x)) {
            snprintf(number, sizeof number, "%lld", (long long)json_integer_value(x));
            str_list_add(out, number);
        } else if (numbers && json_is_real(x)) { /* InfiniteBench's math_find */
            num_text(json_real_value(x), number);
            str_list_add(out, number);
        } else if (jtext(x)) {
            str_list_add(out, jtext(x));
        } else {
            return err_set(err, ERR_INPUT, "%s: \"%s\": a text or a list of texts was expected",
                           where, key);
        }
    }
    return out->failed ? err_set(err, ERR_NOMEM, "%s: out of memory", where) : 0;
}

/* The first of the keys that the line has; NULL if none. */
static const char *first_key(const json_t *o, const char *const *keys)
{
    for (; *keys; keys++)
        if (json_object_get(o, *keys) && !json_is_null(json_object_get(o, *keys)))
            return *keys;
    return NULL;
}

static const char *const choice_keys[] = {"choices", "all_classes", "options", NULL};

/* A text of the line; OPTION_A.. are its choices, as in InfiniteBench's prompts. NULL: none. */
static const char *hole_text(const json_t *o, const char *key)
{
    const char *text = jtext(json_object_get(o, key)), *list = first_key(o, choice_keys);
    if (!text && list && strncmp(key, "OPTION_", 7) == 0 && key[7] >= 'A' && key[7] <= 'Z' &&
        !key[8])
        text = jtext(json_array_get(json_object_get(o, list), (size_t)(key[7] - 'A')));
    return text;
}

/* Put the line's texts into the holes {key} of a template. */
static int fill(const char *tmpl, const json_t *o, const char *where, struct buf *out,
                struct err *err)
{
    for (const char *p = tmpl; *p;) {
        size_t plain = strcspn(p, "{");
        buf_put(out, p, plain);
        p += plain;
        const char *end = *p ? strchr(p, '}') : NULL;
        if (!end) {
            buf_puts(out, p);
            break;
        }
        char key[64];
        snprintf(key, sizeof key, "%.*s", (int)(end - p - 1 < 63 ? end - p - 1 : 63), p + 1);
        const char *text = hole_text(o, key);
        if (!text)
            return err_set(err, ERR_INPUT,
                           "%s: the template asks for {%s}, which the line does "
                           "not have as a text",
                           where, key);
        buf_puts(out, text);
        p = end + 1;
    }
    return buf_check(out, "prompt", err);
}

static int get_prompt(struct question *q, const json_t *o, const char *tmpl, const char *where,
                      struct err *err)
{
    const char *prompt = NULL, *input = NULL, *prefix = "";
    if (tmpl)
        return fill(tmpl, o, where, &q->prompt, err);
    PASS_ON(jget_str_opt(o, "prompt", where, &prompt, err));
    PASS_ON(jget_str_opt(o, "input", where, &input, err));
    PASS_ON(jget_str_opt(o, "answer_prefix", where, &prefix, err));
    if (!prompt && json_object_get(o, "context"))
        return err_set(err, ERR_INPUT,
                       "%s: no \"prompt\": lines with \"context\" and \"input\" need --template",
                       where);
    if (!prompt && !input)
        return err_set(err, ERR_INPUT, "%s: no \"prompt\"", where);
    buf_puts(&q->prompt, prompt ? prompt : input);
    buf_puts(&q->prompt, prompt ? "" : prefix);
    return buf_check(&q->prompt, "prompt", err);
}

static int get_metric(struct question *q, const json_t *o, const struct line_defaults *d,
                      const char *where, struct err *err)
{
    const char *name = NULL, *dataset = NULL;
    struct names all = {0};
    OWN(buf_free) struct buf list = {0};
    PASS_ON(jget_str_opt(o, "metric", where, &name, err));
    PASS_ON(jget_str_opt(o, "dataset", where, &dataset, err));
    q->max_new = d->max_new;
    for (size_t i = 0; dataset && i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].dataset, dataset) == 0) {
            q->metric = known[i].metric;
            q->max_new = known[i].max_new;
            q->first_line = known[i].first_line;
            snprintf(q->group, sizeof q->group, "%s", dataset);
            if (!name)
                return 0;
        }
    for (int i = 0; text_metric_names[i]; i++) {
        names_add(&all, text_metric_names[i]);
        if (name && strcmp(text_metric_names[i], name) == 0) {
            q->metric = (enum text_metric)i;
            return 0;
        }
    }
    if (!name && d->metric >= 0) {
        q->metric = (enum text_metric)d->metric;
        return 0;
    }
    names_text(&all, &list);
    if (!name)
        return err_set(err, ERR_INPUT, "%s: no \"metric\", nor --grade (%s)", where,
                       buf_str(&list));
    return err_set(err, ERR_INPUT, "%s: unknown metric '%.60s' (there are %s)", where, name,
                   buf_str(&list));
}

/* An empty text stands in every text, ends it before it begins, and is the likeliest of all. */
static int refuse_empty(const struct str_list *l, const char *key, const char *where,
                        struct err *err)
{
    return str_list_has(l, "")
               ? err_set(err, ERR_INPUT, "%s: \"%s\": a text in it is empty", where, key)
               : 0;
}

static int check_choices(const struct question *q, const char *where, struct err *err)
{
    bool needs = q->metric == TEXT_CHOICE || q->metric == TEXT_CLASSIFY;
    if (needs && q->choices.n < 2)
        return err_set(err, ERR_INPUT, "%s: metric %s needs \"choices\"", where,
                       text_metric_names[q->metric]);
    if (needs && !str_list_has(&q->choices, q->answers.items[0]))
        return err_set(err, ERR_INPUT, "%s: the answer '%.60s' is none of the choices", where,
                       q->answers.items[0]);
    return 0;
}

/* InfiniteBench names the right option by its text: its letter is an answer too. */
static void add_letters(struct question *q)
{
    int64_t n = q->answers.n;
    for (int64_t i = 0; q->metric == TEXT_LETTER && i < n; i++)
        for (int64_t k = 0; k < q->choices.n && k < 26; k++) {
            char letter[2] = {(char)('A' + k), '\0'};
            if (strcmp(q->choices.items[k], q->answers.items[i]) == 0)
                str_list_add(&q->answers, letter);
        }
}

static int parse_question(const json_t *o, const struct line_defaults *d, const char *where,
                          struct question *q, struct err *err)
{
    static const char *const answers[] = {"answers", "outputs", "answer", NULL};
    const char *group = NULL, *key;
    if (!json_is_object(o))
        return err_set(err, ERR_INPUT,
                       "%s: not a JSON object, such as {\"prompt\": ..., \"answers\": ...}", where);
    PASS_ON(get_prompt(q, o, d->template, where, err));
    if (q->prompt.len == 0)
        return err_set(err, ERR_INPUT, "%s: the prompt is empty", where);
    PASS_ON(get_metric(q, o, d, where, err));
    if ((key = first_key(o, answers)) != NULL)
        PASS_ON(get_texts(o, key, true, where, &q->answers, err));
    if (q->answers.n == 0)
        return err_set(err, ERR_INPUT, "%s: no \"answers\"", where);
    if (q->metric == TEXT_CONTAINS || q->metric == TEXT_CONTAINS_ALL)
        PASS_ON(refuse_empty(&q->answers, key, where, err));
    if ((key = first_key(o, choice_keys)) != NULL)
        PASS_ON(get_texts(o, key, true, where, &q->choices, err));
    PASS_ON(refuse_empty(&q->choices, key, where, err));
    PASS_ON(check_choices(q, where, err));
    add_letters(q);
    if (q->answers.failed)
        return err_set(err, ERR_NOMEM, "%s: out of memory", where);
    PASS_ON(get_texts(o, "stop", false, where, &q->stop, err));
    PASS_ON(refuse_empty(&q->stop, "stop", where, err));
    PASS_ON(jget_size_opt(o, "max_new_tokens", where, 1 << 20, &q->max_new, err));
    PASS_ON(jget_bool_opt(o, "first_line", where, &q->first_line, err));
    PASS_ON(jget_bool_opt(o, "ignore_case", where, &q->ignore_case, err));
    PASS_ON(jget_str_opt(o, "group", where, &group, err));
    if (group)
        utf8_copy(q->group, sizeof q->group, group);
    if (q->metric == TEXT_CHOICE)
        q->max_new = 0;
    return 0;
}

int taskfile_read(struct taskfile *f, const char *path, const struct line_defaults *d,
                  struct err *err)
{
    OWN(io_lines_close) struct io_lines l = {0};
    OWN(hash_free_at) struct hash_state *h = NULL;
    enum io_line kind;
    const char *text;
    size_t len;
    char where[4200];
    OWN(json_decrefp) json_t *o = NULL;
    PASS_ON(hash_new(&h, err));
    PASS_ON(io_lines_open(&l, path, LINE_MAX_BYTES, FILE_MAX_BYTES, err));
    for (;;) {
        PASS_ON(io_line(&l, &kind, &text, &len, err));
        if (kind == IO_LINE_END)
            break;
        hash_update(h, text, len);
        snprintf(where, sizeof where, "%s: line %lld", path, (long long)l.number);
        if (kind == IO_LINE_LONG)
            return err_set(err, ERR_INPUT, "%s is longer than %zu bytes", where, LINE_MAX_BYTES);
        if (len == 0 || strspn(text, " \t\r\n") >= len)
            continue;
        PASS_ON(json_read_foreign_text(text, len, where, &o, err));
        PASS_ON(mem_grow(&f->q, &f->cap, f->n + 1, sizeof *f->q, "questions", err));
        memset(f->q + f->n, 0, sizeof *f->q);
        f->q[f->n].line = l.number;
        PASS_ON(parse_question(o, d, where, f->q + f->n++, err));
        json_decref(o);
        o = NULL;
    }
    if (f->n == 0)
        return err_set(err, ERR_INPUT, "%s: no question in it", path);
    hash_text(hash_digest(h), f->hash);
    return 0;
}
