/*
 * powercut.c - what a disk may hold after the power went: rebuilt from the log of a run, and then
 * the command has to go on.
 *
 * The model is harsher than most file systems. What was written since the last sync of a file is
 * there whole, in some of its sectors, or not; its length may be there without the bytes. Names
 * that were made, changed or removed since the last sync of their directory are there or not. What
 * was synced is there.
 */
#include "tests/fault/fault.h"
#include "core/mem.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MODES 4
#define MANY 20000

/* What survives of what was not synced. */
enum mode {
    NOTHING,  /* neither names nor bytes */
    NAMES,    /* all names, no bytes */
    IN_ORDER, /* the first of the changes to names, some of the bytes */
    SOME,     /* some of both */
};

struct op {
    struct fault_entry e;
    char path[256], to[256]; /* below the directory of the run */
    char *data;              /* owned */
    int64_t moved;           /* file that gets a name; of a directory 0 */
    bool is_new;             /* a creation that made the file */
};

struct entry {
    char path[256];
    int64_t file;
    bool is_dir;
};

/* A tree of names. */
struct tree {
    struct entry at[256];
    int n;
};

static struct {
    struct op *ops;
    int n;
    struct tree before, after;
    char prefix[1024]; /* of absolute paths below the directory of the run */
} run;

/* ---- names ----------------------------------------------------------------------------------- */

static struct entry *find(struct tree *t, const char *path)
{
    for (int i = 0; i < t->n; i++)
        if (strcmp(t->at[i].path, path) == 0)
            return &t->at[i];
    return NULL;
}

static void forget(struct tree *t, const char *path)
{
    struct entry *e = find(t, path);
    if (e)
        *e = t->at[--t->n];
}

static void put(struct tree *t, const char *path, int64_t file, bool is_dir)
{
    forget(t, path);
    if (t->n == 256)
        give_up("more than 256 names in a run");
    snprintf(t->at[t->n].path, sizeof t->at[0].path, "%s", path);
    t->at[t->n].file = file;
    t->at[t->n++].is_dir = is_dir;
}

static void scan(struct tree *t, const char *dir, const char *path)
{
    struct stat st;
    const char *full = trial_path(dir, path);
    if (lstat(full, &st) != 0)
        give_up("%s: not there", full);
    put(t, path, (int64_t)st.st_ino, S_ISDIR(st.st_mode));
    DIR *d = S_ISDIR(st.st_mode) ? opendir(full) : NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        char below[512];
        snprintf(below, sizeof below, "%s%s%s", path, path[0] ? "/" : "", e->d_name);
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            scan(t, dir, below);
    }
    if (d)
        closedir(d);
}

/* The path below the directory of the run: without "./" and doubled slashes. */
static void normal(const char *raw, char out[256])
{
    size_t n = strlen(run.prefix), at = 0;
    if (strncmp(raw, run.prefix, n) == 0)
        raw += n;
    while (*raw && at < 255) {
        while (raw[0] == '/' || (raw[0] == '.' && (raw[1] == '/' || !raw[1])))
            raw++;
        while (*raw && *raw != '/' && at < 255)
            out[at++] = *raw++;
        if (*raw && raw[1] && at < 255)
            out[at++] = '/';
    }
    out[at] = '\0';
}

static void parent_of(const char *path, char out[256])
{
    const char *slash = strrchr(path, '/');
    snprintf(out, 256, "%.*s", slash ? (int)(slash - path) : 0, path);
}

/* ---- the run --------------------------------------------------------------------------------- */

static bool changes_names(const struct op *o)
{
    return o->is_new || o->e.call == CALL_RENAME || o->e.call == CALL_LINK ||
           o->e.call == CALL_UNLINK || o->e.call == CALL_MKDIR;
}

static void apply_names(struct tree *t, const struct op *o)
{
    if (o->is_new)
        put(t, o->path, o->moved, false);
    else if (o->e.call == CALL_MKDIR)
        put(t, o->path, o->moved, true);
    else if (o->e.call == CALL_RENAME || o->e.call == CALL_LINK)
        put(t, o->to, o->moved, false);
    if (o->e.call == CALL_RENAME || o->e.call == CALL_UNLINK)
        forget(t, o->path);
}

