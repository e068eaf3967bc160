/* Records: a line holds everything, files survive a crash, resuming knows what is done. */
#include "tests/harness/suite.h"

#include "core/buf.h"
#include "core/fileio.h"
#include "core/log.h"
#include "core/pool.h"
#include "core/record.h"
#include "core/sealed.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static struct err e;
static struct record r, *list;
static int64_t n;
static char dir[256], path[300];

static void begin(void)
{
    static int number;
    memset(&e, 0, sizeof e);
    log_set_level(LOG_ERROR);
    record_init(&r);
    snprintf(r.trace, sizeof r.trace, "xxh3:0123");
    record_text(&r, &r.model, "code-lm");
    snprintf(r.method, sizeof r.method, "streaming");
    r.params = strdup("window=64:sink=4");
    r.layer = 3;
    r.head = 7;
    r.kv_head = 1;
    r.seed = 42;
    r.n_q = r.n_k = 770;
    r.d = 64;
    r.causal = true;
    /* Without fork all tests share the process's directory. */
    snprintf(dir, sizeof dir, "%s/records-%d-%d", test_tmpdir(), (int)getpid(), number++);
    assert_ok(make_dirs(dir, &e), &e);
    snprintf(path, sizeof path, "%s/records.jsonl", dir);
}

static void end(void)
{
    record_free(&r);
    records_free(list, n);
    list = NULL;
    n = 0;
}
FIXTURE(begin, end)

static void metric(const char *name, double value)
{
    assert_ok(record_metric(&r, name, value, &e), &e);
}

/* One line with a final newline. */
static void line_of(const struct record *x, struct buf *b)
{
    buf_reset(b);
    record_json(x, b);
    ck_assert_int_eq(b->data[b->len - 1], '\n');
    ck_assert_ptr_eq(strchr(b->data, '\n'), b->data + b->len - 1);
}

TEST(a_line_reads_back_as_the_same_record)
{
    OWN(record_free) struct record back;
    OWN(buf_free) struct buf a = {0}, b = {0};
    metric("density_elem", 0.1687201);
    metric("cra_min", 1.0 / 3);
    metric("err_l1_rel", INFINITY);
    metric("err_lse_mean", NAN);
    metric("pairs_kept", 8.6e9);
    r.timestep = 937.5;
    r.status = RECORD_SKIP;
    record_text(&r, &r.reason, "needs \"steps\"\nand more");
    record_note(&r, "tile=%dx%d", 64, 64);
    record_note(&r, "ties=3");
    line_of(&r, &a);
    assert_ok(record_parse(a.data, a.len, "line", &back, &e), &e);
    line_of(&back, &b);
    ck_assert_str_eq(buf_str(&a), buf_str(&b));
    ck_assert(record_get(&back, "cra_min") == 1.0 / 3);
    ck_assert(isinf(record_get(&back, "err_l1_rel")));
    ck_assert(isnan(record_get(&back, "err_lse_mean")));
    ck_assert(isnan(record_get(&back, "absent")));
    ck_assert_str_eq(buf_str(&back.notes), "tile=64x64;ties=3");
    ck_assert_str_eq(back.params, r.params);
    ck_assert(back.seed == 42 && back.causal && back.timestep == 937.5);
}

TEST(a_metric_is_replaced_and_cannot_shadow_the_identity)
{
    metric("density_elem", 1);
    metric("density_elem", 2);
    ck_assert_int_eq(record_metrics(&r), 1);
    ck_assert(record_get(&r, "density_elem") == 2);
    assert_fails(record_metric(&r, "layer", 1, &e), &e, ERR_RUN, "layer");
    assert_fails(record_metric(&r, "sum", 1, &e), &e, ERR_RUN, "'sum'");
    assert_fails(record_metric(&r, "", 1, &e), &e, ERR_RUN, "''");
    assert_fails(
        record_metric(&r, "a_name_that_is_longer_than_the_forty_seven_bytes_allowed", 1, &e), &e,
        ERR_RUN, "a_name");
}

