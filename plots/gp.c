/*
 * gp.c - running gnuplot.
 *
 * The script goes to `gnuplot -d /dev/stdin`: read like a file, gnuplot stops at the first error
 * with a line number and exit 1; reading bare standard input it would go on. No shell takes part
 * anywhere: the process is started directly, texts stand in single quotes, and file names begin
 * with "./", because gnuplot would run names that begin with '<' or '|'.
 */
#include "plots/gp.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

void gp_text(struct buf *b, const char *text)
{
    buf_puts(b, "'");
    for (const char *p = text; *p; p++) {
        if (*p == '\'')
            buf_puts(b, "''");
        else
            buf_put(b, iscntrl((unsigned char)*p) ? " " : p, 1);
    }
    buf_puts(b, "'");
}

void shell_word(const char *word, struct buf *b)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_./:=,@%+-";
    if (word[0] && strspn(word, plain) == strlen(word)) {
        buf_puts(b, word);
        return;
    }
    buf_puts(b, "'");
    for (; *word; word++) {
        if (*word == '\'')
            buf_puts(b, "'\\''");
        else
            buf_put(b, word, 1);
    }
    buf_puts(b, "'");
}

int gp_check_name(const char *path, enum gp_type *type, struct err *err)
{
    static const char *const suffixes[] = {".png", ".svg", ".pdf"};
    const char *dot = strrchr(path, '.');
    for (const char *p = path; *p; p++)
        if (iscntrl((unsigned char)*p))
            return err_set(err, ERR_USAGE, "the name of a figure has no control characters");
    for (int i = 0; i < 3; i++)
        if (dot && dot != path && dot[-1] != '/' && strcmp(dot, suffixes[i]) == 0) {
            *type = (enum gp_type)i;
            return 0;
        }
    return err_set(err, ERR_USAGE, "%s: the name of a figure ends in .png, .svg or .pdf", path);
}

int gp_open(struct gp *g, const char *path, int width, int height, struct err *err)
{
    *g = (struct gp){.width = width, .height = height};
    if (width < GP_SIDE_LEAST || height < GP_SIDE_LEAST || width > GP_SIDE_MOST ||
        height > GP_SIDE_MOST)
        return err_set(err, ERR_USAGE, "%s: %d x %d pixels: a figure has %d to %d per side", path,
                       width, height, GP_SIDE_LEAST, GP_SIDE_MOST);
    int rc = gp_check_name(path, &g->type, err);
    if (rc)
        return rc;
    const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
    if (!slash)
        buf_puts(&g->dir, ".");
    else
        buf_put(&g->dir, path, slash == path ? 1 : (size_t)(slash - path));
    buf_puts(&g->file, file);
    buf_put(&g->stem, file, strlen(file) - 4);
    return 0;
}

void gp_free(struct gp *g)
{
    buf_free(&g->dir);
    buf_free(&g->file);
    buf_free(&g->stem);
    buf_free(&g->script);
    buf_free(&g->made_by);
    str_list_free(&g->data);
}

/* "<dir>/<stem>.<tag>" */
static void beside(const struct gp *g, const char *tag, struct buf *path)
{
    buf_printf(path, "%s/%s.%s", buf_str(&g->dir), buf_str(&g->stem), tag);
}

int gp_data(struct gp *g, const char *tag, const void *data, size_t len, struct err *err)
{
    struct buf path = {0}, name = {0};
    int rc = 0;
    beside(g, tag, &path);
    buf_printf(&name, "%s.%s", buf_str(&g->stem), tag);
    TRY(buf_check(&path, "path", err));
    TRY(buf_check(&name, "path", err));
    TRY(file_write_atomic(buf_str(&path), data, len, err));
    str_list_add(&g->data, buf_str(&name));
out:
    buf_free(&path);
    buf_free(&name);
    return rc;
}

void gp_data_name(struct gp *g, const char *tag)
{
    struct buf name = {0};
    buf_printf(&name, "./%s.%s", buf_str(&g->stem), tag);
    gp_text(&g->script, buf_str(&name));
    g->script.failed |= name.failed;
    buf_free(&name);
}

