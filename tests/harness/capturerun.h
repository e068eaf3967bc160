/*
 * capturerun.h - run `lacuna capture` in the test's process.
 */
#pragma once

#include "core/cmd.h"
#include "core/trace.h"
#include "eval/decode.h"
#include "tests/harness/suite.h"

#include <stdio.h>
#include <string.h>

extern const struct command cmd_capture;

/* The next word of *text, which moves behind it; NULL at the end. test_tmpdir() at the beginning of
 * a word may hold spaces. */
static inline char *next_word(char **text)
{
    size_t dir = strlen(test_tmpdir());
    char *word = *text + strspn(*text, " ");
    char *end = word + (strncmp(word, test_tmpdir(), dir) == 0 ? dir : 0);
    end += strcspn(end, " ");
    *text = *end ? end + 1 : end;
    *end = '\0';
    return *word ? word : NULL;
}

/* capture --model MODEL -o OUT and the words of `common` and `args`, quiet; with a device for video
 * models, or NULL. */
static inline int capture_run_on(const struct denoiser_accel *device, const char *model,
                                 const char *out, const char *common, const char *args,
                                 struct err *err)
{
    static const struct command *const none[] = {NULL};
    char words[64000], *rest = words, *argv[60];
    struct app app = {.commands = none, .denoiser = device, .continue_text = decode_greedy};
    int argc = 0;
    int len =
        snprintf(words, sizeof words, "--model %s -o %s --quiet %s %s", model, out, common, args);
    ck_assert_int_lt(len, sizeof words);
    for (char *w; (w = next_word(&rest)) != NULL;)
        argv[argc++] = w;
    app.argc = argc;
    app.argv = argv;
    return cmd_run(&cmd_capture, &app, argc, argv, err);
}

static inline int capture_run(const char *model, const char *out, const char *common,
                              const char *args, struct err *err)
{
    return capture_run_on(NULL, model, out, common, args, err);
}

static inline struct trace *open_trace(const char *path)
{
    struct trace *t = NULL;
    MUST(trace_open(path, &t, ERR));
    return t;
}