/* The line of an older version, without a checksum. */
static void old_line_of(const struct record *x, struct buf *b)
{
    line_of(x, b);
    char *sum = strstr(b->data, ",\"sum\":\"xxh3:");
    ck_assert_ptr_nonnull(sum);
    b->len = (size_t)(sum - b->data);
    buf_puts(b, "}\n");
}

TEST(a_line_without_a_checksum_is_read)
{
    OWN(record_free) struct record back;
    OWN(buf_free) struct buf a = {0}, b = {0};
    metric("cra_min", 0.5);
    old_line_of(&r, &a);
    assert_ok(record_parse(a.data, a.len, "line", &back, &e), &e);
    line_of(&r, &a);
    line_of(&back, &b);
    ck_assert_str_eq(buf_str(&a), buf_str(&b));
}

/* The value of another record is as good JSON as its own. */
TEST(an_edited_line_is_refused)
{
    OWN(record_free) struct record back;
    OWN(buf_free) struct buf b = {0};
    metric("cra_min", 0.5);
    line_of(&r, &b);
    strstr(b.data, "\"cra_min\":0.5")[12] = '6';
    assert_fails(record_parse(b.data, b.len, "line 4", &back, &e), &e, ERR_INPUT,
                 "line 4: its checksum does not fit");
    /* As another program writes it: it cannot be checked, so it is not trusted. */
    buf_reset(&b);
    old_line_of(&r, &b);
    b.len -= 2;
    buf_puts(&b, ", \"sum\": \"xxh3:0123\"}\n");
    assert_fails(record_parse(b.data, b.len, "line 4", &back, &e), &e, ERR_INPUT, "checksum");
    /* What was edited on purpose says so. */
    char *sum = strstr(b.data, "\"xxh3:0123\"}");
    ck_assert_ptr_nonnull(sum);
    b.len = (size_t)(sum - b.data);
    buf_puts(&b, "null}\n");
    assert_ok(record_parse(b.data, b.len, "line 4", &back, &e), &e);
}

/* Two readings of a line agree: without a pool, and with one. NULL: both refuse it. */
static void check_pooled(struct record_pool *p, const char *members)
{
    struct record a, b;
    struct err ea = {0}, eb = {0};
    OWN(buf_free) struct buf line = {0}, x = {0}, y = {0};
    buf_printf(&line, "{%s}", members);
    seal_put(&line, 0);
    buf_puts(&line, "\n");
    int ra = record_parse(line.data, line.len, "line", &a, &ea);
    int rb = record_parse_into(p, line.data, line.len, "line", &b, &eb);
    ck_assert_msg(ra == rb && strcmp(ea.msg, eb.msg) == 0, "%s: '%s' and '%s'", members, ea.msg,
                  eb.msg);
    if (ra == 0) {
        line_of(&a, &x);
        line_of(&b, &y);
        ck_assert_str_eq(buf_str(&x), buf_str(&y));
        ck_assert(b.pooled && record_metric(&b, "new", 1, &eb) == ERR_RUN);
        record_free(&a);
        record_free(&b);
    }
}

#define HEAD                                                                                       \
    "\"trace\":\"xxh3:1\",\"model\":\"m\",\"run\":0,\"step\":1,\"branch\":\"main\","               \
    "\"timestep\":null,\"layer\":2,\"head\":3,\"kv_head\":0,\"method\":\"sale\","                  \
    "\"params\":\"tau=1\",\"seed\":7,\"backend\":\"cpu\",\"precision\":\"f32\","                   \
    "\"permute\":\"none\",\"n_q\":8,\"n_k\":8,\"d\":4,\"causal\":true,"
#define OK HEAD "\"status\":\"ok\""

