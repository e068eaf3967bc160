/*
 * cmd_mask.c - lacuna mask list|export: dumped masks as data.
 */
#include "analyze/maskexport.h"
#include "core/cmd.h"
#include "core/fileio.h"
#include "core/indexlist.h"
#include "core/log.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const formats[] = {"dense", "blockmask", "bsr", NULL};

struct mask_opts {
    struct common_opts common;
    char *output, *layers, *heads, *steps, *branch, *trace, *method, *unit;
    int64_t pick;
    int format;
    bool cells;
};

static const struct opt options[] = {
    OPT_STR(struct mask_opts, output, NULL, "FILE", "export: a .safetensors file.",
            .short_name = 'o'),
    OPT_ENUM(struct mask_opts, format, "blockmask", formats,
             "export: dense booleans, the lists of a FlexAttention BlockMask, FlashInfer's BSR."),
    OPT_STR(struct mask_opts, unit, NULL, "QxK",
            "export: blocks of so many queries x keys; the mask's own unit if not given."),
    OPT_INT(struct mask_opts, pick, NULL, 0, 1e6, "",
            "The setting with this number, as list has them.", .arg = "N"),
    OPT_STR(struct mask_opts, method, NULL, "NAME", "Settings of this method."),
    OPT_STR(struct mask_opts, layers, "all", "LIST", "Layers, as in 0,4-7."),
    OPT_STR(struct mask_opts, heads, "all", "LIST", "Query heads."),
    OPT_STR(struct mask_opts, steps, "all", "LIST", "Denoising steps."),
    OPT_STR(struct mask_opts, branch, NULL, "NAME", "Guidance branch; all if not given."),
    OPT_STR(struct mask_opts, trace, NULL, "ID", "Masks of the trace whose id begins so."),
    OPT_BOOL(struct mask_opts, cells, "0", "list: a line per mask."),
    COMMON_OPTS,
    {0},
};

/* An open dump and the entries that the options choose. */
struct chosen {
    struct maskfile *file;
    struct mask_index index;
    int64_t *entries, n; /* of the index */
};

static void chosen_free(struct chosen *c)
{
    maskfile_close(&c->file);
    mask_index_free(&c->index);
    free(c->entries);
}

struct wanted {
    int64_t *layers, *heads, *steps, n_layers, n_heads, n_steps;
};

static bool takes(const struct mask_opts *o, const struct wanted *w, const struct mask_index *x,
                  const struct mask_entry *e)
{
    return index_list_has(w->layers, w->n_layers, e->layer) &&
           index_list_has(w->heads, w->n_heads, e->head) &&
           index_list_has(w->steps, w->n_steps, e->step) &&
           (!o->branch || strcmp(o->branch, e->branch) == 0) &&
           (!o->trace || strncmp(o->trace, e->trace, strlen(o->trace)) == 0) &&
           (o->pick == INT64_MIN || o->pick == e->setting) &&
           (!o->method || strcmp(o->method, x->settings[e->setting].method) == 0);
}

static int choose(const struct mask_opts *o, const char *path, struct chosen *c, struct err *err)
{
    struct wanted w = {0};
    int rc = 0;
    TRY(index_list_parse(o->layers, -1, "--layers", &w.layers, &w.n_layers, err));
    TRY(index_list_parse(o->heads, -1, "--heads", &w.heads, &w.n_heads, err));
    TRY(index_list_parse(o->steps, -1, "--steps", &w.steps, &w.n_steps, err));
    TRY(maskfile_open(path, &c->file, err));
    TRY(mask_index_make(c->file, &c->index, err));
    TRY(mem_alloc(&c->entries, c->index.n, sizeof *c->entries, "masks", err));
    for (int64_t i = 0; i < c->index.n; i++)
        if (takes(o, &w, &c->index, &c->index.entries[i]))
            c->entries[c->n++] = i;
    if (c->n == 0)
        rc = err_set(err, ERR_INPUT, "%s: none of its %lld masks is chosen", path,
                     (long long)c->index.n);
out:
    free(w.layers);
    free(w.heads);
    free(w.steps);
    return rc;
}

/* ---- list ------------------------------------------------------------------------------------ */

/* A number of a mask's entry: offset of an int. */
static int number_at(const struct chosen *c, int64_t i, size_t offset)
{
    int x;
    memcpy(&x, (const char *)&c->index.entries[c->entries[i]] + offset, sizeof x);
    return x;
}

