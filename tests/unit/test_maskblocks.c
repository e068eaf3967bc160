/*
 * test_maskblocks.c - dumped masks as block lists (tests/harness/maskblocks.c), against each row's
 * own keys.
 */
#include "core/intmath.h"
#include "core/rng.h"
#include "tests/harness/maskblocks.h"
#include "tests/harness/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 700, HEADS = MASK_SET_HEADS + 2 };

static struct record cell(int head, const char *method, const char *params)
{
    struct record r;
    record_init(&r);
    snprintf(r.trace, sizeof r.trace, "xxh3:0123456789abcdef0123456789abcdef");
    record_text(&r, &r.model, "code-lm");
    snprintf(r.method, sizeof r.method, "%s", method);
    r.params = strdup(params);
    r.head = head;
    r.d = 64;
    return r;
}

/* Rows of 64 keep about one unit of bk keys in eight; every fifth group none. */
static void random_lists(struct mask *m, uint64_t seed, int64_t bk)
{
    MUST(mask_lists_init(m, N, N, 0, N, true, 64, bk, ERR));
    for (int64_t g = 0; g < m->ngroups; g++)
        for (int32_t u = 0; u < ceil_div(N, bk); u++)
            if (g % 5 != 3 && rng_below(seed, (uint64_t)g, (uint64_t)u, 8) == 0)
                MUST(mask_lists_add(m, g, u, ERR));
    mask_lists_finish(m);
}

static void put(struct maskfile *f, int head, const char *method, const char *params,
                struct mask *m)
{
    OWN(record_free) struct record r = cell(head, method, params);
    MUST(maskfile_put(f, &r, NULL, m, ERR));
    mask_free(m);
}

/* Heads of three settings; of the first more than a set takes. */
static struct maskfile *make_file(void)
{
    static char path[512];
    struct maskfile *f = NULL;
    struct mask m;
    snprintf(path, sizeof path, "%s/masks.h5", test_tmpdir());
    MUST(maskfile_create(path, true, &f, ERR));
    for (int h = 0; h < HEADS; h++) {
        random_lists(&m, (uint64_t)h, 64);
        put(f, h, "xattention", "", &m);
        if (h > 1)
            continue;
        random_lists(&m, 100 + (uint64_t)h, 1);
        put(f, h, "xattention", "tau=0.5", &m);
        mask_band(&m, N, N, 0, N, true, (struct band){4, 150, N});
        put(f, h, "streaming", "", &m);
    }
    MUST(maskfile_commit(&f, ERR));
    MUST(maskfile_open(path, &f, ERR));
    return f;
}

TEST(sets_are_heads_of_one_setting)
{
    OWN(maskfile_close) struct maskfile *f = make_file();
    OWN(free_at) struct mask_set *s;
    int64_t n;
    MUST(mask_sets(f, &s, &n, ERR));
    ck_assert_int_eq(n, 3);
    ck_assert_str_eq(s[0].method, "xattention");
    ck_assert_str_eq(s[0].params, "");
    ck_assert_int_eq(s[0].heads, MASK_SET_HEADS);
    ck_assert_str_eq(s[1].params, "tau=0.5");
    ck_assert_str_eq(s[2].method, "streaming");
    ck_assert(s[2].heads == 2 && s[2].nq == N && s[2].nk == N && s[2].causal);
}

/* Does a row of group g keep a key of block c? */
static bool keeps(const struct mask *m, int64_t g, int64_t c, int bq, int bk)
{
    struct span s[N];
    for (int64_t i = g * bq; i < (g + 1) * bq && i < N; i++) {
        int64_t n = mask_row_spans(m, i, s);
        for (int64_t k = 0; k < n; k++)
            if (s[k].lo < (c + 1) * bk && s[k].hi > c * bk)
                return true;
    }
    return false;
}

static void check_set(const struct maskfile *f, const struct mask_set *s, int bq, int bk)
{
    int64_t *ptr, groups = ceil_div(N, bq), allowed = 0;
    OWN(free_at) int32_t *col;
    double share;
    MUST(mask_blocks(f, s, bq, bk, &ptr, &col, &share, ERR));
    for (int h = 0; h < s->heads; h++) {
        OWN(mask_free) struct mask m;
        MUST(maskfile_read(f, s->cells[h], &m, ERR));
        for (int64_t g = 0; g < groups; g++) {
            int64_t at = ptr[h * groups + g];
            for (int64_t c = 0; c < ceil_div(N, bk); c++) {
                bool listed = at < ptr[h * groups + g + 1] && col[at] == c;
                ck_assert_int_eq(listed, keeps(&m, g, c, bq, bk));
                at += listed;
                allowed += c * bk < (g + 1) * bq && c * bk < N;
            }
            ck_assert_int_eq(at, ptr[h * groups + g + 1]);
        }
    }
    ck_assert_double_eq_tol(share, (double)ptr[s->heads * groups] / (double)allowed, 1e-12);
    free(ptr);
}

TEST_N(blocks_with_a_kept_pair, 3)
{
    static const int blocks[][2] = {{128, 128}, {128, 64}, {64, 64}};
    OWN(maskfile_close) struct maskfile *f = make_file();
    OWN(free_at) struct mask_set *s;
    int64_t n;
    MUST(mask_sets(f, &s, &n, ERR));
    for (int64_t i = 0; i < n; i++) {
        s[i].heads = 2;
        check_set(f, s + i, blocks[_i][0], blocks[_i][1]);
    }
}
