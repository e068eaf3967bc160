/*
 * prompt.c - see prompt.h. A prompt with L haystack lines is laid out from scratch for every L that
 * the search for the length tries; items are drawn before, so that they do not depend on it.
 */
#include "eval/prompt.h"

#include "core/mem.h"
#include "core/opt.h"
#include "core/sort.h"
#include "core/strmap.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"needle", "multi", "kv", "chain", "copy", "track", NULL};
static const char *const domains[] = {"c", "en", "source", NULL};

/* ---- what is asked -------------------------------------------------------------------------- */

struct prompt_params {
    int64_t n, h, lines, cue;
    int domain; /* -1: the model's */
};

static const struct opt params[] = {
    OPT_ENUM(struct prompt_params, domain, NULL, domains,
             "Kind of text: C functions of made-up words, English, files of C source."),
    OPT_INT(struct prompt_params, n, "8", 1, 100000, "", "multi: needles."),
    OPT_INT(struct prompt_params, h, "4", 1, 100, "", "chain, track: hops."),
    OPT_INT(struct prompt_params, lines, "12", 2, 1000, "", "copy: lines of the repeated passage."),
    OPT_INT(struct prompt_params, cue, "3", 1, 999, "",
            "copy: lines of it that the prompt ends with."),
    {0},
};

static int find_kind(const char *text, size_t len)
{
    for (int k = 0; names[k]; k++)
        if (strlen(names[k]) == len && strncmp(names[k], text, len) == 0)
            return k;
    return -1;
}

bool prompt_is_task(const char *text)
{
    return find_kind(text, strcspn(text, ":")) >= 0;
}

/* The keys that a task reads. */
static bool kind_has(enum prompt_kind k, const char *key)
{
    switch (k) {
    case PROMPT_MULTI:
        return strcmp(key, "n") == 0;
    case PROMPT_CHAIN:
    case PROMPT_TRACK:
        return strcmp(key, "h") == 0;
    case PROMPT_COPY:
        return strcmp(key, "lines") == 0 || strcmp(key, "cue") == 0;
    default:
        return false;
    }
}

static int parse_pairs(const char *text, enum prompt_kind kind, struct prompt_params *p,
                       struct err *err)
{
    enum { KEYS = sizeof params / sizeof *params };
    bool given[KEYS] = {false};
    char pair[128], who[64];
    snprintf(who, sizeof who, "task %s", names[kind]);
    for (const char *at = strchr(text, ':'); at; at = strchr(at + 1, ':')) {
        size_t len = strcspn(at + 1, ":");
        snprintf(pair, sizeof pair, "%.*s", (int)(len < 127 ? len : 127), at + 1);
        char *eq = strchr(pair, '=');
        if (!eq)
            return err_set(err, ERR_USAGE, "%s: key=value was expected, found '%s'", who, pair);
        *eq = '\0';
        PASS_ON(opt_set(params, p, who, pair, eq + 1, err));
        if (strcmp(pair, "domain") != 0 && !kind_has(kind, pair))
            return err_set(err, ERR_USAGE, "%s has no parameter '%s'", who, pair);
        bool *again = &given[opt_find(params, pair) - params];
        if (*again)
            return err_set(err, ERR_USAGE, "%s: %s is given twice", who, pair);
        *again = true;
    }
    return 0;
}