/* "0-3,7": the values of an int member of the chosen masks of a setting. */
static void put_range(const struct chosen *c, int setting, size_t offset, struct buf *b)
{
    int from = -1, last = -2;
    for (int next = -1;;) {
        int least = INT32_MAX;
        for (int64_t i = 0; i < c->n; i++) {
            int x = number_at(c, i, offset);
            if (c->index.entries[c->entries[i]].setting == setting && x > next && x < least)
                least = x;
        }
        if (least != last + 1 || least == INT32_MAX) {
            if (from >= 0 && last > from)
                buf_printf(b, "-%d", last);
            if (least == INT32_MAX)
                return;
            buf_printf(b, "%s%d", from >= 0 ? "," : "", least);
            from = least;
        }
        next = last = least;
    }
}

static void put_settings(const struct chosen *c, struct buf *b)
{
    buf_puts(b, "  N  masks  steps layers heads  setting\n");
    for (int k = 0; k < c->index.n_settings; k++) {
        struct buf where = {0}, name = {0};
        int64_t masks = 0;
        for (int64_t i = 0; i < c->n; i++)
            masks += c->index.entries[c->entries[i]].setting == k;
        if (!masks)
            continue;
        put_range(c, k, offsetof(struct mask_entry, step), &where);
        buf_puts(&where, "  ");
        put_range(c, k, offsetof(struct mask_entry, layer), &where);
        buf_puts(&where, "  ");
        put_range(c, k, offsetof(struct mask_entry, head), &where);
        mask_setting_text(&c->index.settings[k], &name);
        buf_printf(b, "%3d %6lld  %s  %s\n", k, (long long)masks, buf_str(&where), buf_str(&name));
        buf_free(&where);
        buf_free(&name);
    }
}

static void put_cells(const struct chosen *c, struct buf *b)
{
    buf_puts(b, "cell  step branch layer head  N  queries x keys  order  trace\n");
    for (int64_t i = 0; i < c->n; i++) {
        const struct mask_entry *e = &c->index.entries[c->entries[i]];
        buf_printf(b, "%4lld  %4d %6s %5d %4d %2d  %lld x %lld  %s  %.21s\n", (long long)e->cell,
                   e->step, e->branch, e->layer, e->head, e->setting, (long long)e->nq,
                   (long long)e->nk, e->order, e->trace);
    }
}

static void put_json(const struct chosen *c, struct jw *w)
{
    jw_obj(w);
    jw_karr(w, "settings");
    for (int64_t k = 0; k < c->index.n_settings; k++)
        jw_row(w, JW_INT("pick", k), JW_STR("method", c->index.settings[k].method),
               JW_STR("params", c->index.settings[k].params),
               JW_INT("masks", c->index.settings[k].cells));
    jw_arr_end(w);
    jw_karr(w, "masks");
    for (int64_t i = 0; i < c->n; i++) {
        const struct mask_entry *e = &c->index.entries[c->entries[i]];
        jw_row(w, JW_INT("cell", e->cell), JW_INT("pick", e->setting), JW_INT("step", e->step),
               JW_STR("branch", e->branch), JW_INT("layer", e->layer), JW_INT("head", e->head),
               JW_INT("n_q", e->nq), JW_INT("n_k", e->nk), JW_BOOL("causal", e->causal),
               JW_STR("order", e->order), JW_STR("trace", e->trace));
    }
    jw_arr_end(w);
    jw_obj_end(w);
}

static int list(const struct mask_opts *o, const char *path, struct err *err)
{
    OWN(chosen_free) struct chosen c = {0};
    OWN(buf_free) struct buf b = {0};
    struct jw w;
    PASS_ON(choose(o, path, &c, err));
    if (o->common.json) {
        jw_init(&w, &b, 2);
        put_json(&c, &w);
        buf_puts(&b, "\n");
    } else if (o->cells) {
        put_cells(&c, &b);
    } else {
        put_settings(&c, &b);
    }
    PASS_ON(buf_check(&b, "list of masks", err));
    fputs(buf_str(&b), stdout);
    return 0;
}

/* ---- export ---------------------------------------------------------------------------------- */

/* The entries are of one setting and one trace: names of tensors tell neither apart. */
static int check_chosen(const char *path, const struct chosen *c, struct err *err)
{
    const struct mask_entry *first = &c->index.entries[c->entries[0]];
    for (int64_t i = 1; i < c->n; i++) {
        const struct mask_entry *e = &c->index.entries[c->entries[i]];
        if (e->setting != first->setting)
            return err_set(err, ERR_USAGE,
                           "%s: masks of several settings are chosen; give --pick N (lacuna mask "
                           "list %s)",
                           path, path);
        if (strcmp(e->trace, first->trace) != 0)
            return err_set(
                err, ERR_USAGE,
                "%s: masks of several traces are chosen; give --trace %.21s, for example", path,
                first->trace);
    }
    if (strcmp(first->order, "none") != 0)
        log_warn(
            "%s: queries and keys of these masks are in the token order %s; the tensors are too",
            path, first->order);
    return 0;
}

