/*
 * optline.c - option tables on the command line: parsing of argv, help text, nearest names and
 * index lists.
 */
#include "core/opt.h"

#include "core/mem.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- argv ----------------------------------------------------------------------------------- */

struct line {
    const struct opt *table;
    void *obj;
    const char *who;
    int argc, at;
    char **argv;
    bool seen[OPT_TABLE_MAX]; /* a list starts anew at its first use here */
};

static int give(struct line *l, const struct opt *o, const char *label, const char *value,
                struct err *err)
{
    size_t i = (size_t)(o - l->table);
    bool append = i < OPT_TABLE_MAX && l->seen[i];
    if (i < OPT_TABLE_MAX)
        l->seen[i] = true;
    if (o->type == OPT_LIST && !append)
        str_list_free((struct str_list *)((char *)l->obj + o->offset));
    return opt_set_field(o, l->obj, label, value, o->type == OPT_LIST, err);
}

/* The option's value: what follows '=' or the next word. */
static int value_of(struct line *l, const struct opt *o, const char *label,
                    const char *inline_value, struct err *err)
{
    if (inline_value)
        return give(l, o, label, inline_value, err);
    if (o->type == OPT_BOOL)
        return give(l, o, label, "1", err);
    if (l->at + 1 >= l->argc)
        return err_set(err, ERR_USAGE, "%s needs a value%s%s", label, o->arg ? ": " : "",
                       o->arg ? o->arg : "");
    return give(l, o, label, l->argv[++l->at], err);
}

static int long_option(struct line *l, const char *word, struct err *err)
{
    char name[128], label[256];
    const char *eq = strchr(word, '=');
    size_t len = eq ? (size_t)(eq - word) : strlen(word);
    const struct opt *o;

    snprintf(name, sizeof name, "%.*s", (int)(len < sizeof name ? len : sizeof name - 1), word);
    snprintf(label, sizeof label, "%s: --%s", l->who, name);
    if (!eq && strncmp(name, "no-", 3) == 0 && !opt_find(l->table, name)) {
        o = opt_find(l->table, name + 3);
        if (o && o->type == OPT_BOOL)
            return give(l, o, label, "0", err);
    }
    o = opt_find_or_fail(l->table, l->who, "--", name, err);
    return o ? value_of(l, o, label, eq ? eq + 1 : NULL, err) : ERR_USAGE;
}

/* "-qv", "-j4", "-j 4", "-o FILE": flags may be joined, the last may take a value. */
static int short_options(struct line *l, const char *word, struct err *err)
{
    for (const char *c = word; *c; c++) {
        char label[128];
        const struct opt *o = l->table;
        while (o && o->type != OPT_END && o->short_name != *c)
            o++;
        if (!o || o->type == OPT_END)
            return err_set(err, ERR_USAGE, "%s: unknown option '-%c'%s", l->who, *c,
                           c != word ? " (long options need two dashes)" : "");
        snprintf(label, sizeof label, "%s: -%c", l->who, *c);
        if (o->type != OPT_BOOL)
            return value_of(l, o, label, c[1] ? c + 1 : NULL, err);
        int rc = give(l, o, label, "1", err);
        if (rc)
            return rc;
    }
    return 0;
}

int opt_parse_argv(const struct opt *table, void *obj, const char *who, int argc, char **argv,
                   struct str_list *rest, struct err *err)
{
    struct line l = {.table = table, .obj = obj, .who = who, .argc = argc, .argv = argv};
    bool options = true;
    for (; l.at < argc; l.at++) {
        const char *w = argv[l.at];
        int rc = 0;
        if (options && strcmp(w, "--") == 0)
            options = false;
        else if (options && strncmp(w, "--", 2) == 0)
            rc = long_option(&l, w + 2, err);
        else if (options && w[0] == '-' && w[1])
            rc = short_options(&l, w + 1, err);
        else
            str_list_add(rest, w);
        if (rc)
            return rc;
    }
    return rest->failed ? err_set(err, ERR_NOMEM, "%s: out of memory", who) : 0;
}

/* ---- help ----------------------------------------------------------------------------------- */

const char *opt_arg_name(const struct opt *o)
{
    static const char *const by_type[] = {
        [OPT_BOOL] = "",    [OPT_INT] = "N",      [OPT_NUM] = "X",     [OPT_ENUM] = "NAME",
        [OPT_STR] = "TEXT", [OPT_SHARE] = "N|P%", [OPT_LIST] = "TEXT", [OPT_BYTES] = "SIZE",
    };
    return o->type == OPT_BOOL ? "" : o->arg ? o->arg : by_type[o->type];
}