int prompt_spec_parse(const char *text, const char *domain, struct prompt_spec *out,
                      struct err *err)
{
    struct names all = {0};
    struct prompt_params p = {0};
    size_t len = strcspn(text, ":");
    int kind = find_kind(text, len);
    char word[64];
    if (kind < 0) {
        snprintf(word, sizeof word, "%.*s", (int)(len < 63 ? len : 63), text);
        for (int i = 0; names[i]; i++)
            names_add(&all, names[i]);
        return names_unknown(&all, "task", word, err);
    }
    PASS_ON(opt_defaults(params, &p, err));
    PASS_ON(parse_pairs(text, (enum prompt_kind)kind, &p, err));
    *out = (struct prompt_spec){.kind = (enum prompt_kind)kind, .lines = p.lines, .cue = p.cue};
    out->domain = p.domain >= 0                   ? (enum domain)p.domain
                  : strcmp(domain, "c") == 0      ? DOMAIN_C
                  : strcmp(domain, "source") == 0 ? DOMAIN_SOURCE
                                                  : DOMAIN_EN;
    out->items = kind == PROMPT_MULTI ? p.n : kind == PROMPT_NEEDLE ? 1 : p.h;
    if (kind == PROMPT_CHAIN && !domain_is_c(out->domain))
        return err_set(err, ERR_USAGE, "task chain has the domains c and source only, found en");
    if (kind == PROMPT_TRACK && out->domain != DOMAIN_EN)
        return err_set(err, ERR_USAGE, "task track has the domain en only, found %s",
                       domains[out->domain]);
    if (kind == PROMPT_COPY && p.cue >= p.lines)
        return err_set(err, ERR_USAGE, "task copy: cue %lld leaves nothing of %lld lines to answer",
                       (long long)p.cue, (long long)p.lines);
    return 0;
}

const char *prompt_name(const struct prompt_spec *s)
{
    return names[s->kind];
}

void prompt_spec_text(const struct prompt_spec *s, struct buf *b)
{
    buf_printf(b, "%s:domain=%s", names[s->kind], domains[s->domain]);
    if (s->kind == PROMPT_MULTI)
        buf_printf(b, ":n=%lld", (long long)s->items);
    if (s->kind == PROMPT_CHAIN || s->kind == PROMPT_TRACK)
        buf_printf(b, ":h=%lld", (long long)s->items);
    if (s->kind == PROMPT_COPY)
        buf_printf(b, ":lines=%lld:cue=%lld", (long long)s->lines, (long long)s->cue);
}

bool prompt_has_depth(const struct prompt_spec *s)
{
    return s->kind != PROMPT_CHAIN && s->kind != PROMPT_TRACK;
}

/* Room for the answer, in tokens. */
static int64_t prompt_max_new(const struct prompt_spec *s)
{
    switch (s->kind) {
    case PROMPT_CHAIN:
        return 24 * s->items;
    case PROMPT_COPY:
        return 256;
    case PROMPT_TRACK:
        return 64;
    default:
        return 16;
    }
}

void prompt_free(struct prompt *p)
{
    buf_free(&p->text);
    str_list_free(&p->answers);
    str_list_free(&p->keys);
    str_list_free(&p->wrong);
    str_list_free(&p->stop);
    memset(p, 0, sizeof *p);
}

/* ---- items ---------------------------------------------------------------------------------- */

/* What is hidden: item i is a line, at the place[i]-th part of the haystack. */
struct item {
    char key[40], value[40];
    double place;
};

struct maker {
    const struct prompt_spec *s;
    struct haystack h;
    struct draws keys, places;
    struct item *items; /* owned */
    int64_t n_items, cap_items;
    struct strmap seen; /* keys so far */
    double depth;
    int64_t number; /* track: the value that is asked for */
};

static const enum draw_task draw_tasks[] = {DRAW_NEEDLE, DRAW_MULTI, DRAW_KV,
                                            DRAW_CHAIN,  DRAW_COPY,  DRAW_TRACK};

static void draw_key(struct maker *m, char key[40])
{
    char a[16], b[16];
    if (domain_is_c(m->s->domain)) {
        snprintf(key, 40, "%lld", (long long)draw_number(&m->keys, 5));
        return;
    }
    draw_word(&m->keys, 2, a);
    draw_word(&m->keys, 2, b);
    snprintf(key, 40, "%s-%s", a, b);
}

static void draw_value(const struct maker *m, struct draws *d, char value[40])
{
    snprintf(value, 40, "%lld", (long long)draw_number(d, domain_is_c(m->s->domain) ? 8 : 7));
}

