/*
 * fuzz_masks.c - dumped masks: open, read every cell, check and count its mask.
 */
#include "tests/fuzz/bytes_h5.h"
#include "tests/harness/trace_fixture.h"
#include "core/maskfile.h"
#include "core/mem.h"

#include <stdio.h>
#include <string.h>

enum { N = 200 };

static int make_mask(int form, struct mask *m, struct err *err)
{
    if (form == 3) {
        mask_band(m, N, N, 0, N, true, (struct band){4, 32, 190});
        return 0;
    }
    if (form == 2) {
        mask_full(m, N, N, 0, N, false);
        return 0;
    }
    PASS_ON(mask_lists_init(m, N, N, 0, N, true, 64, form ? 1 : 64, err));
    for (int64_t g = 0; g < m->ngroups; g++) {
        PASS_ON(mask_lists_add(m, g, 0, err));
        if (g > 0)
            PASS_ON(mask_lists_add_run(m, g, (int32_t)g, (int32_t)g + 1, err));
    }
    mask_lists_finish(m);
    return 0;
}

static int put(struct maskfile *f, int form, bool within, struct err *err)
{
    OWN(mask_free) struct mask m = {0};
    OWN(record_free) struct record r;
    record_init(&r);
    snprintf(r.trace, sizeof r.trace, "xxh3:0123456789abcdef0123456789abcdef");
    record_text(&r, &r.model, "code-lm");
    snprintf(r.method, sizeof r.method, "streaming");
    r.params = strdup("window=32");
    r.head = form;
    r.d = 64;
    int rc = make_mask(form, &m, err);
    if (within)
        mask_within(&m, &(struct reach){.back = 40, .ahead = 5, .chunk = 64});
    if (!rc)
        rc = maskfile_put(f, &r, NULL, &m, err);
    return rc;
}

static int seeds(struct fuzz_corpus *c, struct err *err)
{
    OWN(maskfile_abort) struct maskfile *f = NULL;
    char path[512];
    fuzz_h5_setup();
    snprintf(path, sizeof path, "%s/seed.h5", fuzz_dir());
    for (int last = 0; last < 4; last++) {
        PASS_ON(maskfile_create(path, true, &f, err));
        for (int form = last; form < 4; form++)
            PASS_ON(put(f, form, last % 2, err));
        PASS_ON(maskfile_commit(&f, err));
        PASS_ON(fuzz_add_file(c, path, err));
    }
    PASS_ON(fuzz_add_file(c, "tests/data/h5/masks-earliest.h5", err));
    return fuzz_add_file(c, "tests/data/h5/masks-ordered.h5", err);
}

static void mutate(struct fuzz_rng *r, struct buf *x, const struct fuzz_corpus *c)
{
    fuzz_h5_change(r, x, c, NULL);
}

/* A mask that was read is sound, whatever was done to the file. */
static void check_mask(const struct mask *m)
{
    enum { ROWS_MAX = 20000 };
    struct err err = {0};
    struct mask_counts n;
    if (mask_check(m, &err) != 0) {
        fuzz_wild("%s", err.msg);
        return;
    }
    if (m->row1 - m->row0 > ROWS_MAX || m->nk > ROWS_MAX)
        return;
    if (mask_count(m, &n, &err) != 0)
        fuzz_wild("counting: %s", err.msg);
    else if (n.pairs_kept < 0 || n.pairs_kept > n.pairs_allowed)
        fuzz_wild("%lld of %lld pairs", (long long)n.pairs_kept, (long long)n.pairs_allowed);
}

static int run(const void *data, size_t len, struct err *err)
{
    struct maskfile *f = NULL;
    int64_t ids = hdf5_objects_open();
    int rc = maskfile_open(fuzz_file("masks.h5", data, len), &f, err);
    for (int64_t i = 0; !rc && i < maskfile_cells(f) && i < 20; i++) {
        OWN(record_free) struct record r = {0};
        OWN(mask_free) struct mask m = {0};
        rc = maskfile_cell(f, i, &r, err);
        if (!rc && (rc = maskfile_read(f, i, &m, err)) == 0)
            check_mask(&m);
    }
    maskfile_close(&f);
    if (hdf5_objects_open() != ids)
        fuzz_wild("%lld HDF5 ids are left open", (long long)(hdf5_objects_open() - ids));
    return rc;
}

const struct fuzz_target fuzz_masks = {"masks", seeds, mutate, false, run};
