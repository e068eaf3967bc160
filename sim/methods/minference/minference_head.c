/*
 * minference_head.c - MInference's three patterns (arXiv:2407.02490, section 3): A-shape (sink and
 * window), vertical-slash (columns and distances from the last rows), and block-sparse (products of
 * mean-pooled queries and keys). Estimation 2 last_q N d and two sorts of N values; block-sparse
 * nb^2 d.
 */
#include "core/intmath.h"
#include "sim/methods/minference/minference.h"

#include "core/accel.h"
#include "core/json.h"
#include "core/mem.h"
#include "sim/blocks/selectcost.h"
#include "sim/blocks/tokscore.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void minf_budget(int64_t n, double share, int64_t *v, int64_t *s)
{
    double b = trunc((double)n * share);
    *v = (int64_t)(0.2 * b);
    *s = (int64_t)(0.8 * b);
}

/* ---- vertical-slash --------------------------------------------------------------------- */

static int make_lists(struct minf_head *h, const double *col, const double *slash, int64_t v,
                      int64_t s, struct err *err)
{
    const struct minf_config *c = &h->c;
    vslash_free(&h->lists);
    int rc = vslash_select(&h->lists, c->n, col, v, c->force_cols, slash, s, c->force_dists, err);
    h->lists.both = c->both;
    return rc;
}

static double dense_blocks(const struct minf_config *c)
{
    double nb = ceil((double)c->n / (double)c->block);
    return c->both ? nb * nb : nb * (nb + 1) / 2;
}

/* What the lists of the whole head, which are counted, multiply, over what those of dense attention
 * do. */
static double work_of(const struct minf_head *h)
{
    const struct vslash *v = &h->lists;
    return ((double)v->blocks + (double)v->columns / VSLASH_BLOCK) / dense_blocks(&h->c);
}

/* Sizes of the budget of `tokens`: a fifth columns, the rest distances, as `budget` has them. */
static int lists_of(struct minf_head *h, const double *col, const double *slash, int64_t tokens,
                    double *work, struct err *err)
{
    h->c.v = MIN(tokens / 5, h->c.n);
    h->c.s = MIN(tokens - tokens / 5, h->c.n);
    int rc = 0;
    TRY(make_lists(h, col, slash, h->c.v, h->c.s, err));
    TRY(vslash_add_all(&h->lists, err));
    *work = work_of(h);
out:
    return rc;
}

/* The budget whose work comes nearest to the share that is asked for; work grows with it. */
static int search_lists(struct minf_head *h, const double *col, const double *slash,
                        struct err *err)
{
    int64_t lo = 1, hi = 5 * h->c.n;
    double below = 0, above = 0;
    int rc = 0;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        TRY(lists_of(h, col, slash, mid, &above, err));
        if (above < h->c.work)
            lo = mid + 1;
        else
            hi = mid;
    }
    TRY(lists_of(h, col, slash, lo - 1, &below, err));
    h->work = below;
    TRY(lists_of(h, col, slash, lo, &above, err));
    if (fabs(above - h->c.work) <= fabs(below - h->c.work))
        h->work = above;
    else
        TRY(lists_of(h, col, slash, lo - 1, &below, err));
    h->lists.blocks = h->lists.columns = 0; /* they are counted again with the masks */
out:
    return rc;
}

static int init_lists(struct minf_head *h, const struct head_in *in, struct err *err)
{
    int rc = 0;
    const struct minf_config *c = &h->c;
    double *col = NULL, *slash = NULL;
    TRY(mem_alloc(&col, c->n, sizeof *col, "column scores", err));
    TRY(mem_alloc(&slash, c->n, sizeof *slash, "distance scores", err));
    TRY(token_scores(in, MIN(c->last_q, c->n), c->bf16 ? TOK_BF16_DOT : TOK_EXACT, c->p_dtype, col,
                     slash, err));
    TRY(c->work > 0 ? search_lists(h, col, slash, err)
                    : make_lists(h, col, slash, c->v, c->s, err));
out:
    free(col);
    free(slash);
    return rc;
}

/* ---- block-sparse ----------------------------------------------------------------------- */

/* Means of blocks of x [n][d], always divided by the block size: the code pads with zero rows. */
static void padded_means(const struct minf_config *c, const float *x, int d, int64_t nb,
                         float *mean)
{
    enum dtype type = c->bf16 ? DT_BF16 : DT_F32;
    for (int64_t b = 0; b < nb; b++)
        for (int e = 0; e < d; e++) {
            double sum = 0;
            for (int64_t t = b * c->block; t < MIN(c->n, (b + 1) * c->block); t++)
                sum += dtype_round(type, x[t * d + e]);
            mean[b * d + e] = dtype_round(type, (float)(sum / (double)c->block));
        }
}

/* Products of the pooled query q with the pooled keys k [n][d], rounded to type. Equal keys have
 * equal scores: the additions have one order. */
static void block_scores(const float *q, const float *k, int64_t n, int d, enum dtype type,
                         double *score)
{
    for (int64_t j = 0; j < n; j++) {
        double dot = 0;
        for (int e = 0; e < d; e++)
            dot += (double)q[e] * k[j * d + e];
        score[j] = dtype_round(type, (float)dot);
    }
}

