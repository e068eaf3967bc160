/*
 * fuzz_outside.c - files of masks from other programs: find the mask of a head, check and count it.
 */
#include "tests/fuzz/fuzz.h"
#include "core/mem.h"
#include "sim/methods/outside/maskset.h"

#include <string.h>

enum { N = 70 };

static int seeds(struct fuzz_corpus *c, struct err *err)
{
    static const char *const files[] = {"five.npy", "blocks.npz", "pairs.npz", "flex.safetensors",
                                        "rows.safetensors"};
    for (size_t k = 0; k < sizeof files / sizeof *files; k++) {
        char path[100];
        snprintf(path, sizeof path, "tests/data/masks/%s", files[k]);
        PASS_ON(fuzz_add_file(c, path, err));
    }
    return 0;
}

/* The header of a safetensors file has its length in front. */
static void change_header(struct fuzz_rng *r, struct buf *x)
{
    uint64_t n;
    memcpy(&n, x->data, 8);
    if (n > x->len - 8)
        return;
    size_t end = fuzz_tokens(r, x, 8, 8 + (size_t)n);
    n = end - 8;
    memcpy(x->data, &n, 8);
}

static void mutate(struct fuzz_rng *r, struct buf *x, const struct fuzz_corpus *c)
{
    if (x->len > 16 && x->data[8] == '{' && fuzz_below(r, 2))
        change_header(r, x);
    else
        fuzz_bytes(r, x, c);
}

static int use(struct given *g, struct err *err)
{
    int64_t step = g->whole.bq * 2;
    for (int64_t r = 0; r < N; r += step) {
        OWN(mask_free) struct mask m = {0};
        struct mask_counts n;
        PASS_ON(given_select(g, r, r + step < N ? r + step : N, &m, err));
        if (mask_check(&m, err) || mask_count(&m, &n, err))
            fuzz_wild("an illegal mask: %s", err->msg);
    }
    return 0;
}

static int run(const void *data, size_t len, struct err *err)
{
    struct maskset *s = NULL;
    bool used = false;
    int rc = 0;
    TRY(maskset_open(fuzz_file("x", data, len), &s, err));
    for (int k = 0; k < 2 && s->kind == MASKSET_ARRAYS; k++) {
        struct mask_lookup how = {.bq = k ? 16 : 0, .bk = k ? 16 : 0};
        struct method_ctx ctx = {0};
        struct head_in in = {.x = {.nq = N, .nk = N, .d = 1, .dv = 1, .causal = true},
                             .layer = 3,
                             .head = 5,
                             .n_heads = 8,
                             .branch = "main"};
        struct given g = {0};
        struct mask_rows rows;
        struct err why = {0};
        rc = maskset_find(s, &how, &ctx, &in, &g, &rows, &why);
        if (rc == 0)
            rc = use(&g, &why);
        given_free(&g);
        used = used || rc >= 0;
        if (k && !used)
            err_set(err, rc, "%s", why.msg);
        rc = k && !used ? rc : 0;
    }
out:
    maskset_close(&s);
    return rc;
}

const struct fuzz_target fuzz_outside = {"outside", seeds, mutate, false, run};
