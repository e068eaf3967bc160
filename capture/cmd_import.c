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

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct import_opts {
    struct common_opts common;
    char *q, *k, *v, *out, *output;
    struct str_list safetensors;
    char *name, *architecture, *branch, *grid, *text_place, *positions, *compute;
    bool causal, allow_nonfinite, positions_applied;
    double scale, timestep, sigma, softcap;
    int dtype, layout;
    int64_t text, text_valid, maps, layer, layers, step, steps, window, chunk, prefix, check_rows;
    bool given_causal, given_positions; /* said on the command line, as no or as yes */
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
    OPT_BOOL(struct import_opts, causal, "0", "Query i sees keys up to its own position."),
    OPT_NUM(struct import_opts, scale, NULL, -INFINITY, INFINITY, "",
            "Softmax scale; that of the file's metadata, or 1/sqrt(head dim).", .arg = "X"),
    OPT_INT(struct import_opts, window, NULL, 1, 2147483647, "keys",
            "Sliding window: a query sees its own key and the W - 1 before it; without --causal "
            "also all keys behind it.",
            .arg = "W"),
    OPT_INT(struct import_opts, chunk, NULL, 1, 2147483647, "tokens",
            "A query sees keys of its own run of C tokens.", .arg = "C"),
    OPT_INT(struct import_opts, prefix, NULL, 1, 2147483647, "keys",
            "With --causal: every query sees the first P keys, those after it too.", .arg = "P"),
    OPT_NUM(struct import_opts, softcap, NULL, 0, INFINITY, "", "Scores are C tanh(s / C).",
            .flags = OPT_MIN_OPEN | OPT_MAX_OPEN, .arg = "C"),
    OPT_ENUM(struct import_opts, dtype, "keep", dtypes,
             "Element type to store; keep = that of the files."),
    OPT_STR(struct import_opts, name, NULL, "TEXT",
            "Name of the model; that of the metadata, or imported."),
    OPT_STR(struct import_opts, architecture, NULL, "TEXT", "Class of the model."),
    OPT_STR(struct import_opts, compute, NULL, "TEXT",
            "Arithmetic of the program that made the tensors, such as bfloat16; that of the "
            "metadata, or float32."),
    OPT_STR(struct import_opts, positions, NULL, "TEXT",
            "Kind of the position encoding in q and k, such as rope."),
    OPT_AS("positions-applied", OPT_BOOL, struct import_opts, positions_applied, "1",
           .help = "q and k are those that the dot product saw."),
    OPT_INT(struct import_opts, layer, "0", 0, 99999, "", "Layer of the tensors.", .arg = "N"),
    OPT_INT(struct import_opts, layers, NULL, 1, 100000, "",
            "Layers of the model; those of the metadata, or the largest imported one + 1.",
            .arg = "N"),
    OPT_INT(struct import_opts, step, "0", 0, 999999, "", "Denoising step of the tensors.",
            .arg = "N"),
    OPT_INT(struct import_opts, steps, "0", 0, 1000000, "", "Denoising steps of the run.",
            .arg = "N"),
    OPT_STR(struct import_opts, branch, "main", "NAME", "Guidance branch: main, cond, uncond."),
    OPT_NUM(struct import_opts, timestep, NULL, -INFINITY, INFINITY, "",
            "The sampler's timestep value of the step.", .arg = "X"),
    OPT_NUM(struct import_opts, sigma, NULL, -INFINITY, INFINITY, "", "Noise level of the step.",
            .arg = "X"),
    OPT_STR(struct import_opts, grid, "", "TxHxW",
            "Video: latent grid, frames x rows x columns, as in 16x32x48.", .unit = "tokens"),
    OPT_INT(struct import_opts, text, "0", 0, 2147483647, "tokens",
            "Video: text tokens in the sequence.", .arg = "N"),
    OPT_AS("text-valid", OPT_INT, struct import_opts, text_valid, NULL, .min = 0, .max = 2147483647,
           .unit = "tokens", .help = "Video: text tokens that are not padding; all if not given.",
           .arg = "N"),
    OPT_AS("text-place", OPT_STR, struct import_opts, text_place, "",
           .help = "Video: where the text stands, front or back.", .arg = "PLACE"),
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

/* ---- options to metadata --------------------------------------------------------------------- */

static int copy_text(char *dst, size_t cap, const char *src, const char *option, struct err *err)
{
    if (!src)
        return 0;
    if (strlen(src) >= cap)
        return err_set(err, ERR_USAGE, "import: %s is longer than %zu characters", option, cap - 1);
    strcpy(dst, src);
    return 0;
}

static int set_grid(const struct import_opts *o, struct trace_meta *m, struct err *err)
{
    long long t, h, w;
    int used = 0;

    if (!o->grid[0]) {
        if (o->text || o->text_place[0])
            return err_set(err, ERR_USAGE, "import: --text and --text-place need --grid");
        return 0;
    }
    if (sscanf(o->grid, "%9lldx%9lldx%9lld%n", &t, &h, &w, &used) != 3 || o->grid[used] || t < 1 ||
        h < 1 || w < 1)
        return err_set(err, ERR_USAGE, "import: --grid '%s' is not TxHxW, as in 16x32x48", o->grid);
    if (o->text > 0 && strcmp(o->text_place, "front") != 0 && strcmp(o->text_place, "back") != 0)
        return err_set(err, ERR_USAGE, "import: --text needs --text-place front or back");
    m->grid_t = t;
    m->grid_h = h;
    m->grid_w = w;
    m->text_tokens = o->text;
    m->text_valid = o->text_valid == INT64_MIN ? o->text : o->text_valid;
    strcpy(m->token_order, "raster");
    return copy_text(m->text_place, sizeof m->text_place, o->text > 0 ? o->text_place : "none",
                     "--text-place", err);
}

static int set_meta(const struct import_opts *o, struct trace_meta *m, struct err *err)
{
    int rc = 0;
    TRY(copy_text(m->name, sizeof m->name, o->name, "--name", err));
    TRY(copy_text(m->architecture, sizeof m->architecture, o->architecture, "--architecture", err));
    TRY(copy_text(m->compute, sizeof m->compute, o->compute, "--compute", err));
    TRY(copy_text(m->positions, sizeof m->positions, o->positions, "--positions", err));
    strcpy(m->source, "import");
    m->layers = o->layers == INT64_MIN ? 0 : (int)o->layers;
    m->scale = isnan(o->scale) ? 0 : o->scale;
    if (o->scale == 0)
        FAIL(err, ERR_USAGE, "import: --scale 0 makes all scores equal");
    m->causal = o->causal;
    m->positions_applied = o->positions_applied;
    m->seed = o->common.seed;
    m->pool = o->maps;
    m->steps = o->steps;
    TRY(set_grid(o, m, err));
out:
    return rc;
}

/* What the calls do to their scores, and which fields metadata of a file must leave alone. */
static void set_score(const struct import_opts *o, struct import_job *j)
{
    struct trace_score *s = &j->score;
    s->reach.back = o->window == INT64_MIN ? 0 : o->window;
    s->reach.chunk = o->chunk == INT64_MIN ? 0 : o->chunk;
    s->reach.prefix = o->prefix == INT64_MIN ? 0 : o->prefix;
    s->softcap = isnan(o->softcap) ? 0 : o->softcap;
    j->given.scale = !isnan(o->scale);
    j->given.causal = o->given_causal;
    j->given.text_valid = o->text_valid != INT64_MIN;
    j->given.positions_applied = o->given_positions;
}

/* What neither an option nor a file said. */
static void set_rest(struct trace_meta *m)
{
    if (!m->name[0])
        strcpy(m->name, "imported");
    if (!m->compute[0])
        strcpy(m->compute, "float32");
    if (m->layers == 0)
        m->layers = 1;
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static int named_tensor(const struct import_opts *o, const struct st_file *f, const char *name,
                        struct source *s, struct err *err)
{
    const struct st_tensor *t = NULL;
    int rc = st_require(f, name, -1, NULL, &t, err);
    return rc ? rc
              : source_st(s, f, o->safetensors.items[0], t, (enum source_layout)o->layout, err);
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
    int rc = 0;

    if (!o->q || !o->k || !o->v)
        return err_set(err, ERR_USAGE, "import: --q, --k and --v belong together%s",
                       f ? "" : " (or give --safetensors)");
    TRY(mem_zalloc(&j->calls, 1, sizeof *j->calls, "calls", err));
    j->n_calls = 1;
    j->calls[0].call = *defaults;
    TRY(one_source(o, f, o->q, &j->calls[0].q, err));
    TRY(one_source(o, f, o->k, &j->calls[0].k, err));
    TRY(one_source(o, f, o->v, &j->calls[0].v, err));
    if (o->out)
        TRY(one_source(o, f, o->out, &j->calls[0].out, err));
    j->calls[0].call.score = j->score;
    if (f)
        TRY(import_call_score(j, f, "", 0, &j->calls[0], err));
out:
    return rc;
}

static int find_calls(const struct import_opts *o, struct import_job *j, const struct st_file *f,
                      struct err *err)
{
    struct trace_call c = {
        .step = (int)o->step, .layer = (int)o->layer, .timestep = o->timestep, .sigma = o->sigma};
    int rc = copy_text(c.branch, sizeof c.branch, o->branch, "--branch", err);

    if (rc)
        return rc;
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
    struct trace *t = NULL;
    struct buf b = {0};
    struct jw w;
    int rc = 0;

    TRY(trace_open(o->output, &t, err));
    if (o->common.json) {
        jw_init(&w, &b, 2);
        jw_obj(&w);
        jw_kstr(&w, "trace", o->output);
        jw_kstr(&w, "content_id", trace_id(t));
        jw_kint(&w, "calls", trace_calls(t));
        trace_meta_json(m, &w);
        jw_obj_end(&w);
        TRY(buf_check(&b, "result", err));
        puts(buf_str(&b));
    } else {
        text_printf(
            stdout,
            "%s: %lld call%s, %d query and %d kv heads, %lld queries, %lld keys, dim %d, %s, %s\n",
            o->output, (long long)trace_calls(t), trace_calls(t) == 1 ? "" : "s", m->heads,
            m->kv_heads, (long long)m->n_q, (long long)m->n_k, m->head_dim, dtype_name(m->dtype),
            trace_id(t));
    }
out:
    buf_free(&b);
    trace_close(&t);
    return rc;
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
    struct trace *t = NULL;
    struct err first = {0};
    int64_t bad = 0, rows = 0, outputs = 0;
    int rc = 0;

    TRY(trace_open(o->output, &t, err));
    for (int64_t i = 0; i < trace_calls(t); i++)
        outputs += trace_call(t, i)->has_out;
    if (!outputs || o->check_rows == 0 || o->allow_nonfinite)
        goto out;
    TRY(trace_check_attention(t, cmd_jobs(&o->common), o->check_rows, differs, &first, &bad, &rows,
                              err));
    if (bad) {
        trace_close(&t);
        unlink(o->output);
        FAIL(err, ERR_CHECK,
             "%s is not kept: the outputs of %lld heads are not the attention of q, k and v (%s); "
             "--scale, --causal, --window, --softcap say what the model did, --compute in which "
             "type, --check-rows 0 imports all the same",
             o->output, (long long)bad, first.msg);
    }
    if (!o->common.json)
        log_info("%s: %lld recomputed rows of the outputs agree", o->output, (long long)rows);
out:
    trace_close(&t);
    return rc;
}

/* Was one of the two words given? The table cannot tell a flag's default from --no-NAME. */
static bool was_given(int argc, char **argv, const char *yes, const char *no)
{
    for (int i = 0; i < argc; i++)
        if (strcmp(argv[i], yes) == 0 || strcmp(argv[i], no) == 0)
            return true;
    return false;
}

extern const struct command cmd_import;

static int import(const struct import_opts *o, struct err *err)
{
    struct import_job j = {.allow_nonfinite = o->allow_nonfinite};
    struct st_file *f = NULL;
    int rc = 0;

    const char *const inputs[] = {o->q, o->k, o->v, o->out};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        TRY(refuse_input(o->output, inputs[i], err));
    for (int64_t i = 0; i < o->safetensors.n; i++)
        TRY(refuse_input(o->output, o->safetensors.items[i], err));
    TRY(set_meta(o, &j.meta, err));
    set_score(o, &j);
    if (o->safetensors.n) {
        TRY(st_open_all((const char *const *)o->safetensors.items, o->safetensors.n, &f, err));
        if ((rc = import_metadata(&j, f, err)) != 0) {
            err_prefix(err, "%s", o->safetensors.items[0]);
            goto out;
        }
    }
    TRY(find_calls(o, &j, f, err));
    set_rest(&j.meta);
    TRY(import_shapes(&j, stored_type(o->dtype, DT_NONE), err));
    if (o->common.dry_run) {
        print_plan(&j, o->output);
        goto out;
    }
    TRY(import_write(&j, o->output, cmd_jobs(&o->common), o->common.force, err));
    TRY(check_outputs(o, err));
    TRY(print_result(o, &j, err));
out:
    import_free(&j);
    st_close(&f);
    return rc;
}

static int run(const struct app *app, int argc, char **argv, struct err *err)
{
    struct import_opts o = {0};
    struct str_list rest = {0};
    bool done = false;
    int rc = 0;

    TRY(cmd_begin(&cmd_import, &o, argc, argv, &rest, &done, err));
    if (done)
        goto out;
    if (rest.n > 0)
        FAIL(err, ERR_USAGE,
             "import: '%s' is not expected; files are given by --q, --k, --v or "
             "--safetensors",
             rest.items[0]);
    o.given_causal = was_given(argc, argv, "--causal", "--no-causal");
    o.given_positions = was_given(argc, argv, "--positions-applied", "--no-positions-applied");
    TRY(import(&o, err));
out:
    opt_free(options, &o);
    str_list_free(&rest);
    return rc;
}

const struct command cmd_import = {
    .name = "import",
    .usage = "import --q Q.npy --k K.npy --v V.npy -o T.h5\n"
             "import --safetensors FILE [--q NAME --k NAME --v NAME] -o T.h5",
    .summary = "Make a trace from tensors that another program saved",
    .run = run,
    .options = options,
    .details =
        "Shapes are [head][token][dim], with a batch of one in front or, for one head, without "
        "the\n"
        "first axis. k and v may have fewer heads (grouped queries). Without --q, --k, --v a\n"
        ".safetensors file is searched for tensors q, k, v with prefixes such as\n"
        "step-000.cond.layer-05. (step, branch and layer may be absent), with out, sinks and "
        "alibi\n"
        "(a value per head) where the call has them, and for tokens, nll, timesteps and sigmas.\n"
        "Several files count as one. Its metadata may say name, scale, causal, layers, ..., and\n"
        "window_left, chunk, prefix, softcap of all calls or, under a call's name, of one; an\n"
        "option wins.\n"
        "\n"
        "  lacuna import --q q.npy --k k.npy --v v.npy --causal --name my-model -o t.h5\n"
        "  lacuna import --safetensors video.safetensors --grid 21x30x52 --maps 64 -o v.h5\n",
};