/* One more item with a key of its own; key before value. */
static int add_item(struct maker *m, struct err *err)
{
    PASS_ON(mem_grow(&m->items, &m->cap_items, m->n_items + 1, sizeof *m->items, "items", err));
    struct item *it = m->items + m->n_items;
    memset(it, 0, sizeof *it);
    do
        draw_key(m, it->key);
    while (strmap_get(&m->seen, it->key) >= 0);
    PASS_ON(strmap_put(&m->seen, it->key, m->n_items, err));
    draw_value(m, &m->keys, it->value);
    m->n_items++;
    return 0;
}

/* The first key, then values whose first digits are the next key. */
static int draw_chain(struct maker *m, struct err *err)
{
    char next[40];
    PASS_ON(mem_grow(&m->items, &m->cap_items, m->s->items, sizeof *m->items, "items", err));
    memset(m->items, 0, (size_t)m->s->items * sizeof *m->items);
    draw_key(m, m->items[0].key);
    PASS_ON(strmap_put(&m->seen, m->items[0].key, 0, err));
    for (int64_t i = 0; i < m->s->items; i++) {
        do {
            draw_value(m, &m->keys, m->items[i].value);
            snprintf(next, sizeof next, "%.5s", m->items[i].value);
        } while (strmap_get(&m->seen, next) >= 0);
        PASS_ON(strmap_put(&m->seen, next, i + 1, err));
        if (i + 1 < m->s->items)
            snprintf(m->items[i + 1].key, 40, "%s", next);
        m->items[i].place = draw_place(&m->places);
    }
    m->n_items = m->s->items;
    return 0;
}

/* A number, then names; item i sets name i, in the order of the text. */
static int draw_track(struct maker *m, struct err *err)
{
    int64_t n = m->s->items + 1;
    OWN(free_at) double *places = NULL;
    char word[16];
    PASS_ON(mem_alloc(&places, n, sizeof *places, "places", err));
    PASS_ON(mem_grow(&m->items, &m->cap_items, n, sizeof *m->items, "items", err));
    memset(m->items, 0, (size_t)n * sizeof *m->items);
    m->number = draw_number(&m->keys, 5);
    for (int64_t i = 0; i < n; i++) {
        do
            draw_word(&m->keys, 2, word);
        while (strmap_get(&m->seen, word) >= 0);
        PASS_ON(strmap_put(&m->seen, word, i, err));
        snprintf(m->items[i].key, 40, "%s", word);
        places[i] = draw_place(&m->places);
    }
    sort_f64(places, n);
    for (int64_t i = 0; i < n; i++)
        m->items[i].place = places[i];
    m->n_items = n;
    return 0;
}

static int draw_items(struct maker *m, struct err *err)
{
    switch (m->s->kind) {
    case PROMPT_NEEDLE:
    case PROMPT_MULTI:
        for (int64_t i = 0; i < m->s->items; i++) {
            PASS_ON(add_item(m, err));
            m->items[i].place = i ? draw_place(&m->places) : m->depth;
        }
        break;
    case PROMPT_CHAIN:
        PASS_ON(draw_chain(m, err));
        break;
    case PROMPT_TRACK:
        PASS_ON(draw_track(m, err));
        break;
    default: /* kv draws a line when it is needed; copy hides nothing */
        break;
    }
    return 0;
}

/* ---- layout --------------------------------------------------------------------------------- */

static const char first_line[] = "Below is a long text. It mentions access codes; remember "
                                 "them.\n";

