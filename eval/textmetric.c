/*
 * textmetric.c - grades of generated texts (taskfile.h).
 */
#include "eval/taskfile.h"

#include "core/buf.h"
#include "core/mem.h"
#include "core/strmap.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

const char *const text_metric_names[] = {
    "exact",    "contains", "contains_all", "f1",   "rouge_l", "edit_sim", "code_sim",
    "classify", "number",   "first_int",    "word", "letter",  "choice",   NULL};

/* ---- characters ----------------------------------------------------------------------------- */

/* Next character of UTF-8 text, a byte alone where it is none; *at moves behind it. */
static int32_t next_char(const char *s, size_t len, size_t *at)
{
    utf8proc_int32_t c;
    utf8proc_ssize_t n =
        utf8proc_iterate((const utf8proc_uint8_t *)s + *at, (utf8proc_ssize_t)(len - *at), &c);
    if (n <= 0)
        return (unsigned char)s[(*at)++];
    *at += (size_t)n;
    return c;
}

static void put_char(struct buf *b, int32_t c)
{
    utf8proc_uint8_t bytes[4];
    utf8proc_ssize_t n = utf8proc_encode_char(c, bytes);
    buf_put(b, bytes, n > 0 ? (size_t)n : 0);
}

static bool is_space(int32_t c)
{
    return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x1f) || c == 0x85 ||
           utf8proc_category(c) == UTF8PROC_CATEGORY_ZS ||
           utf8proc_category(c) == UTF8PROC_CATEGORY_ZL ||
           utf8proc_category(c) == UTF8PROC_CATEGORY_ZP;
}

/* A character of a word: a letter, a number or '_'. */
static bool is_word(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return c == '_' || (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) ||
           (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO);
}

static void lower(const char *s, struct buf *out)
{
    size_t len = strlen(s);
    for (size_t at = 0; at < len;)
        put_char(out, utf8proc_tolower(next_char(s, len, &at)));
}

/* Words of a text, split at white space. */
static void split_words(const char *s, struct str_list *out)
{
    size_t len = strlen(s);
    OWN(buf_free) struct buf word = {0};
    for (size_t at = 0; at < len;) {
        int32_t c = next_char(s, len, &at);
        if (!is_space(c))
            put_char(&word, c);
        if (word.len && (is_space(c) || at == len)) {
            str_list_add(out, buf_str(&word));
            buf_reset(&word);
        }
    }
    out->failed |= word.failed;
}

static bool is_article(const char *w, size_t n)
{
    return (n == 1 && w[0] == 'a') || (n == 2 && strncmp(w, "an", 2) == 0) ||
           (n == 3 && strncmp(w, "the", 3) == 0);
}

/* Lower case, no ASCII punctuation, no articles: as words. */
static void normal_words(const char *s, struct str_list *out)
{
    struct buf low = {0}, plain = {0}, rest = {0};
    lower(s, &low);
    for (size_t i = 0; i < low.len; i++)
        if (!ispunct((unsigned char)low.data[i]) || (unsigned char)low.data[i] >= 128)
            buf_put(&plain, low.data + i, 1);
    for (size_t at = 0, word = 0; at < plain.len;) {
        size_t from = at;
        int32_t c = next_char(plain.data, plain.len, &at);
        if (is_word(c)) {
            word = from;
            while (at < plain.len) {
                from = at;
                if (!is_word(next_char(plain.data, plain.len, &at))) {
                    at = from;
                    break;
                }
            }
            if (is_article(plain.data + word, at - word))
                buf_puts(&rest, " ");
            else
                buf_put(&rest, plain.data + word, at - word);
        } else {
            buf_put(&rest, plain.data + from, at - from);
        }
    }
    split_words(buf_str(&rest), out);
    out->failed |= low.failed | plain.failed | rest.failed;
    buf_free(&low);
    buf_free(&plain);
    buf_free(&rest);
}

/* ---- scores of one answer ------------------------------------------------------------------- */

/* Returns a score; *failed is set without memory. */
typedef double score_fn(const char *prediction, const char *answer, bool *failed);