/* Blocks that row block i can see. */
static int64_t blocks_seen(const struct minf_head *h, int64_t i)
{
    return h->c.both ? h->map.cols : i + 1;
}

/* Keep the `top` best of row block i. Rows with at most `top` blocks are dense. */
static int keep_row(struct minf_head *h, double *score, int32_t *order, int64_t i, struct err *err)
{
    const struct minf_config *c = &h->c;
    int64_t seen = blocks_seen(h, i), kept = MIN(c->top, seen);
    for (int64_t j = 0; c->force_blocks && j < seen; j++)
        score[j] = j == 0 || (j >= i - 1 && j <= i + 1) ? INFINITY : score[j];
    int rc = order_descending(score, seen, order, err);
    for (int64_t e = 0; !rc && e < kept; e++)
        block_map_set(&h->map, i, order[e]);
    return rc;
}

static int init_blocks(struct minf_head *h, const struct head_in *in, struct err *err)
{
    int rc = 0, d = in->x.d;
    const struct minf_config *c = &h->c;
    float *q = NULL, *k = NULL;
    double *score = NULL;
    int32_t *order = NULL;
    int64_t nb = h->map.rows;
    TRY(mem_alloc(&q, nb * d, sizeof *q, "pooled queries", err));
    TRY(mem_alloc(&k, nb * d, sizeof *k, "pooled keys", err));
    TRY(mem_alloc(&score, nb, sizeof *score, "block scores", err));
    TRY(mem_alloc(&order, nb, sizeof *order, "block order", err));
    padded_means(c, in->x.q, d, nb, q);
    padded_means(c, in->x.k, d, nb, k);
    for (int64_t i = 0; i < nb; i++) {
        block_scores(q + i * d, k, blocks_seen(h, i), d, c->bf16 ? DT_BF16 : DT_F32, score);
        TRY(keep_row(h, score, order, i, err));
    }
out:
    free(q);
    free(k);
    free(score);
    free(order);
    return rc;
}

/* Work of the `top` best blocks of each of `blocks` rows of as many blocks, over dense attention's;
 * a row that sees fewer keeps all of them. */
static double share_of_top(int64_t top, int64_t blocks, bool causal)
{
    double t = (double)top, nb = (double)blocks;
    double kept = causal ? t * (t + 1) / 2 + (nb - t) * t : t * nb;
    return kept / (causal ? nb * (nb + 1) / 2 : nb * nb);
}

/* The number whose work comes nearest to `share`, the least of several; 1 <= it <= blocks. */
static int64_t top_of_share(double share, int64_t blocks, bool causal)
{
    double best = INFINITY;
    int64_t found = 1;
    for (int64_t top = 1; top <= blocks; top++) {
        double off = fabs(share_of_top(top, blocks, causal) - share);
        if (off < best) {
            best = off;
            found = top;
        }
    }
    return found;
}

/* ---- a head ----------------------------------------------------------------------------- */

int minf_begin(struct minf_head *h, const struct minf_config *c, const struct head_in *in,
               struct err *err)
{
    int rc = 0;
    memset(h, 0, sizeof *h);
    h->c = *c;
    h->in = in;
    if (c->pattern != MINF_BLOCK)
        return 0;
    TRY(block_map_init(&h->map, c->n, c->n, c->block, !c->both, err));
    if (c->work > 0) {
        h->c.top = top_of_share(c->work, h->map.rows, !c->both);
        h->work = share_of_top(h->c.top, h->map.rows, !c->both);
    }
out:
    return rc;
}

static int choose(struct minf_head *h, struct err *err)
{
    int rc = 0;
    if (h->c.pattern == MINF_VS)
        rc = init_lists(h, h->in, err);
    if (h->c.pattern == MINF_BLOCK)
        rc = init_blocks(h, h->in, err);
    h->chosen = rc == 0;
    return rc;
}

int minf_init(struct minf_head *h, const struct minf_config *c, const struct head_in *in,
              struct err *err)
{
    int rc = minf_begin(h, c, in, err);
    if (!rc)
        rc = choose(h, err);
    if (rc)
        minf_free(h);
    return rc;
}

void minf_free(struct minf_head *h)
{
    vslash_free(&h->lists);
    block_map_free(&h->map);
    slice_mask_free(&h->given);
    memset(h, 0, sizeof *h);
}

/* ---- the choice of a device --------------------------------------------------------------- */

static int take_lists(struct minf_head *h, const struct accel_own *own, struct err *err)
{
    int64_t words = ceil_div(h->c.n, 32);
    int rc = 0;
    TRY(accel_own_check(own, 2 * words * (int64_t)sizeof(uint32_t), err));
    TRY(vslash_from_bits(&h->lists, h->c.n, own->data, words, err));
    h->lists.both = h->c.both;
    if (h->c.realised || h->c.work > 0)
        TRY(vslash_add_all(&h->lists, err));
    if (h->c.work > 0)
        h->work = work_of(h);
    h->chosen = true;
out:
    return rc;
}

