/*
 * optline.c - option tables on the command line: parsing of argv and help text.
 */
#include "core/opt.h"
#include "core/mem.h"

#include "core/text.h"

#include <ctype.h>
#include <stdio.h>
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
    if (o->type == OPT_BOOL || o->bare)
        return give(l, o, label, o->bare ? o->bare : "1", err);
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
        if (o->type != OPT_BOOL && !o->bare)
            return value_of(l, o, label, c[1] ? c + 1 : NULL, err);
        PASS_ON(value_of(l, o, label, NULL, err));
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
        if (options && strcmp(w, "--") == 0)
            options = false;
        else if (options && strncmp(w, "--", 2) == 0)
            PASS_ON(long_option(&l, w + 2, err));
        else if (options && w[0] == '-' && w[1])
            PASS_ON(short_options(&l, w + 1, err));
        else
            str_list_add(rest, w);
    }
    return rest->failed ? err_set(err, ERR_NOMEM, "%s: out of memory", who) : 0;
}

/* ---- help ----------------------------------------------------------------------------------- */

const char *opt_arg_name(const struct opt *o)
{
    static const char *const by_type[] = {
        [OPT_BOOL] = "",    [OPT_INT] = "N",      [OPT_NUM] = "X",     [OPT_ENUM] = "NAME",
        [OPT_STR] = "TEXT", [OPT_SHARE] = "N|P%", [OPT_LIST] = "TEXT",
    };
    return o->type == OPT_BOOL || o->bare ? "" : o->arg ? o->arg : by_type[o->type];
}

void opt_describe(const struct opt *o, struct buf *b)
{
    OWN(buf_free) struct buf range = {0};
    if (o->only && o->help)
        buf_printf(b, "%c%s: %c%s", toupper((unsigned char)o->only[0]), o->only + 1,
                   tolower((unsigned char)o->help[0]), o->help + 1);
    else if (o->help)
        buf_puts(b, o->help);
    if (o->type == OPT_ENUM && !o->bare) {
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
    parts[3] = o->type != OPT_BOOL && !o->bare && o->def ? o->def : "";
    for (int i = 0; i < 4; i++)
        if (parts[i][0])
            buf_printf(b, "%s%s%s", n++ ? ", " : " [", heads[i], parts[i]);
    if (n)
        buf_puts(b, "]");
}

void opt_help(const struct opt *o, struct buf *b)
{
    enum { COLUMN = 28, WIDTH = 100 };
    OWN(buf_free) struct buf text = {0};
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
    text_wrap(b, buf_str(&text), COLUMN, COLUMN, WIDTH);
}
