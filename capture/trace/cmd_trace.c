/*
 * cmd_trace.c - lacuna trace info|verify|pack|export|subset|join|map.
 */
#include "capture/trace/trace_tools.h"
#include "core/cmd.h"
#include "core/fileio.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/strmap.h"
#include "core/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct trace_opts {
    struct common_opts common;
    char *output, *layers, *heads, *steps, *branch, *tensors;
    bool gzip, unpack;
    int kv;
    char *rows;
    int64_t tokens, maps;
};

enum { KV_KEEP, KV_FP8 };
static const char *const kv_forms[] = {"keep", "fp8", NULL};

#define MAKERS "pack, export, subset, join, map"
#define CUTTERS "export, subset, join, map"

static const struct opt options[] = {
    OPT_STR(struct trace_opts, output, NULL, "PATH",
            "the new trace; of export a directory for .npy files, or one file NAME.safetensors.",
            .only = MAKERS, .short_name = 'o'),
    OPT_BOOL(struct trace_opts, gzip, "0",
             "deflate instead of zstd: slower, but every HDF5 reads it.", .only = "pack"),
    OPT_BOOL(struct trace_opts, unpack, "0", "back to the contiguous form.", .only = "pack"),
    OPT_ENUM(struct trace_opts, kv, "keep", kv_forms,
             "fp8 rounds keys and values to e4m3 with a power of two per head: another content, "
             "about half the bytes.",
             .only = "pack"),
    OPT_STR(
        struct trace_opts, rows, NULL, "N[xR]",
        "rows of stored outputs to recompute per head, 0 = none (16); subset: a sample of query "
        "rows, N groups of R (128) by --seed.",
        .only = "verify, subset"),
    OPT_STR(struct trace_opts, layers, "all", "LIST", "layers, as in 0,4-7.", .only = CUTTERS),
    OPT_STR(struct trace_opts, heads, "all", "LIST",
            "query heads; of k and v the kv heads that serve them.", .only = "export, subset, map"),
    OPT_STR(struct trace_opts, steps, "all", "LIST",
            "denoising steps; subset of a decode phase: a:b, the "
            "generated tokens from the a-th on, before the b-th.",
            .only = CUTTERS),
    OPT_STR(struct trace_opts, branch, "", "NAME", "guidance branch; all if empty.",
            .only = CUTTERS),
    OPT_INT(struct trace_opts, tokens, "0", 0, 2147483647, "tokens",
            "the first N tokens of a causal trace; 0 = all.", .only = "subset, map", .arg = "N"),
    OPT_INT(struct trace_opts, maps, NULL, 1, 65536, "tokens",
            "cell size; 64, or as many more as give at most 1024 cells a side.", .only = "map",
            .arg = "P"),
    OPT_STR(struct trace_opts, tensors, "q,k,v", "LIST",
            "which of q, k, v, out, lse, map_sum, map_max.", .only = "export"),
    COMMON_OPTS,
    {0},
};

static void print_json(struct buf *b)
{
    puts(buf_str(b));
}

/* ---- info ------------------------------------------------------------------------------------ */

static int info(const struct trace_opts *o, const char *path, struct err *err)
{
    OWN(trace_close) struct trace *t = NULL;
    OWN(buf_free) struct buf b = {0};
    struct jw w;
    PASS_ON(trace_open(path, &t, err));
    if (o->common.json) {
        jw_init(&w, &b, 2);
        PASS_ON(trace_info_json(t, &w, err));
        buf_puts(&b, "\n");
    } else {
        PASS_ON(trace_info_text(t, &b, err));
    }
    PASS_ON(buf_check(&b, "trace info", err));
    text_printf(stdout, "%s", buf_str(&b));
    return 0;
}

/* ---- verify ---------------------------------------------------------------------------------- */

struct findings {
    const char *path;
    bool json;
    struct jw w;
    struct strmap objects; /* paths of damaged ones: each head of one may be a finding */
    bool metadata, failed;
};

static void found(void *ctx, const char *object, int head, const char *what)
{
    struct findings *f = ctx;
    char where[24] = "";
    struct err err = {0};
    f->metadata |= head < 0;
    if (head >= 0 && strmap_put(&f->objects, object, 0, &err) != 0)
        f->failed = true;
    if (f->json) {
        jw_obj(&f->w);
        jw_kstr(&f->w, "object", object);
        jw_key(&f->w, "head");
        if (head >= 0)
            jw_int(&f->w, head);
        else
            jw_null(&f->w);
        jw_kstr(&f->w, "what", what);
        jw_obj_end(&f->w);
        return;
    }
    if (head >= 0)
        snprintf(where, sizeof where, " head %d", head);
    text_printf(stdout, "%s: %s%s: %s\n", f->path, object, where, what);
}

