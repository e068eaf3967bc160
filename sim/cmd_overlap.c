/*
 * cmd_overlap.c - `lacuna overlap`: what two dumped masks of a head share, in pairs and in
 * attention mass.
 *
 * The result is records like those of a replay: method `overlap`, parameters a and b, so that
 * tables group and pivot them. Rows of the exact map exist MAP_ROWS at a time.
 */
#include "core/cmd.h"
#include "core/fileio.h"
#include "core/gemm.h"
#include "core/log.h"
#include "core/manifest.h"
#include "core/maskfile.h"
#include "core/mem.h"
#include "core/pool.h"
#include "sim/blocks/exact.h"
#include "sim/headload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct overlap_opts {
    struct common_opts c;
    char *out;
    int precision;
};

static const char *const precisions[] = {"f64", "f32", NULL};

static const struct opt options[] = {
    OPT_AS("output", OPT_STR, struct overlap_opts, out, NULL,
           .help =
               "Directory for records.jsonl and manifest.json; an interrupted run continues there.",
           .short_name = 'o', .arg = "DIR"),
    OPT_ENUM(struct overlap_opts, precision, "f64", precisions, "Arithmetic of the exact map."),
    COMMON_OPTS,
    {0},
};

/* A dumped mask of one of the traces. */
struct dumped {
    const struct maskfile *file;
    int64_t cell;
    struct record id; /* owned */
    int64_t trace;    /* its number */
    int64_t call;     /* of the trace */
};

struct overlap {
    struct trace **traces; /* owned */
    int64_t n_traces;
    struct maskfile **files; /* owned */
    int64_t n_files;
    struct dumped *masks; /* owned; by call, head, method, parameters */
    int64_t n, cap;
    int64_t *starts; /* owned: masks [starts[i], starts[i + 1]) are of one head */
    int64_t n_heads;
    struct head_load load;
    struct record_file *records;
    int64_t strangers; /* masks of other traces */
};

/* ---- which masks ---------------------------------------------------------------------------- */

static void find_call(const struct overlap *o, struct dumped *d)
{
    d->call = -1;
    for (int64_t i = 0; i < o->n_traces && d->call < 0; i++)
        if (strcmp(d->id.trace, trace_id(o->traces[i])) == 0) {
            d->trace = i;
            d->call = trace_find(o->traces[i], d->id.step, d->id.branch, d->id.layer);
        }
}

static int add_masks(struct overlap *o, const struct maskfile *file, struct err *err)
{
    for (int64_t i = 0; i < maskfile_cells(file); i++) {
        PASS_ON(mem_grow(&o->masks, &o->cap, o->n + 1, sizeof *o->masks, "masks", err));
        struct dumped *d = o->masks + o->n;
        *d = (struct dumped){.file = file, .cell = i};
        PASS_ON(maskfile_cell(file, i, &d->id, err));
        find_call(o, d);
        if (d->call < 0)
            record_free(&d->id);
        *(d->call < 0 ? &o->strangers : &o->n) += 1;
    }
    return 0;
}

static int by_head(const void *a, const void *b)
{
    const struct dumped *x = a, *y = b;
    if (x->trace != y->trace)
        return x->trace < y->trace ? -1 : 1;
    if (x->call != y->call)
        return x->call < y->call ? -1 : 1;
    if (x->id.head != y->id.head)
        return x->id.head - y->id.head;
    int d = strcmp(x->id.method, y->id.method);
    return d ? d : strcmp(x->id.params, y->id.params);
}

static bool same_head(const struct dumped *a, const struct dumped *b)
{
    return a->trace == b->trace && a->call == b->call && a->id.head == b->id.head;
}

static int group_heads(struct overlap *o, const char *path, struct err *err)
{
    int64_t pairs = 0;
    qsort(o->masks, (size_t)o->n, sizeof *o->masks, by_head);
    PASS_ON(mem_alloc(&o->starts, o->n + 1, sizeof *o->starts, "heads", err));
    for (int64_t i = 0; i < o->n; i++) {
        if (i == 0 || !same_head(o->masks + i - 1, o->masks + i))
            o->starts[o->n_heads++] = i;
        pairs += i - o->starts[o->n_heads - 1];
    }
    o->starts[o->n_heads] = o->n;
    if (o->strangers)
        log_warn("%lld masks are of other traces than %s and are left out", (long long)o->strangers,
                 path);
    if (pairs == 0)
        return err_set(
            err, ERR_INPUT,
            "no head of %s has two masks: dump those of several methods (lacuna replay %s -m A -m "
            "B -o DIR --dump-masks M.h5)",
            path, path);
    return 0;
}

