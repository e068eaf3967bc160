/*
 * gentask.c - generated tasks (prompt.h) as cells: length x depth x sample, graded by what the
 * model generates and by how likely the right answer is.
 */
#include "core/hash.h"
#include "core/clock.h"
#include "core/mem.h"
#include "eval/decode.h"
#include "eval/evaltask.h"
#include "eval/prompt.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Tokens behind N that grading may need: a chain's links and answers that are longer than what may
 * be generated. */
#define GRADE_ROOM 256

struct grade {
    const struct prompt_spec *spec;
    const struct eval_model *m;
    const struct prompt *prompt;
    const char *chat;      /* NULL: none */
    struct id_list ids;    /* of the prompt */
    struct id_list answer; /* of answers[0], not of chain and track */
    struct id_list *wrong; /* [n_wrong] of the others' answers */
    int64_t n_wrong;
    size_t overhang;           /* bytes of the prompt that its ids leave to the answer */
    int64_t first_at, first_n; /* copy: where the answer's ids stand first, and from which on */
    int64_t first_skip;
    bool retokenised;
};

#define COPY_IDS 256 /* of a repeated passage that are scored */

/* ---- the right answer and wrong ones as ids ------------------------------------------------- */

/* n: ids of the prompt alone, of which the right answer may have left fewer. */
static int open_wrong(struct grade *g, int64_t n, struct err *err)
{
    const struct prompt *p = g->prompt;
    bool again;
    PASS_ON(mem_zalloc(&g->wrong, p->wrong.n, sizeof *g->wrong, "answers", err));
    for (int64_t i = 0; i < p->wrong.n; i++) {
        struct id_list *w = g->wrong + g->n_wrong, prompt = {g->ids.v, n};
        PASS_ON(answer_ids(g->m, g->chat, p->text.data, p->text.len, p->wrong.items[i], &prompt, w,
                           &again, err));
        /* An answer that begins at another id of the prompt cannot be scored behind the same one.
         */
        if (prompt.n == g->ids.n && w->n > 0)
            g->n_wrong++;
        else
            id_list_free(w);
    }
    return 0;
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

/* spec, m, prompt and chat are set. */
static int grade_open(struct grade *g, struct err *err)
{
    const struct prompt *p = g->prompt;
    enum prompt_kind kind = g->spec->kind;
    OWN(buf_free) struct buf covered = {0};
    PASS_ON(prompt_ids(g->m, g->chat, p->text.data, p->text.len, &g->ids, err));
    int64_t n = g->ids.n;
    if (kind == PROMPT_CHAIN || kind == PROMPT_TRACK)
        return 0;
    PASS_ON(answer_ids(g->m, g->chat, p->text.data, p->text.len, p->answers.items[0], &g->ids,
                       &g->answer, &g->retokenised, err));
    if (g->retokenised) {
        int64_t bos = g->m->bos >= 0;
        tokenizer_decode_bytes(g->m->tok, g->ids.v + bos, g->ids.n - bos, &covered);
        PASS_ON(buf_check(&covered, "prompt", err));
        g->overhang = p->text.len > covered.len ? p->text.len - covered.len : 0;
    }
    if (kind == PROMPT_COPY && g->answer.n > COPY_IDS)
        g->answer.n = COPY_IDS;
    if (kind == PROMPT_COPY)
        find_first(g);
    else
        return open_wrong(g, n, err);
    return 0;
}

static void grade_close(struct grade *g)
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
    OWN(free_at) double *nll = NULL;
    int rc = 0;
    PASS_ON(mem_alloc(&nll, ids->n, sizeof *nll, "likelihoods", err));
    decode_rewind(&x->d);
    rc = decode_score(&x->d, ids->v, ids->n, nll, NULL, err);
    *sum = 0;
    for (int64_t i = 0; !rc && i < ids->n; i++)
        *sum += nll[i];
    return rc;
}

/* How likely the answer is, and how much likelier than the likeliest wrong one. */
static int grade_likelihood(struct grading *x, struct err *err)
{
    const struct grade *g = x->g;
    double nll, other, margin = INFINITY;
    PASS_ON(score_ids(x, &g->answer, &nll, err));
    for (int64_t i = 0; i < g->n_wrong; i++) {
        PASS_ON(score_ids(x, g->wrong + i, &other, err));
        margin = other - nll < margin ? other - nll : margin;
    }
    PASS_ON(record_metric(x->r, "answer_nll", nll, err));
    PASS_ON(record_metric(x->r, "answer_nll_tok", nll / (double)g->answer.n, err));
    PASS_ON(record_metric(x->r, "answer_p", exp(-nll), err));
    if (g->n_wrong)
        return record_metric(x->r, "answer_margin", margin, err);
    return 0;
}

