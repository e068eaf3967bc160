/*
 * safetensors_write.c - writer of one safetensors file, through "path.part" and rename.
 */
#include "core/safetensors_impl.h"
#include "core/buf.h"
#include "core/fileio.h"
#include "core/mem.h"

#include <stdlib.h>

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct st_out *const *)a)->name,
                  (*(const struct st_out *const *)b)->name);
}

/* Wide types first, so that every tensor is aligned to its element size; then by name. */
static int by_size_name(const void *a, const void *b)
{
    const struct st_out *x = *(const struct st_out *const *)a,
                        *y = *(const struct st_out *const *)b;
    size_t sx = dtype_size(x->dtype), sy = dtype_size(y->dtype);
    return sx != sy ? (sx < sy ? 1 : -1) : strcmp(x->name, y->name);
}

static int out_bytes(const char *path, const struct st_out *t, int64_t *bytes, struct err *err)
{
    int64_t n = (int64_t)dtype_size(t->dtype);
    bool ok = n > 0 && t->ndim >= 0 && t->ndim <= ST_MAX_DIMS;
    for (int i = 0; ok && i < t->ndim; i++)
        ok = mul_ok(n, t->shape[i], &n);
    if (!ok)
        return err_set(err, ERR_RUN, "%s: tensor '%s' has no valid type or shape", path, t->name);
    *bytes = n;
    return 0;
}

static int out_header(const char *path, const struct st_out **order, int64_t n, const json_t *meta,
                      struct buf *b, struct err *err)
{
    int64_t at = 0, bytes = 0;
    struct jw w;

    buf_put(b, "\0\0\0\0\0\0\0\0", 8);
    jw_init(&w, b, 0);
    jw_obj(&w);
    if (meta) {
        jw_key(&w, "__metadata__");
        jw_value(&w, meta);
    }
    for (int64_t i = 0; i < n; i++) {
        const struct st_out *t = order[i];
        int rc = out_bytes(path, t, &bytes, err);
        if (rc)
            return rc;
        jw_key(&w, t->name);
        jw_obj(&w);
        jw_kstr(&w, "dtype", st_type_name(t->dtype));
        jw_key(&w, "shape");
        jw_arr(&w);
        for (int k = 0; k < t->ndim; k++)
            jw_int(&w, t->shape[k]);
        jw_arr_end(&w);
        jw_key(&w, "data_offsets");
        jw_arr(&w);
        jw_int(&w, at);
        if (!add_ok(at, bytes, &at))
            return err_set(err, ERR_RUN, "%s: more than 2^63 bytes", path);
        jw_int(&w, at);
        jw_arr_end(&w);
        jw_obj_end(&w);
    }
    jw_obj_end(&w);
    while (b->len % 8 && !b->failed)
        buf_puts(b, " ");
    int rc = buf_check(b, path, err);
    for (int i = 0; !rc && i < 8; i++)
        b->data[i] = (char)((uint64_t)(b->len - 8) >> 8 * i & 0xff);
    return rc;
}

/* Pointers to the tensors in file order; *order is malloc'd. */
static int out_order(const char *path, const struct st_out *tensors, int64_t n,
                     const struct st_out ***order, struct err *err)
{
    int rc = mem_alloc(order, n, sizeof **order, path, err);
    if (rc)
        return rc;
    for (int64_t i = 0; i < n; i++)
        (*order)[i] = &tensors[i];
    if (n < 2)
        return 0;
    qsort(*order, (size_t)n, sizeof **order, by_name);
    for (int64_t i = 1; i < n; i++)
        if (by_name(&(*order)[i - 1], &(*order)[i]) == 0)
            return err_set(err, ERR_RUN, "%s: two tensors are named '%s'", path, (*order)[i]->name);
    qsort(*order, (size_t)n, sizeof **order, by_size_name);
    return 0;
}

int st_write(const char *path, const struct st_out *tensors, int64_t n, struct err *err)
{
    return st_write_meta(path, tensors, n, NULL, err);
}

int st_write_meta(const char *path, const struct st_out *tensors, int64_t n, const json_t *meta,
                  struct err *err)
{
    int rc = 0;
    const struct st_out **order = NULL;
    struct buf header = {0};
    struct io_part part = {0};
    int64_t bytes;

    TRY(out_order(path, tensors, n, &order, err));
    TRY(out_header(path, order, n, meta, &header, err));
    TRY(io_part_open(&part, path, err));
    TRY(io_write(part.fd, path, header.data, (int64_t)header.len, err));
    for (int64_t i = 0; i < n; i++) {
        TRY(out_bytes(path, order[i], &bytes, err));
        TRY(io_write(part.fd, path, order[i]->data, bytes, err));
    }
out:
    rc = io_part_close(&part, rc, err);
    free(order);
    buf_free(&header);
    return rc;
}
