/*
 * manifest.c - how an output directory was made (manifest.h).
 *
 * The file is rewritten whenever something is added, so that a killed run leaves a manifest with
 * status "running". Earlier runs into the same directory are in "history", newest first.
 */
#include "core/manifest.h"

#include "core/buf.h"
#include "core/clock.h"
#include "core/fileio.h"
#include "core/json.h"
#include "core/mem.h"
#include "core/gemm.h"
#include "core/pool.h"
#include "core/sealed.h"
#include "core/text.h"
#include "core/version.h"

#include <hdf5.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>
#include <zstd.h>

#define MOST_HISTORY 50
#define MANIFEST_MOST ((size_t)64 << 20) /* bytes */
#define MOST_LEVELS 64

struct manifest {
    char *path;
    char **argv; /* borrowed */
    int argc;
    json_t *inputs;  /* [{"path": ..., "id": ...}] */
    json_t *values;  /* manifest_num, manifest_json */
    json_t *history; /* earlier manifests, newest first */
    double start_s;
    char started[40];
    bool changes_accepted;
};

/* "2025-01-31T12:00:00Z"; SOURCE_DATE_EPOCH makes it reproducible. */
static void time_text(char text[40])
{
    const char *epoch = getenv("SOURCE_DATE_EPOCH");
    time_t t = epoch && epoch[0] ? (time_t)strtoll(epoch, NULL, 10) : time(NULL);
    struct tm tm;
    gmtime_r(&t, &tm);
    strftime(text, 40, "%Y-%m-%dT%H:%M:%SZ", &tm);
}

static void manifest_free(struct manifest *m)
{
    if (!m)
        return;
    json_decref(m->inputs);
    json_decref(m->values);
    json_decref(m->history);
    free(m->path);
    free(m);
}

/* Does v hold at most so many levels of arrays and objects? */
static bool nests(json_t *v, int most)
{
    const char *key;
    json_t *x;
    size_t i;
    bool fits = most >= 0;
    json_array_foreach(v, i, x) fits = fits && nests(x, most - 1);
    json_object_foreach(v, key, x) fits = fits && nests(x, most - 1);
    return fits;
}

/* The manifest that is already there becomes the head of the history, which is deeper in the file;
 * the next run reads JSON to a limit of levels. */
static int load_history(struct manifest *m, struct err *err)
{
    json_t *old = NULL, *older;
    bool there;
    int rc = io_exists(m->path, &there, err);
    if (rc || !there)
        return rc;
    rc = seal_json_file(m->path, MANIFEST_MOST, &old, err);
    if (rc) {
        err_prefix(err, "the manifest of an earlier run cannot be read; move it away to go on "
                        "without its history");
        return rc;
    }
    if (!json_is_object(old) || !nests(old, MOST_LEVELS)) {
        json_decref(old);
        return err_set(err, ERR_INPUT,
                       "%s: an object of at most %d levels was expected; move the file away",
                       m->path, MOST_LEVELS);
    }
    older = json_incref(json_object_get(old, "history"));
    json_object_del(old, "history");
    rc = json_array_append_new(m->history, old);
    if (rc == 0 && json_is_array(older))
        rc = json_array_extend(m->history, older);
    json_decref(older);
    while (json_array_size(m->history) > MOST_HISTORY)
        json_array_remove(m->history, MOST_HISTORY);
    return rc ? err_set(err, ERR_NOMEM, "%s: out of memory", m->path) : 0;
}

static bool is_text(const json_t *o, const char *want)
{
    return json_is_string(o) && want && strcmp(json_string_value(o), want) == 0;
}

bool manifest_killed(const char *dir, const char *name, int argc, char **argv)
{
    OWN(buf_free) struct buf path = {0};
    OWN(json_decrefp) json_t *old = NULL;
    OWN(free_at) char *cwd = getcwd(NULL, 0);
    buf_printf(&path, "%s/%s", dir, name);
    bool same = !path.failed && seal_json_file(buf_str(&path), MANIFEST_MOST, &old, NULL) == 0 &&
                is_text(json_object_get(old, "status"), "running") &&
                is_text(json_object_get(old, "directory"), cwd);
    const json_t *its = json_object_get(old, "argv");
    same = same && json_array_size(its) == (size_t)argc;
    for (int i = 1; i < argc && same; i++) /* the program may have another path */
        same = is_text(json_array_get(its, (size_t)i), argv[i]);
    return same;
}

