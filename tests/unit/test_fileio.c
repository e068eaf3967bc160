/*
 * test_fileio.c - whole files in and out: an output is there whole or not at all, whoever else
 * writes it, and what is no regular file stays what it is.
 */
#include "tests/harness/suite.h"

#include "core/buf.h"
#include "core/fileio.h"
#include "core/record.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct err e;

static void assert_holds(const char *path, const char *text)
{
    OWN(buf_free) struct buf b = {0};
    assert_ok(buf_read_file(&b, path, 1 << 20, &e), &e);
    ck_assert_str_eq(buf_str(&b), text);
}

static mode_t type_of(const char *path)
{
    struct stat st;
    ck_assert_int_eq(lstat(path, &st), 0);
    return st.st_mode & S_IFMT;
}

/* Files of the test's directory whose names end in ".part". */
static int count_parts(void)
{
    int n = 0;
    DIR *d = opendir(test_tmpdir());
    ck_assert_ptr_nonnull(d);
    for (struct dirent *f; (f = readdir(d));) {
        size_t len = strlen(f->d_name);
        n += len > 5 && strcmp(f->d_name + len - 5, ".part") == 0;
    }
    closedir(d);
    return n;
}

/* ---- reading -------------------------------------------------------------------------------- */

TEST(files_are_read_whole_and_binary_safe)
{
    const char *path = test_path("read");
    OWN(buf_free) struct buf b = {0};
    assert_ok(file_write_atomic(path, "a\0b\n", 4, &e), &e);
    assert_ok(buf_read_file(&b, path, 4, &e), &e);
    ck_assert_uint_eq(b.len, 4);
    ck_assert_mem_eq(b.data, "a\0b\n", 4);
    buf_reset(&b);
    assert_fails(buf_read_file(&b, path, 3, &e), &e, ERR_INPUT, path);
    assert_fails(buf_read_file(&b, path, 0, &e), &e, ERR_INPUT, "4 bytes, at most 0");
    assert_fails(buf_read_file(&b, test_tmpdir(), 3, &e), &e, ERR_INPUT, "directory");
}

TEST(a_file_without_a_size_is_limited_too)
{
    OWN(buf_free) struct buf b = {0};
    int keep = dup(STDIN_FILENO), zero = open("/dev/zero", O_RDONLY);
    ck_assert_int_ge(dup2(zero, STDIN_FILENO), 0);
    int rc = buf_read_file(&b, "-", 100000, &e);
    dup2(keep, STDIN_FILENO);
    close(keep);
    close(zero);
    assert_fails(rc, &e, ERR_INPUT, "standard input: larger than 100000 bytes");
}

/* A reader that waits runs into the time limit of the test. */
TEST(devices_and_fifos_are_not_read)
{
    const char *fifo = test_path("silent");
    int fd = -1;
    int64_t size;
    struct buf b = {0};
    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    assert_fails(buf_read_file(&b, fifo, 100, &e), &e, ERR_INPUT,
                 "silent: not a regular file (\"-\" reads standard input)");
    assert_fails(buf_read_file(&b, "/dev/zero", 100, &e), &e, ERR_INPUT, "not a regular file");
    assert_fails(io_open_text(fifo, &fd, &size, &e), &e, ERR_INPUT, "not a regular file");
    ck_assert_int_eq(fd, -1);
    unlink(fifo);
}

TEST(a_part_is_not_taken_for_the_file)
{
    const char *part = test_path("w.safetensors.part");
    int fd = -1;
    int64_t size;
    struct buf b = {0};
    assert_ok(file_write_atomic(part, "{}", 2, &e), &e);
    assert_fails(io_open(part, &fd, &size, &e), &e, ERR_INPUT, "w.safetensors.part is unfinished");
    assert_fails(buf_read_file(&b, part, 100, &e), &e, ERR_INPUT, "is unfinished");
    ck_assert_int_eq(fd, -1);
    buf_free(&b);
    unlink(part);
}

/* The other end of a pipe that the caller opened, as in `lacuna analyze <(zcat records.gz)`. */
TEST(named_descriptors_are_read)
{
    char name[64];
    int ends[2];
    OWN(buf_free) struct buf b = {0};
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(write(ends[1], "text", 4), 4);
    close(ends[1]);
    snprintf(name, sizeof name, "/dev/fd/%d", ends[0]);
    assert_ok(buf_read_file(&b, name, 100, &e), &e);
    ck_assert_str_eq(buf_str(&b), "text");
    close(ends[0]);
    assert_fails(buf_read_file(&b, name, 100, &e), &e, ERR_INPUT, name);
}

