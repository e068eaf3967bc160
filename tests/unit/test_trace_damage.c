/*
 * Damaged, foreign, unfinished traces: nothing wrong is ever read as right. A killed writer, a full
 * disk and a damaged file leave a message that says what happened.
 */
#include "tests/harness/suite.h"
#include "tests/harness/trace_fixture.h"

#include "core/buf.h"
#include "core/fileio.h"
#include "core/h5util.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void put_file(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fwrite(data, 1, n, f), n);
    ck_assert_int_eq(fclose(f), 0);
}

/* Replace one byte of an existing file. */
static void poke(const char *path, size_t at, unsigned char byte)
{
    int fd = open(path, O_WRONLY);
    ck_assert(fd >= 0 && pwrite(fd, &byte, 1, (off_t)at) == 1);
    close(fd);
}

static struct buf small_trace(const char *name, enum trace_storage storage, int64_t n)
{
    struct trace_meta m = fixture_text(DT_BF16, 2, 1, n);
    struct buf data = {0};
    struct trace *t = NULL;
    m.pool = 8;
    m.layers = 2;
    MUST(fixture_write(test_path(name), &m, 2, ERR));
    if (storage != TRACE_CONTIGUOUS) {
        MUST(trace_open(test_path(name), &t, ERR));
        MUST(trace_pack(t, test_path(name), storage, 1, true, ERR));
        trace_close(&t);
    }
    MUST(buf_read_file(&data, test_path(name), 1 << 24, ERR));
    return data;
}

/* What a user's check of a file finds: 0 nothing, 1 refused at open, 2 named by verify. */
static int verdict(const char *path, char id[64])
{
    struct err err = {0};
    struct trace *t = NULL;
    int64_t bad = 0, open_before = hdf5_objects_open();
    int rc = trace_open(path, &t, &err);
    if (rc) {
        ck_assert_msg(hdf5_objects_open() == open_before, "objects are left open: %s", err.msg);
        ck_assert_msg(rc == ERR_INPUT, "%d: %s", rc, err.msg);
        ck_assert_msg(strstr(err.msg, path) != NULL, "the file is not named: %s", err.msg);
        return 1;
    }
    snprintf(id, 64, "%s", trace_id(t));
    assert_ok(trace_verify(t, 1, NULL, NULL, &bad, &err), &err);
    trace_close(&t);
    ck_assert_int_eq(hdf5_objects_open(), open_before);
    return bad ? 2 : 0;
}

struct range {
    size_t at, n;
};

/* Where the payload of the contiguous file lies. */
static int payload_ranges(const char *path, struct range *out)
{
    OWN(trace_close) struct trace *t = NULL;
    int n = 0;
    MUST(trace_open(path, &t, ERR));
    for (int i = 0; i < trace_calls(t); i++)
        for (int what = 0; what < TRACE_WHAT_COUNT; what++)
            for (int h = 0; h < trace_shape(trace_meta(t), (enum trace_what)what).heads; h++) {
                int64_t at, bytes;
                trace_locate(t, i, (enum trace_what)what, h, &at, &bytes);
                out[n++] = (struct range){(size_t)at, (size_t)bytes};
            }
    return n;
}

/* One byte of five: the step meets every place within an element of 2, 4 and 8 bytes. */
TEST(flipped_payload_bytes_are_found)
{
    OWN(buf_free) struct buf data = small_trace("a.h5", TRACE_CONTIGUOUS, 9);
    struct range r[64];
    int n = payload_ranges(test_path("a.h5"), r), tried = 0;
    char id[64];
    for (int i = 0; i < n; i++)
        for (size_t at = r[i].at; at < r[i].at + r[i].n; at++) {
            if (tried++ % 5)
                continue;
            unsigned char old = (unsigned char)data.data[at];
            poke(test_path("a.h5"), at, old ^ (unsigned char)(1 << at % 8));
            ck_assert_msg(verdict(test_path("a.h5"), id) == 2, "byte %zu", at);
            poke(test_path("a.h5"), at, old);
        }
    ck_assert_int_eq(tried, 2 * 2 * 9 * (8 * 2 * (2 + 1) + 4)); /* q, out; k, v half; lse */
    ck_assert_int_eq(verdict(test_path("a.h5"), id), 0);
}

