/*
 * cmd_status.c - `lacuna status`: how far the replay into a directory is, also while it runs and
 * after it was killed. Each shard has a manifest and a file of records of its own.
 */
#include "analyze/inputs.h"
#include "core/cmd.h"
#include "core/mem.h"
#include "core/sealed.h"
#include "core/text.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

static const struct opt options[] = {COMMON_OPTS, {0}};

struct shard_state {
    const char *state;              /* "done", "running", "stopped", ...; may be of the manifest */
    int64_t ok, skip, error, cells; /* cells: -1 = unknown */
};

/* Lines are counted, not read: the last one of a running replay may not be whole yet. */
static int count_records(const char *path, struct shard_state *s, struct err *err)
{
    FILE *f = fopen(path, "re");
    char *line = NULL;
    size_t cap = 0;
    if (!f)
        return errno == ENOENT ? 0 : err_sys(err, ERR_INPUT, "%s", path);
    for (ssize_t n; (n = getline(&line, &cap, f)) > 0 && line[n - 1] == '\n';) {
        s->ok += strstr(line, "\"status\":\"ok\"") != NULL;
        s->skip += strstr(line, "\"status\":\"skip\"") != NULL;
        s->error += strstr(line, "\"status\":\"error\"") != NULL;
    }
    free(line);
    fclose(f);
    return 0;
}

/* "running" is only what the file says: a process of this host that was killed could not change it.
 */
static void read_manifest(const json_t *m, struct shard_state *s)
{
    const json_t *cells = json_object_get(m, "cells");
    const char *status = json_string_value(json_object_get(m, "status"));
    const char *host = json_string_value(json_object_get(json_object_get(m, "host"), "name"));
    json_int_t pid = json_integer_value(json_object_get(m, "pid"));
    struct utsname u;
    bool here = host && uname(&u) == 0 && strcmp(u.nodename, host) == 0;
    bool gone = here && pid > 0 && kill((pid_t)pid, 0) != 0 && errno == ESRCH;
    s->cells = json_is_number(cells) ? (int64_t)json_number_value(cells) : -1;
    s->state = !status                              ? "unknown"
               : strcmp(status, "ok") == 0          ? "done"
               : strcmp(status, "running") || !gone ? status /* interrupted, failed */
                                                    : "stopped";
}

/* manifest.json -> records.jsonl, manifest.3-of-16.json -> records.3-of-16.jsonl */
static void records_name(const char *manifest, struct buf *b)
{
    const char *slash = strrchr(manifest, '/'), *middle = strstr(slash, "manifest") + 8;
    size_t len = strlen(middle) - strlen(".json");
    buf_printf(b, "%.*s/records%.*s.jsonl", (int)(slash - manifest), manifest, (int)len, middle);
}

static void print_line(const char *name, const struct shard_state *s)
{
    text_printf(stdout, "%s: %s, %lld", name, s->state, (long long)(s->ok + s->skip));
    if (s->cells >= 0)
        printf(" of %lld", (long long)s->cells);
    printf(" cells (%lld ok, %lld skipped), %lld failed%s\n", (long long)s->ok, (long long)s->skip,
           (long long)s->error,
           strcmp(s->state, "done") == 0 || strcmp(s->state, "running") == 0
               ? ""
               : "; the same command continues it");
}

static void put_json(struct jw *w, const char *name, const struct shard_state *s)
{
    jw_row(w, JW_STR("manifest", name), JW_STR("state", s->state), JW_INT("cells", s->cells),
           JW_INT("ok", s->ok), JW_INT("skip", s->skip), JW_INT("error", s->error));
}

static int one_shard(const char *manifest, struct jw *w, struct err *err)
{
    struct shard_state s = {.cells = -1};
    OWN(buf_free) struct buf records = {0};
    OWN(json_decrefp) json_t *m = NULL;
    PASS_ON(seal_json_file(manifest, (size_t)64 << 20, &m, err));
    records_name(manifest, &records);
    PASS_ON(buf_check(&records, "path", err));
    PASS_ON(count_records(buf_str(&records), &s, err));
    read_manifest(m, &s);
    if (w)
        put_json(w, manifest, &s);
    else
        print_line(manifest, &s);
    return 0;
}

static int one_directory(const char *dir, struct jw *w, struct err *err)
{
    OWN(str_list_free) struct str_list found = {0};
    PASS_ON(input_files(dir, "manifest*.json", &found, err));
    if (found.n == 0)
        return err_set(err, ERR_INPUT,
                       "%s: holds no manifest*.json: pass the -o directory of a replay", dir);
    for (int64_t i = 0; i < found.n; i++)
        PASS_ON(one_shard(found.items[i], w, err));
    return 0;
}

static int run(const struct app *app, void *opts, struct str_list *dirs, struct err *err)
{
    const struct common_opts *o = opts;
    OWN(buf_free) struct buf b = {0};
    struct jw w;
    if (dirs->n == 0)
        return err_set(err, ERR_USAGE, "no directory given: pass the -o directory of a replay");
    jw_init(&w, &b, 1);
    jw_arr(&w);
    for (int64_t i = 0; i < dirs->n; i++)
        PASS_ON(one_directory(dirs->items[i], o->json ? &w : NULL, err));
    jw_arr_end(&w);
    PASS_ON(shards_warn_absent(dirs, "", err));
    PASS_ON(buf_check(&b, "status", err));
    if (o->json)
        printf("%s\n", buf_str(&b));
    return 0;
}

const struct command cmd_status = {
    .name = "status",
    .usage = "status DIR...",
    .summary = "say how far the replay into a directory is",
    .run = run,
    .options = options,
    .size = sizeof(struct common_opts),
    .details =
        "DIR is the -o directory of `lacuna replay`. One line per shard: done, running or\n"
        "stopped, and the cells with a record of all cells. A shard of this host is stopped if\n"
        "its process is gone. Shards that were not started are named on standard error.\n"
        "\n"
        "Examples:\n"
        "  lacuna status out\n"
        "  lacuna status out --json\n",
};
