/*
 * hashed.c - HyperAttention (arXiv 2310.05869; the reference is sim/methods/hyperattention).
 *
 * Exact ranges of a causal head are lists of tiles for the attention kernels, one launch for all
 * heads; the squares are tiles of sorted queries (hashed.cu), and what a query has in both is mixed
 * last. Orders and draws are made with the job. They are the method's choice of pairs, and
 * cuda/methods/hyperattention.cu takes their time.
 */
#include "cuda/own/own.h"

#include "core/accel.h"
#include "core/clock.h"
#include "core/intmath.h"
#include "core/mem.h"
#include "cuda/attn/attn.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TILE ACCEL_TILE

struct state {
    struct own_squares at;
    struct attn_job exact; /* with ranges */
    struct hashed_attend squares;
    struct hashed_merge merge;
};

/* ---- exact ranges --------------------------------------------------------------------------- */

/* The keys of each row of a tile that are kept, [from, to) inside of the tile. */
struct spans {
    uint8_t from[TILE], to[TILE];
};

/* Lists of the tiles that the ranges of one head touch, and then of all heads. */
struct lists {
    int64_t nq, rows; /* rows of tiles of a head */
    int64_t *ptr;     /* [heads * rows + 1], owned, as all arrays */
    int32_t *col, *bits;
    int64_t n, cap, cap_bits;
    uint64_t *words;
    int64_t n_words, cap_words; /* tiles */
    struct spans last[2];       /* of the newest tiles of words */
};

static void lists_free(struct lists *l)
{
    free(l->ptr);
    free(l->col);
    free(l->bits);
    free(l->words);
}

/* A tile's words, unless one of the two newest is the same: neighbours in a row or a column often
 * are. */
static int add_words(struct lists *l, const struct spans *s, int32_t *at, struct err *err)
{
    for (int64_t k = 0; k < 2 && k < l->n_words; k++)
        if (memcmp(l->last + k, s, sizeof *s) == 0) {
            *at = (int32_t)(l->n_words - 1 - k);
            return 0;
        }
    PASS_ON(mem_grow(&l->words, &l->cap_words, (l->n_words + 1) * ACCEL_TILE_WORDS,
                     sizeof *l->words, "bits of tiles", err));
    uint64_t *words = l->words + l->n_words * ACCEL_TILE_WORDS;
    memset(words, 0, ACCEL_TILE_WORDS * sizeof *words);
    for (int r = 0; r < TILE; r++)
        for (int k = s->from[r]; k < s->to[r]; k++)
            words[accel_word(r, k)] |= 1ull << accel_bit(r, k);
    l->last[1] = l->last[0];
    l->last[0] = *s;
    *at = (int32_t)l->n_words++;
    return 0;
}

/* The range that has row i; *at is that of an earlier row. */
static const struct own_range *range_of(const struct own_squares *s, int64_t i, int64_t *at)
{
    while (s->exact[*at].hi <= i)
        ++*at;
    return s->exact + *at;
}

/* Tile `col` of the tile row whose first row is in range `at`: kept as a whole where all rows have
 * all keys that causality allows. */
static int add_tile(struct lists *l, const struct own_squares *s, int64_t row, int64_t col,
                    int64_t at, struct err *err)
{
    int64_t end = MIN((row + 1) * TILE, l->nq);
    struct spans spans = {{0}, {0}};
    bool whole = true;

    for (int64_t i = row * TILE; i < end; i++) {
        const struct own_range *r = range_of(s, i, &at);
        int64_t from = MAX(r->lo - col * TILE, 0), to = MIN(i + 1 - col * TILE, TILE);
        whole &= from == 0;
        if (from < to) {
            spans.from[i - row * TILE] = (uint8_t)from;
            spans.to[i - row * TILE] = (uint8_t)to;
        }
    }
    PASS_ON(mem_grow(&l->col, &l->cap, l->n + 1, sizeof *l->col, "tiles", err));
    PASS_ON(mem_grow(&l->bits, &l->cap_bits, l->n + 1, sizeof *l->bits, "tiles", err));
    l->col[l->n] = (int32_t)col;
    l->bits[l->n] = -1;
    if (!whole)
        PASS_ON(add_words(l, &spans, l->bits + l->n, err));
    l->n++;
    return 0;
}

