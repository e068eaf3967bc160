/*
 * cmd_report.c - `lacuna report`: records, traces and masks to one HTML page.
 */
#include "report/report.h"
#include "analyze/inputs.h"
#include "core/fileio.h"
#include "core/log.h"
#include "core/manifest.h"
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
    int rc = 0;
    for (int64_t i = 0; i < rest->n && rc == 0; i++) {
        const char *p = rest->items[i];
        size_t len = strlen(p);
        if (stat(p, &st) != 0)
            return err_sys(err, ERR_INPUT, "%s", p);
        bool lines = len > 6 && strcmp(p + len - 6, ".jsonl") == 0;
        if (lines || (S_ISDIR(st.st_mode) && !input_is_traces(p)))
            str_list_add(&r->records, p);
        else
            rc = trace_list(rest->items + i, 1, &r->traces, err);
    }
    return rc;
}

int report_build(struct report *r, int argc, char **argv, struct err *err)
{
    struct manifest *m = NULL;
    int rc = 0;
    TRY(make_dirs(r->dir, err));
    TRY(report_findings(r, err));
    TRY(report_tables(r, err));
    TRY(report_figures(r, err));
    TRY(report_explorer(r, err));
    TRY(report_definitions(r, err));
    TRY(manifest_start(r->dir, argc, argv, &m, err));
    manifest_num(m, "cells", (double)r->set.n);
    manifest_num(m, "tables", r->n_tables);
    manifest_num(m, "figures", r->n_figures);
    TRY(manifest_finish(&m, "ok", err));
    TRY(report_manifests(r, err));
    TRY(report_write(r, err));
out:
    return rc;
}

static int print_json(const struct report *r, struct err *err)
{
    struct buf b = {0}, page = {0};
    struct jw w;
    buf_printf(&page, "%s/index.html", r->dir);
    jw_init(&w, &b, 0);
    jw_obj(&w);
    jw_kstr(&w, "page", buf_str(&page));
    jw_kint(&w, "cells", r->set.n);
    jw_kint(&w, "tables", r->n_tables);
    jw_kint(&w, "figures", r->n_figures);
    jw_obj_end(&w);
    int rc = buf_check(&b, "JSON", err);
    puts(rc ? "" : buf_str(&b));
    buf_free(&b);
    buf_free(&page);
    return rc;
}

static int run(const struct app *app, void *opts, struct str_list *rest, struct err *err)
{
    struct report_opts *o = opts;
    struct report r = {.app = app};
    int rc = 0;
    r.dir = o->output;
    r.title = o->title;
    r.figures = o->figures;
    TRY(sort_inputs(rest, &r, err));
    for (int64_t i = 0; i < o->masks.n; i++) {
        if (access(o->masks.items[i], R_OK) != 0)
            FAIL(err, ERR_INPUT, "--masks: %s: %s", o->masks.items[i], strerror(errno));
        str_list_add(&r.masks, o->masks.items[i]);
    }
    if (r.records.n == 0 && r.traces.n)
        TRY(input_check(r.traces.items[0], WANT_RECORDS, err));
    TRY(recset_load(&r.records, &r.set, err));
    TRY(report_find_inputs(&r, err));
    if (o->common.dry_run) {
        text_printf(stderr,
                    "would write %s/index.html from %lld records, %lld traces, %lld mask files\n",
                    r.dir, (long long)r.set.n, (long long)r.traces.n, (long long)r.masks.n);
        goto out;
    }
    TRY(report_build(&r, app->argc, app->argv, err));
    log_info("%s/index.html: %d tables, %d figures", r.dir, r.n_tables, r.n_figures);
    if (o->common.json)
        TRY(print_json(&r, err));
    if (r.no_gnuplot)
        FAIL(err, ERR_MACHINE,
             "%s/index.html has no figures: install gnuplot-nox and run again; "
             "scripts and data of the figures are in %s/figures",
             r.dir, r.dir);
out:
    report_free(&r);
    return rc;
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
