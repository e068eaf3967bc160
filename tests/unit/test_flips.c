/*
 * test_flips.c - every bit of a small file of records, a calibration file and a manifest is flipped
 * once: the reader refuses the file and names it, or everything that it reads is what it was. The
 * counts are printed.
 */
#include "tests/harness/suite.h"

#include "core/fileio.h"
#include "core/log.h"
#include "core/manifest.h"
#include "core/method_run.h"
#include "core/record.h"
#include "core/sealed.h"
#include "sim/registry.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct err e;
static char dir[300], path[340];

struct counts {
    int flips, refused, same, torn, silent;
};

/* What a reader makes of the file at `path`, as text. Returns its code. */
typedef int read_fn(struct buf *text, struct err *err);

static void begin(void)
{
    static int number;
    memset(&e, 0, sizeof e);
    log_set_level(LOG_ERROR);
    snprintf(dir, sizeof dir, "%s/flips-%d-%d", test_tmpdir(), (int)getpid(), number++);
    assert_ok(make_dirs(dir, &e), &e);
}
FIXTURE(begin, NULL)

static void write_plain(const void *data, size_t len)
{
    FILE *f = fopen(path, "we");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(data, 1, len, f), len);
    ck_assert_int_eq(fclose(f), 0);
}

/* In place: a file that is truncated and written is flushed by some file systems. */
static void write_byte(size_t at, char byte)
{
    int fd = open(path, O_WRONLY);
    ck_assert(fd >= 0 && pwrite(fd, &byte, 1, (off_t)at) == 1);
    close(fd);
}

static void flip_all(read_fn *read, bool torn_allowed, struct counts *n)
{
    OWN(buf_free) struct buf file = {0}, want = {0}, got = {0};
    assert_ok(buf_read_file(&file, path, 1 << 20, &e), &e);
    assert_ok(read(&want, &e), &e);
    write_plain(file.data, file.len);
    for (size_t i = 0; i < 8 * file.len; i++) {
        struct err why = {0};
        write_byte(i / 8, (char)(file.data[i / 8] ^ 1 << i % 8));
        buf_reset(&got);
        int rc = read(&got, &why);
        bool same = strcmp(buf_str(&got), buf_str(&want)) == 0;
        /* A flipped last newline is a torn line, which readers leave out. */
        bool torn = torn_allowed && i / 8 == file.len - 1;
        n->flips++;
        n->refused += rc != 0;
        n->same += rc == 0 && same;
        n->torn += rc == 0 && !same && torn;
        n->silent += rc == 0 && !same && !torn;
        if (rc) {
            ck_assert_msg(rc == ERR_INPUT && strstr(why.msg, path), "bit %zu: %s", i, why.msg);
        }
        if (rc == 0) /* a reader that goes on may write */
            write_plain(file.data, file.len);
        write_byte(i / 8, file.data[i / 8]);
    }
}

static void report(const char *what, const struct counts *n)
{
    printf("%s: %d bits flipped: %d refused, %d without effect, %d a torn last line, %d silent\n",
           what, n->flips, n->refused, n->same, n->torn, n->silent);
    ck_assert_int_eq(n->silent, 0);
    ck_assert_int_gt(n->refused, n->flips * 99 / 100);
}

/* ---- records -------------------------------------------------------------------------------- */

static int read_records(struct buf *text, struct err *err)
{
    struct record *list = NULL;
    int64_t n = 0;
    int rc = records_load(dir, &list, &n, err);
    for (int64_t i = 0; i < n; i++)
        record_json(&list[i], text);
    records_free(list, n);
    return rc;
}

static void write_records(void)
{
    OWN(record_file_close) struct record_file *f = NULL;
    assert_ok(record_file_open(path, &f, &e), &e);
    for (int i = 0; i < 3; i++) {
        OWN(record_free) struct record r;
        record_init(&r);
        snprintf(r.trace, sizeof r.trace, "xxh3:00112233445566778899aabbccddee0%d", i);
        record_text(&r, &r.model, "toy");
        snprintf(r.method, sizeof r.method, "sale");
        r.params = strdup("tau=0.004");
        r.head = i;
        r.n_q = r.n_k = 64;
        r.d = 8;
        r.status = (enum record_status)i;
        if (i)
            record_text(&r, &r.reason, "why \"%d\"", i);
        assert_ok(record_metric(&r, "density_elem", 0.125 + i, &e), &e);
        assert_ok(record_metric(&r, "err_l1_rel", i ? INFINITY : 1.0 / 3, &e), &e);
        record_note(&r, "a=%d", i);
        assert_ok(record_file_append(f, &r, &e), &e);
    }
}

