/*
 * fuzz_options.c - command lines: every word of a line of the input.
 */
#include "tests/fuzz/fuzz.h"
#include "core/cmd.h"
#include "core/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = 64 };

struct fields {
    struct common_opts c;
    struct str_list methods;
    char *out;
    int64_t samples;
    double scale;
    bool flag;
};

static const struct opt options[] = {
    OPT_AS("method", OPT_LIST, struct fields, methods, NULL, .help = "Method.", .short_name = 'm',
           .arg = "METHOD"),
    OPT_AS("output", OPT_STR, struct fields, out, NULL, .help = "Directory.", .short_name = 'o',
           .arg = "DIR"),
    OPT_INT(struct fields, samples, "20", 0, 1000, "", "Samples.", .arg = "N"),
    OPT_NUM(struct fields, scale, "1", 0, 10, "", "Scale.", .arg = "X"),
    OPT_BOOL(struct fields, flag, "0", "Flag."),
    COMMON_OPTS,
    {0},
};

static const struct command command = {.name = "fuzz", .summary = "Fuzz", .options = options};

static int seeds(struct fuzz_corpus *c, struct err *err)
{
    static const char *const texts[] = {
        "-m dense -mstreaming:window=4 --output=dir --samples 7 a.h5 --flag --no-flag -- -x",
        "--scale 2.5 --seed 9 --jobs 3 --progress json t.h5",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        fuzz_add(c, texts[i], strlen(texts[i]));
    return 0;
}

static int run(const void *data, size_t len, struct err *err)
{
    struct fields f = {0};
    struct str_list rest = {0};
    char *argv[WORDS], *save = NULL;
    struct buf words = {0};
    bool done = false;
    int argc = 0;
    buf_put(&words, data, len);
    for (char *w = strtok_r(words.data, " \n", &save); w && argc < WORDS;
         w = strtok_r(NULL, " \n", &save))
        argv[argc++] = w;
    int rc = cmd_begin(&command, &f, argc, argv, &rest, &done, err);
    if (!rc && !done && (f.samples < 0 || f.samples > 1000 || !(f.scale >= 0 && f.scale <= 10)))
        fuzz_wild("samples %lld, scale %g", (long long)f.samples, f.scale);
    log_set_level(LOG_ERROR);
    opt_free(options, &f);
    str_list_free(&rest);
    buf_free(&words);
    return rc;
}

const struct fuzz_target fuzz_options = {"options", seeds, NULL, true, run};