static int rows_to_check(const struct trace_opts *o, int64_t *rows, struct err *err)
{
    char *end;
    if (!o->rows)
        return 0;
    *rows = strtoll(o->rows, &end, 10);
    if (end == o->rows || *end || *rows < 0 || *rows > 1000000000)
        return err_set(err, ERR_USAGE, "trace verify: --rows %s is not a number of rows per head",
                       o->rows);
    return 0;
}

static int verify(const struct trace_opts *o, const char *path, struct err *err)
{
    struct trace *t = NULL;
    struct trace_extent e;
    struct buf b = {0};
    struct findings f = {.path = path, .json = o->common.json};
    int64_t bad = 0, differs = 0, rows = 0;
    int64_t check = 16;
    int rc = 0, jobs = cmd_jobs(&o->common);
    TRY(rows_to_check(o, &check, err));
    TRY(trace_open_damaged(path, &t, err));
    TRY(trace_extent(t, &e, err));
    jw_init(&f.w, &b, 2);
    jw_obj(&f.w);
    jw_members(&f.w, JW_STR("trace", path), JW_INT("objects", e.objects), JW_INT("bytes", e.bytes));
    jw_karr(&f.w, "bad");
    TRY(trace_verify(t, jobs, found, &f, &bad, err));
    /* Numbers of damaged payload would only repeat the finding. */
    if (bad == 0)
        TRY(trace_check_attention(t, jobs, check, found, &f, &differs, &rows, err));
    jw_arr_end(&f.w);
    jw_members(&f.w, JW_INT("rows_recomputed", rows), JW_BOOL("ok", bad + differs == 0));
    jw_obj_end(&f.w);
    TRY(buf_check(&b, "findings", err));
    if (f.json)
        print_json(&b);
    else if (bad + differs == 0)
        printf("ok: %lld objects, %.3f GB%s\n", (long long)e.objects, (double)e.bytes / 1e9,
               rows ? ", stored outputs are those of q, k, v" : "");
    if (f.failed)
        FAIL(err, ERR_NOMEM, "%s: out of memory", path);
    if (bad)
        FAIL(err, ERR_CHECK, "%s: %lld of %lld objects are damaged%s", path, (long long)f.objects.n,
             (long long)e.objects, f.metadata ? ", and metadata were changed" : "");
    if (differs)
        FAIL(err, ERR_CHECK,
             "%s: no object is damaged, but stored outputs of %lld heads are not the attention of "
             "q, k, v%s",
             path, (long long)differs,
             dtype_size(trace_meta(t)->dtype) == 2 && strcmp(trace_meta(t)->compute, "float32") == 0
                 ? " in float32 (compute in import --meta names the type of a model that computes "
                   "in "
                   "another)"
                 : "");
out:
    strmap_free(&f.objects);
    buf_free(&b);
    trace_close(&t);
    return rc;
}

/* ---- pack ------------------------------------------------------------------------------------ */

static int report_pack(const struct trace_opts *o, const struct trace *t, struct err *err)
{
    OWN(trace_close) struct trace *made = NULL;
    struct trace_extent before, after;
    OWN(buf_free) struct buf b = {0};
    struct jw w;
    PASS_ON(trace_open(o->output, &made, err));
    if (o->kv == KV_KEEP && strcmp(trace_id(made), trace_id(t)) != 0)
        return err_set(err, ERR_RUN, "%s has content %s, expected %s", o->output, trace_id(made),
                       trace_id(t));
    PASS_ON(trace_extent(t, &before, err));
    PASS_ON(trace_extent(made, &after, err));
    if (o->common.json) {
        jw_init(&w, &b, 2);
        jw_row(&w, JW_STR("trace", o->output), JW_STR("content_id", trace_id(made)),
               JW_STR("storage", trace_storage_name(trace_storage(made))),
               JW_INT("bytes_before", before.stored), JW_INT("bytes_after", after.stored));
        PASS_ON(buf_check(&b, "result", err));
        print_json(&b);
    } else {
        text_printf(stdout, "%s: %s, %.3f MB -> %.3f MB (%.2f : 1), %s\n", o->output,
                    trace_storage_name(trace_storage(made)), (double)before.stored / 1e6,
                    (double)after.stored / 1e6, (double)before.stored / (double)after.stored,
                    trace_id(made));
        if (o->kv == KV_FP8)
            log_info("what fp8 does to every metric: lacuna replay of both traces with the same "
                     "methods, then lacuna compare DIR DIR --ignore trace");
    }
    return 0;
}

