/*
 * cmd_plot.c - `lacuna plot`: records, traces and masks to figures.
 */
#include "analyze/model.h"
#include "analyze/group.h"
#include "analyze/inputs.h"
#include "analyze/query.h"
#include "core/cmd.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/text.h"
#include "plots/figure.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct plot_opts {
    struct common_opts common;
    struct figure_args a;
    char *size, *range, *masks, *width;
    struct str_list where;
    struct model_request model;
};

static const char *const style_names[] = {"screen", "paper", "slide", NULL}; /* enum gp_look */
static const char *const map_names[] = {"auto", "computed", "stored", NULL}; /* enum map_source */

/* clang-format off */
#define ROW(key, kind, field, ...) OPT_AS(key, kind, struct plot_opts, field, NULL, __VA_ARGS__)
#define TEXT(key, what, text) ROW(#key, OPT_STR, a.key, .arg = what, .help = text)
static const struct opt options[] = {
    ROW("output", OPT_STR, a.output, .short_name = 'o', .arg = "FILE", .flags = OPT_REQUIRED,
        .help = "Figure to write or replace: .png, .svg, .pdf, .eps or .tex (cairolatex: fig.tex for "
                "\\input, and fig.pdf); script, data and caption (fig.txt) are kept beside it."),
    TEXT(layers, "LIST", "Layers: 0,4-7 or all."),
    TEXT(heads, "LIST", "Query heads: 0,4-7 or all."),
    TEXT(steps, "LIST", "Denoising steps: 0,4-7 or all; maps take one, the first captured one unless given."),
    TEXT(branch, "NAME", "Guidance branch; maps take the first captured one."),
    TEXT(method, "NAMES", "Only these methods (shell patterns, comma-separated)."),
    TEXT(params, "PATTERN", "Only parameters (canonical text) that match this shell pattern; defaults: none set."),
    ROW("where", OPT_LIST, where, .short_name = 'w', .arg = "CONDITION", .help = WHERE_HELP),
    MODEL_OPTS(struct plot_opts),
    TEXT(metrics, "LIST", "What is drawn; several, comma-separated, where the figure has a panel for each."),
    TEXT(against, "METHOD[:PARAMS]", "Draw the difference to this method."),
    TEXT(x, "NAME", "What is on the x axis: a key, parameter or metric."),
    TEXT(y, "NAME", "What is on the y axis: another parameter."),
    TEXT(marks, "NAME=X:Y,...", "Points from elsewhere, such as printed ones, in grey; x and y as the axes count."),
    OPT_STR(struct plot_opts, masks, NULL, "M.h5", "The file of `lacuna replay --dump-masks`."),
    OPT_AS("mean", OPT_BOOL, struct plot_opts, a.mean, "0", .help = "Maps: mean weight of a cell instead of the largest."),
    OPT_STR(struct plot_opts, range, NULL, "LOW:HIGH", "Colour range."),
    TEXT(tokens, "MODEL",
         "Texts of tokens on the axes of a part of at most 96 queries and keys, by the tokenizer of this checkpoint."),
    OPT_AS("frame", OPT_INT, struct plot_opts, a.frame, "0", .arg = "TOKENS", .max = 1e9,
           .help = "Tokens of a video's frame, for lines between frames (of a trace they are known)."),
    TEXT(title, "TEXT", "Title in place of the figure's own."),
    TEXT(rows, "A-B", "Maps: only these queries."),
    TEXT(keys, "A-B", "Maps: only these keys."),
    OPT_AS("map", OPT_ENUM, struct plot_opts, a.map, "auto", .values = map_names,
           .help = "Maps: computed from q and k in the picture's cells, or as stored with the trace."),
    OPT_AS("style", OPT_ENUM, struct plot_opts, a.style.look, "screen", .values = style_names,
           .help = "paper: 8 pt, 3.3 inches wide, no title; slide: 18 pt, 10 inches."),
    OPT_STR(struct plot_opts, width, NULL, "LENGTH", "Such as 3.3in, 6.9in, 17cm; the height follows."),
    ROW("font", OPT_STR, a.style.font, .arg = "NAME", .help = "Such as Sans, Serif, Times New Roman."),
    ROW("font-size", OPT_NUM, a.style.font_pt, .arg = "PT", .min = 4, .max = 72, .unit = "pt",
        .help = "Size of the letters; all else keeps its proportion to them."),
    OPT_STR(struct plot_opts, size, NULL, "WxH", "Pixels (of a PDF 1/100 inch)."),
    COMMON_OPTS,
    {0},
};
/* clang-format on */

static int parse_size(const char *text, double per_unit, struct figure_args *a, struct err *err)
{
    long w = 0, h = 0;
    int n = 0;
    if (sscanf(text, "%ldx%ld%n", &w, &h, &n) != 2 || text[n] || w < 64 || h < 64 || w > 16384 ||
        h > 16384)
        return err_set(err, ERR_USAGE,
                       "--size %s: expected WIDTHxHEIGHT, each 64 to 16384, such as 1200x800",
                       text);
    a->width = (int)lround((double)w / per_unit);
    a->height = (int)lround((double)h / per_unit);
    return 0;
}

