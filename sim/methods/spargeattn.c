/*
 * spargeattn.c - SpargeAttn: block-sparse attention with two online filters (arXiv 2502.18137).
 *
 *   Filter 1, once per head: every block of queries and keys is shrunk to its mean; per query block
 *   the key blocks whose coarse probabilities, largest first, sum to at most tau are kept. Blocks
 *   whose tokens do not resemble each other (s(X) <= theta) are not judged by their mean and always
 *   kept (spargeattn_select.c).
 *   Filter 2, inside the online softmax: P.V of a tile is skipped when no row comes within `pv`
 *   (log2 units) of its running maximum (tileattn.h).
 *
 * Shapes: q [nq][d], k [nk][d], v [nk][dv] of one query head; N = nq = nk when causal. O(N d) to
 * prepare, 2 n_q n_k d for the coarse map, 4 bq bk d per kept tile.
 *
 * profile=official follows the authors' code, profile=paper the printed formulas where they differ:
 * similarity, zero-block rows, scope and denominator of filter 2. Deviations from the official code
 * in both profiles: the token causal mask is always applied, ties of the coarse map go to the lower
 * block, the pooled map is float unless map_dtype=input, similarity comes from the closed form in
 * double, a row without a visible key is zero unless dead=mean.
 */
#include "core/kernel.h"
#include "core/mem.h"
#include "sim/blockpool.h"
#include "sim/spargeattn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const profiles[] = {"official", "paper", NULL};
static const char *const archs[] = {"sm80", "sm89", "sm90", NULL};
static const char *const tiles[] = {"128x64", "64x128", NULL};
static const char *const selects[] = {"cdf", "topk", NULL};
static const char *const scopes[] = {"cta", "warp", NULL};
static const char *const map_dtypes[] = {"f32", "input", NULL};
static const char *const cdf_dtypes[] = {"f32", "f16", "bf16", NULL};
static const char *const ariths[] = {"exact", "sage1", "sage2", NULL};
static const char *const quants[] = {"none", "int8", NULL};
static const char *const v_maxs[] = {"448", "2.25", NULL};
static const char *const deads[] = {"zero", "mean", NULL};
static const char *const orders[] = {"none", "random", "row", "column", "time", "hilbert", NULL};
static const char *const searches[] = {"bisect", "grid", NULL};
static const char *const bins[] = {"sum", "mean", NULL};

