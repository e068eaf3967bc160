/* Charts of records: what they average over, what they leave out, and that nothing drawn can be
 * mistaken for something else. The tests read the data, the script and the caption beside the
 * picture. */
#include "tests/harness/drawn.h"
#include "plots/chart.h"
#include "plots/series.h"

#include <stdlib.h>

FIXTURE(begin, end)

/* Records that several cases draw. */
#define SPARGE "spargeattn time_select_ns=3e3 time_attend_ns=9e3 time_total_ns=12e3;"
#define CLIP(method, tokens, pixels, attn, speedup)                                                \
    method " task=video:size=1x8x" pixels ":steps=50:text=ab n=" tokens " time_attn_ns=" attn      \
           " time_product_ns=2e6 time_other_ns=1e6 generation_speedup=" speedup ";"
#define VIDEO                                                                                      \
    "sale layer=0..1 step=0..1 head=0..1 density_elem=.5+.01i cra_min=0+.1i err_l1_rel=.1;"
/* The schedule runs layer 0 and step 0 dense, the rest with a mask. */
#define SCHEDULED                                                                                  \
    "radial head=0..1 step=0..1 density_elem=1 dense_call=1 cra_min=1 err_l1_rel=0;"               \
    "radial layer=1 head=0..1 step=0 density_elem=1 dense_call=1 cra_min=1 err_l1_rel=0;"          \
    "radial layer=1 head=0..1 step=1 density_elem=.25 dense_call=0 cra_min=.75 err_l1_rel=.1;"
#define ROUNDING(precision, error)                                                                 \
    "dense precision=" precision " density_elem=1 err_l1_rel=0;"                                   \
    "minference precision=" precision " density_elem=1 err_l1_rel=" error ";"                      \
    "sale precision=" precision " density_elem=.5 err_l1_rel=.002;"
#define LENGTHS                                                                                    \
    "sale trace=a n=8192 density_elem=.5; sale layer=1 trace=b n=16384 density_elem=.5;"           \
    "sale layer=2 trace=c n=32768 density_elem=.5;"
#define TASK(tokens) "streaming task=kv:domain=c:tokens=" tokens ":depth=0:sample=0 density_elem=.2"
#define WHISKERS "streaming:window=# copy=1..8 head=0..1 density_elem=.2+.01i"
/* Twelve settings of three methods: more than a panel holds. */
#define MANY                                                                                       \
    "sale:tau=0.# copy=1..4 layer=0..1 density_elem=.1+.1i cra_min=0+.05i;"                        \
    "spargeattn:tau=0.# copy=1..4 layer=0..1 density_elem=.1+.1i cra_min=.1+.05i;"                 \
    "streaming:alpha=0.# copy=1..4 layer=0..1 density_elem=.1+.1i cra_min=.2+.05i;"
#define SWEPT                                                                                      \
    "sampleattention:alpha_c=0.5:alpha_s=0.5 density_elem=.1;"                                     \
    "sampleattention:alpha_c=0.5:alpha_s=0.5 head=1 density_elem=.3;"                              \
    "sampleattention:alpha_c=0.9:alpha_s=0.5 density_elem=.4;"                                     \
    "sampleattention:alpha_c=0.9 density_elem=.6;"
#define BARS                                                                                       \
    "sale density_elem=.1; sale head=1 density_elem=.3; sale layer=1 head=0..1 density_elem=.999"
#define SPREAD " sparsity_total=0+.1i"
#define MAP ":pv=20:pv_scope=warp:map_dtype=input:cdf_dtype=bf16"