TEST(a_pool_reads_what_a_line_says)
{
    static const char *const lines[] = {
        OK,
        OK ",\"density_elem\":0.12472261621522694,\"cra_min\":null,\"pairs\":8600000000",
        OK ",\"cra_min\":-1.5e-7,\"density_elem\":1E+2,\"notes\":\"full=yes;found=tau=2\"",
        OK ",\"cra_min\":0.5,\"cra_min\":0.6",
        OK ",\"a\":1,\"b\":2",
        OK ",\"a\":1,\"a\":2",
        OK ",\"b\":1,\"b\":2",
        OK ",\"a\":1,\"seed\":8",
        OK ",\"a\":01",
        OK ",\"a\":1.",
        OK ",\"a\":.5",
        OK ",\"a\":1e",
        OK ",\"a\":+1",
        OK ",\"a\":0x10",
        OK ",\"a\":1e999",
        OK ",\"a\":123456789012345678901234567890",
        OK ",\"a\":\"text\",\"b\":1",
        OK ",\"a\":1,",
        OK ",\"err\":null,\"inf\":[\"err\"]",
        OK ",\"notes\":\"a \\\"quoted\\\" word\",\"a\":1",
        OK ",\"notes\":\"\u00e9\"",
        OK ",\"a_name_that_is_longer_than_the_forty_seven_bytes_allowed\":1",
        HEAD "\"status\":\"skip\",\"reason\":\"because\"",
        HEAD "\"status\":\"done\"",
        HEAD "\"a\":1",
        "\"trace\":\"xxh3:1\",\"status\":\"ok\"",
        "\"scope\":\"call\"," HEAD "\"heads\":\"0-3\",\"status\":\"ok\",\"time_total_ns\":5",
        "\"layer\":-1," OK,
        "\"head\":1.5," OK,
    };
    OWN(record_pool_free) struct record_pool *p = NULL;
    assert_ok(record_pool_new(&p, &e), &e);
    for (int again = 0; again < 2; again++)
        for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
            check_pooled(p, lines[i]);
}

static void key_of(const struct record *x, char out[512])
{
    OWN(buf_free) struct buf b = {0};
    record_key(x, &b);
    snprintf(out, 512, "%s", buf_str(&b));
}

TEST(the_key_depends_on_identity_only)
{
    char base[512], other[512];
    key_of(&r, base);
    metric("density_elem", 0.5);
    r.status = RECORD_ERROR;
    record_text(&r, &r.model, "renamed");
    key_of(&r, other);
    ck_assert_str_eq(base, other);
#define CHANGES(statement, undo)                                                                   \
    statement;                                                                                     \
    key_of(&r, other);                                                                             \
    ck_assert_str_ne(base, other);                                                                 \
    undo;
    CHANGES(r.layer = 4, r.layer = 3)
    CHANGES(r.head = 1, r.head = 7)
    CHANGES(r.step = 1, r.step = 0)
    CHANGES(r.run = 1, r.run = 0)
    CHANGES(r.seed = 1, r.seed = 42)
    CHANGES(r.branch[0] = 'c', r.branch[0] = 'm')
    CHANGES(r.method[0] = 'x', r.method[0] = 's')
    CHANGES(r.params[0] = 'x', r.params[0] = 'w')
    CHANGES(r.backend[0] = 'x', r.backend[0] = 'c')
    CHANGES(r.precision[1] = '3', r.precision[1] = '6')
    CHANGES(r.permute[0] = 'x', r.permute[0] = 'n')
    CHANGES(r.trace[0] = 'y', r.trace[0] = 'x')
    key_of(&r, other);
    ck_assert_str_eq(base, other);
}

/* Keys of older records stay what they were; a call is none of its heads. */
TEST(the_key_of_a_call_is_its_own)
{
    char head[512], call[512], part[512];
    key_of(&r, head);
    ck_assert_str_eq(head, "xxh3:0123|0|0|main|3|7|cpu|f64|none|42|streaming|window=64:sink=4");
    record_of_call(&r);
    key_of(&r, call);
    ck_assert_str_eq(call,
                     "call||xxh3:0123|0|0|main|3|-1|cpu|f64|none|42|streaming|window=64:sink=4");
    r.heads = strdup("0-3,6");
    key_of(&r, part);
    ck_assert_str_ne(call, part);
}

