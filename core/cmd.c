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
    int rc = c->run(app, argc, argc ? app->argv + 2 : NULL, err);
    bool verdict = rc == 0 || rc == ERR_CHECK || rc == ERR_USAGE || rc == ERR_INPUT;
    if (verdict && mem_check_short(NULL) != 0) {
        err_clear(err); /* reached without something */
        rc = mem_check_short(err);
    }
    return finish_stdout(rc, err);
}

/* ---- help of one command -------------------------------------------------------------------- */

bool opt_is_common(const struct opt *o)
{
    static const struct opt common[] = {COMMON_OPTS, {.type = OPT_END}};
    const struct opt *c = opt_find(common, o->name);
    return c && c->offset == o->offset && c->type == o->type;
}

void cmd_summary(const struct command *cmd, struct buf *b)
{
    size_t n = strlen(cmd->summary);
    if (n == 0)
        return;
    char first = (char)toupper((unsigned char)cmd->summary[0]);
    buf_put(b, &first, 1);
    buf_put(b, cmd->summary + 1, n - 1 - (cmd->summary[n - 1] == '.'));
}

void cmd_usage(const struct command *cmd, const char *first, const char *next, struct buf *b)
{
    for (const char *line = cmd->usage, *p = first; line && *line; p = next) {
        size_t n = strcspn(line, "\n");
        buf_printf(b, "%slacuna %.*s\n", p, (int)n, line);
        line += n + (line[n] != '\0');
    }
}

static void print_help(const struct command *cmd, bool brief)
{
    struct opt own[OPT_TABLE_MAX + 1], common[OPT_TABLE_MAX + 1];
    int n_own = 0, n_common = 0;
    struct buf b = {0};

    for (const struct opt *o = cmd->options; o && o->type != OPT_END; o++) {
        if (opt_is_common(o) && n_common < OPT_TABLE_MAX)
            common[n_common++] = *o;
        else if (n_own < OPT_TABLE_MAX)
            own[n_own++] = *o;
    }
    own[n_own] = common[n_common] = (struct opt){.type = OPT_END};
    cmd_usage(cmd, "usage: ", "       ", &b);
    buf_puts(&b, "\n");
    cmd_summary(cmd, &b);
    buf_puts(&b, ".\n");
    if (n_own) {
        buf_puts(&b, "\nOptions:\n");
        opt_help(own, &b);
    }
    if (!brief && n_common) {
        buf_puts(&b, "\nCommon options:\n");
        opt_help(common, &b);
    }
    if (!brief && cmd->details) {
        size_t len = strlen(cmd->details);
        buf_printf(&b, "\n%s%s", cmd->details, len && cmd->details[len - 1] != '\n' ? "\n" : "");
    }
    fputs(buf_str(&b), stdout);
    buf_free(&b);
}

static bool asked_brief(int argc, char **argv)
{
    bool brief = false;
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0)
            return false;
        brief = brief || strcmp(argv[i], "-h") == 0;
    }
    return brief;
}

/* ---- configuration files and environment ---------------------------------------------------- */

static bool in_config(const struct opt *o)
{
    static const char *const not_there[] = {"help", "config", "print-config", "dry-run"};
    for (size_t i = 0; i < sizeof not_there / sizeof *not_there; i++)
        if (strcmp(o->name, not_there[i]) == 0)
            return false;
    return true;
}

static int set_from_json(const struct opt *o, void *obj, const char *label, const json_t *v,
                         bool append, struct err *err)
{
    char number[32];
    const char *text = json_is_true(v) ? "1" : json_is_false(v) ? "0" : json_string_value(v);
    struct err why = {0};
    if (json_is_integer(v))
        snprintf(number, sizeof number, "%lld", (long long)json_integer_value(v));
    else if (json_is_real(v))
        num_text(json_real_value(v), number);
    if (json_is_number(v))
        text = number;
    if (!text)
        return err_set(err, ERR_INPUT, "%s: text, a number, true or false was expected", label);
    if (opt_set_field(o, obj, label, text, append, &why))
        return err_set(err, ERR_INPUT, "%s", why.msg);
    return 0;
}

/* One key of a configuration file. */
static int config_key(const struct command *cmd, void *obj, const char *path, const char *key,
                      const json_t *v, struct err *err)
{
    char label[512];
    struct err why = {0};
    size_t i;
    json_t *item;
    const struct opt *o = opt_find_or_fail(cmd->options, path, "--", key, &why);
    if (!o)
        return err_set(err, ERR_INPUT, "%s", why.msg);
    snprintf(label, sizeof label, "%s: \"%s\"", path, key);
    if (json_is_null(v))
        return 0;
    if (!json_is_array(v))
        return set_from_json(o, obj, label, v, false, err);
    if (o->type != OPT_LIST)
        return err_set(err, ERR_INPUT, "%s: takes one value, not a list", label);
    str_list_free((struct str_list *)((char *)obj + o->offset));
    json_array_foreach(v, i, item)
    {
        int rc = set_from_json(o, obj, label, item, true, err);
        if (rc)
            return rc;
    }
    return 0;
}

