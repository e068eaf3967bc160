/*
 * cmd_analyze.c - `lacuna analyze`: records to a table.
 */
#include "analyze/model.h"
#include "analyze/format.h"
#include "analyze/query.h"
#include "analyze/table.h"
#include "analyze/tables.h"
#include "core/cmd.h"
#include "core/fileio.h"
#include "core/json.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/text.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

struct analyze_opts {
    struct common_opts common;
    char *table, *group, *columns, *pivot, *sort, *best, *format, *output, *at, *by, *explain;
    struct str_list where;
    struct model_request model;
    int beside;
    int64_t top;
    bool wide;
};

#define BESIDE "time_attend_ns,time_attend_ns_model*,model_quotient*"
static const char *const besides[] = {"nothing", "measured", NULL};

static const struct opt options[] = {
    OPT_STR(struct analyze_opts, table, NULL, "NAME",
            "Which table; `lacuna list tables` names them. Default: the one that shows what was "
            "measured.",
            .short_name = 't'),
    OPT_STR(struct analyze_opts, group, NULL, "KEYS",
            "Group rows by these keys in place of the table's own: model, trace, causal, n_q, "
            "n_k, d, permute, backend, precision, seed, method, params, run, step, branch, "
            "layer, head, kv_head, target, status, reason, and parameters of methods (tau).",
            .short_name = 'g'),
    OPT_STR(struct analyze_opts, columns, NULL, "METRICS",
            "Metrics in place of the table's own; shell patterns (cra_*) are allowed."),
    OPT_STR(struct analyze_opts, pivot, NULL, "KEY",
            "One column per value of this key, for the first metric."),
    OPT_LIST(struct analyze_opts, where, NULL, "CONDITION", WHERE_HELP, .short_name = 'w'),
    OPT_STR(struct analyze_opts, at, NULL, "METRIC=X",
            "ranking: compare at this density, recall or error; default: the targets of the "
            "replay."),
    OPT_STR(struct analyze_opts, by, NULL, "METRIC", "ranking: what decides (err_l1_rel)."),
    OPT_STR(struct analyze_opts, sort, NULL, "COLUMN",
            "Sort rows by a column (its name as in CSV): metrics by their median, the better "
            "first, others upwards; -COLUMN turns the order round."),
    OPT_STR(struct analyze_opts, best, NULL, "COLUMN",
            "Keep one row for each value of this column, such as method: the first by --sort."),
    OPT_INT(struct analyze_opts, top, "0", 0, 1e9, "", "Keep the first N rows; 0 = all.",
            .arg = "N"),
    OPT_BOOL(struct analyze_opts, wide, "0",
             "Every column, means with standard deviations, instead of the few that most look "
             "at."),
    OPT_STR(struct analyze_opts, format, "text", "FORMAT",
            "text, md, csv, tex, json or html; without it the suffix of -o decides.",
            .short_name = 'f'),
    OPT_STR(struct analyze_opts, output, NULL, "FILE",
            "Write to FILE, replacing it, instead of standard output.", .short_name = 'o'),
    MODEL_OPTS(struct analyze_opts),
    OPT_AS("config", OPT_STR, struct analyze_opts, model.config, NULL,
           .help = "config.json of a language model: predict the least time to its first token.",
           .arg = "FILE"),
    OPT_ENUM(struct analyze_opts, beside, "nothing", besides,
             "measured: show measured times beside predicted ones, and the quotient."),
    OPT_STR(struct analyze_opts, explain, NULL, "TABLE:ROW:COLUMN",
            "What is behind a number of the -o directory of `lacuna reproduce`, as in "
            "spargeattn:9:HilbertCurve:Sparsity/video-dit."),
    COMMON_OPTS,
    {0},
};

/* The name of a file promises a format that no table has. */
static void warn_suffix(const char *output, const char *suffix)
{
    OWN(buf_free) struct buf known = {0};
    for (int i = 0; table_formats[i].name; i++)
        buf_printf(&known, "%s%s", known.len ? ", " : "", table_formats[i].suffix);
    log_warn("analyze: %s: no format has the ending %s (%s); it is written as text, --format "
             "chooses another one",
             output, suffix, buf_str(&known));
}

