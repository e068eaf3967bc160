/*
 * MInference: per head an A-shape, the best columns and distances of the last 64 rows, or the best
 * blocks of pooled queries and keys, with fixed budgets.
 *
 * H. Jiang et al., "MInference 1.0: Accelerating Pre-filling for Long-Context LLMs via Dynamic
 * Sparse Attention", arXiv:2407.02490. Heads with N_q = N_k. Budgets come from parameters, a
 * calibration file, or a table in the published JSON layout. Estimation 2 last_q N d; attention
 * exact on the mask that the 64-row lists of the published kernel realise (mask=realised), or on
 * the pairs that were asked for.
 *
 * profile=official follows the published code, in whose tables vertical-slash is nearly everywhere;
 * profile=paper has the same attention and the paper's search; profile=frontier is a port with one
 * budget for all heads. Deviations: ties go to the lower column and the smaller distance (the
 * code's order is unspecified); a row block that no selected distance reaches gets its columns only
 * (the code reads past its list). Bidirectional heads are not the paper's: a distance stands for
 * both sides of the query, columns and blocks for all queries; the rows that estimate stay the last
 * ones.
 */
#include "core/fileio.h"
#include "core/hash.h"
#include "core/intmath.h"
#include "core/json.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/sort.h"
#include "sim/blocks/judge.h"
#include "sim/blocks/selectcost.h"
#include "sim/blocks/vslash.h"
#include "sim/methods/minference/minference.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- the patterns of a head ----------------------------------------------------------------- */

/* MInference's three patterns (arXiv:2407.02490, section 3): A-shape (sink and
 * window), vertical-slash (columns and distances from the last rows), and block-sparse (products of
 * mean-pooled queries and keys). Estimation 2 last_q N d and two sorts of N values; block-sparse
 * nb^2 d. */

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
    PASS_ON(make_lists(h, col, slash, h->c.v, h->c.s, err));
    PASS_ON(vslash_add_all(&h->lists, err));
    *work = work_of(h);
    return 0;
}

/* The budget whose work comes nearest to the share that is asked for; work grows with it. */
static int search_lists(struct minf_head *h, const double *col, const double *slash,
                        struct err *err)
{
    int64_t lo = 1, hi = 5 * h->c.n;
    double below = 0, above = 0;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        PASS_ON(lists_of(h, col, slash, mid, &above, err));
        if (above < h->c.work)
            lo = mid + 1;
        else
            hi = mid;
    }
    PASS_ON(lists_of(h, col, slash, lo - 1, &below, err));
    h->work = below;
    PASS_ON(lists_of(h, col, slash, lo, &above, err));
    if (fabs(above - h->c.work) <= fabs(below - h->c.work))
        h->work = above;
    else
        PASS_ON(lists_of(h, col, slash, lo - 1, &below, err));
    h->lists.blocks = h->lists.columns = 0; /* they are counted again with the masks */
    return 0;
}

static int init_lists(struct minf_head *h, const struct head_in *in, struct err *err)
{
    const struct minf_config *c = &h->c;
    OWN(free_at) double *col = NULL, *slash = NULL;
    PASS_ON(mem_alloc(&col, c->n, sizeof *col, "column scores", err));
    PASS_ON(mem_alloc(&slash, c->n, sizeof *slash, "distance scores", err));
    PASS_ON(token_scores(in, MIN(c->last_q, c->n), c->bf16 ? TOK_BF16_DOT : TOK_EXACT, c->p_dtype,
                         col, slash, err));
    return c->work > 0 ? search_lists(h, col, slash, err)
                       : make_lists(h, col, slash, c->v, c->s, err);
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
    PASS_ON(order_descending(score, seen, order, err));
    for (int64_t e = 0; e < kept; e++)
        block_map_set(&h->map, i, order[e]);
    return 0;
}

