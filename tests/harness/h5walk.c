/*
 * h5walk.c - visit and read every object of an HDF5 file.
 */
#include "tests/harness/h5walk.h"

#include "core/h5guard/h5guard.h"
#include "core/mem.h"
#include "tests/harness/h5count.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH = 6, OBJECTS = 300, ELEMENTS = 1 << 20 };

int h5walk_open(const char *path, hid_t *file, struct err *err)
{
    struct h5guard *g = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_sys(err, ERR_INPUT, "%s", path);
    PASS_ON(h5guard_open(fd, &g, err));
    *file = h5guard_hdf5(g);
    return *file < 0 ? h5_fail(err, ERR_INPUT, "%s", path) : 0;
}

struct walk {
    int (*visit)(void *ctx, hid_t object, const char *path, struct err *err);
    void *ctx;
    int seen;
};

/* A link that is no group is a dataset or a committed type; its guard has seen it by then. */
static int open_any(hid_t loc, const char *name, hid_t *out, struct err *err)
{
    struct err first = {0}, second = {0};
    if (h5_open_group(loc, name, out, &first) == 0 || h5_open_dataset(loc, name, out, &second) == 0)
        return 0;
    if (strstr(first.msg, "lacuna does not read") || strstr(first.msg, "the file is damaged") ||
        strstr(first.msg, "soft or external"))
        return err_set(err, first.code, "%s", first.msg);
    if (strstr(second.msg, ": HDF5: ") && !strstr(second.msg, "not a dataset"))
        return err_set(err, second.code, "%s", second.msg);
    *out = H5Topen2(loc, name, H5P_DEFAULT);
    return *out < 0 ? err_set(err, ERR_INPUT, "%s", second.msg) : 0;
}

static int visit_below(struct walk *w, hid_t group, const char *path, int depth, struct err *err)
{
    char **names = NULL, child[512];
    int64_t n = 0;
    hid_t object = H5I_INVALID_HID;
    int rc = 0;
    TRY(w->visit(w->ctx, group, path, err));
    if (H5Iget_type(group) != H5I_GROUP && H5Iget_type(group) != H5I_FILE)
        return 0;
    TRY(h5_names(group, &names, &n, err));
    for (int64_t i = 0; i < n && depth < DEPTH && w->seen < OBJECTS; i++, w->seen++) {
        snprintf(child, sizeof child, "%s/%.200s", strlen(path) < 256 ? path : "", names[i]);
        TRY(open_any(group, names[i], &object, err));
        TRY(visit_below(w, object, child, depth + 1, err));
        if (H5Idec_ref(object) < 0)
            rc = h5_fail(err, ERR_INPUT, "closing %s", child);
        object = H5I_INVALID_HID;
        TRY(rc);
    }
out:
    h5_close(object);
    h5_names_free(names, n);
    return rc;
}

int h5walk(hid_t file, int (*visit)(void *ctx, hid_t object, const char *path, struct err *err),
           void *ctx, struct err *err)
{
    struct walk w = {visit, ctx, 0};
    OWN(h5_close_at) hid_t root = H5Gopen2(file, "/", H5P_DEFAULT);
    return root < 0 ? h5_fail(err, ERR_INPUT, "/") : visit_below(&w, root, "", 0, err);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Is the value of such a type its own bytes? */
static bool is_plain(hid_t type)
{
    H5T_class_t c = H5Tget_class(type);
    if (H5Tis_variable_str(type) > 0)
        return false;
    return c == H5T_INTEGER || c == H5T_FLOAT || c == H5T_BITFIELD || c == H5T_OPAQUE ||
           c == H5T_ENUM || c == H5T_STRING;
}

static int read_attribute(hid_t object, hsize_t i, struct err *err)
{
    hid_t a = H5Aopen_by_idx(object, ".", H5_INDEX_NAME, H5_ITER_INC, i, H5P_DEFAULT, H5P_DEFAULT);
    hid_t type = a < 0 ? a : H5Aget_type(a), space = a < 0 ? a : H5Aget_space(a);
    hssize_t n = space < 0 ? 0 : H5Sget_simple_extent_npoints(space);
    size_t size = type < 0 ? 0 : H5Tget_size(type);
    OWN(free_at) void *data = n > 0 && size > 0 ? calloc((size_t)n, size + 8) : NULL;
    double number;
    int rc = a < 0 || type < 0 || space < 0 ? h5_fail(err, ERR_INPUT, "attribute") : 0;
    if (data && is_plain(type) && H5Aread(a, type, data) < 0)
        rc = h5_fail(err, ERR_INPUT, "attribute");
    if (n == 1 && (H5Tget_class(type) == H5T_INTEGER || H5Tget_class(type) == H5T_FLOAT) &&
        H5Aread(a, H5T_NATIVE_DOUBLE, &number) < 0)
        rc = h5_fail(err, ERR_INPUT, "attribute as a number");
    h5_close(space);
    h5_close(type);
    h5_close(a);
    return rc;
}

int h5walk_elements(hid_t dset, void **data, size_t *n, struct err *err)
{
    OWN(h5_close_at) hid_t type = H5Dget_type(dset), space = H5Dget_space(dset);
    hssize_t count = H5Sget_simple_extent_npoints(space);
    size_t size = H5Tget_size(type);
    *data = NULL;
    *n = 0;
    if (count < 0 || size == 0 || !is_plain(type) || (uint64_t)count > ELEMENTS / size)
        return 0;
    *n = (size_t)count * size;
    *data = malloc(*n + 1);
    if (!*data)
        return err_set(err, ERR_NOMEM, "elements");
    if (H5Dread(dset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, *data) < 0)
        return h5_fail(err, ERR_INPUT, "elements");
    return 0;
}

/* Ask for the first chunks of a dataset, as the reader of packed traces does. */
static void look_up_chunks(hid_t dset)
{
    OWN(h5_close_at) hid_t props = H5Dget_create_plist(dset), space = H5Dget_space(dset);
    hsize_t chunk[32], dims[32], at[33] = {0}, bytes;
    int rank = H5Sget_simple_extent_dims(space, dims, NULL);
    if (props >= 0 && H5Pget_layout(props) == H5D_CHUNKED && H5Pget_chunk(props, 32, chunk) == rank)
        for (int k = 0; k < 4; k++) {
            uint32_t mask = 0;
            void *data;
            if (H5Dget_chunk_storage_size(dset, at, &bytes) >= 0 && bytes > 0 &&
                bytes <= ELEMENTS && (data = malloc(bytes)) != NULL) {
                H5Dread_chunk(dset, H5P_DEFAULT, at, &mask, data);
                free(data);
            }
            at[k % rank] += chunk[k % rank];
            if (at[k % rank] >= dims[k % rank])
                at[k % rank] = 0;
        }
}

int h5walk_read(void *ctx, hid_t object, const char *path, struct err *err)
{
    int64_t attributes = h5_attributes(object);
    void *data = NULL;
    size_t n;
    int rc = 0;
    if (attributes < 0)
        return h5_fail(err, ERR_INPUT, "%s", path);
    for (int64_t i = 0; i < attributes && i < 100 && rc == 0; i++)
        rc = read_attribute(object, (hsize_t)i, err);
    if (rc || H5Iget_type(object) != H5I_DATASET)
        return rc;
    hid_t props = H5Dget_create_plist(object);
    if (props < 0)
        return h5_fail(err, ERR_INPUT, "%s", path);
    if (H5Pget_nfilters(props) == 0)
        rc = h5walk_elements(object, &data, &n, err);
    free(data);
    h5_close(props);
    look_up_chunks(object);
    return rc;
}
