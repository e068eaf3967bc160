/*
 * cmdman.c - manual pages (man(7) macros).
 */
#include "core/cmdman.h"

#include "core/text.h"
#include "core/version.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- roff ----------------------------------------------------------------------------------- */

/* Text that must not be read as a request or an escape; '-' stays a plain hyphen-minus. */
static void roff(struct buf *b, const char *s)
{
    bool line_start = true;
    for (; *s; s++) {
        if (line_start && (*s == '.' || *s == '\''))
            buf_puts(b, "\\&");
        if (*s == '\\')
            buf_puts(b, "\\e");
        else if (*s == '-')
            buf_puts(b, "\\-");
        else
            buf_put(b, s, 1);
        line_start = *s == '\n';
    }
}

/* A paragraph in short source lines. */
static void roff_text(struct buf *b, const char *s)
{
    struct buf wrapped = {0};
    text_wrap(&wrapped, s, 0, 0, 72);
    roff(b, buf_str(&wrapped));
    buf_free(&wrapped);
}

static void roff_options(struct buf *b, const struct opt *table, bool common)
{
    for (const struct opt *o = table; o && o->type != OPT_END; o++) {
        struct buf text = {0};
        const char *arg = opt_arg_name(o);
        if (opt_is_common(o) != common)
            continue;
        buf_puts(b, ".TP\n");
        if (o->short_name)
            buf_printf(b, "\\fB\\-%c\\fR, ", o->short_name);
        buf_puts(b, "\\fB\\-\\-");
        roff(b, o->name);
        buf_puts(b, "\\fR");
        if (arg[0]) {
            buf_puts(b, " \\fI");
            roff(b, arg);
            buf_puts(b, "\\fR");
        }
        buf_puts(b, "\n");
        opt_describe(o, &text);
        roff_text(b, buf_str(&text));
        buf_free(&text);
    }
}

static void roff_command(struct buf *b, const struct command *c)
{
    struct buf usage = {0}, summary = {0};
    cmd_usage(c, "", "", &usage);
    buf_puts(b, ".SS ");
    roff(b, c->name);
    buf_puts(b, "\n");
    cmd_summary(c, &summary);
    buf_puts(&summary, ".");
    roff_text(b, buf_str(&summary));
    buf_puts(b, ".PP\n.nf\n");
    roff(b, buf_str(&usage));
    buf_puts(b, ".fi\n");
    roff_options(b, c->options, false);
    if (c->details) {
        size_t n = strlen(c->details);
        buf_puts(b, ".PP\n.nf\n");
        roff(b, c->details);
        buf_puts(b, n && c->details[n - 1] == '\n' ? ".fi\n" : "\n.fi\n");
    }
    buf_free(&usage);
    buf_free(&summary);
}

static void roff_methods(struct buf *b, const struct app *app)
{
    buf_puts(b, ".SH METHODS\n");
    roff_text(b,
              "A method is given as NAME or NAME:key=value:key=value. A list key=a,b,c is a "
              "sweep, several lists their product; a..b/logN and a..b/linN are ranges of N "
              "values. calib=FILE takes parameters per head from a calibration file; those given "
              "beside it win over the file. lacuna list methods -v shows all parameters.");
    for (const struct method *const *m = app->methods; *m; m++) {
        buf_puts(b, ".TP\n\\fB");
        roff(b, (*m)->name);
        buf_puts(b, "\\fR\n");
        roff_text(b, (*m)->summary);
    }
}

static const struct {
    const char *term, *text;
    /* clang-format off */
} files[] = {
    {"records.jsonl", "One JSON line per cell (trace, step, branch, layer, head, method, parameters): "
                      "metrics and status. Shards write records.I-of-N.jsonl."},
    {"records.jsonl.damaged", "What lacuna records repair found: the file as it was."},
    {"manifest.json", "How an output directory came about: arguments, versions, hashes of inputs, "
                      "host, times, status; earlier runs under history."},
    {"*.h5", "Traces and masks in HDF5, readable with h5dump and h5py."},
    {"*.part", "A file that is being written. It gets its name when it is complete."},
}, exits[] = {
    {"0", "Success."},
    {"1", "It ran, but a check failed or a comparison found differences."},
    {"2", "Usage: unknown command, option, method or parameter, or a value out of range."},
    {"3", "Bad input file."},
    {"4", "The machine lacks something: GPU, driver, gnuplot, memory, disk space, open files."},
    {"5", "Failure at run time or in input and output."},
    {"130", "Interrupted by SIGINT, SIGTERM, SIGHUP or SIGQUIT; finished cells are kept."},
    {"141", "The reader of standard output went away before the end (SIGPIPE); no message."},
}, environment[] = {
    {"LACUNA_OPTION", "Default of --option of any command, such as LACUNA_JOBS or LACUNA_SEED. The "
                      "command line wins over the environment, the environment over --config."},
    {"NO_COLOR", "No colour in messages, whatever its value."},
    {"SLURM_PROCID, SLURM_NTASKS, SLURM_ARRAY_TASK_ID, OMPI_COMM_WORLD_RANK, PMI_RANK",
     "Rank and size that pick the shard of this process; --shard overrides them."},
    {"SOURCE_DATE_EPOCH", "Date to print in place of the present."},
    {"TMPDIR", "Directory of temporary files."},
}, examples[] = {
    {"lacuna capture --model datasets/models/code-lm --prompt FILE --tokens 1024 -o t.h5",
     "Run a model on the CPU and keep queries, keys and values of all heads."},
    {"lacuna replay t.h5 -m dense -m streaming:window=64,128,256 -o out",
     "Replay methods on every head; run it again to continue where it stopped."},
    {"lacuna analyze out", "Print the results as a table."},
    {"lacuna list metrics", "What every number means."},
};
/* clang-format on */