/* Lists of one head, then the same for all others. */
static int make_lists(struct lists *l, const struct own_squares *s, int heads, struct err *err)
{
    int64_t at = 0, one;

    l->rows = ceil_div(l->nq, TILE);
    PASS_ON(mem_alloc(&l->ptr, heads * l->rows + 1, sizeof *l->ptr, "tiles", err));
    for (int64_t row = 0; row < l->rows; row++) {
        int64_t from = range_of(s, row * TILE, &at)->lo / TILE;
        l->ptr[row] = l->n;
        for (int64_t col = from; col <= row; col++)
            PASS_ON(add_tile(l, s, row, col, at, err));
    }
    one = l->n;
    PASS_ON(mem_grow(&l->col, &l->cap, heads * one, sizeof *l->col, "tiles", err));
    PASS_ON(mem_grow(&l->bits, &l->cap_bits, heads * one, sizeof *l->bits, "tiles", err));
    for (int h = 1; h < heads; h++, l->n += one) {
        memcpy(l->col + l->n, l->col, (size_t)one * sizeof *l->col);
        memcpy(l->bits + l->n, l->bits, (size_t)one * sizeof *l->bits);
        for (int64_t row = 0; row < l->rows; row++)
            l->ptr[h * l->rows + row] = l->n + l->ptr[row];
    }
    l->ptr[heads * l->rows] = l->n;
    return 0;
}

/* The launch over all exact ranges, to the outputs themselves. */
static int plan_exact(struct gpu *g, struct own_job *job, struct state *s, struct err *err)
{
    struct attn_problem p = job->problem;
    OWN(lists_free) struct lists l = {.nq = p.nq};
    const struct attn_kernel *k = NULL;
    OWN(attn_plan_free) struct attn_plan plan = {0};
    double since = clock_ns();

    PASS_ON(make_lists(&l, &s->at, p.heads, err));
    bool bits = l.n_words > 0;
    struct attn_csr csr = {.ptr = l.ptr,
                           .col = l.col,
                           .bits = bits ? l.bits : NULL,
                           .words = l.words,
                           .n_bits = l.n_words};
    p.lists = bits ? ATTN_BITS : ATTN_128x128;
    PASS_ON(attn_kernel_find(&p, g->sm, NULL, &k, err));
    PASS_ON(attn_plan_make(&p, &k->tile, &csr, g->sms, &plan, err));
    job->plan_ns += clock_ns() - since;
    job->balance = plan.balance;
    PASS_ON(attn_job_init(g, &p, k, &plan, &job->x, &s->exact, err));
    for (int h = 0; h < p.heads; h++)
        job->pairs[h] += l.n / p.heads * TILE * TILE;
    snprintf(job->name, sizeof job->name, "hashed-%.50s", k->name);
    return 0;
}

/* ---- squares -------------------------------------------------------------------------------- */

/* Pairs that a tile of queries from row0 on multiplies. */
static int64_t tile_pairs(const struct own_hashed *r, const struct own_square *s, int64_t row0)
{
    int64_t nk = s->k1 - s->k0, last = MIN(row0 + HASHED_ROWS, s->q1 - s->q0) - 1;
    int64_t end = MIN((last / s->per + 1) * r->block, nk), own = end - row0 / s->per * r->block;
    int64_t steps = ceil_div(own, HASHED_KEYS) + (s->draws ? ceil_div(r->samples, HASHED_KEYS) : 0);
    return steps * HASHED_KEYS * HASHED_ROWS;
}

/* The tiles of all squares, and what they multiply. */
static int put_tiles(struct gpu *g, struct own_job *job, struct state *s, struct err *err)
{
    const struct own_hashed *r = &s->squares.c.rule;
    int64_t n = 0, cap = 0, pairs = 0;
    OWN(free_at) int2 *tiles = NULL;
    int2 *there;

    for (int64_t i = 0; i < s->at.n; i++) {
        const struct own_square *q = s->at.square + i;
        for (int64_t row = 0; q->hashed && row < q->q1 - q->q0; row += HASHED_ROWS) {
            PASS_ON(mem_grow(&tiles, &cap, n + 1, sizeof *tiles, "tiles", err));
            tiles[n++] = (int2){(int)i, (int)row};
            pairs += tile_pairs(r, q, row);
        }
    }
    PASS_ON(gpu_upload(g, tiles, n * (int64_t)sizeof *there, &there, err));
    PASS_ON(gpu_sync(g, err));
    s->squares.tiles = there;
    s->squares.n_tiles = (int)n;
    for (int h = 0; h < job->problem.heads; h++)
        job->pairs[h] += pairs;
    return 0;
}