/* ---- one head ------------------------------------------------------------------------------- */

/* Two masks of the head, by number: sums over the rows so far, and the record. */
struct pair {
    int64_t a, b;
    int64_t kept_a, kept_b, both;
    double mass_a, mass_b, mass_both;
    struct record rec; /* owned */
    bool done;         /* has a record already, of a run that ended within this head */
};

/* One mask of the head while rows are walked. */
struct walked {
    struct mask mask;
    struct span *spans; /* of the row, owned */
    int64_t n;
};

static void add_spans(const struct walked *w, const double *sum, int64_t *pairs, double *mass)
{
    for (int64_t i = 0; i < w->n; i++) {
        *pairs += w->spans[i].hi - w->spans[i].lo;
        *mass += sum[w->spans[i].hi] - sum[w->spans[i].lo];
    }
}

static void add_both(const struct walked *a, const struct walked *b, const double *sum,
                     struct pair *s)
{
    for (int64_t i = 0, k = 0; i < a->n && k < b->n;) {
        int64_t lo = a->spans[i].lo > b->spans[k].lo ? a->spans[i].lo : b->spans[k].lo;
        int64_t hi = a->spans[i].hi < b->spans[k].hi ? a->spans[i].hi : b->spans[k].hi;
        if (lo < hi) {
            s->both += hi - lo;
            s->mass_both += sum[hi] - sum[lo];
        }
        if (a->spans[i].hi < b->spans[k].hi)
            i++;
        else
            k++;
    }
}

static int walk_rows(const struct head_in *in, struct walked *w, int64_t n, struct pair *pairs,
                     int64_t n_pairs, struct err *err)
{
    struct map_rows rows = {0};
    double *sum = NULL; /* sum[j] = mass of the keys before j */
    int rc = 0;
    TRY(map_rows_init(&rows, in->exact, MAP_PROBS, err));
    TRY(mem_zalloc(&sum, in->x.nk + 1, sizeof *sum, "row of the map", err));
    int64_t n_rows = w->mask.nq, first = in->x.nq - n_rows;
    for (int64_t i = 0; i < n_rows; i++) {
        const double *p;
        TRY(map_rows_get(&rows, first + i, &p, err));
        for (int64_t j = 0; j < in->x.nk; j++)
            sum[j + 1] = sum[j] + p[j];
        for (int64_t m = 0; m < n; m++)
            w[m].n = mask_row_spans(&w[m].mask, i, w[m].spans);
        for (struct pair *s = pairs; s < pairs + n_pairs; s++) {
            add_spans(w + s->a, sum, &s->kept_a, &s->mass_a);
            add_spans(w + s->b, sum, &s->kept_b, &s->mass_b);
            add_both(w + s->a, w + s->b, sum, s);
        }
    }
out:
    map_rows_free(&rows);
    free(sum);
    return rc;
}

/* "sale tau=0.004 bits=16": parameters of a record must not hold ':' within a value. */
static void setting_text(const struct record *r, struct buf *b)
{
    buf_printf(b, "%s%s", r->method, r->params && r->params[0] ? " " : "");
    for (const char *p = r->params ? r->params : ""; *p; p++)
        buf_put(b, *p == ':' ? " " : p, 1);
}

static int pair_identity(const struct overlap *o, const struct dumped *a, const struct dumped *b,
                         struct record *rec, struct err *err)
{
    const struct trace *t = o->traces[a->trace];
    const struct trace_meta *m = trace_meta(t);
    OWN(buf_free) struct buf params = {0};
    snprintf(rec->trace, sizeof rec->trace, "%s", trace_id(t));
    record_text(rec, &rec->model, "%s", m->name);
    rec->step = a->id.step;
    rec->layer = a->id.layer;
    rec->head = a->id.head;
    snprintf(rec->branch, sizeof rec->branch, "%s", a->id.branch);
    snprintf(rec->method, sizeof rec->method, "overlap");
    snprintf(rec->precision, sizeof rec->precision, "%s",
             o->load.precision == PREC_F64 ? "f64" : "f32");
    rec->n_q = m->n_q;
    rec->n_k = m->n_k;
    rec->d = m->head_dim;
    rec->causal = trace_causal(m, &trace_call(t, a->call)->score);
    rec->seed = a->id.seed;
    buf_puts(&params, "a=");
    setting_text(&a->id, &params);
    buf_puts(&params, ":b=");
    setting_text(&b->id, &params);
    PASS_ON(buf_check(&params, "parameters", err));
    if (!(rec->params = strdup(buf_str(&params))))
        return err_set(err, ERR_NOMEM, "record: out of memory");
    return 0;
}

