/*
 * h5util_dataset.c - datasets: how they are stored, and whole small ones.
 */
#include "core/h5util.h"

#include <string.h>

static int info_filters(hid_t props, const char *name, struct h5_info *out, struct err *err)
{
    int n = H5Pget_nfilters(props);
    if (n < 0 || n > H5_MAX_FILTERS)
        return err_set(err, ERR_INPUT, "%s: %d filters, at most %d are expected", name, n,
                       H5_MAX_FILTERS);
    for (int i = 0; i < n; i++) {
        unsigned flags, config, values[8];
        size_t nvalues = 8;
        char label[32];
        H5Z_filter_t id = H5Pget_filter2(props, (unsigned)i, &flags, &nvalues, values, sizeof label,
                                         label, &config);
        if (id != H5Z_FILTER_SHUFFLE && id != H5Z_FILTER_DEFLATE && id != H5_FILTER_ZSTD)
            return err_set(err, ERR_INPUT,
                           "%s: filter %d is not one of shuffle, deflate, zstd (%d)", name, (int)id,
                           H5_FILTER_ZSTD);
        out->filter[i] = (int)id;
    }
    out->nfilters = n;
    return 0;
}

static int info_storage(hid_t dset, hid_t props, const char *name, struct h5_info *out,
                        struct err *err)
{
    hsize_t chunk[H5_MAX_DIMS];
    H5D_layout_t layout = H5Pget_layout(props);

    if (layout == H5D_CONTIGUOUS) {
        if (H5Pget_external_count(props) != 0)
            return err_set(err, ERR_INPUT, "%s: stored in another file", name);
        haddr_t at = H5Dget_offset(dset);
        out->offset = at == HADDR_UNDEF || at > INT64_MAX ? -1 : (int64_t)at;
        return 0;
    }
    if (layout != H5D_CHUNKED)
        return err_set(err, ERR_INPUT, "%s: neither contiguous nor chunked", name);
    if (H5Pget_chunk(props, H5_MAX_DIMS, chunk) != out->ndim)
        return err_set(err, ERR_INPUT, "%s: bad chunk shape", name);
    out->chunked = true;
    out->offset = -1;
    for (int i = 0; i < out->ndim; i++)
        out->chunk[i] = (int64_t)chunk[i];
    return info_filters(props, name, out, err);
}

static int info_shape(hid_t space, const char *name, struct h5_info *out, struct err *err)
{
    hsize_t dims[H5_MAX_DIMS];

    out->ndim = H5Sget_simple_extent_ndims(space);
    if (out->ndim < 1 || out->ndim > H5_MAX_DIMS)
        return err_set(err, ERR_INPUT, "%s: rank %d, expected 1 to %d", name, out->ndim,
                       H5_MAX_DIMS);
    H5Sget_simple_extent_dims(space, dims, NULL);
    for (int i = 0; i < out->ndim; i++) {
        if (dims[i] > INT64_MAX)
            return err_set(err, ERR_INPUT, "%s: dimension %d is too large", name, i);
        out->dims[i] = (int64_t)dims[i];
    }
    return 0;
}

int h5_dataset_shape(hid_t dset, struct h5_info *out, struct err *err)
{
    char name[128];
    int rc = 0;
    hid_t space = H5Dget_space(dset), props = H5Dget_create_plist(dset);

    memset(out, 0, sizeof *out);
    h5_where(dset, name);
    if (space < 0 || props < 0) {
        rc = h5_fail(err, ERR_INPUT, "%s", name);
        goto out;
    }
    TRY(info_shape(space, name, out, err));
    rc = info_storage(dset, props, name, out, err);
out:
    h5_close(props);
    h5_close(space);
    return rc;
}

