/*
 * mutate_h5.c - structural mutations of HDF5 files.
 *
 * Failures of single HDF5 calls are of no interest here: then the file is left as it is.
 */
#include "tests/fuzz/mutate_h5.h"

#include "core/fileio.h"
#include "tests/harness/h5count.h"

#include <hdf5.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PATHS = 400, PATH_LEN = 200, DEPTH = 6 };

struct paths {
    char text[MAX_PATHS][PATH_LEN];
    int n;
};

static void close_id(hid_t id)
{
    if (id >= 0)
        H5Idec_ref(id);
}

/* Paths of all links below `path`, parents first. */
static void collect(hid_t file, const char *path, int depth, struct paths *p)
{
    H5G_info_t info;
    hid_t group = H5Gopen2(file, path, H5P_DEFAULT);
    if (group >= 0 && H5Gget_info(group, &info) >= 0)
        for (hsize_t i = 0; i < info.nlinks && p->n < MAX_PATHS && depth < DEPTH; i++) {
            char name[80] = {0};
            H5Lget_name_by_idx(group, ".", H5_INDEX_NAME, H5_ITER_INC, i, name, sizeof name,
                               H5P_DEFAULT);
            snprintf(p->text[p->n], PATH_LEN, "%s%s%.79s", path, path[1] ? "/" : "", name);
            char *child = p->text[p->n++];
            if (strlen(child) < PATH_LEN - 1)
                collect(file, child, depth + 1, p);
        }
    close_id(group);
}

static const char *some_path(struct fuzz_rng *r, const struct paths *p)
{
    return p->n ? p->text[fuzz_below(r, (uint64_t)p->n)] : "/";
}

/* ---- values --------------------------------------------------------------------------------- */

static const long long odd_ints[] = {
    0,         -1,        1,         2,         3,         7,        8,     64,
    127,       -128,      255,       770,       4096,      65535,    65536, INT32_MAX,
    INT32_MIN, 1ll << 32, 1ll << 40, 1ll << 62, INT64_MAX, INT64_MIN};
static const char *const odd_texts[] = {"",
                                        "x",
                                        "main",
                                        "cond",
                                        "float32",
                                        "bfloat16",
                                        "float64",
                                        "int8",
                                        "front",
                                        "back",
                                        "raster",
                                        "../x",
                                        "a/b",
                                        "\xff\xfe",
                                        "a b\nc",
                                        "%s%n",
                                        "xxh3:00112233445566778899aabbccddeeff",
                                        "lacuna-trace",
                                        "lacuna-masks",
                                        "blocks",
                                        "band",
                                        "full"};

static double odd_number(struct fuzz_rng *r)
{
    static const double x[] = {0, 1, -1, 0.5, 1e-300, 1e300, NAN, INFINITY, -INFINITY, 1e-30};
    return x[fuzz_below(r, sizeof x / sizeof *x)];
}

static long long odd_int(struct fuzz_rng *r)
{
    return odd_ints[fuzz_below(r, sizeof odd_ints / sizeof *odd_ints)];
}

/* Some type; *made says that it has to be closed. */
static hid_t odd_type(struct fuzz_rng *r, bool *made)
{
    hid_t t = H5T_STD_I64LE;
    *made = false;
    switch (fuzz_below(r, 12)) {
    case 0:
        return H5T_STD_I64LE;
    case 1:
        return H5T_IEEE_F64LE;
    case 2:
        return H5T_IEEE_F32LE;
    case 3:
        return H5T_STD_U8LE;
    case 4:
        return H5T_STD_I32LE;
    case 5:
        return H5T_STD_I32BE;
    case 6:
        return H5T_STD_U64LE;
    case 7:
        return H5T_STD_REF_OBJ;
    case 8: /* bfloat16, or nearly */
        t = H5Tcopy(H5T_IEEE_F32LE);
        H5Tset_fields(t, 15, 7, 8, 0, 7);
        H5Tset_precision(t, 16);
        H5Tset_size(t, 2);
        H5Tset_ebias(t, fuzz_below(r, 2) ? 127 : 15);
        break;
    case 9:
        t = H5Tcreate(H5T_COMPOUND, 16);
        H5Tinsert(t, "a", 0, H5T_STD_I64LE);
        break;
    case 10:
        t = H5Tcopy(H5T_C_S1);
        H5Tset_size(t, fuzz_below(r, 2) ? H5T_VARIABLE : 1 + fuzz_below(r, 100));
        break;
    default:
        t = H5Tcreate(H5T_OPAQUE, 1 + fuzz_below(r, 40));
    }
    *made = true;
    return t;
}

