/*
 * h5util.c - HDF5 types, attributes, groups and datasets, with the reasons of failures.
 *
 * Versioned HDF5 functions are called by their explicit names where distributions map them
 * differently (H5Dcreate2, H5Gcreate2, ...).
 */
#include "core/h5util.h"

#include "core/h5guard/h5guard.h"
#include "core/mem.h"
#include "core/utf8.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- lock and errors ------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

struct reason {
    char text[256]; /* "": nothing failed */
    int sys;
};

/* Why the last failed HDF5 call of this thread failed. The library forgets it with its next call,
 * be it one that closes what was open or that names the object for the message. */
static _Thread_local struct reason last_reason;

/* The first frame of an upward walk is the innermost one: it says why, and has the errno. */
static herr_t take_innermost(unsigned n, const H5E_error2_t *e, void *ctx)
{
    struct reason *r = ctx;
    if (n == 0 && e->desc)
        snprintf(r->text, sizeof r->text, "%s", e->desc);
    if (n == 0 && (e->min_num == H5E_NOSPACE || e->min_num == H5E_CANTALLOC))
        r->sys = ENOMEM;
    const char *at = e->desc ? strstr(e->desc, "errno = ") : NULL;
    if (at && !r->sys)
        r->sys = atoi(at + 8);
    return 0;
}

/* HDF5 calls this where it would print its error stack: at the end of a call that failed. */
static herr_t keep_reason(hid_t stack, void *ctx)
{
    last_reason = (struct reason){0};
    H5Ewalk2(stack, H5E_WALK_UPWARD, take_innermost, &last_reason);
    return 0;
}

void h5_lock(void)
{
    static _Thread_local bool keeping; /* a setting of each thread's error stack */
    static bool registered;
    pthread_mutex_lock(&lock);
    if (!registered) {
        /* A file whose last flush failed (full disk) stays in HDF5's tables with its memory freed;
         * its exit handler would follow it. Every file is closed by its owner before that. */
        H5dont_atexit();
    }
    if (!keeping) {
        H5Eset_auto2(H5E_DEFAULT, keep_reason, NULL);
        keeping = true;
    }
    if (!registered) {
        h5_zstd_register();
        registered = true;
    }
    last_reason = (struct reason){0};
}

void h5_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

int h5_fail(struct err *err, int code, const char *fmt, ...)
{
    struct reason why = last_reason;
    char text[400];
    va_list ap;
    last_reason = (struct reason){0};
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    code = err_of_errno(why.sys, why.sys == EIO ? ERR_IO : code);
    int rc = why.sys     ? err_set(err, code, "%s: %s", text, strerror(why.sys))
             : *why.text ? err_set(err, code, "%s: HDF5: %s", text, why.text)
                         : err_set(err, code, "%s", text);
    if (err && err->code == rc && !err->sys)
        err->sys = why.sys;
    return rc;
}

static herr_t close_any(hid_t id)
{
    switch (H5Iget_type(id)) {
    case H5I_FILE:
        return H5Fclose(id);
    case H5I_GROUP:
        return H5Gclose(id);
    case H5I_DATASET:
        return H5Dclose(id);
    case H5I_DATATYPE:
        return H5Tclose(id);
    case H5I_DATASPACE:
        return H5Sclose(id);
    case H5I_ATTR:
        return H5Aclose(id);
    default:
        return H5Pclose(id);
    }
}

/* Why an h5_close failed, since h5_check_closed; under the lock. */
static bool close_failed;
static struct reason close_reason;

void h5_close(hid_t id)
{
    if (id < 0 || close_any(id) >= 0 || close_failed)
        return;
    close_failed = true;
    close_reason = last_reason;
}

int h5_check_closed(struct err *err)
{
    if (!close_failed)
        return 0;
    close_failed = false;
    last_reason = close_reason;
    return h5_fail(err, ERR_IO, "writing what was buffered");
}

void h5_forget_closed(void)
{
    close_failed = false;
}

const char *h5_where(hid_t loc, char buf[128])
{
    if (H5Iget_name(loc, buf, 128) <= 0)
        snprintf(buf, 128, "an object");
    return buf;
}

/* ---- element types --------------------------------------------------------------------------- */

/* A float of 16 bits, with `exponent` bits of exponent. */
static hid_t half_type(size_t exponent)
{
    hid_t t = H5Tcopy(H5T_IEEE_F32LE);
    size_t mantissa = 15 - exponent, bias = ((size_t)1 << (exponent - 1)) - 1;
    /* In this order: every step keeps the type consistent while it shrinks. */
    if (t < 0 || H5Tset_fields(t, 15, mantissa, exponent, 0, mantissa) < 0 ||
        H5Tset_precision(t, 16) < 0 || H5Tset_size(t, 2) < 0 || H5Tset_ebias(t, bias) < 0) {
        h5_close(t);
        return H5I_INVALID_HID;
    }
    return t;
}

