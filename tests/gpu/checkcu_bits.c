/*
 * checkcu_bits.c - masks that are no blocks for the GPU checks and benchmarks (checkcu_case.h).
 */
#include "core/mem.h"
#include "core/rng.h"
#include "tests/gpu/checkcu_case.h"

#include <stdlib.h>
#include <string.h>

static bool any_unit(const struct cu_case *c, int head, int64_t group, int64_t unit)
{
    return rng_uniform(c->seed, 5000 + (uint64_t)(head * 1000000 + group), (uint64_t)unit) <
           c->density;
}

static int random_units(const struct cu_case *c, int head, int64_t bq, int64_t bk, int64_t row0,
                        int64_t row1, struct mask *m, struct err *err)
{
    const struct attn_problem *p = &c->problem;
    PASS_ON(mask_lists_init(m, p->nq, p->nk, row0, row1, p->causal, bq, bk, err));
    for (int64_t g = 0; g < m->ngroups; g++)
        for (int64_t u = 0; u * bk < p->nk; u++)
            if (any_unit(c, head, row0 / bq + g, u))
                PASS_ON(mask_lists_add(m, g, (int32_t)u, err));
    return 0;
}

static int random_pairs(const struct cu_case *c, int head, int64_t row0, int64_t row1,
                        struct mask *m, struct err *err)
{
    const struct attn_problem *p = &c->problem;
    PASS_ON(mask_lists_init(m, p->nq, p->nk, row0, row1, p->causal, 1, 1, err));
    for (int64_t i = row0; i < row1; i++) {
        int64_t keys = i % 7 == 3 ? 0 : i % 11 == 5 ? (p->nk < 3 ? p->nk : 3) : p->nk;
        for (int64_t k = 0; k < keys; k += 64) {
            uint64_t at = (uint64_t)(head * p->nq + i), word = (uint64_t)k;
            uint64_t x = rng_u64(c->seed, at, word) & rng_u64(c->seed, at, word + 1);
            x &= c->density < 0.2 ? rng_u64(c->seed, at, word + 2) : ~0ull;
            x |= i % 11 == 5;
            for (; x && k + __builtin_ctzll(x) < keys; x &= x - 1)
                PASS_ON(mask_lists_add(m, i - row0, (int32_t)(k + __builtin_ctzll(x)), err));
        }
    }
    return 0;
}

static int mixed_blocks(const struct cu_case *c, int head, int64_t row0, int64_t row1,
                        struct mask *m, struct err *err)
{
    const struct attn_problem *p = &c->problem;
    PASS_ON(mask_lists_init(m, p->nq, p->nk, row0, row1, p->causal, 1, 1, err));
    for (int64_t i = row0; i < row1; i++)
        for (int64_t k = 0; k < p->nk; k++) {
            int64_t block = k / ACCEL_TILE;
            if ((block % 3 == 2 && i % 5 != 0) || !any_unit(c, head, i / ACCEL_TILE, block))
                k += ACCEL_TILE - 1 - k % ACCEL_TILE;
            else
                PASS_ON(mask_lists_add(m, i - row0, (int32_t)k, err));
        }
    return 0;
}

/* Every 97th key, and three runs of 5 keys at fixed distances before the query. */
static int stripes(const struct cu_case *c, int head, int64_t row0, int64_t row1, struct mask *m,
                   struct err *err)
{
    const struct attn_problem *p = &c->problem;
    OWN(free_at) uint8_t *kept = NULL;
    uint8_t *at;
    PASS_ON(mem_alloc(&kept, p->nk, 1, "kept keys", err));
    PASS_ON(mask_lists_init(m, p->nq, p->nk, row0, row1, p->causal, 1, 1, err));
    for (int64_t i = row0; i < row1; i++) {
        memset(kept, 0, (size_t)p->nk);
        for (int64_t k = head; k < p->nk; k += 97)
            kept[k] = 1;
        for (int64_t run = 0; run < 15; run++) {
            int64_t k = i + p->nk - p->nq - 331 * (run / 5) - run % 5;
            if (k >= 0)
                kept[k] = 1;
        }
        for (int64_t k = 0; (at = memchr(kept + k, 1, (size_t)(p->nk - k))); k = at - kept + 1)
            PASS_ON(mask_lists_add(m, i - row0, (int32_t)(at - kept), err));
    }
    return 0;
}

