/*
 * cmd.c - finding and running commands, and what every command does first.
 */
#include "core/cmd.h"

#include "core/log.h"
#include "core/manifest.h"
#include "core/pool.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct command *find_command(const struct app *app, const char *name)
{
    for (const struct command *const *c = app->commands; *c; c++)
        if (strcmp((*c)->name, name) == 0)
            return *c;
    return NULL;
}

static void print_help(const struct app *app)
{
    puts("usage: lacuna COMMAND [OPTION]...\n");
    for (const struct command *const *c = app->commands; *c; c++)
        printf("  %-12s %s\n", (*c)->name, (*c)->summary);
}

int app_run(const struct app *app, struct err *err)
{
    const char *name = app->argc > 1 ? app->argv[1] : "help";
    if (strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        print_help(app);
        return 0;
    }
    const struct command *c = find_command(app, name);
    if (!c) {
        const char *names[65];
        int         n = 0;
        for (; app->commands[n] && n < 64; n++)
            names[n] = app->commands[n]->name;
        names[n] = NULL;
        const char *near = nearest_name(name, names);
        return err_set(err, ERR_USAGE, "unknown command '%s'%s%s%s", name,
                       near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    }
    int rc = c->run(app, app->argc - 2, app->argv + 2, err);
    if (fflush(stdout) != 0 && rc == 0)
        rc = err_sys(err, ERR_IO, "standard output");
    return rc;
}

int cmd_begin(const struct command *cmd, void *obj, int argc, char **argv, struct str_list *rest,
              bool *done, struct err *err)
{
    struct common_opts *c = obj;
    int                 rc = 0;

    *done = false;
    TRY(opt_defaults(cmd->options, obj, err));
    TRY(opt_parse_argv(cmd->options, obj, cmd->name, argc, argv, rest, err));
    if (c->help) {
        struct buf b = {0};
        opt_help(cmd->options, &b);
        printf("usage: lacuna %s\n\n%s.\n\n%s%s", cmd->usage, cmd->summary, buf_str(&b),
               cmd->details ? cmd->details : "");
        buf_free(&b);
        *done = true;
        return 0;
    }
    TRY(opt_check_required(cmd->options, obj, cmd->name, "--", err));
    log_set_level(c->quiet ? LOG_WARN : c->verbose ? LOG_DEBUG : LOG_INFO);
out:
    return rc;
}

int cmd_jobs(const struct common_opts *c)
{
    return c->jobs > 0 ? (int)c->jobs : cpu_count();
}