static const struct drawn drawn[] = {
    /* phases; data: position, 1 = selection missing, then running sums */
    {"a method whose selection was not measured is hatched", "oracle time_attend_ns=20e3;" SPARGE,
     "phases",
     .texts = {"# oracle\n0 1 0 0 20\n", "# spargeattn\n1 0 0 3 12\n",
               "attend; selection not measured", "fs pattern"}},
    {"where all selections were measured nothing is hatched", /* dense has a total, no selection */
     "dense time_attend_ns=4e4 time_total_ns=4e4;" SPARGE, "phases",
     .texts = {"!attend; selection not measured", "!pattern"}},
    {"a method without times is no empty bar", SPARGE "sale density_elem=.5", "phases",
     .texts = {"!sale", "1 setting without times left out"}},
    {"the kind of times is that of the chosen methods", SPARGE "sale host_attend_ns=4e6", "phases",
     .a = {.method = "sale"},
     .texts = {"wall time of the CPU reference", "# sale\n0 0 0 0 4\n", "time [ms]"}},
    {"short times are in microseconds on few tics",
     "spargeattn time_select_ns=1e3 time_attend_ns=2.8e3 time_total_ns=3.8e3", "phases",
     .texts = {"# spargeattn\n0 0 0 1 3.8\n", "time [µs]", "set xtics 1 nomirror\n"}},
    {"parts of a clip's step are stacked by size",
     CLIP("dense", "384", "3072", "3e6", "1") CLIP("dense", "768", "6144", "12e6", "1"), "phases",
     .texts = {"tokens=384: dense\n0 0 3 5 6\n", "tokens=768: dense\n1 0 12 14 15\n",
               "Mean time of a denoising step, measured on the GPU", "'linear'"}},
    {"bars of whole models have no layer",
     CLIP("dense", "384", "3072", "3e6", "1") CLIP("radial", "384", "3072", "1.5e6", "1.5"), "bars",
     .a = {.metrics = "generation_speedup"},
     .texts = {"-1 1.5 1.5 1.5\n", "Speed-up of a generation, median over", "!'layer",
               "unset xtics"}},
    /* what is averaged */
    {"a cdf says what varies beside the head", VIDEO, "cdf",
     .texts = {"share of heads of 2 layers and 2 steps at or below a value",
               "share of heads of calls"}},
    {"pareto says what varies beside the head", VIDEO, "pareto",
     .texts = {"; mean over heads of 2 layers and 2 steps."}},
    {"bars say what varies beside the head", VIDEO, "bars",
     .texts = {"Pairs kept by layer, median over heads of 2 steps."}},
    {"curves say what varies beside the head", VIDEO, "curves",
     .texts = {"Pairs kept against denoising step, mean over heads of 2 layers."}},
    {"one step does not vary", VIDEO, "bars", .a = {.steps = "0"}, .texts = {"median over heads."}},
    {"groups over different numbers say up to",
     VIDEO "streaming layer=0..1 step=0 density_elem=.5 err_l1_rel=.1", "pareto",
     .texts = {"; mean over heads of 2 layers and up to 2 steps."}},
    {"pareto leaves out calls run dense by schedule", SCHEDULED, "pareto",
     .texts = {"\n0.25 0.1 0 ", "'radial (sparse calls)'"}},
    {"bars leave out calls run dense by schedule", SCHEDULED, "bars",
     .texts = {" 1 0.25 0.25 0.25\n", "! 0 1 1 1\n", "'radial (sparse calls)'"}},
    {"a cdf leaves out calls run dense by schedule", SCHEDULED, "cdf",
     .texts = {"\n0.75 0\n0.75 1\n", "'radial (sparse calls)'"}},
    {"calls that all ran dense are drawn as they are", SCHEDULED, "cdf", .a = {.layers = "0"},
     .texts = {"\n1 0\n1 1\n", "!sparse calls"}},
    {"against the step a schedule is seen", SCHEDULED, "curves",
     .texts = {"\n0 1 0\n1 0.625 ", "!sparse calls"}},
    /* pareto: what is rounding stands on the lower edge, and is not dominated by dense */
    {"rounding of f64 is an error of zero", ROUNDING("f64", "3.9e-17"), "pareto",
     .a = {.metrics = "err_l1_rel"}, .texts = {"\n1 0.001 0 3.9e-17 ", "set yrange [0.001:"}},
    {"rounding of f32 is an error of zero", ROUNDING("f32", "3e-8"), "pareto",
     .a = {.metrics = "err_l1_rel"}, .texts = {"\n1 0.001 0 3e-08 ", "set yrange [0.001:"}},
    {"what f32 rounds is an error in f64", ROUNDING("f64", "3e-8"), "pareto",
     .a = {.metrics = "err_l1_rel"}, .texts = {"\n1 3e-08 1 3e-08 ", "set yrange [1e-08:"}},
    {"a default metric that no record has gets no panel", "sale density_elem=.5 err_l1_rel=.002",
     "pareto", .texts = {"relative L1 error", "!attention mass"}},
    {"a chosen metric that no record has is refused", "sale density_elem=.5 err_l1_rel=.002",
     "pareto", .a = {.metrics = "err_l1_rel,cra_mean"}, .texts = {"metric 'cra_mean'"},
     .fails = ERR_USAGE},
    {"texts without the metric are not counted",
     "sale task=x trace=a density_elem=.5 nll_delta=.1;"
     "sale task=x trace=b density_elem=.5 nll_delta=.1; sale task=x trace=c density_elem=.5 "
     "score=1",
     "pareto", .a = {.metrics = "nll_delta"}, .texts = {"mean over 2 texts or prompts."}},
    {"a metric without a better direction dominates nobody", /* such as a number of pairs */
     "sale density_elem=.5 pairs_allowed=10; minference density_elem=.6 pairs_allowed=20", "pareto",
     .a = {.metrics = "pairs_allowed"}, .texts = {"\n0.6 20 0 20 ", "!'ideal'"}},
    {"times are drawn in the unit of their axis", "sale density_elem=.5 time_total_ns=2e6",
     "pareto", .a = {.metrics = "time_total_ns"},
     .texts = {"\n0.5 2 0 2 ", "'time of the whole call [ms]'"}},
    /* streaming is worse in both than the second sale; the oracle would be better than both sales.
     * Columns: density, value, dominated. */
    {"dominated settings are hollow and oracles dominate nobody", NULL, "pareto",
     .a = {.metrics = "err_l1_rel"}, .texts = {"0.315 0.3 1 ", "0.265 0.1 0 ", "0.515 0.02 0 "}},
    {"no record of the method is left", NULL, "bars", .a = {.method = "nobody"},
     .texts = {"is left to draw"}, .fails = ERR_INPUT},
    {"skipped cells are no data", NULL, "pareto", .a = {.method = "radial"},
     .texts = {"is left to draw"}, .fails = ERR_INPUT},
    /* curves */
    {"a sweep takes the default from the method", NULL, "curves",
     .a = {.x = "tau", .metrics = "err_l1_rel"},
     .texts = {"\n0.004 0.02 0\n0.02 0.1 0\n", "!streaming"}},
    {"a parameter of no method is no axis", NULL, "curves",
     .a = {.x = "no_such", .metrics = "err_l1_rel"}, .texts = {"no_such"}, .fails = ERR_INPUT},
    {"the axis is what varies", "streaming:sink=4:window=# copy=64..65 layer=0..1 density_elem=.2",
     "curves", .texts = {"Pairs kept against window"}},
    {"the axis is the parameter of which most values occur",
     "spargeattn layer=0..1 density_elem=.2; spargeattn:judge=0 layer=0..1 density_elem=.2;"
     "spargeattn:theta=-1:tau=0.#:pv=20 copy=5..7 layer=0..1 density_elem=.2",
     "curves", .texts = {"Pairs kept against tau"}},
    {"a parameter that no method varies is no axis",
     "streaming:sink=4 layer=0..1 density_elem=.2; sale:tau=0.02 layer=0..1 density_elem=.2",
     "curves", .texts = {"Pairs kept against layer"}},
    {"a step that was chosen is no axis", VIDEO, "curves", .a = {.steps = "1"},
     .texts = {"Pairs kept against layer"}},
    /* axes */
    {"tics of counts are whole", "sale layer=0..19 density_elem=.5", "curves",
     .texts = {"set xtics 2 nomirror\n"}},
    {"tics of lengths double and fit the page", LENGTHS, "curves", .a = {.x = "n_q", .width = 400},
     .texts = {"set logscale x 2\n", "set xtics ('8K' 8192, '16K' 16384, '32K' 32768)\n"}},
    {"marks from elsewhere are open and named, and the axis has room for them", LENGTHS, "curves",
     .a = {.x = "n_q", .marks = "printed (M)=32768:0.25,1048576:0.75"},
     .texts = {"# printed (M): x, y\n32768 0.25\n1048576 0.75\n",
               "index 1 using ($1-0):2 with points pt 64", "title 'printed (M)'", "'1M' 1048576",
               "Grey marks: printed (M)."}},
    {"marks stand where no bar is and do not hide numbers", "sale layer=0..2" SPREAD, "means",
     .a = {.x = "layer", .marks = "printed (M)=0:0.5,7:0.9"},
     .texts = {"index 1 using ($1-0):2 with points pt 64", "set xrange [-0.6:7.6]",
               "using 1:(0):3 with labels"}},
    {"without marks numbers stand at the bars", "sale layer=0..2" SPREAD, "means",
     .a = {.x = "layer"}, .texts = {"!pt 64", "using 1:2:3 with labels"}},
    /* size */
    {"a size that drops names is refused with one that does not",
     "streaming:window=# copy=1..8 density_elem=.2", "bars", .a = {.width = 700, .height = 200},
     .texts = {"too small for this figure (700x223 would do)"}, .fails = ERR_USAGE},
    {"the size that would do does", "streaming:window=# copy=1..8 density_elem=.2", "bars",
     .a = {.width = 700, .height = 223}, .texts = {"'streaming window=8'"}},
    {"a size of other width and height is named", "streaming:window=# copy=1..8 density_elem=.2",
     "bars", .a = {.width = 150, .height = 223}, .texts = {"331x261 would do"}, .fails = ERR_USAGE},
    /* groups */
    {"speed-ups of two lengths are two points of a line",
     TASK("1024") " attn_speedup=2 answer_p=.75;" TASK("2048") " attn_speedup=4 answer_p=.5",
     "curves", .a = {.x = "attn_speedup", .metrics = "answer_p"},
     .texts = {"# streaming: x, mean, sd\n2 0.75 0\n4 0.5 0\n"}},
    {"bars stand by task in the order of names",
     TASK("1024") "; streaming task=file:file=qasper.jsonl:metric=f1:hash=0:line=1 density_elem=.3",
     "bars", .a = {.x = "task"},
     .texts = {"'kv' ", "'qasper.jsonl' ", " 1 0.2 0.2 0.2\n",
               "by task, median over 1 text or prompt"}},
    {"bars do not stand by head", TASK("1024"), "bars", .a = {.x = "head"},
     .texts = {"by layer or by task"}, .fails = ERR_USAGE},
    {"whiskers are named where they are drawn", WHISKERS, "bars",
     .texts = {" 0 0.24 0.2 0.28\n", "with vectors", "Whiskers: quartiles."}},
    {"whiskers that have no room are not named", WHISKERS, "bars",
     .a = {.width = 332, .height = 460}, .texts = {"!with vectors", "!Whiskers"}},
    {"one value has no spread", WHISKERS, "bars", .a = {.heads = "0"}, .texts = {"!with vectors"}},
    {"the legend shows labels, the data have it all",
     "spargeattn:theta=-1:tau=0.5" MAP
     " density_elem=.2; spargeattn:theta=-1:tau=0.6 density_elem=.2",
     "bars", .texts = {"title 'spargeattn tau=0.6'", "!'spargeattn theta", "theta=-1:tau=0.5" MAP}},
    {"lines of a cdf have dashes and marks and stand clear of the frame", /* 21 rows, 6 marks */
     "streaming:window=# copy=4..5 head=0..19 density_elem=.5 cra_min=0+.0256410256410256410i;"
     "dense density_elem=1 cra_min=1",
     "cdf",
     .texts = {"set xrange [-0.03:1.03]", "with steps lw 1.4 dt 2", "every 4::", "with points pt",
               "=3 keyentry with linespoints"}},
    {"many settings are panels of methods, grey where they are those of others", MANY, "cdf",
     .texts = {"=3 plot NaN", "=24 lc rgb '#d9d9d9' notitle", "set title 'spargeattn'",
               "title 'tau=0.1'",
               "One panel per method, 12 settings in all; grey: those of the other panels"}},
    {"panels of bars have their legends and one range", MANY, "bars",
     .texts = {"=3 set key at", "=3 set yrange [0:1]\n"}},
    {"settings that are not drawn are counted", "streaming:window=# copy=1..20 density_elem=.2",
     "bars",
     .texts = {" 8 of 20 settings of streaming are drawn", "'streaming window=1'",
               "'streaming window=20'"}},
    {"a parameter of two methods is two axes, whose titles name their only lines", MANY, "curves",
     .a = {.x = "tau"},
     .texts = {"=2 plot NaN", "set title 'sale'", "!#d9d9d9", "means something else in each method",
               "!keyentry"}},
    {"two lines of a panel have names", MANY "sale:tau=0.1:mode=x density_elem=.3", "curves",
     .a = {.x = "tau"}, .texts = {"title 'mode=x'"}},
    {"calibrations are joined by density",
     "spargeattn:calib=xxh3:# copy=0..2 density_elem=.2+.2i cra_mean=.7+.1i", "curves",
     .a = {.x = "density_elem", .metrics = "cra_mean"},
     .texts = {"# spargeattn: x, mean, sd\n0.2 0.7 0\n0.4 0.8 0\n0.6 0.9 0\n",
               "set xlabel 'pairs kept [kept/allowed pairs]'"}},
    {"settings with a target have a line of their own",
     "sale:tau=0.# copy=1..2 density_elem=.2+.1i err_l1_rel=.1;"
     "sale@density_elem=0.# copy=4..5 density_elem=.4+.1i err_l1_rel=.1",
     "pareto", .texts = {"# sale: ", "# sale @density_elem: "}},
    /* looks; a column is 3.3 inches of 120 units */
    {"paper has a width in inches and its legend below", MANY, "pareto",
     .a = {.metrics = "cra_min", .style = {.look = LOOK_PAPER}, .untitled = true, .width = 396},
     .texts = {"set terminal pdfcairo size 3.3in,", "font 'Sans,8'", "vertical maxrows",
               "!font_title\n", "Pairs kept against"},
     .suffix = "pdf"},
    {"PostScript has the font", MANY, "pareto",
     .a = {.metrics = "cra_min",
           .style = {.look = LOOK_PAPER, .font = "Serif"},
           .untitled = true,
           .width = 396},
     .texts = {"set terminal epscairo", "font 'Serif,8'"}, .suffix = "eps"},
    {"text for LaTeX is escaped and its lines stand beside it", MANY, "pareto",
     .a = {.metrics = "cra_min", .title = "50 % of $x_1$ \\input"},
     .texts = {"'50 \\% of \\$x\\_1\\$ \\textbackslash{}input'", "includegraphics"},
     .suffix = "tex"},
    /* sweep */
    {"a sweep has a cell per setting that is there", SWEPT, "sweep",
     .a = {.x = "alpha_c", .y = "alpha_s"},
     .texts = {"0 0 0.2 \"0.200\" 1 \"0.5\" \"0.5\"\n", "1 0 0.4 \"0.400\"",
               "1 1 0.6 \"0.600\" 0 \"0.9\" \"unset\"\n", "!\n0 1 ", "set label 'pairs kept"}},
    {"the colour bar of a narrow sweep has its title", SWEPT, "sweep",
     .a = {.x = "alpha_c", .y = "alpha_s", .width = 396}, .texts = {"set label 'pairs kept"}},
    {"another parameter has one value", "sampleattention:alpha_c=0.9:chunks=2 density_elem=.6",
     "sweep", .a = {.x = "alpha_c", .y = "alpha_s"}, .texts = {"one value each"},
     .fails = ERR_INPUT},
    {"a sweep needs two parameters", SWEPT, "sweep", .a = {.x = "alpha_c"},
     .texts = {"needs two parameters"}, .fails = ERR_USAGE},
    {"settings of a sweep differ in nothing else",
     "sampleattention:alpha_c=0.5 density_elem=.1; sampleattention:alpha_c=0.9 density_elem=.3;"
     "sampleattention:alpha_c=0.9:chunks=2 density_elem=.6",
     "sweep", .a = {.x = "alpha_c", .y = "alpha_s"},
     .texts = {"differ in more than alpha_c and alpha_s"}, .fails = ERR_USAGE},
    /* means */
    {"means have their numbers, never rounded to 1, and the mean of all bars", BARS, "means",
     .a = {.metrics = "density_elem"},
     .texts = {"0 0.2 \"0.20\" 0\n1 0.999 \">0.99\" 1\n", "'mean of all 0.60'",
               ", 0.5995 with lines lw 1.6 dt 2", "Dashed: the mean of the bars."}},
    {"means are of layers or samples", BARS, "means", .a = {.metrics = "density_elem", .x = "step"},
     .texts = {"layer or sample"}, .fails = ERR_USAGE},
    {"means of samples begin with the largest",
     "sale trace=3 density_elem=.5; sale trace=2 density_elem=.52; sale trace=1 density_elem=.48",
     "means", .a = {.metrics = "density_elem", .x = "sample"},
     .texts = {"0 0.52 \"0.520\" 2\n1 0.5 \"0.500\" 1\n2 0.48 \"0.480\" 3\n",
               "set xtics nomirror ('2' 0, '1' 1, '3' 2)"}},
    {"means are of one setting", "sale density_elem=.5; sale:tau=0.5 density_elem=.5", "means",
     .a = {.metrics = "density_elem", .x = "sample"}, .texts = {"of one setting"},
     .fails = ERR_USAGE},
};

