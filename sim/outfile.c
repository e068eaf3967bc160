/*
 * outfile.c - dumped outputs (HDF5), see replay.h. doc/trace-format.md describes the layout.
 */
#include "sim/replay.h"

#include "core/cellfile.h"
#include "core/hash.h"

#define OUTFILE_FORMAT "lacuna-outputs"
#define OUTFILE_MAJOR 1
#define OUTFILE_MINOR 2 /* version 1 added the checksums of a cell, 2 the count of cells */

struct output {
    struct h5_cell cell; /* lists: out, lse */
    char hashes[2][HASH_TEXT_MAX];
};

int outfile_create(const char *path, bool force, struct cellfile **out, struct err *err)
{
    return cellfile_create(path, OUTFILE_FORMAT, OUTFILE_MAJOR, OUTFILE_MINOR, force, out, err);
}

static int put_attributes(hid_t g, const struct h5_cell *c, struct err *err)
{
    const struct output *o = (const struct output *)c;
    const struct record *r = &c->id;
    PASS_ON(h5_put_str(g, "trace", r->trace, err));
    PASS_ON(h5_put_i64(g, "run", r->run, err));
    PASS_ON(h5_put_i64(g, "step", r->step, err));
    PASS_ON(h5_put_str(g, "branch", r->branch, err));
    PASS_ON(h5_put_i64(g, "layer", r->layer, err));
    PASS_ON(h5_put_i64(g, "head", r->head, err));
    PASS_ON(h5_put_str(g, "method", r->method, err));
    PASS_ON(h5_put_str(g, "params", r->params ? r->params : "", err));
    PASS_ON(h5_put_str(g, "permute", r->permute, err));
    PASS_ON(h5_put_i64(g, "seed", (int64_t)r->seed, err));
    PASS_ON(h5_put_str(g, "out_xxh3", o->hashes[0], err));
    return h5_put_str(g, "lse_xxh3", o->hashes[1], err);
}

int outfile_put(struct cellfile *f, const struct record *r, int64_t dv, const float *out,
                const double *lse, struct err *err)
{
    const void *data[] = {out, lse};
    const struct h5_cell_list lists[] = {{.name = "out", .type = DT_F32, .width = dv},
                                         {.name = "lse", .type = DT_F64}};
    struct output *o = NULL;
    int rc = 0;
    TRY(h5_cell_new(r, sizeof *o, &o, err));
    o->cell.write = put_attributes;
    for (int i = 0; i < 2; i++) {
        int64_t n = i ? r->n_q : r->n_q * dv;
        o->cell.lists[i] = lists[i];
        hash_text(hash_bytes(data[i], (size_t)n * dtype_size(lists[i].type)), o->hashes[i]);
        TRY(h5_cell_add(f, o->cell.lists + i, data[i], n, err));
    }
    struct h5_cell *whole = &o->cell;
    o = NULL;
    TRY(cellfile_put(f, whole, err));
out:
    h5_cell_free((struct h5_cell *)o);
    return rc ? err_prefix(err, "%s", cellfile_path(f)) : 0;
}