static double share(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

static int put_metrics(struct pair *s, int64_t nq, struct err *err)
{
    return RECORD_ALL(
        &s->rec, err,
        {"overlap_iou", share((double)s->both, (double)(s->kept_a + s->kept_b - s->both))},
        {"overlap_a_in_b", share(s->mass_both, s->mass_a)},
        {"overlap_b_in_a", share(s->mass_both, s->mass_b)},
        {"overlap_only_a", (s->mass_a - s->mass_both) / (double)nq},
        {"overlap_only_b", (s->mass_b - s->mass_both) / (double)nq});
}

/* Is the mask in the order in which tokens are stored? */
static int in_order(const struct dumped *d, bool *stored, struct err *err)
{
    char order[MASKFILE_ORDER];
    int rc = maskfile_order(d->file, d->cell, order, err);
    *stored = !rc && (strcmp(order, "none") == 0 || strcmp(order, "row") == 0);
    return rc;
}

static int deliver(struct overlap *o, const struct dumped *masks, struct pair *p, int64_t nq,
                   struct err *err)
{
    bool ok_a, ok_b;
    if (p->done)
        return 0;
    PASS_ON(in_order(masks + p->a, &ok_a, err));
    PASS_ON(in_order(masks + p->b, &ok_b, err));
    if (ok_a && ok_b) {
        PASS_ON(put_metrics(p, nq, err));
    } else {
        p->rec.status = RECORD_SKIP;
        record_text(&p->rec, &p->rec.reason,
                    "the rows of a mask are in another token order than the trace's");
    }
    return record_file_append(o->records, &p->rec, err);
}

/* All pairs of n masks; *done: each has a record. */
static int find_pairs(struct overlap *o, const struct dumped *masks, int64_t n, struct pair *p,
                      bool *done, struct err *err)
{
    *done = true;
    for (int64_t a = 0; a < n; a++)
        for (int64_t b = a + 1; b < n; b++, p++) {
            p->a = a;
            p->b = b;
            record_init(&p->rec);
            PASS_ON(pair_identity(o, masks + a, masks + b, &p->rec, err));
            PASS_ON(record_file_holds(o->records, &p->rec, &p->done, err));
            *done &= p->done;
        }
    return 0;
}

/* Masks of all stored rows, or all of the steps of the decode phase, which are the last rows. */
static int load_masks(const struct dumped *masks, int64_t n, const struct head_in *in,
                      int64_t steps, struct walked *w, struct err *err)
{
    for (int64_t i = 0; i < n; i++) {
        struct mask *m = &w[i].mask;
        PASS_ON(maskfile_read(masks[i].file, masks[i].cell, m, err));
        bool fits = m->nq == in->x.nq || m->nq == steps;
        if (!fits || m->nq != w[0].mask.nq || m->nk != in->x.nk)
            return err_set(err, ERR_INPUT, "mask of %s: %lld x %lld, the head has %lld x %lld",
                           masks[i].id.method, (long long)m->nq, (long long)m->nk,
                           (long long)in->x.nq, (long long)in->x.nk);
        PASS_ON(mem_alloc(&w[i].spans, mask_max_spans(m), sizeof *w[i].spans, "spans", err));
    }
    return 0;
}

static int do_head(void *ctx, int64_t item, int worker, struct err *err)
{
    struct overlap *o = ctx;
    int64_t n = o->starts[item + 1] - o->starts[item], n_pairs = n * (n - 1) / 2;
    const struct dumped *masks = o->masks + o->starts[item];
    const struct trace *t = o->traces[masks->trace];
    struct sim_head h = {0};
    struct walked *w = NULL;
    struct pair *pairs = NULL;
    bool done;
    int rc = 0;

    TRY(mem_zalloc(&pairs, n_pairs, sizeof *pairs, "pairs of masks", err));
    TRY(mem_zalloc(&w, n, sizeof *w, "masks", err));
    TRY(find_pairs(o, masks, n, pairs, &done, err));
    if (done)
        goto out;
    int head = trace_head_find(trace_meta(t), masks->id.head);
    if (head < 0)
        FAIL(err, ERR_INPUT, "%s has no head %d", trace_path(t), masks->id.head);
    TRY(head_load(t, masks->call, head, &o->load, &h, err));
    TRY(load_masks(masks, n, &h.in, trace_decode(trace_meta(t)).steps, w, err));
    TRY(walk_rows(&h.in, w, n, pairs, n_pairs, err));
    for (int64_t i = 0; i < n_pairs; i++)
        TRY(deliver(o, masks, pairs + i, w->mask.nq, err));
out:
    for (int64_t i = 0; w && i < n; i++) {
        mask_free(&w[i].mask);
        free(w[i].spans);
    }
    for (int64_t i = 0; pairs && i < n_pairs; i++)
        record_free(&pairs[i].rec);
    free(w);
    free(pairs);
    sim_head_free(&h);
    return rc;
}

/* ---- the command ---------------------------------------------------------------------------- */

static int open_inputs(struct overlap *o, const struct str_list *paths, struct err *err)
{
    if (paths->n < 2)
        return err_set(err, ERR_USAGE,
                       "overlap: a trace and a file of masks are needed (lacuna overlap T.h5 "
                       "M.h5 -o DIR)");
    PASS_ON(traces_open(paths->items, 1, &o->traces, &o->n_traces, err));
    PASS_ON(traces_whole(o->traces, o->n_traces, "masks are of all rows", err));
    PASS_ON(mem_zalloc(&o->files, paths->n, sizeof *o->files, "mask files", err));
    for (int64_t i = 1; i < paths->n; i++) {
        PASS_ON(maskfile_open(paths->items[i], &o->files[o->n_files], err));
        PASS_ON(add_masks(o, o->files[o->n_files++], err));
    }
    return group_heads(o, paths->items[0], err);
}

static void close_inputs(struct overlap *o)
{
    for (int64_t i = 0; i < o->n; i++)
        record_free(&o->masks[i].id);
    for (int64_t i = 0; i < o->n_files; i++)
        maskfile_close(&o->files[i]);
    free(o->masks);
    free(o->starts);
    free(o->files);
    traces_close(&o->traces, o->n_traces);
}

static int execute(const struct app *app, struct overlap *o, const struct overlap_opts *opt,
                   struct err *err)
{
    struct manifest *manifest = NULL;
    struct buf path = {0};
    struct err own = {0};
    int rc = 0;

    TRY(make_dirs(opt->out, err));
    buf_printf(&path, "%s/records.jsonl", opt->out);
    TRY(record_file_open(buf_str(&path), &o->records, err));
    if (opt->c.force)
        TRY(record_file_clear(o->records, err));
    TRY(manifest_start(opt->out, app->argc, app->argv, &manifest, err));
    for (int64_t i = 0; i < o->n_traces; i++)
        TRY(manifest_input(manifest, trace_path(o->traces[i]), trace_id(o->traces[i]), err));
    TRY(manifest_write(manifest, err));
    TRY(gemm_ready(err));
    TRY(pool_run(cmd_jobs(&opt->c), o->n_heads, do_head, o, err));
    log_info("%s: %lld heads, %lld masks", opt->out, (long long)o->n_heads, (long long)o->n);
out:
    if (o->records && record_file_sync(o->records, &own) != 0 && rc == 0)
        rc = err_set(err, own.code, "%s", own.msg);
    record_file_close(&o->records);
    err_clear(&own);
    buf_free(&path);
    return manifest_end(&manifest, rc, err);
}

static int run(const struct app *app, void *opts, struct str_list *args, struct err *err)
{
    const struct overlap_opts *opt = opts;
    OWN(close_inputs) struct overlap o = {0};

    if (!opt->out && !opt->c.dry_run)
        return err_set(err, ERR_USAGE, "overlap: -o DIR is missing");
    o.load.precision = opt->precision == 0 ? PREC_F64 : PREC_F32;
    PASS_ON(open_inputs(&o, args, err));
    if (opt->c.dry_run)
        printf("%lld heads with %lld masks\n", (long long)o.n_heads, (long long)o.n);
    else
        return execute(app, &o, opt, err);
    return 0;
}

const struct command cmd_overlap = {
    .name = "overlap",
    .usage = "overlap T.h5 M.h5... -o DIR\n"
             "overlap TRACES M.h5... -o DIR",
    .summary = "compare dumped masks pair by pair: shared pairs, shared attention mass",
    .run = run,
    .options = options,
    .size = sizeof(struct overlap_opts),
    .details =
        "M.h5 are files of `lacuna replay T.h5 -m A -m B -o DIR --dump-masks M.h5`; TRACES is a\n"
        "directory of traces. For every head\n"
        "and every two masks of it a record is written, with method `overlap` and the settings as\n"
        "parameters a and b: overlap_iou (of kept pairs), overlap_a_in_b (share of a's mass that "
        "b\n"
        "keeps too), overlap_only_a (share of all mass that a alone keeps), and the same for b.\n"
        "\n"
        "Examples:\n"
        "  lacuna overlap t.h5 m.h5 -o shared\n"
        "  lacuna analyze shared --columns 'overlap_*'\n"
        "  lacuna analyze shared --group a --pivot b --columns overlap_iou\n",
};