/* Value of "model name" in /proc/cpuinfo, "unknown" where there is none. */
static void cpu_model(char text[128])
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");
    snprintf(text, 128, "unknown");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon)
            continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(text, 128, "%.120s", colon + 1 + strspn(colon + 1, " "));
        break;
    }
    if (f)
        fclose(f);
}

static void put_host(struct jw *w)
{
    char cpu[128];
    struct utsname u;
    cpu_model(cpu);
    jw_kobj(w, "host");
    if (uname(&u) == 0)
        jw_members(w, JW_STR("name", u.nodename), JW_STR("system", u.sysname),
                   JW_STR("release", u.release), JW_STR("machine", u.machine));
    jw_members(w, JW_STR("cpu", cpu), JW_INT("processors", cpu_count()),
               JW_INT("memory_bytes", (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE)));
    jw_obj_end(w);
}

static void put_libraries(struct jw *w)
{
    char text[64];
    unsigned major, minor, release, xxh = XXH_versionNumber();
    jw_kobj(w, "libraries");
    if (H5get_libversion(&major, &minor, &release) >= 0) {
        snprintf(text, sizeof text, "%u.%u.%u", major, minor, release);
        jw_kstr(w, "hdf5", text);
    }
    jw_members(w, JW_STR("openblas", openblas_text()), JW_STR("jansson", jansson_version_str()),
               JW_STR("zstd", ZSTD_versionString()));
    snprintf(text, sizeof text, "%u.%u.%u", xxh / 10000, xxh / 100 % 100, xxh % 100);
    jw_kstr(w, "xxhash", text);
    jw_obj_end(w);
}

/* What the run depends on that the shell set. */
static void put_environment(struct jw *w)
{
    static const char *const names[] = {
        "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID",
        "SLURM_ARRAY_TASK_ID",  "SLURM_PROCID",    "OMPI_COMM_WORLD_RANK", NULL};
    extern char **environ;
    jw_kobj(w, "environment");
    for (int i = 0; names[i]; i++)
        if (getenv(names[i]))
            jw_kstr(w, names[i], getenv(names[i]));
    for (char **e = environ; e && *e; e++) {
        char name[128];
        size_t n = strcspn(*e, "=");
        if (strncmp(*e, "LACUNA_", 7) != 0 || n >= sizeof name)
            continue;
        memcpy(name, *e, n);
        name[n] = '\0';
        jw_kstr(w, name, (*e)[n] ? *e + n + 1 : "");
    }
    jw_obj_end(w);
}

static void put_times(const struct manifest *m, struct jw *w, bool finished)
{
    char end[40];
    jw_kstr(w, "start", m->started);
    if (!finished)
        return;
    time_text(end);
    jw_members(w, JW_STR("end", end), JW_NUM("elapsed_s", clock_s() - m->start_s),
               JW_INT("peak_memory_bytes", mem_peak_rss()));
}

static void put_all(const struct manifest *m, struct jw *w, const char *status, bool finished)
{
    const char *key;
    json_t *v;
    OWN(free_at) char *cwd = getcwd(NULL, 0);
    jw_obj(w);
    jw_members(w, JW_STR("program", "lacuna"), JW_STR("version", lacuna_version()),
               JW_STR("build", lacuna_build_id()), JW_STR("status", status),
               JW_INT("pid", (int64_t)getpid()));
    put_times(m, w, finished);
    jw_karr(w, "argv");
    for (int i = 0; i < m->argc; i++)
        jw_str(w, m->argv[i]);
    jw_arr_end(w);
    jw_kstr(w, "directory", cwd);
    put_environment(w);
    put_host(w);
    put_libraries(w);
    json_object_foreach(m->values, key, v)
    {
        jw_key(w, key);
        jw_value(w, v);
    }
    jw_key(w, "inputs");
    jw_value(w, m->inputs);
    jw_key(w, "history");
    jw_value(w, m->history);
    jw_obj_end(w);
}

