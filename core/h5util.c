/*
 * h5util.c - HDF5 types and attributes, with the reasons of failures.
 *
 * Versioned HDF5 functions are called by their explicit names where distributions map them
 * differently (H5Dcreate2, H5Gcreate2, ...).
 */
#include "core/h5util.h"

#include "core/h5zstd.h"
#include "core/mem.h"

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

static hid_t bf16_type(void)
{
    hid_t t = H5Tcopy(H5T_IEEE_F32LE);
    /* In this order: every step keeps the type consistent while it shrinks. */
    if (t < 0 || H5Tset_fields(t, 15, 7, 8, 0, 7) < 0 || H5Tset_precision(t, 16) < 0 ||
        H5Tset_size(t, 2) < 0 || H5Tset_ebias(t, 127) < 0) {
        h5_close(t);
        return H5I_INVALID_HID;
    }
    return t;
}

static hid_t f16_type(void)
{
    hid_t t = H5Tcopy(H5T_IEEE_F32LE);
    if (t < 0 || H5Tset_fields(t, 15, 10, 5, 0, 10) < 0 || H5Tset_precision(t, 16) < 0 ||
        H5Tset_size(t, 2) < 0 || H5Tset_ebias(t, 15) < 0) {
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
        return bf16_type();
    case DT_F16:
        return f16_type();
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
    int rc = 0;
    hid_t space = H5Screate(H5S_SCALAR), attr = H5I_INVALID_HID;

    attr = H5Acreate2(loc, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    if (attr < 0 || H5Awrite(attr, type, value) < 0)
        rc = h5_fail(err, ERR_IO, "%s: writing attribute '%s'", h5_where(loc, buf), name);
    h5_close(attr);
    h5_close(space);
    return rc;
}

int h5_put_str(hid_t loc, const char *name, const char *value, struct err *err)
{
    size_t len = strlen(value);
    hid_t type = H5Tcopy(H5T_C_S1);
    /* Fixed size: variable-length strings live in a heap that has no checksum. */
    H5Tset_size(type, len + 1);
    H5Tset_cset(type, H5T_CSET_UTF8);
    int rc = put_attr(loc, name, type, value, err);
    h5_close(type);
    return rc;
}

int h5_put_i64(hid_t loc, const char *name, int64_t value, struct err *err)
{
    return put_attr(loc, name, H5T_STD_I64LE, &value, err);
}

int h5_set_i64(hid_t loc, const char *name, int64_t value, struct err *err)
{
    char buf[128];
    hid_t attr = H5Aopen(loc, name, H5P_DEFAULT);
    int rc = 0;
    if (attr < 0 || H5Awrite(attr, H5T_STD_I64LE, &value) < 0)
        rc = h5_fail(err, ERR_IO, "%s: writing attribute '%s'", h5_where(loc, buf), name);
    h5_close(attr);
    return rc;
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
    int rc = 0;
    hid_t space = H5I_INVALID_HID;

    *attr = *type = H5I_INVALID_HID;
    htri_t there = H5Aexists(loc, name);
    if (there == 0)
        FAIL(err, ERR_INPUT, "%s: attribute '%s' is missing", h5_where(loc, buf), name);
    *attr = there < 0 ? H5I_INVALID_HID : H5Aopen(loc, name, H5P_DEFAULT);
    *type = *attr < 0 ? H5I_INVALID_HID : H5Aget_type(*attr);
    space = *attr < 0 ? H5I_INVALID_HID : H5Aget_space(*attr);
    if (*attr < 0 || *type < 0 || space < 0) {
        rc = h5_fail(err, ERR_INPUT, "%s: attribute '%s'", h5_where(loc, buf), name);
        goto out;
    }
    if (H5Tget_class(*type) != class || H5Sget_simple_extent_type(space) != H5S_SCALAR)
        FAIL(err, ERR_INPUT, "%s: attribute '%s' is not a single %s", h5_where(loc, buf), name,
             class_name);
out:
    h5_close(space);
    return rc;
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