#define ROFF_TERMS(b, table)                                                                       \
    for (size_t i_ = 0; i_ < sizeof(table) / sizeof *(table); i_++) {                              \
        buf_puts(b, ".TP\n\\fB");                                                                  \
        roff(b, (table)[i_].term);                                                                 \
        buf_puts(b, "\\fR\n");                                                                     \
        roff_text(b, (table)[i_].text);                                                            \
    }

static void roff_title(const char *command, struct buf *b)
{
    const char *epoch = getenv("SOURCE_DATE_EPOCH");
    time_t t = epoch && epoch[0] ? (time_t)strtoll(epoch, NULL, 10) : time(NULL);
    char date[32];
    struct tm tm;
    gmtime_r(&t, &tm);
    strftime(date, sizeof date, "%Y-%m-%d", &tm);
    buf_puts(b, ".TH LACUNA");
    if (command)
        buf_puts(b, "\\-");
    for (const char *p = command; p && *p; p++)
        buf_printf(b, "%c", toupper((unsigned char)*p));
    buf_printf(b, " 1 %s \"lacuna %s\" \"User Commands\"\n", date, lacuna_version());
}

/* Page of one command: what the whole page says of it, with the options that all commands have. */
static void command_page(const struct app *app, const struct command *c, struct buf *b)
{
    struct buf summary = {0}, usage = {0};
    cmd_summary(c, &summary);
    cmd_usage(c, "", "", &usage);
    roff_title(c->name, b);
    buf_printf(b, ".SH NAME\nlacuna\\-%s \\- ", c->name);
    roff(b, buf_str(&summary));
    buf_puts(b, "\n.SH SYNOPSIS\n.nf\n");
    roff(b, buf_str(&usage));
    buf_puts(b, ".fi\n");
    if (c->details) {
        size_t n = strlen(c->details);
        buf_puts(b, ".SH DESCRIPTION\n.nf\n");
        roff(b, c->details);
        buf_puts(b, n && c->details[n - 1] == '\n' ? ".fi\n" : "\n.fi\n");
    }
    buf_puts(b, ".SH OPTIONS\n");
    roff_options(b, c->options, false);
    buf_puts(b, ".SS Options of every command\n");
    roff_options(b, c->options, true);
    buf_puts(b, ".SH EXIT STATUS\n");
    ROFF_TERMS(b, exits);
    buf_puts(b, ".SH SEE ALSO\n\\fBlacuna\\fR(1)");
    for (const struct command *const *k = app->commands; *k; k++)
        if (*k != c)
            buf_printf(b, ", \\fBlacuna\\-%s\\fR(1)", (*k)->name);
    buf_puts(b, "\n");
    buf_free(&summary);
    buf_free(&usage);
}

int man_page(const struct app *app, const struct command *command, struct buf *b)
{
    if (command) {
        command_page(app, command, b);
        return 0;
    }
    roff_title(NULL, b);
    buf_puts(b, ".SH NAME\nlacuna \\- trace\\-driven simulator and workbench for sparse attention\n"
                ".SH SYNOPSIS\n\\fBlacuna\\fR \\fICOMMAND\\fR [\\fIOPTION\\fR]... "
                "[\\fIARGUMENT\\fR]...\n.SH DESCRIPTION\n");
    roff_text(b, "lacuna captures queries, keys and values of attention layers from model runs "
                 "into traces, replays sparse-attention methods on them against exact dense "
                 "attention, and turns the records into tables and figures.");
    buf_puts(b, ".SH COMMANDS\n");
    for (const struct command *const *c = app->commands; *c; c++)
        roff_command(b, *c);
    buf_puts(b, ".SH OPTIONS\nEvery command takes these.\n");
    if (app->commands[0])
        roff_options(b, app->commands[0]->options, true);
    roff_methods(b, app);
    buf_puts(b, ".SH FILES\n");
    ROFF_TERMS(b, files);
    buf_puts(b, ".SH EXIT STATUS\n");
    ROFF_TERMS(b, exits);
    buf_puts(b, ".SH ENVIRONMENT\n");
    ROFF_TERMS(b, environment);
    buf_puts(b, ".SH EXAMPLES\n");
    ROFF_TERMS(b, examples);
    return 0;
}