/* Terminal and output; `output` is a name in the figure's directory. */
static void head(const struct gp *g, const char *output, struct buf *b)
{
    struct buf name = {0};
    /* Fonts and points of the SVG terminal are scaled to look like those of the others. */
    if (g->type == GP_PNG)
        buf_printf(b, "set terminal pngcairo size %d,%d enhanced font 'Sans,10'\n", g->width,
                   g->height);
    else if (g->type == GP_SVG)
        buf_printf(b,
                   "set terminal svg size %d,%d dynamic enhanced font 'Sans,10' fontscale 1.33 "
                   "background '#ffffff'\n",
                   g->width, g->height);
    else
        buf_printf(b, "set terminal pdfcairo size %.2fin,%.2fin enhanced font 'Sans,9'\n",
                   g->width / 100.0, g->height / 100.0);
    buf_printf(b, "point_scale = %s\n",
               g->type == GP_PNG   ? "1.0"
               : g->type == GP_SVG ? "0.62"
                                   : "0.7");
    buf_printf(&name, "./%s", output);
    buf_puts(b, "set output ");
    gp_text(b, buf_str(&name));
    buf_puts(b, "\n");
    b->failed |= name.failed;
    buf_free(&name);
}

static int keep_script(const struct gp *g, struct err *err)
{
    struct buf b = {0}, path = {0};
    int rc = 0;
    buf_puts(&b, "# run in this directory: gnuplot ");
    buf_printf(&b, "%s.gp\n", buf_str(&g->stem));
    if (g->made_by.len) {
        buf_puts(&b, "# made by: ");
        for (const char *p = buf_str(&g->made_by); *p; p++)
            buf_put(&b, iscntrl((unsigned char)*p) ? " " : p, 1);
        buf_puts(&b, "\n");
    }
    head(g, buf_str(&g->file), &b);
    buf_puts(&b, buf_str(&g->script));
    buf_puts(&b, "set output\n");
    beside(g, "gp", &path);
    TRY(buf_check(&b, "gnuplot script", err));
    TRY(buf_check(&path, "path", err));
    TRY(file_write_atomic(buf_str(&path), b.data, b.len, err));
out:
    buf_free(&b);
    buf_free(&path);
    return rc;
}

/* ---- the process --------------------------------------------------------------------------- */

static int start(int in, int log, pid_t *pid)
{
    char program[] = "gnuplot", no_init[] = "-d", script[] = "/dev/stdin";
    char *argv[] = {program, no_init, script, NULL};
    posix_spawn_file_actions_t fa;
    posix_spawnattr_t attr;
    sigset_t defaults;
    int e = posix_spawn_file_actions_init(&fa);
    if (e)
        return e;
    e = posix_spawnattr_init(&attr);
    if (!e) {
        sigemptyset(&defaults);
        sigaddset(&defaults, SIGPIPE); /* ignored here, not there */
        posix_spawnattr_setsigdefault(&attr, &defaults);
        posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGDEF);
        e = posix_spawn_file_actions_adddup2(&fa, in, 0);
        if (!e)
            e = posix_spawn_file_actions_adddup2(&fa, log, 1);
        if (!e)
            e = posix_spawn_file_actions_adddup2(&fa, log, 2);
        if (!e)
            e = posix_spawnp(pid, "gnuplot", &fa, &attr, argv, environ);
        posix_spawnattr_destroy(&attr);
    }
    posix_spawn_file_actions_destroy(&fa);
    return e;
}

/* Write everything; a reader that went away is not an error here, its exit status tells. */
static void feed(int fd, const char *data, size_t len)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN}, old;
    sigaction(SIGPIPE, &ignore, &old);
    while (len > 0) {
        ssize_t n = write(fd, data, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        data += n;
        len -= (size_t)n;
    }
    sigaction(SIGPIPE, &old, NULL);
}

/* gnuplot's last words, on one line. */
static void read_log(FILE *log, char text[400])
{
    size_t n, to = 0;
    char raw[400];
    rewind(log);
    n = fread(raw, 1, sizeof raw - 1, log);
    for (size_t i = 0; i < n; i++)
        if (!isspace((unsigned char)raw[i]))
            text[to++] = raw[i];
        else if (to && text[to - 1] != ' ')
            text[to++] = ' ';
    text[to] = '\0';
}

