/*
 * cmd.h - the command table and what every command shares.
 */
#ifndef LACUNA_CMD_H
#define LACUNA_CMD_H

#include "core/err.h"
#include "core/method.h"
#include "core/opt.h"

struct app;

struct command {
    const char *name, *usage, *summary;
    /* argv[0] is the first word after the command's name. Results go to stdout, everything else to
     * stderr. Returns 0 or a negative code with err set. */
    int (*run)(const struct app *app, int argc, char **argv, struct err *err);
    const struct opt *options;  /* for help, man page and completion; NULL = none */
    const char       *details;  /* text below the options in --help: arguments, examples */
};

struct app {
    const struct command *const *commands; /* NULL-terminated */
    const struct method *const  *methods;  /* NULL-terminated */
    const void *const           *kernels;  /* NULL-terminated, NULL with CUDA=0 */
    int                          argc;     /* the whole command line, for manifests */
    char                       **argv;
};

/* Find and run the command that app->argv names. "", help, --help, version, --version are handled
 * here; an unknown command is ERR_USAGE with the nearest name. */
int app_run(const struct app *app, struct err *err);

/* Fields of a command's option struct that every command has, to be its first member. */
struct common_opts {
    bool    json, quiet, verbose, dry_run, force, help;
    int64_t jobs;  /* 0 = all processors */
    int64_t seed;
};

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
     "Seed of everything random.", NULL, 0, "N"},                                                   \
    {"help", OPT_BOOL, offsetof(struct common_opts, help), "0", 0, 1, OPT_IDENTITY_NOT, "",         \
     "Show this help.", NULL, 'h', NULL}

/* Defaults, command line, log level. When --help was given prints it and sets *done. `obj` begins
 * with struct common_opts. */
int cmd_begin(const struct command *cmd, void *obj, int argc, char **argv, struct str_list *rest,
              bool *done, struct err *err);

/* Jobs to use: --jobs or the processors. */
int cmd_jobs(const struct common_opts *c);

#endif
