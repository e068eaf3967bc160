/*
 * gengrade.c - see gengrade.h.
 */
#include "eval/gengrade.h"

#include "core/mem.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COPY_IDS 256 /* of a repeated passage that are scored */

/* ---- ids ------------------------------------------------------------------------------------ */

/* n: ids of the prompt alone, of which the right answer may have left fewer. */
static int open_wrong(struct grade *g, int64_t n, struct err *err)
{
    const struct prompt *p = g->prompt;
    bool again;
    int rc = 0;

    TRY(mem_zalloc(&g->wrong, p->wrong.n, sizeof *g->wrong, "answers", err));
    for (int64_t i = 0; i < p->wrong.n; i++) {
        struct id_list *w = g->wrong + g->n_wrong, prompt = {g->ids.v, n};
        TRY(answer_ids(g->m, g->chat, p->text.data, p->text.len, p->wrong.items[i], &prompt, w,
                       &again, err));
        /* An answer that begins at another id of the prompt cannot be scored behind the same one.
         */
        if (prompt.n == g->ids.n && w->n > 0)
            g->n_wrong++;
        else
            id_list_free(w);
    }
out:
    return rc;
}

/* Where the ids of the passage stand first. The ids at its ends may differ, because a token can
 * reach over the end of a line: up to two at each are left out. */
static void find_first(struct grade *g)
{
    for (int64_t cut = 0; cut <= 4; cut++) {
        int64_t skip = cut / 2 + cut % 2, n = g->answer.n - cut;
        for (int64_t at = 1; n > 0 && at + n <= g->ids.n; at++)
            if (memcmp(g->ids.v + at, g->answer.v + skip, (size_t)n * sizeof(int32_t)) == 0) {
                g->first_at = at;
                g->first_n = n;
                g->first_skip = skip;
                return;
            }
    }
}

int grade_open(struct grade *g, struct err *err)
{
    const struct prompt *p = g->prompt;
    enum prompt_kind kind = g->spec->kind;
    struct buf covered = {0};
    int rc = 0;

    TRY(prompt_ids(g->m, g->chat, p->text.data, p->text.len, &g->ids, err));
    int64_t n = g->ids.n;
    if (kind == PROMPT_CHAIN || kind == PROMPT_TRACK)
        goto out;
    TRY(answer_ids(g->m, g->chat, p->text.data, p->text.len, p->answers.items[0], &g->ids,
                   &g->answer, &g->retokenised, err));
    if (g->retokenised) {
        int64_t bos = g->m->bos >= 0;
        tokenizer_decode_bytes(g->m->tok, g->ids.v + bos, g->ids.n - bos, &covered);
        TRY(buf_check(&covered, "prompt", err));
        g->overhang = p->text.len > covered.len ? p->text.len - covered.len : 0;
    }
    if (kind == PROMPT_COPY && g->answer.n > COPY_IDS)
        g->answer.n = COPY_IDS;
    if (kind == PROMPT_COPY)
        find_first(g);
    else
        TRY(open_wrong(g, n, err));
out:
    buf_free(&covered);
    return rc;
}

void grade_close(struct grade *g)
{
    for (int64_t i = 0; g->wrong && i < g->n_wrong; i++)
        id_list_free(g->wrong + i);
    free(g->wrong);
    id_list_free(&g->ids);
    id_list_free(&g->answer);
}

/* ---- texts ---------------------------------------------------------------------------------- */

/* Generated text without ASCII white space at its ends, and without what the prompt's ids left. */
static void strip(const struct grade *g, const struct buf *text, struct buf *out)
{
    const char *s = buf_str(text);
    size_t len = text->len;
    if (g->overhang && len >= g->overhang &&
        memcmp(s, g->prompt->text.data + g->prompt->text.len - g->overhang, g->overhang) == 0) {
        s += g->overhang;
        len -= g->overhang;
    }
    while (len > 0 && isspace((unsigned char)s[0])) {
        s++;
        len--;
    }
    while (len > 0 && isspace((unsigned char)s[len - 1]))
        len--;
    buf_reset(out);
    buf_put(out, s, len);
}

/* ---- grades --------------------------------------------------------------------------------- */