/* Outputs of the squares: a causal query may have several. */
static int take_outputs(struct gpu *g, struct own_job *job, struct state *s, struct err *err)
{
    const struct hashed_choice *c = &s->squares.c;
    s->squares.out = job->x.out;
    s->squares.lse = job->x.lse;
    if (!c->causal)
        return 0;
    PASS_ON(gpu_alloc(g, c->heads * c->q_all * c->d * 2, &s->squares.out, err));
    PASS_ON(gpu_alloc(g, c->heads * c->q_all * 4, &s->squares.lse, err));
    s->merge = (struct hashed_merge){*c, s->squares.out, s->squares.lse, job->x.out, job->x.lse};
    return 0;
}

/* ---- the kind ------------------------------------------------------------------------------- */

static bool fits(const struct attn_problem *p, const struct own_rule *r, char why[160])
{
    return hashed_choice_fits(&r->of.hashed, p->nq, p->nk, p->causal, why);
}

/* The heads' numbers; all else is the same. */
static int take_heads(const struct own_rule *rules, int heads, int32_t *head, struct err *err)
{
    struct own_hashed first = rules->of.hashed;
    for (int h = 0; h < heads; h++) {
        const struct own_hashed *r = &rules[h].of.hashed;
        bool same = r->block == first.block && r->samples == first.samples &&
                    r->min_len == first.min_len && r->seed == first.seed &&
                    r->projs == first.projs && r->layer == first.layer && r->step == first.step &&
                    r->inverse == first.inverse && r->exclude == first.exclude &&
                    r->padded == first.padded && r->axes == first.axes &&
                    strcmp(r->branch, first.branch) == 0;
        if (!same)
            return err_set(err, ERR_RUN,
                           "heads of one call with other hashes: --copies replays them one by one");
        head[h] = r->head;
    }
    return 0;
}

static void release(void *state)
{
    OWN(free_at) struct state *s = state;
    if (s) {
        attn_job_free(&s->exact);
        own_squares_free(&s->at);
    }
}

static int init(struct gpu *g, struct own_job *job, const struct own_rule *rules, struct err *err)
{
    const struct attn_problem *p = &job->problem;
    const struct own_hashed *r = &rules->of.hashed;
    struct state *s = NULL;
    OWN(free_at) int32_t *head = NULL;

    PASS_ON(mem_zalloc(&s, 1, sizeof *s, "hashed attention", err));
    job->state = s;
    PASS_ON(mem_alloc(&head, p->heads, sizeof *head, "numbers of heads", err));
    PASS_ON(take_heads(rules, p->heads, head, err));
    PASS_ON(own_squares_make(r, p->nq, p->nk, p->causal, &s->at, err));
    if (s->at.n_hashed == 0)
        return err_set(err, ERR_RUN, "hashed attention of a head without a hashed square");
    snprintf(job->name, sizeof job->name, "hashed-hd%d", p->d);
    if (p->causal)
        PASS_ON(plan_exact(g, job, s, err));
    PASS_ON(hashed_choice_init(g, p, job->x.q, job->x.k, r, head, &s->at, &s->squares.c, err));
    s->squares.v = job->x.v;
    s->squares.scale_log2 = (float)(p->scale * M_LOG2E);
    PASS_ON(put_tiles(g, job, s, err));
    PASS_ON(take_outputs(g, job, s, err));
    job->launches = p->causal ? 2 : 1;
    return hashed_choice_launch(g, &s->squares.c, err);
}

static int attend(struct gpu *g, const struct own_job *job, struct err *err)
{
    const struct state *s = job->state;
    if (s->squares.c.causal)
        PASS_ON(attn_job_launch(g, &s->exact, err));
    PASS_ON(hashed_attend_launch(g, &s->squares, err));
    if (s->squares.c.causal)
        return hashed_merge_launch(g, &s->merge, err);
    return 0;
}

const struct own_kind own_kind_hashed = {
    .fits = fits, .init = init, .attend = attend, .release = release};