/* Values of a head that is read as a whole are held against its checksum; a part of it and the
 * other heads can still be read. */
TEST(a_damaged_head_is_not_read)
{
    OWN(buf_free) struct buf data = small_trace("a.h5", TRACE_CONTIGUOUS, 9);
    struct range r[64];
    OWN(trace_close) struct trace *t = NULL;
    float x[9 * 8];
    int n = payload_ranges(test_path("a.h5"), r), tried = 0, at = 0;
    MUST(trace_open(test_path("a.h5"), &t, ERR));
    for (int i = 0; i < trace_calls(t); i++)
        for (int w = 0; w < TRACE_WHAT_COUNT; w++) {
            enum trace_what what = (enum trace_what)w;
            struct trace_shape s = trace_shape(trace_meta(t), what);
            for (int h = 0; h < s.heads; h++, at++, tried++) {
                size_t byte = r[at].at + r[at].n / 2;
                ck_assert(s.tokens * s.dim <= (int64_t)(sizeof x / sizeof *x));
                poke(test_path("a.h5"), byte, (unsigned char)data.data[byte] ^ 4);
                FAILS(trace_read(t, i, what, h, 0, s.tokens, x, ERR), ERR_INPUT,
                      "does not match its checksum");
                MUST(trace_read(t, i, what, h, 1, s.tokens - 1, x, ERR));
                for (int other = 0; other < s.heads; other++)
                    if (other != h)
                        MUST(trace_read(t, i, what, other, 0, s.tokens, x, ERR));
                poke(test_path("a.h5"), byte, (unsigned char)data.data[byte]);
                MUST(trace_read(t, i, what, h, 0, s.tokens, x, ERR));
            }
        }
    ck_assert_int_eq(tried, n);
}

/* Other bytes of the file: found, or of no meaning (gaps between objects). The steps are small
 * enough to meet every object. */
TEST_N(any_flipped_byte_is_found_or_means_nothing, 3)
{
    OWN(buf_free) struct buf data = small_trace("a.h5", (enum trace_storage)_i, 40);
    char id[64], good[64];
    int found = 0, tried = 0;
    size_t step = _i == TRACE_CONTIGUOUS ? 97 : 229;
    ck_assert_int_eq(verdict(test_path("a.h5"), good), 0);
    for (size_t at = 0; at < data.len; at += at < 512 ? 3 : step) {
        unsigned char old = (unsigned char)data.data[at];
        poke(test_path("a.h5"), at, old ^ (unsigned char)(1 << at % 8));
        int v = verdict(test_path("a.h5"), id);
        found += v != 0;
        tried++;
        ck_assert_msg(v != 0 || strcmp(id, good) == 0, "byte %zu changes the content unseen", at);
        poke(test_path("a.h5"), at, old);
    }
    ck_assert_int_gt(found, tried / 6);
}

/* Every occurrence of an attribute's value in the file. */
TEST(every_flipped_byte_of_an_attribute_is_found)
{
    static const char *const values[] = {"fixture",      "LlamaForCausalLM", "bfloat16",
                                         "lacuna-trace", "xxh3:ffeedd",      "synthetic",
                                         "main"};
    OWN(buf_free) struct buf data = small_trace("a.h5", TRACE_CONTIGUOUS, 9);
    char id[64];
    for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
        size_t len = strlen(values[v]);
        int seen = 0;
        for (size_t at = 0; at + len <= data.len; at++) {
            if (memcmp(data.data + at, values[v], len) != 0)
                continue;
            seen++;
            for (size_t i = 0; i < len; i++) {
                poke(test_path("a.h5"), at + i, (unsigned char)data.data[at + i] ^ 4);
                ck_assert_msg(verdict(test_path("a.h5"), id) == 1, "%s, byte %zu", values[v], i);
                poke(test_path("a.h5"), at + i, (unsigned char)data.data[at + i]);
            }
        }
        ck_assert_msg(seen > 0, "%s is not in the file", values[v]);
    }
}