static int parse_width(const char *text, double units_per_inch, struct figure_args *a,
                       struct err *err)
{
    static const struct {
        const char *name;
        double inches;
    } units[] = {{"in", 1}, {"cm", 1 / 2.54}, {"mm", 1 / 25.4}, {"pt", 1 / 72.27}};
    const char *end;
    double x;
    bool is_number = num_read(text, &x, &end);
    for (size_t i = 0; is_number && i < sizeof units / sizeof *units; i++)
        if (strcmp(end, units[i].name) == 0 && x * units[i].inches >= 1 &&
            x * units[i].inches <= 100) {
            a->width = (int)lround(x * units[i].inches * units_per_inch);
            return 0;
        }
    return err_set(err, ERR_USAGE, "--width %s: expected 1 to 100 inches, such as 3.3in, 17cm",
                   text);
}

static int fill_style(struct plot_opts *o, enum gp_type type, struct err *err)
{
    struct figure_args *a = &o->a;
    double inch = gp_units_per_inch(type, &a->style);
    bool screen = a->style.look == LOOK_SCREEN, vector = type != GP_PNG && type != GP_SVG;
    a->untitled = !screen;
    if (o->size && o->width)
        return err_set(err, ERR_USAGE,
                       "--size and --width both say how wide the figure is: give one");
    if (o->size)
        return parse_size(o->size, vector ? 100 / inch : gp_pixels_per_unit(type, &a->style), a,
                          err);
    else if (o->width || !screen)
        return parse_width(o->width                      ? o->width
                           : a->style.look == LOOK_PAPER ? "3.3in"
                                                         : "10in",
                           inch, a, err);
    return 0;
}

static int parse_range(const char *text, struct figure_args *a, struct err *err)
{
    const char *end;
    if (num_read(text, &a->low, &end) && *end == ':' && num_fills(end + 1, &a->high) &&
        a->low < a->high)
        return 0;
    return err_set(err, ERR_USAGE, "--range %s: expected LOW:HIGH with LOW < HIGH, such as 1e-6:1",
                   text);
}

static int fill_args(struct plot_opts *o, struct err *err)
{
    enum gp_type type;
    o->a.jobs = cmd_jobs(&o->common);
    o->a.low = o->a.high = NAN;
    PASS_ON(gp_check_name(o->a.output, &type, err));
    PASS_ON(fill_style(o, type, err));
    if (o->range)
        return parse_range(o->range, &o->a, err);
    return 0;
}

/* An option that only other figures read would change nothing and say nothing. */
static int check_uses(const struct figure *f, const struct plot_opts *o, struct err *err)
{
    bool same;
    for (const struct opt *p = options; p->name; p++) {
        bool of_some = false;
        for (const struct figure *any = figures; any->listed.name; any++)
            of_some |= name_matches(any->uses, p->name);
        if (!of_some || name_matches(f->uses, p->name) || opt_is_unset(p, o))
            continue;
        PASS_ON(opt_is_default(p, o, &same, err));
        if (!same)
            return err_set(err, ERR_USAGE, "--%s changes nothing in the figure %s, which reads %s",
                           p->name, f->listed.name,
                           f->uses[0] ? f->uses : "none of the options of some figures");
    }
    if (o->a.metrics && strchr(o->a.metrics, ',') && !(f->flags & FIGURE_SEVERAL))
        return err_set(err, ERR_USAGE, "--metrics %s: figure %s shows one metric", o->a.metrics,
                       f->listed.name);
    return 0;
}

struct inputs {
    struct recset set;
    struct trace *traces[FIGURE_TRACES];
    int n_traces;
    struct maskfile *masks;
};

/* How many files a figure that is not of records may have. */
static int check_count(const struct figure *f, int64_t n, struct err *err)
{
    static const char *const what[] = {[FIGURE_TRACE] = "trace",
                                       [FIGURE_MASKS] = "file of masks",
                                       [FIGURE_PICTURES] = "strip of frames"};
    int most = f->several ? FIGURE_TRACES : 1;
    if (n >= 1 && n <= most)
        return 0;
    return err_set(err, ERR_USAGE, "figure %s takes one%s %s%s, %lld given", f->listed.name,
                   most > 1 ? " to 4" : "", what[f->input], most > 1 ? "s" : "", (long long)n);
}