TEST(a_call_reads_back)
{
    OWN(record_free) struct record back;
    OWN(buf_free) struct buf a = {0}, b = {0};
    record_of_call(&r);
    r.heads = strdup("0-3,6");
    metric("speedup", 3.5);
    line_of(&r, &a);
    ck_assert_ptr_nonnull(strstr(buf_str(&a), "{\"scope\":\"call\",\"trace\":"));
    ck_assert_ptr_null(strstr(buf_str(&a), "kv_head"));
    assert_ok(record_parse(a.data, a.len, "here", &back, &e), &e);
    ck_assert_int_eq(back.scope, RECORD_OF_CALL);
    ck_assert_int_eq(back.head, -1);
    ck_assert_int_eq(back.layer, 3);
    ck_assert_str_eq(back.heads, "0-3,6");
    ck_assert_double_eq(record_get(&back, "speedup"), 3.5);
    line_of(&back, &b);
    ck_assert_str_eq(buf_str(&a), buf_str(&b));
}

static const struct {
    const char *from, *to, *message;
    bool call;
} damage[] = {
    {"\"trace\":\"xxh3:0123\"", "\"trace\":5", "\"trace\"", false},
    {"\"model\":\"code-lm\"", "\"model\":\"a\\u001b[2J\"",
     "\"model\" has a control character U+001B", false},
    {"\"model\":\"code-lm\"", "\"model\":\"\xc2\x9b\"", "U+009B", false},
    {"\"method\":\"streaming\"", "\"method\":\"\\u202edense\"",
     "\"method\" has a direction mark U+202E", false},
    {"\"params\":\"window", "\"params\":\"x\\nwindow", "\"params\" has a control character", false},
    {"\"status\":\"ok\"", "\"status\":\"ok\",\"a\\u0007\":1", "cannot be the name of a metric",
     false},
    {"\"layer\":3,", "", "\"layer\" is missing", false},
    {"\"layer\":3", "\"layer\":-3", "\"layer\"", false},
    {"\"layer\":3", "\"layer\":3.5", "\"layer\"", false},
    {"\"status\":\"ok\"", "\"status\":\"good\"", "\"status\"", false},
    {"\"head\":7", "\"head\":7,\"head\":8", "duplicate", false},
    {"\"method\":\"streaming\"", "\"method\":\"a name of more than thirty-two bytes ...\"",
     "at most", false},
    {"\"causal\":true", "\"causal\":1", "\"causal\"", false},
    {"\"status\":\"ok\"", "\"status\":\"ok\",\"inf\":[\"nothing\"]", "\"inf\"", false},
    {"\"heads\":\"0\",", "", "\"heads\" is missing", true},
    {"\"head\":-1", "\"head\":0", "of a call -1 was expected, found 0", true},
    {"\"scope\":\"call\"", "\"scope\":\"cell\"",
     "head, decode, call or model was expected, found 'cell'", true},
    {"\"scope\":\"call\",", "", "\"head\"", true},
};

TEST_EACH(damaged_records_are_refused, damage)
{
    OWN(buf_free) struct buf b = {0}, bad = {0};
    struct record back;
    if (damage[_i].call) {
        record_of_call(&r);
        r.heads = strdup("0");
    }
    old_line_of(&r, &b);
    const char *at = strstr(b.data, damage[_i].from);
    ck_assert_ptr_nonnull(at);
    buf_printf(&bad, "%.*s%s%s", (int)(at - b.data), b.data, damage[_i].to,
               at + strlen(damage[_i].from));
    assert_fails(record_parse(bad.data, bad.len, "line 4", &back, &e), &e, ERR_INPUT,
                 damage[_i].message);
}

/* ---- files ----------------------------------------------------------------------------------- */

