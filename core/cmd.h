/*
 * cmd.h - the command table and what every command shares.
 */
#ifndef LACUNA_CMD_H
#define LACUNA_CMD_H

#include "core/decoder.h"
#include "core/err.h"
#include "core/kernel.h"
#include "core/method.h"
#include "core/opt.h"

struct app;

struct command {
    const char *name;
    const char *usage;   /* "NAME ARGUMENT..."; several forms on lines of their own */
    const char *summary; /* one line, imperative, no full stop */
    /* argv[0] is the first word after the command's name. Results go to stdout, everything else to
     * stderr. Returns 0 or a negative code with err set. */
    int (*run)(const struct app *app, int argc, char **argv, struct err *err);
    const struct opt *options;  /* for help, man page and completion; NULL = none */
    const char       *details;  /* text below the options in --help: arguments, examples */
};

/* An entry of a registry that core knows only by name (tables, figures). */
struct listed {
    const char *name, *summary, *details; /* details may be NULL */
};

struct app {
    const struct command *const *commands; /* NULL-terminated */
    const struct method *const  *methods;  /* NULL-terminated */
    const void *const           *kernels;  /* NULL-terminated, NULL with CUDA=0 */
    int                          argc;     /* the whole command line, for manifests */
    char                       **argv;
    const struct listed *const  *tables;   /* NULL-terminated, or NULL */
    const struct listed *const  *figures;  /* the same */

    /* `lacuna list kernels` and `gpus`: write one JSON object per entry, with at least "name" and
     * "summary", into the open array of w. NULL with CUDA=0. */
    int (*list_kernels)(struct jw *w, struct err *err);
    int (*list_gpus)(struct jw *w, struct err *err);
    const struct accel         *accel;   /* the GPU back end; NULL with CUDA=0 */
    const struct decoder_accel *decoder; /* runs language models on the GPU; the same */
};

/* Find and run the command that app->argv names. No command, --help and --version are handled here;
 * an unknown command is ERR_USAGE with the nearest name. What could not be written to stdout is
 * ERR_IO. */
int app_run(const struct app *app, struct err *err);

const struct command *app_command(const struct app *app, const char *name, struct err *err);

/* Fields of a command's option struct that every command has, to be its first member. */
struct common_opts {
    bool    json, quiet, verbose, dry_run, force, help;
    int64_t jobs;  /* 0 = all processors */
    int64_t seed;
    char   *config; /* owned: released by opt_free */
    bool    print_config;
    int     progress; /* enum progress_mode */
};

extern const char *const progress_mode_names[];

/* Table entries for a `struct common_opts` at offset 0; put at the end of a command's table. */
#define COMMON_OPTS                                                                                 \
    {"json", OPT_BOOL, offsetof(struct common_opts, json), "0", 0, 1, OPT_IDENTITY_NOT, "",         \
     "Print JSON on stdout, and nothing else there.", NULL, 0, NULL},                               \
    {"quiet", OPT_BOOL, offsetof(struct common_opts, quiet), "0", 0, 1, OPT_IDENTITY_NOT, "",       \
     "Only warnings and errors on stderr.", NULL, 'q', NULL},                                       \
    {"verbose", OPT_BOOL, offsetof(struct common_opts, verbose), "0", 0, 1, OPT_IDENTITY_NOT, "",   \
     "More detail on stderr.", NULL, 'v', NULL},                                                    \
    {"dry-run", OPT_BOOL, offsetof(struct common_opts, dry_run), "0", 0, 1, OPT_IDENTITY_NOT, "",   \
     "Say what would be done, with sizes, and do nothing.", NULL, 0, NULL},                         \
    {"force", OPT_BOOL, offsetof(struct common_opts, force), "0", 0, 1, OPT_IDENTITY_NOT, "",       \
     "Overwrite or redo what is already there.", NULL, 0, NULL},                                    \
    {"jobs", OPT_INT, offsetof(struct common_opts, jobs), "0", 0, 4096, OPT_IDENTITY_NOT, "threads",\
     "Worker threads; 0 = all processors.", NULL, 'j', "N"},                                        \
    {"seed", OPT_INT, offsetof(struct common_opts, seed), "0", 0, 9e15, 0, "",                      \
     "Seed of everything random, up to 9e15.", NULL, 0, "N"},                                       \
    {"config", OPT_STR, offsetof(struct common_opts, config), NULL, 0, 0,                           \
     OPT_UNSET | OPT_IDENTITY_NOT, "", "JSON file with options; keys are their long names.", NULL,  \
     0, "FILE"},                                                                                    \
    {"print-config", OPT_BOOL, offsetof(struct common_opts, print_config), "0", 0, 1,               \
     OPT_IDENTITY_NOT, "", "Print a file for --config that repeats this call, and do nothing.",     \
     NULL, 0, NULL},                                                                                \
    {"progress", OPT_ENUM, offsetof(struct common_opts, progress), "auto", 0, 0, OPT_IDENTITY_NOT,  \
     "", "Progress on stderr.", progress_mode_names, 0, NULL},                                      \
    {"help", OPT_BOOL, offsetof(struct common_opts, help), "0", 0, 1, OPT_IDENTITY_NOT, "",         \
     "Show this help; -h the short one.", NULL, 'h', NULL}

/* The start of every command: options from defaults, --config, LACUNA_* variables and argv, later
 * ones winning; required options; log level. --help and --print-config print and set *done. `obj`
 * begins with struct common_opts and is released by opt_free(cmd->options, obj) whatever happens;
 * `rest` (the words that are no options) by str_list_free. */
int cmd_begin(const struct command *cmd, void *obj, int argc, char **argv, struct str_list *rest,
              bool *done, struct err *err);

/* Jobs to use: --jobs or the processors. */
int cmd_jobs(const struct common_opts *c);

/* The summary with a capital letter and without a full stop. */
void cmd_summary(const struct command *cmd, struct buf *b);

/* Usage lines, each ended by a newline; `first` and `next` stand before the first and the others. */
void cmd_usage(const struct command *cmd, const char *first, const char *next, struct buf *b);

/* Is the table entry one of COMMON_OPTS? */
bool opt_is_common(const struct opt *o);

#endif
