/*
 * cmd_status.c - `lacuna status`: how far the replay into a directory is, also while it runs and
 * after it was killed. Each shard has a manifest and a file of records of its own. Lines are
 * counted, not read, since the last line of a running replay may not be whole yet.
 */
#include "analyze/inputs.h"
#include "analyze/shardset.h"
#include "core/cmd.h"
#include "core/fileio.h"
#include "core/mem.h"
#include "core/progress.h"
#include "core/sealed.h"
#include "core/text.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

struct status_opts {
    struct common_opts common;
};

/* clang-format off */
static const struct opt options[] = {
    COMMON_OPTS,
    {0},
};
/* clang-format on */

static int run(const struct app *app, int argc, char **argv, struct err *err);

const struct command cmd_status = {
    .name = "status",
    .usage = "status DIR...",
    .summary = "say how far the replay into a directory is",
    .run = run,
    .options = options,
    .details =
        "DIR is the -o directory of `lacuna replay`. One line per shard: done, running or "
        "stopped,\n"
        "cells with a record of all cells, and while it runs the time that is left at the rate so\n"
        "far. A shard is stopped if its process is gone; of one that runs on another host, the "
        "age\n"
        "of the last record tells. Shards that were not started are told of on standard error.\n"
        "\n"
        "Examples:\n"
        "  lacuna status out\n"
        "  lacuna status out --json\n",
};

struct shard_state {
    const char *state;                /* "done", "running", "stopped", ... */
    int64_t ok, skip, error, cells;   /* cells: -1 = unknown */
    double elapsed_s, left_s, last_s; /* since the start; to go, NAN; since the last record, NAN */
    int64_t pid;
    char host[65];
};

/* ---- what files say ---------------------------------------------------------------------------
 */

static bool has(const char *line, size_t len, const char *text)
{
    return memmem(line, len, text, strlen(text)) != NULL;
}

static int count_records(const char *path, struct shard_state *s, struct err *err)
{
    FILE *f = fopen(path, "re");
    char *line = NULL;
    size_t cap = 0;
    struct stat st;
    s->last_s = NAN;
    if (!f)
        return errno == ENOENT ? 0 : err_sys(err, ERR_INPUT, "%s", path);
    for (ssize_t n; (n = getline(&line, &cap, f)) > 0 && line[n - 1] == '\n';) {
        s->ok += has(line, (size_t)n, "\"status\":\"ok\"");
        s->skip += has(line, (size_t)n, "\"status\":\"skip\"");
        s->error += has(line, (size_t)n, "\"status\":\"error\"");
    }
    if (fstat(fileno(f), &st) == 0 && st.st_size > 0)
        s->last_s = difftime(time(NULL), st.st_mtime);
    free(line);
    fclose(f);
    return 0;
}

/* Seconds since "2025-01-31T12:00:00Z"; NAN when it is no time. */
static double seconds_since(const char *text)
{
    struct tm tm = {0};
    if (!text || !strptime(text, "%Y-%m-%dT%H:%M:%SZ", &tm))
        return NAN;
    return difftime(time(NULL), timegm(&tm));
}

static bool is_here(const char *host)
{
    struct utsname u;
    return uname(&u) == 0 && strcmp(u.nodename, host) == 0;
}

/* "running" is only what the file says: a killed process could not change it. */
static const char *state_of(const char *status, const struct shard_state *s)
{
    if (strcmp(status, "ok") == 0)
        return "done";
    if (strcmp(status, "running") != 0)
        return status; /* interrupted, failed */
    bool gone = s->pid > 0 && is_here(s->host) && kill((pid_t)s->pid, 0) != 0 && errno == ESRCH;
    return gone ? "stopped" : "running";
}

static void read_manifest(const json_t *m, struct shard_state *s)
{
    const json_t *host = json_object_get(m, "host"), *cells = json_object_get(m, "cells");
    const char *status = json_string_value(json_object_get(m, "status"));
    const char *name = json_string_value(json_object_get(host, "name"));
    const json_t *elapsed = json_object_get(m, "elapsed_s");
    double before = json_number_value(json_object_get(m, "cells_before"));

    snprintf(s->host, sizeof s->host, "%s", name ? name : "");
    s->pid = json_integer_value(json_object_get(m, "pid"));
    s->cells = json_is_number(cells) ? (int64_t)json_number_value(cells) : -1;
    s->state = state_of(status ? status : "unknown", s);
    s->elapsed_s = elapsed ? json_number_value(elapsed)
                           : seconds_since(json_string_value(json_object_get(m, "start")));
    double done = (double)(s->ok + s->skip) - before;
    s->left_s = NAN;
    if (strcmp(s->state, "running") == 0 && s->cells > 0 && done > 0)
        s->left_s = s->elapsed_s * ((double)(s->cells - s->ok - s->skip)) / done;
}

