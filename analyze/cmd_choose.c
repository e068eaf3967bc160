/*
 * cmd_choose.c - `lacuna choose`: from records to a plan.
 */
#include "analyze/choose.h"
#include "analyze/duo.h"
#include "analyze/model.h"
#include "analyze/query.h"
#include "core/cmd.h"
#include "core/fileio.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/metricdef.h"
#include "core/sealed.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct choose_opts {
    struct common_opts common;
    struct str_list limits, where;
    struct model_request model;
    char *cost, *output, *duo, *streaming;
    int per;
    double quantile, sparsity;
};

static const char *const pers[] = {"head", "kv-head", "layer", "model", NULL};

static const struct opt options[] = {
    OPT_AS("limit", OPT_LIST, struct choose_opts, limits, NULL,
           .help = "What a setting has to satisfy, as err_l1_rel<=0.02 or cra_p1>=0.9. Repeatable.",
           .arg = "METRIC<=X", .short_name = 'l'),
    OPT_STR(struct choose_opts, cost, "density_exec", "METRIC",
            "What is to be small; time_total is the measured time_total_ns."),
    OPT_ENUM(struct choose_opts, per, "head", pers,
             "What shares a setting; kv-head for evictions."),
    OPT_NUM(struct choose_opts, quantile, "1", 0, 1, "",
            "Share of a setting's cells that have to satisfy the limits.", .flags = OPT_MIN_OPEN,
            .arg = "Q"),
    OPT_STR(struct choose_opts, duo, NULL, "FILE",
            "DuoAttention's table of KV heads, a line per layer; takes the place of --limit."),
    OPT_NUM(struct choose_opts, sparsity, NULL, 0, 1, "share of KV heads",
            "With --duo: those that stream; 0.5 unless given.", .arg = "X"),
    OPT_STR(struct choose_opts, streaming, NULL, "PARAMS",
            "With --duo: what they keep, in parameters of streaming; sink=128:window=256 unless "
            "given."),
    OPT_LIST(struct choose_opts, where, NULL, "CONDITION", WHERE_HELP, .short_name = 'w'),
    MODEL_OPTS(struct choose_opts),
    OPT_STR(struct choose_opts, output, NULL, "FILE", "Plan to write (JSON).", .short_name = 'o'),
    COMMON_OPTS,
    {0},
};

static int fill_request(const struct choose_opts *o, struct choose_request *req, struct err *err)
{
    bool total = strcmp(o->cost, "time_total") == 0;
    *req = (struct choose_request){.cost = total ? "time_total_ns" : o->cost,
                                   .per = (enum choose_per)o->per,
                                   .quantile = o->quantile};
    if (o->duo && o->limits.n)
        return err_set(err, ERR_USAGE,
                       "choose: --duo and --limit are two ways to choose: give one of them");
    if (!o->duo && (o->streaming || !isnan(o->sparsity)))
        return err_set(err, ERR_USAGE,
                       "choose: --sparsity and --streaming say how to read --duo FILE");
    if (!o->duo && o->limits.n == 0)
        return err_set(err, ERR_USAGE,
                       "choose: --limit is missing, such as --limit 'err_l1_rel<=0.02'");
    if (!metric_def_find(req->cost))
        return err_set(err, ERR_USAGE, "--cost %s: there is no such metric (lacuna list metrics)",
                       o->cost);
    for (int64_t i = 0; i < o->limits.n; i++)
        PASS_ON(limits_add(&req->limits, o->limits.items[i], err));
    return 0;
}

static int check_output(const struct choose_opts *o, const struct str_list *in, struct err *err)
{
    if (!o->output && !o->common.dry_run)
        return err_set(err, ERR_USAGE, "choose: -o FILE is missing");
    for (int64_t i = 0; o->output && i < in->n; i++)
        PASS_ON(refuse_input(o->output, in->items[i], err));
    if (o->output && !o->common.dry_run)
        return refuse_existing(o->output, o->common.force, err);
    return 0;
}

static int make_plan(const struct choose_opts *o, const struct choose_request *req,
                     const struct recset *set, struct jw *w, struct choose_summary *sum,
                     struct err *err)
{
    struct duo_request duo = {.table = o->duo,
                              .sparsity = isnan(o->sparsity) ? 0.5 : o->sparsity,
                              .streaming = o->streaming ? o->streaming : "sink=128:window=256"};
    return o->duo ? duo_plan(set, &duo, w, sum, err) : choose_plan(set, req, w, sum, err);
}

static int run(const struct app *app, void *opts, struct str_list *in, struct err *err)
{
    struct choose_opts *o = opts;
    struct choose_request req;
    struct choose_summary sum;
    OWN(recset_free) struct recset set = {0};
    OWN(buf_free) struct buf b = {0};
    struct jw w;
    PASS_ON(check_output(o, in, err));
    PASS_ON(fill_request(o, &req, err));
    PASS_ON(recset_load(in, &set, err));
    if (!o->model.gpu && strstr(req.cost, "_model"))
        return err_set(err, ERR_USAGE,
                       "--cost %s is predicted for a GPU: add --gpu NAME (lacuna list gpus)",
                       req.cost);
    PASS_ON(model_apply(&set, &o->model, true, NULL, err));
    PASS_ON(recset_where(&o->where, &set, err));
    jw_init(&w, &b, 2);
    PASS_ON(make_plan(o, &req, &set, &w, &sum, err));
    seal_put(&b, 0);
    buf_puts(&b, "\n");
    PASS_ON(buf_check(&b, "plan", err));
    if (!o->common.dry_run)
        PASS_ON(file_write_atomic(o->output, b.data, b.len, err));
    if (o->common.json)
        printf("{\"heads\": %lld, \"dense\": %lld}\n", (long long)sum.heads, (long long)sum.dense);
    else if (isnan(sum.cost))
        log_info("%lld heads, %lld of them dense", (long long)sum.heads, (long long)sum.dense);
    else
        log_info("%lld heads, %lld of them dense; mean %s %.4g", (long long)sum.heads,
                 (long long)sum.dense, req.cost, sum.cost);
    return 0;
}

const struct command cmd_choose = {
    .name = "choose",
    .usage = "choose DIR... --limit METRIC<=X -o PLAN.json",
    .summary = "choose the cheapest setting within limits per head, layer or model",
    .run = run,
    .options = options,
    .size = sizeof(struct choose_opts),
    .details =
        "DIR are -o directories of `lacuna replay`. A setting is chosen for a head (layer,\n"
        "model) if it has an ok record of every call there and its records satisfy all limits;\n"
        "of these the one with the smallest mean cost, on ties the smaller err_l1_rel. Where\n"
        "none does, the head stays dense. The plan is replayed by -m plan:file=PLAN.json, best\n"
        "on traces other than those it was made from: `analyze --table plan` shows what it\n"
        "gains on both.\n"
        "\n"
        "Examples:\n"
        "  lacuna choose out --limit 'err_l1_rel<=0.02' -o plan.json\n"
        "  lacuna choose out -l 'cra_p1>=0.9' -l 'err_l1_rel<=0.05' --per layer -o plan.json\n"
        "  lacuna choose out --duo full_attention_heads.tsv --sparsity 0.5 -o plan.json\n"
        "\n"
        "A plan's masks are those of its replay: `replay -m plan:file=PLAN.json --dump-masks "
        "M.h5`,\n"
        "then `lacuna mask export M.h5` for FlexAttention and FlashInfer.\n",
};