static bool same_words(const struct str_list *a, const struct str_list *b)
{
    bool same = a->n == b->n;
    for (int64_t i = 0; same && i < a->n; i++)
        same = strcmp(a->items[i], b->items[i]) == 0;
    return same;
}

static double score_exact(const char *prediction, const char *answer, bool *failed)
{
    OWN(str_list_free) struct str_list a = {0}, b = {0};
    normal_words(prediction, &a);
    normal_words(answer, &b);
    double score = same_words(&a, &b);
    *failed |= a.failed || b.failed;
    return score;
}

/* Size of the intersection of two multisets; items of b that are found are taken out. */
static int64_t common_words(const struct str_list *a, struct str_list *b)
{
    int64_t n = 0;
    for (int64_t i = 0; i < a->n; i++)
        for (int64_t k = 0; k < b->n; k++)
            if (b->items[k] && strcmp(a->items[i], b->items[k]) == 0) {
                free(b->items[k]);
                b->items[k] = NULL;
                n++;
                break;
            }
    return n;
}

static double score_f1(const char *prediction, const char *answer, bool *failed)
{
    OWN(str_list_free) struct str_list a = {0}, b = {0};
    normal_words(prediction, &a);
    normal_words(answer, &b);
    double n = (double)common_words(&a, &b);
    double p = a.n ? n / (double)a.n : 0, r = b.n ? n / (double)b.n : 0;
    *failed |= a.failed || b.failed;
    return n > 0 ? 2 * p * r / (p + r) : 0;
}

/* ---- Rouge-L -------------------------------------------------------------------------------- */

/* Sentences between full stops; each the numbers of its words. */
struct sentence {
    int64_t *w, n, cap;
};
struct sentences {
    struct sentence *s;
    int64_t n, cap;
};

static void sentences_free(struct sentences *x)
{
    for (int64_t i = 0; i < x->n; i++)
        free(x->s[i].w);
    free(x->s);
}

static int64_t word_number(struct strmap *words, const char *w, bool *failed)
{
    int64_t n = strmap_get(words, w);
    if (n < 0 && strmap_put(words, w, n = words->n, NULL))
        *failed = true;
    return n;
}

/* A piece that is not empty but only white space is the word "". */
static void add_sentence(struct sentences *x, const char *text, size_t len, struct strmap *words,
                         bool *failed)
{
    OWN(buf_free) struct buf piece = {0};
    OWN(str_list_free) struct str_list list = {0};
    struct err none = {0};
    if (len == 0)
        return;
    buf_put(&piece, text, len);
    split_words(buf_str(&piece), &list);
    if (list.n == 0)
        str_list_add(&list, "");
    if (mem_grow(&x->s, &x->cap, x->n + 1, sizeof *x->s, "sentences", &none) == 0) {
        struct sentence *s = x->s + x->n++;
        memset(s, 0, sizeof *s);
        if (mem_grow(&s->w, &s->cap, list.n, sizeof *s->w, "words", &none) == 0)
            for (int64_t i = 0; i < list.n; i++)
                s->w[s->n++] = word_number(words, list.items[i], failed);
    }
    *failed |= none.code || piece.failed || list.failed;
}

static void split_sentences(const char *s, struct sentences *x, struct strmap *words, bool *failed)
{
    for (size_t len; *s; s += len + (s[len] == '.')) {
        len = strcspn(s, ".");
        add_sentence(x, s, len, words, failed);
    }
}

