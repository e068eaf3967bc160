/*
 * cmd_compare.c - `lacuna compare`: do two replays agree?
 */
#include "analyze/compare.h"
#include "analyze/format.h"
#include "analyze/query.h"
#include "core/cmd.h"
#include "core/mem.h"

#include <stdio.h>

struct cmp_opts {
    struct common_opts common;
    double rtol, atol;
    char *ignore, *metrics, *format;
    struct str_list where;
    int64_t most;
};

static const struct opt options[] = {
    OPT_NUM(struct cmp_opts, rtol, "1e-9", 0, 1e9, "",
            "Largest difference, relative to the larger of both.", .arg = "X"),
    OPT_NUM(struct cmp_opts, atol, "1e-12", 0, 1e300, "",
            "Absolute difference that is always accepted.", .arg = "X"),
    OPT_STR(struct cmp_opts, ignore, NULL, "KEYS",
            "Identity keys that may differ: backend,precision compares CPU with GPU; trace, "
            "seed, params, ..."),
    OPT_STR(struct cmp_opts, metrics, NULL, "METRICS",
            "Compare these metrics only (shell patterns); default: all except times and speeds."),
    OPT_LIST(struct cmp_opts, where, NULL, "CONDITION", WHERE_HELP, .short_name = 'w'),
    OPT_INT(struct cmp_opts, most, "50", 0, 1e9, "",
            "Print N differences at most, 0 = all; all are counted.", .arg = "N"),
    OPT_STR(struct cmp_opts, format, "md", "FORMAT", "md, csv, tex, json or html.",
            .short_name = 'f'),
    COMMON_OPTS,
    {0},
};

static int load_side(const char *path, struct recset *out, struct err *err)
{
    OWN(str_list_free) struct str_list one = {0};
    str_list_add(&one, path);
    return recset_load(&one, out, err);
}

static int print_table(const struct table *t, const struct cmp_opts *o, struct err *err)
{
    const struct table_format *f = format_find(o->common.json ? "json" : o->format, err);
    OWN(buf_free) struct buf b = {0};
    static const struct sheet_opts wide = {.wide = true};
    if (!f)
        return err->code;
    format_table(f, t, &wide, &b);
    PASS_ON(buf_check(&b, "table", err));
    fputs(buf_str(&b), stdout);
    return 0;
}

static int run(const struct app *app, void *opts, struct str_list *rest, struct err *err)
{
    struct cmp_opts *o = opts;
    OWN(recset_free) struct recset a = {0}, b = {0};
    OWN(table_free) struct table t = {0};
    struct compare_result res;
    if (rest->n != 2)
        return err_set(err, ERR_USAGE, "compare takes two directories, %lld given",
                       (long long)rest->n);
    PASS_ON(load_side(rest->items[0], &a, err));
    PASS_ON(load_side(rest->items[1], &b, err));
    PASS_ON(recset_where(&o->where, &a, err));
    PASS_ON(recset_where(&o->where, &b, err));
    if (o->common.dry_run) {
        fprintf(stderr, "would compare %lld with %lld records\n", (long long)a.n, (long long)b.n);
        return 0;
    }
    struct compare_opts c = {o->rtol, o->atol, o->ignore, o->metrics, o->most};
    PASS_ON(compare_sets(&a, &b, &c, &res, &t, err));
    PASS_ON(print_table(&t, o, err));
    if (compare_differences(&res))
        return err_set(err, ERR_CHECK, "%s and %s differ in %lld places", rest->items[0],
                       rest->items[1], (long long)compare_differences(&res));
    return 0;
}

const struct command cmd_compare = {
    .name = "compare",
    .usage = "compare A B [--rtol X] [--atol X]",
    .summary = "compare the records of two replays; exit 1 where they differ",
    .run = run,
    .options = options,
    .size = sizeof(struct cmp_opts),
    .details =
        "A and B are -o directories of `lacuna replay`, or .jsonl files. Cells are matched by\n"
        "their identity (trace, run, step, branch, layer, head, method, parameters, seed,\n"
        "backend, precision, token order). Two values agree when |a - b| <= atol + rtol *\n"
        "max(|a|, |b|). Host times, GPU times and speeds are left out. Without differences\n"
        "nothing but the counts is printed and the exit code is 0.\n"
        "\n"
        "Examples:\n"
        "  lacuna compare out-a out-b\n"
        "  lacuna compare cpu gpu --ignore backend,precision --rtol 1e-3\n",
};
