/* Names in a trace that this build does not know: refused by name, unless marked as optional. */
#include "tests/harness/suite.h"
#include "tests/harness/trace_fixture.h"

#include "core/h5util.h"

#include <stdio.h>
#include <string.h>

#define CALL "/calls/step-000/cond/layer-01"

enum kind { ATTRIBUTE, DATASET, GROUP };

static const struct unknown {
    const char *group;
    enum kind kind;
    const char *name;
} unknown[] = {
    {"/", ATTRIBUTE, "byte_order"},
    {"/", DATASET, "scales"},
    {"/", GROUP, "capture"},
    {"/types", GROUP, "float8"},
    {"/model", ATTRIBUTE, "softcap"},
    {"/model", DATASET, "sinks"},
    {"/run", ATTRIBUTE, "row_weight"},
    {"/run", DATASET, "row_sums"},
    {"/video", ATTRIBUTE, "window_t"},
    {"/video", GROUP, "masks"},
    {"/calls", ATTRIBUTE, "causal"},
    {"/calls/step-000", ATTRIBUTE, "scale"},
    {"/calls/step-000/cond", ATTRIBUTE, "scale"},
    {CALL, ATTRIBUTE, "temperature"},
    {CALL, DATASET, "offsets"},
    {CALL, GROUP, "offsets"},
};

#define N_UNKNOWN (int)(sizeof unknown / sizeof *unknown)

static const char *write_video(void)
{
    struct trace_meta m = fixture_video(DT_BF16);
    m.layers = 2;
    MUST(fixture_write(test_path("t.h5"), &m, 4, ERR));
    return test_path("t.h5");
}

/* Add the name to its group and, if `list` is not NULL, the mark. */
static void add(const char *path, const struct unknown *u, const char *list)
{
    int64_t dims[1] = {1};
    float one = 1;
    hid_t made = H5I_INVALID_HID;
    h5_lock();
    hid_t f = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    ck_assert_int_ge(f, 0);
    hid_t g = H5Gopen2(f, u->group, H5P_DEFAULT);
    ck_assert_int_ge(g, 0);
    if (u->kind == ATTRIBUTE)
        MUST(h5_put_i64(g, u->name, 1023, ERR));
    else if (u->kind == DATASET)
        MUST(h5_put_array(g, u->name, DT_F32, 1, dims, &one, ERR));
    else
        MUST(h5_create_group(g, u->name, &made, ERR));
    if (list)
        MUST(h5_put_str(g, "optional", list, ERR));
    h5_close(made);
    h5_close(g);
    H5Fclose(f);
    h5_unlock();
}

/* Both ways to open a file refuse it and name what is meant. */
static void refused(const char *path, const char *text)
{
    struct trace *t = NULL;
    FAILS(trace_open(path, &t, ERR), ERR_INPUT, text);
    FAILS(trace_open_damaged(path, &t, ERR), ERR_INPUT, path);
    ck_assert_ptr_null(t);
    ck_assert_int_eq(hdf5_objects_open(), 0);
}

TEST_N(an_unknown_name_is_refused, N_UNKNOWN)
{
    const struct unknown *u = unknown + _i;
    const char *path = write_video();
    char text[128];
    add(path, u, "other");
    snprintf(text, sizeof text, "%s: %s '%s' is not known", u->group,
             u->kind == ATTRIBUTE ? "attribute" : "object", u->name);
    refused(path, text);
    refused(path, "the file has format 1.0: read it with a newer lacuna");
}

TEST_N(a_marked_name_is_ignored, N_UNKNOWN)
{
    const struct unknown *u = unknown + _i;
    const char *path = write_video();
    OWN(trace_close) struct trace *t = NULL;
    char list[64], where[96];
    int64_t bad = -1;
    snprintf(list, sizeof list, "one %s  last", u->name);
    snprintf(where, sizeof where, "%s/%s", strcmp(u->group, "/") == 0 ? "" : u->group, u->name);
    add(path, u, list);
    MUST(trace_open(path, &t, ERR));
    struct trace_ignored ignored = trace_ignored(t);
    ck_assert_int_eq(ignored.n, 1);
    ck_assert_str_eq(ignored.first, where);
    ck_assert_int_eq(trace_calls(t), 4);
    MUST(trace_verify(t, 1, NULL, NULL, &bad, ERR));
    ck_assert_int_eq(bad, 0);
}

/* The version in the message is the file's. */
TEST(the_version_of_the_file_is_named)
{
    const struct unknown window = {CALL, ATTRIBUTE, "temperature"};
    const char *path = write_video();
    add(path, &window, NULL);
    h5_lock();
    hid_t f = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    H5Adelete(f, "version_minor");
    MUST(h5_put_i64(f, "version_minor", 7, ERR));
    H5Fclose(f);
    h5_unlock();
    refused(path, "'temperature' is not known");
    refused(path, "the file has format 1.7: read it with a newer lacuna");
}

/* HDF5's own and viewers' attributes, and any attribute of a dataset, mean nothing here. */
TEST(attributes_of_other_programs_are_ignored)
{
    static const char *const groups[] = {"/", "/model", "/run", "/video", "/calls", CALL};
    static const char *const names[] = {"CLASS", "NX_class", "_NCProperties"};
    const struct unknown display = {CALL "/q", ATTRIBUTE, "units"};
    const char *path = write_video();
    OWN(trace_close) struct trace *t = NULL;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        for (size_t j = 0; j < sizeof names / sizeof *names; j++)
            add(path, &(struct unknown){groups[i], ATTRIBUTE, names[j]}, NULL);
    h5_lock();
    hid_t f = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    hid_t d = H5Dopen2(f, display.group, H5P_DEFAULT);
    MUST(h5_put_str(d, display.name, "none", ERR));
    H5Dclose(d);
    H5Fclose(f);
    h5_unlock();
    MUST(trace_open(path, &t, ERR));
    ck_assert_int_eq(trace_ignored(t).n, 0);
}

/* A mark does not hide what the format has: without its calls the content is another. */
TEST(a_mark_hides_no_known_name)
{
    const struct unknown heads = {"/model", ATTRIBUTE, "note"};
    const struct unknown step = {"/calls", ATTRIBUTE, "note"};
    const char *path = write_video();
    struct trace *t = NULL;
    add(path, &heads, "note heads q");
    MUST(trace_open(path, &t, ERR));
    ck_assert_int_eq(trace_meta(t)->heads, 2);
    trace_close(&t);
    add(path, &step, "note step-000");
    FAILS(trace_open(path, &t, ERR), ERR_INPUT, "content id");
}
