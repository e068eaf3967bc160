/*
 * cmd_help.c - lacuna help: the overview, one command's help, the man page, shell completion.
 */
#include "core/cmd.h"
#include "core/cmdman.h"

#include <stdio.h>

struct help_opts {
    struct common_opts common;
    bool man;
    char *completion;
};

static const struct opt help_options[] = {
    OPT_BOOL(struct help_opts, man, "0", "Print the manual page (roff), of COMMAND or of all."),
    OPT_STR(struct help_opts, completion, NULL, "SHELL",
            "Print a completion script for this shell: bash, zsh or fish."),
    COMMON_OPTS,
    {0},
};

extern const struct command cmd_help;

static void print_overview(const struct app *app)
{
    struct buf b = {0};
    buf_puts(&b, "lacuna - capture, replay and analyse sparse attention\n\n"
                 "usage: lacuna COMMAND [OPTION]... [ARGUMENT]...\n\nCommands:\n");
    for (const struct command *const *c = app->commands; *c; c++) {
        buf_printf(&b, "  %-12s", (*c)->name);
        cmd_summary(*c, &b);
        buf_puts(&b, "\n");
    }
    buf_puts(&b, "\n"
                 "lacuna COMMAND --help   options of a command\n"
                 "lacuna list methods -v  what can be replayed, with all parameters\n"
                 "lacuna help --man       the manual page\n");
    fputs(buf_str(&b), stdout);
    buf_free(&b);
}

static int help_of(const struct app *app, const char *name, struct err *err)
{
    static char flag[] = "--help";
    char *argv[] = {flag, NULL};
    const struct command *c = app_command(app, name, err);
    return c ? c->run(app, 1, argv, err) : ERR_USAGE;
}

static int print_page(const struct app *app, const struct help_opts *o, const char *command,
                      struct err *err)
{
    struct buf b = {0};
    const struct command *c = NULL;
    int rc = 0;
    if (command && !(c = app_command(app, command, err)))
        return err->code;
    if (o->man)
        rc = man_page(app, c, &b);
    else
        rc = completion_script(app, o->completion, &b, err);
    if (rc == 0)
        rc = buf_check(&b, "help", err);
    if (rc == 0)
        fputs(buf_str(&b), stdout);
    buf_free(&b);
    return rc;
}

static int run(const struct app *app, int argc, char **argv, struct err *err)
{
    struct help_opts o = {0};
    struct str_list rest = {0};
    bool done;
    int rc = 0;

    TRY(cmd_begin(&cmd_help, &o, argc, argv, &rest, &done, err));
    if (done)
        goto out;
    if (rest.n > 1)
        FAIL(err, ERR_USAGE, "help: takes one command, found '%s' as well", rest.items[1]);
    if (o.man || o.completion)
        rc = print_page(app, &o, rest.n ? rest.items[0] : NULL, err);
    else if (rest.n == 1)
        rc = help_of(app, rest.items[0], err);
    else
        print_overview(app);
out:
    opt_free(help_options, &o);
    str_list_free(&rest);
    return rc;
}

const struct command cmd_help = {
    .name = "help",
    .usage = "help [COMMAND]",
    .summary = "Show the commands, or the help of one",
    .run = run,
    .options = help_options,
    .details = "  lacuna help --man | man -l -                      read the manual page\n"
               "  source <(lacuna help --completion=bash)           complete in this shell\n",
};
