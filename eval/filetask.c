/*
 * filetask.c - the questions of a task file as cells.
 */
#include "core/hash.h"
#include "core/mem.h"
#include "eval/evaltask.h"
#include "eval/decode.h"
#include "eval/taskfile.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct file_state {
    struct taskfile f;
    char name[256];
    int64_t limit; /* ids of prompt and answer */
};

static int cell_name(const struct eval_task *t, int64_t i, struct buf *b, struct err *err)
{
    const struct file_state *s = t->state;
    const struct question *q = s->f.q + i;
    buf_printf(b, "file:file=%s", s->name);
    if (q->group[0]) {
        buf_puts(b, ":group=");
        task_put_text(b, q->group);
    }
    buf_printf(b, ":metric=%s:max_new=%lld:limit=%lld", text_metric_names[q->metric],
               (long long)q->max_new, (long long)s->limit);
    if (t->o->template) {
        char hash[HASH_TEXT_MAX];
        hash_text(hash_bytes(t->o->template, strlen(t->o->template)), hash);
        buf_printf(b, ":template=%s", hash + strlen("xxh3:"));
    }
    task_chat_text(t->o, b);
    if (t->m->bos < 0)
        buf_puts(b, ":bos=no");
    buf_printf(b, ":hash=%s:line=%lld", s->f.hash + strlen("xxh3:"), (long long)q->line);
    return buf_check(b, "task", err);
}

/* Most ids of an answer that is scored. */
static int answer_room(const struct eval_task *t, const struct question *q, int64_t *room,
                       struct err *err)
{
    int rc = 0;
    *room = q->max_new;
    for (int64_t i = 0; q->metric == TEXT_CHOICE && i < q->choices.n; i++) {
        int32_t *ids = NULL;
        int64_t n = 0;
        rc = tokenizer_encode_plain(t->m->tok, q->choices.items[i], strlen(q->choices.items[i]),
                                    &ids, &n, err);
        free(ids);
        if (rc)
            return rc;
        *room = n > *room ? n : *room;
    }
    return 0;
}

/* Ids of the prompt; of one that is too long the first and the last ids that fit, half and half.
 * *cut: ids that were left out. The chat text's ids stand outside. */
static int question_prompt(const struct eval_task *t, const struct question *q, struct id_list *out,
                           int64_t *cut, int64_t *room, struct err *err)
{
    const struct file_state *s = t->state;
    OWN(id_list_free) struct id_list around = {0}, whole = {0};
    const char *at = t->o->chat ? strstr(t->o->chat, "{prompt}") : NULL;
    int64_t front, n, keep;
    int rc = 0;
    *cut = 0;
    PASS_ON(answer_room(t, q, room, err));
    PASS_ON(prompt_ids(t->m, t->o->chat, q->prompt.data, q->prompt.len, out, err));
    if (out->n + *room <= s->limit)
        return 0;
    if (t->o->truncate == TRUNCATE_ERROR)
        return err_set(
            err, ERR_USAGE,
            "%s: line %lld: the prompt has %lld tokens and its answer may have %lld, more than "
            "%lld: use a model with a longer context, or --truncate middle",
            s->name, (long long)q->line, (long long)out->n, (long long)*room, (long long)s->limit);
    PASS_ON(prompt_ids(t->m, t->o->chat, "", 0, &around, err));
    front = t->m->bos >= 0;
    if (at) {
        struct buf before = {0};
        buf_put(&before, t->o->chat, (size_t)(at - t->o->chat));
        buf_puts(&before, "{prompt}");
        rc = buf_check(&before, "chat text", err);
        rc = rc ? rc : prompt_ids(t->m, buf_str(&before), "", 0, &whole, err);
        front = whole.n;
        buf_free(&before);
        if (rc)
            return rc;
    }
    keep = s->limit - *room - around.n;
    n = out->n - around.n;
    if (keep < 2)
        return err_set(err, ERR_USAGE,
                       "%s: line %lld: answers of %lld tokens leave no room for a prompt in "
                       "%lld",
                       s->name, (long long)q->line, (long long)*room, (long long)s->limit);
    int64_t first = keep / 2, last = keep / 2;
    memmove(out->v + front + first, out->v + front + n - last,
            (size_t)(last + around.n - front) * sizeof *out->v);
    *cut = n - first - last;
    out->n -= *cut;
    return rc;
}

/* ---- grades --------------------------------------------------------------------------------- */

