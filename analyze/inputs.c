#include "analyze/inputs.h"

#include "core/h5util.h"
#include "core/log.h"
#include "core/mem.h"

#include <dirent.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum kind { UNKNOWN, RECORDS, TRACE, TRACES, MASKS, OUTPUTS, HDF5, DIRECTORY };

static const char *const kinds[] = {
    [RECORDS] = "holds records of a replay",
    [TRACE] = "is a trace",
    [TRACES] = "is a directory of .h5 files",
    [MASKS] = "holds dumped masks",
    [OUTPUTS] = "holds dumped outputs",
    [HDF5] = "is an HDF5 file",
    [DIRECTORY] = "is a directory without records",
};

static enum kind hdf5_kind(const char *path)
{
    static const struct {
        const char *format;
        enum kind kind;
    } formats[] = {{"lacuna-trace", TRACE}, {"lacuna-masks", MASKS}, {"lacuna-outputs", OUTPUTS}};
    enum kind kind = HDF5;

    h5_lock();
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        struct err ignored = {0};
        hid_t f = H5I_INVALID_HID;
        if (h5_open_file(path, formats[i].format, 1, &f, &ignored) == 0) {
            kind = formats[i].kind;
            H5Fclose(f);
            break;
        }
    }
    h5_unlock();
    return kind;
}

int input_files(const char *dir, const char *pattern, struct str_list *out, struct err *err)
{
    struct dirent **names = NULL;
    int n = scandir(dir, &names, NULL, alphasort), rc = 0;
    for (int i = 0; i < n; i++) {
        struct buf path = {0};
        if (fnmatch(pattern, names[i]->d_name, FNM_PERIOD) == 0) {
            buf_printf(&path, "%s/%s", dir, names[i]->d_name);
            rc = rc ? rc : buf_check(&path, dir, err);
            str_list_add(out, buf_str(&path));
        }
        buf_free(&path);
        free(names[i]);
    }
    free(names);
    return rc ? rc : out->failed ? err_set(err, ERR_NOMEM, "%s: list of files", dir) : 0;
}

static bool has_files(const char *dir, const char *pattern)
{
    OWN(str_list_free) struct str_list found = {0};
    struct err ignored = {0};
    return input_files(dir, pattern, &found, &ignored) == 0 && found.n > 0;
}

static enum kind directory_kind(const char *path)
{
    return has_files(path, "records*.jsonl") ? RECORDS
           : has_files(path, "*.h5")         ? TRACES
                                             : DIRECTORY;
}

bool input_is_traces(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode) && directory_kind(path) == TRACES;
}

static enum kind kind_of(const char *path)
{
    char head[8] = "";
    struct stat st;
    if (stat(path, &st) != 0)
        return UNKNOWN;
    if (S_ISDIR(st.st_mode))
        return directory_kind(path);
    int fd = S_ISREG(st.st_mode) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t got = fd < 0 ? 0 : read(fd, head, sizeof head);
    if (fd >= 0)
        close(fd);
    if (got == sizeof head && memcmp(head, "\x89HDF\r\n\x1a\n", sizeof head) == 0)
        return hdf5_kind(path);
    return got > 0 && head[0] == '{' ? RECORDS : UNKNOWN;
}

/* How to get it, the more exactly the closer `have` is to it. */
static int refuse(const char *path, enum wanted_input want, enum kind have, struct err *err)
{
    const char *is = kinds[have], *more = have == MASKS ? " (plot mask draws these)" : "";
    if (want == WANT_TRACE)
        return err_set(err, ERR_INPUT,
                       "%s %s%s, and a trace is wanted: pass the .h5 file of lacuna capture or "
                       "import that was replayed",
                       path, is, more);
    if (want == WANT_MASKS)
        return err_set(err, ERR_INPUT,
                       "%s %s, and dumped masks are wanted: lacuna replay %s -m METHOD -o DIR "
                       "--dump-masks M.h5 writes M.h5",
                       path, is, have == TRACE || have == TRACES ? path : "T.h5");
    return err_set(err, ERR_INPUT,
                   "%s %s, and records are wanted: lacuna replay %s -m METHOD -o DIR writes them; "
                   "pass DIR",
                   path, is, have == TRACE || have == TRACES ? path : "T.h5");
}