/* One stream while it is graded. */
struct grading {
    const struct grade *g;
    struct cell_run *c;
    struct record *r;
    struct buf *text; /* what it generated */
    struct decode d;
};

static int score_ids(struct grading *x, const struct id_list *ids, double *sum, struct err *err)
{
    double *nll = NULL;
    int rc = 0;
    TRY(mem_alloc(&nll, ids->n, sizeof *nll, "likelihoods", err));
    decode_rewind(&x->d);
    rc = decode_score(&x->d, ids->v, ids->n, nll, NULL, err);
    *sum = 0;
    for (int64_t i = 0; !rc && i < ids->n; i++)
        *sum += nll[i];
out:
    free(nll);
    return rc;
}

/* How likely the answer is, and how much likelier than the likeliest wrong one. */
static int grade_likelihood(struct grading *x, struct err *err)
{
    const struct grade *g = x->g;
    double nll, other, margin = INFINITY;
    int rc = score_ids(x, &g->answer, &nll, err);
    if (rc)
        return rc;
    for (int64_t i = 0; i < g->n_wrong; i++) {
        rc = score_ids(x, g->wrong + i, &other, err);
        if (rc)
            return rc;
        margin = other - nll < margin ? other - nll : margin;
    }
    TRY(record_metric(x->r, "answer_nll", nll, err));
    TRY(record_metric(x->r, "answer_nll_tok", nll / (double)g->answer.n, err));
    TRY(record_metric(x->r, "answer_p", exp(-nll), err));
    if (g->n_wrong)
        TRY(record_metric(x->r, "answer_margin", margin, err));
out:
    return rc;
}

static int grade_value(struct grading *x, struct err *err)
{
    static const char *const acc[] = {"needle_acc", "multi_acc", "kv_acc"};
    const struct grade *g = x->g;
    const char *value = g->prompt->answers.items[0] + 1; /* behind its space */
    struct buf text = {0};
    int rc = generate(&x->d, g->m, g->prompt->max_new, &g->prompt->stop, x->text, err);
    if (rc)
        return rc;
    strip(g, x->text, &text);
    TRY(buf_check(&text, "generated text", err));
    TRY(record_metric(x->r, acc[g->spec->kind], strcmp(buf_str(&text), value) == 0, err));
    if (g->spec->kind == PROMPT_NEEDLE)
        TRY(record_metric(x->r, "needle_found", strstr(buf_str(x->text), value) != NULL, err));
    rc = grade_likelihood(x, err);
out:
    buf_free(&text);
    return rc;
}

/* Mean nll of the passage's ids where they stand first, in the prefill. */
static int first_nll(struct grading *x, double *mean, struct err *err)
{
    const struct grade *g = x->g;
    const struct llm_config *c = &g->m->llm.c;
    float *logits = NULL, *h = NULL;
    int rc = 0;

    TRY(mem_alloc(&logits, c->vocab, sizeof *logits, "logits", err));
    TRY(mem_alloc(&h, g->first_n * c->hidden, sizeof *h, "hidden state", err));
    TRY(lockstep_hidden(x->c->l, x->d.stream, g->first_at - 1, g->first_n, h, err));
    *mean = 0;
    for (int64_t i = 0; i < g->first_n; i++) {
        TRY(lockstep_logits(x->c->l, h + i * c->hidden, 1, logits, err));
        *mean += logits_nll(logits, c->vocab, g->ids.v[g->first_at + i], NULL) / (double)g->first_n;
    }
out:
    free(logits);
    free(h);
    return rc;
}

static int grade_copy(struct grading *x, struct err *err)
{
    const struct grade *g = x->g;
    int64_t n = g->answer.n, right = 0;
    double *nll = NULL, sum = 0, again = 0, first;
    bool *top1 = NULL;
    int rc = 0;

    TRY(mem_alloc(&nll, n, sizeof *nll, "likelihoods", err));
    TRY(mem_alloc(&top1, n, sizeof *top1, "likelihoods", err));
    rc = decode_score(&x->d, g->answer.v, n, nll, top1, err);
    if (rc)
        goto out;
    for (int64_t i = 0; i < n; i++) {
        sum += nll[i];
        right += top1[i];
        again += i >= g->first_skip && i < g->first_skip + g->first_n ? nll[i] : 0;
    }
    TRY(record_metric(x->r, "copy_nll", sum / (double)n, err));
    TRY(record_metric(x->r, "copy_top1", (double)right / (double)n, err));
    if (g->first_n) {
        TRY(first_nll(x, &first, err));
        TRY(record_metric(x->r, "copy_gain", first - again / (double)g->first_n, err));
    } else {
        record_note(x->r, "copy_gain=ids of the passage differ where it stands first");
    }
out:
    free(nll);
    free(top1);
    return rc;
}