static int load(const char *where)
{
    records_free(list, n);
    list = NULL;
    n = 0;
    return records_load(where, &list, &n, &e);
}

static void has_records(const char *where, int64_t want)
{
    assert_ok(load(where), &e);
    ck_assert_int_eq(n, want);
}

static void append_heads(struct record_file *f, int from, int to)
{
    for (r.head = from; r.head < to; r.head++)
        assert_ok(record_file_append(f, &r, &e), &e);
}

static bool has_head(const struct record_file *f, int head)
{
    char key[512];
    r.head = head;
    key_of(&r, key);
    return record_file_has(f, key);
}

/* In place of the C library's: another process replaces the file in front of the lock. */
static bool replace_at_lock;

int flock(int fd, int operation)
{
    if (replace_at_lock) {
        char other[340];
        replace_at_lock = false;
        snprintf(other, sizeof other, "%s.new", path);
        int made = open(other, O_CREAT | O_WRONLY, 0600);
        if (made < 0 || rename(other, path) != 0)
            return -1;
        close(made);
    }
    return (int)syscall(SYS_flock, fd, operation);
}

static int64_t file_size(void)
{
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    return st.st_size;
}

TEST(a_stopped_run_continues)
{
    struct record_file *f = NULL;
    assert_ok(record_file_open(path, &f, &e), &e);
    append_heads(f, 0, 3);
    ck_assert(has_head(f, 2) && !has_head(f, 3));
    record_file_close(&f);
    ck_assert_ptr_null(f);
    assert_ok(record_file_open(path, &f, &e), &e);
    ck_assert(has_head(f, 0) && has_head(f, 2) && !has_head(f, 3));
    append_heads(f, 3, 5);
    record_file_close(&f);
    has_records(dir, 5);
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(list[i].head, i);
}

TEST(errors_are_tried_again_and_the_last_record_wins)
{
    struct record_file *f = NULL;
    assert_ok(record_file_open(path, &f, &e), &e);
    r.status = RECORD_ERROR;
    append_heads(f, 0, 1);
    ck_assert(!has_head(f, 0));
    r.status = RECORD_OK;
    metric("cra_min", 0.5);
    append_heads(f, 0, 1);
    ck_assert(has_head(f, 0));
    record_file_close(&f);
    has_records(path, 1);
    ck_assert(list[0].status == RECORD_OK && record_get(&list[0], "cra_min") == 0.5);
}

/* Whatever the byte at which a write was cut: the file reads, and the cell is to do again. */
TEST(a_torn_last_line_is_dropped_at_any_length)
{
    struct record_file *f = NULL;
    OWN(buf_free) struct buf two = {0}, b = {0};
    line_of(&r, &b);
    r.head = 8;
    buf_put(&two, b.data, b.len);
    OWN(buf_free) struct buf second = {0};
    line_of(&r, &second);
    for (size_t cut = 1; cut < second.len; cut++) {
        two.len = b.len;
        buf_put(&two, second.data, cut);
        assert_ok(file_write_atomic(path, two.data, two.len, &e), &e);
        has_records(path, 1);
        if (cut % 40 != 1)
            continue;
        assert_ok(record_file_open(path, &f, &e), &e);
        ck_assert_int_eq(file_size(), (int64_t)b.len);
        ck_assert(has_head(f, 7) && !has_head(f, 8));
        append_heads(f, 8, 9);
        record_file_close(&f);
        has_records(path, 2);
    }
}

TEST(shards_of_a_directory_are_read_together)
{
    struct record_file *f = NULL;
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/records.%d-of-3.jsonl", dir, i);
        assert_ok(record_file_open(path, &f, &e), &e);
        append_heads(f, 2 * i, 2 * i + 3); /* one overlaps with the next */
        record_file_close(&f);
    }
    has_records(dir, 7);
}