int input_check(const char *path, enum wanted_input want, struct err *err)
{
    static const enum kind kind_wanted[] = {
        [WANT_RECORDS] = RECORDS, [WANT_TRACE] = TRACE, [WANT_MASKS] = MASKS};
    enum kind have = kind_of(path);
    if (want == WANT_TRACE && have == TRACES)
        return 0; /* of one trace it stands for that; of several, trace_open names them */
    bool left_to_others = have == UNKNOWN || have == kind_wanted[want] ||
                          (have == HDF5 && want != WANT_RECORDS) ||
                          (have == DIRECTORY && want == WANT_RECORDS);
    return left_to_others ? 0 : refuse(path, want, have, err);
}

/* n of the `of` shards of a run have no manifest; `first` is the lowest of them. */
struct absent_shards {
    int64_t n, of, first;
};

struct shard_number {
    int64_t count, index;
};

/* The shard in the name of a manifest, such as 1 of 3 in DIR/manifest.1-of-3.json. */
static bool shard_of(const char *path, struct shard_number *out)
{
    const char *name = strrchr(path, '/');
    long long i, n;
    int end = 0;
    if (sscanf(name ? name + 1 : path, "manifest.%lld-of-%lld.json%n", &i, &n, &end) != 2 || !end)
        return false;
    *out = (struct shard_number){n, i};
    return i >= 0 && i < n;
}

static int by_number(const void *a, const void *b)
{
    const struct shard_number *x = a, *y = b;
    if (x->count != y->count)
        return x->count < y->count ? -1 : 1;
    return (x->index > y->index) - (x->index < y->index);
}

/* What lacks of the run of x[0].count shards, whose numbers are ascending; *end is the first of
 * another run. */
static struct absent_shards lacking_of(const struct shard_number *x, int64_t n, int64_t *end)
{
    struct absent_shards a = {.n = x->count, .of = x->count};
    int64_t i = 0;
    for (; i < n && x[i].count == x->count; i++) {
        a.n -= i == 0 || x[i].index != x[i - 1].index; /* several directories may have it */
        a.first += x[i].index == a.first;
    }
    *end = i;
    return a;
}

/* What these manifests lack, by the number of shards that lacks fewest. */
static int lacking(const struct str_list *manifests, struct absent_shards *least, struct err *err)
{
    OWN(free_at) struct shard_number *x = NULL;
    int64_t n = manifests->n, length;
    *least = (struct absent_shards){0};
    PASS_ON(mem_alloc(&x, n, sizeof *x, "numbers of shards", err));
    for (int64_t k = 0; k < n; k++)
        if (!shard_of(manifests->items[k], x + k))
            n = 0; /* of an undivided run */
    qsort(x, (size_t)n, sizeof *x, by_number);
    for (int64_t i = 0; i < n; i += length) {
        struct absent_shards a = lacking_of(x + i, n - i, &length);
        if (i == 0 || a.n < least->n)
            *least = a;
    }
    return 0;
}

int shards_warn_absent(const struct str_list *dirs, const char *so, struct err *err)
{
    OWN(str_list_free) struct str_list open = {0}, found = {0};
    struct absent_shards a = {0};
    const char *dir = NULL;
    for (int64_t d = 0; d < dirs->n; d++) {
        str_list_free(&found);
        PASS_ON(input_files(dirs->items[d], "manifest*.json", &found, err));
        PASS_ON(lacking(&found, &a, err));
        dir = dir || !a.n ? dir : dirs->items[d];
        for (int64_t k = 0; a.n && k < found.n; k++)
            str_list_add(&open, found.items[k]);
    }
    if (open.failed)
        return err_set(err, ERR_NOMEM, "list of shards: out of memory");
    PASS_ON(lacking(&open, &a, err));
    if (a.n == 1)
        log_warn("%s: shard %lld of %lld has not been started there%s", dir, (long long)a.first,
                 (long long)a.of, so);
    else if (a.n)
        log_warn("%s: %lld of %lld shards, such as %lld, have not been started there%s", dir,
                 (long long)a.n, (long long)a.of, (long long)a.first, so);
    return 0;
}
