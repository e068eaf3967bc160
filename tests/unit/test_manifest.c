/* Manifests: what they hold, history, inputs that changed. */
#include "tests/harness/suite.h"

#include "core/fileio.h"
#include "core/json.h"
#include "core/manifest.h"
#include "core/version.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct err e;
static char dir[300], path[340];
static char word0[] = "lacuna", word1[] = "replay", word2[] = "t.h5";
static char *argv[] = {word0, word1, word2};

static void begin(void)
{
    static int number;
    memset(&e, 0, sizeof e);
    snprintf(dir, sizeof dir, "%s/m-%d-%d/sub", test_tmpdir(), (int)getpid(), number++);
    snprintf(path, sizeof path, "%s/manifest.json", dir);
}
FIXTURE(begin, NULL)

static json_t *load(void)
{
    json_t *doc = NULL;
    assert_ok(json_read_file(path, 1 << 20, &doc, &e), &e);
    return doc;
}

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "(none)";
}

/* One run that reads t.h5 under this content id. */
static int one_run(const char *id, bool force)
{
    struct manifest *m = NULL;
    assert_ok(manifest_start(dir, 3, argv, &m, &e), &e);
    if (force)
        manifest_accept_changes(m);
    int rc = manifest_input(m, "t.h5", id, &e);
    struct err ignored = {0};
    assert_ok(manifest_finish(&m, rc ? "failed" : "ok", &ignored), &ignored);
    ck_assert_ptr_null(m);
    return rc;
}

TEST(a_run_can_be_read_off_its_manifest)
{
    struct manifest *m = NULL;
    assert_ok(manifest_start(dir, 3, argv, &m, &e), &e);
    json_t *doc = load();
    ck_assert_str_eq(text_of(doc, "status"), "running");
    ck_assert(!json_object_get(doc, "end"));
    json_decref(doc);
    assert_ok(manifest_input(m, "t.h5", "xxh3:1", &e), &e);
    manifest_json(m, "backend", json_string("cpu"));
    manifest_num(m, "cells", 48);
    manifest_json(m, "runs", json_pack("[s,s]", "dense", "sale"));
    assert_ok(manifest_finish(&m, "ok", &e), &e);
    doc = load();
    ck_assert_str_eq(text_of(doc, "status"), "ok");
    ck_assert_str_eq(text_of(doc, "version"), lacuna_version());
    ck_assert_str_eq(text_of(doc, "build"), lacuna_build_id());
    ck_assert_str_eq(text_of(doc, "backend"), "cpu");
    ck_assert(json_number_value(json_object_get(doc, "cells")) == 48);
    ck_assert_uint_eq(json_array_size(json_object_get(doc, "runs")), 2);
    ck_assert_str_eq(json_string_value(json_array_get(json_object_get(doc, "argv"), 2)), "t.h5");
    json_t *input = json_array_get(json_object_get(doc, "inputs"), 0);
    ck_assert_str_eq(text_of(input, "path"), "t.h5");
    ck_assert_str_eq(text_of(input, "id"), "xxh3:1");
    ck_assert(json_is_object(json_object_get(doc, "host")));
    ck_assert_ptr_nonnull(strchr(text_of(json_object_get(doc, "libraries"), "hdf5"), '.'));
    ck_assert(json_real_value(json_object_get(doc, "elapsed_s")) >= 0);
    ck_assert_uint_eq(json_array_size(json_object_get(doc, "history")), 0);
    json_decref(doc);
}

TEST(earlier_runs_are_kept_newest_first)
{
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(one_run("xxh3:1", false), 0);
    json_t *doc = load(), *history = json_object_get(doc, "history");
    ck_assert_uint_eq(json_array_size(history), 2);
    for (size_t i = 0; i < 2; i++) {
        ck_assert_str_eq(text_of(json_array_get(history, i), "status"), "ok");
        ck_assert(!json_object_get(json_array_get(history, i), "history"));
    }
    json_decref(doc);
}

TEST(a_changed_input_is_refused_until_forced)
{
    ck_assert_int_eq(one_run("xxh3:1", false), 0);
    assert_fails(one_run("xxh3:2", false), &e, ERR_INPUT, "t.h5: changed since");
    /* The refused attempt does not make the new file the known one. */
    assert_fails(one_run("xxh3:2", false), &e, ERR_INPUT, "--force");
    ck_assert_int_eq(one_run("xxh3:1", false), 0);
    ck_assert_int_eq(one_run("xxh3:2", true), 0);
    ck_assert_int_eq(one_run("xxh3:2", false), 0);
    assert_fails(one_run("xxh3:1", false), &e, ERR_INPUT, "xxh3:2");
}

TEST(history_does_not_grow_without_end)
{
    for (int i = 0; i < 60; i++)
        ck_assert_int_eq(one_run("xxh3:1", false), 0);
    OWN(json_decrefp) json_t *doc = load();
    ck_assert_uint_eq(json_array_size(json_object_get(doc, "history")), 50);
}

TEST(a_damaged_manifest_is_bad_input)
{
    struct manifest *m = NULL;
    assert_ok(make_dirs(dir, &e), &e);
    assert_ok(file_write_atomic(path, "{", 1, &e), &e);
    assert_fails(manifest_start(dir, 3, argv, &m, &e), &e, ERR_INPUT, "manifest.json");
    assert_ok(file_write_atomic(path, "[1]", 3, &e), &e);
    assert_fails(manifest_start(dir, 3, argv, &m, &e), &e, ERR_INPUT, "manifest.json");
}

TEST(shards_have_manifests_of_their_own)
{
    struct manifest *m = NULL;
    assert_ok(manifest_start_as(dir, "manifest.1-of-4.json", 3, argv, &m, &e), &e);
    assert_ok(manifest_finish(&m, "ok", &e), &e);
    ck_assert_int_ne(access(path, F_OK), 0);
    snprintf(path, sizeof path, "%s/manifest.1-of-4.json", dir);
    ck_assert_int_eq(access(path, F_OK), 0);
}

TEST(start_date_can_be_pinned)
{
    setenv("SOURCE_DATE_EPOCH", "86400", 1);
    ck_assert_int_eq(one_run("xxh3:1", false), 0);
    json_t *doc = load();
    ck_assert_str_eq(text_of(doc, "start"), "1970-01-02T00:00:00Z");
    json_decref(doc);
    unsetenv("SOURCE_DATE_EPOCH");
}
