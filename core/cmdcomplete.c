/*
 * cmdcomplete.c - completion scripts. Three shells, one model: the words that may follow an option
 * of a command, and those that may stand as its first argument.
 */
#include "core/cmdman.h"
#include "core/metricdef.h"

#include <string.h>

/* ---- what may stand where ---------------------------------------------------------------------
 */

static void add_word(struct buf *b, const char *word)
{
    buf_printf(b, "%s%s", b->len ? " " : "", word);
}

static void command_words(const struct app *app, struct buf *b)
{
    for (const struct command *const *c = app->commands; *c; c++)
        add_word(b, (*c)->name);
}

static void method_words(const struct app *app, struct buf *b)
{
    for (const struct method *const *m = app->methods; *m; m++)
        add_word(b, (*m)->name);
}

static void listed_words(const struct listed *const *list, struct buf *b)
{
    for (; list && *list; list++)
        add_word(b, (*list)->name);
}

static void metric_words(struct buf *b)
{
    for (const struct metric_def *m = metric_defs; m->name; m++)
        add_word(b, m->name);
}

static void parameter_words(const struct method *m, struct buf *b)
{
    for (const struct opt *o = m->params.table; o && o->type != OPT_END; o++) {
        add_word(b, o->name);
        buf_puts(b, "=");
    }
}

static bool is_one_of(const char *name, const char *const *names)
{
    for (; *names; names++)
        if (strcmp(name, *names) == 0)
            return true;
    return false;
}

/* Words that may follow an option; none: a file name or text. */
static void value_words(const struct app *app, const struct opt *o, struct buf *b)
{
    static const char *const metrics[] = {"columns", "metrics", "metric", "sort",
                                          "by",      "x",       "y",      NULL};
    if (o->type == OPT_ENUM)
        for (int i = 0; o->values[i]; i++)
            add_word(b, o->values[i]);
    else if (strcmp(o->name, "method") == 0)
        method_words(app, b);
    else if (strcmp(o->name, "table") == 0)
        listed_words(app->tables, b);
    else if (is_one_of(o->name, metrics))
        metric_words(b);
}

/* Words that may be a command's first argument. */
static void argument_words(const struct app *app, const struct command *c, struct buf *b)
{
    if (strcmp(c->name, "list") == 0)
        buf_puts(b, "methods metrics tables figures kernels gpus");
    else if (strcmp(c->name, "trace") == 0)
        buf_puts(b, "info verify pack export subset join map");
    else if (strcmp(c->name, "records") == 0)
        buf_puts(b, "check repair");
    else if (strcmp(c->name, "help") == 0)
        command_words(app, b);
    else if (strcmp(c->name, "calibrate") == 0)
        method_words(app, b);
    else if (strcmp(c->name, "plot") == 0)
        listed_words(app->figures, b);
}

static void option_words(const struct command *c, struct buf *b)
{
    for (const struct opt *o = c->options; o && o->type != OPT_END; o++) {
        buf_printf(b, "%s--%s", b->len ? " " : "", o->name);
    }
}

/* ---- bash and zsh -----------------------------------------------------------------------------
 */

/* Cases "replay:--method | replay:-m) words=..." of a shell's `case`. */
static void value_cases(const struct app *app, struct buf *b)
{
    struct buf words = {0};
    for (const struct command *const *c = app->commands; *c; c++)
        for (const struct opt *o = (*c)->options; o && o->type != OPT_END; o++) {
            buf_reset(&words);
            value_words(app, o, &words);
            if (!words.len)
                continue;
            buf_printf(b, "    %s:--%s", (*c)->name, o->name);
            if (o->short_name)
                buf_printf(b, " | %s:-%c", (*c)->name, o->short_name);
            buf_printf(b, ")\n        choices=\"%s\" ;;\n", buf_str(&words));
        }
    b->failed |= words.failed;
    buf_free(&words);
}