static int pack(const struct trace_opts *o, const char *path, struct err *err)
{
    OWN(trace_close) struct trace *t = NULL;
    enum trace_storage form = o->unpack ? TRACE_CONTIGUOUS : o->gzip ? TRACE_GZIP : TRACE_ZSTD;
    struct trace_extent e;
    if (!o->output)
        return err_set(err, ERR_USAGE, "trace pack: the new file is missing (-o FILE)");
    if (o->gzip && o->unpack)
        return err_set(err, ERR_USAGE, "trace pack: --gzip and --unpack exclude each other");
    PASS_ON(trace_open(path, &t, err));
    PASS_ON(trace_extent(t, &e, err));
    if (o->common.dry_run) {
        text_printf(stdout, "would write %s: %s, %lld objects of %.3f MB\n", o->output,
                    trace_storage_name(form), (long long)e.objects, (double)e.bytes / 1e6);
        return 0;
    }
    PASS_ON((o->kv == KV_FP8 ? trace_pack_fp8 : trace_pack)(
        t, o->output, form, cmd_jobs(&o->common), o->common.force, err));
    return report_pack(o, t, err);
}

/* ---- export ---------------------------------------------------------------------------------- */

static int export_tensors(const struct trace_opts *o, const char *path, struct err *err)
{
    struct trace_selection s = {.layers = o->layers,
                                .heads = o->heads,
                                .steps = o->steps,
                                .branch = o->branch,
                                .tensors = o->tensors};
    OWN(trace_close) struct trace *t = NULL;
    OWN(buf_free) struct buf b = {0};
    struct jw w;
    int64_t n = 0, bytes = 0;
    if (!o->output)
        return err_set(err, ERR_USAGE,
                       "trace export: the target is missing (-o DIR or -o FILE.safetensors)");
    PASS_ON(refuse_input(o->output, path, err));
    PASS_ON(trace_open(path, &t, err));
    PASS_ON(trace_export(t, &s, o->output, o->common.force, o->common.dry_run, &n, &bytes, err));
    if (o->common.json) {
        jw_init(&w, &b, 2);
        jw_row(&w, JW_STR("output", o->output), JW_INT("tensors", n), JW_INT("bytes", bytes));
        PASS_ON(buf_check(&b, "result", err));
        print_json(&b);
    } else {
        text_printf(stdout, "%s%s: %lld tensors, %.3f MB\n",
                    o->common.dry_run ? "would write " : "", o->output, (long long)n,
                    (double)bytes / 1e6);
    }
    return 0;
}

/* ---- subset, join, map ----------------------------------------------------------------------- */

static void close_all(struct trace **t, int64_t n)
{
    for (int64_t i = 0; t && i < n; i++)
        trace_close(&t[i]);
    free(t);
}

static int report_derived(const struct trace_opts *o, const struct derived *d, struct err *err)
{
    OWN(trace_close) struct trace *made = NULL;
    const struct trace_meta *m = &d->meta;
    OWN(buf_free) struct buf b = {0};
    struct jw w;
    if (!o->common.dry_run)
        PASS_ON(trace_open(o->output, &made, err));
    if (o->common.json) {
        jw_init(&w, &b, 2);
        jw_obj(&w);
        jw_kstr(&w, "trace", o->output);
        if (made)
            jw_kstr(&w, "content_id", trace_id(made));
        jw_members(&w, JW_INT("calls", d->calls), JW_INT("bytes", d->bytes));
        trace_meta_json(m, &w);
        jw_obj_end(&w);
        PASS_ON(buf_check(&b, "result", err));
        print_json(&b);
        return 0;
    }
    printf("%s%s: %lld call%s, %d query and %d kv heads, %lld queries, %lld keys",
           made ? "" : "would write ", o->output, (long long)d->calls, d->calls == 1 ? "" : "s",
           m->heads, m->kv_heads, (long long)m->n_q, (long long)m->n_k);
    if (m->pool > 0)
        printf(", maps of cells of %lld", (long long)m->pool);
    printf(", %.3f MB%s%s\n", (double)d->bytes / 1e6, made ? ", " : "", made ? trace_id(made) : "");
    return 0;
}