static char *take(FILE *f, int32_t n)
{
    char *text = calloc(1, (size_t)n + 1);
    if (!text || fread(text, 1, (size_t)n, f) != (size_t)n)
        give_up("the log ends in an entry");
    return text;
}

static bool changes_disk(const struct fault_entry *e)
{
    return e->result >= 0 &&
           (e->call == CALL_CREATE || e->call == CALL_WRITE || e->call == CALL_SYNC ||
            e->call == CALL_TRUNCATE || e->call == CALL_RESERVE || e->call == CALL_RENAME ||
            e->call == CALL_LINK || e->call == CALL_UNLINK || e->call == CALL_MKDIR);
}

static void read_log(void)
{
    struct fault_entry e;
    struct tree now = run.before;
    FILE *f = fopen(trial_path("", "log"), "rbe");
    run.ops = calloc(MANY, sizeof *run.ops);
    while (f && run.ops && fread(&e, sizeof e, 1, f) == 1) {
        OWN(free_at)
        char *path = take(f, e.path_len), *to = take(f, e.to_len), *data = take(f, e.data_len);
        struct op *o = &run.ops[run.n];
        if (changes_disk(&e) && run.n + 1 < MANY) {
            *o = (struct op){.e = e, .data = data};
            normal(path, o->path);
            normal(to, o->to);
            struct entry *old = find(&now, o->path), *dir = find(&run.after, o->path);
            o->is_new = e.call == CALL_CREATE && !old;
            o->moved = e.call == CALL_CREATE  ? e.file
                       : e.call == CALL_MKDIR ? (dir ? dir->file : 0)
                                              : (old ? old->file : 0);
            apply_names(&now, o);
            run.n++;
            data = NULL;
        }
    }
    if (f)
        fclose(f);
}

static void record_run(const struct step *s)
{
    static struct outcome o;
    memset(&run, 0, sizeof run);
    snprintf(run.prefix, sizeof run.prefix, "%s", trial_path("trial", ""));
    begin_trial(s, "trial");
    scan(&run.before, "trial", "");
    run_words(s->words, "trial", (struct fault){0}, trial_path("", "log"), &o);
    if (o.code != 0)
        give_up("%s: exit %d: %s", s->name, o.code, o.err);
    scan(&run.after, "trial", "");
    read_log();
    remove_tree(trial_path("before", ""));
    begin_trial(s, "before");
}

static void forget_run(void)
{
    for (int i = 0; i < run.n; i++)
        free(run.ops[i].data);
    free(run.ops);
}

/* Whether the directory of a changed name was synced between it and the cut. */
static bool name_synced(int i, int cut)
{
    char dir[256];
    parent_of(run.ops[i].to[0] ? run.ops[i].to : run.ops[i].path, dir);
    const struct entry *e = find(&run.after, dir);
    for (int j = i + 1; e && j < cut; j++)
        if (run.ops[j].e.call == CALL_SYNC && run.ops[j].e.file == e->file)
            return true;
    return false;
}

static int last_sync(int64_t file, int cut)
{
    int at = -1;
    for (int j = 0; j < cut; j++)
        if (run.ops[j].e.call == CALL_SYNC && run.ops[j].e.file == file)
            at = j;
    return at;
}

/* ---- the disk afterwards --------------------------------------------------------------------- */

static void names_after(struct tree *t, int cut, enum mode mode, uint64_t *random)
{
    int pending = 0, keep = 0;
    *t = run.before;
    for (int i = 0; i < cut; i++)
        pending += changes_names(&run.ops[i]) && !name_synced(i, cut);
    keep = (int)random_below(random, (uint64_t)pending + 1);
    for (int i = 0; i < cut; i++) {
        const struct op *o = &run.ops[i];
        if (!changes_names(o))
            continue;
        bool there = name_synced(i, cut) || mode == NAMES || (mode == IN_ORDER && keep > 0) ||
                     (mode == SOME && random_below(random, 2));
        keep -= !name_synced(i, cut);
        if (there)
            apply_names(t, o);
    }
}

static void lengthen(struct buf *b, size_t n)
{
    while (b->len < n && !b->failed) {
        static const char zeros[4096];
        size_t more = n - b->len < sizeof zeros ? n - b->len : sizeof zeros;
        buf_put(b, zeros, more);
    }
}

