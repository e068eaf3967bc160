/*
 * blockmap.c - see blockmap.h. rows * cols / 8 bytes.
 */
#include "sim/blocks/blockmap.h"

#include "core/accel.h"
#include "core/intmath.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

int block_map_init(struct block_map *m, int64_t nq, int64_t nk, int64_t block, bool causal,
                   struct err *err)
{
    *m = (struct block_map){.nq = nq, .nk = nk, .block = block, .causal = causal};
    m->rows = ceil_div(nq, block);
    m->cols = ceil_div(nk, block);
    m->words = (m->cols + 63) / 64;
    return mem_zalloc(&m->bits, m->rows * m->words, sizeof *m->bits, "block map", err);
}

void block_map_free(struct block_map *m)
{
    free(m->bits);
    memset(m, 0, sizeof *m);
}

int64_t block_map_row(const struct block_map *m, int64_t i, int32_t *cols)
{
    int64_t n = 0;
    for (int64_t w = 0; w < m->words; w++)
        for (uint64_t b = m->bits[i * m->words + w]; b; b &= b - 1)
            cols[n++] = (int32_t)(w * 64 + __builtin_ctzll(b));
    return n;
}

int64_t block_map_count(const struct block_map *m)
{
    int64_t n = m->there;
    for (int64_t w = 0; w < m->rows * m->words; w++)
        n += __builtin_popcountll(m->bits[w]);
    return n;
}

static int check_unit(const struct block_map *m, int64_t bq, int64_t bk, struct err *err)
{
    if (bq == m->block && bk == m->block)
        return 0;
    return err_set(err, ERR_RUN, "a choice in units of %lld x %lld, expected %lld x %lld",
                   (long long)bq, (long long)bk, (long long)m->block, (long long)m->block);
}

int block_map_take(struct block_map *m, const struct device_choice *c, struct err *err)
{
    const struct mask *lists = c->lists;
    if (!lists) {
        m->there = c->counts->units;
        return check_unit(m, c->counts->bq, c->counts->bk, err);
    }
    if (lists->form != MASK_LISTS)
        return err_set(err, ERR_RUN, "a choice that is no list of blocks");
    PASS_ON(check_unit(m, lists->bq, lists->bk, err));
    for (int64_t g = 0; g < lists->ngroups; g++)
        for (int64_t i = lists->ptr[g]; i < lists->ptr[g + 1]; i++)
            block_map_set(m, g, lists->col[i]);
    return 0;
}

int block_map_mask(const struct block_map *m, int64_t row0, int64_t row1, struct mask *out,
                   struct err *err)
{
    PASS_ON(mask_lists_init(out, m->nq, m->nk, row0, row1, m->causal, m->block, m->block, err));
    for (int64_t g = 0; g < out->ngroups; g++)
        PASS_ON(
            mask_lists_add_bits(out, g, m->bits + (row0 / m->block + g) * m->words, m->words, err));
    mask_lists_finish(out);
    return 0;
}