static int derive(const struct trace_opts *o, const char *name, char *const *paths, int64_t n,
                  int64_t maps, struct err *err)
{
    struct derive_options d = {.layers = o->layers,
                               .heads = o->heads,
                               .steps = o->steps,
                               .branch = o->branch,
                               .tokens = o->tokens,
                               .rows = strcmp(name, "subset") == 0 ? o->rows : NULL,
                               .seed = (uint64_t)o->common.seed,
                               .maps = maps,
                               .jobs = cmd_jobs(&o->common),
                               .force = o->common.force,
                               .dry = o->common.dry_run};
    struct trace **t = NULL;
    struct derived made;
    int rc = 0;
    if (!o->output)
        return err_set(err, ERR_USAGE, "trace %s: the new file is missing (-o FILE)", name);
    TRY(mem_zalloc(&t, n, sizeof *t, "traces", err));
    for (int64_t i = 0; i < n; i++) {
        TRY(refuse_input(o->output, paths[i], err));
        TRY(trace_open(paths[i], &t[i], err));
    }
    if (maps < 0)
        d.maps = map_cell_for(o->tokens ? o->tokens : trace_meta(t[0])->n_k);
    TRY(trace_derive(t, n, &d, o->output, &made, err));
    TRY(report_derived(o, &made, err));
out:
    close_all(t, n);
    return rc;
}

static int subset(const struct trace_opts *o, const char *path, struct err *err)
{
    return derive(o, "subset", (char *const[]){(char *)path}, 1, 0, err);
}

static int map(const struct trace_opts *o, const char *path, struct err *err)
{
    return derive(o, "map", (char *const[]){(char *)path}, 1, o->maps == INT64_MIN ? -1 : o->maps,
                  err);
}

/* ---- command --------------------------------------------------------------------------------- */

static const struct action {
    const char *name;
    int (*run)(const struct trace_opts *o, const char *path, struct err *err);
} actions[] = {{"info", info},     {"verify", verify}, {"pack", pack}, {"export", export_tensors},
               {"subset", subset}, {"join", NULL},     {"map", map}};

#define N_ACTIONS ((int)(sizeof actions / sizeof *actions))

static int find_action(const char *name, const struct action **out, struct err *err)
{
    struct names all = {0};
    for (int i = 0; i < N_ACTIONS; i++) {
        names_add(&all, actions[i].name);
        if (strcmp(name, actions[i].name) == 0) {
            *out = &actions[i];
            return 0;
        }
    }
    names_unknown(&all, "action", name, err);
    return err_prefix(err, "trace");
}

/* info and verify of several traces: one after the other, as JSON an array. What is wrong with one
 * does not hide the others. */
static int run_each(const struct trace_opts *o, const struct action *a,
                    const struct str_list *files, struct err *err)
{
    bool array = o->common.json && files->n > 1;
    int first = 0;
    if (array)
        puts("[");
    for (int64_t i = 0; i < files->n; i++) {
        struct err own = {0};
        if (i)
            fputs(array ? ",\n" : o->common.json ? "" : "\n", stdout);
        int rc = a->run(o, files->items[i], &own);
        if (rc && first)
            log_error("%s", own.msg);
        else if (rc) {
            *err = own;
            first = rc;
        }
    }
    if (array)
        puts("]");
    return first;
}