#define AT(field) offsetof(struct sparge_params, field)
#define ENUM(name, def, flags, help, values)                                                       \
    {#name, OPT_ENUM, AT(name), def, 0, 0, flags, "", help, values, 0, NULL}

const struct opt sparge_options[] = {
    ENUM(profile, "official", 0, "Rule set: the authors' code or the paper's formulas.", profiles),
    ENUM(arch, "sm80", 0, "Official preset: tile, filter scope, exempt tail, P.V type.", archs),
    ENUM(tile, NULL, OPT_UNSET, "Query x key tile; unset = from arch.", tiles),
    ENUM(select, "cdf", 0, "Cut of filter 1: by coarse mass or by number of blocks.", selects),
    {"theta", OPT_NUM, AT(theta), NULL, -1, 1, OPT_UNSET, "cosine",
     "A block is self-similar above it, below 0 all are; unset = 0.6 (cdf), -0.1 (topk).", NULL, 0,
     NULL},
    {"judge", OPT_BOOL, AT(judge), "1", 0, 1, 0, "",
     "Judge self-similarity; 0 = theta is -1, that of a calibration file too.", NULL, 0, NULL},
    {"tau", OPT_NUM, AT(tau), "0.98", 0, 1, 0, "probability",
     "Coarse mass that filter 1 keeps at most.", NULL, 0, NULL},
    {"topk", OPT_NUM, AT(topk), "0.5", 0, 1, OPT_MIN_OPEN, "share of key blocks",
     "Blocks kept per row with select=topk.", NULL, 0, NULL},
    {"pv", OPT_NUM, AT(pv), "50", 0, INFINITY, OPT_OFF, "log2",
     "Filter 2 skips P.V of tiles that stay this far below the running maximum; off = never.", NULL,
     0, NULL},
    {"lambda", OPT_NUM, AT(lambda), NULL, -INFINITY, 0, OPT_UNSET | OPT_MAX_OPEN | OPT_MIN_OPEN,
     "nat", "The paper's form of pv: pv = -lambda log2(e).", NULL, 0, NULL},
    ENUM(pv_scope, NULL, OPT_UNSET,
         "Rows that agree before P.V is skipped; unset = cta (official), warp (paper).", scopes),
    {"pv_tail", OPT_INT, AT(pv_tail), NULL, 0, 2, OPT_UNSET, "tiles",
     "Last kept tiles that filter 2 never skips; unset = from arch (official), 0 (paper).", NULL, 0,
     NULL},
    {"sink", OPT_BOOL, AT(sink), "0", 0, 1, 0, "", "Always keep key block 0.", NULL, 0, NULL},
    {"smooth_k", OPT_BOOL, AT(smooth_k), "1", 0, 1, 0, "",
     "Subtract the token mean of K before pooling, similarity and quantisation.", NULL, 0, NULL},
    ENUM(map_dtype, "f32", 0, "Grid of pooled vectors, scores and probabilities.", map_dtypes),
    ENUM(cdf_dtype, "f32", 0, "Type of the running sum that tau cuts.", cdf_dtypes),
    ENUM(arith, "exact", 0,
         "Arithmetic on kept tiles: exact, INT8 + fp16 (sage1), INT8 + e4m3 (sage2).", ariths),
    ENUM(quant, "none", 0, "int8 is another way to write arith=sage1.", quants),
    ENUM(v_max, "448", 0, "Largest quantised |V| with arith=sage2.", v_maxs),
    ENUM(dead, "zero", 0, "Output of a row that sees no key of its kept tiles.", deads),
    ENUM(permute, "none", 0, "Token order of a video trace.", orders),
    {"dense", OPT_BOOL, AT(dense), "0", 0, 1, 0, "",
     "Keep every block and skip nothing: set per head by calibration.", NULL, 0, NULL},
    ENUM(search, "bisect", OPT_IDENTITY_NOT, "calibrate: how tau and pv are searched.", searches),
    ENUM(bin, "sum", OPT_IDENTITY_NOT, "calibrate: how bins of theta are ranked.", bins),
    {"l1", OPT_NUM, AT(l1), "0.07", 0, 1, OPT_IDENTITY_NOT | OPT_MIN_OPEN, "relative L1",
     "calibrate: error bound while theta and tau are searched.", NULL, 0, NULL},
    {"l2", OPT_NUM, AT(l2), "0.08", 0, 1, OPT_IDENTITY_NOT | OPT_MIN_OPEN, "relative L1",
     "calibrate: error bound while pv is searched; above l1.", NULL, 0, NULL},
    {"tune_pv", OPT_BOOL, AT(tune_pv), "1", 0, 1, OPT_IDENTITY_NOT, "",
     "calibrate: search pv; otherwise 20.", NULL, 0, NULL},
    {NULL, OPT_END, 0, NULL, 0, 0, 0, NULL, NULL, NULL, 0, NULL},
};

static const struct param_scope sparge_scopes[] = {
    {"tau", "select=cdf"},
    {"topk", "select=topk"},
    {0},
};

int sparge_validate(void *params, struct err *err)
{
    struct sparge_params *p = params;
    if (!isnan(p->lambda)) {
        if (p->pv != 50)
            return err_set(err, ERR_USAGE,
                           "pv and lambda are two ways to give one number; leave one out");
        p->pv = -p->lambda * 1.4426950408889634;
        p->lambda = NAN;
    }
    if (p->quant) {
        if (p->arith == SPARGE_SAGE2)
            return err_set(err, ERR_USAGE, "quant=int8 means arith=sage1; arith=sage2 is given");
        p->arith = SPARGE_SAGE1;
        p->quant = 0;
    }
    if (p->l2 <= p->l1)
        return err_set(err, ERR_USAGE, "l2 (%g) must be larger than l1 (%g)", p->l2, p->l1);
    return 0;
}

static const char *order(const void *params)
{
    return orders[((const struct sparge_params *)params)->permute];
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void **state, struct err *err)
{
    const struct sparge_params *p = params;
    if (in->x.causal && in->x.nq != in->x.nk)
        return method_skip(ctx, "causal needs nq == nk");
    if (in->x.d > BLOCKPOOL_MAX_D)
        return method_skip(ctx, "head dimension %d is above %d", in->x.d, BLOCKPOOL_MAX_D);
    if (p->arith != SPARGE_EXACT && in->x.d > TILE_MAX_D)
        return method_skip(ctx, "head dimension %d is above %d, where integer products are exact",
                           in->x.d, TILE_MAX_D);
    struct sparge *s = NULL;
    int rc = sparge_new(p, in, &s, err);
    if (!rc)
        *state = s;
    return rc;
}

static int64_t unit_rows(const void *state)
{
    return ((const struct sparge *)state)->rules.bq;
}

/* Rows of query block i that see no key of the first kept tile (so of none). */
static int64_t dead_rows(const struct sparge *s, int64_t i, const int32_t *col, int64_t n)
{
    int64_t row0 = i * s->rules.bq, rows = s->in.x.nq - row0;
    rows = rows < s->rules.bq ? rows : s->rules.bq;
    if (n == 0)
        return rows;
    int64_t first = s->in.x.causal ? col[0] * s->rules.bk - row0 : 0;
    return first < 0 ? 0 : first < rows ? first : rows;
}

static int select_rows(void *state, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct sparge *s = state;
    int32_t *col = NULL;
    int rc = 0;

    TRY(mask_lists_init(out, s->in.x.nq, s->in.x.nk, row0, row1, s->in.x.causal, s->rules.bq,
                        s->rules.bk, err));
    TRY(mem_alloc(&col, s->nk_blocks, sizeof *col, "block list", err));
    for (int64_t g = 0; g < out->ngroups; g++) {
        double mass;
        int64_t i = row0 / s->rules.bq + g, n = sparge_list(s, s->row, i, col, &mass);
        for (int64_t e = 0; e < n; e++)
            TRY(mask_lists_add(out, g, col[e], err));
        s->kept += n;
        s->dead_rows += dead_rows(s, i, col, n);
        if (mass >= 0) {
            s->cut_mass += mass;
            s->cut_rows++;
        }
    }
    mask_lists_finish(out);
out:
    free(col);
    return rc;
}

static bool attends(const void *state)
{
    const struct sparge *s = state;
    return s->rules.arith != SPARGE_EXACT || s->rules.pv < INFINITY || s->rules.dead_mean;
}

static int attend(void *state, const struct mask *m, double *out, double *lse,
                  struct attend_stats *stats, struct err *err)
{
    struct sparge *s = state;
    stats->tiles_pv = 0;
    int rc = tile_attn_rows(&s->tile, m, out, lse, &stats->tiles_pv, err);
    s->tiles_pv += stats->tiles_pv;
    return rc;
}

/* What a GPU does in place of attend. */
static bool filter(const void *state, struct accel_filter *f, char why[160])
{
    const struct sparge *s = state;
    const struct sparge_rules *r = &s->rules;
    if (r->arith != SPARGE_EXACT) {
        snprintf(why, 160, "no CUDA kernel for arith=%s (8-bit operands); arith=exact has one",
                 ariths[r->arith]);
        return false;
    }
    if (r->dead_mean) {
        snprintf(why, 160, "no CUDA kernel for dead=mean; dead=zero has one");
        return false;
    }
    *f = (struct accel_filter){r->bq, r->bk, r->pv, r->scope, r->tail, r->paper};
    return true;
}

static void filtered(void *state, double tiles_pv)
{
    ((struct sparge *)state)->tiles_pv += tiles_pv;
}

static double share_similar(const struct sparge_blocks *b)
{
    int64_t n = 0;
    for (int64_t i = 0; i < b->n; i++)
        n += b->similar[i];
    return (double)n / (double)b->n;
}

static int report(void *state, struct record *r, struct err *err)
{
    const struct sparge *s = state;
    bool causal = s->in.x.causal;
    double kept = (double)s->kept, pv = attends(s) ? s->tiles_pv : kept;
    double tiles_all = (double)sparge_tiles(s->nq_blocks, s->nk_blocks, &s->rules, causal);
    double native = s->rules.paper
                        ? (kept + pv) / (2 * tiles_all)
                        : kept / (double)sparge_native_tiles(s->nq_blocks, s->nk_blocks, causal);
    int rc = 0;

    TRY(record_metric(r, "density_native", native, err));
    TRY(record_metric(r, "dead_rows", (double)s->dead_rows, err));
    TRY(record_metric(r, "judged_q", share_similar(&s->qb), err));
    TRY(record_metric(r, "judged_k", share_similar(&s->kb), err));
    if (s->cut_rows)
        TRY(record_metric(r, "coarse_mass", s->cut_mass / (double)s->cut_rows, err));
    record_note(r, "tile=%lldx%lld", (long long)s->rules.bq, (long long)s->rules.bk);
    record_note(r, "cdf_dtype=%s", dtype_name(s->rules.cdf));
    if (s->tile.out_dtype != DT_NONE)
        record_note(r, "out_dtype=%s", dtype_name(s->tile.out_dtype));
out:
    return rc;
}

static void release(void *state)
{
    sparge_free(state);
}

const struct method method_spargeattn = {
    .name = "spargeattn",
    .summary = "block means choose key blocks, an online filter skips P.V products",
    .paper = "Zhang et al., SpargeAttention, arXiv 2502.18137",
    .alias = "sparge",
    .abi = METHOD_ABI,
    .flags = METHOD_CAUSAL | METHOD_BIDIRECTIONAL | METHOD_CALIBRATED | METHOD_CHANGES_MATH |
             METHOD_RANDOM | METHOD_MONOTONE | METHOD_NO_REFERENCE,
    .params_size = sizeof(struct sparge_params),
    .params = sparge_options,
    .scopes = sparge_scopes,
    .budget_full = "theta=1:pv=off",
    .validate = sparge_validate,
    .order = order,
    .prepare = prepare,
    .unit_rows = unit_rows,
    .select = select_rows,
    .attends = attends,
    .attend = attend,
    .filter = filter,
    .filtered = filtered,
    .report = report,
    .calibrate = sparge_calibrate,
    .release = release,
};