static int config_arguments(const char *path, const json_t *v, struct str_list *args,
                            struct err *err)
{
    size_t i;
    json_t *item;
    if (!json_is_array(v))
        return err_set(err, ERR_INPUT, "%s: \"arguments\": a list was expected", path);
    json_array_foreach(v, i, item)
    {
        if (!json_is_string(item))
            return err_set(err, ERR_INPUT, "%s: \"arguments\": texts were expected", path);
        str_list_add(args, json_string_value(item));
    }
    return args->failed ? err_set(err, ERR_NOMEM, "%s: out of memory", path) : 0;
}

static int apply_config(const struct command *cmd, void *obj, const char *path,
                        struct str_list *args, struct err *err)
{
    json_t *doc = NULL, *v;
    const char *key, *name;
    int rc = 0;

    TRY(json_read_file(path, (size_t)16 << 20, &doc, err));
    if (!json_is_object(doc))
        FAIL(err, ERR_INPUT, "%s: an object of options was expected", path);
    json_object_foreach(doc, key, v)
    {
        if (strcmp(key, "arguments") == 0) {
            TRY(config_arguments(path, v, args, err));
        } else if (strcmp(key, "command") == 0) {
            name = json_string_value(v);
            if (!name || strcmp(name, cmd->name) != 0)
                FAIL(err, ERR_INPUT, "%s: is for the command %s, not %s", path, name ? name : "?",
                     cmd->name);
        } else {
            TRY(config_key(cmd, obj, path, key, v, err));
        }
    }
out:
    json_decref(doc);
    return rc;
}

/* "LACUNA_DRY_RUN" of "dry-run". */
static const char *env_of(const struct opt *o, char name[96])
{
    snprintf(name, 96, "LACUNA_%s", o->name);
    for (char *p = name + 7; *p; p++)
        *p = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
    return getenv(name);
}

static int apply_environment(const struct command *cmd, void *obj, struct err *err)
{
    for (const struct opt *o = cmd->options; o && o->type != OPT_END; o++) {
        char name[96], label[192];
        const char *value = env_of(o, name);
        if (!value || strcmp(o->name, "help") == 0 || strcmp(o->name, "config") == 0)
            continue;
        snprintf(label, sizeof label, "%s: %s", cmd->name, name);
        int rc = opt_set_field(o, obj, label, value, false, err);
        if (rc)
            return rc;
    }
    return 0;
}

static void print_config(const struct command *cmd, const void *obj, const struct str_list *rest)
{
    struct buf b = {0};
    struct jw w;
    jw_init(&w, &b, 2);
    jw_obj(&w);
    jw_kstr(&w, "command", cmd->name);
    jw_key(&w, "arguments");
    jw_arr(&w);
    for (int64_t i = 0; i < rest->n; i++)
        jw_str(&w, rest->items[i]);
    jw_arr_end(&w);
    for (const struct opt *o = cmd->options; o && o->type != OPT_END; o++) {
        if (!in_config(o))
            continue;
        jw_key(&w, o->name);
        opt_field_json(o, obj, &w);
    }
    jw_obj_end(&w);
    puts(buf_str(&b));
    buf_free(&b);
}

/* ---- the start of a command ----------------------------------------------------------------- */

/* All sources in ascending precedence. `path` is the configuration file or NULL. */
static int gather(const struct command *cmd, void *obj, const char *path, int argc, char **argv,
                  struct str_list *rest, struct err *err)
{
    int rc = 0;
    struct str_list args = {0};

    opt_free(cmd->options, obj);
    str_list_free(rest);
    TRY(opt_defaults(cmd->options, obj, err));
    if (path)
        TRY(apply_config(cmd, obj, path, &args, err));
    TRY(apply_environment(cmd, obj, err));
    TRY(opt_parse_argv(cmd->options, obj, cmd->name, argc, argv, rest, err));
    if (rest->n == 0) {
        *rest = args;
        args = (struct str_list){0};
    }
out:
    str_list_free(&args);
    return rc;
}

int cmd_begin(const struct command *cmd, void *obj, int argc, char **argv, struct str_list *rest,
              bool *done, struct err *err)
{
    struct common_opts *c = obj;
    int rc = 0;
    char *path = NULL;

    *done = false;
    /* The first pass over argv is for --help and --config. */
    TRY(opt_defaults(cmd->options, obj, err));
    TRY(opt_parse_argv(cmd->options, obj, cmd->name, argc, argv, rest, err));
    if (c->help) {
        print_help(cmd, asked_brief(argc, argv));
        *done = true;
        goto out;
    }
    const char *config = c->config ? c->config : getenv("LACUNA_CONFIG");
    if (config && config[0] && !(path = strdup(config)))
        FAIL(err, ERR_NOMEM, "%s: out of memory", cmd->name);
    TRY(gather(cmd, obj, path, argc, argv, rest, err));
    if (c->print_config) {
        print_config(cmd, obj, rest);
        *done = true;
        goto out;
    }
    TRY(opt_check_required(cmd->options, obj, cmd->name, "--", err));
    log_set_level(c->quiet ? LOG_WARN : c->verbose ? LOG_DEBUG : LOG_INFO);
    progress_set_mode((enum progress_mode)c->progress);
out:
    free(path);
    return rc;
}

int cmd_jobs(const struct common_opts *c)
{
    return c->jobs > 0 ? (int)c->jobs : shard_cpus(cpu_count(), cpu_online());
}