/* Run the script; *status is what waitpid gave. */
static int run_gnuplot(const struct buf *script, const struct gp *g, FILE *log, struct err *err)
{
    int fds[2] = {-1, -1}, status = 0, rc = 0;
    pid_t pid;
    char said[400];

    if (pipe2(fds, O_CLOEXEC) != 0)
        return err_sys(err, ERR_RUN, "pipe to gnuplot");
    int e = start(fds[0], fileno(log), &pid);
    close(fds[0]);
    if (e) {
        close(fds[1]);
        errno = e;
        if (e == ENOENT || e == EACCES || e == ENOTDIR)
            return err_set(err, ERR_MACHINE,
                           "gnuplot not found: install gnuplot-nox; %s/%s.gp and "
                           "its data are written, `gnuplot %s.gp` there draws the figure",
                           buf_str(&g->dir), buf_str(&g->stem), buf_str(&g->stem));
        return err_sys(err, ERR_RUN, "cannot start gnuplot");
    }
    feed(fds[1], script->data, script->len);
    close(fds[1]);
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return err_sys(err, ERR_RUN, "waiting for gnuplot");
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        read_log(log, said);
        rc = err_set(err, ERR_RUN, "%s/%s.gp: gnuplot failed (%s %d): %s", buf_str(&g->dir),
                     buf_str(&g->stem), WIFEXITED(status) ? "exit" : "signal",
                     WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status), said);
    }
    return rc;
}

/* Does a line of gnuplot's messages say that it left out a map, and so drew an empty panel? It ends
 * well all the same. */
static bool left_out_map(FILE *log, char line[400])
{
    static const char *const signs[] = {"Image grid must be at least",
                                        "(visible or invisible) to plot",
                                        "image coordinates undefined"};
    rewind(log);
    while (fgets(line, 400, log))
        for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
            if (strstr(line, signs[i])) {
                line[strcspn(line, "\n")] = '\0';
                return true;
            }
    return false;
}

/* The picture lies under `part`: must not be empty or lack a map; rename. */
static int accept_part(const struct gp *g, const char *part, FILE *log, struct err *err)
{
    struct stat st;
    struct buf path = {0};
    char said[400];
    int rc = 0;
    if (stat(part, &st) != 0 || st.st_size == 0) {
        read_log(log, said);
        FAIL(err, ERR_RUN, "%s/%s: gnuplot wrote nothing%s%s", buf_str(&g->dir), buf_str(&g->file),
             said[0] ? ": " : "", said);
    }
    if (left_out_map(log, said))
        FAIL(err, ERR_RUN, "%s/%s: gnuplot left out a map: %s", buf_str(&g->dir), buf_str(&g->file),
             said);
    buf_printf(&path, "%s/%s", buf_str(&g->dir), buf_str(&g->file));
    TRY(buf_check(&path, "path", err));
    if (rename(part, buf_str(&path)) != 0)
        rc = err_sys(err, ERR_IO, "%s: cannot rename to %s", part, buf_str(&path));
out:
    buf_free(&path);
    return rc;
}

int gp_finish(struct gp *g, struct err *err)
{
    struct buf script = {0}, part_name = {0}, part = {0};
    FILE *log = NULL;
    int rc = 0;

    TRY(buf_check(&g->script, "gnuplot script", err));
    TRY(keep_script(g, err));
    buf_printf(&part_name, "%s.part", buf_str(&g->file));
    buf_printf(&part, "%s/%s", buf_str(&g->dir), buf_str(&part_name));
    buf_puts(&script, "cd ");
    gp_text(&script, buf_str(&g->dir));
    buf_puts(&script, "\n");
    head(g, buf_str(&part_name), &script);
    buf_puts(&script, buf_str(&g->script));
    buf_puts(&script, "set output\n");
    TRY(buf_check(&script, "gnuplot script", err));
    TRY(buf_check(&part, "path", err));
    log = tmpfile();
    if (!log) {
        rc = err_sys(err, ERR_IO, "temporary file for gnuplot's messages");
        goto out;
    }
    TRY(run_gnuplot(&script, g, log, err));
    TRY(accept_part(g, buf_str(&part), log, err));
out:
    if (rc && part.len)
        unlink(buf_str(&part));
    if (log)
        fclose(log);
    buf_free(&script);
    buf_free(&part_name);
    buf_free(&part);
    return rc;
}

double gp_step(double n, int most)
{
    if (!(n > 0) || most < 1)
        return 1;
    double raw = n / most, unit = pow(10, floor(log10(raw)));
    static const double steps[] = {1, 2, 2.5, 5, 10};
    for (int i = 0; i < 5; i++)
        if (steps[i] * unit >= raw * (1 - 1e-12))
            return steps[i] * unit;
    return 10 * unit;
}

int64_t gp_token_step(int64_t n, int most)
{
    int64_t step = 1;
    while (n / step >= most && step < n)
        step *= 2;
    return step;
}