TEST(a_sparse_terabyte_is_refused_at_once)
{
    const char *path = test_path("sparse");
    OWN(buf_free) struct buf b = {0};
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    ck_assert(fd >= 0 && ftruncate(fd, (off_t)1 << 40) == 0);
    close(fd);
    assert_fails(buf_read_file(&b, path, 1 << 20, &e), &e, ERR_INPUT,
                 "1099511627776 bytes, at most 1048576");
    unlink(path);
}

/* Every way to open something says the same. */
TEST(too_many_open_files_are_a_lack_of_the_machine)
{
    const char *path = test_path("open");
    int fd, status;
    int64_t size;
    assert_ok(file_write_atomic(path, "{}", 2, &e), &e);
    pid_t child = fork();
    if (child == 0) {
        struct buf b = {0};
        struct io_lines l = {0};
        struct io_part p = {0};
        struct record *r = NULL;
        struct record_file *f = NULL;
        struct str_list none = {0};
        struct rlimit no = {0, 0};
        struct err at[7] = {{0}};
        int bad = setrlimit(RLIMIT_NOFILE, &no);
        bad |= buf_read_file(&b, path, 100, &at[0]) != ERR_MACHINE;
        bad |= (io_open(path, &fd, &size, &at[1]) != ERR_MACHINE) << 1;
        bad |= (io_lines_open(&l, path, 10, 10, &at[2]) != ERR_MACHINE) << 2;
        bad |= (io_part_open(&p, path, &at[3]) != ERR_MACHINE) << 3;
        bad |= (records_load(path, &r, &size, &at[4]) != ERR_MACHINE) << 4;
        bad |= (records_files(test_tmpdir(), &none, &at[5]) != ERR_MACHINE) << 5;
        bad |= (record_file_open(path, &f, &at[6]) != ERR_MACHINE) << 6;
        _exit(bad);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", status);
    ck_assert_int_eq(err_exit_code(ERR_MACHINE), 4);
}

/* ---- lines ---------------------------------------------------------------------------------- */

/* "W:text|" per line: W whole, T torn, L long (its length), with the number and offset checked. */
static void lines_of(const char *path, size_t max, struct buf *out)
{
    OWN(io_lines_close) struct io_lines l;
    enum io_line kind;
    const char *text;
    size_t len;
    int64_t number = 0;
    assert_ok(io_lines_open(&l, path, max, 1 << 30, &e), &e);
    for (;;) {
        assert_ok(io_line(&l, &kind, &text, &len, &e), &e);
        if (kind == IO_LINE_END)
            break;
        ck_assert_int_eq(l.number, ++number);
        if (kind == IO_LINE_LONG)
            buf_printf(out, "L:%zu@%lld|", len, (long long)l.offset);
        else
            buf_printf(out, "%c:%.*s@%lld|", kind == IO_LINE_WHOLE ? 'W' : 'T',
                       (int)(kind == IO_LINE_WHOLE ? len - 1 : len), text, (long long)l.offset);
    }
}

static const struct {
    const char *text, *lines; /* of at most 8 bytes */
} line_cases[] = {
    {"", ""},
    {"\n", "W:@0|"},
    {"a\nbc\n", "W:a@0|W:bc@2|"},
    {"a\nbc", "W:a@0|T:bc@2|"},
    {"1234567\n", "W:1234567@0|"},
    {"12345678\nx\n", "L:8@0|W:x@9|"},
    {"12345678", "L:8@0|"},
    {"123456789012345678901234567890\nx\n\ny", "L:8@0|W:x@31|W:@33|T:y@34|"},
};

TEST_EACH(a_file_is_read_line_by_line, line_cases)
{
    const char *path = test_path("lines");
    OWN(buf_free) struct buf got = {0};
    assert_ok(file_write_atomic(path, line_cases[_i].text, strlen(line_cases[_i].text), &e), &e);
    lines_of(path, 8, &got);
    ck_assert_str_eq(buf_str(&got), line_cases[_i].lines);
}

/* Lines of all lengths around the size of a read, and a long one over several reads. */
TEST(lines_do_not_depend_on_the_reads)
{
    const char *path = test_path("reads");
    OWN(buf_free) struct buf file = {0}, got = {0}, want = {0};
    for (int n = 0; n < 700; n++) {
        buf_printf(&want, "W:%0*d@%zu|", n + 1, n, file.len);
        buf_printf(&file, "%0*d\n", n + 1, n);
    }
    buf_printf(&want, "L:100000@%zu|W:end@%zu|", file.len, file.len + 300001);
    buf_printf(&file, "%0*d\nend\n", 300000, 0);
    assert_ok(file_write_atomic(path, file.data, file.len, &e), &e);
    lines_of(path, 100000, &got);
    ck_assert_str_eq(buf_str(&got), buf_str(&want));
}

TEST(lines_have_a_limit_of_the_file)
{
    const char *path = test_path("limit");
    char pipe_end[40];
    int ends[2];
    struct io_lines l;
    enum io_line kind;
    const char *text;
    size_t len;
    assert_ok(file_write_atomic(path, "123\n456\n", 8, &e), &e);
    assert_fails(io_lines_open(&l, path, 10, 7, &e), &e, ERR_INPUT, "8 bytes, at most 7");
    io_lines_close(&l);
    /* The size of a pipe is known when it has been read. */
    ck_assert(pipe(ends) == 0 && write(ends[1], "123\n456\n", 8) == 8);
    close(ends[1]);
    snprintf(pipe_end, sizeof pipe_end, "/dev/fd/%d", ends[0]);
    assert_ok(io_lines_open(&l, pipe_end, 10, 7, &e), &e);
    assert_fails(io_line(&l, &kind, &text, &len, &e), &e, ERR_INPUT, "more than 7 bytes");
    io_lines_close(&l);
    close(ends[0]);
}

TEST(a_missing_file_is_bad_input_with_its_name)
{
    OWN(buf_free) struct buf b = {0};
    assert_fails(buf_read_file(&b, "no/such/file", 10, &e), &e, ERR_INPUT, "no/such/file");
}

/* ---- outputs -------------------------------------------------------------------------------- */

TEST(a_failed_write_leaves_the_old_file_and_no_part)
{
    const char *path = test_path("keep");
    struct rlimit small = {2, RLIM_INFINITY}, old;
    assert_ok(file_write_atomic(path, "old", 3, &e), &e);

    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &old), 0);
    small.rlim_max = old.rlim_max;
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    int rc = file_write_atomic(path, "new content", 11, &e);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &old), 0);

    assert_fails(rc, &e, ERR_IO, "keep");
    assert_holds(path, "old");
    ck_assert_int_eq(count_parts(), 0);
}