/* ---- attributes ----------------------------------------------------------------------------- */

static void write_string(hid_t obj, const char *name, const char *value, size_t size, bool variable)
{
    hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
    H5Tset_size(type, variable ? H5T_VARIABLE : size);
    hid_t attr = H5Acreate2(obj, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    char *fixed = calloc(1, size + 1);
    if (attr >= 0 && fixed) {
        strncpy(fixed, value, size);
        const char *pointer = value;
        H5Awrite(attr, type, variable ? (const void *)&pointer : fixed);
    }
    free(fixed);
    close_id(attr);
    close_id(type);
    close_id(space);
}

static void write_number(hid_t obj, const char *name, hid_t type, const void *value)
{
    hid_t space = H5Screate(H5S_SCALAR);
    hid_t attr = H5Acreate2(obj, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    if (attr >= 0)
        H5Awrite(attr, type, value);
    close_id(attr);
    close_id(space);
}

/* Some type and shape, value left as it comes (zeros). */
static void write_odd(struct fuzz_rng *r, hid_t obj, const char *name)
{
    hsize_t dims[3] = {1 + fuzz_below(r, 3), 1 + fuzz_below(r, 40), 1};
    bool made, null = fuzz_below(r, 4) == 0;
    hid_t type = odd_type(r, &made);
    hid_t space = null ? H5Screate(H5S_NULL) : H5Screate_simple((int)fuzz_below(r, 4), dims, NULL);
    close_id(H5Acreate2(obj, name, type, space, H5P_DEFAULT, H5P_DEFAULT));
    close_id(space);
    if (made)
        close_id(type);
}

static void change_attribute(struct fuzz_rng *r, hid_t obj, const char *name)
{
    long long i = odd_int(r);
    double d = odd_number(r);
    size_t sizes[] = {1, 8, 40, 64, 128, 1024, 60000};
    if (fuzz_below(r, 6) == 0) {
        const char *to = fuzz_below(r, 2) ? "layers" : "x";
        H5Arename(obj, name, to);
        return;
    }
    H5Adelete(obj, name);
    switch (fuzz_below(r, 6)) {
    case 0:
        break;
    case 1:
    case 2:
        write_number(obj, name, fuzz_below(r, 4) ? H5T_NATIVE_LLONG : H5T_NATIVE_INT, &i);
        break;
    case 3:
        write_number(obj, name, H5T_NATIVE_DOUBLE, &d);
        break;
    case 4:
        write_string(obj, name, odd_texts[fuzz_below(r, sizeof odd_texts / sizeof *odd_texts)],
                     sizes[fuzz_below(r, 7)], fuzz_below(r, 4) == 0);
        break;
    default:
        write_odd(r, obj, name);
    }
}

static void mutate_attribute(struct fuzz_rng *r, hid_t file, const struct paths *p)
{
    char name[100] = {0};
    hid_t obj = H5Oopen(file, some_path(r, p), H5P_DEFAULT);
    int64_t n = obj >= 0 ? h5_attributes(obj) : 0;
    if (n > 0) {
        hid_t a = H5Aopen_by_idx(obj, ".", H5_INDEX_NAME, H5_ITER_INC, fuzz_below(r, (uint64_t)n),
                                 H5P_DEFAULT, H5P_DEFAULT);
        if (a >= 0 && H5Aget_name(a, sizeof name, name) > 0) {
            close_id(a);
            change_attribute(r, obj, name);
        } else {
            close_id(a);
        }
    }
    close_id(obj);
}

/* ---- links and datasets --------------------------------------------------------------------- */

static void mutate_link(struct fuzz_rng *r, hid_t file, const struct paths *p)
{
    char other[PATH_LEN + 8];
    const char *path = some_path(r, p), *to = some_path(r, p);
    snprintf(other, sizeof other, "%s%s", to, fuzz_below(r, 2) ? "x" : "/x");
    switch (fuzz_below(r, 7)) {
    case 0:
        H5Ldelete(file, path, H5P_DEFAULT);
        break;
    case 1:
        H5Lmove(file, path, file, other, H5P_DEFAULT, H5P_DEFAULT);
        break;
    case 2:
        H5Ldelete(file, to, H5P_DEFAULT);
        H5Lmove(file, path, file, to, H5P_DEFAULT, H5P_DEFAULT);
        break;
    case 3: /* also a group inside itself */
        H5Lcreate_hard(file, path, file, other, H5P_DEFAULT, H5P_DEFAULT);
        break;
    case 4:
        H5Ldelete(file, path, H5P_DEFAULT);
        H5Lcreate_soft(to, file, path, H5P_DEFAULT, H5P_DEFAULT);
        break;
    case 5:
        H5Ldelete(file, path, H5P_DEFAULT);
        H5Lcreate_external("other.h5", "/", file, path, H5P_DEFAULT, H5P_DEFAULT);
        break;
    default:
        H5Ocopy(file, path, file, other, H5P_DEFAULT, H5P_DEFAULT);
    }
}

static hid_t odd_layout(struct fuzz_rng *r, int rank, const hsize_t *dims)
{
    hid_t props = H5Pcreate(H5P_DATASET_CREATE);
    hsize_t chunk[6];
    for (int i = 0; i < rank; i++)
        chunk[i] = dims[i] < 1000 && dims[i] > 0 ? dims[i] : 1;
    switch (fuzz_below(r, 5)) {
    case 0:
        H5Pset_layout(props, H5D_COMPACT);
        break;
    case 1:
        H5Pset_external(props, "outside.bin", 0, H5F_UNLIMITED);
        break;
    case 2:
    case 3:
        if (rank == 0)
            break;
        if (fuzz_below(r, 2))
            chunk[0] = 1;
        H5Pset_chunk(props, rank, chunk);
        if (fuzz_below(r, 2))
            H5Pset_shuffle(props);
        if (fuzz_below(r, 2))
            H5Pset_deflate(props, 1);
        if (fuzz_below(r, 4) == 0)
            H5Pset_fletcher32(props);
        break;
    default:
        break; /* contiguous */
    }
    return props;
}

/* Put another dataset in the place of one. */
static void mutate_dataset(struct fuzz_rng *r, hid_t file, const struct paths *p)
{
    const char *path = some_path(r, p);
    hid_t old = H5Dopen2(file, path, H5P_DEFAULT);
    if (old < 0)
        return;
    hsize_t dims[6] = {1, 1, 1, 1, 1, 1};
    hid_t space = H5Dget_space(old), type = H5Dget_type(old);
    int rank = H5Sget_simple_extent_ndims(space);
    if (rank > 0 && rank <= 4)
        H5Sget_simple_extent_dims(space, dims, NULL);
    close_id(space);
    close_id(old);
    if (fuzz_below(r, 3) == 0)
        rank = (int)fuzz_below(r, 6);
    else if (rank > 0 && fuzz_below(r, 2))
        dims[fuzz_below(r, (uint64_t)rank)] = (hsize_t)llabs(odd_int(r) / 2);
    bool made = true;
    hid_t other = fuzz_below(r, 2) ? type : odd_type(r, &made);
    hid_t props = odd_layout(r, rank, dims);
    H5Ldelete(file, path, H5P_DEFAULT);
    space = H5Screate_simple(rank, dims, NULL);
    close_id(H5Dcreate2(file, path, other, space, H5P_DEFAULT, props, H5P_DEFAULT));
    close_id(space);
    close_id(props);
    if (made && other != type)
        close_id(other);
    close_id(type);
}

/* ---- file images ---------------------------------------------------------------------------- */

static hid_t open_image(const struct buf *x, char path[512])
{
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    snprintf(path, 512, "%s", fuzz_file("mutate.h5", buf_str(x), x->len));
    return H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
}

static void close_image(hid_t file, const char *path, struct buf *x)
{
    struct err err = {0};
    struct buf b = {0};
    H5Fclose(file);
    if (buf_read_file(&b, path, 16 << 20, &err) == 0) {
        buf_free(x);
        *x = b;
    } else {
        buf_free(&b);
    }
}

bool fuzz_h5(struct fuzz_rng *r, struct buf *x)
{
    static struct paths p;
    char path[512];
    hid_t file = open_image(x, path);
    if (file < 0)
        return false;
    p.n = 0;
    snprintf(p.text[p.n++], PATH_LEN, "/");
    collect(file, "/", 0, &p);
    uint64_t what = fuzz_below(r, 10);
    if (what < 6)
        mutate_attribute(r, file, &p);
    else if (what < 8)
        mutate_dataset(r, file, &p);
    else
        mutate_link(r, file, &p);
    close_image(file, path, x);
    return true;
}

bool fuzz_h5_set_string(struct buf *x, const char *name, const char *value)
{
    char path[512];
    hid_t file = open_image(x, path);
    if (file < 0)
        return false;
    H5Adelete(file, name);
    write_string(file, name, value, strlen(value) + 1, false);
    close_image(file, path, x);
    return true;
}