static int open_inputs(const struct figure *f, const struct plot_opts *o,
                       const struct str_list *paths, struct inputs *in, struct err *err)
{
    const char *masks = f->needs_masks ? o->masks : paths->n ? paths->items[0] : NULL;
    int rc = 0;
    if (f->input == FIGURE_RECORDS) {
        TRY(recset_load(paths, &in->set, err));
        TRY(model_apply(&in->set, &o->model, false, NULL, err));
        TRY(recset_where(&o->where, &in->set, err));
        goto out;
    }
    if (o->model.gpu)
        FAIL(err, ERR_USAGE, "figure %s draws no records, so --gpu predicts nothing here",
             f->listed.name);
    if (o->where.n)
        FAIL(err, ERR_USAGE, "figure %s draws no records, so --where chooses nothing here",
             f->listed.name);
    TRY(check_count(f, paths->n, err));
    if (f->needs_masks && !masks)
        FAIL(err, ERR_USAGE, "figure %s needs --masks, the file of `lacuna replay --dump-masks`",
             f->listed.name);
    for (int64_t i = 0; f->input == FIGURE_TRACE && i < paths->n; i++) {
        TRY(input_check(paths->items[i], WANT_TRACE, err));
        TRY(trace_open(paths->items[i], &in->traces[i], err));
        in->n_traces++;
    }
    if (f->input == FIGURE_MASKS || f->needs_masks) {
        TRY(input_check(masks, WANT_MASKS, err));
        TRY(maskfile_open(masks, &in->masks, err));
    }
out:
    if (rc == ERR_INPUT)
        err_prefix(err, "figure %s", f->listed.name);
    return rc;
}

static void close_inputs(struct inputs *in)
{
    recset_free(&in->set);
    for (int i = 0; i < in->n_traces; i++)
        trace_close(&in->traces[i]);
    maskfile_close(&in->masks);
}

static void command_line(const struct app *app, struct buf *b)
{
    buf_puts(b, "lacuna");
    for (int i = 1; i < app->argc; i++) {
        buf_puts(b, " ");
        shell_word(app->argv[i], b);
    }
}

static int print_json(const struct figure *f, const char *output, struct err *err)
{
    OWN(buf_free) struct buf b = {0};
    struct jw w;
    jw_init(&w, &b, 0);
    jw_row(&w, JW_STR("figure", f->listed.name), JW_STR("output", output));
    PASS_ON(buf_check(&b, "JSON", err));
    if (printf("%s\n", buf_str(&b)) < 0)
        return err_sys(err, ERR_IO, "standard output");
    return 0;
}

static int run(const struct app *app, void *opts, struct str_list *rest, struct err *err)
{
    struct plot_opts *o = opts;
    OWN(str_list_free) struct str_list paths = {0};
    OWN(close_inputs) struct inputs in = {0};
    struct figure_args *a = &o->a;
    OWN(buf_free) struct buf made_by = {0};
    const struct figure *f;
    if (rest->n == 0)
        return err_set(err, ERR_USAGE, "no figure named; `lacuna list figures` lists them");
    f = figure_find(rest->items[0], err);
    if (!f)
        return err->code;
    for (int64_t i = 1; i < rest->n; i++)
        str_list_add(&paths, rest->items[i]);
    PASS_ON(check_uses(f, o, err));
    PASS_ON(fill_args(o, err));
    PASS_ON(open_inputs(f, o, &paths, &in, err));
    if (o->common.dry_run) {
        text_printf(stderr, "would draw %s to %s\n", f->listed.name, a->output);
        return 0;
    }
    command_line(app, &made_by);
    a->made_by = buf_str(&made_by);
    if (o->masks)
        str_list_add(&paths, o->masks);
    a->inputs = &paths;
    a->methods = app->methods;
    a->app = app;
    a->set = &in.set;
    a->trace = in.traces[0];
    a->traces = in.traces;
    a->n_traces = in.n_traces;
    a->masks = in.masks;
    PASS_ON(figure_draw(f, a, err));
    log_info("%s", a->output);
    if (o->common.json)
        PASS_ON(print_json(f, a->output, err));
    return 0;
}

const struct command cmd_plot = {
    .name = "plot",
    .usage = "plot FIGURE DIR|T.h5... -o FILE.png|svg|pdf|eps|tex [--layers LIST] [--heads LIST] "
             "[--metrics LIST]",
    .summary = "draw a figure with gnuplot",
    .run = run,
    .options = options,
    .size = sizeof(struct plot_opts),
    .details =
        "`lacuna list figures -v` says of every figure what it takes and which of these options "
        "it\n"
        "reads; `lacuna plot FIGURE` refuses the others. Beside\n"
        "fig.png stand fig.gp and its data: `gnuplot fig.gp` there draws the same picture, to be\n"
        "restyled at will; and fig.txt, a caption. Needs gnuplot (package gnuplot-nox).\n"
        "\n"
        "Examples:\n"
        "  lacuna plot heatmap t.h5 --layers 5 -o maps.png\n"
        "  lacuna plot heatmap t.h5 --layers 5 --heads 0 --rows 1000-1400 --keys 0-1400 -o "
        "zoom.pdf\n"
        "  lacuna plot pareto out --style paper --width 6.9in -o pareto.pdf\n"
        "  lacuna plot overlay t.h5 --masks m.h5 --layers 5 --heads 0 -o overlay.png\n"
        "  lacuna plot layerhead out --metrics cra_min --method 'sale,spargeattn' -o recall.png\n"
        "  lacuna plot curves out --method sale --x tau --metrics cra_mean -o tau.pdf\n"
        "  lacuna plot sweep out --method sampleattention --x alpha_c --y alpha_s -o grid.png\n",
};
