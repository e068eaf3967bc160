/* Progress and log lines: what goes to standard error, and what does not. */
#include "tests/harness/suite.h"

#include "core/buf.h"
#include "core/fileio.h"
#include "core/json.h"
#include "core/log.h"
#include "core/progress.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static struct err e;
static int saved_stderr;
static char path[300];

static void stderr_to(int fd)
{
    fflush(stderr);
    saved_stderr = dup(STDERR_FILENO);
    ck_assert(fd >= 0 && saved_stderr >= 0);
    dup2(fd, STDERR_FILENO);
    close(fd);
}

static void stderr_back(void)
{
    fflush(stderr);
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
}

/* Standard error goes to a file until caught(). */
static void catch_stderr(void)
{
    memset(&e, 0, sizeof e);
    snprintf(path, sizeof path, "%s/stderr-%d", test_tmpdir(), (int)getpid());
    stderr_to(open(path, O_RDWR | O_CREAT | O_TRUNC, 0600));
}

static void caught(struct buf *b)
{
    stderr_back();
    assert_ok(buf_read_file(b, path, 1 << 20, &e), &e);
}

TEST(log_lines_have_a_level_and_one_newline)
{
    OWN(buf_free) struct buf b = {0};
    char text[5000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    catch_stderr();
    log_set_level(LOG_WARN);
    log_error("bad %d", 1);
    log_warn("odd");
    log_info("not shown");
    log_set_level(LOG_DEBUG);
    log_info("plain");
    log_debug("detail");
    caught(&b);
    ck_assert_str_eq(buf_str(&b), "lacuna: error: bad 1\nlacuna: warning: odd\nlacuna: plain\n"
                                  "lacuna: debug: detail\n");
    buf_reset(&b);
    catch_stderr();
    log_error("%s", text);
    caught(&b);
    ck_assert_ptr_eq(strchr(b.data, '\n'), b.data + b.len - 1);
    ck_assert_uint_ge(b.len, 2000);
}

TEST(short_work_draws_nothing)
{
    OWN(buf_free) struct buf b = {0};
    catch_stderr();
    struct progress *p = progress_start("replay", 10, 10);
    for (int i = 0; i < 10; i++)
        progress_add(p, 1, 1, "layer 0 head 0");
    progress_end(&p);
    ck_assert_ptr_null(p);
    progress_add(NULL, 1, 1, NULL);
    progress_end(&p);
    caught(&b);
    ck_assert_uint_eq(b.len, 0);
}

TEST(a_terminal_shows_one_line_that_goes_at_the_end)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    char text[512] = "";
    size_t n = 0;
    ssize_t got;
    struct winsize size = {.ws_col = 18};
    if (master < 0 || grantpt(master) != 0 || unlockpt(master) != 0) {
        printf("skipped: this machine has no pseudo-terminals\n");
        return;
    }
    ck_assert_int_eq(ioctl(master, TIOCSWINSZ, &size), 0);
    stderr_to(open(ptsname(master), O_RDWR | O_NOCTTY));
    struct progress *p = progress_start("replay", 4, 4);
    usleep(1010000);
    progress_add(p, 2, 2, "layer 1");
    progress_end(&p);
    stderr_back();
    /* What is written arrives in parts; the last read fails, because the terminal is closed. */
    while ((got = read(master, text + n, sizeof text - 1 - n)) > 0)
        n += (size_t)got;
    close(master);
    ck_assert_str_eq(text, "\r\033[Kreplay 2/4 (50 %)\r\033[K");
}

TEST(json_progress_is_one_object_a_line)
{
    OWN(buf_free) struct buf b = {0};
    OWN(json_decrefp) json_t *v = NULL;
    catch_stderr();
    progress_set_mode(PROGRESS_JSON);
    struct progress *p = progress_start("replay", 8, 2);
    progress_add(p, 2, 1, NULL);
    progress_add(p, 6, 1, "layer 1");
    progress_end(&p);
    caught(&b);
    char *last = b.data + b.len - 1;
    ck_assert_int_eq(*last, '\n');
    *last = '\0';
    last = strrchr(b.data, '\n') ? strrchr(b.data, '\n') + 1 : b.data;
    assert_ok(json_read_text(last, strlen(last), "progress", &v, &e), &e);
    ck_assert_str_eq(json_string_value(json_object_get(v, "progress")), "replay");
    ck_assert_str_eq(json_string_value(json_object_get(v, "current")), "layer 1");
    ck_assert(json_integer_value(json_object_get(v, "done")) == 2);
    ck_assert(json_number_value(json_object_get(v, "share")) == 1);
}

static double seconds_used = 100;

static double meter(void *ctx)
{
    return *(double *)ctx;
}

/* A meter that ran on by the time since it was set, or by more, was in use all the time. */
TEST(a_meter_is_a_share_of_the_time_since_it_was_set)
{
    static const struct {
        double add, share;
    } want[] = {{0, 0}, {1e6, 1}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        OWN(buf_free) struct buf b = {0};
        OWN(json_decrefp) json_t *v = NULL;
        catch_stderr();
        progress_set_mode(PROGRESS_JSON);
        struct progress *p = progress_start("replay", 1, 1);
        progress_meter(p, "GPU in use", meter, &seconds_used);
        seconds_used += want[i].add;
        usleep(1000);
        progress_add(p, 1, 1, "layer 1");
        progress_end(&p);
        caught(&b);
        assert_ok(json_read_text(buf_str(&b), b.len, "progress", &v, &e), &e);
        ck_assert_str_eq(json_string_value(json_object_get(v, "meter")), "GPU in use");
        ck_assert_double_eq(json_number_value(json_object_get(v, "meter_share")), want[i].share);
    }
}

TEST(durations_read_well)
{
    static const struct {
        double seconds;
        const char *text;
    } want[] = {{0, "0 s"},         {-3, "0 s"},       {59.4, "59 s"},
                {59.6, "1:00 min"}, {185, "3:05 min"}, {7800, "2:10 h"}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        char text[DURATION_TEXT];
        duration_text(want[i].seconds, text);
        ck_assert_str_eq(text, want[i].text);
    }
}
