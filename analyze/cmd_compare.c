/*
 * cmd_compare.c - `lacuna compare`: do two replays agree?
 */
#include "analyze/compare.h"
#include "analyze/format.h"
#include "analyze/query.h"
#include "core/cmd.h"

#include <stdio.h>

struct cmp_opts {
    struct common_opts common;
    double rtol, atol;
    char *ignore, *metrics, *format;
    struct str_list where;
    int64_t most;
};

/* clang-format off */
static const struct opt options[] = {
    {.name = "rtol", .type = OPT_NUM, .offset = offsetof(struct cmp_opts, rtol), .arg = "X",
     .def = "1e-9", .min = 0, .max = 1e9,
     .help = "Largest difference, relative to the larger of both."},
    {.name = "atol", .type = OPT_NUM, .offset = offsetof(struct cmp_opts, atol), .arg = "X",
     .def = "1e-12", .min = 0, .max = 1e300,
     .help = "Absolute difference that is always accepted."},
    {.name = "ignore", .type = OPT_STR, .offset = offsetof(struct cmp_opts, ignore), .arg = "KEYS",
     .flags = OPT_UNSET,
     .help = "Identity keys that may differ: backend,precision compares CPU with GPU; trace, "
             "seed, params, ..."},
    {.name = "metrics", .type = OPT_STR, .offset = offsetof(struct cmp_opts, metrics),
     .arg = "METRICS", .flags = OPT_UNSET,
     .help = "Compare these metrics only (shell patterns); default: all except times and speeds."},
    {.name = "where", .type = OPT_LIST, .offset = offsetof(struct cmp_opts, where),
     .short_name = 'w', .arg = "CONDITION", .flags = OPT_UNSET, .help = WHERE_HELP},
    {.name = "most", .type = OPT_INT, .offset = offsetof(struct cmp_opts, most), .arg = "N",
     .def = "50", .min = 0, .max = 1e9,
     .help = "Print N differences at most, 0 = all; all are counted."},
    {.name = "format", .type = OPT_STR, .offset = offsetof(struct cmp_opts, format),
     .short_name = 'f', .arg = "FORMAT", .def = "md", .help = "md, csv, tex, json or html."},
    COMMON_OPTS,
    {0},
};
/* clang-format on */

static int run(const struct app *app, int argc, char **argv, struct err *err);

const struct command cmd_compare = {
    .name = "compare",
    .usage = "compare A B [--rtol X] [--atol X]",
    .summary = "compare the records of two replays; exit 1 where they differ",
    .run = run,
    .options = options,
    .details =
        "A and B are -o directories of `lacuna replay`, or .jsonl files. Cells are matched by\n"
        "their identity (trace, run, step, branch, layer, head, method, parameters, seed,\n"
        "backend, precision, token order). Two values agree when\n"
        "|a - b| <= atol + rtol * max(|a|, |b|). Host times, GPU times and speeds are left\n"
        "out. Without differences nothing but the counts is printed and the exit code is 0.\n"
        "\n"
        "Examples:\n"
        "  lacuna compare out-a out-b\n"
        "  lacuna compare cpu gpu --ignore backend,precision --rtol 1e-3\n",
};

static int load_side(const char *path, struct recset *out, struct err *err)
{
    struct str_list one = {0};
    str_list_add(&one, path);
    int rc = recset_load(&one, out, err);
    str_list_free(&one);
    return rc;
}

static int print_table(const struct table *t, const struct cmp_opts *o, struct err *err)
{
    const struct table_format *f = format_find(o->common.json ? "json" : o->format, err);
    struct buf b = {0};
    static const struct sheet_opts wide = {.wide = true};
    if (!f)
        return err->code;
    format_table(f, t, &wide, &b);
    int rc = buf_check(&b, "table", err);
    if (!rc && fwrite(b.data, 1, b.len, stdout) != b.len)
        rc = err_sys(err, ERR_IO, "standard output");
    buf_free(&b);
    return rc;
}

static int run(const struct app *app, int argc, char **argv, struct err *err)
{
    struct cmp_opts o = {0};
    struct str_list rest = {0};
    struct recset a = {0}, b = {0};
    struct table t = {0};
    struct compare_result res;
    bool done;
    int rc = 0;

    TRY(cmd_begin(&cmd_compare, &o, argc, argv, &rest, &done, err));
    if (done)
        goto out;
    if (rest.n != 2)
        FAIL(err, ERR_USAGE, "compare takes two directories, %lld given", (long long)rest.n);
    TRY(load_side(rest.items[0], &a, err));
    TRY(load_side(rest.items[1], &b, err));
    TRY(recset_where(&o.where, &a, err));
    TRY(recset_where(&o.where, &b, err));
    if (o.common.dry_run) {
        fprintf(stderr, "would compare %lld with %lld records\n", (long long)a.n, (long long)b.n);
        goto out;
    }
    struct compare_opts c = {o.rtol, o.atol, o.ignore, o.metrics, o.most};
    TRY(compare_sets(&a, &b, &c, &res, &t, err));
    TRY(print_table(&t, &o, err));
    if (compare_differences(&res))
        FAIL(err, ERR_CHECK, "%s and %s differ in %lld places", rest.items[0], rest.items[1],
             (long long)compare_differences(&res));
out:
    table_free(&t);
    recset_free(&a);
    recset_free(&b);
    str_list_free(&rest);
    opt_free(options, &o);
    return rc;
}