/* Change things through HDF5, so that its own checksums are right: only ours can tell. */
TEST(changes_made_with_another_program_are_found)
{
    struct trace *t = NULL;
    int64_t bad = 0, other = 12;
    double scale = 0.5;
    uint8_t sum[2][16] = {{1}};
    for (int i = 0; i < 4; i++) {
        struct buf data = small_trace("a.h5", TRACE_CONTIGUOUS, 9);
        buf_free(&data);
        h5_lock();
        hid_t f = H5Fopen(test_path("a.h5"), H5F_ACC_RDWR, H5P_DEFAULT);
        hid_t group = H5Gopen2(f,
                               i < 2    ? "/model"
                               : i == 2 ? "/calls/step-000/main/layer-01"
                                        : "/",
                               H5P_DEFAULT);
        if (i == 3) {
            hid_t d = H5Dopen2(f, "/calls/step-000/main/layer-01/q_xxh3", H5P_DEFAULT);
            ck_assert(H5Dwrite(d, H5T_STD_U8LE, H5S_ALL, H5S_ALL, H5P_DEFAULT, sum) >= 0);
            H5Dclose(d);
        } else {
            hid_t a = H5Aopen(group, i == 0 ? "scale" : i == 1 ? "layers" : "order", H5P_DEFAULT);
            ck_assert(H5Awrite(a, i == 0 ? H5T_NATIVE_DOUBLE : H5T_NATIVE_INT64,
                               i == 0 ? (void *)&scale : &other) >= 0);
            H5Aclose(a);
        }
        H5Gclose(group);
        H5Fclose(f);
        h5_unlock();
        FAILS(trace_open(test_path("a.h5"), &t, ERR), ERR_INPUT, "content id");
        MUST(trace_open_damaged(test_path("a.h5"), &t, ERR));
        MUST(trace_verify(t, 1, NULL, NULL, &bad, ERR));
        ck_assert_int_eq(bad, i == 3 ? 3 : 1);
        trace_close(&t);
    }
}

TEST_N(a_truncated_file_is_refused_at_every_length, 3)
{
    OWN(buf_free) struct buf data = small_trace("a.h5", (enum trace_storage)_i, 40);
    char id[64];
    for (size_t n = 0; n < data.len; n += n < 600 ? 13 : 263) {
        put_file(test_path("cut.h5"), data.data, n);
        ck_assert_msg(verdict(test_path("cut.h5"), id) == 1, "%zu of %zu bytes", n, data.len);
    }
    put_file(test_path("cut.h5"), data.data, data.len - 1);
    ck_assert_int_eq(verdict(test_path("cut.h5"), id), 1);
}

/* ---- foreign files --------------------------------------------------------------------------- */

static hid_t open_rw(const char *path)
{
    h5_lock();
    hid_t f = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    ck_assert_int_ge(f, 0);
    return f;
}

static void close_rw(hid_t f)
{
    H5Fclose(f);
    h5_unlock();
}

