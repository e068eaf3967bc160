/*
 * fuzz_h5guard.c - HDF5 files of any content: what the guard lets through, libhdf5 reads without
 * harm and without an error. Every object is opened, with all attributes, elements and chunks, also
 * of structures that no reader of lacuna asks for.
 */
#include "tests/fuzz/bytes_h5.h"
#include "tests/harness/h5walk.h"
#include "tests/harness/trace_fixture.h"

#include <stdio.h>
#include <string.h>

static int seeds(struct fuzz_corpus *c, struct err *err)
{
    static const char *const names[] = {
        "trace-earliest",  "trace-ordered",  "trace-vlen",     "trace-chunked",
        "packed-earliest", "packed-ordered", "masks-earliest", "masks-ordered",
    };
    char path[64];
    fuzz_h5_setup();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "tests/data/h5/%s.h5", names[i]);
        PASS_ON(fuzz_add_file(c, path, err));
    }
    return 0;
}

static void mutate(struct fuzz_rng *r, struct buf *x, const struct fuzz_corpus *c)
{
    fuzz_h5_change(r, x, c, NULL);
}

static int run(const void *data, size_t len, struct err *err)
{
    hid_t file = H5I_INVALID_HID;
    h5_lock();
    int64_t ids = hdf5_objects_open();
    int rc = h5walk_open(fuzz_file("any.h5", data, len), &file, err);
    if (rc == 0)
        rc = h5walk(file, h5walk_read, NULL, err);
    /* It keeps half a megabyte of a file that it cannot close. */
    if (file >= 0 && H5Fclose(file) < 0)
        fuzz_wild("libhdf5 cannot close what the guard let through");
    h5_unlock();
    /* Its ways out of an error are where it frees what it should not: it is to meet none. */
    if (strstr(err->msg, ": HDF5: "))
        fuzz_wild("libhdf5 refuses what the guard let through: %s", err->msg);
    if (hdf5_objects_open() != ids)
        fuzz_wild("%lld HDF5 ids are left open", (long long)(hdf5_objects_open() - ids));
    return rc;
}

const struct fuzz_target fuzz_h5guard = {"h5guard", seeds, mutate, false, run};
