/*
 * trace_read.c - open a trace: read structure and metadata through HDF5 and check them against each
 * other before they are used. After that, contiguous files do not need HDF5.
 */
#include "core/trace_internal.h"

#include "core/mem.h"
#include "core/text.h"
#include "core/version.h"

#include <ctype.h>
#include <dirent.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHUNK_BYTES_MAX (64 << 20)
#define CALLS_MAX 10000000

/* ---- names that this build does not know --------------------------------------------------------
 *
 * A name in a trace that this build does not know can change what the rest means (a window, a cap
 * of the scores), so it is refused unless its group marks it as optional (doc/trace-format.md,
 * section 9). */

/* Groups of a trace; AT_STEPS is /calls, a step or a branch. */
enum place { AT_ROOT, AT_TYPES, AT_MODEL, AT_RUN, AT_VIDEO, AT_STEPS, AT_CALL, AT_AUX };

#define OPTIONAL_MAX 1024

#define LIST "optional" /* attribute: names in this group that may be ignored */

static const char *const root_attrs[] = {
    "format", "version_major", "version_minor", "tool", "complete", "content_id", NULL};
static const char *const root_links[] = {"types", "model", "run", "video", "calls", NULL};
static bool has_name(const char *const *list, const char *name)
{
    for (; *list; list++)
        if (strcmp(*list, name) == 0)
            return true;
    return false;
}

static bool is_call_field(const char *name)
{
    for (const struct h5_field *f = trace_call_fields; f->name; f++)
        if (strcmp(f->name, name) == 0)
            return true;
    return false;
}

static bool is_payload(const char *name, bool of_run)
{
    static const struct trace_meta any;
    struct trace_array a;
    char sums[32];
    for (int i = 0; i < (of_run ? RUN_ARRAYS : CALL_ARRAYS); i++) {
        of_run ? trace_run_array(i, 0, &a) : trace_call_array(&any, NULL, i, &a);
        snprintf(sums, sizeof sums, "%s_xxh3", a.name);
        if (strcmp(name, a.name) == 0 || strcmp(name, sums) == 0)
            return true;
    }
    return false;
}

static bool is_aux(const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "aux/%.40s", name);
    return is_payload(path, false);
}

static bool link_known(enum place at, const char *name)
{
    return at == AT_ROOT    ? has_name(root_links, name)
           : at == AT_TYPES ? strcmp(name, "bfloat16") == 0
           : at == AT_RUN   ? is_payload(name, true)
           : at == AT_CALL  ? is_payload(name, false) || strcmp(name, "aux") == 0
           : at == AT_AUX   ? is_aux(name)
                            : false;
}

static bool attr_known(enum place at, const char *name)
{
    static const char *const groups[] = {
        [AT_MODEL] = "model", [AT_RUN] = "run", [AT_VIDEO] = "video"};
    bool of_meta = at == AT_MODEL || at == AT_RUN || at == AT_VIDEO;
    return strcmp(name, LIST) == 0 || (at == AT_ROOT && has_name(root_attrs, name)) ||
           (at == AT_CALL && (is_call_field(name) || trace_score_has(name))) ||
           (of_meta && trace_meta_has(groups[at], name));
}

/* The format's names begin with a small letter; HDF5 itself, its high-level libraries and viewers
 * use CLASS, TITLE, NX_class, _NCProperties and the like. */
static bool attr_of_others(const char *name)
{
    return name[0] == '_' || isupper((unsigned char)name[0]);
}

/* The names that a group marks as optional, separated by spaces; "" without such a mark. */
static int optional_names(hid_t group, char list[OPTIONAL_MAX], struct err *err)
{
    list[0] = '\0';
    return h5_has_attr(group, LIST) ? h5_get_str(group, LIST, list, OPTIONAL_MAX, err) : 0;
}

/* ---- a group --------------------------------------------------------------------------------- */

struct look {
    struct trace *t;
    enum place at;
    const char *where, *optional;
    struct err *err;
    int rc;
};

static void ignore(struct look *l, const char *name)
{
    struct trace_ignored *i = &l->t->ignored;
    if (i->n++ == 0)
        snprintf(i->first, sizeof i->first, "%s/%s", strcmp(l->where, "/") == 0 ? "" : l->where,
                 name);
}