int cu_bits_mask(const struct cu_case *c, int head, int64_t row0, int64_t row1, struct mask *m,
                 struct err *err)
{
    const struct attn_problem *p = &c->problem;
    switch (c->bits) {
    case BITS_BAND:
        mask_band(m, p->nq, p->nk, row0, row1, p->causal,
                  (struct band){16, c->window, p->nq - p->nq / 50});
        return 0;
    case BITS_SLICES:
        PASS_ON(random_units(c, head, 128, 1, row0, row1, m, err));
        break;
    case BITS_FINE:
        PASS_ON(random_units(c, head, 64, 32, row0, row1, m, err));
        break;
    case BITS_PAIRS:
        PASS_ON(random_pairs(c, head, row0, row1, m, err));
        break;
    case BITS_MIXED:
        PASS_ON(mixed_blocks(c, head, row0, row1, m, err));
        break;
    default:
        PASS_ON(stripes(c, head, row0, row1, m, err));
    }
    mask_lists_finish(m);
    return 0;
}

/* Lists of all heads, one after the other. */
static int append(struct accel_tiles *all, const struct accel_tiles *t, int head, int64_t groups,
                  struct err *err)
{
    int64_t tiles = all->n_tiles + t->n_tiles;
    PASS_ON(mem_grow(&all->col, &all->col_cap, tiles, sizeof *all->col, "tiles", err));
    if (t->keys)
        PASS_ON(mem_grow(&all->keys, &all->key_cap, tiles * ACCEL_TILE, sizeof *all->keys, "keys",
                         err));
    PASS_ON(mem_grow(&all->bits, &all->bits_cap, tiles, sizeof *all->bits, "tiles", err));
    PASS_ON(mem_grow(&all->words, &all->word_cap, (all->n_bits + t->n_bits) * ACCEL_TILE_WORDS,
                     sizeof *all->words, "bits", err));
    for (int64_t g = 0; g <= groups; g++)
        all->ptr[head * groups + g] = all->n_tiles + t->ptr[g];
    for (int64_t i = 0; i < t->n_tiles; i++) {
        all->col[all->n_tiles + i] = t->col ? t->col[i] : 0;
        all->bits[all->n_tiles + i] = t->bits[i] < 0 ? -1 : t->bits[i] + (int32_t)all->n_bits;
    }
    if (t->n_bits)
        memcpy(all->words + all->n_bits * ACCEL_TILE_WORDS, t->words,
               (size_t)(t->n_bits * ACCEL_TILE_WORDS) * sizeof *t->words);
    if (t->keys)
        memcpy(all->keys + all->n_tiles * ACCEL_TILE, t->keys,
               (size_t)(t->n_tiles * ACCEL_TILE) * sizeof *t->keys);
    all->n_tiles = tiles;
    all->n_bits += t->n_bits;
    return 0;
}

int cu_bits_lists(const struct cu_case *c, struct accel_tiles *all, struct err *err)
{
    const struct attn_problem *p = &c->problem;
    int64_t groups = (p->nq + ACCEL_TILE - 1) / ACCEL_TILE;
    struct accel_tiles t = {0};
    struct mask m = {0};
    char why[160];
    int rc = 0;

    TRY(mem_zalloc(&all->ptr, p->heads * groups + 1, sizeof *all->ptr, "tiles", err));
    for (int h = 0; h < p->heads; h++) {
        TRY(cu_bits_mask(c, h, 0, p->nq, &m, err));
        if ((rc = accel_tiles_make(&m, 1, p->lists == ATTN_GATHER, INT64_MAX, &t, why, err)) != 0)
            goto out;
        TRY(append(all, &t, h, groups, err));
        accel_tiles_free(&t);
        mask_free(&m);
    }
out:
    accel_tiles_free(&t);
    mask_free(&m);
    return rc;
}
