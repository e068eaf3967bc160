/*
 * cmd_version.c - lacuna version: version, build and libraries of this binary.
 */
#include "core/cmd.h"
#include "core/gemm.h"
#include "core/mem.h"
#include "core/version.h"

#include <stdio.h>

static const struct opt version_options[] = {
    COMMON_OPTS,
    {0},
};

static void print_version(const struct app *app, bool as_json)
{
    OWN(buf_free) struct buf b = {0};
    struct jw w;
    bool cuda = app->accel != NULL;
    if (!as_json) {
        printf("lacuna %s\nbuild %s\ncuda %s\nblas kernels %s\n", lacuna_version(),
               lacuna_build_id(), cuda ? "yes" : "no", openblas_kernels());
        return;
    }
    jw_init(&w, &b, 2);
    jw_row(&w, JW_STR("version", lacuna_version()), JW_STR("build", lacuna_build_id()),
           JW_BOOL("cuda", cuda), JW_STR("blas_kernels", openblas_kernels()));
    puts(buf_str(&b));
}

static int run(const struct app *app, void *opts, struct str_list *args, struct err *err)
{
    if (args->n)
        return err_set(err, ERR_USAGE, "version: takes no argument, found '%s'", args->items[0]);
    print_version(app, ((struct common_opts *)opts)->json);
    return 0;
}

const struct command cmd_version = {
    .name = "version",
    .usage = "version",
    .summary = "Print the version and how it was built",
    .run = run,
    .options = version_options,
    .size = sizeof(struct common_opts),
};
