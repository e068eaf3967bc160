/*
 * gp.c - scripts and data for gnuplot. What lacuna runs is the kept script itself, in a directory
 * of its own, "<fig.png>.part", where gnuplot reads and writes the figure's files under their own
 * names; they take their places when all are good. Texts stand in single quotes, and file names
 * begin with "./", because gnuplot would run names that begin with '<' or '|'.
 */
#include "plots/gp.h"

#include "analyze/format.h"
#include "core/child.h"
#include "core/environment.h"
#include "core/fileio.h"
#include "core/mem.h"
#include "core/pool.h"
#include "core/text.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const suffixes[] = {".png", ".svg", ".pdf", ".eps", ".tex"}; /* enum gp_type */

enum { GP_TYPES = sizeof suffixes / sizeof *suffixes };

int gp_check_name(const char *path, enum gp_type *type, struct err *err)
{
    const char *dot = strrchr(path, '.');
    char what[UTF8_FAULT_MAX];
    const char *fault = utf8_fault(path, what);
    if (fault)
        return err_set(err, ERR_USAGE, "%s: a figure cannot have this name: it has a %s", path,
                       fault);
    for (int i = 0; i < GP_TYPES; i++)
        if (dot && dot != path && dot[-1] != '/' && strcmp(dot, suffixes[i]) == 0) {
            *type = (enum gp_type)i;
            return 0;
        }
    return err_set(err, ERR_USAGE,
                   "%s: the name of a figure ends in .png, .svg, .pdf, .eps or .tex", path);
}

/* Two quotes within single quotes are one for the manual, but gnuplot 5.4 ends the string at those
 * that begin it and at two such pairs in a row. Double quotes have escapes for all bytes. */
static void in_double_quotes(struct buf *b, const char *text)
{
    buf_puts(b, "\"");
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (isalnum(c) || c >= 0x80 || strchr(" ./:;,=+-_()[]<>", c))
            buf_put(b, text, 1);
        else
            buf_printf(b, "\\%03o", c);
    }
    buf_puts(b, "\"");
}

/* Quoted, all bytes as they are; the path has no control characters. */
static void gp_path(struct buf *b, const char *path)
{
    if (strchr(path, '\'')) {
        in_double_quotes(b, path);
        return;
    }
    buf_puts(b, "'");
    buf_puts(b, path);
    buf_puts(b, "'");
}

/* The text without control characters, in the characters of the terminal; of a tic's label, which
 * is a format, percent signs twice. */
static void put_text(const struct gp *g, struct buf *b, const char *text, bool tic)
{
    struct buf plain = {0}, out = {0};
    text_escape(&plain, text, "\n\t");
    for (char *p = plain.data; p && *p; p++)
        *p = iscntrl((unsigned char)*p) ? ' ' : *p;
    if (g && g->type == GP_TEX) {
        tex_text(buf_str(&plain), &out);
        buf_free(&plain);
        plain = HAND_OVER(out);
    }
    for (const char *p = buf_str(&plain); *p; p++) {
        buf_puts(&out, tic && *p == '%' ? "%" : "");
        buf_put(&out, p, 1);
    }
    gp_path(b, buf_str(&out));
    b->failed |= plain.failed || out.failed;
    buf_free(&plain);
    buf_free(&out);
}

void gp_text(const struct gp *g, struct buf *b, const char *text)
{
    put_text(g, b, text, false);
}

