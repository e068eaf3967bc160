/*
 * cmd_import.c - lacuna import: a trace from tensors that another program saved.
 */
#include "capture/capture.h"
#include "capture/import.h"
#include "capture/trace/trace_tools.h"
#include "core/cmd.h"
#include "core/fileio.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/text.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct import_opts {
    struct common_opts common;
    char *q, *k, *v, *out, *output, *meta, *name, *grid;
    struct str_list safetensors;
    bool causal, allow_nonfinite;
    int dtype, layout;
    int64_t maps, check_rows;
};

static const char *const dtypes[] = {"keep", STORED_TYPES, NULL};
static const char *const layouts[] = {"hnd", "nhd", NULL};

static const struct opt options[] = {
    OPT_STR(struct import_opts, q, NULL, "FILE|NAME",
            "Queries: an .npy file, or with --safetensors the name of a tensor."),
    OPT_STR(struct import_opts, k, NULL, "FILE|NAME", "Keys, likewise."),
    OPT_STR(struct import_opts, v, NULL, "FILE|NAME", "Values, likewise."),
    OPT_STR(struct import_opts, out, NULL, "FILE|NAME",
            "Outputs of dense attention, likewise; trace verify compares them."),
    OPT_LIST(struct import_opts, safetensors, NULL, "FILE",
             "A file with tensors q, k, v, or many calls: step-000.cond.layer-05.q, ...; may be "
             "repeated, and may be an .index.json of several."),
    OPT_STR(struct import_opts, output, NULL, "FILE", "Trace to write.", .flags = OPT_REQUIRED,
            .short_name = 'o'),
    OPT_ENUM(struct import_opts, layout, "hnd", layouts,
             "Axes of the tensors: hnd = [head][token][dim], nhd = [token][head][dim]."),
    OPT_BOOL(struct import_opts, causal, "0",
             "Query i sees keys up to its own position; --no-causal where a file says it."),
    OPT_STR(struct import_opts, name, NULL, "TEXT", "Name of the model."),
    OPT_STR(struct import_opts, grid, NULL, "TxHxW",
            "Video: latent grid, frames x rows x columns, as in 16x32x48.", .unit = "tokens"),
    OPT_STR(
        struct import_opts, meta, NULL, "FILE.json|{...}",
        "JSON object of what else is known: scale, window_left, layer, steps, compute, ...; wins "
        "over the files' metadata."),
    OPT_ENUM(struct import_opts, dtype, "keep", dtypes,
             "Element type to store; keep = that of the files."),
    OPT_INT(struct import_opts, maps, "0", 0, 65536, "tokens",
            "Store attention maps pooled over cells of so many tokens; 0 = none.", .arg = "P"),
    OPT_AS("check-rows", OPT_INT, struct import_opts, check_rows, "16", .min = 0, .max = 1e9,
           .unit = "rows per head",
           .help = "Where outputs come along, recompute so many of their rows; 0 = none.",
           .arg = "N"),
    OPT_AS("allow-nonfinite", OPT_BOOL, struct import_opts, allow_nonfinite, "0",
           .help = "Take tensors with NaN or infinite values."),
    COMMON_OPTS,
    {0},
};

/* ---- inputs ---------------------------------------------------------------------------------- */

static int named_tensor(const struct import_opts *o, const struct st_file *f, const char *name,
                        struct source *s, struct err *err)
{
    const struct st_tensor *t = NULL;
    PASS_ON(st_require(f, name, -1, NULL, &t, err));
    return source_st(s, f, o->safetensors.items[0], t, (enum source_layout)o->layout, err);
}

static int one_source(const struct import_opts *o, const struct st_file *f, const char *what,
                      struct source *s, struct err *err)
{
    return f ? named_tensor(o, f, what, s, err)
             : source_npy(s, what, (enum source_layout)o->layout, err);
}