static int save(const struct manifest *m, const char *status, bool finished, struct err *err)
{
    OWN(buf_free) struct buf b = {0};
    struct jw w;
    jw_init(&w, &b, 2);
    put_all(m, &w, status, finished);
    seal_put(&b, 0);
    buf_puts(&b, "\n");
    PASS_ON(buf_check(&b, m->path, err));
    return file_write_atomic(m->path, b.data, b.len, err);
}

int manifest_start_as(const char *dir, const char *name, int argc, char **argv,
                      struct manifest **out, struct err *err)
{
    int rc = 0;
    struct buf path = {0};
    struct manifest *m = calloc(1, sizeof *m);
    if (!m)
        return err_set(err, ERR_NOMEM, "%s: out of memory", dir);
    buf_printf(&path, "%s/%s", dir, name);
    TRY(buf_check(&path, dir, err));
    m->path = path.data;
    path.data = NULL;
    m->argc = argc;
    m->argv = argv;
    m->inputs = json_array();
    m->values = json_object();
    m->history = json_array();
    if (!m->inputs || !m->values || !m->history)
        FAIL(err, ERR_NOMEM, "%s: out of memory", m->path);
    time_text(m->started);
    m->start_s = clock_s();
    TRY(make_dirs(dir, err));
    TRY(load_history(m, err));
    TRY(save(m, "running", false, err));
    *out = HAND_OVER(m);
out:
    buf_free(&path);
    manifest_free(m);
    return rc;
}

int manifest_start(const char *dir, int argc, char **argv, struct manifest **out, struct err *err)
{
    return manifest_start_as(dir, "manifest.json", argc, argv, out, err);
}

void manifest_accept_changes(struct manifest *m)
{
    m->changes_accepted = true;
}

/* The id under which the newest earlier run saw a path, or NULL. */
static const char *earlier_id(const struct manifest *m, const char *path)
{
    size_t i, k;
    json_t *run, *input;
    json_array_foreach(m->history, i, run)
    {
        json_array_foreach(json_object_get(run, "inputs"), k, input)
        {
            const char *p = json_string_value(json_object_get(input, "path"));
            if (p && strcmp(p, path) == 0)
                return json_string_value(json_object_get(input, "id"));
        }
    }
    return NULL;
}

int manifest_input(struct manifest *m, const char *path, const char *content_id, struct err *err)
{
    char name[4096]; /* as it stands in the file */
    utf8_copy(name, sizeof name, path);
    const char *before = earlier_id(m, name);
    if (before && strcmp(before, content_id) != 0 && !m->changes_accepted)
        return err_set(err, ERR_INPUT,
                       "%s: changed since the earlier run into this directory (%s was %s); use "
                       "--force or another output directory",
                       path, content_id, before);
    json_t *input = json_pack("{s:s, s:s}", "path", name, "id", content_id);
    if (!input || json_array_append_new(m->inputs, input) != 0)
        return err_set(err, ERR_NOMEM, "%s: out of memory", path);
    return 0;
}

int manifest_write(struct manifest *m, struct err *err)
{
    return save(m, "running", false, err);
}

void manifest_num(struct manifest *m, const char *key, double value)
{
    bool whole = value == floor(value) && fabs(value) < 9e15;
    json_t *v = whole ? json_integer((json_int_t)value) : json_real(value);
    json_object_set_new(m->values, key, v ? v : json_null());
}

void manifest_json(struct manifest *m, const char *key, json_t *value)
{
    json_object_set_new(m->values, key, value);
}

int manifest_finish(struct manifest **pm, const char *status, struct err *err)
{
    struct manifest *m = *pm;
    if (!m)
        return 0;
    int rc = save(m, status, true, err);
    manifest_free(m);
    *pm = NULL;
    return rc;
}

int manifest_end(struct manifest **m, int rc, struct err *err)
{
    struct err own = {0};
    const char *status = rc == 0 ? "ok" : rc == ERR_INTERRUPTED ? "interrupted" : "failed";
    int wrote = manifest_finish(m, status, &own);
    return rc || !wrote ? rc : err_set(err, wrote, "%s", own.msg);
}