static void command_cases(const struct app *app,
                          void (*words_of)(const struct app *, const struct command *,
                                           struct buf *),
                          struct buf *b)
{
    struct buf words = {0};
    for (const struct command *const *c = app->commands; *c; c++) {
        buf_reset(&words);
        words_of(app, *c, &words);
        if (words.len)
            buf_printf(b, "        %s) choices=\"%s\" ;;\n", (*c)->name, buf_str(&words));
    }
    b->failed |= words.failed;
    buf_free(&words);
}

static void options_of(const struct app *app, const struct command *c, struct buf *b)
{
    option_words(c, b);
}

static void parameter_cases(const struct app *app, struct buf *b)
{
    struct buf words = {0};
    for (const struct method *const *m = app->methods; *m; m++) {
        buf_reset(&words);
        parameter_words(*m, &words);
        if (words.len)
            buf_printf(b, "        %s) choices=\"%s\" ;;\n", (*m)->name, buf_str(&words));
    }
    b->failed |= words.failed;
    buf_free(&words);
}

/* In bash the colon of METHOD:key=value is a word of its own. */
static void bash_script(const struct app *app, struct buf *b)
{
    struct buf words = {0};
    command_words(app, &words);
    buf_printf(b,
               "# bash completion of lacuna\n"
               "_lacuna()\n{\n"
               "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
               "    local command=${COMP_WORDS[1]} choices='' i\n"
               "    COMPREPLY=()\n"
               "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
               "        mapfile -t COMPREPLY < <(compgen -W \"%s\" -- \"$cur\")\n"
               "        return\n    fi\n",
               buf_str(&words));
    buf_puts(b, "    if [ \"$cur\" = : ] || [ \"$prev\" = : ]; then\n"
                "        [ \"$cur\" = : ] && cur=\n"
                "        i=$((COMP_CWORD - 1))\n"
                "        while [[ $i -gt 2 && ${COMP_WORDS[i]} == *[:=]* ||"
                " ${COMP_WORDS[i+1]} == [:=] ]]; do\n"
                "            [[ ${COMP_WORDS[i-1]} == -* ]] && break\n"
                "            i=$((i - 1))\n        done\n"
                "        case ${COMP_WORDS[i]} in\n");
    parameter_cases(app, b);
    buf_puts(b, "        esac\n"
                "        compopt -o nospace 2>/dev/null\n"
                "        mapfile -t COMPREPLY < <(compgen -W \"$choices\" -- \"$cur\")\n"
                "        return\n    fi\n"
                "    case $command:$prev in\n");
    value_cases(app, b);
    buf_puts(b, "    esac\n"
                "    if [ -z \"$choices\" ] && [[ $cur == -* ]]; then\n        case $command in\n");
    command_cases(app, options_of, b);
    buf_puts(b, "        esac\n"
                "    elif [ -z \"$choices\" ] && [ \"$COMP_CWORD\" -eq 2 ]; then\n"
                "        case $command in\n");
    command_cases(app, argument_words, b);
    buf_puts(b, "        esac\n    fi\n"
                "    if [ -n \"$choices\" ]; then\n"
                "        mapfile -t COMPREPLY < <(compgen -W \"$choices\" -- \"$cur\")\n"
                "    else\n"
                "        mapfile -t COMPREPLY < <(compgen -f -- \"$cur\")\n"
                "    fi\n}\n"
                "complete -o filenames -F _lacuna lacuna\n");
    b->failed |= words.failed;
    buf_free(&words);
}

