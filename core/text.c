/* text.c - lists of names, nearest names, text made safe to show, and wrapping (text.h). */
#include "core/text.h"

#include "core/buf.h"
#include "core/mem.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- lists ---------------------------------------------------------------------------------- */

void str_list_add(struct str_list *l, const char *s)
{
    char *copy = strdup(s);
    if (!copy || mem_grow(&l->items, &l->cap, l->n + 1, sizeof *l->items, "list", NULL)) {
        free(copy);
        mem_note_short();
        l->failed = true;
        return;
    }
    l->items[l->n++] = copy;
}

void str_list_free(struct str_list *l)
{
    for (int64_t i = 0; i < l->n; i++)
        free(l->items[i]);
    free(l->items);
    memset(l, 0, sizeof *l);
}

bool str_list_has(const struct str_list *l, const char *s)
{
    for (int64_t i = 0; i < l->n; i++)
        if (strcmp(l->items[i], s) == 0)
            return true;
    return false;
}

void names_add(struct names *all, const char *name)
{
    if (all->n < NAMES_MAX)
        all->items[all->n++] = name;
}

void names_text(const struct names *all, struct buf *b)
{
    for (int i = 0; i < all->n; i++)
        buf_printf(b, "%s%s", i ? ", " : "", all->items[i]);
}

/* ---- nearest name --------------------------------------------------------------------------- */

/* Edit distance with transpositions of neighbours (restricted Damerau-Levenshtein). */
static int edit_distance(const char *a, const char *b)
{
    enum { MAX = 48 };
    int d[MAX + 1][MAX + 1];
    int n = (int)strlen(a), m = (int)strlen(b);
    if (n > MAX || m > MAX)
        return 2 * MAX;
    for (int i = 0; i <= n; i++)
        d[i][0] = i;
    for (int j = 0; j <= m; j++)
        d[0][j] = j;
    for (int i = 1; i <= n; i++) {
        for (int j = 1; j <= m; j++) {
            int best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (d[i - 1][j] + 1 < best)
                best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best)
                best = d[i][j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    }
    return d[n][m];
}

const char *nearest_name(const char *word, const char *const *names)
{
    const char *best = NULL;
    size_t len = strlen(word);
    int limit = (int)(len + 2) / 3, best_distance = limit + 1;
    for (; *names; names++) {
        int distance = edit_distance(word, *names);
        /* "calib" for "calibrate": a beginning of a name is close whatever is missing. */
        if (len >= 3 && strncmp(word, *names, len) == 0 && distance > 1)
            distance = 1;
        if (distance < best_distance && distance < (int)strlen(*names)) {
            best = *names;
            best_distance = distance;
        }
    }
    return best;
}

const char *did_you_mean(const char *word, const char *const *names, char text[HINT_MAX])
{
    const char *near = nearest_name(word, names);
    text[0] = '\0';
    if (near)
        snprintf(text, HINT_MAX, "; did you mean '%s'?", near);
    return text;
}

int names_unknown(const struct names *all, const char *kind, const char *word, struct err *err)
{
    OWN(buf_free) struct buf list = {0};
    char hint[HINT_MAX];
    names_text(all, &list);
    return err_set(err, ERR_USAGE, "unknown %s '%s'%s (there are %s)", kind, word,
                   did_you_mean(word, all->items, hint), buf_str(&list));
}

/* ---- safe to show --------------------------------------------------------------------------- */

void text_escape(struct buf *b, const char *s, const char *keep)
{
    for (const unsigned char *p = (const unsigned char *)s; *p;) {
        int bad = utf8_unsafe(p), n = bad ? bad : utf8_length(p);
        if (!bad || (bad == 1 && strchr(keep, *p)))
            buf_put(b, p, (size_t)n);
        else if (bad == 1)
            buf_printf(b, "\\x%02x", *p);
        else
            buf_printf(b, "\\u%04x", utf8_code_point(p));
        p += n;
    }
}

int text_printf(FILE *f, const char *fmt, ...)
{
    OWN(buf_free) struct buf safe = {0};
    char *text = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n >= 0) {
        text_escape(&safe, text, "\n\t");
        free(text);
        n = safe.failed || fputs(buf_str(&safe), f) < 0 ? -1 : 0;
    }
    return n;
}

/* ---- wrapping ------------------------------------------------------------------------------- */

