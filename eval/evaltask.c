/*
 * evaltask.c - which kind a task's text names, and the likelihoods of a text.
 */
#include "eval/evaltask.h"

#include "core/fileio.h"
#include "core/hash.h"
#include "core/mem.h"
#include "eval/likelihood.h"
#include "eval/prompt.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void task_put_text(struct buf *b, const char *text)
{
    for (const char *p = text; *p; p++)
        buf_put(b, *p == ':' || *p == '=' ? "_" : p, 1);
}

void task_chat_text(const struct task_opts *o, struct buf *b)
{
    char hash[HASH_TEXT_MAX];
    if (!o->chat)
        return;
    hash_text(hash_bytes(o->chat, strlen(o->chat)), hash);
    buf_printf(b, ":chat=%s", hash + strlen("xxh3:"));
}

/* ---- a text --------------------------------------------------------------------------------- */

/* More ids than a window holds are cut into windows, the beginning-of-text id in front of each and
 * counted. Without a stride windows do not overlap. With one, a window begins so many ids after the
 * one before and scores its last `stride` positions; the first scores all. */
struct text_state {
    char path[4096], hash[HASH_TEXT_MAX];
    int32_t *ids; /* without the one of the beginning, owned */
    int64_t n;
    int64_t window, stride, from, windows, left_out; /* ids; window with the first id */
};

static int read_text(struct text_state *s, const struct eval_model *m, struct err *err)
{
    OWN(buf_free) struct buf text = {0};
    bool has_bos = false;
    OWN(free_at) int32_t *ids = NULL;
    PASS_ON(buf_read_file(&text, s->path, EVAL_TEXT_MAX, err));
    hash_text(hash_bytes(buf_str(&text), text.len), s->hash);
    if (tokenizer_encode(m->tok, buf_str(&text), text.len, &has_bos, &ids, &s->n, err) != 0)
        return err_prefix(err, "%s", s->path);
    s->n -= has_bos;
    PASS_ON(mem_alloc(&s->ids, s->n, sizeof *s->ids, "token ids", err));
    memcpy(s->ids, ids + has_bos, (size_t)s->n * sizeof *ids);
    return 0;
}

/* Ids of the text that window i holds: [*at, *at + returned). */
static int64_t window_ids(const struct text_state *s, int bos, int64_t i, int64_t *at)
{
    int64_t room = s->window - bos;
    *at = i * (s->stride ? s->stride : room);
    return s->n - *at < room ? s->n - *at : room;
}

static int plan_windows(struct text_state *s, const struct eval_task *t, struct err *err)
{
    int bos = t->m->bos >= 0;
    int64_t all = s->n + bos, at, limit = t->m->llm.c.max_positions;
    if (t->o->n_tokens > 1)
        return err_set(err, ERR_USAGE, "%s: a text takes one --tokens, found %lld lengths", s->path,
                       (long long)t->o->n_tokens);
    s->window = t->o->n_tokens ? t->o->tokens[0] : all < limit ? all : limit;
    s->stride = t->o->stride;
    s->from = t->o->score_from ? t->o->score_from : 1;
    if (s->window > limit)
        return err_set(err, ERR_USAGE, "%s: --tokens %lld is more than the model's context of %lld",
                       s->path, (long long)s->window, (long long)limit);
    if (all < s->window)
        return err_set(err, ERR_USAGE, "%s has %lld tokens, --tokens asks for %lld", s->path,
                       (long long)all, (long long)s->window);
    if (s->window < 2 || s->from >= s->window)
        return err_set(err, ERR_USAGE,
                       "%s: windows of %lld tokens leave none to score from position %lld on",
                       s->path, (long long)s->window, (long long)s->from);
    if (s->stride > s->window - bos)
        return err_set(err, ERR_USAGE,
                       "%s: --stride %lld skips text between windows of %lld tokens", s->path,
                       (long long)s->stride, (long long)s->window);
    /* A rest shorter than half a window is left out. */
    for (;;) {
        int64_t n = window_ids(s, bos, s->windows, &at);
        bool whole = n + bos == s->window;
        if (!whole && (s->stride || 2 * (n + bos) < s->window)) {
            int64_t seen = s->stride ? s->window - bos - s->stride : 0;
            s->left_out = n > seen ? n - seen : 0;
            break;
        }
        s->windows++;
        if (!whole || (t->o->windows && s->windows == t->o->windows))
            break;
    }
    return 0;
}

static int cell_name(const struct eval_task *t, int64_t i, struct buf *b, struct err *err)
{
    const struct text_state *s = t->state;
    const char *name = strrchr(s->path, '/');
    buf_puts(b, "text:file=");
    task_put_text(b, name ? name + 1 : s->path);
    buf_printf(b, ":hash=%s:tokens=%lld:windows=%lld", s->hash + strlen("xxh3:"),
               (long long)s->window, (long long)s->windows);
    if (s->stride)
        buf_printf(b, ":stride=%lld", (long long)s->stride);
    if (s->from > 1)
        buf_printf(b, ":score_from=%lld", (long long)s->from);
    if (t->m->bos < 0)
        buf_puts(b, ":bos=no");
    return buf_check(b, "task", err);
}