static int init_blocks(struct minf_head *h, const struct head_in *in, struct err *err)
{
    int d = in->x.d;
    const struct minf_config *c = &h->c;
    OWN(free_at) float *q = NULL, *k = NULL;
    OWN(free_at) double *score = NULL;
    OWN(free_at) int32_t *order = NULL;
    int64_t nb = h->map.rows;
    PASS_ON(mem_alloc(&q, nb * d, sizeof *q, "pooled queries", err));
    PASS_ON(mem_alloc(&k, nb * d, sizeof *k, "pooled keys", err));
    PASS_ON(mem_alloc(&score, nb, sizeof *score, "block scores", err));
    PASS_ON(mem_alloc(&order, nb, sizeof *order, "block order", err));
    padded_means(c, in->x.q, d, nb, q);
    padded_means(c, in->x.k, d, nb, k);
    for (int64_t i = 0; i < nb; i++) {
        block_scores(q + i * d, k, blocks_seen(h, i), d, c->bf16 ? DT_BF16 : DT_F32, score);
        PASS_ON(keep_row(h, score, order, i, err));
    }
    return 0;
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
    memset(h, 0, sizeof *h);
    h->c = *c;
    h->in = in;
    if (c->pattern != MINF_BLOCK)
        return 0;
    PASS_ON(block_map_init(&h->map, c->n, c->n, c->block, !c->both, err));
    if (c->work > 0) {
        h->c.top = top_of_share(c->work, h->map.rows, !c->both);
        h->work = share_of_top(h->c.top, h->map.rows, !c->both);
    }
    return 0;
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

void minf_free(void *head)
{
    struct minf_head *h = head;
    vslash_free(&h->lists);
    block_map_free(&h->map);
    slice_mask_free(&h->given);
    memset(h, 0, sizeof *h);
}

/* ---- the choice of a device --------------------------------------------------------------- */

static int take_lists(struct minf_head *h, const struct accel_own *own, struct err *err)
{
    int64_t words = ceil_div(h->c.n, 32);
    PASS_ON(accel_own_check(own, 2 * words * (int64_t)sizeof(uint32_t), err));
    PASS_ON(vslash_from_bits(&h->lists, h->c.n, own->data, words, err));
    h->lists.both = h->c.both;
    if (h->c.realised || h->c.work > 0)
        PASS_ON(vslash_add_all(&h->lists, err));
    if (h->c.work > 0)
        h->work = work_of(h);
    h->chosen = true;
    return 0;
}

int minf_take(void *head, const struct device_choice *c, struct err *err)
{
    struct minf_head *h = head;
    if (h->c.pattern != MINF_VS) {
        h->chosen = true;
        return block_map_take(&h->map, c, err);
    }
    int64_t unit = h->c.realised ? VSLASH_BLOCK : 1;
    PASS_ON(take_lists(h, c->own, err));
    return slice_mask_take(&h->given, c, unit, 1, h->c.realised ? unit : 0, err);
}

/* ---- masks -------------------------------------------------------------------------------- */

static int64_t minf_unit(const struct minf_head *h)
{
    return h->c.pattern == MINF_BLOCK                  ? h->c.block
           : h->c.pattern == MINF_VS && !h->c.realised ? 1
                                                       : VSLASH_BLOCK;
}

int minf_select(void *head, int64_t row0, int64_t row1, struct mask *out, struct err *err)
{
    struct minf_head *h = head;
    const struct minf_config *c = &h->c;
    PASS_ON(h->chosen ? 0 : choose(h, err));
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

/* What estimating columns and distances, or scoring pooled blocks, costs. */
static bool cost(const void *state, struct select_cost *c)
{
    const struct minf_head *h = state;
    int64_t n = h->c.n, rows = MIN(h->c.last_q, n);
    int d = h->in->x.d;
    double pairs = 0;
    if (h->c.pattern == MINF_VS) {
        cost_exact_rows(c, h->in, (double)rows, cost_pairs(&h->in->x, n - rows, n, 1), 2);
        cost_rows(c, h->in, (double)n, d);
        cost_kept(c, 2 * (double)n);
    }
    if (h->c.pattern != MINF_BLOCK)
        return true;
    for (int64_t i = 0; i < h->map.rows; i++)
        pairs += (double)blocks_seen(h, i);
    cost_sums(c, 2 * (double)n * d);
    cost_products(c, pairs, d);
    cost_rows(c, h->in, 2 * (double)n, d);
    cost_kept(c, 2 * (double)h->map.rows * d + pairs);
    return true;
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

/* Check that the file exists and that the whole of it is a table. */
static int minf_table_check(const char *path, struct err *err)
{
    OWN(json_decrefp) json_t *doc = NULL;
    PASS_ON(json_read_foreign(path, (size_t)64 << 20, &doc, err));
    if (!json_is_array(doc))
        return err_set(err, ERR_INPUT, "%s: a list over layers was expected", path);
    return 0;
}

int minf_table_entry(const char *path, int layer, int head, enum minf_pattern *pattern, int64_t *v,
                     int64_t *s, struct err *err)
{
    OWN(json_decrefp) json_t *doc = NULL;
    char key[16], where[640];
    PASS_ON(json_read_foreign(path, (size_t)64 << 20, &doc, err));
    const json_t *heads = json_array_get(doc, (size_t)layer);
    snprintf(key, sizeof key, "%d", head);
    snprintf(where, sizeof where, "%.600s: layer %d head %d", path, layer, head);
    if (!json_is_array(doc) || (heads && !json_is_object(heads)))
        return err_set(err, ERR_INPUT, "%s: a list over layers of objects was expected", where);
    const json_t *e = heads ? json_object_get(heads, key) : NULL;
    return e ? parse_entry(e, where, pattern, v, s, err) : 0;
}

/* ---- offline choice of a pattern ------------------------------------------------------------ */

/* MInference's offline choice of a pattern per head (arXiv:2407.02490,
 * algorithm 1 and appendix C.2; the published code differs from it).
 *
 *   code:  six fixed candidates, the one with the highest mean recall wins; a winning A-shape is
 *          written as vertical-slash (100, 800), a winning block pattern as (1000, 6096)
 *   paper: candidates brought to the kernel cost of an A-shape (1024, 4096) in steps of 50, the
 *          least output error wins and keeps its type
 *
 * Each candidate costs one masked attention per sample. */

#define CHUNK 1024 /* rows, a multiple of every unit */
#define FULL_LENGTH 131072
#define STEP 50

/* ---- judging ---------------------------------------------------------------------------- */

/* Mask of a chunk of rows from r on; adds the pairs that it executes. */
static int chunk_mask(struct minf_head *h, int64_t r, struct mask *m, double *exec, struct err *err)
{
    struct mask_counts n = {0};
    int rc = 0;
    TRY(minf_select(h, r, MIN(r + CHUNK, h->c.n), m, err));
    TRY(mask_count(m, &n, err));
    *exec += n.pairs_exec > 0 ? (double)n.pairs_exec : 0;
out:
    if (rc)
        mask_free(m);
    return rc;
}

/* Recall of rows into mass [nq], errors of outputs, pairs that the mask executes. */
static int judge_mask(struct minf_head *h, const struct head_in *in, double *mass, struct judged *v,
                      double *exec, struct err *err)
{
    int64_t rows = in->x.nq;
    struct judging j;
    int rc = 0;
    judge_begin(&j, in->exact, mass);
    for (int64_t r = 0; r < rows; r += CHUNK) {
        struct mask m = {0};
        TRY(chunk_mask(h, r, &m, exec, err));
        TRY(judge_add(&j, &m, err));
    }
    TRY(judge_end(&j, NULL, err));
    *v = j.sum;
out:
    judge_free(&j);
    return rc;
}

/* Add the mean over n samples of the candidate's numbers on one sample. */
static int judge(struct minf_candidate *cand, const struct head_in *in, int64_t rows_from, int n,
                 struct err *err)
{
    int64_t rows = in->x.nq;
    OWN(minf_free) struct minf_head h = {0};
    struct judged v = {0};
    double recall = 0, exec = 0;
    OWN(free_at) double *mass = NULL;
    PASS_ON(mem_alloc(&mass, rows, sizeof *mass, "recall of rows", err));
    PASS_ON(minf_init(&h, &cand->c, in, err));
    PASS_ON(judge_mask(&h, in, mass, &v, &exec, err));
    for (int64_t r = rows_from; r < rows; r++)
        recall += mass[r];
    if (cand->c.pattern == MINF_VS && cand->c.realised)
        exec = (double)vslash_exec(&h.lists);
    cand->score += recall / (double)(rows - rows_from) / n;
    cand->error += (v.sq_ref > 0 ? sqrt(v.sq_delta / v.sq_ref) : 0) / n;
    cand->exec += exec / (double)pairs_allowed(rows, rows, true) / n;
    return 0;
}

/* ---- the code's candidates -------------------------------------------------------------- */

/* Give a candidate a pattern and its sizes: v and s, init and local, or top twice. */
static void set_candidate(struct minf_candidate *c, const char *name, enum minf_pattern pattern,
                          int64_t a, int64_t b)
{
    bool vs = pattern == MINF_VS, shape = pattern == MINF_ASHAPE;
    c->name = name;
    c->pattern = c->c.pattern = pattern;
    *(vs ? &c->c.v : shape ? &c->c.init : &c->c.top) = c->v = a;
    *(vs ? &c->c.s : shape ? &c->c.local : &c->c.top) = c->s = b;
}

/* Token-exact masks of the published search: 30 columns and 30 distances forced and no lower
 * clamps, a window of 801 distances, 32-token blocks. Realised: what the kernels run. */
static int code_candidates(bool exact, const struct minf_config *base, struct minf_candidate *cand)
{
    static const int64_t SIZES[4][2] = {{30, 800}, {100, 750}, {500, 700}, {3500, 100}};
    static const char *const NAMES[] = {"vs 30 800", "vs 100 750", "vs 500 700", "vs 3500 100"};
    for (int i = 0; i < MINF_CANDIDATES; i++) {
        cand[i] = (struct minf_candidate){.c = *base};
        cand[i].c.realised = !exact;
        if (exact)
            cand[i].c.force_cols = cand[i].c.force_dists = 30;
    }
    for (int i = 0; i < 4; i++)
        set_candidate(&cand[i + 1], NAMES[i], MINF_VS, SIZES[i][0], SIZES[i][1]);
    set_candidate(&cand[0], "a-shape 100 800", MINF_VS, 100, 800);
    cand[0].c.pattern = MINF_ASHAPE;
    cand[0].c.init = 100;
    cand[0].c.local = exact ? 801 : 800;
    set_candidate(&cand[5], "block", MINF_VS, 1000, 6096);
    cand[5].c.pattern = MINF_BLOCK;
    if (exact)
        cand[5].c.block = 32;
    return MINF_CANDIDATES;
}

/* ---- the paper's candidates ------------------------------------------------------------- */

static int paper_candidates(const struct minf_config *base, struct minf_candidate *cand)
{
    for (int i = 0; i < MINF_CANDIDATES; i++)
        cand[i] = (struct minf_candidate){.c = *base};
    set_candidate(&cand[0], "a-shape", MINF_ASHAPE, 1024, 4096);
    set_candidate(&cand[1], "vs 30", MINF_VS, 30, 2048);
    set_candidate(&cand[2], "vs 100", MINF_VS, 100, 1800);
    set_candidate(&cand[3], "vs 500", MINF_VS, 500, 1500);
    set_candidate(&cand[4], "vs 3000", MINF_VS, 3000, 200);
    set_candidate(&cand[5], "block", MINF_BLOCK, 100, 100);
    return MINF_CANDIDATES;
}

/* Pairs that the kernel of this pattern multiplies. */
static int kernel_pairs(const struct minf_config *c, const struct head_in *in, double *pairs,
                        struct err *err)
{
    OWN(minf_free) struct minf_head h = {0};
    PASS_ON(minf_init(&h, c, in, err));
    *pairs = 0;
    for (int64_t r = 0; r < c->n; r += CHUNK) {
        struct mask m = {0};
        PASS_ON(chunk_mask(&h, r, &m, pairs, err));
        mask_free(&m);
    }
    if (c->pattern == MINF_VS)
        *pairs = (double)vslash_exec(&h.lists);
    return 0;
}

/* Move the size that the pattern's budget is made of (distances or blocks) by the fewest steps that
 * take its cost to the target or beyond; cost grows with the size, so the number is bisected. */
static int equalise(struct minf_candidate *c, const struct head_in *in, int64_t step, double target,
                    struct err *err)
{
    int64_t *size = c->c.pattern == MINF_VS ? &c->c.s : &c->c.top, start = *size;
    double pairs = 0;
    int rc = kernel_pairs(&c->c, in, &pairs, err);
    bool up = pairs < target;
    int64_t lo = -1, hi = up ? ceil_div(c->c.n - start, step) : (start - 1) / step;
    hi = hi < 0 ? 0 : hi;
    while (!rc && hi - lo > 1) {
        int64_t k = (lo + hi) / 2;
        *size = up ? start + k * step : start - k * step;
        rc = kernel_pairs(&c->c, in, &pairs, err);
        if (up ? pairs >= target : pairs <= target)
            hi = k;
        else
            lo = k;
    }
    *size = up ? start + hi * step : start - hi * step;
    c->s = *size;
    if (c->c.pattern == MINF_BLOCK)
        c->v = *size;
    return rc;
}

static int equalise_all(struct minf_candidate *cand, int count, const struct head_in *in,
                        bool scaled, struct err *err)
{
    double target;
    int64_t step = scaled ? STEP * in->x.nk / FULL_LENGTH : STEP;
    PASS_ON(kernel_pairs(&cand[0].c, in, &target, err));
    for (int i = 1; i < count; i++)
        PASS_ON(equalise(&cand[i], in, step > 0 ? step : 1, target, err));
    return 0;
}

/* ---- search ----------------------------------------------------------------------------- */

static int64_t scaled_size(int64_t x, int64_t n)
{
    int64_t y = (int64_t)llround((double)x * (double)n / FULL_LENGTH);
    return y > 1 ? y : 1;
}

static void scale_candidate(struct minf_candidate *c, int64_t n)
{
    int64_t *sizes[] = {&c->c.v, &c->c.s, &c->c.init, &c->c.local, &c->c.top, &c->v, &c->s};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        *sizes[i] = scaled_size(*sizes[i], n);
}

static int64_t first_row(const struct minf_search *s, int64_t n)
{
    int64_t from = s->rows_from >= 0 ? s->rows_from : n < 10000 ? n / 4 : 2500;
    return from < n ? from : n - 1;
}

/* What depends on the length of a sample. */
static void fit(struct minf_candidate *c, const struct minf_search *s, int64_t n)
{
    c->c.n = n;
    if (s->kind == MINF_SEARCH_EXACT) {
        if (c->c.pattern == MINF_BLOCK)
            c->c.top = (n + 31) / 32 / 8;
    } else if (c->c.pattern == MINF_VS) {
        c->c.v = c->c.v > s->min_v ? c->c.v : s->min_v;
        c->c.s = c->c.s > s->min_s ? c->c.s : s->min_s;
    }
}

static int better(const struct minf_search *s, const struct minf_candidate *a,
                  const struct minf_candidate *b)
{
    return s->kind == MINF_SEARCH_PAPER ? a->error < b->error : a->score > b->score;
}

int minf_search_run(const struct minf_search *s, const struct minf_config *base,
                    const struct head_in *samples, int n, struct minf_candidate *cand, int *count,
                    struct err *err)
{
    int best = 0;
    bool exact = s->kind == MINF_SEARCH_EXACT;
    struct minf_config b = *base;
    b.n = samples[0].x.nk;
    *count = s->kind == MINF_SEARCH_PAPER ? paper_candidates(&b, cand)
                                          : code_candidates(exact, &b, cand);
    for (int i = 0; i < *count; i++) {
        if (s->scale_sizes)
            scale_candidate(&cand[i], b.n);
        fit(&cand[i], s, b.n);
    }
    if (s->kind == MINF_SEARCH_PAPER)
        PASS_ON(equalise_all(cand, *count, &samples[0], s->scale_sizes, err));
    for (int i = 0; i < *count; i++) {
        for (int k = 0; k < n; k++) {
            fit(&cand[i], s, samples[k].x.nk);
            PASS_ON(judge(&cand[i], &samples[k], first_row(s, samples[k].x.nk), n, err));
        }
        log_debug("minference search: %s: mean recall %.6f error %.6f executed %.6f", cand[i].name,
                  cand[i].score, cand[i].error, cand[i].exec);
        if (better(s, &cand[i], &cand[best]))
            best = i;
    }
    return best;
}

enum profile { PROFILE_OFFICIAL, PROFILE_PAPER, PROFILE_FRONTIER };
enum pattern { PATTERN_TABLE, PATTERN_VS, PATTERN_ASHAPE, PATTERN_BLOCK, PATTERN_TRISHAPE };

static const char *const presets[] = {"profile", "default",       "llama31",
                                      "light",   "dense-columns", NULL};

struct params {
    int profile, pattern, preset, mask, emulate, search;
    int64_t v, s, last_q, force_cols, force_dists, min_v, min_s, top; /* INT64_MIN: by profile */
    int64_t init, local, last, start_layer, rows_from;
    double ratio, budget, sparsity;
    char *table, *table_id;
    bool scale_sizes;
};

static const struct opt options[] = {
    OPT_ENUM(struct params, profile, "official", TEXTS("official", "paper", "frontier"),
             "official and paper differ in calibrate only; frontier is a port with one budget for "
             "all heads."),
    OPT_ENUM(struct params, pattern, "table", TEXTS("table", "vs", "ashape", "block", "trishape"),
             "Pattern of the head; table: from the table, else vertical-slash."),
    OPT_STR(struct params, table, NULL, NULL, "Per-head table in the published JSON layout.",
            .flags = OPT_CALIB_FIXED | OPT_OUTSIDE, .unit = "file"),
    OPT_STR(struct params, table_id, NULL, NULL,
            "Content of the table; filled in, and refused where the file has another.",
            .flags = OPT_CALIB_FIXED, .unit = "checksum"),
    OPT_ENUM(struct params, preset, "profile", presets,
             "v and s of a published setting; unset: 1000 and 6096, frontier 512 and 512.",
             .flags = OPT_CALIB_FIXED),
    OPT_INT(struct params, v, NULL, 1, 2147483647, "columns",
            "Vertical-slash columns, forced ones included; unset: the preset's."),
    OPT_INT(struct params, s, NULL, 1, 2147483647, "distances",
            "Vertical-slash distances, forced ones included; unset: the preset's."),
    OPT_NUM(struct params, ratio, "1", 0, 1e6, "",
            "Multiplies the sizes of the table, or v and s, before the clamps.",
            .flags = OPT_MIN_OPEN),
    OPT_NUM(struct params, budget, "0", 0, 1, "share of N",
            "Above 0: v and s are 0.2 and 0.8 of this share of the prompt."),
    OPT_NUM(struct params, sparsity, NULL, 0, 1, "share of dense work",
            "v and s (0.2 and 0.8 of a budget) or top are searched per head so that the kernel "
            "leaves out this share: papers' \"MInference (0.5)\".",
            .flags = OPT_MIN_OPEN | OPT_MAX_OPEN),
    OPT_INT(struct params, last_q, NULL, 1, 2147483647, "rows",
            "Estimation rows, the last of the prompt; unset: 64, frontier 256."),
    OPT_INT(struct params, force_cols, NULL, 0, 2147483647, "columns",
            "First columns always kept; unset: 30, frontier 4."),
    OPT_INT(struct params, force_dists, NULL, 0, 2147483647, "distances",
            "Smallest distances always kept; unset: 100, frontier 64."),
    OPT_INT(struct params, min_v, NULL, 1, 2147483647, "columns",
            "Lower clamp of v; unset: 30, frontier 4."),
    OPT_INT(struct params, min_s, NULL, 1, 2147483647, "distances",
            "Lower clamp of s; unset: 50, frontier 64."),
    OPT_INT(struct params, init, "128", 0, 2147483647, "tokens", "A-shape: first keys kept."),
    OPT_INT(struct params, local, "3968", 1, 2147483647, "tokens", "A-shape: window."),
    OPT_INT(struct params, last, "100", 0, 2147483647, "rows", "Tri-shape: last rows dense."),
    OPT_INT(struct params, top, NULL, 1, 2147483647, "blocks",
            "Block pattern: blocks of a row block; unset: 100, frontier 64."),
    OPT_INT(struct params, start_layer, "-1", -1, 1e6, "layer", "Layers below are dense."),
    OPT_ENUM(struct params, mask, "realised", TEXTS("realised", "requested"),
             "Vertical-slash: what the kernel's lists cover, or the pairs that were asked for."),
    OPT_ENUM(struct params, emulate, "none", TEXTS("none", "bf16"),
             "bf16 reproduces the code's roundings of logits, block means and block scores."),
    OPT_ENUM(struct params, search, "realised", TEXTS("realised", "exact"),
             "calibrate, profile=official: judge the kernels' masks, or the token-exact ones of "
             "the published routine.",
             .flags = OPT_IDENTITY_NOT),
    OPT_BOOL(struct params, scale_sizes, "0", "calibrate: candidate sizes times N/131072.",
             .flags = OPT_IDENTITY_NOT),
    OPT_INT(struct params, rows_from, NULL, 0, 2147483647, "row",
            "calibrate: first row of the mean recall; unset: 2500, below 10000 tokens N/4.",
            .flags = OPT_IDENTITY_NOT),
    {0},
};

/* A table that cannot be read is none for every head. */
static int validate(void *params, struct err *err)
{
    const struct params *p = params;
    const char *other = p->table                         ? "table"
                        : p->v != INT64_MIN              ? "v"
                        : p->s != INT64_MIN              ? "s"
                        : p->top != INT64_MIN            ? "top"
                        : p->preset                      ? "preset"
                        : p->ratio != 1                  ? "ratio"
                        : p->budget > 0                  ? "budget"
                        : p->profile == PROFILE_FRONTIER ? "profile=frontier"
                                                         : NULL;
    if (!isnan(p->sparsity) && other)
        return err_set(err, ERR_USAGE, "sparsity searches the sizes itself: leave %s out", other);
    return p->table ? minf_table_check(p->table, err) : 0;
}

/* Records that were made with another table are others, whatever the file is called. */
static int identify(void *params, struct err *err)
{
    struct params *p = params;
    char id[HASH_TEXT_MAX];
    OWN(buf_free) struct buf file = {0};
    if (!p->table)
        return p->table_id ? err_set(err, ERR_USAGE, "table_id is of a table: give table=FILE") : 0;
    PASS_ON(buf_read_file(&file, p->table, (size_t)64 << 20, err));
    hash_text(hash_bytes(buf_str(&file), file.len), id);
    id[strcspn(id, ":") + 1 + 16] = '\0'; /* half of it, as for masks */
    const char *is = strchr(id, ':') + 1;
    if (p->table_id && strcmp(p->table_id, is) != 0)
        return err_set(err, ERR_INPUT, "%s has the checksum %s, not %s: it has changed", p->table,
                       is, p->table_id);
    if (!p->table_id && !(p->table_id = strdup(is)))
        return err_set(err, ERR_NOMEM, "%s: out of memory", p->table);
    return 0;
}

static int64_t or_default(int64_t value, int64_t otherwise)
{
    return value == INT64_MIN ? otherwise : value;
}

/* v and s by preset. */
static const struct {
    int64_t v, s;
} SIZES[] = {{1000, 6096}, {1000, 6096}, {512, 2048}, {100, 800}, {3500, 100}};

/* v and s before ratio and clamps. */
static void sizes(const struct params *p, int64_t n, int64_t *v, int64_t *s)
{
    bool port = p->profile == PROFILE_FRONTIER && p->preset == 0;
    *v = or_default(p->v, port ? 512 : SIZES[p->preset].v);
    *s = or_default(p->s, port ? 512 : SIZES[p->preset].s);
    if (p->budget > 0)
        minf_budget(n, p->budget, v, s);
}

static int64_t clamped(int64_t x, double ratio, int64_t least, int64_t n)
{
    double y = fmin(trunc((double)x * ratio), (double)n);
    return y < (double)least ? (least < n ? least : n) : (int64_t)y;
}

/* Everything but pattern, v and s. */
static struct minf_config base_config(const struct params *p, const struct head_in *in)
{
    bool port = p->profile == PROFILE_FRONTIER;
    enum dtype t = in->src_dtype == DT_BF16 || in->src_dtype == DT_F16 ? in->src_dtype : DT_F32;
    return (struct minf_config){
        .n = in->x.nk,
        .last_q = or_default(p->last_q, port ? 256 : 64),
        .force_cols = or_default(p->force_cols, port ? 4 : 30),
        .force_dists = or_default(p->force_dists, port ? 64 : 100),
        .realised = p->mask == 0,
        .bf16 = p->emulate == 1,
        .p_dtype = port ? t : DT_F32,
        .init = p->init,
        .local = p->local,
        .last = p->last,
        .top = or_default(p->top, port ? 64 : 100),
        .block = port ? 16 : 64,
        .force_blocks = port,
        .both = !in->x.causal,
        .work = isnan(p->sparsity) ? 0 : 1 - p->sparsity,
    };
}

static int64_t min_v(const struct params *p)
{
    return or_default(p->min_v, p->profile == PROFILE_FRONTIER ? 4 : 30);
}

static int64_t min_s(const struct params *p)
{
    return or_default(p->min_s, p->profile == PROFILE_FRONTIER ? 64 : 50);
}

static int resolve(const struct params *p, const struct head_in *in, struct minf_config *c,
                   struct err *err)
{
    static const enum minf_pattern KINDS[] = {MINF_VS, MINF_VS, MINF_ASHAPE, MINF_BLOCK,
                                              MINF_TRISHAPE};
    *c = base_config(p, in);
    c->pattern = in->layer < p->start_layer ? MINF_DENSE : KINDS[p->pattern];
    sizes(p, c->n, &c->v, &c->s);
    if (p->pattern == PATTERN_TABLE && p->table && c->pattern != MINF_DENSE) {
        PASS_ON(minf_table_entry(p->table, in->layer, in->head, &c->pattern, &c->v, &c->s, err));
        if (c->pattern == MINF_ASHAPE) {
            c->init = clamped(c->v, p->ratio, 0, c->n);
            c->local = clamped(c->s, p->ratio, 1, c->n);
        }
    }
    c->asked_v = clamped(c->v, p->ratio, min_v(p), INT64_MAX);
    c->asked_s = clamped(c->s, p->ratio, min_s(p), INT64_MAX);
    c->v = clamped(c->v, p->ratio, min_v(p), c->n);
    c->s = clamped(c->s, p->ratio, min_s(p), c->n);
    return 0;
}

static int prepare(struct method_ctx *ctx, const void *params, const struct head_in *in,
                   void *state, struct err *err)
{
    struct minf_head *h = state;
    struct minf_config c;
    PASS_ON(method_whole_prompt(ctx, in));
    PASS_ON(resolve(params, in, &c, err));
    PASS_ON(minf_begin(h, &c, in, err));
    ctx->unit_rows = minf_unit(h);
    return 0;
}

static bool rule(const void *state, struct rule *rule, char why[160])
{
    const struct minf_config *c = &((const struct minf_head *)state)->c;
    const char *no = c->pattern != MINF_VS && c->pattern != MINF_BLOCK
                         ? "the pattern looks at no query"
                     : c->force_blocks || c->bf16
                         ? "the GPU side has the profiles official and paper with emulate=none"
                         : NULL;
    if (no)
        snprintf(why, 160, "%s", no);
    else if (c->pattern == MINF_BLOCK)
        rule->of.minf = (struct minf_rule){.blocks = true, .top = c->top};
    else
        rule->of.minf = (struct minf_rule){.rows = MIN(c->last_q, c->n),
                                           .v = c->v,
                                           .s = c->s,
                                           .force_cols = c->force_cols,
                                           .force_dists = c->force_dists,
                                           .realised = c->realised,
                                           .work = c->work};
    return !no;
}

static bool keep_on_device(const void *state)
{
    const struct minf_head *h = state;
    return h->c.pattern == MINF_VS || h->c.pattern == MINF_BLOCK;
}

static int report_lists(const struct minf_head *h, struct record *r, struct err *err)
{
    double allowed = (double)pairs_allowed(h->c.n, h->c.n, !h->c.both);
    PASS_ON(RECORD_ALL(r, err, {"columns", h->lists.n_cols}, {"slashes", h->lists.n_dists},
                       {"density_requested", (double)vslash_requested(&h->lists) / allowed}));
    if (!h->c.realised)
        return 0;
    double exec = (double)vslash_exec(&h->lists);
    PASS_ON(RECORD_ALL(r, err, {"pairs_exec", exec}, {"density_exec", exec / allowed}));
    if (h->c.force_blocks) /* what the port prints */
        PASS_ON(record_metric(r, "density_native", exec / allowed, err));
    return RECORD_ALL(r, err, {"list_blocks", h->lists.blocks}, {"list_columns", h->lists.columns});
}

/* density_native of the block pattern: 2 * 64 top / N, which ignores the dense early rows; the port
 * counts them. */
static double native_blocks(const struct minf_config *c)
{
    double nb = ceil((double)c->n / (double)c->block), t = fmin((double)c->top, nb);
    if (c->both)
        return t / nb;
    if (c->force_blocks)
        return (t * (t + 1) / 2 + (nb - t) * t) / (nb * (nb + 1) / 2);
    return 2 * (double)c->block * (double)c->top / (double)c->n;
}

static struct mask_origin origin(void *state)
{
    const struct minf_head *h = state;
    bool chosen = h->c.pattern == MINF_VS || h->c.pattern == MINF_BLOCK;
    return (struct mask_origin){.source = chosen ? SOURCE_OWN : SOURCE_STATIC};
}

static bool why_full(const void *state, char why[160])
{
    const struct minf_config *c = &((const struct minf_head *)state)->c;
    long long n = (long long)c->n;
    if (c->pattern == MINF_VS && c->asked_v + c->asked_s >= c->n)
        snprintf(why, 160,
                 "its budget of %lld + %lld columns is not below the sequence's %lld keys",
                 (long long)c->asked_v, (long long)c->asked_s, n);
    else if (c->pattern == MINF_BLOCK && c->top * c->block >= c->n)
        snprintf(why, 160,
                 "its %lld blocks of %lld keys a row are not fewer than the sequence's %lld",
                 (long long)c->top, (long long)c->block, n);
    else if (c->pattern == MINF_DENSE)
        snprintf(why, 160, "layers below start_layer attend to all");
    else if (c->pattern != MINF_VS && c->pattern != MINF_BLOCK && c->init + c->local >= c->n)
        snprintf(
            why, 160,
            "its %lld first keys and window of %lld are not fewer than the sequence's %lld keys",
            (long long)c->init, (long long)c->local, n);
    else
        return false;
    return true;
}

static int report(void *state, struct record *r, struct err *err)
{
    static const char *const NAMES[] = {"dense", "vs", "ashape", "trishape", "block"};
    const struct minf_head *h = state;
    int rc = 0;
    record_note(r, "pattern=%s", NAMES[h->c.pattern]);
    if (h->work > 0)
        rc = record_metric(r, "sparsity_reached", 1 - h->work, err);
    if (rc || h->c.pattern == MINF_VS)
        return rc ? rc : report_lists(h, r, err);
    return h->c.pattern == MINF_BLOCK
               ? record_metric(r, "density_native", native_blocks(&h->c), err)
               : 0;
}

/* ---- calibration ------------------------------------------------------------------------ */

static int check_samples(struct method_ctx *ctx, const struct params *p,
                         const struct head_in *samples, int n, struct err *err)
{
    for (int i = 0; i < n; i++) {
        PASS_ON(method_whole_prompt(ctx, &samples[i]));
        if (!samples[i].x.causal)
            PASS_ON(method_skip(ctx, "the search is of causal heads"));
        if (samples[i].x.nk < 4096 && p->rows_from == INT64_MIN)
            return err_set(err, ERR_USAGE,
                           "method minference: a trace of %lld tokens is too short to calibrate on "
                           "(4096); set rows_from to the first row that counts",
                           (long long)samples[i].x.nk);
    }
    return 0;
}

static void write_choice(const struct minf_candidate *c, struct jw *w)
{
    static const char *const NAMES[] = {
        [MINF_VS] = "vs", [MINF_ASHAPE] = "ashape", [MINF_BLOCK] = "block"};
    jw_kstr(w, "pattern", NAMES[c->pattern]);
    if (c->pattern == MINF_BLOCK) {
        jw_kint(w, "top", c->v);
        return;
    }
    jw_kint(w, c->pattern == MINF_VS ? "v" : "init", c->v);
    jw_kint(w, c->pattern == MINF_VS ? "s" : "local", c->s);
}

/* The lists are chosen on the CPU, from a few rows; what costs N^2 is judging them. */
static bool judges(const void *params, char why[160])
{
    (void)params;
    (void)why;
    return true;
}

static int calibrate(struct method_ctx *ctx, const void *params, const struct head_in *samples,
                     int n, struct jw *w, struct err *err)
{
    const struct params *p = params;
    struct minf_candidate cand[MINF_CANDIDATES];
    struct minf_search s = {.kind = p->search == 1 ? MINF_SEARCH_EXACT : MINF_SEARCH_REALISED,
                            .rows_from = or_default(p->rows_from, -1),
                            .min_v = min_v(p),
                            .min_s = min_s(p),
                            .scale_sizes = p->scale_sizes};
    int count;
    if (p->profile == PROFILE_FRONTIER)
        return err_set(err, ERR_USAGE,
                       "method minference: profile=frontier has one budget for all heads and is "
                       "not calibrated; use official or paper");
    if (p->table || p->ratio != 1 || p->budget > 0 || !isnan(p->sparsity))
        return err_set(
            err, ERR_USAGE,
            "method minference: table, ratio, budget and sparsity are not searched: leave them out "
            "here; ratio and budget can be given to the replay, beside calib=");
    if (p->profile == PROFILE_PAPER)
        s.kind = MINF_SEARCH_PAPER;
    PASS_ON(check_samples(ctx, p, samples, n, err));
    struct minf_config base = base_config(p, &samples[0]);
    int best = minf_search_run(&s, &base, samples, n, cand, &count, err);
    if (best < 0)
        return best;
    write_choice(&cand[best], w);
    return 0;
}

static const struct metric_def metrics[] = {
    OWN_METRIC("columns", "tokens selected as key columns"),
    OWN_METRIC("slashes", "distances selected"),
    OWN_METRIC("density_requested",
               "pairs that columns and distances ask for / |A|; the kernel's lists cover more",
               .better = BETTER_LOWER),
    OWN_METRIC("sparsity_reached",
               "share of dense work that the kernel leaves out, where sparsity= asked for one"),
    OWN_METRIC("list_blocks", "64 x 64 blocks in the kernel's lists, over all row blocks",
               .better = BETTER_LOWER),
    OWN_METRIC("list_columns", "gathered columns in the kernel's lists, over all row blocks",
               .better = BETTER_LOWER),
    {0},
};

const struct method method_minference = {
    .name = "minference",
    .summary = "A-shape, vertical-slash or block pattern per head with fixed budgets",
    .paper = "MInference 1.0, arXiv:2407.02490",
    .flags = METHOD_ROWS | METHOD_CAUSAL | METHOD_BIDIRECTIONAL | METHOD_SINK,
    .params =
        {.table = options,
         .size = sizeof(struct params),
         .scopes = PARAM_SCOPES(
             {"v s preset budget force_cols force_dists min_v min_s mask", "pattern=table|vs"},
             {"init local", "pattern=table|ashape|trishape"}, {"last", "pattern=table|trishape"},
             {"top", "pattern=table|block"}, {"sparsity", "pattern=table|vs|block"}),
         .budget = BUDGET_PARAMS(
             BUDGET_BY(BUDGET_LOG, "ratio", .only = "pattern=table|vs", .lo = 1e-3, .hi = 1e4),
             BUDGET_BY(BUDGET_COUNT, "top", .only = "pattern=block"),
             BUDGET_BY(BUDGET_COUNT, "local", .only = "pattern=ashape|trishape")),
         .validate = validate,
         .identify = identify},
    .state_size = sizeof(struct minf_head),
    .prepare = prepare,
    .select = minf_select,
    .report = report,
    .release = minf_free,
    .metrics = metrics,
    .cost = cost,
    .why_full = why_full,
    .device = {.rule = rule, .take = minf_take, .keep_on_device = keep_on_device},
    .reuse = {.of = origin},
    .search = {.calibrate = calibrate, .passes = 4, .on_device = judges},
    .tests = {.full = "v=2147483647:s=2147483647",
              .variants = TEXTS("v=40:s=60:force_dists=10:min_s=10",
                                "v=20:s=30:force_dists=5:min_s=5:mask=requested",
                                "pattern=ashape:init=4:local=30",
                                "pattern=trishape:init=4:local=30:last=20", "pattern=block:top=2",
                                "sparsity=0.5", "sparsity=0.4:pattern=block",
                                "profile=frontier:pattern=block:top=5"),
              .calibrate_short = "rows_from=0"},
};
