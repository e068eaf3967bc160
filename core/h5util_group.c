/*
 * h5util_group.c - groups and links. Groups are created so that checksums cover their names; links
 * are followed only inside the file.
 */
#include "core/h5util.h"

#include "core/h5guard/h5guard.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* The bucket of an index, created when it is the first to need it. */
static int enter_bucket(hid_t parent, const char *bucket, hid_t *out, struct err *err)
{
    return h5_has_link(parent, bucket) ? h5_open_group(parent, bucket, out, err)
                                       : h5_create_group(parent, bucket, out, err);
}

int h5_create_numbered(hid_t parent, int64_t index, hid_t *out, struct err *err)
{
    char bucket[24], name[24];
    hid_t group = H5I_INVALID_HID;

    numbered_names(index, bucket, name);
    int rc = enter_bucket(parent, bucket, &group, err);
    if (rc == 0)
        rc = h5_create_group(group, name, out, err);
    h5_close(group);
    return rc;
}

int h5_open_numbered(hid_t parent, int64_t index, hid_t *out, struct err *err)
{
    char bucket[24], name[24];
    hid_t group = H5I_INVALID_HID;

    numbered_names(index, bucket, name);
    int rc = h5_open_group(parent, bucket, &group, err);
    if (rc == 0)
        rc = h5_open_group(group, name, out, err);
    h5_close(group);
    return rc;
}

int h5_move_numbered(hid_t loc, const char *from, hid_t parent, int64_t index, struct err *err)
{
    char bucket[24], name[24];
    hid_t group = H5I_INVALID_HID;

    numbered_names(index, bucket, name);
    int rc = enter_bucket(parent, bucket, &group, err);
    if (rc == 0 && H5Lmove(loc, from, group, name, H5P_DEFAULT, H5P_DEFAULT) < 0)
        rc = h5_fail(err, ERR_IO, "naming group %s", name);
    h5_close(group);
    return rc;
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
    int rc = check_link(loc, name, "group", err);
    if (rc)
        return rc;
    hid_t id = H5Gopen2(loc, name, H5P_DEFAULT);
    if (id < 0)
        return h5_fail(err, ERR_INPUT, "%s: opening group '%s'", h5_where(loc, buf), name);
    *out = id;
    return 0;
}

int h5_open_dataset(hid_t loc, const char *name, hid_t *out, struct err *err)
{
    char buf[128];
    int rc = check_link(loc, name, "dataset", err);
    if (rc)
        return rc;
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
        if (!(list[count] = strdup(name)))
            FAIL(err, ERR_NOMEM, "names of a group");
    }
    *names = list;
    *n = count;
    list = NULL;
out:
    h5_names_free(list, count);
    return rc;
}
