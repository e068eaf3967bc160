/*
 * decode.c - see decode.h.
 */
#include "eval/decode.h"

#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows whose logits exist at a time. */
#define ROWS 32

double logits_nll(const float *logits, int64_t vocab, int32_t id, bool *top1)
{
    double top = -INFINITY, sum = 0;
    int64_t likely = 0;
    for (int64_t j = 0; j < vocab; j++)
        if (logits[j] > top) {
            top = logits[j];
            likely = j;
        }
    for (int64_t j = 0; j < vocab; j++)
        sum += exp(logits[j] - top);
    if (top1)
        *top1 = likely == id;
    return top + log(sum) - logits[id];
}

static int64_t vocab(const struct decode *d)
{
    return d->l->model->c.vocab;
}

int decode_open(struct decode *d, struct lockstep *l, int stream, struct err *err)
{
    *d = (struct decode){.l = l, .stream = stream, .pos = l->n};
    PASS_ON(mem_alloc(&d->first, vocab(d), sizeof *d->first, "logits", err));
    PASS_ON(mem_alloc(&d->logits, vocab(d), sizeof *d->logits, "logits", err));
    PASS_ON(lockstep_logits(l, l->s[stream].last, 1, d->first, err));
    decode_rewind(d);
    return 0;
}

void decode_close(struct decode *d)
{
    free(d->first);
    free(d->logits);
    free(d->rows);
    memset(d, 0, sizeof *d);
}

void decode_rewind(struct decode *d)
{
    memcpy(d->logits, d->first, (size_t)vocab(d) * sizeof *d->logits);
    d->pos = d->l->n;
}

int32_t decode_likeliest(const struct decode *d)
{
    int64_t likely = 0;
    for (int64_t j = 1; j < vocab(d); j++)
        if (d->logits[j] > d->logits[likely])
            likely = j;
    return (int32_t)likely;
}

/* d->rows [m][hidden] of the ids at the current position. */
static int run_rows(struct decode *d, const int32_t *ids, int64_t m, struct err *err)
{
    int64_t hidden = d->l->model->c.hidden;
    if (m > d->cap_rows) {
        free(d->rows);
        d->rows = NULL;
        d->cap_rows = 0;
        PASS_ON(mem_alloc(&d->rows, m * hidden, sizeof *d->rows, "hidden state", err));
        d->cap_rows = m;
    }
    int rc = lockstep_rows(d->l, d->stream, ids, d->pos, m, d->rows, err);
    d->pos += rc ? 0 : m;
    return rc;
}

int decode_push(struct decode *d, const int32_t *ids, int64_t m, struct err *err)
{
    PASS_ON(run_rows(d, ids, m, err));
    return lockstep_logits(d->l, d->rows + (m - 1) * d->l->model->c.hidden, 1, d->logits, err);
}

int decode_score(struct decode *d, const int32_t *ids, int64_t m, double *nll, bool *top1,
                 struct err *err)
{
    int64_t hidden = d->l->model->c.hidden;
    OWN(free_at) float *logits = NULL;
    if (m == 0)
        return 0;
    nll[0] = logits_nll(d->logits, vocab(d), ids[0], top1);
    PASS_ON(mem_alloc(&logits, ROWS * vocab(d), sizeof *logits, "logits", err));
    PASS_ON(run_rows(d, ids, m, err));
    for (int64_t r = 0; r < m; r += ROWS) {
        int64_t n = m - r < ROWS ? m - r : ROWS;
        PASS_ON(lockstep_logits(d->l, d->rows + r * hidden, n, logits, err));
        for (int64_t i = r; i < r + n && i + 1 < m; i++)
            nll[i + 1] = logits_nll(logits + (i - r) * vocab(d), vocab(d), ids[i + 1],
                                    top1 ? top1 + i + 1 : NULL);
        if (r + n == m)
            memcpy(d->logits, logits + (n - 1) * vocab(d), (size_t)vocab(d) * sizeof *logits);
    }
    return 0;
}

/* ---- answers as text ------------------------------------------------------------------------ */

void id_list_free(struct id_list *l)
{
    free(l->v);
    memset(l, 0, sizeof *l);
}

static int append(struct id_list *to, const int32_t *ids, int64_t n, struct err *err)
{
    int32_t *v = realloc(to->v, (size_t)(to->n + n + 1) * sizeof *v);
    if (!v)
        return err_set(err, ERR_NOMEM, "token ids: out of memory");
    memcpy(v + to->n, ids, (size_t)n * sizeof *ids);
    to->v = v;
    to->n += n;
    return 0;
}

/* A part of a chat text, in which added tokens count; a second beginning-of-text id is dropped. */
static int append_chat(const struct eval_model *m, const char *text, size_t len,
                       struct id_list *out, struct err *err)
{
    bool added = false;
    OWN(free_at) int32_t *ids = NULL;
    int64_t n = 0;
    if (len == 0)
        return 0;
    PASS_ON(tokenizer_encode(m->tok, text, len, &added, &ids, &n, err));
    int64_t skip = added;
    skip += out->n == 1 && skip < n && ids[skip] == m->bos;
    return append(out, ids + skip, n - skip, err);
}