/* --json, then --format, then the suffix of the output file. *unknown: the suffix where it decides
 * and no format has it, else NULL. */
static int choose_format(const struct analyze_opts *o, const struct table_format **out,
                         const char **unknown, struct err *err)
{
    bool given;
    PASS_ON(opt_is_default(opt_find(options, "format"), o, &given, err));
    given = !given;
    if (o->common.json && given && strcmp(o->format, "json") != 0)
        return err_set(err, ERR_USAGE, "--json and --format %s contradict each other", o->format);
    const char *name = o->common.json ? "json" : o->format;
    const char *file = o->output ? strrchr(o->output, '/') : NULL;
    const char *dot = o->output ? strrchr(file ? file : o->output, '.') : NULL;
    *unknown = given || o->common.json ? NULL : dot;
    for (int i = 0; *unknown && table_formats[i].name; i++)
        if (strcmp(dot, table_formats[i].suffix) == 0) {
            name = table_formats[i].name;
            *unknown = NULL;
        }
    *out = format_find(name, err);
    return *out ? 0 : err->code;
}

/* Text follows the terminal; what goes to a file or a pipe is the same on every machine. */
static int text_columns(const char *output)
{
    struct winsize size;
    if (output || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 40)
        return 0;
    return size.ws_col;
}

static int write_table(const struct table *t, const struct table_format *f,
                       const struct analyze_opts *o, struct err *err)
{
    OWN(buf_free) struct buf b = {0};
    bool is_text = strcmp(f->name, "text") == 0;
    struct sheet_opts view = {o->wide, is_text ? text_columns(o->output) : 0};
    const char *path = o->output;
    format_table(f, t, &view, &b);
    PASS_ON(buf_check(&b, "table", err));
    if (path)
        return file_write_atomic(path, b.data, b.len, err);
    if (fputs(buf_str(&b), stdout) < 0)
        return err_sys(err, ERR_IO, "standard output");
    return 0;
}

static void say_plan(const struct table_def *def, const struct recset *set,
                     const struct table_format *f, const char *output)
{
    text_printf(stderr,
                "would write table %s as %s to %s from %lld records (%lld ok, %lld skipped, "
                "%lld failed)\n",
                def->listed.name, f->name, output ? output : "standard output", (long long)set->n,
                (long long)set->n_ok, (long long)set->n_skip, (long long)set->n_error);
}

/* ---- --explain: a cell of a page of `lacuna reproduce` -------------------------------------- */

struct cell_name {
    char file[64], row[200], column[200];
};

/* "PAPER:ITEM:ROW:COLUMN"; a column may hold more colons. */
static int split(const char *what, struct cell_name *n, struct err *err)
{
    const char *a = strchr(what, ':'), *b = a ? strchr(a + 1, ':') : NULL;
    const char *c = b ? strchr(b + 1, ':') : NULL;
    if (!c || b - what >= (long)sizeof n->file || c - b > (long)sizeof n->row ||
        strlen(c) > sizeof n->column)
        return err_set(err, ERR_USAGE,
                       "--explain %s: a cell is PAPER:ITEM:ROW:COLUMN, as in "
                       "spargeattn:9:HilbertCurve:Sparsity/video-dit",
                       what);
    snprintf(n->file, sizeof n->file, "%.*s-%.*s", (int)(a - what), what, (int)(b - a - 1), a + 1);
    snprintf(n->row, sizeof n->row, "%.*s", (int)(c - b - 1), b + 1);
    snprintf(n->column, sizeof n->column, "%s", c + 1);
    return 0;
}

static const char *text_of(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    return json_is_string(v) ? json_string_value(v) : "";
}