/* Bytes and words of the ids [a, b) of the text. */
static int measure_text(const struct text_state *s, const struct eval_model *m, int64_t a,
                        int64_t b, double *bytes, double *words, struct err *err)
{
    OWN(buf_free) struct buf text = {0};
    bool inside = false;
    tokenizer_decode_bytes(m->tok, s->ids + a, b - a, &text);
    int rc = buf_check(&text, "text", err);
    *bytes += (double)text.len;
    for (size_t i = 0; i < text.len; i++) {
        bool space = isspace((unsigned char)text.data[i]);
        *words += !space && !inside;
        inside = !space;
    }
    return rc;
}

static int put_lengths(struct cell_run *c, double bytes, double words, int64_t left_out,
                       struct err *err)
{
    for (int i = 0; i < c->l->n_streams; i++) {
        struct record *r = c->rec + i;
        if (!stream_runs(c->l->s + i))
            continue;
        PASS_ON(likelihood_record(c->scores + i, c->scores, r, err));
        double nll = record_get(r, "nll_sum");
        PASS_ON(record_metric(r, "bits_per_byte", bytes > 0 ? nll / log(2) / bytes : NAN, err));
        PASS_ON(record_metric(r, "word_ppl", words > 0 ? exp(nll / words) : NAN, err));
        if (left_out)
            record_note(r, "tokens_left_out=%lld", (long long)left_out);
    }
    return 0;
}

static int run_text(struct eval_task *t, int64_t cell, struct cell_run *c, struct err *err)
{
    const struct text_state *s = t->state;
    int bos = t->m->bos >= 0;
    double bytes = 0, words = 0;
    OWN(free_at) int32_t *ids = NULL;
    PASS_ON(mem_alloc(&ids, s->window, sizeof *ids, "token ids", err));
    ids[0] = t->m->bos;
    for (int64_t i = 0; i < s->windows; i++) {
        int64_t at, n = window_ids(s, bos, i, &at);
        int64_t from = s->stride && i ? n + bos - s->stride : s->from;
        memcpy(ids + bos, s->ids + at, (size_t)n * sizeof *ids);
        PASS_ON(lockstep_prefill(c->l, ids, n + bos, err));
        PASS_ON(likelihood_add(c->l, ids, from, c->scores, err));
        PASS_ON(measure_text(s, t->m, at + from - bos, at + n, &bytes, &words, err));
    }
    PASS_ON(put_lengths(c, bytes, words, s->left_out, err));
    snprintf(c->prompt_id, sizeof c->prompt_id, "%s", s->hash);
    for (int i = 0; i < c->l->n_streams; i++)
        c->rec[i].n_q = c->rec[i].n_k = s->window;
    return 0;
}

static double cell_cost(const struct eval_task *t, int64_t i)
{
    const struct text_state *s = t->state;
    return (double)s->windows * task_cost((double)s->window);
}

static void close_text(struct eval_task *t)
{
    struct text_state *s = t->state;
    if (s)
        free(s->ids);
    free(s);
}

static const struct task_kind text_kind = {"texts", cell_name, run_text, cell_cost, close_text};

static int text_task_open(const char *path, struct eval_task *t, struct err *err)
{
    struct text_state *s = NULL;
    t->kind = &text_kind;
    PASS_ON(mem_zalloc(&s, 1, sizeof *s, "task", err));
    t->state = s;
    snprintf(s->path, sizeof s->path, "%s", path);
    PASS_ON(read_text(s, t->m, err));
    PASS_ON(plan_windows(s, t, err));
    t->cells = 1;
    t->cap = s->window;
    return 0;
}

/* ---- tasks ---------------------------------------------------------------------------------- */

static bool is_task_file(const char *path)
{
    size_t n = strlen(path), end = strlen(".jsonl");
    return n > end && strcmp(path + n - end, ".jsonl") == 0;
}

int eval_task_open(const char *text, const struct eval_model *m, const struct task_opts *o,
                   struct eval_task *out, struct err *err)
{
    bool there;
    int rc = 0;
    *out = (struct eval_task){.m = m, .o = o};
    TRY(io_exists(text, &there, err));
    if (prompt_is_task(text))
        TRY(gen_task_open(text, out, err));
    else if (there && is_task_file(text))
        TRY(file_task_open(text, out, err));
    else if (there)
        TRY(text_task_open(text, out, err));
    else
        FAIL(err, ERR_USAGE,
             "'%s' is neither a task (needle, multi, kv, chain, copy, track) nor a file", text);
out:
    if (rc)
        eval_task_close(out);
    return rc;
}

void eval_task_close(struct eval_task *t)
{
    if (t->kind)
        t->kind->close(t);
    memset(t, 0, sizeof *t);
}
