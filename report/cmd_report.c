/*
 * cmd_report.c - `lacuna report`: records, traces and masks to one HTML page.
 */
#include "report/report.h"
#include "analyze/inputs.h"
#include "core/fileio.h"
#include "core/log.h"
#include "core/manifest.h"
#include "core/mem.h"
#include "core/text.h"
#include "core/trace.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct report_opts {
    struct common_opts common;
    char *output, *title;
    struct str_list masks;
    bool figures;
};

static const struct opt options[] = {
    OPT_STR(struct report_opts, output, NULL, "REPORTDIR",
            "Directory of the report; the page is REPORTDIR/index.html.", .flags = OPT_REQUIRED,
            .short_name = 'o'),
    OPT_STR(struct report_opts, title, "Sparse attention report", "TEXT", "Title of the page."),
    OPT_LIST(struct report_opts, masks, NULL, "M.h5",
             "File of dumped masks, shown beside the maps (repeatable)."),
    OPT_BOOL(struct report_opts, figures, "1", "Draw figures; --no-figures leaves them out."),
    COMMON_OPTS,
    {0},
};

/* .jsonl files and directories with some hold records, other files and directories traces. */
static int sort_inputs(const struct str_list *rest, struct report *r, struct err *err)
{
    struct stat st;
    for (int64_t i = 0; i < rest->n; i++) {
        const char *p = rest->items[i];
        size_t len = strlen(p);
        if (stat(p, &st) != 0)
            return err_sys(err, ERR_INPUT, "%s", p);
        bool lines = len > 6 && strcmp(p + len - 6, ".jsonl") == 0;
        if (lines || (S_ISDIR(st.st_mode) && !input_is_traces(p)))
            str_list_add(&r->records, p);
        else
            PASS_ON(trace_list(rest->items + i, 1, &r->traces, err));
    }
    return 0;
}

int report_build(struct report *r, int argc, char **argv, struct err *err)
{
    struct manifest *m = NULL;
    PASS_ON(make_dirs(r->dir, err));
    PASS_ON(report_findings(r, err));
    PASS_ON(report_tables(r, err));
    PASS_ON(report_figures(r, err));
    PASS_ON(report_explorer(r, err));
    PASS_ON(report_definitions(r, err));
    PASS_ON(manifest_start(r->dir, argc, argv, &m, err));
    manifest_num(m, "cells", (double)r->set.n);
    manifest_num(m, "tables", r->n_tables);
    manifest_num(m, "figures", r->n_figures);
    PASS_ON(manifest_finish(&m, "ok", err));
    PASS_ON(report_manifests(r, err));
    return report_write(r, err);
}

static int print_json(const struct report *r, struct err *err)
{
    OWN(buf_free) struct buf b = {0}, page = {0};
    struct jw w;
    buf_printf(&page, "%s/index.html", r->dir);
    jw_init(&w, &b, 0);
    jw_row(&w, JW_STR("page", buf_str(&page)), JW_INT("cells", r->set.n),
           JW_INT("tables", r->n_tables), JW_INT("figures", r->n_figures));
    int rc = buf_check(&b, "JSON", err);
    puts(rc ? "" : buf_str(&b));
    return rc;
}

static int run(const struct app *app, void *opts, struct str_list *rest, struct err *err)
{
    struct report_opts *o = opts;
    OWN(report_free) struct report r = {.app = app};
    r.dir = o->output;
    r.title = o->title;
    r.figures = o->figures;
    PASS_ON(sort_inputs(rest, &r, err));
    for (int64_t i = 0; i < o->masks.n; i++) {
        if (access(o->masks.items[i], R_OK) != 0)
            return err_set(err, ERR_INPUT, "--masks: %s: %s", o->masks.items[i], strerror(errno));
        str_list_add(&r.masks, o->masks.items[i]);
    }
    if (r.records.n == 0 && r.traces.n)
        PASS_ON(input_check(r.traces.items[0], WANT_RECORDS, err));
    PASS_ON(recset_load(&r.records, &r.set, err));
    PASS_ON(report_find_inputs(&r, err));
    if (o->common.dry_run) {
        text_printf(stderr,
                    "would write %s/index.html from %lld records, %lld traces, %lld mask files\n",
                    r.dir, (long long)r.set.n, (long long)r.traces.n, (long long)r.masks.n);
        return 0;
    }
    PASS_ON(report_build(&r, app->argc, app->argv, err));
    log_info("%s/index.html: %d tables, %d figures", r.dir, r.n_tables, r.n_figures);
    if (o->common.json)
        PASS_ON(print_json(&r, err));
    if (r.no_gnuplot)
        return err_set(err, ERR_MACHINE,
                       "%s/index.html has no figures: install gnuplot-nox and run again; "
                       "scripts and data of the figures are in %s/figures",
                       r.dir, r.dir);
    return 0;
}

const struct command cmd_report = {
    .name = "report",
    .usage = "report DIR... [T.h5...] -o REPORTDIR",
    .summary = "write one HTML page with the tables and figures of replays",
    .run = run,
    .options = options,
    .size = sizeof(struct report_opts),
    .details =
        "DIR are -o directories of `lacuna replay`, or directories of traces. Traces given, and\n"
        "those that the manifests of the directories name and that are still there, give maps;\n"
        "masks dumped by these replays stand beside them. The page holds its pictures itself and\n"
        "fetches nothing; beside it lie the tables (csv with every digit; tex as on the page),\n"
        "the figures with their gnuplot scripts and data, and a manifest. Without gnuplot the\n"
        "page has tables only and the exit code is 4.\n"
        "\n"
        "Examples:\n"
        "  lacuna report out -o report\n"
        "  lacuna report run-a run-b trace.h5 --masks masks.h5 -o report\n",
};