int prompt_ids(const struct eval_model *m, const char *chat, const char *text, size_t len,
               struct id_list *out, struct err *err)
{
    static const char hole[] = "{prompt}";
    const char *at = chat ? strstr(chat, hole) : NULL;
    OWN(free_at) int32_t *ids = NULL;
    int64_t n = 0;
    id_list_free(out);
    if (m->bos >= 0)
        PASS_ON(append(out, &m->bos, 1, err));
    if (at)
        PASS_ON(append_chat(m, chat, (size_t)(at - chat), out, err));
    PASS_ON(tokenizer_encode_plain(m->tok, text, len, &ids, &n, err));
    PASS_ON(append(out, ids, n, err));
    if (at)
        return append_chat(m, at + strlen(hole), strlen(at + strlen(hole)), out, err);
    return 0;
}

int answer_ids(const struct eval_model *m, const char *chat, const char *prompt_text, size_t len,
               const char *answer_text, struct id_list *prompt, struct id_list *answer,
               bool *retokenised, struct err *err)
{
    OWN(buf_free) struct buf whole_text = {0};
    OWN(id_list_free) struct id_list whole = {0};
    OWN(free_at) int32_t *ids = NULL;
    int64_t n = 0, same = 0;
    id_list_free(answer);
    *retokenised = false;
    PASS_ON(tokenizer_encode_plain(m->tok, answer_text, strlen(answer_text), &ids, &n, err));
    if (chat) { /* text stands between the prompt and its answer */
        PASS_ON(append(answer, ids, n, err));
        return 0;
    }
    buf_put(&whole_text, prompt_text, len);
    buf_puts(&whole_text, answer_text);
    PASS_ON(buf_check(&whole_text, "prompt", err));
    PASS_ON(prompt_ids(m, NULL, whole_text.data, whole_text.len, &whole, err));
    while (same < prompt->n && same < whole.n && prompt->v[same] == whole.v[same])
        same++;
    *retokenised = same < prompt->n || whole.n - same != n ||
                   memcmp(whole.v + same, ids, (size_t)n * sizeof *ids) != 0;
    prompt->n = same;
    return append(answer, whole.v + same, whole.n - same, err);
}

/* Where the first of the stop strings begins, or the length. */
static size_t stop_at(const struct buf *text, const struct str_list *stop)
{
    size_t best = text->len;
    for (int64_t i = 0; i < stop->n; i++) {
        const char *hit = strstr(buf_str(text), stop->items[i]);
        if (hit && (size_t)(hit - text->data) < best)
            best = (size_t)(hit - text->data);
    }
    return best;
}

static bool ends_text(const struct eval_model *m, int32_t id)
{
    for (int i = 0; i < m->n_eot; i++)
        if (m->eot[i] == id)
            return true;
    return false;
}

int generate(struct decode *d, const struct eval_model *m, int64_t max_new,
             const struct str_list *stop, struct buf *out, struct err *err)
{
    OWN(id_list_free) struct id_list ids = {0};
    buf_reset(out);
    buf_puts(out, "");
    for (int64_t i = 0; i < max_new; i++) {
        int32_t id = decode_likeliest(d);
        if (ends_text(m, id))
            break;
        PASS_ON(append(&ids, &id, 1, err));
        buf_reset(out);
        tokenizer_decode_bytes(m->tok, ids.v, ids.n, out);
        PASS_ON(buf_check(out, "generated text", err));
        size_t end = stop_at(out, stop);
        if (end < out->len) {
            out->len = end;
            out->data[end] = '\0';
            break;
        }
        if (i + 1 < max_new) {
            PASS_ON(decode_push(d, &id, 1, err));
        }
    }
    return 0;
}

int decode_greedy(const char *dir, const struct decoder_accel *on, int jobs, const int32_t *prompt,
                  int64_t n, int64_t most, int32_t *ids, int64_t *made, struct err *err)
{
    OWN(eval_model_close) struct eval_model m = {.dir = dir};
    struct lockstep_on where = {.decoder = on};
    OWN(lockstep_close) struct lockstep l = {0};
    OWN(decode_close) struct decode d = {0};
    *made = 0;
    PASS_ON(llm_open(dir, &m.llm, err));
    PASS_ON(eval_model_ends(&m, err));
    PASS_ON(
        lockstep_open(&l, &m.llm, NULL, 0, n + most, true, DT_F32, jobs, on ? &where : NULL, err));
    PASS_ON(lockstep_prefill(&l, prompt, n, err));
    PASS_ON(decode_open(&d, &l, 0, err));
    while (*made < most) {
        int32_t id = decode_likeliest(&d);
        if (ends_text(&m, id))
            break;
        ids[(*made)++] = id;
        if (*made < most)
            PASS_ON(decode_push(&d, &id, 1, err));
    }
    return 0;
}