static int grade_value(struct grading *x, struct err *err)
{
    static const char *const acc[] = {"needle_acc", "multi_acc", "kv_acc"};
    const struct grade *g = x->g;
    const char *value = g->prompt->answers.items[0] + 1; /* behind its space */
    OWN(buf_free) struct buf text = {0};
    PASS_ON(generate(&x->d, g->m, g->prompt->max_new, &g->prompt->stop, x->text, err));
    strip(g, x->text, &text);
    PASS_ON(buf_check(&text, "generated text", err));
    PASS_ON(record_metric(x->r, acc[g->spec->kind], strcmp(buf_str(&text), value) == 0, err));
    if (g->spec->kind == PROMPT_NEEDLE)
        PASS_ON(record_metric(x->r, "needle_found", strstr(buf_str(x->text), value) != NULL, err));
    return grade_likelihood(x, err);
}

/* Mean nll of the passage's ids where they stand first, in the prefill. */
static int first_nll(struct grading *x, double *mean, struct err *err)
{
    const struct grade *g = x->g;
    const struct llm_config *c = &g->m->llm.c;
    OWN(free_at) float *logits = NULL, *h = NULL;
    PASS_ON(mem_alloc(&logits, c->vocab, sizeof *logits, "logits", err));
    PASS_ON(mem_alloc(&h, g->first_n * c->hidden, sizeof *h, "hidden state", err));
    PASS_ON(lockstep_hidden(x->c->l, x->d.stream, g->first_at - 1, g->first_n, h, err));
    *mean = 0;
    for (int64_t i = 0; i < g->first_n; i++) {
        PASS_ON(lockstep_logits(x->c->l, h + i * c->hidden, 1, logits, err));
        *mean += logits_nll(logits, c->vocab, g->ids.v[g->first_at + i], NULL) / (double)g->first_n;
    }
    return 0;
}

static int grade_copy(struct grading *x, struct err *err)
{
    const struct grade *g = x->g;
    int64_t n = g->answer.n, right = 0;
    OWN(free_at) double *nll = NULL;
    double sum = 0, again = 0, first;
    OWN(free_at) bool *top1 = NULL;
    PASS_ON(mem_alloc(&nll, n, sizeof *nll, "likelihoods", err));
    PASS_ON(mem_alloc(&top1, n, sizeof *top1, "likelihoods", err));
    PASS_ON(decode_score(&x->d, g->answer.v, n, nll, top1, err));
    for (int64_t i = 0; i < n; i++) {
        sum += nll[i];
        right += top1[i];
        again += i >= g->first_skip && i < g->first_skip + g->first_n ? nll[i] : 0;
    }
    PASS_ON(record_metric(x->r, "copy_nll", sum / (double)n, err));
    PASS_ON(record_metric(x->r, "copy_top1", (double)right / (double)n, err));
    if (g->first_n) {
        PASS_ON(first_nll(x, &first, err));
        return record_metric(x->r, "copy_gain", first - again / (double)g->first_n, err);
    }
    record_note(x->r, "copy_gain=ids of the passage differ where it stands first");
    return 0;
}

/* One turn of a chain: the ids up to the first that is not of digits and spaces. They are taken. */
static int chain_turn(struct grading *x, struct buf *text, struct err *err)
{
    const struct tokenizer *tok = x->g->m->tok;
    OWN(buf_free) struct buf piece = {0};
    buf_reset(text);
    for (int i = 0; i < 24; i++) {
        int32_t id = decode_likeliest(&x->d);
        buf_reset(&piece);
        tokenizer_decode_bytes(tok, &id, 1, &piece);
        PASS_ON(buf_check(&piece, "generated text", err));
        if (strspn(buf_str(&piece), "0123456789 ") < piece.len || piece.len == 0)
            break;
        buf_puts(text, buf_str(&piece));
        PASS_ON(decode_push(&x->d, &id, 1, err));
    }
    return 0;
}

static int grade_chain(struct grading *x, struct err *err)
{
    const struct prompt *p = x->g->prompt;
    OWN(buf_free) struct buf text = {0}, right = {0};
    int64_t hops = 0;
    OWN(free_at) int32_t *ids = NULL;
    int rc = 0;
    for (int64_t i = 0; i < p->answers.n; i++) {
        char link[64];
        int64_t n = 0;
        PASS_ON(chain_turn(x, &text, err));
        buf_puts(x->text, buf_str(&text));
        strip(x->g, &text, &right);
        PASS_ON(buf_check(&right, "generated text", err));
        if (strcmp(buf_str(&right), p->answers.items[i]) != 0)
            break;
        hops++;
        if (i + 1 == p->answers.n)
            break;
        snprintf(link, sizeof link, " */\n/* needle %s:", p->keys.items[i + 1]);
        buf_puts(x->text, link);
        PASS_ON(tokenizer_encode_plain(x->g->m->tok, link, strlen(link), &ids, &n, err));
        rc = decode_push(&x->d, ids, n, err);
        free(ids);
        ids = NULL;
        if (rc)
            return rc;
    }
    PASS_ON(record_metric(x->r, "chain_hops", (double)hops / (double)p->answers.n, err));
    PASS_ON(record_metric(x->r, "chain_acc", hops == p->answers.n, err));
    return rc;
}