TEST(no_flipped_bit_of_records_is_used)
{
    struct counts n = {0};
    snprintf(path, sizeof path, "%s/records.jsonl", dir);
    write_records();
    flip_all(read_records, true, &n);
    report("records", &n);
    ck_assert_int_eq(n.torn, 8);
}

/* ---- calibration ---------------------------------------------------------------------------- */

static int read_calibration(struct buf *text, struct err *err)
{
    char spec[400];
    struct method_run *runs = NULL;
    struct jw w;
    int64_t n = 0;
    snprintf(spec, sizeof spec, "sale:calib=%s", path);
    int rc = method_runs_parse(sim_methods, spec, &runs, &n, err);
    jw_init(&w, text, 0);
    for (int head = 0; !rc && head < 3; head++) {
        OWN(free_at) void *params = NULL;
        rc = method_params_for_head(&runs[0], 0, head, 1000, &params, err);
        if (rc)
            break;
        buf_puts(text, method_calib_lacks(&runs[0], 0, head, 1000) ? "absent" : "there");
        jw_obj(&w);
        opt_json(runs[0].method->params.table, params, &w);
        jw_obj_end(&w);
        opt_free(runs[0].method->params.table, params);
    }
    if (!rc) {
        OWN(record_free) struct record r;
        record_init(&r);
        rc = method_calib_note(&runs[0], "xxh3:1", &r, err);
        rc = rc ? rc : method_calib_fits(&runs[0], "toy", "none", err);
        buf_puts(text, buf_str(&r.notes));
    }
    method_runs_free(runs, n);
    return rc;
}

TEST(no_flipped_bit_of_a_calibration_is_used)
{
    struct counts n = {0};
    OWN(buf_free) struct buf b = {0};
    buf_puts(&b, "{\n  \"method\": \"sale\",\n  \"model\": \"toy\",\n  \"permute\": \"none\",\n"
                 "  \"params\": {\n    \"bits\": 8\n  },\n  \"traces\": [\n    {\n"
                 "      \"path\": \"t.h5\",\n      \"id\": \"xxh3:1\"\n    }\n  ],\n"
                 "  \"heads\": [\n    {\n      \"layer\": 0,\n      \"head\": 0,\n"
                 "      \"tau\": 0.0040000000000000001\n    },\n    {\n      \"layer\": 0,\n"
                 "      \"head\": 1,\n      \"tau\": 0.25\n    }\n  ]\n}");
    seal_put(&b, 0);
    buf_puts(&b, "\n");
    snprintf(path, sizeof path, "%s/calib.json", dir);
    write_plain(b.data, b.len);
    flip_all(read_calibration, false, &n);
    report("calibration", &n);
}

/* ---- manifest ------------------------------------------------------------------------------- */

static char word0[] = "lacuna", word1[] = "replay", word2[] = "t.h5";
static char *words[] = {word0, word1, word2};

/* What the next run makes of the manifest: its history, newest first. */
static int read_manifest(struct buf *text, struct err *err)
{
    struct manifest *m = NULL;
    struct jw w;
    json_t *doc = NULL;
    PASS_ON(manifest_start(dir, 3, words, &m, err));
    assert_ok(json_read_file(path, 1 << 20, &doc, err), err);
    jw_init(&w, text, 0);
    jw_value(&w, json_object_get(doc, "history"));
    json_decref(doc);
    assert_ok(manifest_finish(&m, "ok", err), err);
    return 0;
}

TEST(no_flipped_bit_of_a_manifest_is_used)
{
    struct counts n = {0};
    struct manifest *m = NULL;
    snprintf(path, sizeof path, "%s/manifest.json", dir);
    assert_ok(manifest_start(dir, 3, words, &m, &e), &e);
    assert_ok(manifest_input(m, "t.h5", "xxh3:00112233445566778899aabbccddeeff", &e), &e);
    assert_ok(manifest_finish(&m, "ok", &e), &e);
    flip_all(read_manifest, false, &n);
    report("manifest", &n);
}