int h5_dataset_info(hid_t dset, enum dtype type, struct h5_info *out, struct err *err)
{
    char name[128];
    int rc = 0;
    hid_t have = H5Dget_type(dset), want = h5_type(type);

    h5_where(dset, name);
    if (have < 0 || want < 0)
        rc = h5_fail(err, ERR_INPUT, "%s", name);
    else if (H5Tequal(have, want) <= 0)
        rc = err_set(err, ERR_INPUT, "%s: element type is not %s", name, dtype_name(type));
    else
        rc = h5_dataset_shape(dset, out, err);
    h5_close(want);
    h5_close(have);
    return rc;
}

hid_t h5_dataset_props(int ndim, const int64_t *chunk)
{
    hsize_t c[H5_MAX_DIMS];
    hid_t props = H5Pcreate(H5P_DATASET_CREATE);

    H5Pset_obj_track_times(props, 0);
    H5Pset_fill_time(props, H5D_FILL_TIME_NEVER);
    if (!chunk) {
        H5Pset_layout(props, H5D_CONTIGUOUS);
        H5Pset_alloc_time(props, H5D_ALLOC_TIME_EARLY); /* so that its offset is known at once */
        return props;
    }
    for (int i = 0; i < ndim; i++)
        c[i] = (hsize_t)chunk[i];
    H5Pset_chunk(props, ndim, c);
    return props;
}

int h5_create_dataset(hid_t loc, const char *name, hid_t type, int ndim, const int64_t *dims,
                      const int64_t *max, hid_t props, hid_t *out, struct err *err)
{
    char buf[128];
    hsize_t d[H5_MAX_DIMS], m[H5_MAX_DIMS];

    for (int i = 0; i < ndim; i++) {
        d[i] = (hsize_t)dims[i];
        m[i] = !max ? d[i] : max[i] < 0 ? H5S_UNLIMITED : (hsize_t)max[i];
    }
    hid_t space = H5Screate_simple(ndim, d, m);
    hid_t id = H5Dcreate2(loc, name, type, space, H5P_DEFAULT, props, H5P_DEFAULT);
    h5_close(space);
    if (id < 0)
        return h5_fail(err, ERR_IO, "%s: creating dataset '%s'", h5_where(loc, buf), name);
    *out = id;
    return 0;
}

int h5_put_array(hid_t loc, const char *name, enum dtype type, int ndim, const int64_t *dims,
                 const void *data, struct err *err)
{
    char buf[128];
    int rc = 0;
    hid_t t = h5_type(type), props = h5_dataset_props(ndim, NULL), dset = H5I_INVALID_HID;

    TRY(h5_create_dataset(loc, name, t, ndim, dims, NULL, props, &dset, err));
    if (H5Dwrite(dset, t, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0)
        rc = h5_fail(err, ERR_IO, "%s: writing '%s'", h5_where(loc, buf), name);
out:
    h5_close(dset);
    h5_close(props);
    h5_close(t);
    return rc;
}

int h5_get_array(hid_t loc, const char *name, enum dtype type, int ndim, const int64_t *dims,
                 void *data, struct err *err)
{
    char buf[128];
    int rc = 0;
    struct h5_info info = {0};
    hid_t t = h5_type(type), dset = H5I_INVALID_HID;

    TRY(h5_open_dataset(loc, name, &dset, err));
    TRY(h5_dataset_info(dset, type, &info, err));
    if (info.ndim != ndim || info.chunked)
        FAIL(err, ERR_INPUT, "%s: '%s' is not a contiguous array of rank %d%s", h5_where(loc, buf),
             name, ndim,
             info.ndim == ndim ? "; `h5repack -l CONTI -f NONE` takes the chunks out" : "");
    for (int i = 0; i < ndim; i++)
        if (info.dims[i] != dims[i])
            FAIL(err, ERR_INPUT, "%s: dimension %d of '%s' is %lld, expected %lld",
                 h5_where(loc, buf), i, name, (long long)info.dims[i], (long long)dims[i]);
    if (H5Dread(dset, t, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0)
        rc = h5_fail(err, ERR_INPUT, "%s: reading '%s'", h5_where(loc, buf), name);
out:
    h5_close(dset);
    h5_close(t);
    return rc;
}