/* --q, --k, --v name one call. */
static int one_call(const struct import_opts *o, struct import_job *j, const struct st_file *f,
                    const struct trace_call *defaults, struct err *err)
{
    if (!o->q || !o->k || !o->v)
        return err_set(err, ERR_USAGE, "import: --q, --k and --v belong together%s",
                       f ? "" : " (or give --safetensors)");
    PASS_ON(mem_zalloc(&j->calls, 1, sizeof *j->calls, "calls", err));
    j->n_calls = 1;
    j->calls[0].call = *defaults;
    PASS_ON(one_source(o, f, o->q, &j->calls[0].q, err));
    PASS_ON(one_source(o, f, o->k, &j->calls[0].k, err));
    PASS_ON(one_source(o, f, o->v, &j->calls[0].v, err));
    if (o->out)
        PASS_ON(one_source(o, f, o->out, &j->calls[0].out, err));
    return import_call_score(j, f, "", 0, &j->calls[0], err);
}

static int find_calls(const struct import_opts *o, struct import_job *j, const struct st_file *f,
                      struct err *err)
{
    struct trace_call c;
    PASS_ON(import_call_defaults(j, &c, err));
    if (o->q || o->k || o->v || !f)
        return one_call(o, j, f, &c, err);
    return import_safetensors(j, f, o->safetensors.items[0], (enum source_layout)o->layout, &c,
                              err);
}

/* ---- command --------------------------------------------------------------------------------- */

static int print_plan(const struct import_job *j, const char *path)
{
    const struct trace_meta *m = &j->meta;
    text_printf(
        stdout,
        "would write %s: %lld call%s, q %d x %lld x %d, k %d x %lld x %d, v dim %d, %s, %.3f MB\n",
        path, (long long)j->n_calls, j->n_calls == 1 ? "" : "s", m->heads, (long long)m->n_q,
        m->head_dim, m->kv_heads, (long long)m->n_k, m->head_dim, m->v_dim, dtype_name(m->dtype),
        (double)trace_size(m, j->n_calls) / 1e6);
    return 0;
}

static int print_result(const struct import_opts *o, const struct import_job *j, struct err *err)
{
    const struct trace_meta *m = &j->meta;
    OWN(trace_close) struct trace *t = NULL;
    OWN(buf_free) struct buf b = {0};
    struct jw w;
    PASS_ON(trace_open(o->output, &t, err));
    if (o->common.json) {
        jw_init(&w, &b, 2);
        jw_obj(&w);
        jw_members(&w, JW_STR("trace", o->output), JW_STR("content_id", trace_id(t)),
                   JW_INT("calls", trace_calls(t)));
        trace_meta_json(m, &w);
        jw_obj_end(&w);
        PASS_ON(buf_check(&b, "result", err));
        puts(buf_str(&b));
    } else {
        text_printf(
            stdout,
            "%s: %lld call%s, %d query and %d kv heads, %lld queries, %lld keys, dim %d, %s, %s\n",
            o->output, (long long)trace_calls(t), trace_calls(t) == 1 ? "" : "s", m->heads,
            m->kv_heads, (long long)m->n_q, (long long)m->n_k, m->head_dim, dtype_name(m->dtype),
            trace_id(t));
    }
    return 0;
}

static void differs(void *ctx, const char *object, int head, const char *what)
{
    struct err *first = ctx;
    if (!first->code)
        err_set(first, ERR_CHECK, "%s head %d: %s", object, head, what);
}

/* Outputs that came along say whether scale, causality and the rest are right. A trace that fails
 * is not left under its name. */
static int check_outputs(const struct import_opts *o, struct err *err)
{
    OWN(trace_close) struct trace *t = NULL;
    struct err first = {0};
    int64_t bad = 0, rows = 0, outputs = 0;
    PASS_ON(trace_open(o->output, &t, err));
    for (int64_t i = 0; i < trace_calls(t); i++)
        outputs += trace_call(t, i)->has_out;
    if (!outputs || o->check_rows == 0 || o->allow_nonfinite)
        return 0;
    PASS_ON(trace_check_attention(t, cmd_jobs(&o->common), o->check_rows, differs, &first, &bad,
                                  &rows, err));
    if (bad) {
        trace_close(&t);
        unlink(o->output);
        return err_set(
            err, ERR_CHECK,
            "%s is not kept: the outputs of %lld heads are not the attention of q, k and v (%s); "
            "--causal and --meta (scale, window_left, softcap) say what the model did, compute in "
            "which type, --check-rows 0 imports all the same",
            o->output, (long long)bad, first.msg);
    }
    if (!o->common.json)
        log_info("%s: %lld recomputed rows of the outputs agree", o->output, (long long)rows);
    return 0;
}