static int grade_track(struct grading *x, struct err *err)
{
    const struct prompt *p = x->g->prompt;
    int64_t found = 0;
    PASS_ON(generate(&x->d, x->g->m, p->max_new, &p->stop, x->text, err));
    for (int64_t i = 0; i < p->answers.n; i++)
        found += strcasestr(buf_str(x->text), p->answers.items[i]) != NULL;
    return record_metric(x->r, "track_recall", (double)found / (double)p->answers.n, err);
}

/* After the prefill of g->ids: metrics, notes and the generated text of a stream. A stream whose
 * method does not apply to a decode row is out afterwards. */
static int grade_stream(const struct grade *g, struct cell_run *c, int stream, struct err *err)
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

/* ---- cells ---------------------------------------------------------------------------------- */

struct gen_state {
    struct prompt_spec spec;
    struct lines file; /* of --haystack */
    char hash[40], name[128];
    int64_t *lengths, n_lengths; /* owned */
    double *depths;              /* owned */
    int64_t n_depths, samples;
};

static const double default_depths[] = {0, 0.25, 0.5, 0.75, 1};

static int choose_lengths(struct gen_state *s, const struct eval_task *t, struct err *err)
{
    int64_t limit = t->m->llm.c.max_positions, cap = 0;
    for (int64_t i = 0; i < t->o->n_tokens; i++) {
        if (t->o->tokens[i] > limit)
            return err_set(err, ERR_USAGE,
                           "task %s: --tokens %lld is more than the model's context of %lld",
                           prompt_name(&s->spec), (long long)t->o->tokens[i], (long long)limit);
        PASS_ON(mem_grow(&s->lengths, &cap, s->n_lengths + 1, sizeof *s->lengths, "lengths", err));
        s->lengths[s->n_lengths++] = t->o->tokens[i];
    }
    for (int64_t n = 2048; !t->o->n_tokens && n <= limit; n *= 2) {
        PASS_ON(mem_grow(&s->lengths, &cap, s->n_lengths + 1, sizeof *s->lengths, "lengths", err));
        s->lengths[s->n_lengths++] = n;
    }
    if (!s->n_lengths)
        return err_set(err, ERR_USAGE,
                       "task %s: the model's context has %lld tokens: give --tokens",
                       prompt_name(&s->spec), (long long)limit);
    return 0;
}

static int choose_depths(struct gen_state *s, const struct task_opts *o, struct err *err)
{
    const double *from = o->n_depths ? o->depths : default_depths;
    s->n_depths = o->n_depths ? o->n_depths : 5;
    if (!prompt_has_depth(&s->spec))
        s->n_depths = 1;
    PASS_ON(mem_alloc(&s->depths, s->n_depths, sizeof *s->depths, "depths", err));
    memcpy(s->depths, from, (size_t)s->n_depths * sizeof *from);
    return 0;
}

/* Cells come by length, then depth, then sample. */
static void cell_of(const struct gen_state *s, int64_t i, int64_t *tokens, double *depth,
                    int64_t *sample)
{
    *sample = i % s->samples;
    *depth = s->depths[i / s->samples % s->n_depths];
    *tokens = s->lengths[i / s->samples / s->n_depths];
}

static int cell_name(const struct eval_task *t, int64_t i, struct buf *b, struct err *err)
{
    const struct gen_state *s = t->state;
    int64_t tokens, sample;
    double depth;
    cell_of(s, i, &tokens, &depth, &sample);
    prompt_spec_text(&s->spec, b);
    if (s->file.n) {
        buf_puts(b, ":haystack=");
        task_put_text(b, s->name);
        buf_printf(b, ":hash=%s", s->hash + strlen("xxh3:"));
    }
    task_chat_text(t->o, b);
    if (t->m->bos < 0)
        buf_puts(b, ":bos=no");
    buf_printf(b, ":tokens=%lld", (long long)tokens);
    if (prompt_has_depth(&s->spec))
        buf_printf(b, ":depth=%.15g", depth);
    buf_printf(b, ":sample=%lld", (long long)sample);
    return buf_check(b, "task", err);
}