TEST(other_versions_and_other_files_are_told_apart)
{
    struct err err = {0};
    struct trace *t = NULL;
    OWN(buf_free) struct buf data = small_trace("a.h5", TRACE_CONTIGUOUS, 9);
    int64_t two = 2, seven = 7;

    hid_t f = open_rw(test_path("a.h5"));
    hid_t a = H5Aopen(f, "version_minor", H5P_DEFAULT);
    H5Awrite(a, H5T_NATIVE_INT64, &seven);
    H5Aclose(a);
    close_rw(f);
    assert_ok(trace_open(test_path("a.h5"), &t, &err), &err); /* a newer minor version is read */
    trace_close(&t);
    f = open_rw(test_path("a.h5"));
    a = H5Aopen(f, "version_major", H5P_DEFAULT);
    H5Awrite(a, H5T_NATIVE_INT64, &two);
    H5Aclose(a);
    close_rw(f);
    assert_fails(trace_open(test_path("a.h5"), &t, &err), &err, ERR_INPUT, "version 2.7");
    ck_assert_int_ne(trace_open(test_path("a.h5"), &t, &err), 0);
    ck_assert_ptr_nonnull(strstr(err.msg, "reads version 1"));
    err_clear(&err);

    put_file(test_path("text.h5"), "hello, world\n", 13);
    assert_fails(trace_open(test_path("text.h5"), &t, &err), &err, ERR_INPUT, "not an HDF5 file");
    put_file(test_path("empty.h5"), "", 0);
    assert_fails(trace_open(test_path("empty.h5"), &t, &err), &err, ERR_INPUT, "not an HDF5 file");
    assert_fails(trace_open(test_path("none.h5"), &t, &err), &err, ERR_INPUT, "No such file");
    assert_fails(trace_open(test_tmpdir(), &t, &err), &err, ERR_INPUT, "one is wanted here");
    h5_lock();
    H5Fclose(H5Fcreate(test_path("plain.h5"), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
    h5_unlock();
    assert_fails(trace_open(test_path("plain.h5"), &t, &err), &err, ERR_INPUT,
                 "not a lacuna-trace");
    ck_assert_ptr_null(t);
}

static void replace_dataset(hid_t f, const char *path, enum dtype type, int ndim,
                            const int64_t *dims, hid_t props)
{
    OWN(h5_close_at) hid_t t = h5_type(type), d = H5I_INVALID_HID;
    ck_assert_int_ge(H5Ldelete(f, path, H5P_DEFAULT), 0);
    MUST(h5_create_dataset(f, path, t, ndim, dims, props, &d, ERR));
}

#define LAYER "/calls/step-000/main/layer-01"

/* One impossible thing per loop index, in a file that is otherwise valid HDF5. */
TEST_N(impossible_structure_is_refused, 16)
{
    static const char *const text[] = {
        "dimension 1 is 10",
        "rank 2",
        "element type is not bfloat16",
        "in another file",
        "reach past",
        "is missing",
        "soft or external link",
        "soft or external link",
        "not within",
        "not a single",
        "is not part of a trace",
        "filter",
        "rows of one head",
        "another kind",
        "attributes belong to",
        "2 query heads",
    };
    struct err err = {0};
    struct trace *t = NULL;
    OWN(buf_free) struct buf data = small_trace("a.h5", TRACE_CONTIGUOUS, 9);
    int64_t dims[3] = {2, 9, 8}, one = 1, zero = 0, three = 3;
    hid_t f = open_rw(test_path("a.h5")), props = h5_dataset_props(3, NULL), group;
    switch (_i) {
    case 0:
        dims[1] = 10;
        replace_dataset(f, LAYER "/q", DT_BF16, 3, dims, props);
        break;
    case 1:
        replace_dataset(f, LAYER "/q", DT_BF16, 2, dims, props);
        break;
    case 2:
        replace_dataset(f, LAYER "/q", DT_F16, 3, dims, props);
        break;
    case 3:
        H5Pset_external(props, "/etc/passwd", 0, 2 * 9 * 8 * 2);
        replace_dataset(f, LAYER "/q", DT_BF16, 3, dims, props);
        break;
    case 4: /* late allocation: no place in the file */
        H5Pset_alloc_time(props, H5D_ALLOC_TIME_LATE);
        replace_dataset(f, LAYER "/q", DT_BF16, 3, dims, props);
        break;
    case 5:
        H5Ldelete(f, LAYER "/k", H5P_DEFAULT);
        break;
    case 6:
        H5Ldelete(f, LAYER "/k", H5P_DEFAULT);
        H5Lcreate_soft("/calls/step-000/main/layer-00/k", f, LAYER "/k", H5P_DEFAULT, H5P_DEFAULT);
        break;
    case 7:
        H5Ldelete(f, LAYER "/k", H5P_DEFAULT);
        H5Lcreate_external("b.h5", "/k", f, LAYER "/k", H5P_DEFAULT, H5P_DEFAULT);
        break;
    case 8:
        group = H5Gopen2(f, "/model", H5P_DEFAULT);
        hid_t a = H5Aopen(group, "layers", H5P_DEFAULT);
        H5Awrite(a, H5T_NATIVE_INT64, &zero);
        H5Aclose(a);
        H5Gclose(group);
        break;
    case 9:
        group = H5Gopen2(f, "/model", H5P_DEFAULT);
        H5Adelete(group, "heads");
        assert_ok(h5_put_str(group, "heads", "two", &err), &err);
        H5Gclose(group);
        break;
    case 10:
        group = H5Gcreate2(f,
                           "/calls/a-name-that-is-much-longer-than-any-name-of-a-step-in-a-trace"
                           "-of-lacuna-could-be",
                           H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
        H5Gclose(group);
        break;
    case 11:
    case 12:
        H5Pclose(props);
        dims[0] = _i == 12 ? 2 : 1;
        props = h5_dataset_props(3, dims);
        if (_i == 11)
            H5Pset_fletcher32(props);
        dims[0] = 2;
        replace_dataset(f, LAYER "/q", DT_BF16, 3, dims, props);
        break;
    case 13:
        H5Adelete(f, "format");
        assert_ok(h5_put_str(f, "format", "another kind", &err), &err);
        break;
    case 14:
        H5Lmove(f, LAYER, f, "/calls/step-000/main/layer-07", H5P_DEFAULT, H5P_DEFAULT);
        break;
    case 15:
        group = H5Gopen2(f, "/model", H5P_DEFAULT);
        H5Adelete(group, "kv_heads");
        assert_ok(h5_put_i64(group, "kv_heads", three, &err), &err);
        H5Gclose(group);
        break;
    }
    (void)one;
    h5_close(props);
    close_rw(f);
    assert_fails(trace_open(test_path("a.h5"), &t, &err), &err, ERR_INPUT, text[_i]);
    ck_assert_int_ne(trace_open_damaged(test_path("a.h5"), &t, &err), 0);
    ck_assert_msg(strstr(err.msg, "a.h5") != NULL, "%s", err.msg);
    ck_assert_ptr_null(t);
}

/* ---- stopped writers ------------------------------------------------------------------------- */

/* A file is: absent with nothing beside it, absent with a .part that is refused, or complete. */
static void check_after_kill(const char *path, int *absent, int *part, int *good)
{
    struct err err = {0};
    struct trace *t = NULL;
    char name[NAME_MAX + 1];
    int64_t bad = -1;

    bool has_part = io_part_find(path, name) != IO_PART_NONE;
    if (access(path, F_OK) == 0) {
        assert_ok(trace_open(path, &t, &err), &err);
        assert_ok(trace_verify(t, 1, NULL, NULL, &bad, &err), &err);
        ck_assert_int_eq(bad, 0);
        ck_assert_int_eq(trace_calls(t), 3);
        trace_close(&t);
        ck_assert(!has_part);
        ++*good;
    } else if (has_part) {
        assert_fails(trace_open(path, &t, &err), &err, ERR_INPUT, "stopped before the end");
        err = (struct err){0};
        assert_fails(trace_open(test_path(name), &t, &err), &err, ERR_INPUT, "was stopped");
        ++*part;
    } else {
        ++*absent;
    }
    unlink(test_path(name));
    unlink(path);
}

/* Stop at each step of writing, exactly: kill oneself between calls of the interface. */
static void stop_at(const char *path, int step)
{
    struct trace_meta m = fixture_text(DT_F32, 2, 1, 30);
    struct err err = {0};
    struct trace_writer *w = NULL;
    float x[30 * 16] = {0};
    int at = 0;
#define STEP(call)                                                                                 \
    do {                                                                                           \
        if (at++ == step)                                                                          \
            raise(SIGKILL);                                                                        \
        if ((call) != 0)                                                                           \
            _exit(1);                                                                              \
    } while (0)
    STEP(trace_create(path, &m, 3, true, &w, &err));
    for (int i = 0; i < 3; i++) {
        struct trace_call c = {
            .layer = i, .branch = "main", .timestep = NAN, .sigma = NAN, .order = i};
        STEP(trace_begin_call(w, &c, &err));
        STEP(trace_put(w, TRACE_Q, 0, 30, x, 16, &err));
        STEP(trace_put(w, TRACE_K, 0, 15, x, 16, &err));
        STEP(trace_put(w, TRACE_K, 15, 15, x, 16, &err));
        STEP(trace_put(w, TRACE_V, 0, 30, x, 16, &err));
        STEP(trace_end_call(w, &err));
    }
    STEP(trace_commit(&w, &err));
#undef STEP
    _exit(at <= step ? 0 : 2);
}

TEST(a_writer_stopped_at_any_step_leaves_a_file_that_says_so)
{
    int absent = 0, part = 0, good = 0;
    for (int step = 0; step <= 20; step++) {
        pid_t pid = fork();
        ck_assert_int_ge(pid, 0);
        if (pid == 0)
            stop_at(test_path("stopped.h5"), step);
        int status;
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        ck_assert(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
        check_after_kill(test_path("stopped.h5"), &absent, &part, &good);
    }
    ck_assert_int_eq(absent, 1); /* before the creation */
    ck_assert_int_eq(part, 19);
    ck_assert_int_eq(good, 1); /* no stop */
}

TEST(a_file_being_written_is_not_mistaken_for_a_dead_one)
{
    struct trace_meta m = fixture_text(DT_BF16, 2, 1, 20);
    struct trace_writer *w = NULL, *second = NULL;
    OWN(trace_close) struct trace *t = NULL;
    char part[NAME_MAX + 1];
    MUST(fixture_begin(test_path("live.h5"), &m, 2, &w, ERR));
    FAILS(trace_open(test_path("live.h5"), &t, ERR), ERR_INPUT, "still being written");
    ck_assert_int_eq(io_part_find(test_path("live.h5"), part), IO_PART_LIVE);
    FAILS(trace_open(test_path(part), &t, ERR), ERR_INPUT, "its writer is at work");
    FAILS(trace_create(test_path("live.h5"), &m, 2, true, &second, ERR), ERR_IO,
          "by another process");
    MUST(trace_commit(&w, ERR));
    MUST(trace_open(test_path("live.h5"), &t, ERR));
}

/* ---- full disk ------------------------------------------------------------------------------- */

/* A file size limit stands in for a full disk: writes beyond it fail (SIGXFSZ ignored). */
TEST_N(a_full_disk_ends_with_an_error_and_without_a_part_file, 3)
{
    struct trace_meta m = fixture_text(DT_BF16, 4, 2, 900);
    struct err err = {0};
    struct rlimit old, limit;
    OWN(trace_close) struct trace *t = NULL;
    m.pool = 16;
    signal(SIGXFSZ, SIG_IGN);
    assert_ok(fixture_write(test_path("full.h5"), &m, 3, &err), &err);
    assert_ok(trace_open(test_path("full.h5"), &t, &err), &err);
    unlink(test_path("full.h5"));
    getrlimit(RLIMIT_FSIZE, &old);
    for (int kb = 1; kb < 500; kb += kb < 20 ? 1 : 29) {
        limit = old;
        limit.rlim_cur = (rlim_t)kb * 1024;
        ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
        int64_t open_before = hdf5_objects_open();
        int rc = _i == 0
                     ? fixture_write(test_path("full.h5"), &m, 3, &err)
                     : trace_pack(t, test_path("full.h5"), (enum trace_storage)_i, 1, true, &err);
        setrlimit(RLIMIT_FSIZE, &old);
        ck_assert_msg(rc == ERR_IO && strstr(err.msg, strerror(EFBIG)), "%d KiB: %d %s", kb, rc,
                      err.msg);
        ck_assert_msg(strstr(err.msg, "ulimit -f") != NULL &&
                          (strstr(err.msg, "fewer") != NULL) == (_i == 0),
                      "%s", err.msg);
        ck_assert(test_absent("full.h5"));
        err_clear(&err);
        /* HDF5 keeps the id of a file that it cannot flush. */
        ck_assert_int_le(hdf5_objects_open(), open_before + 1);
    }
    assert_ok(fixture_write(test_path("full.h5"), &m, 3, &err), &err);
}