/* Mark the words of a longest common subsequence of a (reference) and b. */
static void mark_lcs(const struct sentence *a, const struct sentence *b, bool *in, bool *failed)
{
    int64_t cols = b->n + 1, *t = NULL;
    struct err none = {0};
    if (mem_zalloc(&t, (a->n + 1) * cols, sizeof *t, "common words", &none)) {
        *failed = true;
        return;
    }
    for (int64_t i = 1; i <= a->n; i++)
        for (int64_t j = 1; j <= b->n; j++) {
            int64_t up = t[(i - 1) * cols + j], left = t[i * cols + j - 1];
            t[i * cols + j] = a->w[i - 1] == b->w[j - 1] ? t[(i - 1) * cols + j - 1] + 1
                              : up > left                ? up
                                                         : left;
        }
    for (int64_t i = a->n, j = b->n; i > 0 && j > 0;) {
        if (a->w[i - 1] == b->w[j - 1]) {
            in[a->w[i - 1]] = true;
            i--;
            j--;
        } else if (t[(i - 1) * cols + j] > t[i * cols + j - 1]) {
            i--;
        } else {
            j--;
        }
    }
    free(t);
}

static int64_t distinct(const struct sentences *x, bool *seen, int64_t words)
{
    int64_t n = 0;
    memset(seen, 0, (size_t)words * sizeof *seen);
    for (int64_t i = 0; i < x->n; i++)
        for (int64_t k = 0; k < x->s[i].n; k++)
            if (!seen[x->s[i].w[k]]) {
                seen[x->s[i].w[k]] = true;
                n++;
            }
    return n;
}

static double score_rouge_l(const char *prediction, const char *answer, bool *failed)
{
    struct sentences p = {0}, r = {0};
    struct strmap words = {0};
    bool *in = NULL;
    double score = 0;
    int64_t common = 0;
    split_sentences(prediction, &p, &words, failed);
    split_sentences(answer, &r, &words, failed);
    if (*failed || !p.n || !r.n || mem_zalloc(&in, words.n, sizeof *in, "words", NULL))
        goto out;
    for (int64_t i = 0; i < r.n; i++)
        for (int64_t k = 0; k < p.n; k++)
            mark_lcs(r.s + i, p.s + k, in, failed);
    for (int64_t i = 0; i < words.n; i++)
        common += in[i];
    double recall = (double)common / (double)distinct(&r, in, words.n);
    double precision = (double)common / (double)distinct(&p, in, words.n);
    score = 2 * precision * recall / (precision + recall + 1e-8);
out:
    sentences_free(&p);
    sentences_free(&r);
    strmap_free(&words);
    free(in);
    return score;
}

/* ---- edits ---------------------------------------------------------------------------------- */

struct chars {
    int32_t *v;
    int64_t n;
};

static struct chars to_chars(const char *s, size_t len, bool *failed)
{
    struct chars c = {0};
    if (mem_alloc(&c.v, (int64_t)len + 1, sizeof *c.v, "characters", NULL)) {
        *failed = true;
        return c;
    }
    for (size_t at = 0; at < len;)
        c.v[c.n++] = next_char(s, len, &at);
    return c;
}

/* Smallest number of edits; substitutions count `swap`: 1 Levenshtein, 2 insertions and deletions
 * alone. */
static int64_t edits(const struct chars *a, const struct chars *b, int64_t swap, bool *failed)
{
    int64_t *row = NULL, last = 0;
    if (mem_alloc(&row, b->n + 1, sizeof *row, "edit distance", NULL)) {
        *failed = true;
        return 0;
    }
    for (int64_t j = 0; j <= b->n; j++)
        row[j] = j;
    for (int64_t i = 1; i <= a->n; i++) {
        int64_t diagonal = row[0];
        row[0] = i;
        for (int64_t j = 1; j <= b->n; j++) {
            int64_t up = row[j], best = diagonal + (a->v[i - 1] == b->v[j - 1] ? 0 : swap);
            best = up + 1 < best ? up + 1 : best;
            row[j] = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            diagonal = up;
        }
    }
    last = row[b->n];
    free(row);
    return last;
}

static double score_edit_sim(const char *prediction, const char *answer, bool *failed)
{
    struct chars a = to_chars(prediction, strlen(prediction), failed);
    struct chars b = to_chars(answer, strlen(answer), failed);
    int64_t most = a.n > b.n ? a.n : b.n;
    double score = *failed ? 0 : !most ? 1 : 1 - (double)edits(&a, &b, 1, failed) / (double)most;
    free(a.v);
    free(b.v);
    return score;
}

