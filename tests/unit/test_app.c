/* What `lacuna version` and `lacuna list` say of the program's CUDA side, with and without one. */
#include "core/buf.h"
#include "core/cmd.h"
#include "core/fileio.h"
#include "tests/harness/suite.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

extern const struct command cmd_version, cmd_list;

static const struct command *const no_commands[] = {NULL};
static const struct accel accel = {.name = "cuda"};

static int list_one(struct jw *w, struct err *err)
{
    jw_obj(w);
    jw_kstr(w, "name", "GPU 0");
    jw_kstr(w, "summary", "sm_90");
    jw_obj_end(w);
    return 0;
}

static int list_none(struct jw *w, struct err *err)
{
    return 0;
}

/* Standard output and standard error of a command, one after the other. */
static const char *printed(const struct app *app, const struct command *cmd, const char *words)
{
    static struct buf text;
    char copy[200], *argv[8];
    int argc = 0, saved[2] = {dup(1), dup(2)};
    struct err err = {0};
    const char *path = test_path("printed");
    snprintf(copy, sizeof copy, "%s", words);
    for (char *w = strtok(copy, " "); w; w = strtok(NULL, " "))
        argv[argc++] = w;
    fflush(stdout);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0666);
    for (int i = 0; i < 2; i++)
        dup2(fd, i + 1);
    int rc = cmd_run(cmd, app, argc, argv, &err);
    fflush(stdout);
    for (int i = 0; i < 2; i++) {
        dup2(saved[i], i + 1);
        close(saved[i]);
    }
    close(fd);
    assert_ok(rc, &err);
    buf_reset(&text);
    assert_ok(buf_read_file(&text, path, 1 << 16, &err), &err);
    return buf_str(&text);
}

static void assert_in(const char *text, const char *part)
{
    ck_assert_msg(strstr(text, part) != NULL, "'%s' is not in: %s", part, text);
}

TEST(version_says_whether_there_is_a_cuda_side)
{
    struct app without = {.commands = no_commands},
               with = {.commands = no_commands, .accel = &accel};
    assert_in(printed(&without, &cmd_version, ""), "\ncuda no\n");
    assert_in(printed(&without, &cmd_version, "--json"), "\"cuda\": false");
    assert_in(printed(&with, &cmd_version, ""), "\ncuda yes\n");
    assert_in(printed(&with, &cmd_version, "--json"), "\"cuda\": true");
}

TEST(an_empty_list_of_gpus_says_why)
{
    struct app without = {.commands = no_commands};
    struct app idle = {.commands = no_commands, .accel = &accel, .list_gpus = list_none};
    struct app with = {.commands = no_commands, .accel = &accel, .list_gpus = list_one};
    assert_in(printed(&without, &cmd_list, "gpus"), "built without CUDA");
    assert_in(printed(&without, &cmd_list, "kernels"), "built without CUDA");
    assert_in(printed(&idle, &cmd_list, "gpus"), "no GPU: the NVIDIA driver is missing");
    const char *text = printed(&with, &cmd_list, "gpus");
    assert_in(text, "GPU 0      sm_90");
    ck_assert_ptr_null(strstr(text, "CUDA"));
}