void opt_describe(const struct opt *o, struct buf *b)
{
    struct buf range = {0};
    if (o->help)
        buf_puts(b, o->help);
    if (o->type == OPT_ENUM) {
        buf_puts(b, b->len && b->data[b->len - 1] != '.' ? ". One of " : " One of ");
        for (int i = 0; o->values[i]; i++)
            buf_printf(b, "%s%s", i ? ", " : "", o->values[i]);
        buf_puts(b, ".");
    }
    opt_range_text(o, &range);
    const char *parts[4], *heads[4] = {"", "", "", "default "};
    int n = 0;
    const char *unit = o->unit ? o->unit : "";
    parts[0] = o->flags & OPT_REQUIRED ? "required" : "";
    parts[1] = o->type == OPT_BOOL ? "" : unit;
    parts[2] = buf_str(&range);
    parts[3] = o->type != OPT_BOOL && o->def ? o->def : "";
    for (int i = 0; i < 4; i++)
        if (parts[i][0])
            buf_printf(b, "%s%s%s", n++ ? ", " : " [", heads[i], parts[i]);
    if (n)
        buf_puts(b, "]");
    buf_free(&range);
}

void buf_wrap(struct buf *b, const char *text, int col, int indent, int width)
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

void opt_help(const struct opt *table, struct buf *b)
{
    enum { COLUMN = 28, WIDTH = 100 };
    for (const struct opt *o = table; o && o->type != OPT_END; o++) {
        struct buf text = {0};
        const char *arg = opt_arg_name(o);
        size_t start = b->len;
        if (o->short_name)
            buf_printf(b, "  -%c, --%s", o->short_name, o->name);
        else
            buf_printf(b, "      --%s", o->name);
        if (arg[0])
            buf_printf(b, " %s", arg);
        int used = (int)(b->len - start);
        if (used + 2 > COLUMN)
            buf_printf(b, "\n%*s", COLUMN, "");
        else
            buf_printf(b, "%*s", COLUMN - used, "");
        opt_describe(o, &text);
        buf_wrap(b, buf_str(&text), COLUMN, COLUMN, WIDTH);
        buf_free(&text);
    }
}

/* ---- nearest names -------------------------------------------------------------------------- */

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

/* ---- index lists ---------------------------------------------------------------------------- */

static int compare_i64(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static bool read_index(const char **p, int64_t *out)
{
    char *end;
    if (!isdigit((unsigned char)**p))
        return false;
    errno = 0;
    long long v = strtoll(*p, &end, 10);
    if (errno)
        return false;
    *p = end;
    *out = v;
    return true;
}

/* "a" or "a-b" at *p. */
static int read_span(const char **p, int64_t n, const char *what, const char *text, int64_t *lo,
                     int64_t *hi, struct err *err)
{
    bool ok = read_index(p, lo);
    *hi = *lo;
    if (ok && **p == '-') {
        (*p)++;
        ok = read_index(p, hi) && *hi >= *lo;
    }
    if (!ok || (**p && **p != ','))
        return err_set(err, ERR_USAGE, "%s: '%s' is not a list such as 0,4-7 or all", what, text);
    if (n >= 0 && *hi >= n)
        return err_set(err, ERR_USAGE, "%s: %lld is out of range, there are %lld (0..%lld)", what,
                       (long long)*hi, (long long)n, (long long)n - 1);
    return 0;
}

int index_list_parse(const char *text, int64_t n, const char *what, int64_t **out, int64_t *count,
                     struct err *err)
{
    enum { MOST = 1 << 24 };
    int rc = 0;
    int64_t *list = NULL, used = 0, cap = 0, kept = 0;
    char all[32];

    if (strcmp(text, "all") == 0 && n < 0) {
        *out = NULL;
        *count = -1;
        return 0;
    }
    snprintf(all, sizeof all, "0-%lld", (long long)n - 1);
    const char *p = strcmp(text, "all") == 0 && n > 0 ? all : text;
    for (;;) {
        int64_t lo = 0, hi = 0;
        if (n == 0 && strcmp(text, "all") == 0)
            break;
        TRY(read_span(&p, n, what, text, &lo, &hi, err));
        if (hi - lo >= MOST - used)
            FAIL(err, ERR_USAGE, "%s: '%s' names more than %d indices", what, text, MOST);
        TRY(mem_grow(&list, &cap, used + hi - lo + 1, sizeof *list, what, err));
        for (int64_t i = lo; i <= hi; i++)
            list[used++] = i;
        if (!*p)
            break;
        p++;
    }
    TRY(mem_grow(&list, &cap, 1, sizeof *list, what, err));
    qsort(list, (size_t)used, sizeof *list, compare_i64);
    for (int64_t i = 0; i < used; i++)
        if (kept == 0 || list[kept - 1] != list[i])
            list[kept++] = list[i];
    *out = list;
    *count = kept;
    list = NULL;
out:
    free(list);
    return rc;
}

bool index_list_has(const int64_t *list, int64_t n, int64_t x)
{
    for (int64_t i = 0; i < n; i++)
        if (list[i] == x)
            return true;
    return n < 0;
}