/* The first line of code, behind leading newlines: one without a comment or a fence. */
static const char *code_line(const char *s, size_t *len)
{
    s += strspn(s, "\n");
    for (;; s += *len + 1) {
        *len = strcspn(s, "\n");
        bool comment = memchr(s, '`', *len) || memchr(s, '#', *len) || memmem(s, *len, "//", 2);
        if (!comment)
            return s;
        if (!s[*len]) {
            *len = 0;
            return s;
        }
    }
}

static double score_code_sim(const char *prediction, const char *answer, bool *failed)
{
    size_t len;
    const char *line = code_line(prediction, &len);
    struct chars a = to_chars(line, len, failed), b = to_chars(answer, strlen(answer), failed);
    double score = 0, all = (double)(a.n + b.n);
    if (!*failed && all == 0)
        score = 1;
    else if (!*failed && a.n && b.n) /* all - edits = twice the longest common subsequence */
        score = rint(100 * (all - (double)edits(&a, &b, 2, failed)) / all) / 100;
    free(a.v);
    free(b.v);
    return score;
}

/* ---- numbers, words, letters ---------------------------------------------------------------- */

/* Next run of digits from *s on, NULL at the end; of decimals with the digits behind its point. */
static const char *next_number(const char **s, bool decimal, size_t *len)
{
    static const char digits[] = "0123456789";
    const char *at = *s + strcspn(*s, digits);
    *len = strspn(at, digits);
    size_t behind = decimal && at[*len] == '.' ? strspn(at + *len + 1, digits) : 0;
    *len += behind ? 1 + behind : 0;
    *s = at + *len;
    return *len ? at : NULL;
}

/* An answer with a point, such as 3.5, is compared with numbers that may have one. */
static bool is_decimal(const char *answer)
{
    size_t len;
    const char *at = next_number(&answer, true, &len);
    return at && memchr(at, '.', len);
}

/* Length without the zeros that end a fraction: 3.50 is 3.5, and 2.0 is 2. */
static size_t value_length(const char *at, size_t len)
{
    if (!memchr(at, '.', len))
        return len;
    while (at[len - 1] == '0')
        len--;
    return len - (at[len - 1] == '.');
}

static bool same_number(const char *a, size_t na, const char *b, size_t nb)
{
    na = value_length(a, na);
    nb = value_length(b, nb);
    return na == nb && strncmp(a, b, na) == 0;
}

/* Share of the prediction's numbers that are the answer's first one. */
static double score_number(const char *prediction, const char *answer, bool *failed)
{
    size_t want_len, len;
    bool decimal = is_decimal(answer);
    const char *want = next_number(&answer, decimal, &want_len), *at;
    double n = 0, right = 0;
    while (want && (at = next_number(&prediction, decimal, &len)) != NULL) {
        n++;
        right += same_number(at, len, want, want_len);
    }
    return n > 0 ? right / n : 0;
}

static double score_first_int(const char *prediction, const char *answer, bool *failed)
{
    size_t len;
    const char *at = next_number(&prediction, is_decimal(answer), &len);
    return at && same_number(at, len, answer, strlen(answer));
}

static double has_word(const char *prediction, const char *answer)
{
    static const char ends[] = "\n:\"'.,?!{} \t\r\v\f";
    size_t want = strlen(answer);
    for (const char *s = prediction; *s;) {
        s += strspn(s, ends);
        size_t len = strcspn(s, ends);
        if (len && len == want && strncmp(s, answer, len) == 0)
            return 1;
        s += len;
    }
    return 0;
}

static double score_word(const char *prediction, const char *answer, bool *failed)
{
    return has_word(prediction, answer);
}

static double score_word_any_case(const char *prediction, const char *answer, bool *failed)
{
    OWN(buf_free) struct buf p = {0}, a = {0};
    lower(prediction, &p);
    lower(answer, &a);
    double score = has_word(buf_str(&p), buf_str(&a));
    *failed |= p.failed || a.failed;
    return score;
}