hid_t h5_type(enum dtype t)
{
    switch (t) {
    case DT_F32:
        return H5Tcopy(H5T_IEEE_F32LE);
    case DT_BF16:
        return half_type(8);
    case DT_F16:
        return half_type(5);
    case DT_F64:
        return H5Tcopy(H5T_IEEE_F64LE);
    case DT_U8:
        return H5Tcopy(H5T_STD_U8LE);
    case DT_I32:
        return H5Tcopy(H5T_STD_I32LE);
    case DT_I64:
        return H5Tcopy(H5T_STD_I64LE);
    default:
        return H5I_INVALID_HID;
    }
}

/* ---- attributes ------------------------------------------------------------------------------ */

static int put_attr(hid_t loc, const char *name, hid_t type, const void *value, struct err *err)
{
    char buf[128];
    OWN(h5_close_at) hid_t space = H5Screate(H5S_SCALAR), attr = H5I_INVALID_HID;
    attr = H5Acreate2(loc, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    if (attr < 0 || H5Awrite(attr, type, value) < 0)
        return h5_fail(err, ERR_IO, "%s: writing attribute '%s'", h5_where(loc, buf), name);
    return 0;
}

int h5_put_str(hid_t loc, const char *name, const char *value, struct err *err)
{
    size_t len = strlen(value);
    OWN(h5_close_at) hid_t type = H5Tcopy(H5T_C_S1);
    /* Fixed size: variable-length strings live in a heap that has no checksum. */
    H5Tset_size(type, len + 1);
    H5Tset_cset(type, H5T_CSET_UTF8);
    return put_attr(loc, name, type, value, err);
}

int h5_put_i64(hid_t loc, const char *name, int64_t value, struct err *err)
{
    return put_attr(loc, name, H5T_STD_I64LE, &value, err);
}

int h5_set_i64(hid_t loc, const char *name, int64_t value, struct err *err)
{
    char buf[128];
    OWN(h5_close_at) hid_t attr = H5Aopen(loc, name, H5P_DEFAULT);
    if (attr < 0 || H5Awrite(attr, H5T_STD_I64LE, &value) < 0)
        return h5_fail(err, ERR_IO, "%s: writing attribute '%s'", h5_where(loc, buf), name);
    return 0;
}

int h5_put_f64(hid_t loc, const char *name, double value, struct err *err)
{
    return put_attr(loc, name, H5T_IEEE_F64LE, &value, err);
}

bool h5_has_attr(hid_t loc, const char *name)
{
    return H5Aexists(loc, name) > 0;
}

/* Open a scalar attribute of a class; *type is its file type. */
static int open_attr(hid_t loc, const char *name, H5T_class_t class, const char *class_name,
                     hid_t *attr, hid_t *type, struct err *err)
{
    char buf[128];
    OWN(h5_close_at) hid_t space = H5I_INVALID_HID;
    *attr = *type = H5I_INVALID_HID;
    htri_t there = H5Aexists(loc, name);
    if (there == 0)
        return err_set(err, ERR_INPUT, "%s: attribute '%s' is missing", h5_where(loc, buf), name);
    *attr = there < 0 ? H5I_INVALID_HID : H5Aopen(loc, name, H5P_DEFAULT);
    *type = *attr < 0 ? H5I_INVALID_HID : H5Aget_type(*attr);
    space = *attr < 0 ? H5I_INVALID_HID : H5Aget_space(*attr);
    if (*attr < 0 || *type < 0 || space < 0)
        return h5_fail(err, ERR_INPUT, "%s: attribute '%s'", h5_where(loc, buf), name);
    if (H5Tget_class(*type) != class || H5Sget_simple_extent_type(space) != H5S_SCALAR)
        return err_set(err, ERR_INPUT, "%s: attribute '%s' is not a single %s", h5_where(loc, buf),
                       name, class_name);
    return 0;
}

static int get_number(hid_t loc, const char *name, H5T_class_t class, const char *class_name,
                      hid_t mem, void *out, struct err *err)
{
    char buf[128];
    hid_t attr, type;
    int rc = open_attr(loc, name, class, class_name, &attr, &type, err);
    if (rc)
        goto out;
    if (H5Tget_size(type) > 8)
        FAIL(err, ERR_INPUT, "%s: attribute '%s' is wider than 8 bytes", h5_where(loc, buf), name);
    if (H5Aread(attr, mem, out) < 0)
        rc = h5_fail(err, ERR_INPUT, "%s: reading attribute '%s'", h5_where(loc, buf), name);
out:
    h5_close(type);
    h5_close(attr);
    return rc;
}

int h5_get_i64(hid_t loc, const char *name, int64_t *out, struct err *err)
{
    return get_number(loc, name, H5T_INTEGER, "integer", H5T_NATIVE_INT64, out, err);
}

int h5_get_f64(hid_t loc, const char *name, double *out, struct err *err)
{
    return get_number(loc, name, H5T_FLOAT, "float", H5T_NATIVE_DOUBLE, out, err);
}

int h5_get_str(hid_t loc, const char *name, char *out, size_t cap, struct err *err)
{
    char buf[128], *text = NULL;
    hid_t attr, type;
    int rc = open_attr(loc, name, H5T_STRING, "string", &attr, &type, err);
    if (rc)
        goto out;
    size_t size = H5Tget_size(type);
    if (H5Tis_variable_str(type) > 0)
        FAIL(
            err, ERR_INPUT,
            "%s: attribute '%s' is a variable-length string, expected a fixed one (h5py writes one "
            "for np.bytes_(text))",
            h5_where(loc, buf), name);
    if (size > 65536)
        FAIL(err, ERR_INPUT, "%s: attribute '%s' has %zu bytes", h5_where(loc, buf), name, size);
    TRY(mem_zalloc(&text, (int64_t)size + 1, 1, "attribute", err));
    if (H5Aread(attr, type, text) < 0) {
        rc = h5_fail(err, ERR_INPUT, "%s: reading attribute '%s'", h5_where(loc, buf), name);
        goto out;
    }
    if (strlen(text) >= cap)
        FAIL(err, ERR_INPUT, "%s: attribute '%s' has %zu characters, at most %zu are allowed",
             h5_where(loc, buf), name, strlen(text), cap - 1);
    strcpy(out, text);
out:
    free(text);
    h5_close(type);
    h5_close(attr);
    return rc;
}

int h5_put_fields(hid_t loc, const struct h5_field *f, const void *obj, struct err *err)
{
    for (; f->name; f++) {
        const void *p = (const char *)obj + f->offset;
        PASS_ON(f->kind == H5_TEXT   ? h5_put_str(loc, f->name, p, err)
                : f->kind == H5_REAL ? h5_put_f64(loc, f->name, *(const double *)p, err)
                : f->kind == H5_INT  ? h5_put_i64(loc, f->name, *(const int *)p, err)
                : f->kind == H5_FLAG ? h5_put_i64(loc, f->name, *(const bool *)p, err)
                                     : h5_put_i64(loc, f->name, *(const int64_t *)p, err));
    }
    return 0;
}

int h5_get_field(hid_t loc, const struct h5_field *f, void *obj, struct err *err)
{
    void *p = (char *)obj + f->offset;
    char buf[128], what[UTF8_FAULT_MAX];
    int64_t x = 0;
    int rc;
    if (f->kind == H5_TEXT) {
        rc = h5_get_str(loc, f->name, p, f->size, err);
        const char *fault = rc ? NULL : utf8_fault(p, what);
        return fault ? err_set(err, ERR_INPUT, "%s: attribute '%s' has a %s", h5_where(loc, buf),
                               f->name, fault)
                     : rc;
    }
    if (f->kind == H5_REAL)
        return h5_get_f64(loc, f->name, p, err);
    if ((rc = h5_get_i64(loc, f->name, &x, err)) != 0)
        return rc;
    if ((f->kind == H5_INT && (x < INT32_MIN || x > INT32_MAX)) ||
        (f->kind == H5_FLAG && (x < 0 || x > 1)))
        return err_set(err, ERR_INPUT, "%s: attribute '%s' = %lld is out of range",
                       h5_where(loc, buf), f->name, (long long)x);
    if (f->kind == H5_INT)
        *(int *)p = (int)x;
    else if (f->kind == H5_FLAG)
        *(bool *)p = x == 1;
    else
        *(int64_t *)p = x;
    return 0;
}

int h5_get_fields(hid_t loc, const struct h5_field *f, void *obj, struct err *err)
{
    for (; f->name; f++)
        PASS_ON(h5_get_field(loc, f, obj, err));
    return 0;
}

/* ---- groups and links ------------------------------------------------------------------------
 *
 * Groups are created so that checksums cover their names; links are followed only inside the file.
 */

int h5_create_group(hid_t loc, const char *name, hid_t *out, struct err *err)
{
    char buf[128];
    hid_t props = H5Pcreate(H5P_GROUP_CREATE);
    H5Pset_obj_track_times(props, 0);
    /* Attributes and links stay in the object header, which has a checksum: the heaps that HDF5
     * uses otherwise have none, and the library can crash on a damaged one. The limits are never
     * reached: moving a thousand links to a heap takes HDF5 minutes. */
    H5Pset_attr_phase_change(props, 65535, 0);
    H5Pset_link_phase_change(props, 65535, 0);
    hid_t id = H5Gcreate2(loc, name, H5P_DEFAULT, props, H5P_DEFAULT);
    h5_close(props);
    if (id < 0)
        return h5_fail(err, ERR_IO, "%s: creating group '%s'", h5_where(loc, buf), name);
    *out = id;
    return 0;
}

#define BUCKET 1000

static void numbered_names(int64_t index, char bucket[24], char name[24])
{
    snprintf(bucket, 24, "%03lld", (long long)(index / BUCKET));
    snprintf(name, 24, "%06lld", (long long)index);
}

int h5_enter_group(hid_t loc, const char *name, hid_t *out, struct err *err)
{
    return h5_has_link(loc, name) ? h5_open_group(loc, name, out, err)
                                  : h5_create_group(loc, name, out, err);
}

int h5_create_numbered(hid_t parent, int64_t index, hid_t *out, struct err *err)
{
    char bucket[24], name[24];
    OWN(h5_close_at) hid_t group = H5I_INVALID_HID;
    numbered_names(index, bucket, name);
    PASS_ON(h5_enter_group(parent, bucket, &group, err));
    return h5_create_group(group, name, out, err);
}

int h5_open_numbered(hid_t parent, int64_t index, hid_t *out, struct err *err)
{
    char bucket[24], name[24];
    OWN(h5_close_at) hid_t group = H5I_INVALID_HID;
    numbered_names(index, bucket, name);
    PASS_ON(h5_open_group(parent, bucket, &group, err));
    return h5_open_group(group, name, out, err);
}

bool h5_has_link(hid_t loc, const char *name)
{
    return H5Lexists(loc, name, H5P_DEFAULT) > 0;
}

#if H5_VERSION_GE(1, 12, 0)
typedef H5L_info1_t link_info;
#define get_link_info H5Lget_info1
#else
typedef H5L_info_t link_info;
#define get_link_info H5Lget_info
#endif

/* The guard's check of the object that a hard link leads to; files that are being written have no
 * guard. */
static int admit(hid_t loc, const char *name, haddr_t at, struct err *err)
{
    char buf[128];
    struct err why = {0};
    struct h5guard *guard = h5guard_of(loc);
    int rc = guard ? h5guard_admit(guard, at, &why) : 0;
    return rc ? err_set(err, rc, "%s: '%s': %s", h5_where(loc, buf), name, why.msg) : 0;
}

static int check_link(hid_t loc, const char *name, const char *kind, struct err *err)
{
    char buf[128];
    link_info info;

    htri_t there = H5Lexists(loc, name, H5P_DEFAULT);
    if (there == 0)
        return err_set(err, ERR_INPUT, "%s: %s '%s' is missing", h5_where(loc, buf), kind, name);
    if (there < 0 || get_link_info(loc, name, &info, H5P_DEFAULT) < 0)
        return h5_fail(err, ERR_INPUT, "%s: link '%s'", h5_where(loc, buf), name);
    if (info.type != H5L_TYPE_HARD)
        return err_set(err, ERR_INPUT,
                       "%s: '%s' is a soft or external link; only objects of the "
                       "file itself are read",
                       h5_where(loc, buf), name);
    return admit(loc, name, info.u.address, err);
}

int h5_open_group(hid_t loc, const char *name, hid_t *out, struct err *err)
{
    char buf[128];
    PASS_ON(check_link(loc, name, "group", err));
    hid_t id = H5Gopen2(loc, name, H5P_DEFAULT);
    if (id < 0)
        return h5_fail(err, ERR_INPUT, "%s: opening group '%s'", h5_where(loc, buf), name);
    *out = id;
    return 0;
}

int h5_open_dataset(hid_t loc, const char *name, hid_t *out, struct err *err)
{
    char buf[128];
    PASS_ON(check_link(loc, name, "dataset", err));
    hid_t id = H5Dopen2(loc, name, H5P_DEFAULT);
    if (id < 0)
        return h5_fail(err, ERR_INPUT, "%s: opening dataset '%s'", h5_where(loc, buf), name);
    *out = id;
    return 0;
}

void h5_names_free(char **names, int64_t n)
{
    for (int64_t i = 0; names && i < n; i++)
        free(names[i]);
    free(names);
}

int h5_names(hid_t group, char ***names, int64_t *n, struct err *err)
{
    char buf[128], name[256], **list = NULL;
    int rc = 0;
    int64_t count = 0;
    H5G_info_t info;
    if (H5Gget_info(group, &info) < 0)
        return h5_fail(err, ERR_INPUT, "%s: listing the group", h5_where(group, buf));
    if (info.nlinks > 1000000)
        return err_set(err, ERR_INPUT, "%s: %llu links", h5_where(group, buf),
                       (unsigned long long)info.nlinks);
    TRY(mem_zalloc(&list, (int64_t)info.nlinks, sizeof *list, "names of a group", err));
    for (; count < (int64_t)info.nlinks; count++) {
        ssize_t len = H5Lget_name_by_idx(group, ".", H5_INDEX_NAME, H5_ITER_INC, (hsize_t)count,
                                         name, sizeof name, H5P_DEFAULT);
        if (len < 0) {
            rc = h5_fail(err, ERR_INPUT, "%s: listing the group", h5_where(group, buf));
            goto out;
        }
        if ((size_t)len >= sizeof name)
            FAIL(err, ERR_INPUT, "%s: a name of %zd characters", h5_where(group, buf), len);
        TRY(mem_dup(&list[count], name, "names of a group", err));
    }
    *names = list;
    *n = count;
    list = NULL;
out:
    h5_names_free(list, count);
    return rc;
}

/* ---- datasets -------------------------------------------------------------------------------- */

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

int h5_dataset_info(hid_t dset, enum dtype type, struct h5_info *out, struct err *err)
{
    char name[128];
    OWN(h5_close_at) hid_t have = H5Dget_type(dset), want = h5_type(type);
    OWN(h5_close_at) hid_t space = H5Dget_space(dset), props = H5Dget_create_plist(dset);
    memset(out, 0, sizeof *out);
    h5_where(dset, name);
    if (have < 0 || want < 0 || space < 0 || props < 0)
        return h5_fail(err, ERR_INPUT, "%s", name);
    if (H5Tequal(have, want) <= 0)
        return err_set(err, ERR_INPUT, "%s: element type is not %s", name, dtype_name(type));
    PASS_ON(info_shape(space, name, out, err));
    return info_storage(dset, props, name, out, err);
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
                      hid_t props, hid_t *out, struct err *err)
{
    char buf[128];
    hsize_t d[H5_MAX_DIMS];
    for (int i = 0; i < ndim; i++)
        d[i] = (hsize_t)dims[i];
    hid_t space = H5Screate_simple(ndim, d, NULL);
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
    OWN(h5_close_at)
    hid_t t = h5_type(type), props = h5_dataset_props(ndim, NULL), dset = H5I_INVALID_HID;
    PASS_ON(h5_create_dataset(loc, name, t, ndim, dims, props, &dset, err));
    if (H5Dwrite(dset, t, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0)
        return h5_fail(err, ERR_IO, "%s: writing '%s'", h5_where(loc, buf), name);
    return 0;
}

int h5_get_array(hid_t loc, const char *name, enum dtype type, int ndim, const int64_t *dims,
                 void *data, struct err *err)
{
    char buf[128];
    struct h5_info info = {0};
    OWN(h5_close_at) hid_t t = h5_type(type), dset = H5I_INVALID_HID;
    PASS_ON(h5_open_dataset(loc, name, &dset, err));
    PASS_ON(h5_dataset_info(dset, type, &info, err));
    if (info.ndim != ndim || info.chunked)
        return err_set(err, ERR_INPUT, "%s: '%s' is not a contiguous array of rank %d%s",
                       h5_where(loc, buf), name, ndim,
                       info.ndim == ndim ? "; `h5repack -l CONTI -f NONE` takes the chunks out"
                                         : "");
    for (int i = 0; i < ndim; i++)
        if (info.dims[i] != dims[i])
            return err_set(err, ERR_INPUT, "%s: dimension %d of '%s' is %lld, expected %lld",
                           h5_where(loc, buf), i, name, (long long)info.dims[i],
                           (long long)dims[i]);
    if (H5Dread(dset, t, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0)
        return h5_fail(err, ERR_INPUT, "%s: reading '%s'", h5_where(loc, buf), name);
    return 0;
}