static json_t *find_cell(const json_t *page, const struct cell_name *n, struct err *err)
{
    struct names rows = {0}, columns = {0};
    bool has_row = false;
    size_t i;
    json_t *c;
    json_array_foreach(json_object_get(page, "cells"), i, c)
    {
        bool row = strcmp(text_of(c, "row"), n->row) == 0;
        if (row && strcmp(text_of(c, "column"), n->column) == 0)
            return c;
        has_row = has_row || row;
        if (!rows.n || strcmp(rows.items[rows.n - 1], text_of(c, "row")) != 0)
            names_add(&rows, text_of(c, "row"));
        if (row)
            names_add(&columns, text_of(c, "column"));
    }
    if (json_array_size(json_object_get(page, "cells")) == 0) {
        err_set(err, ERR_USAGE, "--explain: %s has no table, and so no cells",
                text_of(page, "title"));
        return NULL;
    }
    names_unknown(has_row ? &columns : &rows, has_row ? "column" : "row",
                  has_row ? n->column : n->row, err);
    return NULL;
}

static void put_list(struct buf *b, const char *head, const json_t *list)
{
    size_t i;
    json_t *v;
    buf_printf(b, "%s\n", head);
    json_array_foreach(list, i, v)
        buf_printf(b, "  %s\n", json_is_string(v) ? json_string_value(v) : "");
}

/* What the page's JSON has of the cell, and the commands that made the page. */
static void put_cell(const json_t *page, json_t *c, struct buf *b)
{
    const char *key;
    json_t *v;
    struct jw w;
    buf_printf(b, "%s, row %s, column %s\n", text_of(page, "title"), text_of(c, "row"),
               text_of(c, "column"));
    json_object_foreach(c, key, v)
    {
        if (strcmp(key, "row") == 0 || strcmp(key, "column") == 0 || json_is_null(v))
            continue;
        if (json_is_array(v)) {
            put_list(b, key, v);
            continue;
        }
        buf_printf(b, "%-10s %s", key, json_is_string(v) ? json_string_value(v) : "");
        jw_init(&w, b, 0);
        if (!json_is_string(v))
            jw_value(&w, v);
        buf_puts(b, "\n");
    }
    put_list(b,
             "commands of this page, in order (in DIR/jobs):", json_object_get(page, "commands"));
}

/* Value, formula, conditions, commands and the printed number of the cell that `what`
 * ("spargeattn:9:HilbertCurve:Sparsity/video-dit") names, from DIR/pages/ID.json. ERR_USAGE with
 * the labels that exist where there is no such cell. */
static int explain_print(const struct str_list *dirs, const char *what, bool json, struct err *err)
{
    struct cell_name n;
    OWN(buf_free) struct buf path = {0}, b = {0};
    struct jw w;
    OWN(json_decrefp) json_t *page = NULL;
    PASS_ON(split(what, &n, err));
    if (dirs->n != 1)
        return err_set(err, ERR_USAGE, "--explain wants one DIR, that of lacuna reproduce -o");
    buf_printf(&path, "%s/pages/%s.json", dirs->items[0], n.file);
    PASS_ON(buf_check(&path, "path", err));
    PASS_ON(json_read_file(buf_str(&path), (size_t)256 << 20, &page, err));
    json_t *cell = find_cell(page, &n, err);
    if (!cell)
        return err->code;
    if (json) {
        jw_init(&w, &b, 1);
        jw_value(&w, cell);
        buf_puts(&b, "\n");
    } else {
        put_cell(page, cell, &b);
    }
    PASS_ON(buf_check(&b, "explanation", err));
    fputs(buf_str(&b), stdout);
    return 0;
}

/* ---- the command ---------------------------------------------------------------------------- */

/* Neither a file of records that is given, nor one in a directory that is. */
static int check_output(const char *output, const struct str_list *dirs, struct err *err)
{
    const char *slash = output ? strrchr(output, '/') : NULL, *name = slash ? slash + 1 : output;
    for (int64_t i = 0; output && i < dirs->n; i++) {
        OWN(buf_free) struct buf inside = {0};
        buf_printf(&inside, "%s/%s", dirs->items[i], name);
        PASS_ON(refuse_input(output, dirs->items[i], err));
        if (fnmatch("records*.jsonl", name, 0) == 0)
            PASS_ON(refuse_input(output, buf_str(&inside), err));
    }
    return 0;
}