/* manifest.json -> records.jsonl, manifest.3-of-16.json -> records.3-of-16.jsonl */
static void records_name(const char *manifest, struct buf *b)
{
    const char *slash = strrchr(manifest, '/'), *middle = strstr(slash, "manifest") + 8;
    size_t len = strlen(middle) - strlen(".json");
    buf_printf(b, "%.*s/records%.*s.jsonl", (int)(slash - manifest), manifest, (int)len, middle);
}

/* ---- what people and programs see -------------------------------------------------------------
 */

static void print_line(const char *name, const struct shard_state *s)
{
    char elapsed[DURATION_TEXT], time[DURATION_TEXT];
    duration_text(s->elapsed_s, elapsed);
    text_printf(stdout, "%s: %s, %lld", name, s->state, (long long)(s->ok + s->skip));
    if (s->cells >= 0)
        printf(" of %lld", (long long)s->cells);
    printf(" cells (%lld ok, %lld skipped), %lld failed", (long long)s->ok, (long long)s->skip,
           (long long)s->error);
    if (!isnan(s->elapsed_s) && strcmp(s->state, "stopped") != 0)
        printf(", after %s", elapsed);
    if (!isnan(s->left_s)) {
        duration_text(s->left_s, time);
        printf(", about %s left", time);
    }
    if (strcmp(s->state, "done") != 0 && !isnan(s->last_s)) {
        duration_text(s->last_s, time);
        printf(", last record %s ago", time);
    }
    if (strcmp(s->state, "running") == 0)
        text_printf(stdout, ", process %lld on %s", (long long)s->pid, s->host);
    else if (strcmp(s->state, "done") != 0)
        printf("; the same command continues it");
    putchar('\n');
}

static void put_json(struct jw *w, const char *name, const struct shard_state *s)
{
    jw_obj(w);
    jw_kstr(w, "manifest", name);
    jw_kstr(w, "state", s->state);
    jw_kint(w, "cells", s->cells);
    jw_kint(w, "ok", s->ok);
    jw_kint(w, "skip", s->skip);
    jw_kint(w, "error", s->error);
    jw_knum(w, "elapsed_s", s->elapsed_s);
    jw_knum(w, "left_s", s->left_s);
    jw_knum(w, "last_record_s", s->last_s);
    jw_kint(w, "pid", s->pid);
    jw_kstr(w, "host", s->host);
    jw_obj_end(w);
}

static int one_shard(const char *manifest, struct jw *w, struct err *err)
{
    struct shard_state s = {.cells = -1};
    struct buf records = {0};
    json_t *m = NULL;
    int rc = 0;

    TRY(seal_json_file(manifest, (size_t)64 << 20, &m, err));
    records_name(manifest, &records);
    TRY(buf_check(&records, "path", err));
    TRY(count_records(buf_str(&records), &s, err));
    read_manifest(m, &s);
    if (w)
        put_json(w, manifest, &s);
    else
        print_line(manifest, &s);
out:
    json_decref(m);
    buf_free(&records);
    return rc;
}

static int one_directory(const char *dir, struct jw *w, struct err *err)
{
    struct str_list found = {0};
    int rc = 0;

    TRY(input_files(dir, "manifest*.json", &found, err));
    if (found.n == 0)
        FAIL(err, ERR_INPUT, "%s: holds no manifest*.json: pass the -o directory of a replay", dir);
    for (int64_t i = 0; i < found.n; i++)
        TRY(one_shard(found.items[i], w, err));
out:
    str_list_free(&found);
    return rc;
}

static int run(const struct app *app, int argc, char **argv, struct err *err)
{
    struct status_opts o = {0};
    struct str_list dirs = {0};
    struct buf b = {0};
    struct jw w;
    bool done;
    int rc = 0;

    TRY(cmd_begin(&cmd_status, &o, argc, argv, &dirs, &done, err));
    if (done)
        goto out;
    if (dirs.n == 0)
        FAIL(err, ERR_USAGE, "no directory given: pass the -o directory of a replay");
    jw_init(&w, &b, 1);
    jw_arr(&w);
    for (int64_t i = 0; i < dirs.n; i++)
        TRY(one_directory(dirs.items[i], o.common.json ? &w : NULL, err));
    jw_arr_end(&w);
    TRY(shards_warn_absent(&dirs, "", err));
    TRY(buf_check(&b, "status", err));
    if (o.common.json)
        printf("%s\n", buf_str(&b));
out:
    buf_free(&b);
    str_list_free(&dirs);
    opt_free(options, &o);
    return rc;
}
