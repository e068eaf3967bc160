/*
 * generate.c - see generate.h.
 */
#include "eval/generate.h"

#include <stdlib.h>
#include <string.h>

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
    int32_t *ids = NULL;
    int64_t n = 0;
    int rc = 0;

    if (len == 0)
        return 0;
    TRY(tokenizer_encode(m->tok, text, len, &added, &ids, &n, err));
    bool again = n > 0 && m->bos >= 0 && ids[0] == m->bos && (added || out->n == 1);
    TRY(append(out, ids + again, n - again, err));
out:
    free(ids);
    return rc;
}

int prompt_ids(const struct eval_model *m, const char *chat, const char *text, size_t len,
               struct id_list *out, struct err *err)
{
    static const char hole[] = "{prompt}";
    const char *at = chat ? strstr(chat, hole) : NULL;
    int32_t *ids = NULL;
    int64_t n = 0;
    int rc = 0;

    id_list_free(out);
    if (m->bos >= 0)
        TRY(append(out, &m->bos, 1, err));
    if (at)
        TRY(append_chat(m, chat, (size_t)(at - chat), out, err));
    TRY(tokenizer_encode_plain(m->tok, text, len, &ids, &n, err));
    TRY(append(out, ids, n, err));
    if (at)
        TRY(append_chat(m, at + strlen(hole), strlen(at + strlen(hole)), out, err));
out:
    free(ids);
    return rc;
}

int answer_ids(const struct eval_model *m, const char *chat, const char *prompt_text, size_t len,
               const char *answer_text, struct id_list *prompt, struct id_list *answer,
               bool *retokenised, struct err *err)
{
    struct buf whole_text = {0};
    struct id_list whole = {0};
    int32_t *ids = NULL;
    int64_t n = 0, same = 0;
    int rc = 0;

    id_list_free(answer);
    *retokenised = false;
    TRY(tokenizer_encode_plain(m->tok, answer_text, strlen(answer_text), &ids, &n, err));
    if (chat) { /* text stands between the prompt and its answer */
        TRY(append(answer, ids, n, err));
        goto out;
    }
    buf_put(&whole_text, prompt_text, len);
    buf_puts(&whole_text, answer_text);
    TRY(buf_check(&whole_text, "prompt", err));
    TRY(prompt_ids(m, NULL, whole_text.data, whole_text.len, &whole, err));
    while (same < prompt->n && same < whole.n && prompt->v[same] == whole.v[same])
        same++;
    *retokenised = same < prompt->n || whole.n - same != n ||
                   memcmp(whole.v + same, ids, (size_t)n * sizeof *ids) != 0;
    prompt->n = same;
    TRY(append(answer, whole.v + same, whole.n - same, err));
out:
    buf_free(&whole_text);
    id_list_free(&whole);
    free(ids);
    return rc;
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
    struct id_list ids = {0};
    int rc = 0;

    buf_reset(out);
    buf_puts(out, "");
    for (int64_t i = 0; i < max_new; i++) {
        int32_t id = decode_likeliest(d);
        if (ends_text(m, id))
            break;
        TRY(append(&ids, &id, 1, err));
        buf_reset(out);
        tokenizer_decode_bytes(m->tok, ids.v, ids.n, out);
        TRY(buf_check(out, "generated text", err));
        size_t end = stop_at(out, stop);
        if (end < out->len) {
            out->len = end;
            out->data[end] = '\0';
            break;
        }
        if (i + 1 < max_new) {
            rc = decode_push(d, &id, 1, err);
            if (rc)
                goto out;
        }
    }
out:
    id_list_free(&ids);
    return rc;
}