/* Was --causal or --no-causal given? The table cannot tell the default from --no-causal. */
static bool gave_causal(int argc, char **argv)
{
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], "--causal") == 0 || strcmp(argv[i], "--no-causal") == 0)
            return true;
    return false;
}

static int read_facts(const struct import_opts *o, bool causal, struct import_job *j,
                      struct err *err)
{
    PASS_ON(import_facts(j, o->meta, err));
    if (causal)
        PASS_ON(import_fact(j, "causal", o->causal ? "1" : "0", err));
    if (o->name)
        PASS_ON(import_fact(j, "name", o->name, err));
    if (o->grid)
        return import_fact(j, "grid", o->grid, err);
    return 0;
}

static int import(const struct import_opts *o, bool causal, struct err *err)
{
    OWN(import_free) struct import_job j = {.allow_nonfinite = o->allow_nonfinite};
    OWN(st_close) struct st_file *f = NULL;
    int rc = 0;

    const char *const inputs[] = {o->q, o->k, o->v, o->out, o->meta};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        PASS_ON(refuse_input(o->output, inputs[i], err));
    for (int64_t i = 0; i < o->safetensors.n; i++)
        PASS_ON(refuse_input(o->output, o->safetensors.items[i], err));
    PASS_ON(read_facts(o, causal, &j, err));
    j.meta.seed = o->common.seed;
    j.meta.pool = o->maps;
    if (o->safetensors.n)
        PASS_ON(st_open_all((const char *const *)o->safetensors.items, o->safetensors.n, &f, err));
    if ((rc = import_metadata(&j, f, err)) != 0) {
        if (f && rc == ERR_INPUT)
            err_prefix(err, "%s", o->safetensors.items[0]);
        return rc;
    }
    PASS_ON(find_calls(o, &j, f, err));
    PASS_ON(import_facts_read(&j, err));
    PASS_ON(import_shapes(&j, stored_type(o->dtype, DT_NONE), err));
    if (o->common.dry_run) {
        print_plan(&j, o->output);
        return rc;
    }
    PASS_ON(import_write(&j, o->output, cmd_jobs(&o->common), o->common.force, err));
    PASS_ON(check_outputs(o, err));
    PASS_ON(print_result(o, &j, err));
    return rc;
}

static int run(const struct app *app, void *opts, struct str_list *rest, struct err *err)
{
    struct import_opts *o = opts;
    if (rest->n > 0)
        return err_set(err, ERR_USAGE,
                       "import: '%s' is not expected; files are given by --q, --k, --v or "
                       "--safetensors",
                       rest->items[0]);
    return import(o, gave_causal(app->argc, app->argv), err);
}

const struct command cmd_import = {
    .name = "import",
    .usage = "import --q Q.npy --k K.npy --v V.npy -o T.h5\n"
             "import --safetensors FILE [--q NAME --k NAME --v NAME] -o T.h5",
    .summary = "Make a trace from tensors that another program saved",
    .run = run,
    .options = options,
    .size = sizeof(struct import_opts),
    .details =
        "Shapes are [head][token][dim], with a batch of one in front or, for one head, without "
        "the\n"
        "first axis. k and v may have fewer heads (grouped queries). Without --q, --k, --v a\n"
        ".safetensors file is searched for tensors q, k, v with prefixes such as\n"
        "step-000.cond.layer-05. (step, branch and layer may be absent), with out, sinks and "
        "alibi\n"
        "(a value per head) where the call has them, and for tokens, nll, timesteps and sigmas.\n"
        "Several files count as one. Its metadata and --meta may say name, scale, causal, layers,\n"
        "..., and window_left, chunk, prefix, softcap of all calls or, under a call's name, of "
        "one.\n"
        "\n"
        "  lacuna import --q q.npy --k k.npy --v v.npy --causal --name my-model -o t.h5\n"
        "  lacuna import --safetensors video.safetensors --grid 21x30x52 --maps 64 -o v.h5\n"
        "  lacuna import --q q.npy --k k.npy --v v.npy --causal --meta '{\"layer\": 5}' -o t.h5\n",
};