static void put_item(const struct maker *m, int64_t i, struct buf *b)
{
    const struct item *it = m->items + i;
    if (m->s->kind == PROMPT_TRACK && i == 0)
        buf_printf(b, "Set %s to %lld.\n", it->key, (long long)m->number);
    else if (m->s->kind == PROMPT_TRACK)
        buf_printf(b, "Set %s to the value of %s.\n", it->key, m->items[i - 1].key);
    else if (domain_is_c(m->s->domain))
        buf_printf(b, "/* needle %s: %s */\n", it->key, it->value);
    else
        buf_printf(b, "The access code for %s is %s.\n", it->key, it->value);
}

static int64_t gap_of(double place, int64_t lines)
{
    return (int64_t)floor(place * (double)lines + 0.5);
}

/* The question about item i. */
static void put_question(const struct maker *m, int64_t i, struct buf *b)
{
    if (m->s->kind == PROMPT_TRACK)
        buf_printf(b, "Question: Which names have the value %lld?\nAnswer:", (long long)m->number);
    else if (domain_is_c(m->s->domain))
        buf_printf(b, "/* needle %s:", m->items[i].key);
    else
        buf_printf(b,
                   "Question: What is the access code for %s?\nAnswer: The access code for %s is",
                   m->items[i].key, m->items[i].key);
}

/* Which line of a kv prompt is asked for. */
static int64_t asked_line(const struct maker *m, int64_t lines)
{
    return gap_of(m->depth, lines - 1);
}

static int lay_kv(struct maker *m, int64_t lines, struct buf *b, size_t *question, struct err *err)
{
    while (m->n_items < lines)
        PASS_ON(add_item(m, err));
    for (int64_t i = 0; i < lines; i++)
        put_item(m, i, b);
    *question = b->len;
    put_question(m, asked_line(m, lines), b);
    return 0;
}

static int64_t copy_begin(const struct maker *m, int64_t lines)
{
    return gap_of(m->depth, lines - m->s->lines);
}

static void put_lines(const struct maker *m, int64_t a, int64_t b, struct buf *to)
{
    const struct lines *l = &m->h.lines;
    buf_put(to, l->text.data + l->start[a], (size_t)(l->start[b] - l->start[a]));
}

/* The prompt with so many haystack lines. */
static int lay_out(struct maker *m, int64_t lines, struct buf *b, size_t *question, struct err *err)
{
    int64_t at = 0;
    buf_reset(b);
    if (m->s->domain == DOMAIN_EN && m->s->kind != PROMPT_COPY && m->s->kind != PROMPT_TRACK)
        buf_puts(b, first_line);
    if (m->s->kind == PROMPT_KV) {
        PASS_ON(lay_kv(m, lines, b, question, err));
        return buf_check(b, "prompt", err);
    }
    PASS_ON(haystack_need(&m->h, lines, err));
    for (int64_t g = 0; g <= lines; g++)
        for (int64_t i = 0; i < m->n_items; i++)
            if (gap_of(m->items[i].place, lines) == g) {
                put_lines(m, at, g, b);
                at = g;
                put_item(m, i, b);
            }
    put_lines(m, at, lines, b);
    *question = b->len;
    if (m->s->kind == PROMPT_COPY && lines >= m->s->lines) {
        at = copy_begin(m, lines);
        put_lines(m, at, at + m->s->cue, b);
    } else if (m->s->kind != PROMPT_COPY) {
        put_question(m, 0, b);
    }
    return buf_check(b, "prompt", err);
}

/* ---- the answer ----------------------------------------------------------------------------- */

static void add_value(struct str_list *l, const char *value)
{
    char text[48];
    snprintf(text, sizeof text, " %s", value);
    str_list_add(l, text);
}