static void zsh_script(const struct app *app, struct buf *b)
{
    struct buf words = {0};
    command_words(app, &words);
    buf_printf(b,
               "#compdef lacuna\n"
               "# zsh completion of lacuna\n"
               "_lacuna()\n{\n"
               "    local cur=${words[CURRENT]} prev=${words[CURRENT-1]} command=${words[2]}\n"
               "    local choices=''\n"
               "    if (( CURRENT == 2 )); then\n        compadd -- %s\n        return\n    fi\n",
               buf_str(&words));
    buf_puts(b, "    if [[ ( $prev == -m || $prev == --method ) && $cur == *:* ]]; then\n"
                "        case ${cur%%:*} in\n");
    parameter_cases(app, b);
    buf_puts(b, "        esac\n"
                "        compadd -S '' -p \"${cur%:*}:\" -- ${=choices}\n        return\n    fi\n"
                "    case $command:$prev in\n");
    value_cases(app, b);
    buf_puts(b, "    esac\n"
                "    if [[ -z $choices && $cur == -* ]]; then\n        case $command in\n");
    command_cases(app, options_of, b);
    buf_puts(b,
             "        esac\n"
             "    elif [[ -z $choices ]] && (( CURRENT == 3 )); then\n        case $command in\n");
    command_cases(app, argument_words, b);
    buf_puts(b, "        esac\n    fi\n"
                "    if [[ -n $choices ]]; then\n        compadd -- ${=choices}\n"
                "    else\n        _files\n    fi\n}\n"
                "_lacuna \"$@\"\n");
    b->failed |= words.failed;
    buf_free(&words);
}

/* ---- fish -------------------------------------------------------------------------------------
 */

/* In single quotes of fish only ' and \ are special. */
static void fish_quoted(const char *s, struct buf *b)
{
    buf_puts(b, "'");
    for (; *s; s++)
        buf_printf(b, *s == '\'' || *s == '\\' ? "\\%c" : "%c", *s);
    buf_puts(b, "'");
}

static void fish_option(const struct app *app, const struct command *c, const struct opt *o,
                        struct buf *b)
{
    struct buf words = {0};
    value_words(app, o, &words);
    buf_printf(b, "complete -c lacuna -n '__fish_seen_subcommand_from %s' -l %s", c->name, o->name);
    if (o->short_name)
        buf_printf(b, " -s %c", o->short_name);
    if (words.len)
        buf_printf(b, " -x -a '%s'", buf_str(&words));
    else if (opt_arg_name(o)[0])
        buf_puts(b, " -r");
    if (o->help) {
        buf_puts(b, " -d ");
        fish_quoted(o->help, b);
    }
    buf_puts(b, "\n");
    b->failed |= words.failed;
    buf_free(&words);
}

static void fish_script(const struct app *app, struct buf *b)
{
    struct buf words = {0};
    buf_puts(b, "# fish completion of lacuna\n");
    for (const struct command *const *c = app->commands; *c; c++) {
        struct buf summary = {0};
        cmd_summary(*c, &summary);
        buf_printf(b, "complete -c lacuna -f -n __fish_use_subcommand -a %s -d ", (*c)->name);
        fish_quoted(buf_str(&summary), b);
        buf_puts(b, "\n");
        buf_free(&summary);
        buf_reset(&words);
        argument_words(app, *c, &words);
        if (words.len)
            buf_printf(b, "complete -c lacuna -n '__fish_seen_subcommand_from %s' -a '%s'\n",
                       (*c)->name, buf_str(&words));
        for (const struct opt *o = (*c)->options; o && o->type != OPT_END; o++)
            fish_option(app, *c, o, b);
    }
    b->failed |= words.failed;
    buf_free(&words);
}

int completion_script(const struct app *app, const char *shell, struct buf *b, struct err *err)
{
    static const struct {
        const char *name;
        void (*write)(const struct app *app, struct buf *b);
    } shells[] = {{"bash", bash_script}, {"zsh", zsh_script}, {"fish", fish_script}};
    for (size_t i = 0; i < sizeof shells / sizeof *shells; i++)
        if (strcmp(shell, shells[i].name) == 0) {
            shells[i].write(app, b);
            return 0;
        }
    return err_set(err, ERR_USAGE,
                   "help: --completion: '%s' is not supported: bash, zsh and fish are", shell);
}