/* The name of a file without its directories. */
static const char *name_in(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* What an action makes of the trace `path`, in the directory `dir`: of the same name, for export
 * a directory named like the trace without ".h5". */
static int output_of(const char *dir, const char *path, const struct action *a, struct buf *out,
                     struct err *err)
{
    const char *name = name_in(path);
    size_t n = strlen(name);
    if (a->run == export_tensors && ends_with(name, ".h5"))
        n -= 3;
    buf_reset(out);
    buf_printf(out, "%s/%.*s", dir, (int)n, name);
    return buf_check(out, "names of outputs", err);
}

/* Every trace of a set, each to a file of its own in the directory -o. */
static int run_into(const struct trace_opts *o, const struct action *a,
                    const struct str_list *files, struct err *err)
{
    struct trace_opts each = *o;
    OWN(strmap_free) struct strmap names = {0};
    OWN(buf_free) struct buf out = {0};
    if (!o->output || ends_with(o->output, ".h5") || ends_with(o->output, ".safetensors"))
        return err_set(err, ERR_USAGE,
                       "trace %s: of %lld traces each gets a file in a directory (-o DIR)%s%s",
                       a->name, (long long)files->n, o->output ? ", not in one file " : "",
                       o->output ? o->output : "");
    for (int64_t i = 0; i < files->n; i++) {
        if (strmap_get(&names, name_in(files->items[i])) >= 0)
            return err_set(err, ERR_USAGE,
                           "trace %s: two traces are named %s; take them one by one", a->name,
                           name_in(files->items[i]));
        PASS_ON(strmap_put(&names, name_in(files->items[i]), i, err));
    }
    if (!o->common.dry_run)
        PASS_ON(make_dirs(o->output, err));
    if (o->common.json)
        puts("[");
    for (int64_t i = 0; i < files->n; i++) {
        PASS_ON(output_of(o->output, files->items[i], a, &out, err));
        PASS_ON(refuse_input(buf_str(&out), files->items[i], err));
        each.output = (char *)(uintptr_t)buf_str(&out);
        if (i && o->common.json)
            puts(",");
        PASS_ON(a->run(&each, files->items[i], err));
    }
    if (o->common.json)
        puts("]");
    return 0;
}

static int run(const struct app *app, void *opts, struct str_list *rest, struct err *err)
{
    struct trace_opts *o = opts;
    OWN(str_list_free) struct str_list files = {0};
    const struct action *a = NULL;
    char who[32];
    if (rest->n < 1)
        return err_set(err, ERR_USAGE,
                       "trace: one of info, verify, pack, export, subset, join, map was expected");
    PASS_ON(find_action(rest->items[0], &a, err));
    snprintf(who, sizeof who, "trace %s", a->name);
    PASS_ON(opt_check_uses(options, o, who, (const char *const[]){a->name, NULL}, err));
    bool join = !a->run, each = a->run == info || a->run == verify;
    PASS_ON(trace_list(rest->items + 1, rest->n - 1, &files, err));
    if (files.n < 1 + join)
        return err_set(err, ERR_USAGE, "trace %s: %s expected, found %lld", a->name,
                       join ? "at least two traces were" : "a trace was", (long long)files.n);
    if (join)
        return derive(o, a->name, files.items, files.n, 0, err);
    else if (each)
        return run_each(o, a, &files, err);
    else if (files.n > 1)
        return run_into(o, a, &files, err);
    else
        return a->run(o, files.items[0], err);
}

const struct command cmd_trace = {
    .name = "trace",
    .usage = "trace info T.h5\n"
             "trace verify T.h5\n"
             "trace pack T.h5 -o PACKED.h5 [--gzip | --unpack] [--kv fp8]\n"
             "trace export T.h5 -o DIR | FILE.safetensors\n"
             "trace subset T.h5 -o U.h5 [--layers L --heads H --steps S --tokens N --rows N[xR]]\n"
             "trace join A.h5 B.h5 ... -o C.h5\n"
             "trace map T.h5 -o U.h5 [--maps P]\n"
             "trace pack|export|subset|map TRACES... -o DIR",
    .summary = "Look into, check, pack, export, cut and join traces",
    .run = run,
    .options = options,
    .size = sizeof(struct trace_opts),
    .details =
        "info says what the trace holds. verify recomputes every checksum, and, where outputs are\n"
        "stored, some of their rows from q, k and v; it names what is wrong and exits with 1. "
        "pack\n"
        "makes an archive (same content id; replay reads it, slower than the contiguous form).\n"
        "export writes tensors for other programs. subset keeps some layers, heads, steps or\n"
        "tokens; join puts calls of one run that lie in several files into one; map computes "
        "pooled\n"
        "maps, which figures need, of any trace. TRACES are files or directories: of several\n"
        "traces each gets a file of its name in DIR.\n"
        "\n"
        "  lacuna trace info t.h5\n"
        "  lacuna trace verify t.h5 --json\n"
        "  lacuna trace pack t.h5 -o t.packed.h5\n"
        "  lacuna trace export t.h5 --layers 0,3 --heads 0-1 -o heads.safetensors\n"
        "  lacuna trace subset t.h5 --layers 0-3 --tokens 4096 -o small.h5\n"
        "  lacuna trace map t.h5 -o mapped.h5\n",
};