int minf_take(struct minf_head *h, const struct device_choice *c, struct err *err)
{
    if (h->c.pattern != MINF_VS) {
        h->chosen = true;
        return block_map_take(&h->map, c, err);
    }
    int64_t unit = h->c.realised ? VSLASH_BLOCK : 1;
    int rc = take_lists(h, c->own, err);
    return rc ? rc : slice_mask_take(&h->given, c, unit, 1, h->c.realised ? unit : 0, err);
}

/* ---- masks -------------------------------------------------------------------------------- */

int64_t minf_unit(const struct minf_head *h)
{
    return h->c.pattern == MINF_BLOCK                  ? h->c.block
           : h->c.pattern == MINF_VS && !h->c.realised ? 1
                                                       : VSLASH_BLOCK;
}

int minf_select(struct minf_head *h, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    const struct minf_config *c = &h->c;
    int rc = h->chosen ? 0 : choose(h, err);
    if (rc)
        return rc;
    if (h->given.bits)
        return slice_mask_lists(&h->given, row0, row1, out, err);
    if (c->pattern == MINF_VS)
        return vslash_mask(&h->lists, c->realised, row0, row1, out, err);
    if (c->pattern == MINF_BLOCK)
        return block_map_mask(&h->map, row0, row1, out, err);
    struct band band = {c->init, c->local, c->n};
    if (c->pattern == MINF_TRISHAPE)
        band.dense_from -= MIN(c->last, c->n - 1);
    if (c->pattern == MINF_DENSE)
        mask_full(out, c->n, c->n, row0, row1, !c->both);
    else
        mask_band(out, c->n, c->n, row0, row1, !c->both, band);
    return 0;
}

void minf_cost(const struct minf_head *h, struct select_cost *c)
{
    int64_t n = h->c.n, rows = MIN(h->c.last_q, n);
    int d = h->in->x.d;
    double pairs = 0;
    if (h->c.pattern == MINF_VS) {
        cost_exact_rows(c, h->in, (double)rows, cost_pairs(&h->in->x, n - rows, n, 1), 2);
        cost_rows(c, h->in, (double)n, d);
        cost_kept(c, 2 * (double)n);
    }
    if (h->c.pattern != MINF_BLOCK)
        return;
    for (int64_t i = 0; i < h->map.rows; i++)
        pairs += (double)blocks_seen(h, i);
    cost_sums(c, 2 * (double)n * d);
    cost_products(c, pairs, d);
    cost_rows(c, h->in, 2 * (double)n, d);
    cost_kept(c, 2 * (double)h->map.rows * d + pairs);
}

/* ---- published tables ------------------------------------------------------------------- */

static int parse_entry(const json_t *e, const char *where, enum minf_pattern *pattern, int64_t *v,
                       int64_t *s, struct err *err)
{
    static const struct {
        const char *name;
        enum minf_pattern pattern;
    } TYPES[] = {
        {"vertical_and_slash", MINF_VS}, {"stream_llm", MINF_ASHAPE}, {"block_sparse", MINF_BLOCK}};
    const char *type = json_string_value(json_array_get(e, 0));
    const json_t *a = json_array_get(e, 1), *b = json_array_get(e, 2);
    if (!type || !json_is_integer(a) || !json_is_integer(b) || json_integer_value(a) < 1 ||
        json_integer_value(b) < 1)
        return err_set(err, ERR_INPUT, "%s: [type, v, s, score] was expected, v and s >= 1", where);
    for (int i = 0; i < 3; i++)
        if (strcmp(type, TYPES[i].name) == 0) {
            *pattern = TYPES[i].pattern;
            *v = json_integer_value(a);
            *s = json_integer_value(b);
            return 0;
        }
    return err_set(err, ERR_INPUT,
                   "%s: unknown pattern '%s'; vertical_and_slash, stream_llm or block_sparse",
                   where, type);
}

int minf_table_check(const char *path, struct err *err)
{
    json_t *doc = NULL;
    int rc = json_read_file(path, (size_t)64 << 20, &doc, err);
    if (!rc && !json_is_array(doc))
        rc = err_set(err, ERR_INPUT, "%s: a list over layers was expected", path);
    json_decref(doc);
    return rc;
}

int minf_table_entry(const char *path, int layer, int head, enum minf_pattern *pattern, int64_t *v,
                     int64_t *s, struct err *err)
{
    json_t *doc = NULL;
    char key[16], where[640];
    int rc = json_read_file(path, (size_t)64 << 20, &doc, err);
    if (rc)
        return rc;
    const json_t *heads = json_array_get(doc, (size_t)layer);
    snprintf(key, sizeof key, "%d", head);
    snprintf(where, sizeof where, "%.600s: layer %d head %d", path, layer, head);
    if (!json_is_array(doc) || (heads && !json_is_object(heads)))
        FAIL(err, ERR_INPUT, "%s: a list over layers of objects was expected", where);
    const json_t *e = heads ? json_object_get(heads, key) : NULL;
    if (e)
        rc = parse_entry(e, where, pattern, v, s, err);
out:
    json_decref(doc);
    return rc;
}