static int refuse(struct look *l, const char *kind, const char *name)
{
    return err_set(l->err, ERR_INPUT,
                   "%s: %s '%.100s' is not known to this lacuna (%s, format %d.%d) and can change "
                   "what the trace means; the file has format %d.%lld: read it with a newer "
                   "lacuna, or, if '%.100s' may be ignored, name it in the attribute '" LIST
                   "' of %s",
                   l->where, kind, name, lacuna_version(), TRACE_VERSION_MAJOR, TRACE_VERSION_MINOR,
                   TRACE_VERSION_MAJOR, (long long)l->t->minor, name, l->where);
}

static herr_t see_attr(hid_t group, const char *name, const H5A_info_t *info, void *ctx)
{
    struct look *l = ctx;
    (void)group;
    (void)info;
    if (attr_known(l->at, name) || attr_of_others(name))
        return 0;
    if (words_have(l->optional, ' ', name, strlen(name)))
        ignore(l, name);
    else
        l->rc = refuse(l, "attribute", name);
    return l->rc ? 1 : 0;
}

static int see_links(hid_t group, struct look *l)
{
    char **names = NULL;
    int64_t n = 0;
    int rc = 0;
    TRY(h5_names(group, &names, &n, l->err));
    for (int64_t i = 0; i < n; i++) {
        bool listed = words_have(l->optional, ' ', names[i], strlen(names[i]));
        /* Any other name may be a step or a branch: the paths of the calls decide. */
        if (l->at == AT_STEPS ? !listed : link_known(l->at, names[i]))
            continue;
        if (listed)
            ignore(l, names[i]);
        else
            TRY(refuse(l, "object", names[i]));
    }
out:
    h5_names_free(names, n);
    return rc;
}

/* Refuse a group that has an attribute, a dataset or a group which this build neither knows nor may
 * ignore (ERR_INPUT that names it); count in t->ignored what it may. */
static int refuse_unknown(struct trace *t, hid_t group, enum place at, struct err *err)
{
    char where[128], optional[OPTIONAL_MAX];
    struct look l = {.t = t, .at = at, .where = h5_where(group, where), .optional = optional};
    l.err = err;
    PASS_ON(optional_names(group, optional, err));
    if (H5Aiterate2(group, H5_INDEX_NAME, H5_ITER_INC, NULL, see_attr, &l) < 0)
        return h5_fail(err, ERR_INPUT, "%s: listing the attributes", where);
    PASS_ON(l.rc);
    return see_links(group, &l);
}

/* ---- directories of traces ----------------------------------------------------------------------
 *
 * Several runs of a model lie in one directory, a file each; masks and outputs of replays may lie
 * beside them. */

static int is_h5(const struct dirent *e)
{
    return e->d_name[0] != '.' && fnmatch("*.h5", e->d_name, 0) == 0;
}

static bool has_format(const char *path, const char *format)
{
    struct err ignored = {0};
    hid_t file = H5I_INVALID_HID;
    if (h5_open_file(path, format, 1, &file, &ignored) != 0)
        return false;
    h5_lock();
    H5Fclose(file);
    h5_unlock();
    return true;
}

static int add_path(const char *dir, const char *name, struct str_list *out, struct err *err)
{
    OWN(buf_free) struct buf path = {0};
    buf_printf(&path, "%s/%s", dir, name);
    PASS_ON(buf_check(&path, dir, err));
    /* Whatever is neither masks nor outputs is taken: a damaged trace is reported, not left out. */
    if (!has_format(buf_str(&path), "lacuna-masks") &&
        !has_format(buf_str(&path), "lacuna-outputs"))
        str_list_add(out, buf_str(&path));
    return 0;
}

static int list_directory(const char *dir, struct str_list *out, struct err *err)
{
    struct dirent **names = NULL;
    int64_t before = out->n;
    int rc = 0, n = scandir(dir, &names, is_h5, versionsort);
    if (n < 0)
        return err_sys(err, ERR_INPUT, "%s: cannot list the directory", dir);
    for (int i = 0; i < n; i++) {
        if (rc == 0)
            rc = add_path(dir, names[i]->d_name, out, err);
        free(names[i]);
    }
    free(names);
    if (rc == 0 && !out->failed && out->n == before)
        rc = err_set(err, ERR_INPUT, "%s: the directory holds no traces (*.h5)", dir);
    return rc;
}

