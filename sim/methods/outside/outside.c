/*
 * outside.c - the method mask: a mask that was made elsewhere: measured like that of any method.
 *
 *   the file decides which pairs are kept; exact softmax over them, all metrics
 *
 * No paper. Files: masks that lacuna replay --dump-masks wrote, boolean or block arrays, compressed
 * rows (FlashInfer's BSR), the lists of a FlexAttention BlockMask, and MInference's table of
 * patterns, which the method minference then reads. doc/methods/mask.md has the rules of names.
 *
 * Own arithmetic of the method that made a mask (8-bit products, weights, skipped P V) is not
 * repeated: the mask of spargeattn is measured with exact softmax.
 */
#include "core/fileio.h"
#include "core/hash.h"
#include "core/mem.h"
#include "sim/methods/outside/maskset.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern const struct method method_minference;

enum match { MATCH_NAMES, MATCH_ORDER };

struct params {
    char *file, *unit, *order, *id;
    int match;
    int64_t pick;
};

static const struct opt options[] = {
    OPT_STR(
        struct params, file, NULL, NULL,
        "Masks: a dump of lacuna replay, .npy, .npz, .safetensors, HDF5, or MInference's .json.",
        .flags = OPT_REQUIRED, .unit = "file"),
    OPT_STR(struct params, unit, NULL, NULL,
            "Size of the blocks of arrays, such as 64x64; unset: the file says it, or pairs.",
            .unit = "queries x keys"),
    OPT_INT(struct params, pick, NULL, 0, 1e6, "",
            "Which setting of a dump with several, by its number in lacuna mask list."),
    OPT_ENUM(struct params, match, "names", TEXTS("names", "order"),
             "order: take a dump's masks for another trace of the same shape."),
    OPT_STR(struct params, order, NULL, NULL,
            "Token order of the mask's rows and keys (as --permute); a dump says it itself."),
    OPT_STR(struct params, id, NULL, NULL,
            "Content of the file; filled in, and refused where the file has another.",
            .unit = "checksum"),
    {0},
};

static const struct metric_def metrics[] = {
    OWN_METRIC("pairs_dropped", "pairs of a mask from outside that were left out because their "
                                "unit lies after all its queries (causal)"),
    {0},
};

/* ---- the file ------------------------------------------------------------------------------- */

/* First half of the checksum of the whole file. */
static int content_id(const char *path, char text[17], struct err *err)
{
    enum { STEP = 4 << 20 };
    struct hash_state *h = NULL;
    char full[HASH_TEXT_MAX], *data = NULL;
    int64_t size = 0;
    int fd = -1, rc = 0;

    TRY(io_open(path, &fd, &size, err));
    TRY(hash_new(&h, err));
    TRY(mem_alloc(&data, STEP, 1, path, err));
    for (int64_t at = 0; at < size; at += STEP) {
        int64_t n = size - at < STEP ? size - at : STEP;
        TRY(io_read_at(fd, path, size, at, data, n, err));
        hash_update(h, data, (size_t)n);
    }
    hash_text(hash_digest(h), full);
    snprintf(text, 17, "%s", strchr(full, ':') + 1);
out:
    if (fd >= 0)
        close(fd);
    hash_free(h);
    free(data);
    return rc;
}

/* Set a text that is not given, or compare it. */
static int settle(char **text, const char *is, const char *name, const char *path, struct err *err)
{
    if (*text && strcmp(*text, is) != 0)
        return err_set(err, ERR_USAGE, "%s=%s, but %s has %s", name, *text, path, is);
    if (!*text && !(*text = strdup(is)))
        return err_set(err, ERR_NOMEM, "%s: out of memory", path);
    return 0;
}

/* The setting that is picked, and the order of its masks. */
static int identify_dump(struct params *p, const struct maskset *s, struct err *err)
{
    const struct mask_index *x = &s->index;
    const char *order = NULL;
    int setting, rc = maskset_setting(s, p->pick, &setting, err);

    for (int64_t i = 0; i < x->n && !rc; i++) {
        const struct mask_entry *e = &x->entries[i];
        if (e->setting != setting)
            continue;
        if (order && strcmp(order, e->order) != 0)
            rc = err_set(err, ERR_INPUT, "%s: its masks are in the token orders %s and %s", p->file,
                         order, e->order);
        order = e->order;
    }
    if (!rc && order && strcmp(order, "none") != 0)
        rc = settle(&p->order, order, "order", p->file, err);
    return rc;
}

/* A parameter that would change nothing is refused. */
static int check_kind(const struct params *p, enum maskset_kind kind, struct err *err)
{
    bool dump = kind == MASKSET_DUMP, table = kind == MASKSET_TABLE;
    const char *idle = !dump && p->pick != INT64_MIN      ? "pick"
                       : !dump && p->match != MATCH_NAMES ? "match"
                       : (dump || table) && p->unit       ? "unit"
                       : table && p->order                ? "order"
                                                          : NULL;
    return idle ? err_set(err, ERR_USAGE, "%s has no effect on %s, which is %s", idle, p->file,
                          dump    ? "a dump of masks"
                          : table ? "a table of patterns"
                                  : "a file of arrays")
                : 0;
}