/* "64x64": queries x keys of a block. */
static int parse_unit(const char *text, struct mask_export *how, struct err *err)
{
    long long q = 0, k = 0;
    int end = 0;
    if (how->format == MASK_AS_DENSE)
        return err_set(err, ERR_USAGE, "mask export: --unit has no effect on --format dense");
    if (sscanf(text, "%7lldx%7lld%n", &q, &k, &end) != 2 || text[end] || q < 1 || k < 1)
        return err_set(err, ERR_USAGE,
                       "mask export: --unit %s: expected queries x keys, as in 64x64", text);
    how->bq = q;
    how->bk = k;
    return 0;
}

static int check_output(const struct mask_opts *o, const char *path, struct err *err)
{
    size_t n = o->output ? strlen(o->output) : 0;
    if (n < 13 || strcmp(o->output + n - 12, ".safetensors") != 0)
        return err_set(err, ERR_USAGE, "mask export: the target is missing (-o FILE.safetensors)");
    PASS_ON(refuse_existing(o->output, o->common.force, err));
    return refuse_input(o->output, path, err);
}

static int export(const struct mask_opts *o, const char *path, struct err *err)
{
    OWN(chosen_free) struct chosen c = {0};
    struct mask_export how = {.format = (enum mask_format)o->format};
    struct mask_exported done;
    OWN(buf_free) struct buf b = {0};
    struct jw w;
    PASS_ON(check_output(o, path, err));
    if (o->unit)
        PASS_ON(parse_unit(o->unit, &how, err));
    PASS_ON(choose(o, path, &c, err));
    PASS_ON(check_chosen(path, &c, err));
    how.entries = c.entries;
    how.n = c.n;
    if (o->common.dry_run) {
        printf("would write %lld masks to %s\n", (long long)c.n, o->output);
        return 0;
    }
    PASS_ON(mask_export(c.file, &c.index, &how, o->output, &done, err));
    if (o->common.json) {
        jw_init(&w, &b, 2);
        jw_row(&w, JW_STR("output", o->output), JW_INT("masks", done.masks),
               JW_INT("tensors", done.tensors), JW_INT("bytes", done.bytes),
               JW_NUM("added", done.added));
        PASS_ON(buf_check(&b, "result", err));
        puts(buf_str(&b));
    } else {
        printf("%s: %lld masks in %lld tensors, %.3f MB", o->output, (long long)done.masks,
               (long long)done.tensors, (double)done.bytes / 1e6);
        if (how.format != MASK_AS_DENSE)
            printf("; whole blocks add at most %.4f of a mask's allowed pairs", done.added);
        puts("");
    }
    return 0;
}

/* ---- command --------------------------------------------------------------------------------- */

static int run(const struct app *app, void *opts, struct str_list *rest, struct err *err)
{
    static const char *const actions[] = {"list", "export"};
    struct mask_opts *o = opts;
    struct names all = {0};
    int rc = 0;
    names_add(&all, actions[0]);
    names_add(&all, actions[1]);
    if (rest->n < 1)
        FAIL(err, ERR_USAGE, "mask: one of list, export was expected");
    bool is_list = strcmp(rest->items[0], actions[0]) == 0;
    if (!is_list && strcmp(rest->items[0], actions[1]) != 0) {
        rc = names_unknown(&all, "action", rest->items[0], err);
        err_prefix(err, "mask");
        goto out;
    }
    if (rest->n != 2)
        FAIL(err, ERR_USAGE, "mask %s: one file of dumped masks was expected, found %lld",
             rest->items[0], (long long)rest->n - 1);
    rc = is_list ? list(o, rest->items[1], err) : export(o, rest->items[1], err);
out:
    return rc;
}

const struct command cmd_mask = {
    .name = "mask",
    .usage = "mask list M.h5 [--cells]\n"
             "mask export M.h5 --format dense|blockmask|bsr -o FILE.safetensors",
    .summary = "List dumped masks and export them to other libraries",
    .run = run,
    .options = options,
    .size = sizeof(struct mask_opts),
    .details =
        "M.h5 is the file of `lacuna replay --dump-masks`. list says which settings have masks\n"
        "of which steps, layers and heads; --cells and --json name every mask. export writes\n"
        "the masks of one setting: dense booleans, kv_num_blocks and kv_indices of a\n"
        "FlexAttention BlockMask, or indptr and indices of FlashInfer's block-sparse rows.\n"
        "Blocks hold what the mask keeps and perhaps more: the share that they add is printed.\n"
        "The method mask reads these files back.\n"
        "\n"
        "  lacuna mask list m.h5\n"
        "  lacuna mask list m.h5 --layers 3 --heads 0 --cells\n"
        "  lacuna mask export m.h5 --pick 1 --format bsr --unit 64x64 -o m.safetensors\n"
        "  lacuna replay t.h5 -m mask:file=m.safetensors -o back\n",
};