static bool is_directory(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

int trace_list(char *const *args, int64_t n, struct str_list *out, struct err *err)
{
    for (int64_t i = 0; i < n; i++) {
        if (is_directory(args[i]))
            PASS_ON(list_directory(args[i], out, err));
        else
            str_list_add(out, args[i]);
    }
    if (out->failed)
        return err_set(err, ERR_NOMEM, "names of traces");
    return 0;
}

/* The one trace in a directory, malloc'd; NULL where `path` is none. Several: ERR_INPUT. */
static int only_trace(const char *path, char **only, struct err *err)
{
    OWN(str_list_free) struct str_list found = {0};
    *only = NULL;
    if (!is_directory(path))
        return 0;
    PASS_ON(trace_list(&(char *){(char *)(uintptr_t)path}, 1, &found, err));
    if (found.n > 1)
        return err_set(
            err, ERR_INPUT,
            "%s holds %lld traces, and one is wanted here: name one of them, such as %s, or put "
            "calls of one run together with lacuna trace join",
            path, (long long)found.n, found.items[0]);
    *only = found.items[0];
    found.items[0] = NULL;
    return 0;
}

/* ---- datasets -------------------------------------------------------------------------------- */

static int check_chunks(const struct h5_info *info, struct trace_array *a, struct err *err)
{
    int64_t bytes;
    for (int i = 0; i < a->ndim; i++)
        if (info->chunk[i] < 1)
            return err_set(err, ERR_INPUT, "'%s': chunk of %lld elements", a->name,
                           (long long)info->chunk[i]);
    if (a->ndim < 2 || info->chunk[0] != 1 || (a->ndim == 3 && info->chunk[2] != a->dims[2]))
        return err_set(
            err, ERR_INPUT,
            "'%s': a chunk is not rows of one head; `h5repack -l CONTI -f NONE` takes the "
            "chunks out",
            a->name);
    if (!mul_ok(info->chunk[1], a->row_bytes, &bytes) || bytes > CHUNK_BYTES_MAX)
        return err_set(err, ERR_INPUT, "'%s': chunks larger than %d bytes", a->name,
                       CHUNK_BYTES_MAX);
    if (info->nfilters != 2 || info->filter[0] != H5Z_FILTER_SHUFFLE ||
        info->filter[1] == H5Z_FILTER_SHUFFLE)
        return err_set(err, ERR_INPUT,
                       "'%s': filters are not shuffle and then zstd or deflate; `h5repack -l CONTI "
                       "-f NONE` takes them out",
                       a->name);
    a->storage = info->filter[1] == H5_FILTER_ZSTD ? TRACE_ZSTD : TRACE_GZIP;
    a->chunk_rows = info->chunk[1];
    a->offset = -1;
    return 0;
}

static int check_storage(const struct trace *t, const struct h5_info *info, struct trace_array *a,
                         struct err *err)
{
    int64_t end;
    if (info->ndim != a->ndim)
        return err_set(err, ERR_INPUT, "'%s': rank %d, expected %d", a->name, info->ndim, a->ndim);
    for (int i = 0; i < a->ndim; i++)
        if (info->dims[i] != a->dims[i])
            return err_set(err, ERR_INPUT, "'%s': dimension %d is %lld, the metadata say %lld",
                           a->name, i, (long long)info->dims[i], (long long)a->dims[i]);
    if (info->chunked && a->ndim > 1)
        return check_chunks(info, a, err);
    if (info->chunked)
        return err_set(err, ERR_INPUT, "'%s' is in chunks", a->name);
    a->storage = TRACE_CONTIGUOUS;
    a->offset = info->offset;
    if (a->offset < 0 || !add_ok(a->offset, a->bytes, &end) || end > t->file_size)
        return err_set(err, ERR_INPUT,
                       "'%s': %lld bytes at offset %lld reach past the end of the "
                       "file (%lld bytes)",
                       a->name, (long long)a->bytes, (long long)a->offset, (long long)t->file_size);
    return 0;
}

static int read_sums(hid_t group, struct trace_array *a, struct err *err)
{
    char name[32];
    OWN(free_at) uint8_t *raw = NULL;
    int64_t dims[2] = {a->slices, 16};
    snprintf(name, sizeof name, "%s_xxh3", a->name);
    PASS_ON(mem_alloc(&raw, a->slices, 16, "checksums", err));
    PASS_ON(mem_alloc(&a->sums, a->slices, sizeof *a->sums, "checksums", err));
    PASS_ON(h5_get_array(group, name, DT_U8, 2, dims, raw, err));
    for (int64_t s = 0; s < a->slices; s++)
        a->sums[s] = sum_from_bytes(raw + 16 * s);
    a->present = true;
    return 0;
}

/* `a` holds the shape that the metadata demand; the dataset must have it. */
static int open_array(const struct trace *t, hid_t group, struct trace_array *a, struct err *err)
{
    struct h5_info info;
    OWN(h5_close_at) hid_t dset = H5I_INVALID_HID;
    PASS_ON(h5_open_dataset(group, a->name, &dset, err));
    PASS_ON(h5_dataset_info(dset, a->type, &info, err));
    PASS_ON(check_storage(t, &info, a, err));
    return read_sums(group, a, err);
}

static int open_run_array(struct trace *t, hid_t group, int i, struct err *err)
{
    struct trace_array *a = &t->run[i];
    struct h5_info info;
    OWN(h5_close_at) hid_t dset = H5I_INVALID_HID;
    int64_t want = trace_run_length(&t->meta, i), n;
    trace_run_array(i, 0, a);
    if (!h5_has_link(group, a->name))
        return 0;
    PASS_ON(h5_open_dataset(group, a->name, &dset, err));
    PASS_ON(h5_dataset_info(dset, a->type, &info, err));
    n = info.dims[0];
    if (info.ndim != 1 || info.chunked || (want >= 0 && n != want))
        return err_set(err, ERR_INPUT, "/run: '%s' is not a contiguous array of %lld elements",
                       a->name, (long long)(want >= 0 ? want : n));
    if (!trace_run_array(i, n, a))
        return err_set(err, ERR_INPUT, "/run: size of '%s' overflows", a->name);
    PASS_ON(check_storage(t, &info, a, err));
    return read_sums(group, a, err);
}

/* ---- calls ----------------------------------------------------------------------------------- */

/* Shapes of the extra operands, which the datasets themselves say. */
static int read_aux(struct trace *t, hid_t call, struct aux_shape aux[AUX_COUNT], struct err *err)
{
    OWN(h5_close_at) hid_t group = H5I_INVALID_HID, dset = H5I_INVALID_HID;
    struct h5_info info;
    if (!h5_has_link(call, "aux"))
        return 0;
    PASS_ON(h5_open_group(call, "aux", &group, err));
    PASS_ON(refuse_unknown(t, group, AT_AUX, err));
    for (int i = 0; i < AUX_COUNT; i++) {
        const char *name = trace_aux_name((enum trace_aux)i);
        if (!h5_has_link(group, name))
            continue;
        PASS_ON(h5_open_dataset(group, name, &dset, err));
        PASS_ON(h5_dataset_info(dset, DT_F32, &info, err));
        if (info.ndim != 3 || info.dims[0] < 1)
            return err_set(err, ERR_INPUT, "'aux/%s' is not of heads, rows and channels", name);
        aux[i] = (struct aux_shape){info.dims[0], info.dims[1], info.dims[2]};
        h5_close(dset);
        dset = H5I_INVALID_HID;
    }
    return 0;
}

static int read_call(struct trace *t, hid_t group, const char *path, struct err *err)
{
    int rc = mem_grow(&t->calls, &t->cap_calls, t->n_calls + 1, sizeof *t->calls,
                      "calls of a trace", err);
    char expected[CALL_PATH_MAX];
    struct trace_entry *e;
    if (rc)
        return rc;
    e = &t->calls[t->n_calls++];
    memset(e, 0, sizeof *e);
    TRY(refuse_unknown(t, group, AT_CALL, err));
    TRY(h5_get_fields(group, trace_call_fields, &e->call, err));
    e->call.has_out = h5_has_link(group, "out");
    e->call.has_lse = h5_has_link(group, "lse");
    e->call.has_col_sum = h5_has_link(group, "col_sum");
    e->call.has_map = h5_has_link(group, "map_sum") || h5_has_link(group, "map_max");
    TRY(read_aux(t, group, e->call.aux, err));
    TRY(trace_score_get(group, &t->meta, &e->call.score, err));
    TRY(trace_call_check(&t->meta, &e->call, ERR_INPUT, err));
    trace_call_path(&e->call, expected);
    if (strcmp(expected, path) != 0)
        FAIL(err, ERR_INPUT, "the attributes belong to %s", expected);
    for (int i = 0; i < CALL_ARRAYS; i++) {
        trace_call_array(&t->meta, &e->call, i, &e->arr[i]);
        if (trace_call_has(&e->call, i))
            TRY(open_array(t, group, &e->arr[i], err));
    }
out:
    if (rc && err && !strstr(err->msg, path))
        err_prefix(err, "%s", path);
    return rc;
}

/* Visit the groups below /calls: depth 0 steps, 1 branches, 2 layers. */
static int walk(struct trace *t, hid_t parent, const char *path, int depth, struct err *err)
{
    char **names = NULL, child[CALL_PATH_MAX + 260], optional[OPTIONAL_MAX];
    int64_t n = 0;
    hid_t group = H5I_INVALID_HID;
    int rc = 0;
    TRY(refuse_unknown(t, parent, AT_STEPS, err));
    TRY(optional_names(parent, optional, err));
    TRY(h5_names(parent, &names, &n, err));
    for (int64_t i = 0; i < n; i++) {
        if (words_have(optional, ' ', names[i], strlen(names[i])))
            continue;
        if (strlen(path) + strlen(names[i]) + 2 > CALL_PATH_MAX || t->n_calls >= CALLS_MAX)
            FAIL(err, ERR_INPUT, "%s/%s is not part of a trace", path, names[i]);
        snprintf(child, sizeof child, "%s/%s", path, names[i]);
        TRY(h5_open_group(parent, names[i], &group, err));
        if (depth < 2)
            TRY(walk(t, group, child, depth + 1, err));
        else
            TRY(read_call(t, group, child, err));
        h5_close(group);
        group = H5I_INVALID_HID;
    }
out:
    h5_close(group);
    h5_names_free(names, n);
    return rc;
}

static int by_order(const void *a, const void *b)
{
    const struct trace_entry *x = a, *y = b;
    return (x->call.order > y->call.order) - (x->call.order < y->call.order);
}

static int read_calls(struct trace *t, struct err *err)
{
    OWN(h5_close_at) hid_t group = H5I_INVALID_HID;
    PASS_ON(h5_open_group(t->file, "calls", &group, err));
    PASS_ON(walk(t, group, "/calls", 0, err));
    if (t->n_calls > 1)
        qsort(t->calls, (size_t)t->n_calls, sizeof *t->calls, by_order);
    for (int64_t i = 1; i < t->n_calls; i++)
        if (t->calls[i].call.order == t->calls[i - 1].call.order)
            return err_set(err, ERR_INPUT, "/calls: two calls have order %d",
                           t->calls[i].call.order);
    return 0;
}

/* ---- open ------------------------------------------------------------------------------------ */

/* Positions of sampled rows: whoever uses q needs them. */
static int read_rows(struct trace *t, struct err *err)
{
    struct row_sample s = {.n = t->meta.n_q, .group = t->meta.row_group};
    if ((s.group != 0) != t->run[TRACE_ROWS].present)
        return err_set(err, ERR_INPUT, "/run: of 'row_group' and 'rows' only one is there");
    if (s.group == 0)
        return 0;
    PASS_ON(mem_alloc(&t->rows, s.n, sizeof *t->rows, "sampled rows", err));
    PASS_ON(trace_read_slice(t, -1, &t->run[TRACE_ROWS], 0, t->rows, err));
    s.at = t->rows;
    return row_sample_check(&s, t->meta.n_k, ERR_INPUT, err);
}

static int read_run(struct trace *t, struct err *err)
{
    OWN(h5_close_at) hid_t group = H5I_INVALID_HID;
    PASS_ON(h5_open_group(t->file, "run", &group, err));
    for (int i = 0; i < RUN_ARRAYS; i++)
        PASS_ON(open_run_array(t, group, i, err));
    return read_rows(t, err);
}

static int compute_id(struct trace *t, struct err *err)
{
    OWN(buf_free) struct buf b = {0};
    content_meta(&t->meta, &b);
    for (int64_t i = 0; i < t->n_calls; i++) {
        content_call(&t->calls[i].call, &b);
        for (int j = 0; j < CALL_ARRAYS; j++)
            content_array(&t->calls[i].arr[j], &b);
    }
    for (int i = 0; i < RUN_ARRAYS; i++)
        content_array(&t->run[i], &b);
    PASS_ON(buf_check(&b, "content id", err));
    hash_text(hash_bytes(buf_str(&b), b.len), t->id);
    return 0;
}

static int open_payload(struct trace *t, const char *path, struct err *err)
{
    struct stat st;

    int rc = h5_file_descriptor(t->file, &t->fd, err);
    if (rc)
        return err_prefix(err, "%s", path), rc;
    if (fstat(t->fd, &st) != 0)
        return err_sys(err, ERR_INPUT, "%s", path);
    t->file_size = st.st_size;
    return 0;
}

static bool is_packed(const struct trace *t)
{
    for (int64_t i = 0; i < t->n_calls; i++)
        for (int j = 0; j < CALL_ARRAYS; j++)
            if (t->calls[i].arr[j].present && t->calls[i].arr[j].storage != TRACE_CONTIGUOUS)
                return true;
    return false;
}

/* The committed element type, for viewers; the datasets' own types are what counts. */
static int check_types(const struct trace *t, struct err *err)
{
    OWN(h5_close_at) hid_t group = H5I_INVALID_HID;
    if (t->meta.dtype != DT_BF16)
        return 0;
    PASS_ON(h5_open_group(t->file, "types", &group, err));
    if (!h5_has_link(group, "bfloat16"))
        return err_set(err, ERR_INPUT, "/types: type 'bfloat16' is missing");
    return 0;
}

/* Everything but the calls, before a value of it is believed. */
static int check_known(struct trace *t, struct err *err)
{
    static const struct {
        const char *name;
        enum place at;
    } groups[] = {{"types", AT_TYPES}, {"model", AT_MODEL}, {"run", AT_RUN}, {"video", AT_VIDEO}};
    OWN(h5_close_at) hid_t group = H5I_INVALID_HID;

    PASS_ON(h5_get_i64(t->file, "version_minor", &t->minor, err));
    PASS_ON(refuse_unknown(t, t->file, AT_ROOT, err));
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        if (!h5_has_link(t->file, groups[i].name))
            continue;
        PASS_ON(h5_open_group(t->file, groups[i].name, &group, err));
        PASS_ON(refuse_unknown(t, group, groups[i].at, err));
        h5_close(group);
        group = H5I_INVALID_HID;
    }
    return 0;
}

