/*
 * cmd.h - the command table and what every command shares.
 */
#pragma once

#include "core/denoiser.h"
#include "core/err.h"
#include "core/accel.h"
#include "core/method.h"
#include "core/opt.h"

struct app;

struct command {
    const char *name;
    const char *usage;   /* "NAME ARGUMENT..."; several forms on lines of their own */
    const char *summary; /* one line, imperative, no full stop */
    /* `opts` is a struct of `options`, `args` the words that are none. Results go to stdout,
     * everything else to stderr. Returns 0 or a negative code with err set. */
    int (*run)(const struct app *app, void *opts, struct str_list *args, struct err *err);
    const struct opt *options;
    size_t size;         /* bytes of the struct of the options */
    const char *details; /* text below the options in --help: arguments, examples */
};

/* An entry of a registry of another folder (tables, figures); core sees its texts only. */
struct listed {
    const char *name, *summary, *details; /* details may be NULL */
};

struct app {
    const struct command *const *commands; /* NULL-terminated */
    const struct method *const *methods;   /* NULL-terminated */
    int argc;                              /* the whole command line, for manifests */
    char **argv;
    const struct listed *const *tables;  /* NULL-terminated, or NULL */
    const struct listed *const *figures; /* the same */

    /* Text of each of n token ids by the tokenizer of a model's directory; *out is the caller's. */
    int (*token_texts)(const char *model, const int32_t *ids, int64_t n, struct str_list *out,
                       struct err *err);

    /* What a language model writes behind the ids of a prompt, greedily: at most `most` ids, *made
     * of them, up to one that ends a text. `on` NULL: on the CPU. */
    int (*continue_text)(const char *model, const struct decoder_accel *on, int jobs,
                         const int32_t *prompt, int64_t n, int64_t most, int32_t *ids,
                         int64_t *made, struct err *err);

    /* `lacuna list kernels` and `gpus`: write one JSON object per entry, with at least "name" and
     * "summary", into the open array of w. NULL with CUDA=0. */
    int (*list_kernels)(struct jw *w, struct err *err);
    int (*list_gpus)(struct jw *w, struct err *err);
    const struct accel *accel;             /* the GPU back end; NULL with CUDA=0 */
    const struct decoder_accel *decoder;   /* runs language models on the GPU; the same */
    const struct denoiser_accel *denoiser; /* runs video models on the GPU; the same */
};

/* Find and run the command that app->argv names. Also handles --help, --version and a missing
 * command. An unknown command is ERR_USAGE with the nearest name; a failed write to stdout is
 * ERR_IO, or ERR_PIPE without a message if the reader closed it. */
int app_run(const struct app *app, struct err *err);

const struct command *app_command(const struct app *app, const char *name, struct err *err);

/* Options that every command has: the first member of each command's option struct. */
struct common_opts {
    bool json, quiet, verbose, dry_run, force;
    int64_t jobs; /* 0 = all processors, or this process's share of them */
    int64_t seed;
    int progress; /* enum progress_mode */
    int help;     /* enum help_level of cmd.c */
};

extern const char *const progress_mode_names[], *const help_level_names[];

/* Table entries for a `struct common_opts` at offset 0; put at the end of a command's table. */
#define COMMON_OPTS                                                                                \
    OPT_BOOL(struct common_opts, json, "0", "Print JSON on stdout, and nothing else there."),      \
        OPT_BOOL(struct common_opts, quiet, "0", "Only warnings and errors on stderr.",            \
                 .short_name = 'q'),                                                               \
        OPT_BOOL(struct common_opts, verbose, "0", "More detail on stderr.", .short_name = 'v'),   \
        OPT_AS("dry-run", OPT_BOOL, struct common_opts, dry_run, "0",                              \
               .help = "Say what would be done, with sizes, and do nothing."),                     \
        OPT_BOOL(struct common_opts, force, "0", "Overwrite or redo what is already there."),      \
        OPT_INT(struct common_opts, jobs, "0", 0, 4096, "threads",                                 \
                "Worker threads; 0 = all processors, shared among processes of mpirun.",           \
                .short_name = 'j', .arg = "N"),                                                    \
        OPT_INT(struct common_opts, seed, "0", 0, 9e15, "",                                        \
                "Seed of everything random, up to 9e15.", .arg = "N"),                             \
        OPT_ENUM(struct common_opts, progress, "auto", progress_mode_names,                        \
                 "Progress on stderr."),                                                           \
        OPT_ENUM(struct common_opts, help, "no", help_level_names,                                 \
                 "Show this help; --help=all: with every option.", .short_name = 'h',              \
                 .bare = "short")

/* Run a command: read options from argv, whose first word is the one after the command's name,
 * check required ones, set the log level, run. --help prints and does no more. */
int cmd_run(const struct command *cmd, const struct app *app, int argc, char **argv,
            struct err *err);

/* Jobs to use: --jobs or the processors (shard_cpus). */
int cmd_jobs(const struct common_opts *c);

/* The summary with a capital letter and without a full stop. */
void cmd_summary(const struct command *cmd, struct buf *b);