/* A table that does not fit the records: which ones do. */
static int name_fitting(const struct recset *set, struct err *err)
{
    OWN(buf_free) struct buf all = {0};
    for (const struct table_def *t = table_defs; t->build; t++)
        if (table_has_data(t, set))
            buf_printf(&all, "%s%s", all.len ? ", " : "", t->listed.name);
    struct err why = *err;
    err_clear(err);
    err_set(err, ERR_INPUT, "%s; tables that fit these records: %s", why.msg, buf_str(&all));
    return err->code;
}

static int run(const struct app *app, void *opts, struct str_list *dirs, struct err *err)
{
    struct analyze_opts *o = opts;
    OWN(str_list_free) struct str_list notes = {0};
    OWN(recset_free) struct recset set = {0};
    OWN(table_free) struct table t = {0};
    const struct table_def *def;
    const struct table_format *f;
    const char *unknown = NULL;
    if (o->explain)
        return explain_print(dirs, o->explain, o->common.json, err);
    if (o->table && !table_def_find(o->table, err))
        return err->code;
    PASS_ON(choose_format(o, &f, &unknown, err));
    PASS_ON(check_output(o->output, dirs, err));
    if (unknown)
        warn_suffix(o->output, unknown);
    PASS_ON(recset_load(dirs, &set, err));
    PASS_ON(model_apply(&set, &o->model, false, &notes, err));
    PASS_ON(recset_where(&o->where, &set, err));
    def = o->table       ? table_def_find(o->table, err)
          : o->model.gpu ? table_def_find("model", err)
                         : table_of_set(&set);
    if (!o->model.gpu && strcmp(def->listed.name, "model") == 0)
        return err_set(err, ERR_USAGE,
                       "--table model predicts for a GPU: add --gpu NAME (lacuna list gpus)");
    if ((o->at || o->by) && strcmp(def->listed.name, "ranking") != 0)
        return err_set(err, ERR_USAGE, "--at and --by are of another table: add --table ranking");
    if (o->common.dry_run) {
        say_plan(def, &set, f, o->output);
        return 0;
    }
    if (o->beside && !o->columns && !(o->columns = strdup(BESIDE)))
        return err_set(err, ERR_NOMEM, "--beside: out of memory");
    struct table_request req = {o->group, o->columns, o->pivot, o->at, o->by, 0};
    struct row_opts rows = {o->sort, o->best, o->top};
    int rc = table_build(def, &set, &req, &t, err);
    if (rc == ERR_INPUT && o->table && !table_has_data(def, &set))
        rc = name_fitting(&set, err);
    PASS_ON(rc);
    for (int64_t i = 0; i < o->where.n; i++)
        table_note(&t, "only records with %s", o->where.items[i]);
    for (int64_t i = 0; i < notes.n; i++)
        table_note(&t, "%s", notes.items[i]);
    PASS_ON(table_choose_rows(&t, &rows, err));
    return write_table(&t, f, o, err);
}

const struct command cmd_analyze = {
    .name = "analyze",
    .usage = "analyze DIR... [--table NAME] [--group KEYS] [--format text|md|csv|tex|json|html] "
             "[-o FILE]",
    .summary = "make tables from the records of replays",
    .run = run,
    .options = options,
    .size = sizeof(struct analyze_opts),
    .details =
        "DIR is the -o directory of `lacuna replay`, or a .jsonl file; several are read as one\n"
        "set. text, md, tex and html show medians and the worst cells of a few columns, and say\n"
        "below the table what they leave out. --wide shows every column with mean and standard\n"
        "deviation, or with median and quartiles where a mean with its deviation would leave\n"
        "the values that a metric can take. csv and json have all of mean, deviation, n,\n"
        "minimum, median and maximum. Every cell has the same weight. Cells that differ in\n"
        "model, length, token order, backend, precision or seed are never averaged unless\n"
        "--group asks for it.\n"
        "\n"
        "Examples:\n"
        "  lacuna analyze out\n"
        "  lacuna analyze out --table by-layer --format csv -o layers.csv\n"
        "  lacuna analyze out --group method,layer --columns density_elem,cra_min\n"
        "  lacuna analyze out --group method --pivot layer --columns cra_p1\n"
        "  lacuna analyze out --sort err_l1_rel --best method\n",
};