void text_wrap(struct buf *b, const char *text, int col, int indent, int width)
{
    bool first = true;
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, " \n");
        if (n > 0) {
            if (!first && col + 1 + (int)n > width) {
                buf_printf(b, "\n%*s", indent, "");
                col = indent;
                first = true;
            }
            buf_printf(b, "%s%.*s", first ? "" : " ", (int)n, p);
            col += (int)n + !first;
            first = false;
        }
        p += n + (p[n] != '\0');
    }
    buf_puts(b, "\n");
}

/* ---- words ----------------------------------------------------------------------------------- */

bool words_have(const char *list, char by, const char *name, size_t len)
{
    for (const char *p = list; *p; p += *p != '\0') {
        size_t n = strcspn(p, (char[]){by, '\0'});
        if (n == len && strncmp(p, name, n) == 0)
            return true;
        p += n;
    }
    return false;
}

/* One word at p, without its quotes, appended to b. Returns what follows it; NULL: an open quote.
 */
static const char *word(const char *p, struct buf *b)
{
    char quote = 0;
    for (; *p && (quote || !strchr(" \t\n", *p)); p++) {
        if (!quote && (*p == '\'' || *p == '"')) {
            quote = *p;
        } else if (*p == quote) {
            quote = 0;
        } else if (*p == '\\' && quote != '\'' && p[1] && (!quote || strchr("\\\"$`", p[1]))) {
            buf_put(b, ++p, 1);
        } else {
            buf_put(b, p, 1);
        }
    }
    return quote ? NULL : p;
}

int words_split(const char *text, struct str_list *out, struct err *err)
{
    OWN(buf_free) struct buf b = {0};
    for (const char *p = text + strspn(text, " \t\n"); *p; p += strspn(p, " \t\n")) {
        buf_reset(&b);
        p = word(p, &b);
        if (!p)
            return err_set(err, ERR_USAGE, "'%s': a quote is not closed", text);
        str_list_add(out, buf_str(&b));
        PASS_ON(buf_check(&b, "words of a command", err));
    }
    if (out->failed)
        return err_set(err, ERR_NOMEM, "'%s': out of memory", text);
    if (out->n == 0)
        return err_set(err, ERR_USAGE, "'%s' is no command", text);
    return 0;
}

/* ---- numbers -------------------------------------------------------------------------------- */

bool num_read(const char *s, double *x, const char **end)
{
    const char *digits = s + (*s == '-' || *s == '+');
    char *stop;
    if (!isdigit((unsigned char)digits[*digits == '.']) || strncasecmp(digits, "0x", 2) == 0)
        return false;
    double v = strtod(s, &stop);
    if (!isfinite(v))
        return false;
    *end = stop;
    *x = v + 0.0; /* -0 + 0 is 0 */
    return true;
}

bool num_fills(const char *s, double *x)
{
    const char *end;
    double v;
    if (!num_read(s, &v, &end) || *end)
        return false;
    *x = v;
    return true;
}

/* ---- sizes and estimates as people say them -------------------------------------------------- */

void bytes_text(double bytes, char text[24])
{
    static const char *const units[] = {"kB", "MB", "GB", "TB", "PB"};
    int u = -1;
    while (bytes >= 999.5 && u < 4) {
        bytes /= 1000;
        u++;
    }
    if (u < 0)
        snprintf(text, 24, "%.0f B", bytes);
    else
        snprintf(text, 24, bytes < 9.95 ? "%.1f %s" : "%.0f %s", bytes, units[u]);
}

/* Two significant digits below 10, whole numbers above: 0.5, 2, 8.5, 30. */
static double rounded(double x)
{
    return x < 9.75 ? round(2 * x) / 2 : round(x);
}

void estimate_text(double seconds, char text[48])
{
    static const struct {
        double seconds;
        const char *name;
    } units[] = {{1, "s"}, {60, "min"}, {3600, "h"}, {86400, "days"}};
    static const double most[] = {120, 120 * 60.0, 72 * 3600.0, INFINITY};
    double low = seconds, high = seconds * 4;
    int u = 0;
    if (high < 2) {
        snprintf(text, 48, "under 2 s");
        return;
    }
    while (high > most[u])
        u++;
    snprintf(text, 48, "%g to %g %s", rounded(low / units[u].seconds),
             rounded(high / units[u].seconds), units[u].name);
}
