/*
 * report_figures.c - the figures of a report: which ones the inputs allow, drawn as PNG files and
 * embedded in the page, each with the command that draws it.
 */
#include "report/report.h"

#include "analyze/format.h"
#include "analyze/group.h"
#include "core/fileio.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/pool.h"
#include "plots/figure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One figure of the report. */
struct item {
    const char *figure, *file; /* registry name; name of the files without suffix */
    const char *trace;         /* input beside the records; NULL: none */
    const char *layers, *heads, *metrics;
};

/* The command that draws the figure again. */
static void command_of(const struct report *r, const struct item *it, const struct figure *f,
                       struct buf *b)
{
    const char *const options[][2] = {
        {"--layers", it->layers}, {"--heads", it->heads}, {"--metrics", it->metrics}};
    buf_printf(b, "lacuna plot %s", it->figure);
    for (int64_t i = 0; f->input == FIGURE_RECORDS && i < r->records.n; i++) {
        buf_puts(b, " ");
        shell_word(r->records.items[i], b);
    }
    if (f->input == FIGURE_TRACE) {
        buf_puts(b, " ");
        shell_word(it->trace, b);
    }
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (options[i][1]) {
            buf_printf(b, " %s ", options[i][0]);
            shell_word(options[i][1], b);
        }
    buf_printf(b, " -o %s.png", it->file);
}

/* The first paragraph of the text beside the picture: what is drawn, every line and colour. */
static int read_caption(const char *path, struct buf *caption, struct err *err)
{
    OWN(buf_free) struct buf text = {0}, beside = {0};
    buf_put(&beside, path, strlen(path) - strlen(".png"));
    buf_puts(&beside, ".txt");
    PASS_ON(buf_check(&beside, "path", err));
    PASS_ON(buf_read_file(&text, beside.data, 1 << 20, err));
    buf_put(caption, text.data, strcspn(buf_str(&text), "\n"));
    return buf_check(caption, "caption", err);
}

static int embed(struct report *r, const char *path, const struct item *it, const char *summary,
                 const char *command, struct err *err)
{
    OWN(buf_free) struct buf png = {0}, caption = {0};
    PASS_ON(read_caption(path, &caption, err));
    PASS_ON(buf_read_file(&png, path, 64 << 20, err));
    buf_printf(&r->pictures, "<figure id=\"figure-%s\"><img alt=\"", it->file);
    html_text(summary, &r->pictures);
    buf_puts(&r->pictures, "\" src=\"data:image/png;base64,");
    base64(png.data, png.len, &r->pictures);
    buf_puts(&r->pictures, "\">\n<figcaption>");
    html_text(buf_str(&caption), &r->pictures);
    buf_puts(&r->pictures, "<br><code>");
    html_text(command, &r->pictures);
    buf_printf(&r->pictures,
               "</code><span class=\"files\"><br>files: <a href=\"figures/%s.png\">png</a> "
               "<a href=\"figures/%s.gp\">gnuplot script</a></span></figcaption></figure>\n",
               it->file, it->file);
    return 0;
}

/* A figure that the data do not allow leaves a sentence; only real failures end the report. */
static int excuse(struct report *r, const struct item *it, const char *command, int rc,
                  struct err *err)
{
    if (rc != ERR_INPUT && rc != ERR_USAGE && rc != ERR_MACHINE)
        return rc;
    r->no_gnuplot |= rc == ERR_MACHINE;
    log_warn("figure %s: %s", it->file, err->msg);
    buf_puts(&r->pictures, "<p class=\"notes\">Not drawn: <code>");
    html_text(command, &r->pictures);
    buf_puts(&r->pictures, "</code>: ");
    html_text(err->msg, &r->pictures);
    buf_puts(&r->pictures, "</p>\n");
    err_clear(err);
    return 0;
}

/* Everything the report is made from: no figure of it may overwrite what a later one reads. */
static void list_inputs(const struct report *r, struct str_list *all)
{
    const struct str_list *const lists[] = {&r->records, &r->traces, &r->masks};
    for (int k = 0; k < 3; k++)
        for (int64_t i = 0; i < lists[k]->n; i++)
            str_list_add(all, lists[k]->items[i]);
}

static struct figure_args args_of(const struct report *r, const struct item *it)
{
    return (struct figure_args){.set = &r->set,
                                .methods = r->app->methods,
                                .layers = it->layers,
                                .heads = it->heads,
                                .metrics = it->metrics,
                                .low = NAN,
                                .high = NAN};
}