void gp_tic(const struct gp *g, struct buf *b, const char *text)
{
    put_text(g, b, text, true);
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

/* ---- files ---------------------------------------------------------------------------------- */

/* A file of the figure: in its directory, or among those in the making. */
static const char *path_of(const struct gp *g, bool staged, const char *name, char path[PATH_MAX])
{
    if (staged)
        snprintf(path, PATH_MAX, "%s/%s.part/%s", g->dir, g->file, name);
    else
        snprintf(path, PATH_MAX, "%s/%s", g->dir, name);
    return path;
}

static const char *with_suffix(const struct gp *g, const char *suffix, char name[NAME_MAX + 1])
{
    snprintf(name, NAME_MAX + 1, "%.*s%s", (int)strlen(g->file) - 4, g->file, suffix);
    return name;
}

/* ERR_USAGE when a file of this name would overwrite an input. */
static int refuse(const struct gp *g, const char *name, struct err *err)
{
    char path[PATH_MAX];
    struct stat out;
    if (stat(path_of(g, false, name, path), &out) != 0)
        return 0;
    if (S_ISDIR(out.st_mode))
        return err_set(err, ERR_USAGE,
                       "%s: the figure would write this file, but it is a directory", path);
    if (g->inputs && g->inputs->failed)
        return err_set(err, ERR_NOMEM, "inputs of the figure: out of memory");
    for (int64_t i = 0; g->inputs && i < g->inputs->n; i++)
        if (refuse_input(path, g->inputs->items[i], NULL) != 0)
            return err_set(err, ERR_USAGE,
                           "%s: the figure %s would overwrite its input: name it otherwise", path,
                           g->file);
    return 0;
}

static int move(const struct gp *g, const char *name, struct err *err)
{
    char from[PATH_MAX], to[PATH_MAX];
    if (rename(path_of(g, true, name, from), path_of(g, false, name, to)) == 0)
        return 0;
    return err_sys(err, ERR_IO, "%s: cannot rename to %s", from, to);
}

/* Every file in the making but the picture takes its place, or is removed. */
static int empty_stage(const struct gp *g, bool keep, struct err *err)
{
    char path[PATH_MAX];
    size_t len = strlen(g->file) - 4;
    int rc = 0;
    DIR *d = opendir(path_of(g, true, "", path));
    for (struct dirent *e; d && !rc && (e = readdir(d));)
        if (strncmp(e->d_name, g->file, len) != 0 || e->d_name[len] != '.')
            continue;
        else if (!keep)
            unlinkat(dirfd(d), e->d_name, 0);
        else if (strcmp(e->d_name, g->file) != 0)
            rc = move(g, e->d_name, err);
    if (d)
        closedir(d);
    return rc;
}

/* Begin the files of a figure. Those of a run that was killed are taken away. */
static int open_stage(struct gp *g, struct err *err)
{
    char path[PATH_MAX], name[NAME_MAX + 1];
    struct stat st;
    if (g->staged)
        return 0;
    PASS_ON(refuse(g, with_suffix(g, ".gp", name), err));
    if (g->type == GP_TEX) /* what LaTeX includes from fig.tex */
        PASS_ON(refuse(g, with_suffix(g, ".pdf", name), err));
    PASS_ON(refuse(g, g->file, err));
    for (int i = 0; i < GP_TYPES; i++)
        g->replaces |= stat(path_of(g, false, with_suffix(g, suffixes[i], name), path), &st) == 0;
    path_of(g, true, "", path);
    if (mkdir(path, 0777) != 0 && (errno != EEXIST || lstat(path, &st) != 0 ||
                                   !S_ISDIR(st.st_mode) || st.st_uid != geteuid())) {
        path[strlen(path) - 1] = '\0';
        return err_sys(err, ERR_IO, "%s: cannot create the directory", path);
    }
    empty_stage(g, false, NULL);
    g->staged = true;
    return 0;
}

static void drop_stage(struct gp *g)
{
    char path[PATH_MAX];
    if (!g->staged)
        return;
    empty_stage(g, false, NULL);
    rmdir(path_of(g, true, "", path)); /* stays when someone else put files there */
    g->staged = false;
}

int gp_open(struct gp *g, const char *path, int width, int height, const struct gp_style *style,
            struct err *err)
{
    *g = (struct gp){.width = width, .height = height};
    PASS_ON(gp_check_name(path, &g->type, err));
    if (style)
        g->style = *style;
    double scale = gp_pixels_per_unit(g->type, &g->style);
    if (width < GP_SIDE_LEAST || height < GP_SIDE_LEAST || width * scale > GP_SIDE_MOST ||
        height * scale > GP_SIDE_MOST)
        return err_set(err, ERR_USAGE, "%s: %.0f x %.0f pixels: a figure has %d to %d per side",
                       path, width * scale, height * scale, GP_SIDE_LEAST, GP_SIDE_MOST);
    const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path;
    if (strlen(file) >= sizeof g->file || (size_t)(file - path) >= sizeof g->dir)
        return err_set(err, ERR_USAGE, "%s: this name of a figure is too long", path);
    snprintf(g->dir, sizeof g->dir, "%.*s", slash ? (int)(slash - path) + (slash == path) : 1,
             slash ? path : ".");
    snprintf(g->file, sizeof g->file, "%s", file);
    return 0;
}

void gp_free(struct gp *g)
{
    drop_stage(g);
    buf_free(&g->script);
    buf_free(&g->caption);
}

int gp_data(struct gp *g, const char *tag, const void *data, size_t len, struct err *err)
{
    char path[PATH_MAX], name[NAME_MAX + 1], suffix[32];
    snprintf(suffix, sizeof suffix, ".%s", tag);
    PASS_ON(open_stage(g, err));
    PASS_ON(refuse(g, with_suffix(g, suffix, name), err));
    return file_write_atomic(path_of(g, true, name, path), data, len, err);
}

static void put_file(struct buf *b, const char *name)
{
    char path[NAME_MAX + 3];
    snprintf(path, sizeof path, "./%s", name);
    gp_path(b, path);
}

void gp_data_name(struct gp *g, const char *tag)
{
    char name[NAME_MAX + 1], suffix[32];
    snprintf(suffix, sizeof suffix, ".%s", tag);
    put_file(&g->script, with_suffix(g, suffix, name));
}

/* ---- sizes ---------------------------------------------------------------------------------- */

static bool is_raster(enum gp_type type)
{
    return type == GP_PNG || type == GP_SVG;
}

static double font_pt(enum gp_type type, const struct gp_style *s)
{
    if (s->font_pt > 0)
        return s->font_pt;
    return s->look == LOOK_PAPER ? 8 : s->look == LOOK_SLIDE ? 18 : is_raster(type) ? 10 : 9;
}

/* 13.3 units are a line of text of so many points. Vector files for screens have 100 an inch at
 * 9 pt. */
double gp_units_per_inch(enum gp_type type, const struct gp_style *s)
{
    bool old = s->look == LOOK_SCREEN && !is_raster(type);
    return (old ? 900 : 960) / font_pt(type, s);
}

double gp_pixels_per_unit(enum gp_type type, const struct gp_style *s)
{
    double dpi = s->look == LOOK_SCREEN || type == GP_SVG ? 96 : s->look == LOOK_PAPER ? 300 : 144;
    return is_raster(type) ? dpi / gp_units_per_inch(type, s) : 1;
}

/* The terminal's line. Fonts and points of SVG are scaled to look like those of the others. */
static void terminal(const struct gp *g, struct buf *b)
{
    double pt = font_pt(g->type, &g->style), scale = gp_pixels_per_unit(g->type, &g->style);
    double inch = gp_units_per_inch(g->type, &g->style), w = g->width / inch, h = g->height / inch;
    double line = g->style.look == LOOK_SCREEN ? 1 : 1.15 * pt / 8; /* 1.4 lines are 0.8 pt at 8 */
    OWN(buf_free) struct buf font = {0}, word = {0};
    if (is_raster(g->type))
        pt = 10;
    buf_printf(&font, "%s,%g", g->style.font ? g->style.font : "Sans", pt);
    gp_path(&word, buf_str(&font));
    if (g->type == GP_PNG)
        buf_printf(b, "set terminal pngcairo size %.0f,%.0f enhanced font %s", g->width * scale,
                   g->height * scale, buf_str(&word));
    else if (g->type == GP_SVG)
        buf_printf(b, "set terminal svg size %.0f,%.0f dynamic enhanced font %s", g->width * scale,
                   g->height * scale, buf_str(&word));
    else if (g->type == GP_TEX)
        /* The terminal reckons with the size of the font but leaves the text in the document's. */
        buf_printf(b,
                   "set terminal cairolatex pdf input color size %.4gin,%.4gin font ',%g' "
                   "header '\\fontsize{%g}{%g}\\selectfont'",
                   w, h, pt, pt, 1.2 * pt);
    else
        buf_printf(b, "set terminal %s size %.4gin,%.4gin enhanced font %s",
                   g->type == GP_EPS ? "epscairo" : "pdfcairo", w, h, buf_str(&word));
    if (g->type == GP_SVG)
        buf_printf(b, " fontscale %.3g linewidth %.3g background '#ffffff'", 1.33 * scale, scale);
    else if (g->type == GP_PNG && scale != 1)
        buf_printf(b, " fontscale %.4g linewidth %.4g", scale, scale);
    else if (g->type != GP_PNG && line != 1)
        buf_printf(b, " linewidth %.3g", line);
    buf_puts(b, "\n");
    b->failed |= font.failed || word.failed;
}

/* Terminal, sizes that the commands use by name, and output. */
static void head(const struct gp *g, struct buf *b)
{
    double scale = gp_pixels_per_unit(g->type, &g->style);
    double pt = is_raster(g->type) ? 10 : font_pt(g->type, &g->style);
    double point = g->type == GP_PNG ? scale : g->type == GP_SVG ? 0.62 * scale : 0.7 * pt / 9;
    terminal(g, b);
    buf_printf(b, "point_scale = %.4g\nfont_title = ',%.3g'\nfont_small = ',%.3g'\n", point,
               1.2 * pt, 0.8 * pt);
    /* The terminal's own dashes are so long that a short line has but one. */
    buf_puts(b, "set dashtype 2 (18,11)\nset dashtype 3 (4,9)\nset dashtype 4 (22,8,4,8)\n"
                "set dashtype 5 (22,7,4,7,4,7)\nset output ");
    put_file(b, g->file);
    buf_puts(b, "\n");
}

static void put_made_by(const struct gp *g, const char *before, struct buf *b)
{
    if (g->made_by)
        buf_puts(b, before);
    if (g->made_by)
        text_escape(b, g->made_by, "");
    buf_puts(b, g->made_by ? "\n" : "");
}

static int write_script(struct gp *g, struct err *err)
{
    char name[NAME_MAX + 1];
    OWN(buf_free) struct buf b = {0};
    buf_printf(&b, "# run in this directory: gnuplot %s\n", with_suffix(g, ".gp", name));
    put_made_by(g, "# made by: ", &b);
    head(g, &b);
    buf_puts(&b, buf_str(&g->script));
    buf_puts(&b, "set output\n");
    b.failed |= g->script.failed;
    PASS_ON(buf_check(&b, "gnuplot script", err));
    return gp_data(g, "gp", b.data, b.len, err);
}

/* The caption as one paragraph and, below it, the command. */
static int write_caption(struct gp *g, struct err *err)
{
    OWN(buf_free) struct buf b = {0};
    if (!g->caption.len)
        return 0;
    text_escape(&b, buf_str(&g->caption), "\n");
    buf_puts(&b, "\n");
    put_made_by(g, "\nmade by: ", &b);
    b.failed |= g->caption.failed;
    PASS_ON(buf_check(&b, "caption", err));
    return gp_data(g, "txt", b.data, b.len, err);
}

/* ---- the process ---------------------------------------------------------------------------- */

/* Settings of gnuplot's that would change the figure, or load other files for it. The script sets
 * its terminal; one that this gnuplot lacks, named in GNUTERM, makes gnuplot 5.4 fail or crash. */
static bool is_gnuplot_setting(const char *variable)
{
    static const char *const names[] = {"GNUTERM=", "GNUPLOT_", "FIT_", "GDFONTPATH="};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(variable, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

/* Start `gnuplot -d -e CD SCRIPT`: -d reads no settings of the user, CD changes the directory.
 * Given a file, gnuplot stops at the first error with a line number and exit 1. */
static int start(char *cd, char *script, int log, struct child *c)
{
    char program[] = "gnuplot", no_init[] = "-d", command[] = "-e";
    char *argv[] = {program, no_init, command, cd, script, NULL};
    posix_spawn_file_actions_t fa;
    char **env = environment_without(is_gnuplot_setting);
    int e = env ? posix_spawn_file_actions_init(&fa) : ENOMEM;
    if (e)
        goto out;
    e = posix_spawn_file_actions_addopen(&fa, 0, "/dev/null", O_RDONLY, 0);
    for (int fd = 1; fd <= 2 && !e; fd++)
        e = posix_spawn_file_actions_adddup2(&fa, log, fd);
    e = e ? e : child_start(c, argv, env, &fa);
    posix_spawn_file_actions_destroy(&fa);
out:
    free(env);
    return e;
}

static int not_started(const struct gp *g, int e, struct err *err)
{
    char script[NAME_MAX + 1];
    errno = e;
    if (e != ENOENT && e != EACCES && e != ENOTDIR)
        return err_sys(err, ERR_RUN, "cannot start gnuplot");
    if (g->replaces)
        return err_set(err, ERR_MACHINE,
                       "gnuplot not found: install gnuplot-nox; %s/%s stays as it is", g->dir,
                       g->file);
    with_suffix(g, ".gp", script);
    return err_set(err, ERR_MACHINE,
                   "gnuplot not found: install gnuplot-nox; %s/%s and its data are written, "
                   "`gnuplot %s` there draws the figure",
                   g->dir, script, script);
}

/* After an interrupt it is killed: nothing that it still writes is kept. */
static int wait_for(struct child *c, int *status, struct err *err)
{
    int got = 0;
    while (!interrupted() && (got = child_wait(c, 0.1, status)) == 0)
        ;
    int sys = errno;
    child_kill(c);
    errno = sys;
    if (got < 0)
        return err_sys(err, ERR_RUN, "waiting for gnuplot");
    if (interrupted() || (WIFSIGNALED(*status) && WTERMSIG(*status) == SIGINT))
        return err_set(err, ERR_INTERRUPTED, "interrupted");
    return 0;
}

/* What gnuplot said, on one line; of much the last line: first it repeats the command, which may be
 * long, then it says what is wrong with it. */
static void read_log(FILE *log, char text[300])
{
    char raw[300], *to = text;
    long end = fseek(log, 0, SEEK_END) == 0 ? ftell(log) : 0;
    fseek(log, end < 300 ? 0 : end - 299, SEEK_SET);
    size_t n = fread(raw, 1, sizeof raw - 1, log);
    while (n && isspace((unsigned char)raw[n - 1]))
        n--;
    raw[n] = '\0';
    const char *from = end < 300 || !strrchr(raw, '\n') ? raw : strrchr(raw, '\n');
    for (; *from; from++)
        if (!isspace((unsigned char)*from))
            *to++ = *from;
        else if (to > text && to[-1] != ' ')
            *to++ = ' ';
    *to = '\0';
}

/* "fig.png: gnuplot WHAT (see fig.gp): SAID"; the script of a figure that replaces another is not
 * kept. */
static int judge(const struct gp *g, int status, FILE *log, struct err *err)
{
    char said[300], what[64] = "wrote nothing", path[PATH_MAX], name[NAME_MAX + 1];
    struct stat st;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        snprintf(what, sizeof what, "failed with %s %d", WIFEXITED(status) ? "exit" : "signal",
                 WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    else if (stat(path_of(g, true, g->file, path), &st) == 0 && st.st_size > 0)
        return 0;
    read_log(log, said);
    path_of(g, false, with_suffix(g, ".gp", name), path);
    return err_set(err, ERR_RUN, "%s/%s: gnuplot %s%s%s%s%s%s", g->dir, g->file, what,
                   g->replaces ? "" : " (see ", g->replaces ? "" : path, g->replaces ? "" : ")",
                   said[0] ? ": " : "", said);
}

/* Run the script where it lies, and judge what came of it. */
static int run(const struct gp *g, struct err *err)
{
    char dir[PATH_MAX], script[NAME_MAX + 3] = "./";
    struct buf at = {0}, cd = {0};
    int status = 0, e, rc = 0;
    FILE *log = NULL;
    struct child gnuplot = {0};
    if (interrupted())
        FAIL(err, ERR_INTERRUPTED, "interrupted");
    log = tmpfile();
    if (!log) {
        rc = err_sys(err, ERR_IO, "temporary file for gnuplot's messages");
        goto out;
    }
    path_of(g, true, "", dir);
    buf_printf(&at, "%s%s", dir[0] == '/' ? "" : "./", dir);
    buf_puts(&cd, "cd ");
    gp_path(&cd, buf_str(&at));
    with_suffix(g, ".gp", script + 2);
    cd.failed |= at.failed;
    TRY(buf_check(&cd, "path", err));
    e = start(cd.data, script, fileno(log), &gnuplot);
    TRY(e ? not_started(g, e, err) : wait_for(&gnuplot, &status, err));
    TRY(judge(g, status, log, err));
out:
    if (log)
        fclose(log);
    buf_free(&at);
    buf_free(&cd);
    return rc;
}

int gp_finish(struct gp *g, struct err *err)
{
    int rc = 0;
    TRY(write_caption(g, err));
    TRY(write_script(g, err));
    rc = run(g, err);
    if (!rc)
        rc = empty_stage(g, true, err);
    else if (rc != ERR_INTERRUPTED && !g->replaces) /* for inspection, or another gnuplot */
        empty_stage(g, true, NULL);
    if (!rc)
        rc = move(g, g->file, err);
    drop_stage(g);
out:
    return rc;
}

/* ---- tics ----------------------------------------------------------------------------------- */

double gp_step(double n, int most)
{
    static const int steps[] = {1, 2, 5, 10};
    double raw = n / most, unit = n > 0 && most > 0 ? pow(10, floor(log10(raw))) : 0;
    for (int i = 0; i < 4; i++)
        if (unit > 0 && steps[i] * unit >= raw * (1 - 1e-12))
            return steps[i] * unit;
    return 1;
}

int64_t gp_token_step(int64_t n, int most)
{
    int64_t step = 1;
    while (n / step >= most && step < n)
        step *= 2;
    return step;
}

double gp_count_step(double n, int most)
{
    return fmax(1, gp_step(n, most));
}