static int read_structure(struct trace *t, struct err *err)
{
    PASS_ON(check_known(t, err));
    PASS_ON(trace_meta_get(t->file, &t->meta, err));
    PASS_ON(trace_meta_validate(&t->meta, ERR_INPUT, err));
    PASS_ON(check_types(t, err));
    PASS_ON(read_calls(t, err));
    PASS_ON(read_run(t, err));
    PASS_ON(h5_get_str(t->file, "content_id", t->stored_id, sizeof t->stored_id, err));
    return compute_id(t, err);
}

int trace_open_damaged(const char *path, struct trace **out, struct err *err)
{
    OWN(free_at) char *only = NULL;
    PASS_ON(only_trace(path, &only, err));
    path = only ? only : path;
    H5_LOCKED;
    OWN(trace_close) struct trace *t = NULL;
    PASS_ON(mem_zalloc(&t, 1, sizeof *t, "trace", err));
    t->fd = -1;
    t->file = H5I_INVALID_HID;
    PASS_ON(h5_open_file(path, TRACE_FORMAT, TRACE_VERSION_MAJOR, &t->file, err));
    PASS_ON(open_payload(t, path, err));
    PASS_ON(mem_dup(&t->path, path, path, err));
    int rc = read_structure(t, err);
    if (rc)
        return err_prefix(err, "%s", path), rc; /* err may be NULL */
    if (!is_packed(t)) {
        H5Fclose(t->file);
        t->file = H5I_INVALID_HID;
    }
    *out = HAND_OVER(t);
    return 0;
}

