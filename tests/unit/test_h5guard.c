/*
 * The guard of HDF5 files: it takes what h5py, h5repack and lacuna write, in every form, says which
 * structure it does not read, and keeps from libhdf5 what would crash it.
 */
#include "tests/harness/h5walk.h"
#include "tests/harness/suite.h"
#include "tests/harness/trace_fixture.h"

#include "core/buf.h"
#include "core/fileio.h"
#include "core/h5guard/guard.h"
#include "core/maskfile.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *data_path(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "tests/data/h5/%s.h5", name);
    return path;
}

static struct buf load(const char *path)
{
    struct buf b = {0};
    MUST(buf_read_file(&b, path, 1 << 24, ERR));
    return b;
}

static const char *store(const char *name, const struct buf *b)
{
    FILE *f = fopen(test_path(name), "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(b->data, 1, b->len, f), b->len);
    ck_assert_int_eq(fclose(f), 0);
    return test_path(name);
}

/* A text trace with maps, two calls. */
static const char *own_trace(const char *name, char id[64])
{
    struct trace_meta m = fixture_text(DT_BF16, 2, 1, 9);
    OWN(trace_close) struct trace *t = NULL;
    m.pool = 4;
    MUST(fixture_write(test_path(name), &m, 2, ERR));
    MUST(trace_open(test_path(name), &t, ERR));
    snprintf(id, 64, "%s", trace_id(t));
    return test_path(name);
}

static void expect_trace(const char *path, const char *id)
{
    OWN(trace_close) struct trace *t = NULL;
    int64_t bad = 0;
    MUST(trace_open(path, &t, ERR));
    ck_assert_str_eq(trace_id(t), id);
    MUST(trace_verify(t, 1, NULL, NULL, &bad, ERR));
    ck_assert_int_eq(bad, 0);
}

/* ---- legal files ----------------------------------------------------------------------------- */

/* The same trace, which h5py wrote with superblocks 0 and 2, links and attributes in object
 * headers, symbol tables and fractal heaps. */
TEST(traces_of_h5py_are_read)
{
    static const char *const names[] = {"trace-earliest", "trace-ordered", "packed-earliest",
                                        "packed-ordered"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        expect_trace(data_path(names[i]), "xxh3:15284122e9e3831f82ddfbd5a1189f8f");
}

TEST(masks_of_h5py_are_read)
{
    static const char *const names[] = {"masks-earliest", "masks-ordered"};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        OWN(maskfile_close) struct maskfile *f = NULL;
        MUST(maskfile_open(data_path(names[k]), &f, ERR));
        ck_assert_int_eq(maskfile_cells(f), 4);
        for (int64_t i = 0; i < 4; i++) {
            OWN(mask_free) struct mask m = {0};
            MUST(maskfile_read(f, i, &m, ERR));
        }
    }
}

struct compare {
    hid_t plain; /* the file without a guard */
    int datasets;
    size_t bytes;
};

static int compare(void *ctx, hid_t object, const char *path, struct err *err)
{
    struct compare *c = ctx;
    void *mine, *theirs;
    size_t n, m;
    if (H5Iget_type(object) != H5I_DATASET)
        return 0;
    OWN(h5_close_at) hid_t other = H5Dopen2(c->plain, path, H5P_DEFAULT);
    assert_ok(h5walk_elements(object, &mine, &n, err), err);
    assert_ok(h5walk_elements(other, &theirs, &m, err), err);
    ck_assert_uint_eq(n, m);
    ck_assert_msg(n == 0 || memcmp(mine, theirs, n) == 0, "%s", path);
    c->datasets++;
    c->bytes += n;
    free(mine);
    free(theirs);
    return 0;
}

/* Chunks of every kind. */
TEST(elements_are_those_that_libhdf5_reads_alone)
{
    static const char *const names[] = {"trace-chunked", "trace-vlen", "trace-earliest",
                                        "masks-ordered"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct compare c = {0};
        hid_t file = H5I_INVALID_HID;
        h5_lock();
        c.plain = H5Fopen(data_path(names[i]), H5F_ACC_RDONLY, H5P_DEFAULT);
        MUST(h5walk_open(data_path(names[i]), &file, ERR));
        MUST(h5walk(file, compare, &c, ERR));
        MUST(h5walk(file, h5walk_read, NULL, ERR));
        ck_assert_int_ge(c.datasets, 4);
        ck_assert_uint_ge(c.bytes, 64);
        h5_close(file);
        h5_close(c.plain);
        h5_unlock();
    }
}

/* HDF5 1.10 and later have other layouts: not damage, and the way out. */
TEST(what_is_not_read_is_named_and_not_called_damaged)
{
    struct err err = {0};
    struct trace *t = NULL;
    assert_fails(trace_open(data_path("packed-latest"), &t, &err), &err, ERR_INPUT,
                 "uses a layout of version 5");
    ck_assert_int_eq(trace_open(data_path("packed-latest"), &t, &err), ERR_INPUT);
    ck_assert_ptr_nonnull(strstr(err.msg, "packed-latest.h5"));
    ck_assert_ptr_nonnull(strstr(err.msg, "offset"));
    ck_assert_ptr_nonnull(strstr(err.msg, "h5repack"));
    ck_assert_ptr_null(strstr(err.msg, "damaged"));
}

/* ---- programs -------------------------------------------------------------------------------- */

static bool have(const char *command)
{
    char line[300];
    snprintf(line, sizeof line, "%s >/dev/null 2>&1", command);
    if (system(line) == 0)
        return true;
    fprintf(stderr, "skipped: '%s' fails, so the program is not installed here\n", command);
    return false;
}

static void run(const char *fmt, const char *a, const char *b)
{
    char line[1200];
    snprintf(line, sizeof line, fmt, a, b);
    ck_assert_msg(system(line) == 0, "%s", line);
}

TEST(legal_files_that_are_not_read_are_not_called_damaged)
{
    struct trace *got;
    hid_t f = H5Fcreate(test_path("ext.h5"), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    H5Lcreate_external("b.h5", "/k", f, "e", H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(f);
    FAILS(trace_open(test_path("ext.h5"), &got, ERR), ERR_INPUT, "uses an old root group");
}

TEST(h5repack_and_h5dump_take_a_trace_and_give_it_back)
{
    char id[64];
    const char *path = own_trace("own.h5", id);
    if (have("h5dump --version"))
        run("h5dump -A '%s' >'%s'", path, test_path("dump.txt"));
    if (!have("h5repack --version"))
        return;
    run("h5repack --low=0 --high=1 '%s' '%s'", path, test_path("old.h5"));
    expect_trace(test_path("old.h5"), id);
    run("h5repack --low=1 --high=1 '%s' '%s'", path, test_path("new.h5"));
    expect_trace(test_path("new.h5"), id);
}

TEST(h5py_writes_a_trace_again_and_it_is_read)
{
    static const char *const kinds[] = {"earliest", "v108", "ordered"};
    char id[64], command[100];
    const char *path = own_trace("own.h5", id);
    if (!have("python3 -c 'import h5py'"))
        return;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        snprintf(command, sizeof command, "python3 tests/data/h5/rewrite_h5.py %s '%%s' '%%s'",
                 kinds[i]);
        run(command, path, test_path("again.h5"));
        expect_trace(test_path("again.h5"), id);
    }
}

/* ---- hostile files --------------------------------------------------------------------------- */

static void put_checksum(struct buf *b, size_t at, size_t n)
{
    uint32_t sum = guard_checksum(b->data + at, n);
    memcpy(b->data + at + n, &sum, sizeof sum);
}

static size_t find(const struct buf *b, const char *what, size_t from)
{
    for (size_t at = from; at + 4 <= b->len; at++)
        if (memcmp(b->data + at, what, 4) == 0)
            return at;
    ck_abort_msg("no %s", what);
    return 0;
}

/* A B-tree of names: is it a leaf of at least two nodes? */
static bool has_two(const struct buf *b, size_t at)
{
    return b->data[at + 4] == 0 && b->data[at + 5] == 0 && b->data[at + 6] >= 2;
}

TEST(structures_in_each_other_are_refused)
{
    struct err err = {0};
    struct trace *t = NULL;
    struct buf b = load(data_path("trace-earliest"));
    size_t tree = find(&b, "TREE", 0), heap = find(&b, "HEAP", 0);
    while (!has_two(&b, tree))
        tree = find(&b, "TREE", tree + 4);
    memcpy(b.data + tree + 48, b.data + tree + 32, 8); /* child 1 is child 0 */
    assert_fails(trace_open(store("bad.h5", &b), &t, &err), &err, ERR_INPUT,
                 "symbol table node at offset");
    ck_assert_int_ne(trace_open(store("bad.h5", &b), &t, &err), 0);
    ck_assert_ptr_nonnull(strstr(err.msg, "overlaps another structure"));
    err_clear(&err);
    buf_free(&b);

    b = load(data_path("trace-earliest"));
    memset(b.data + heap + 16, 0, 8); /* the free list begins at 0 and comes back to it */
    assert_fails(trace_open(store("bad.h5", &b), &t, &err), &err, ERR_INPUT,
                 "local heap at offset");
    buf_free(&b);
}

/* libhdf5 cannot close a file that has one, and keeps half a megabyte of it. */
TEST(a_tree_of_huge_objects_without_objects_is_refused)
{
    OWN(buf_free) struct buf b = load(data_path("masks-ordered"));
    size_t at = find(&b, "FRHP", 0);
    struct err err = {0};
    hid_t file = H5I_INVALID_HID;
    b.data[at + 28] = 4;
    put_checksum(&b, at, 142);
    h5_lock();
    int rc = h5walk_open(store("bad.h5", &b), &file, &err);
    if (rc == 0)
        rc = h5walk(file, h5walk_read, NULL, &err);
    ck_assert_int_ge(H5Fclose(file), 0);
    h5_unlock();
    assert_fails(rc, &err, ERR_INPUT, "a B-tree of huge objects without objects");
}

/* Not through h5_open_group: the object was not checked, and has no content. */
TEST(an_object_that_was_not_admitted_has_no_content)
{
    char id[64];
    hid_t file = H5I_INVALID_HID, group = H5I_INVALID_HID;
    MUST(h5_open_file(own_trace("own.h5", id), "lacuna-trace", 1, &file, ERR));
    h5_lock();
    ck_assert_int_lt(H5Gopen2(file, "model", H5P_DEFAULT), 0);
    MUST(h5_open_group(file, "model", &group, ERR));
    h5_close(group);
    group = H5Gopen2(file, "model", H5P_DEFAULT);
    ck_assert_int_ge(group, 0);
    h5_close(group);
    h5_close(file);
    h5_unlock();
}

/* Between check and use the file turns into noise: what was checked stays as it was. */
TEST(a_file_that_changes_after_the_check_has_no_effect)
{
    char id[64], name[64];
    hid_t file = H5I_INVALID_HID, group = H5I_INVALID_HID;
    const char *path = own_trace("own.h5", id);
    OWN(buf_free) struct buf b = load(path);
    struct h5guard *g;
    MUST(h5_open_file(path, "lacuna-trace", 1, &file, ERR));
    h5_lock();
    ck_assert_ptr_nonnull(g = h5guard_of(file));
    hid_t model = H5I_INVALID_HID;
    MUST(h5_open_group(file, "model", &model, ERR));
    h5_close(model);
    memset(b.data, 0x5a, b.len);
    int fd = open(path, O_WRONLY);
    ck_assert(fd >= 0 && write(fd, b.data, b.len) == (ssize_t)b.len);
    close(fd);
    MUST(h5_open_group(file, "model", &model, ERR));
    MUST(h5_get_str(model, "name", name, sizeof name, ERR));
    ck_assert_str_eq(name, "fixture");
    h5_close(model);
    h5_close(group);
    h5_close(file);
    h5_unlock();
}

/* The payload is read from the file that was checked, not from what has its name by then. */
TEST(the_descriptor_is_that_of_the_checked_file)
{
    char id[64], head[8];
    hid_t file = H5I_INVALID_HID;
    const char *path = own_trace("own.h5", id);
    OWN(buf_free) struct buf b = {0};
    int fd = -1;
    MUST(h5_open_file(path, "lacuna-trace", 1, &file, ERR));
    buf_puts(&b, "another file");
    ck_assert_int_eq(rename(store("other", &b), path), 0);
    h5_lock();
    MUST(h5_file_descriptor(file, &fd, ERR));
    h5_close(file);
    h5_unlock();
    ck_assert(pread(fd, head, 8, 0) == 8 && memcmp(head + 1, "HDF", 3) == 0);
    close(fd);
}