TEST(an_output_keeps_the_mode_of_the_file_that_it_replaces)
{
    const char *path = test_path("mode");
    struct stat st;
    assert_ok(file_write_atomic(path, "a", 1, &e), &e);
    ck_assert_int_eq(chmod(path, 0640), 0);
    assert_ok(file_write_atomic(path, "b", 1, &e), &e);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(st.st_mode & 07777, 0640);
}

/* Each writer writes one letter many times: a mixture or a part of a content would show. */
TEST(of_writers_at_the_same_time_one_wins_whole)
{
    enum { WRITERS = 6, ROUNDS = 30, BYTES = 20000 };
    char text[BYTES + 1];
    const char *path = test_path("contested");
    OWN(buf_free) struct buf b = {0};
    int status;
    for (int w = 0; w < WRITERS; w++) {
        if (fork() == 0) {
            int rc = 0;
            memset(text, 'a' + w, BYTES);
            for (int i = 0; i < ROUNDS && !rc; i++)
                rc = file_write_atomic(path, text, BYTES, &e);
            _exit(rc != 0);
        }
    }
    for (int w = 0; w < WRITERS; w++) {
        ck_assert_int_gt(wait(&status), 0);
        ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    assert_ok(buf_read_file(&b, path, 1 << 20, &e), &e);
    ck_assert_uint_eq(b.len, BYTES);
    for (size_t i = 1; i < b.len; i++)
        ck_assert_int_eq(b.data[i], b.data[0]);
    ck_assert_int_eq(count_parts(), 0);
}

TEST(parts_of_ended_writers_are_removed_and_those_of_others_stay)
{
    const char *other = test_path("out.md2.abcdef.part");
    const char *held = test_path("out.md.ghijkl.part");
    const char *stale = test_path("out.md.abcdef.part");
    const char *path = test_path("out.md");
    int fds[3] = {open(stale, O_CREAT | O_WRONLY, 0600), open(held, O_CREAT | O_WRONLY, 0600),
                  open(other, O_CREAT | O_WRONLY, 0600)};
    ck_assert_int_eq(flock(fds[1], LOCK_EX), 0);
    assert_ok(file_write_atomic(path, "x", 1, &e), &e);
    ck_assert_int_ne(access(stale, F_OK), 0);
    ck_assert_int_eq(access(held, F_OK), 0);
    ck_assert_int_eq(access(other, F_OK), 0);
    for (int i = 0; i < 3; i++)
        close(fds[i]);
    unlink(held);
    unlink(other);
}

TEST(links_stay_links)
{
    const char *loop = test_path("loop");
    const char *late = test_path("late");
    const char *dangling = test_path("dangling");
    const char *link = test_path("link");
    const char *file = test_path("file");
    assert_ok(file_write_atomic(file, "old", 3, &e), &e);
    ck_assert_int_eq(symlink("file", link), 0);
    ck_assert_int_eq(symlink("late", dangling), 0);
    ck_assert_int_eq(symlink("loop", loop), 0);
    assert_ok(file_write_atomic(link, "new", 3, &e), &e);
    assert_ok(file_write_atomic(dangling, "made", 4, &e), &e);
    assert_holds(file, "new");
    assert_holds(late, "made");
    ck_assert(type_of(link) == S_IFLNK && type_of(dangling) == S_IFLNK);
    assert_fails(file_write_atomic(loop, "x", 1, &e), &e, ERR_IO, "symbolic links");
}

TEST(devices_and_fifos_are_written_to)
{
    char got[8] = {0};
    const char *fifo = test_path("fifo");
    const char *null = test_path("null");
    int status;
    ck_assert_int_eq(symlink("/dev/null", null), 0);
    assert_ok(file_write_atomic(null, "gone", 4, &e), &e);
    ck_assert(type_of(null) == S_IFLNK && type_of("/dev/null") == S_IFCHR);

    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    pid_t reader = fork();
    if (reader == 0) {
        int fd = open(fifo, O_RDONLY);
        _exit(!(fd >= 0 && read(fd, got, 5) == 5 && strcmp(got, "hello") == 0));
    }
    assert_ok(file_write_atomic(fifo, "hello", 5, &e), &e);
    ck_assert_int_eq(waitpid(reader, &status, 0), reader);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ck_assert(type_of(fifo) == S_IFIFO);
    assert_fails(file_write_atomic("/dev/full", "x", 1, &e), &e, ERR_MACHINE, "/dev/full");
}

/* A redirected standard output is written where it stands, not replaced. */
TEST(names_of_descriptors_are_the_descriptors)
{
    static const char *const names[] = {"-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"};
    const char *path = test_path("redirected");
    int keep = dup(STDOUT_FILENO), fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600), rc = 0;
    ck_assert_int_ge(dup2(fd, STDOUT_FILENO), 0);
    for (int i = 0; i < 4 && !rc; i++)
        rc = file_write_atomic(names[i], "ab", 2, &e);
    dup2(keep, STDOUT_FILENO);
    close(keep);
    close(fd);
    assert_ok(rc, &e);
    assert_holds(path, "abababab");
    assert_fails(file_write_atomic("/dev/fd/60000", "x", 1, &e), &e, ERR_IO, "/dev/fd/60000");
}

TEST(a_directory_is_no_output)
{
    const char *path = test_path("no/such/place");
    assert_fails(file_write_atomic(test_tmpdir(), "x", 1, &e), &e, ERR_IO, "is a directory");
    err_clear(&e);
    assert_fails(file_write_atomic(path, "x", 1, &e), &e, ERR_IO, "no/such/place");
}

TEST(directories_are_made_with_parents)
{
    struct stat st;
    for (int i = 0; i < 2; i++)
        assert_ok(make_dirs(test_path("a/b/c/"), &e), &e);
    ck_assert_int_eq(stat(test_path("a/b/c/"), &st), 0);
    ck_assert(S_ISDIR(st.st_mode));
    assert_ok(file_write_atomic(test_path("file"), "", 0, &e), &e);
    assert_fails(make_dirs(test_path("file/sub"), &e), &e, ERR_IO, "file");
}
