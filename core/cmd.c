/*
 * cmd.c - find and run a command, and the start that all commands share.
 */
#include "core/cmd.h"

#include "core/log.h"
#include "core/mem.h"
#include "core/metricdef.h"
#include "core/pool.h"
#include "core/progress.h"
#include "core/shard.h"
#include "core/text.h"

#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const progress_mode_names[] = {
    [PROGRESS_AUTO] = "auto", [PROGRESS_JSON] = "json", [PROGRESS_NONE] = "none", NULL};

const struct command *app_command(const struct app *app, const char *name, struct err *err)
{
    struct names all = {0};
    for (const struct command *const *c = app->commands; *c; c++) {
        if (strcmp((*c)->name, name) == 0)
            return *c;
        names_add(&all, (*c)->name);
    }
    names_unknown(&all, "command", name, err);
    return NULL;
}

/* Asked of the stream itself: the write that failed may lie long back. */
static bool reader_gone(void)
{
    struct pollfd p = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&p, 1, 0) == 1 && (p.revents & (POLLERR | POLLHUP));
}

/* Results that did not arrive are a failure, whatever the command thought. A full disk is not known
 * beforehand here, so it is an I/O failure too. A reader that has enough (`| head`) is none: main
 * then ends as SIGPIPE would have ended the program. */
static int finish_stdout(int rc, struct err *err)
{
    errno = 0;
    bool lost = fflush(stdout) != 0 || ferror(stdout);
    int why = errno;
    if ((rc == 0 ? lost : err->sys == EPIPE) && reader_gone()) /* with -o - the stream is well */
        return ERR_PIPE;
    if (!lost)
        return rc;
    if (rc < 0) {
        log_warn("standard output: what was printed there could not be written");
        return rc;
    }
    return err_set(err, ERR_IO, "standard output: cannot write: %s",
                   why ? strerror(why) : "an earlier write failed");
}

int app_run(const struct app *app, struct err *err)
{
    /* Most results fit and are written by the last flush, which knows why it failed. */
    static char buffer[1 << 18];
    metric_def_methods(app->methods);
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    const char *name = app->argc > 1 ? app->argv[1] : "help";
    int argc = app->argc > 2 ? app->argc - 2 : 0;
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        name = "help";
    else if (strcmp(name, "--version") == 0)
        name = "version";
    else if (name[0] == '-')
        return err_set(err, ERR_USAGE, "the command comes first, found '%s' (lacuna help)", name);
    const struct command *c = app_command(app, name, err);
    if (!c)
        return ERR_USAGE;
    json_watch_memory();
    int rc = cmd_run(c, app, argc, argc ? app->argv + 2 : NULL, err);
    bool verdict = rc == 0 || rc == ERR_CHECK || rc == ERR_USAGE || rc == ERR_INPUT;
    if (verdict && mem_check_short(NULL) != 0) {
        err_clear(err); /* reached without something */
        rc = mem_check_short(err);
    }
    return finish_stdout(rc, err);
}

/* ---- help of a command, and its start ------------------------------------------------------- */

void cmd_summary(const struct command *cmd, struct buf *b)
{
    size_t n = strlen(cmd->summary);
    if (n == 0)
        return;
    char first = (char)toupper((unsigned char)cmd->summary[0]);
    buf_put(b, &first, 1);
    buf_put(b, cmd->summary + 1, n - 1 - (cmd->summary[n - 1] == '.'));
}

static void put_usage(const struct command *cmd, struct buf *b)
{
    const char *before = "Usage: ";
    for (const char *line = cmd->usage; line && *line; before = "  or:  ") {
        size_t n = strcspn(line, "\n");
        buf_printf(b, "%slacuna %.*s\n", before, (int)n, line);
        line += n + (line[n] != '\0');
    }
}

enum help_level { HELP_NO, HELP_SHORT, HELP_ALL };
const char *const help_level_names[] = {
    [HELP_NO] = "no", [HELP_SHORT] = "short", [HELP_ALL] = "all", NULL};

enum group { GROUP_MAIN, GROUP_OTHER, GROUP_COMMON };

static enum group group_of(const struct opt *o)
{
    static const struct opt common[] = {COMMON_OPTS, {.type = OPT_END}};
    const struct opt *c = opt_find(common, o->name);
    if (c && c->offset == o->offset && c->type == o->type)
        return GROUP_COMMON;
    return o->flags & OPT_MAIN ? GROUP_MAIN : GROUP_OTHER;
}

/* Returns how many options the group has. */
static int put_group(const struct command *cmd, enum group g, const char *title, struct buf *b)
{
    int n = 0;
    for (const struct opt *o = cmd->options; o && o->type != OPT_END; o++)
        if (group_of(o) == g) {
            if (n++ == 0)
                buf_printf(b, "\n%s:\n", title);
            opt_help(o, b);
        }
    return n;
}

static void print_help(const struct command *cmd, enum help_level level)
{
    OWN(buf_free) struct buf b = {0};
    put_usage(cmd, &b);
    buf_puts(&b, "\n");
    cmd_summary(cmd, &b);
    buf_puts(&b, ".\n");
    int n_main = put_group(cmd, GROUP_MAIN, "Options", &b);
    if (n_main == 0 || level == HELP_ALL)
        put_group(cmd, GROUP_OTHER, n_main ? "More options" : "Options", &b);
    if (level == HELP_ALL)
        put_group(cmd, GROUP_COMMON, "Options of every command", &b);
    if (cmd->details)
        buf_printf(&b, "\n%s", cmd->details);
    if (level != HELP_ALL)
        buf_printf(&b, "\nlacuna %s --help=all shows every option.\n", cmd->name);
    fputs(buf_str(&b), stdout);
}

int cmd_run(const struct command *cmd, const struct app *app, int argc, char **argv,
            struct err *err)
{
    struct str_list args = {0};
    struct common_opts *c = NULL;
    int rc = 0;
    TRY(mem_zalloc(&c, 1, cmd->size, "options", err));
    TRY(opt_defaults(cmd->options, c, err));
    TRY(opt_parse_argv(cmd->options, c, cmd->name, argc, argv, &args, err));
    if (c->help != HELP_NO) {
        print_help(cmd, (enum help_level)c->help);
        goto out;
    }
    TRY(opt_check_required(cmd->options, c, cmd->name, "--", err));
    log_set_level(c->quiet ? LOG_WARN : c->verbose ? LOG_DEBUG : LOG_INFO);
    progress_set_mode((enum progress_mode)c->progress);
    rc = cmd->run(app, c, &args, err);
out:
    if (c)
        opt_free(cmd->options, c);
    free(c);
    str_list_free(&args);
    return rc;
}

int cmd_jobs(const struct common_opts *c)
{
    return c->jobs > 0 ? (int)c->jobs : shard_cpus(cpu_count(), cpu_online());
}