/* Ids of a text as a whole prompt, with the chat text around it. */
struct count_with {
    const struct eval_model *m;
    const char *chat;
};

static int count_ids(void *ctx, const char *text, size_t len, int64_t *n, struct err *err)
{
    const struct count_with *c = ctx;
    OWN(id_list_free) struct id_list ids = {0};
    int rc = prompt_ids(c->m, c->chat, text, len, &ids, err);
    *n = ids.n;
    return rc;
}

int eval_prompt_make(const struct eval_model *m, const struct prompt_spec *spec,
                     const struct lines *file, const char *chat, int64_t tokens, double depth,
                     int64_t sample, uint64_t seed, struct prompt *out, struct err *err)
{
    struct count_with c = {m, chat};
    return prompt_make(spec, file, tokens, depth, sample, seed, count_ids, &c, out, err);
}

/* Ids that stand behind the haystack, to which the chat text in front of the prompt belongs. */
static int question_ids(const struct cell_run *c, const char *chat, const struct prompt *p,
                        int64_t all, struct err *err)
{
    static const char hole[] = "{prompt}";
    OWN(id_list_free) struct id_list front = {0};
    OWN(buf_free) struct buf text = {0};
    if (chat)
        buf_put(&text, chat, (size_t)(strstr(chat, hole) - chat) + strlen(hole));
    PASS_ON(buf_check(&text, "chat text", err));
    PASS_ON(prompt_ids(c->m, chat ? buf_str(&text) : NULL, p->text.data, p->question, &front, err));
    c->l->question = all > front.n ? all - front.n : 0;
    return 0;
}

static int run_cell(struct eval_task *t, int64_t cell, struct cell_run *c, struct err *err)
{
    const struct gen_state *s = t->state;
    OWN(prompt_free) struct prompt p = {0};
    OWN(grade_close)
    struct grade g = {.spec = &s->spec, .m = t->m, .prompt = &p, .chat = t->o->chat};
    struct stopwatch watch = {.since = clock_ns()};
    int64_t tokens, sample;
    double depth;
    cell_of(s, cell, &tokens, &depth, &sample);
    PASS_ON(eval_prompt_make(t->m, &s->spec, s->file.n ? &s->file : NULL, t->o->chat, tokens, depth,
                             sample, t->o->seed, &p, err));
    hash_text(hash_bytes(p.text.data, p.text.len), c->prompt_id);
    PASS_ON(grade_open(&g, err));
    PASS_ON(question_ids(c, t->o->chat, &p, g.ids.n, err));
    stopwatch_lap(&watch, "prompt");
    PASS_ON(lockstep_prefill(c->l, g.ids.v, g.ids.n, err));
    stopwatch_lap(&watch, "prefill");
    for (int i = 0; i < c->l->n_streams; i++) {
        c->rec[i].n_q = c->rec[i].n_k = g.ids.n;
        if (stream_runs(c->l->s + i))
            PASS_ON(grade_stream(&g, c, i, err));
    }
    stopwatch_lap(&watch, "answers");
    stopwatch_log(&watch, prompt_name(&s->spec));
    return 0;
}

static double cell_cost(const struct eval_task *t, int64_t i)
{
    int64_t tokens, sample;
    double depth;
    cell_of(t->state, i, &tokens, &depth, &sample);
    return task_cost((double)tokens);
}

static void close_task(struct eval_task *t)
{
    struct gen_state *s = t->state;
    if (s) {
        lines_free(&s->file);
        free(s->lengths);
        free(s->depths);
    }
    free(s);
}

static const struct task_kind gen_kind = {"generated prompts", cell_name, run_cell, cell_cost,
                                          close_task};

int gen_task_open(const char *text, struct eval_task *t, struct err *err)
{
    struct gen_state *s = NULL;
    t->kind = &gen_kind;
    PASS_ON(mem_zalloc(&s, 1, sizeof *s, "task", err));
    t->state = s;
    PASS_ON(prompt_spec_parse(text, t->m->domain, &s->spec, err));
    PASS_ON(choose_lengths(s, t, err));
    PASS_ON(choose_depths(s, t->o, err));
    if (t->o->haystack) {
        const char *slash = strrchr(t->o->haystack, '/');
        PASS_ON(lines_read(&s->file, t->o->haystack, s->hash, err));
        snprintf(s->name, sizeof s->name, "%.120s", slash ? slash + 1 : t->o->haystack);
    }
    s->samples = t->o->trials;
    t->cells = s->n_lengths * s->n_depths * s->samples;
    t->decodes = true;
    for (int64_t i = 0; i < s->n_lengths; i++)
        t->cap = s->lengths[i] > t->cap ? s->lengths[i] : t->cap;
    t->cap += GRADE_ROOM;
    return 0;
}