static int identify(void *params, struct err *err)
{
    struct params *p = params;
    struct maskset *s = NULL;
    char id[17];
    int rc = 0;

    TRY(content_id(p->file, id, err));
    TRY(maskset_open(p->file, &s, err));
    TRY(check_kind(p, s->kind, err));
    if (s->kind == MASKSET_DUMP)
        TRY(identify_dump(p, s, err));
    TRY(settle(&p->id, id, "id", p->file, err));
out:
    maskset_close(&s);
    return rc;
}

static int validate(void *params, struct err *err)
{
    const struct params *p = params;
    int64_t bq, bk;
    return p->unit ? unit_parse(p->unit, &bq, &bk, err) : 0;
}

static const char *order_of(const void *params)
{
    return ((const struct params *)params)->order;
}

static int open_session(const void *params, void **session, struct err *err)
{
    struct maskset *s = NULL;
    int rc = maskset_open(((const struct params *)params)->file, &s, err);
    *session = s;
    return rc;
}

static void close_session(void *session)
{
    struct maskset *s = session;
    maskset_close(&s);
}

/* ---- a head --------------------------------------------------------------------------------- */

struct state {
    struct maskset *own, *set; /* own: opened here, without a session */
    struct given given;
    struct mask_rows rows;
    const struct mask_setting *setting; /* of a dump */
    void *table_params, *table;         /* of MInference: its parameters and state */
};

static void release(void *state)
{
    struct state *s = state;
    const struct method *m = &method_minference;
    method_release(m, s->table);
    if (s->table_params)
        opt_free(m->params.table, s->table_params);
    free(s->table_params);
    given_free(&s->given);
    maskset_close(&s->own);
}

/* MInference's table says which pattern a head has, not which pairs: its method finds these. */
static int prepare_table(struct state *s, struct method_ctx *ctx, const struct head_in *in,
                         struct err *err)
{
    const struct method *m = &method_minference;
    int rc = 0;
    if (!(m->flags & (in->x.causal ? METHOD_CAUSAL : METHOD_BIDIRECTIONAL)))
        return method_skip(ctx, "MInference's table needs a causal trace");
    TRY(mem_zalloc(&s->table_params, 1, m->params.size, "parameters of minference", err));
    TRY(opt_defaults(m->params.table, s->table_params, err));
    TRY(opt_set(m->params.table, s->table_params, "mask", "table", s->set->path, err));
    TRY(m->params.validate(s->table_params, err));
    rc = method_prepare(m, ctx, s->table_params, in, &s->table, err);
out:
    return rc;
}

static int prepare_mask(struct state *s, const struct params *p, struct method_ctx *ctx,
                        const struct head_in *in, struct err *err)
{
    struct mask_lookup how = {.any_trace = p->match == MATCH_ORDER};
    int rc = 0;
    if (p->unit)
        TRY(unit_parse(p->unit, &how.bq, &how.bk, err));
    if (s->set->kind == MASKSET_DUMP) {
        TRY(maskset_setting(s->set, p->pick, &how.setting, err));
        s->setting = &s->set->index.settings[how.setting];
    } else if (strcmp(p->order ? p->order : "none", in->moved ? in->moved : "none") != 0) {
        return method_skip(ctx, "the mask is in token order %s, the head in %s",
                           p->order ? p->order : "none", in->moved ? in->moved : "none");
    }
    rc = maskset_find(s->set, &how, ctx, in, &s->given, &s->rows, err);
    ctx->unit_rows = s->given.whole.bq;
out:
    return rc;
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    const struct params *p = params;
    struct state *s = state;
    int rc = 0;

    s->set = ctx->session;
    if (!s->set) {
        TRY(maskset_open(p->file, &s->own, err));
        s->set = s->own;
    }
    rc = s->set->kind == MASKSET_TABLE ? prepare_table(s, ctx, in, err)
                                       : prepare_mask(s, p, ctx, in, err);
    if (rc)
        goto out;
out:
    return rc;
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct state *s = state;
    return s->table ? method_minference.select(s->table, row0, row1, out, err)
                    : given_select(&s->given, row0, row1, out, err);
}

static int report(void *state, struct record *r, struct err *err)
{
    struct state *s = state;
    struct buf of = {0};
    if (s->table)
        return method_minference.report(s->table, r, err);
    if (s->setting) {
        mask_setting_text(s->setting, &of);
        record_note(r, "of=%s", buf_str(&of));
        buf_free(&of);
        return 0;
    }
    return record_metric(r, "pairs_dropped", (double)s->given.dropped, err);
}

const struct method method_mask = {
    .name = "mask",
    .summary = "a mask from a file: a dump, arrays, BSR, a FlexAttention BlockMask",
    .paper = "none: masks from outside",
    .flags = METHOD_ROWS | METHOD_CAUSAL | METHOD_BIDIRECTIONAL | METHOD_ANY_SCORE | METHOD_PREFIX,
    .params = {.table = options,
               .size = sizeof(struct params),
               .validate = validate,
               .identify = identify,
               .order = order_of,
               .may_be_empty = method_always},
    .state_size = sizeof(struct state),
    .prepare = prepare,
    .select = select_rows,
    .report = report,
    .release = release,
    .metrics = metrics,
    .session = {.open = open_session, .close = close_session},
};