/* A reader that waits or reads on runs into the time limit of the test. */
TEST(only_regular_files_of_a_sane_size_are_read)
{
    struct record_file *f = NULL;
    assert_fails(load("/dev/zero"), &e, ERR_INPUT, "not a regular file");
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    assert_fails(load(dir), &e, ERR_INPUT, "not a regular file");
    assert_fails(record_file_open(path, &f, &e), &e, ERR_IO, path); /* no reader: ENXIO */
    ck_assert_int_eq(unlink(path), 0);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    ck_assert(fd >= 0 && ftruncate(fd, 3 << 20) == 0);
    assert_fails(load(dir), &e, ERR_INPUT, "line 1: longer than 1048576");
    ck_assert_int_eq(ftruncate(fd, (off_t)1 << 40), 0);
    assert_fails(load(dir), &e, ERR_INPUT, "at most 68719476736");
    close(fd);
}

TEST(a_record_that_could_not_be_read_again_is_not_written)
{
    OWN(record_file_close) struct record_file *f = NULL;
    char *long_note = malloc(2 << 20);
    ck_assert_ptr_nonnull(long_note);
    memset(long_note, 'x', 2 << 20);
    buf_put(&r.notes, long_note, 2 << 20);
    free(long_note);
    assert_ok(record_file_open(path, &f, &e), &e);
    assert_fails(record_file_append(f, &r, &e), &e, ERR_RUN, "at most 1048576");
    ck_assert_int_eq(file_size(), 0);
}

TEST(standard_input_is_read_where_it_is_named)
{
    OWN(buf_free) struct buf b = {0};
    line_of(&r, &b);
    assert_ok(file_write_atomic(path, b.data, b.len, &e), &e);
    for (int i = 0; i < 2; i++) {
        int keep = dup(STDIN_FILENO), fd = open(path, O_RDONLY);
        ck_assert(fd >= 0 && dup2(fd, STDIN_FILENO) >= 0);
        int rc = load(i ? "/dev/stdin" : "-");
        dup2(keep, STDIN_FILENO);
        close(keep);
        close(fd);
        assert_ok(rc, &e);
        ck_assert_int_eq(n, 1);
    }
}

/* `records repair` may replace the file between opening and locking: what is appended then must
 * not go into the file that has lost its name. */
TEST(a_file_that_was_replaced_meanwhile_is_opened_again)
{
    struct record_file *f = NULL;
    struct stat before, after;
    assert_ok(file_write_atomic(path, "", 0, &e), &e);
    ck_assert_int_eq(stat(path, &before), 0);
    replace_at_lock = true;
    assert_ok(record_file_open(path, &f, &e), &e);
    ck_assert(!replace_at_lock);
    ck_assert_int_eq(stat(path, &after), 0);
    ck_assert(before.st_ino != after.st_ino);
    append_heads(f, 0, 1);
    record_file_close(&f);
    ck_assert_int_gt(file_size(), 0);
}

TEST(a_second_process_is_kept_out)
{
    OWN(record_file_close) struct record_file *f = NULL;
    int status = 0;
    assert_ok(record_file_open(path, &f, &e), &e);
    pid_t child = fork();
    if (child == 0) {
        struct record_file *g = NULL;
        _exit(record_file_open(path, &g, &e) == ERR_RUN ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

struct shared {
    struct record_file *file;
};

static int append_one(void *ctx, int64_t item, int worker, struct err *err)
{
    struct shared *s = ctx;
    OWN(record_free) struct record mine;
    record_init(&mine);
    snprintf(mine.trace, sizeof mine.trace, "t");
    snprintf(mine.method, sizeof mine.method, "m");
    mine.head = (int)item;
    record_note(&mine, "worker=%d", worker);
    return record_file_append(s->file, &mine, err);
}

TEST(threads_append_whole_lines)
{
    enum { N = 400 };
    struct shared s = {NULL};
    assert_ok(record_file_open(path, &s.file, &e), &e);
    assert_ok(pool_run(8, N, append_one, &s, &e), &e);
    record_file_close(&s.file);
    has_records(path, N);
}
