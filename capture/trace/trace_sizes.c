/*
 * trace_sizes.c - what the tensors of a trace take: bytes as they are and in the file, per token,
 * layer and head.
 */
#include "capture/trace/trace_tools.h"

#include "core/trace_internal.h"

struct size_row {
    const char *name;
    int64_t plain, stored, calls, heads, tokens;
};

/* Bytes of a dataset in the file. */
static int stored_bytes(const struct trace *t, int64_t call, const struct trace_array *a,
                        int64_t *bytes, struct err *err)
{
    char path[DATASET_PATH_MAX];
    *bytes = a->bytes;
    if (a->storage == TRACE_CONTIGUOUS)
        return 0;
    trace_dataset_path(t, call, a, path);
    h5_lock();
    hid_t dset = H5Dopen2(t->file, path, H5P_DEFAULT);
    if (dset >= 0)
        *bytes = (int64_t)H5Dget_storage_size(dset);
    h5_close(dset);
    h5_unlock();
    return dset < 0 ? err_set(err, ERR_INPUT, "%s: cannot open %s", trace_path(t), path) : 0;
}

static int size_of(const struct trace *t, int j, struct size_row *r, struct err *err)
{
    int64_t bytes;
    int rc = 0;
    *r = (struct size_row){.calls = 0};
    for (int64_t i = 0; i < t->n_calls; i++) {
        const struct trace_array *a = &t->calls[i].arr[j];
        if (!a->present)
            continue;
        TRY(stored_bytes(t, i, a, &bytes, err));
        r->name = a->name;
        r->plain += a->bytes;
        r->stored += bytes;
        r->calls++;
        r->heads = a->slices;
        r->tokens = a->rows;
    }
out:
    return rc;
}

static double share(int64_t bytes, int64_t parts)
{
    return (double)bytes / (double)parts;
}

int trace_sizes_text(const struct trace *t, struct buf *b, struct err *err)
{
    struct size_row r;
    int rc = 0;

    buf_printf(b, "  %-8s  %12s  %12s  %6s  %12s  %12s  %12s\n", "tensor", "MB", "MB in file",
               "ratio", "B per token", "MB per layer", "MB per head");
    for (int j = 0; j < CALL_ARRAYS; j++) {
        TRY(size_of(t, j, &r, err));
        if (r.calls)
            buf_printf(b, "  %-8s  %12.3f  %12.3f  %6.3f  %12.1f  %12.3f  %12.4f\n", r.name,
                       (double)r.plain / 1e6, (double)r.stored / 1e6, share(r.stored, r.plain),
                       share(r.stored, r.calls * r.heads * r.tokens),
                       share(r.stored, r.calls) / 1e6, share(r.stored, r.calls * r.heads) / 1e6);
    }
    buf_puts(b, "  in the file: per token and head, per layer of a step and branch, per head of a "
                "layer\n");
out:
    return rc;
}

int trace_sizes_json(const struct trace *t, struct jw *w, struct err *err)
{
    struct size_row r;
    int rc = 0;

    jw_key(w, "tensors");
    jw_arr(w);
    for (int j = 0; j < CALL_ARRAYS; j++) {
        TRY(size_of(t, j, &r, err));
        if (!r.calls)
            continue;
        jw_obj(w);
        jw_kstr(w, "tensor", r.name);
        jw_kint(w, "bytes", r.plain);
        jw_kint(w, "bytes_in_file", r.stored);
        jw_knum(w, "bytes_per_token_and_head", share(r.stored, r.calls * r.heads * r.tokens));
        jw_knum(w, "bytes_per_layer", share(r.stored, r.calls));
        jw_knum(w, "bytes_per_head", share(r.stored, r.calls * r.heads));
        jw_obj_end(w);
    }
    jw_arr_end(w);
out:
    return rc;
}
