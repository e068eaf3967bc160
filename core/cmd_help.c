/*
 * cmd_help.c - lacuna help: the overview, one command's help, and the words that may end a command
 * line, which the shells' completions ask for.
 */
#include "core/cmd.h"
#include "core/mem.h"
#include "core/metricdef.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

struct help_opts {
    struct common_opts common;
    bool complete;
};

static const struct opt help_options[] = {
    OPT_BOOL(struct help_opts, complete, "0",
             "Print the words that may take the place of the last one of -- COMMAND [WORD]...; "
             "nothing: a file name."),
    COMMON_OPTS,
    {0},
};

static void print_overview(const struct app *app)
{
    OWN(buf_free) struct buf b = {0};
    buf_puts(&b, "lacuna - capture, replay and analyse sparse attention\n\n"
                 "Usage: lacuna COMMAND [OPTION]... [ARGUMENT]...\n\nCommands:\n");
    for (const struct command *const *c = app->commands; *c; c++) {
        buf_printf(&b, "  %-12s", (*c)->name);
        cmd_summary(*c, &b);
        buf_puts(&b, "\n");
    }
    buf_puts(&b, "\n"
                 "lacuna COMMAND --help   options of a command\n"
                 "lacuna list methods -v  what can be replayed, with all parameters\n");
    fputs(buf_str(&b), stdout);
}

static int help_of(const struct app *app, const char *name, struct err *err)
{
    static char flag[] = "--help";
    char *argv[] = {flag, NULL};
    const struct command *c = app_command(app, name, err);
    return c ? cmd_run(c, app, 1, argv, err) : ERR_USAGE;
}

/* ---- completion ----------------------------------------------------------------------------- */

/* The last word of the line; its first `kept` characters are not open any more. */
struct last {
    const char *word;
    size_t kept;
};

static void offer(const struct last *l, const char *name, const char *tail)
{
    const char *open = l->word + l->kept;
    if (strncmp(name, open, strlen(open)) == 0)
        printf("%.*s%s%s\n", (int)l->kept, l->word, name, tail);
}

/* Keep what stands before the last `mark`, which is kept, too. */
static void keep_to(struct last *l, char mark)
{
    const char *at = strrchr(l->word + l->kept, mark);
    if (at)
        l->kept = (size_t)(at + 1 - l->word);
}

/* NAME, or behind NAME: a parameter. */
static void offer_methods(const struct app *app, struct last l)
{
    const char *name = l.word + l.kept;
    size_t n = strcspn(name, ":");
    for (const struct method *const *m = app->methods; *m; m++)
        if (!name[n])
            offer(&l, (*m)->name, "");
        else if (strlen((*m)->name) == n && strncmp((*m)->name, name, n) == 0) {
            keep_to(&l, ':');
            for (const struct opt *o = (*m)->params.table; o && o->type != OPT_END; o++)
                offer(&l, o->name, "=");
        }
}

static void offer_listed(const struct listed *const *list, const struct last *l)
{
    for (; list && *list; list++)
        offer(l, (*list)->name, "");
}

static void offer_values(const struct app *app, const struct opt *o, struct last l)
{
    static const char metrics[] = " columns metrics sort by x y ";
    char name[64];
    snprintf(name, sizeof name, " %s ", o->name);
    if (o->type == OPT_ENUM)
        for (int i = 0; o->values[i]; i++)
            offer(&l, o->values[i], "");
    else if (strcmp(o->name, "method") == 0)
        offer_methods(app, l);
    else if (strcmp(o->name, "table") == 0)
        offer_listed(app->tables, &l);
    else if (strstr(metrics, name)) {
        keep_to(&l, ',');
        for (const struct metric_def *m = metric_defs; m->name; m++)
            offer(&l, m->name, "");
    }
}

/* The first argument: what the usage lines have behind the command's name. */
static void offer_arguments(const struct app *app, const struct command *c, const struct last *l)
{
    for (const char *line = c->usage; line; line = strchr(line, '\n')) {
        char form[256], *rest = NULL;
        line += *line == '\n';
        snprintf(form, sizeof form, "%.*s", (int)strcspn(line, "\n"), line);
        strtok_r(form, " ", &rest);
        char *words = strtok_r(NULL, " ", &rest);
        if (words && strcmp(words, "METHOD") == 0)
            offer_methods(app, *l);
        else if (words && strcmp(words, "FIGURE") == 0)
            offer_listed(app->figures, l);
        else if (words && strcmp(words, "[COMMAND]") == 0)
            for (const struct command *const *k = app->commands; *k; k++)
                offer(l, (*k)->name, "");
        else if (words && islower((unsigned char)words[0]))
            for (char *w = strtok_r(words, "|", &rest); w; w = strtok_r(NULL, "|", &rest))
                offer(l, w, "");
    }
}

/* The option that a word like -m or --method names, if a value belongs to it. */
static const struct opt *option_of(const struct opt *table, const char *word, size_t len)
{
    for (const struct opt *o = table; o && o->type != OPT_END; o++) {
        bool is_long = len > 2 && strlen(o->name) == len - 2 && strncmp(word, "--", 2) == 0 &&
                       strncmp(word + 2, o->name, len - 2) == 0;
        if (is_long || (len == 2 && word[0] == '-' && o->short_name == word[1]))
            return o->type == OPT_BOOL || o->bare ? NULL : o;
    }
    return NULL;
}

static void complete(const struct app *app, const struct str_list *line)
{
    struct last l = {.word = line->n ? line->items[line->n - 1] : ""};
    const struct command *const *c = app->commands;
    while (line->n > 1 && *c && strcmp((*c)->name, line->items[0]) != 0)
        c++;
    if (line->n <= 1) {
        for (; *c; c++)
            offer(&l, (*c)->name, "");
        return;
    }
    if (!*c)
        return;
    const char *before = line->items[line->n - 2];
    const struct opt *o = option_of((*c)->options, before, strlen(before));
    if (!o && strchr(l.word, '=')) {
        size_t len = strcspn(l.word, "=");
        o = option_of((*c)->options, l.word, len);
        l.kept = o ? len + 1 : 0;
    }
    if (o)
        offer_values(app, o, l);
    else if (l.word[0] == '-')
        for (o = (*c)->options; o && o->type != OPT_END; o++) {
            char word[80];
            snprintf(word, sizeof word, "--%s", o->name);
            offer(&l, word, "");
        }
    else if (line->n == 2)
        offer_arguments(app, *c, &l);
}

/* ---- command -------------------------------------------------------------------------------- */

static int run(const struct app *app, void *opts, struct str_list *rest, struct err *err)
{
    struct help_opts *o = opts;
    if (o->complete)
        complete(app, rest);
    else if (rest->n > 1)
        return err_set(err, ERR_USAGE, "help: takes one command, found '%s' as well",
                       rest->items[1]);
    else if (rest->n == 1)
        return help_of(app, rest->items[0], err);
    else
        print_overview(app);
    return 0;
}

const struct command cmd_help = {
    .name = "help",
    .usage = "help [COMMAND]",
    .summary = "Show the commands, or the help of one",
    .run = run,
    .options = help_options,
    .size = sizeof(struct help_opts),
};