int trace_open(const char *path, struct trace **out, struct err *err)
{
    OWN(trace_close) struct trace *t = NULL;
    PASS_ON(trace_open_damaged(path, &t, err));
    if (strcmp(t->id, t->stored_id) != 0)
        return err_set(err, ERR_INPUT,
                       "%s: metadata or checksums were changed after writing: their "
                       "content id is %s, stored is '%s'; lacuna trace verify tells more",
                       path, t->id, t->stored_id);
    *out = HAND_OVER(t);
    return 0;
}

void trace_close(struct trace **tp)
{
    struct trace *t = *tp;
    if (!t)
        return;
    for (int64_t i = 0; i < t->n_calls; i++)
        for (int j = 0; j < CALL_ARRAYS; j++)
            free(t->calls[i].arr[j].sums);
    for (int i = 0; i < RUN_ARRAYS; i++)
        free(t->run[i].sums);
    free(t->rows);
    h5_lock();
    if (t->file >= 0)
        H5Fclose(t->file);
    h5_unlock();
    if (t->fd >= 0)
        close(t->fd);
    free(t->calls);
    free(t->path);
    free(t);
    *tp = NULL;
}

/* ---- questions ------------------------------------------------------------------------------- */

const struct trace_meta *trace_meta(const struct trace *t)
{
    return &t->meta;
}