/* Bytes of a write that reached the disk, sector by sector. */
static void apply_write(struct buf *b, const struct op *o, bool whole, uint64_t *random)
{
    size_t begin = (size_t)o->e.at, end = begin + (size_t)o->e.data_len;
    size_t sector = random_below(random, 2) ? 512 : 4096;
    uint64_t fate = whole ? 1 : random_below(random, 3); /* lost, whole, torn */
    if (fate == 0 && random_below(random, 2))
        lengthen(b, end); /* the length alone */
    for (size_t at = begin; fate > 0 && at < end;) {
        size_t next = (at / sector + 1) * sector < end ? (at / sector + 1) * sector : end;
        if (fate == 1 || random_below(random, 2)) {
            lengthen(b, next);
            memcpy(b->data + at, o->data + (at - begin), next - at);
        }
        at = next;
    }
}

static void content_after(struct buf *b, int64_t file, int cut, enum mode mode, uint64_t *random)
{
    int synced = last_sync(file, cut);
    for (int i = 0; i < cut; i++) {
        const struct op *o = &run.ops[i];
        bool whole = i < synced;
        bool there = whole || (mode > NAMES && random_below(random, 2));
        if (o->e.file != file)
            continue;
        if (o->e.call == CALL_WRITE && (whole || mode > NAMES))
            apply_write(b, o, whole, random);
        else if (o->e.call == CALL_RESERVE && there)
            lengthen(b, (size_t)o->e.at);
        else if ((o->e.call == CALL_TRUNCATE || (o->e.call == CALL_CREATE && o->e.at == 0)) &&
                 there && !b->failed) {
            b->len = b->len < (size_t)o->e.at ? b->len : (size_t)o->e.at;
            lengthen(b, (size_t)o->e.at);
        }
    }
    if (b->failed)
        give_up("no memory");
}

static void load_before(struct buf *b, int64_t file)
{
    for (int i = 0; i < run.before.n; i++)
        if (run.before.at[i].file == file && !run.before.at[i].is_dir)
            read_whole(trial_path("before", run.before.at[i].path), b);
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->path, ((const struct entry *)b)->path);
}

static void make_disk(int cut, enum mode mode, uint64_t *random)
{
    static struct tree t;
    names_after(&t, cut, mode, random);
    qsort(t.at, (size_t)t.n, sizeof *t.at, by_path); /* directories before what is in them */
    remove_tree(trial_path("trial", ""));
    for (int i = 0; i < t.n; i++) {
        char dir[256];
        struct buf b = {0};
        const char *path = trial_path("trial", t.at[i].path);
        parent_of(t.at[i].path, dir);
        if (t.at[i].path[0] && !find(&t, dir))
            continue; /* its directory is not there */
        if (t.at[i].is_dir) {
            if (mkdir(path, 0777) != 0)
                give_up("%s: cannot create", path);
            continue;
        }
        load_before(&b, t.at[i].file);
        content_after(&b, t.at[i].file, cut, mode, random);
        write_whole(path, &b);
        buf_free(&b);
    }
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void cut_case(const struct step *s, long number, struct tally *t)
{
    uint64_t random = driver.seed ^ (uint64_t)number << 20;
    char what[64];
    bool refused = false;
    make_disk((int)(number / MODES), (enum mode)(number % MODES), &random);
    snprintf(what, sizeof what, "--how cut --at %ld", number);
    /* A command that has ended has its results on the disk. */
    bool ended = number / MODES == run.n;
    const char *why = ended ? results_differ(s, "trial") : results_torn(s, "trial");
    if (!*why)
        why = recover(s, "trial", &refused);
    t->tried++;
    t->completed += !*why && !refused;
    t->refused += !*why && refused;
    if (*why)
        tally_fail(t, "trial", what, why);
}

void power_cuts(const struct step *s, struct tally *t)
{
    if (!s->out[0])
        return;
    record_run(s);
    struct sample a = sample_of(s, (long)(run.n + 1) * MODES);
    for (long i = 0; i < a.take && !driver.how; i++)
        cut_case(s, sample_at(&a, i), t);
    if (driver.how)
        cut_case(s, driver.at, t);
    forget_run();
}