/* One turn of a chain: the ids up to the first that is not of digits and spaces. They are taken. */
static int chain_turn(struct grading *x, struct buf *text, struct err *err)
{
    const struct tokenizer *tok = x->g->m->tok;
    struct buf piece = {0};
    int rc = 0;

    buf_reset(text);
    for (int i = 0; i < 24; i++) {
        int32_t id = decode_likeliest(&x->d);
        buf_reset(&piece);
        tokenizer_decode_bytes(tok, &id, 1, &piece);
        TRY(buf_check(&piece, "generated text", err));
        if (strspn(buf_str(&piece), "0123456789 ") < piece.len || piece.len == 0)
            break;
        buf_puts(text, buf_str(&piece));
        rc = decode_push(&x->d, &id, 1, err);
        if (rc)
            goto out;
    }
out:
    buf_free(&piece);
    return rc;
}

static int grade_chain(struct grading *x, struct err *err)
{
    const struct prompt *p = x->g->prompt;
    struct buf text = {0}, right = {0};
    int64_t hops = 0;
    int32_t *ids = NULL;
    int rc = 0;

    for (int64_t i = 0; i < p->answers.n; i++) {
        char link[64];
        int64_t n = 0;
        rc = chain_turn(x, &text, err);
        if (rc)
            goto out;
        buf_puts(x->text, buf_str(&text));
        strip(x->g, &text, &right);
        TRY(buf_check(&right, "generated text", err));
        if (strcmp(buf_str(&right), p->answers.items[i]) != 0)
            break;
        hops++;
        if (i + 1 == p->answers.n)
            break;
        snprintf(link, sizeof link, " */\n/* needle %s:", p->keys.items[i + 1]);
        buf_puts(x->text, link);
        TRY(tokenizer_encode_plain(x->g->m->tok, link, strlen(link), &ids, &n, err));
        rc = decode_push(&x->d, ids, n, err);
        free(ids);
        ids = NULL;
        if (rc)
            goto out;
    }
    TRY(record_metric(x->r, "chain_hops", (double)hops / (double)p->answers.n, err));
    TRY(record_metric(x->r, "chain_acc", hops == p->answers.n, err));
out:
    free(ids);
    buf_free(&text);
    buf_free(&right);
    return rc;
}

static int grade_track(struct grading *x, struct err *err)
{
    const struct prompt *p = x->g->prompt;
    int64_t found = 0;
    int rc = generate(&x->d, x->g->m, p->max_new, &p->stop, x->text, err);
    if (rc)
        return rc;
    for (int64_t i = 0; i < p->answers.n; i++)
        found += strcasestr(buf_str(x->text), p->answers.items[i]) != NULL;
    return record_metric(x->r, "track_recall", (double)found / (double)p->answers.n, err);
}

int grade_stream(const struct grade *g, struct cell_run *c, int stream, struct err *err)
{
    struct grading x = {g, c, c->rec + stream, c->predicted + stream, {0}};
    int rc = 0;

    TRY(decode_open(&x.d, c->l, stream, err));
    switch (g->spec->kind) {
    case PROMPT_CHAIN:
        rc = grade_chain(&x, err);
        break;
    case PROMPT_COPY:
        rc = grade_copy(&x, err);
        break;
    case PROMPT_TRACK:
        rc = grade_track(&x, err);
        break;
    default:
        rc = grade_value(&x, err);
        break;
    }
    if (g->retokenised)
        record_note(x.r, "retokenised=1");
    if (rc > 0) { /* the stream is out: what it had reached is no result */
        record_no_metrics(x.r);
        rc = 0;
    }
out:
    decode_close(&x.d);
    return rc;
}