bool trace_causal(const struct trace_meta *m, const struct trace_score *s)
{
    return s->causal == CAUSAL_AS_MODEL ? m->causal : s->causal == CALL_CAUSAL;
}

int64_t trace_text_valid(const struct trace_meta *m, const struct trace_score *s)
{
    return s->text_valid ? s->text_valid - 1 : m->text_valid;
}

struct trace_span trace_padding(const struct trace_meta *m, const struct trace_score *s)
{
    bool back = strcmp(m->text_place, "back") == 0;
    int64_t valid = trace_text_valid(m, s);
    return (struct trace_span){
        .first = (back ? m->n_k - m->text_tokens : 0) + valid,
        .count = m->text_tokens - valid,
    };
}

bool trace_is_padded(const struct trace *t)
{
    for (int64_t i = 0; i < t->n_calls; i++)
        if (trace_padding(&t->meta, &t->calls[i].call.score).count)
            return true;
    return false;
}

bool trace_rows(const struct trace *t, struct row_sample *s)
{
    *s = (struct row_sample){.at = t->rows, .n = t->meta.n_q, .group = t->meta.row_group};
    return t->rows != NULL;
}

struct trace_decode trace_decode(const struct trace_meta *m)
{
    if (m->decode_from == 0)
        return (struct trace_decode){0};
    return (struct trace_decode){.from = m->decode_from,
                                 .window = m->decode_from - (m->n_k - m->n_q),
                                 .steps = m->n_k - m->decode_from};
}

const char *trace_path(const struct trace *t)
{
    return t->path;
}

const char *trace_id(const struct trace *t)
{
    return t->id;
}

struct trace_ignored trace_ignored(const struct trace *t)
{
    return t->ignored;
}

int64_t trace_calls(const struct trace *t)
{
    return t->n_calls;
}

const struct trace_call *trace_call(const struct trace *t, int64_t i)
{
    return &t->calls[i].call;
}

int64_t trace_find(const struct trace *t, int step, const char *branch, int layer)
{
    for (int64_t i = 0; i < t->n_calls; i++) {
        const struct trace_call *c = &t->calls[i].call;
        if (c->step == step && c->layer == layer && strcmp(c->branch, branch) == 0)
            return i;
    }
    return -1;
}

enum trace_storage trace_storage(const struct trace *t)
{
    return t->n_calls > 0 ? t->calls[0].arr[TRACE_Q].storage : TRACE_CONTIGUOUS;
}

const char *trace_storage_name(enum trace_storage s)
{
    static const char *const names[] = {"contiguous", "zstd", "gzip"};
    return names[s];
}