static int draw(struct report *r, const struct item *it, struct err *err)
{
    const struct figure *f = figure_find(it->figure, err);
    struct trace *trace = NULL;
    struct str_list inputs = {0};
    struct buf path = {0}, command = {0};
    int rc = 0;
    if (interrupted())
        return err_set(err, ERR_INTERRUPTED, "interrupted");
    list_inputs(r, &inputs);
    command_of(r, it, f, &command);
    buf_printf(&path, "%s/figures/%s.png", r->dir, it->file);
    TRY(buf_check(&path, "path", err));
    if (it->trace)
        TRY(trace_open(it->trace, &trace, err));
    struct figure_args a = args_of(r, it);
    a.output = buf_str(&path);
    a.made_by = buf_str(&command);
    a.inputs = &inputs;
    a.trace = trace;
    TRY(figure_draw(f, &a, err));
    TRY(embed(r, buf_str(&path), it, f->listed.summary, buf_str(&command), err));
    r->n_figures++;
out:
    if (rc)
        rc = excuse(r, it, buf_str(&command), rc, err);
    trace_close(&trace);
    str_list_free(&inputs);
    buf_free(&path);
    buf_free(&command);
    return rc;
}

static bool has_metric(const struct report *r, const char *patterns)
{
    struct lists_met met = {0};
    for (int64_t i = 0; i < r->set.n; i++)
        if (r->set.r[i].status == RECORD_OK && list_is_new(&met, &r->set.r[i]))
            for (int64_t k = 0; k < record_metrics(&r->set.r[i]); k++)
                if (name_matches(patterns, record_metric_name(&r->set.r[i], k)))
                    return true;
    return false;
}

static int draw_records(struct report *r, struct err *err)
{
    static const struct {
        struct item item;
        const char *needs; /* metric without which the figure is left out */
    } list[] = {
        {{.figure = "pareto", .file = "pareto"}, "err_l1_rel,cra_mean,cra_p1"},
        {{.figure = "bars", .file = "bars-density", .metrics = "density_elem"}, "density_elem"},
        {{.figure = "layerhead", .file = "layerhead-density", .metrics = "density_elem"},
         "density_elem"},
        {{.figure = "layerhead", .file = "layerhead-recall", .metrics = "cra_min"}, "cra_min"},
        {{.figure = "cdf", .file = "cdf-recall", .metrics = "cra_min"}, "cra_min"},
        {{.figure = "curves", .file = "curves-density", .metrics = "density_elem"}, "density_elem"},
        {{.figure = "curves", .file = "curves-error", .metrics = "err_l1_rel"}, "err_l1_rel"},
        {{.figure = "stability", .file = "stability"}, "mask_iou"},
        {{.figure = "granularity", .file = "granularity"}, "below_b64"},
        {{.figure = "phases", .file = "phases"}, "time_*_ns,host_*_ns"},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (has_metric(r, list[i].needs))
            PASS_ON(draw(r, &list[i].item, err));
    return 0;
}

/* ---- maps ---------------------------------------------------------------------------------- */

#define MAPS_DRAWN 48 /* at most, by choose_layers and its caller */

/* Layers for a heatmap: all when the panels stay few, else the first, two in between, the last. */
static void choose_layers(const struct trace_meta *m, char text[64])
{
    int n = m->layers;
    if ((int64_t)n * m->heads <= 48)
        snprintf(text, 64, "all");
    else
        snprintf(text, 64, "0,%d,%d,%d", n / 3, 2 * n / 3, n - 1);
}

/* Maps that the trace holds are drawn, and those that a few seconds compute from q and k. */
static bool has_maps(const struct trace *t)
{
    struct row_sample sample;
    return trace_meta(t)->pool > 0 || (!trace_rows(t, &sample) && shots_are_cheap(t, MAPS_DRAWN));
}

static int draw_heatmap(struct report *r, int64_t i, struct err *err)
{
    struct trace *t = NULL;
    struct row_sample sample;
    char layers[64], heads[32], file[32];
    int rc = trace_open(r->traces.items[i], &t, err);
    if (rc) {
        log_warn("%s: not used for figures: %s", r->traces.items[i], err->msg);
        err_clear(err);
        return 0;
    }
    const struct trace_meta *m = trace_meta(t);
    choose_layers(m, layers);
    snprintf(heads, sizeof heads, m->heads > 12 ? "0-11" : "all");
    snprintf(file, sizeof file, "heatmap-%lld", (long long)i);
    if (!has_maps(t))
        log_warn("%s: no heat map of it: it holds no maps, and %s", r->traces.items[i],
                 trace_rows(t, &sample) ? "a sample of query rows has none"
                                        : "`lacuna trace map` computes those of so long a trace");
    else
        rc = draw(r,
                  &(struct item){.figure = "heatmap",
                                 .file = file,
                                 .trace = r->traces.items[i],
                                 .layers = layers,
                                 .heads = heads},
                  err);
    trace_close(&t);
    return rc;
}

int report_figures(struct report *r, struct err *err)
{
    OWN(buf_free) struct buf path = {0};
    if (!r->figures)
        return 0;
    buf_printf(&path, "%s/figures", r->dir);
    PASS_ON(buf_check(&path, "path", err));
    PASS_ON(make_dirs(buf_str(&path), err));
    buf_puts(&r->pictures, "<h2 id=\"figures\">Figures</h2>\n");
    PASS_ON(draw_records(r, err));
    for (int64_t i = 0; i < r->traces.n; i++)
        PASS_ON(draw_heatmap(r, i, err));
    return 0;
}