TEST_EACH(charts_show_what_they_are_of, drawn)
{
    assert_drawn(&drawn[_i]);
    if (drawn[_i].suffix && strcmp(drawn[_i].suffix, "tex") == 0)
        ck_assert_int_eq(access(test_path("fig.pdf"), R_OK), 0); /* which fig.tex includes */
}

TEST(bad_marks_are_refused)
{
    static const char *const bad[] = {"M", "=1:2", "M=1", "M=1:2,", "M=1:x", "M=1:2,3", "M="};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct drawn d = {bad[i], "sale" SPREAD, "means", .a = {.marks = bad[i]}};
        assert_fails(draw(&d), &e, ERR_USAGE, "--marks: ");
    }
}

TEST(steps_of_counts_are_whole)
{
    static const int cases[][3] = {{6, 8, 1}, {16, 8, 2}, {20, 8, 5}, {40, 16, 5}, {81, 8, 20}};
    for (int i = 0; i < 5; i++)
        ck_assert_double_eq(gp_count_step(cases[i][0], cases[i][1]), cases[i][2]);
}

TEST(a_scaled_metric_does_not_name_its_old_unit)
{
    OWN(buf_free) struct buf b = {0};
    double scale;
    chart_metric_label("time_total_ns", &b, &scale);
    ck_assert_str_eq(buf_str(&b), "time of the whole call [ms]");
    ck_assert_double_eq(scale, 1e-6);
    buf_reset(&b);
    chart_metric_label("time_select_ns_q1", &b, &scale);
    ck_assert_str_eq(buf_str(&b), "time_select_q1 [ms]");
    buf_reset(&b);
    chart_metric_label("err_lse_mean", &b, &scale);
    ck_assert_str_eq(buf_str(&b), "mean error of the log-sum-exp [nat]");
}