/* The likeliest of the choices, by its sum and by its sum per byte. */
static int grade_choice(struct decode *d, const struct question *q, const struct eval_model *m,
                        struct record *r, struct err *err)
{
    double best = INFINITY, best_norm = INFINITY;
    OWN(free_at) double *nll = NULL;
    bool right = false, right_norm = false;
    OWN(free_at) int32_t *ids = NULL;
    for (int64_t i = 0; i < q->choices.n; i++) {
        const char *text = q->choices.items[i];
        bool answer = strcmp(text, q->answers.items[0]) == 0;
        double sum = 0, bytes = (double)strlen(text);
        int64_t n = 0;
        PASS_ON(tokenizer_encode_plain(m->tok, text, strlen(text), &ids, &n, err));
        PASS_ON(mem_alloc(&nll, n, sizeof *nll, "likelihoods", err));
        decode_rewind(d);
        PASS_ON(decode_score(d, ids, n, nll, NULL, err));
        for (int64_t k = 0; k < n; k++)
            sum += nll[k];
        if (sum < best) {
            best = sum;
            right = answer;
        }
        if (bytes > 0 && sum / bytes < best_norm) {
            best_norm = sum / bytes;
            right_norm = answer;
        }
        free(ids);
        free(nll);
        ids = NULL;
        nll = NULL;
    }
    PASS_ON(record_metric(r, "choice_acc", right, err));
    return record_metric(r, "choice_acc_norm", right_norm, err);
}

static int grade_text(struct decode *d, const struct question *q, const struct eval_model *m,
                      struct buf *text, struct record *r, struct err *err)
{
    struct text_case c = {q->metric, &q->answers, &q->choices, q->first_line, q->ignore_case};
    char name[48];
    double score = 0;
    PASS_ON(generate(d, m, q->max_new, &q->stop, text, err));
    PASS_ON(text_score(&c, buf_str(text), &score, err));
    snprintf(name, sizeof name, "score@%s", text_metric_names[q->metric]);
    return record_metric(r, name, score, err);
}

static int grade(struct cell_run *c, int stream, const struct question *q, int64_t cut,
                 struct err *err)
{
    struct record *r = c->rec + stream;
    OWN(decode_close) struct decode d = {0};
    PASS_ON(decode_open(&d, c->l, stream, err));
    int rc = q->metric == TEXT_CHOICE ? grade_choice(&d, q, c->m, r, err)
                                      : grade_text(&d, q, c->m, c->predicted + stream, r, err);
    if (rc > 0)
        record_no_metrics(r);
    return rc > 0 ? 0 : rc ? rc : record_metric(r, "truncated", (double)cut, err);
}

static int run_cell(struct eval_task *t, int64_t cell, struct cell_run *c, struct err *err)
{
    const struct file_state *s = t->state;
    const struct question *q = s->f.q + cell;
    OWN(id_list_free) struct id_list ids = {0};
    int64_t cut, room;
    PASS_ON(question_prompt(t, q, &ids, &cut, &room, err));
    hash_text(hash_bytes(q->prompt.data, q->prompt.len), c->prompt_id);
    PASS_ON(lockstep_prefill(c->l, ids.v, ids.n, err));
    for (int i = 0; i < c->l->n_streams; i++) {
        c->rec[i].n_q = c->rec[i].n_k = ids.n;
        if (stream_runs(c->l->s + i))
            PASS_ON(grade(c, i, q, cut, err));
    }
    return 0;
}

/* Ids are not counted: about three bytes each. */
static double cell_cost(const struct eval_task *t, int64_t i)
{
    const struct file_state *s = t->state;
    double n = (double)s->f.q[i].prompt.len / 3;
    return task_cost(n < (double)s->limit ? n : (double)s->limit);
}

static void close_task(struct eval_task *t)
{
    OWN(free_at) struct file_state *s = t->state;
    if (s)
        taskfile_free(&s->f);
}

static const struct task_kind file_kind = {"task files", cell_name, run_cell, cell_cost,
                                           close_task};

/* Room for the longest prompt; a prompt that is refused is refused before anything runs. */
static int plan_room(struct eval_task *t, struct err *err)
{
    const struct file_state *s = t->state;
    OWN(id_list_free) struct id_list ids = {0};
    int64_t cut, room;
    for (int64_t i = 0; i < s->f.n; i++) {
        PASS_ON(question_prompt(t, s->f.q + i, &ids, &cut, &room, err));
        t->cap = ids.n + room > t->cap ? ids.n + room : t->cap;
    }
    return 0;
}

int file_task_open(const char *path, struct eval_task *t, struct err *err)
{
    const char *slash = strrchr(path, '/');
    struct file_state *s = NULL;
    OWN(buf_free) struct buf name = {0};
    int64_t context = t->m->llm.c.max_positions;
    t->kind = &file_kind;
    PASS_ON(mem_zalloc(&s, 1, sizeof *s, "task", err));
    t->state = s;
    task_put_text(&name, slash ? slash + 1 : path);
    snprintf(s->name, sizeof s->name, "%s", buf_str(&name));
    if (t->o->n_tokens > 1)
        return err_set(err, ERR_USAGE,
                       "%s: a task file takes one --tokens, the most that prompt and answer "
                       "may have",
                       path);
    s->limit = t->o->n_tokens ? t->o->tokens[0] : context;
    if (s->limit > context)
        return err_set(err, ERR_USAGE, "%s: --tokens %lld is more than the model's context of %lld",
                       path, (long long)s->limit, (long long)context);
    const struct line_defaults d = {t->o->template, t->o->metric, t->o->max_new};
    PASS_ON(taskfile_read(&s->f, path, &d, err));
    t->cells = s->f.n;
    t->decodes = true;
    return plan_room(t, err);
}