/* The letter A to D that a text chooses, 0 = none. */
static char chosen_letter(const char *s)
{
    static const char *const leads[] = {"answer is:", "answer:", "answer is", "option is"};
    s += strspn(s, " \t\r\n\v\f");
    if (*s >= 'A' && *s <= 'D')
        return *s;
    for (size_t i = 0; i < sizeof leads / sizeof *leads; i++) {
        const char *at = strstr(s, leads[i]);
        if (!at)
            continue;
        at += strlen(leads[i]);
        at += strspn(at, " \t\r\n\v\f");
        return *at >= 'A' && *at <= 'D' ? *at : 0;
    }
    for (size_t len; *s; s += len) {
        s += strspn(s, " \t\r\n\v\f");
        len = strcspn(s, " \t\r\n\v\f");
        if (len == 1 && *s >= 'A' && *s <= 'D')
            return *s;
    }
    return 0;
}

static double score_letter(const char *prediction, const char *answer, bool *failed)
{
    return answer[0] && !answer[1] && chosen_letter(prediction) == answer[0];
}

/* ASCII control characters are newlines here, and those at the ends are gone. */
static double score_contains(const char *prediction, const char *answer, bool *failed)
{
    OWN(buf_free) struct buf p = {0}, a = {0}, clean = {0};
    for (const char *s = prediction; *s; s++)
        buf_put(&clean, (unsigned char)*s < 0x20 ? "\n" : s, 1);
    lower(buf_str(&clean), &p);
    lower(answer, &a);
    double score = strstr(buf_str(&p), buf_str(&a)) != NULL;
    *failed |= p.failed || a.failed || clean.failed;
    return score;
}

/* ---- the score ------------------------------------------------------------------------------ */

/* One of the classes that the prediction names is right; names inside the right one's do not count
 * as named. */
static double score_classify(const struct text_case *c, const char *prediction)
{
    const char *answer = c->answers->n ? c->answers->items[0] : "";
    int64_t named = 0;
    bool right = false;
    for (int64_t i = 0; i < c->choices->n; i++) {
        const char *name = c->choices->items[i];
        bool same = strcmp(name, answer) == 0;
        if (!strstr(prediction, name) || (!same && strstr(answer, name)))
            continue;
        named++;
        right = right || same;
    }
    return right ? 1 / (double)named : 0;
}

static score_fn *const scores[TEXT_METRICS] = {
    [TEXT_EXACT] = score_exact,           [TEXT_CONTAINS] = score_contains,
    [TEXT_CONTAINS_ALL] = score_contains, [TEXT_F1] = score_f1,
    [TEXT_ROUGE_L] = score_rouge_l,       [TEXT_EDIT_SIM] = score_edit_sim,
    [TEXT_CODE_SIM] = score_code_sim,     [TEXT_NUMBER] = score_number,
    [TEXT_FIRST_INT] = score_first_int,   [TEXT_WORD] = score_word,
    [TEXT_LETTER] = score_letter,
};

int text_score(const struct text_case *c, const char *prediction, double *score, struct err *err)
{
    score_fn *fn =
        c->metric == TEXT_WORD && c->ignore_case ? score_word_any_case : scores[c->metric];
    struct buf text = {0};
    double best = 0, sum = 0;
    bool failed = false;
    if (c->first_line) {
        prediction += strspn(prediction, "\n");
        buf_put(&text, prediction, strcspn(prediction, "\n"));
        prediction = buf_str(&text);
    }
    if (c->metric == TEXT_CLASSIFY) {
        best = score_classify(c, prediction);
    } else {
        for (int64_t i = 0; i < c->answers->n; i++) {
            double x = fn(prediction, c->answers->items[i], &failed);
            best = x > best ? x : best;
            sum += x;
        }
        if (c->metric == TEXT_CONTAINS_ALL)
            best = sum / (double)c->answers->n;
    }
    failed |= text.failed;
    buf_free(&text);
    *score = best;
    return failed ? err_set(err, ERR_NOMEM, "grading a text: out of memory") : 0;
}