/* ---- labels and styles ---------------------------------------------------------------------- */

static void setting(struct series_list *l, const char *method, const char *params)
{
    ck_assert_int_ge(series_of_setting(l, "", method, params, false, &e), 0);
}

/* What all settings share is left out, the middle of what is long, unless two would look alike. */
TEST_N(labels_tell_settings_apart, 4)
{
    static const char *const cases[][6][3] = {
        {{"streaming", "sink=4:window=64", "streaming window=64"},
         {"streaming", "sink=4:window=128", "streaming window=128"},
         {"spargeattn", "theta=-1:tau=0.9", "spargeattn theta=-1:tau=0.9"},
         {"sale", "", "sale"},
         {"sale", "tau=0.02", "sale tau=0.02"}},
        {{"spargeattn", "", "spargeattn"},
         {"spargeattn", "theta=-1:tau=0.5:pv=20:pv_scope=warp:map_dtype=input:cdf=bf16",
          "spargeattn theta=-1:tau=0.5:pv=20:...:cdf=bf16"},
         {"spargeattn", "theta=-1:tau=0.5:pv=40:pv_scope=warp:map_dtype=input:cdf=bf16",
          "spargeattn theta=-1:tau=0.5:pv=40:...:cdf=bf16"}},
        {{"sale", "one=11111111112222222222:two=1:three=3333333333:four=1:five=5555555555555555",
          "sale one=11111111112222222222:two=1:three=3333333333:four=1"},
         {"sale", "one=11111111112222222222:two=1:three=3333333334:four=2:five=5555555555555555",
          "sale one=11111111112222222222:two=1:three=3333333334:four=2"}},
        {{"sale", "one=1111111111:two=1:three=3333333333:four=1:five=5555555555:six=66666666",
          "sale one=1111111111:two=1:three=3333333333:four=1:five=5555555555:six=66666666"}},
    };
    OWN(series_free) struct series_list l = {0};
    for (int i = 0; cases[_i][i][0]; i++)
        setting(&l, cases[_i][i][0], cases[_i][i][1]);
    assert_ok(series_labels(&l, 60, &e), &e);
    for (int i = 0; i < l.n; i++)
        if (_i != 2)
            ck_assert_str_eq(l.s[i].label, cases[_i][i][2]);
        else /* alike in front and behind */
            ck_assert_str_ne(l.s[i].label, l.s[!i].label);
}

TEST(settings_of_a_method_differ_in_more_than_their_shade)
{
    OWN(series_free) struct series_list l = {0};
    char params[32];
    for (int i = 0; i < 10; i++) {
        snprintf(params, sizeof params, "window=%d", i);
        setting(&l, "streaming", params);
    }
    series_shade(&l, TELL_DASH_POINT);
    for (int i = 0; i < 10; i++)
        for (int k = 0; k < i; k++)
            ck_assert(l.s[i].dash != l.s[k].dash || l.s[i].point != l.s[k].point);
    char shade[8];
    style_shade(style_of(NULL, "streaming"), 9, 10, 0.5, shade);
    ck_assert_int_lt(strtol(l.s[9].color + 1, NULL, 16), strtol(shade + 1, NULL, 16));
    series_shade(&l, TELL_SHADE);
    ck_assert_int_eq(l.s[9].dash, 1);
}