static int put_answers(struct maker *m, struct prompt *p, uint64_t seed, int64_t sample,
                       struct err *err)
{
    struct draws d = draws_of(seed, DRAW_NEEDLE, DRAW_DISTRACTORS, sample);
    int64_t asked = m->s->kind == PROMPT_KV ? asked_line(m, p->lines) : 0;
    OWN(buf_free) struct buf b = {0};
    char value[40];
    str_list_add(&p->stop, domain_is_c(m->s->domain) ? "*/" : "\n");
    if (m->s->domain == DOMAIN_EN)
        str_list_add(&p->stop, ".");
    if (m->s->kind == PROMPT_COPY) {
        int64_t at = copy_begin(m, p->lines);
        put_lines(m, at + m->s->cue, at + m->s->lines, &b);
        str_list_add(&p->answers, buf_str(&b));
        str_list_free(&p->stop);
    } else if (m->s->kind == PROMPT_TRACK || m->s->kind == PROMPT_CHAIN) {
        for (int64_t i = 0; i < m->n_items; i++) {
            str_list_add(&p->answers,
                         m->s->kind == PROMPT_TRACK ? m->items[i].key : m->items[i].value);
            str_list_add(&p->keys, m->items[i].key);
        }
    } else {
        add_value(&p->answers, m->items[asked].value);
        for (int64_t i = 0; i < m->n_items && i < (asked < 8 ? 9 : 8); i++)
            if (i != asked)
                add_value(&p->wrong, m->items[i].value);
        for (int i = 0; m->s->kind == PROMPT_NEEDLE && i < 4; i++) {
            draw_value(m, &d, value);
            add_value(&p->wrong, value);
        }
    }
    bool failed =
        b.failed || p->answers.failed || p->keys.failed || p->wrong.failed || p->stop.failed;
    return failed ? err_set(err, ERR_NOMEM, "prompt: out of memory") : 0;
}

/* As many haystack lines as leave the prompt and its answer N tokens. */
static int fit_lines(struct maker *m, int64_t room, prompt_count_fn *count, void *ctx,
                     struct buf *b, int64_t *lines, struct err *err)
{
    int64_t lo = 0, hi = 1, ids = 0;
    size_t question;
    for (;; hi *= 2) {
        PASS_ON(lay_out(m, hi, b, &question, err));
        PASS_ON(count(ctx, b->data, b->len, &ids, err));
        if (ids > room)
            break;
    }
    while (hi - lo > 1) {
        int64_t mid = (lo + hi) / 2;
        PASS_ON(lay_out(m, mid, b, &question, err));
        PASS_ON(count(ctx, b->data, b->len, &ids, err));
        *(ids <= room ? &lo : &hi) = mid;
    }
    *lines = lo;
    return 0;
}

int prompt_make(const struct prompt_spec *s, const struct lines *file, int64_t tokens, double depth,
                int64_t sample, uint64_t seed, prompt_count_fn *count, void *ctx,
                struct prompt *out, struct err *err)
{
    struct maker m = {.s = s, .depth = depth};
    int64_t least = s->kind == PROMPT_COPY ? s->lines : 1;
    int rc = 0;
    memset(out, 0, sizeof *out);
    haystack_init(&m.h, s->domain, file, seed, sample);
    m.keys = draws_of(seed, draw_tasks[s->kind], DRAW_KEYS, sample);
    m.places = draws_of(seed, draw_tasks[s->kind], DRAW_PLACES, sample);
    out->max_new = prompt_max_new(s);
    TRY(draw_items(&m, err));
    TRY(fit_lines(&m, tokens - out->max_new, count, ctx, &out->text, &out->lines, err));
    if (out->lines < least)
        FAIL(err, ERR_USAGE,
             "task %s: %lld tokens, %lld of them for the answer, have room for %lld lines of text; "
             "it needs %lld: use more --tokens",
             names[s->kind], (long long)tokens, (long long)out->max_new, (long long)out->lines,
             (long long)least);
    TRY(lay_out(&m, out->lines, &out->text, &out->question, err));
    if (s->kind == PROMPT_KV) /* what longer trials drew belongs to no line */
        m.n_items = out->lines;
    TRY(put_answers(&m, out, seed, sample, err));
out:
    haystack_free(&m.h);
    strmap_free(&m.seen);
    free(m.items);
    if (rc)
        prompt_free(out);
    return rc;
}
