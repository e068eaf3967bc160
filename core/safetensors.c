/*
 * safetensors.c - checkpoints in the safetensors format, read with pread.
 *
 * A file is a little-endian u64 N, N bytes of JSON (an object: name -> dtype, shape, data_offsets)
 * and the data. The tensors must tile the data exactly: sorted by offset, the first begins at 0,
 * each begins where the one before ended, and the last ends at the end of the file. A file that was
 * cut, padded or edited by hand is therefore refused when it is opened. If a file shrinks
 * afterwards, the read fails; files are never mapped, so there is no SIGBUS.
 */
#include "core/safetensors.h"

#include "core/buf.h"
#include "core/fileio.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEADER_MAX 100000000 /* limit of the reference implementation */

struct shard {
    char *path;
    int fd;
    int64_t size, data; /* bytes of the file, offset of its data */
    json_t *metadata;   /* owned: strings; or NULL */
};

struct st_file {
    char *path; /* what the caller opened, for messages */
    struct shard *shards;
    int64_t n_shards;
    struct st_tensor *tensors; /* sorted by name; names are owned */
    int64_t n, cap;
};

/* ---- element types of the format ------------------------------------------------------------ */

static const struct {
    const char *name;
    int bits;
    enum dtype dtype;
} st_types[] = {
    {"F32", 32, DT_F32},         {"BF16", 16, DT_BF16},   {"F16", 16, DT_F16},
    {"F64", 64, DT_F64},         {"I8", 8, DT_I8},        {"U8", 8, DT_U8},
    {"I16", 16, DT_I16},         {"U16", 16, DT_U16},     {"I32", 32, DT_I32},
    {"U32", 32, DT_U32},         {"I64", 64, DT_I64},     {"U64", 64, DT_U64},
    {"BOOL", 8, DT_BOOL},        {"C64", 64, DT_NONE},    {"F8_E4M3", 8, DT_NONE},
    {"F8_E5M2", 8, DT_NONE},     {"F8_E8M0", 8, DT_NONE}, {"F8_E4M3FNUZ", 8, DT_NONE},
    {"F8_E5M2FNUZ", 8, DT_NONE}, {"F6_E2M3", 6, DT_NONE}, {"F6_E3M2", 6, DT_NONE},
    {"F4", 4, DT_NONE},
};

static int find_type(const char *name)
{
    for (size_t i = 0; i < sizeof st_types / sizeof *st_types; i++)
        if (!strcmp(name, st_types[i].name))
            return (int)i;
    return -1;
}

static const char *type_name(enum dtype t)
{
    for (size_t i = 0; i < sizeof st_types / sizeof *st_types; i++)
        if (st_types[i].dtype == t && t != DT_NONE)
            return st_types[i].name;
    return NULL;
}

static void shape_text(int ndim, const int64_t *shape, char *out, size_t size)
{
    size_t used = (size_t)snprintf(out, size, "[");
    for (int i = 0; i < ndim && used < size; i++)
        used +=
            (size_t)snprintf(out + used, size - used, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (used < size)
        snprintf(out + used, size - used, "]");
}

/* ---- one entry of the header ---------------------------------------------------------------- */

static int entry_shape(const json_t *shape, const char *path, const char *name, struct st_tensor *t,
                       struct err *err)
{
    if (json_array_size(shape) > ST_MAX_DIMS)
        return err_set(err, ERR_INPUT, "%s: tensor '%s' has %zu dimensions, at most %d are read",
                       path, name, json_array_size(shape), ST_MAX_DIMS);
    t->ndim = (int)json_array_size(shape);
    t->count = 1;
    for (int i = 0; i < t->ndim; i++) {
        const json_t *n = json_array_get(shape, (size_t)i);
        t->shape[i] = json_integer_value(n);
        if (!json_is_integer(n) || t->shape[i] < 0)
            return err_set(err, ERR_INPUT,
                           "%s: tensor '%s': a dimension of 'shape' must be a whole number from 0 "
                           "on",
                           path, name);
        if (!mul_ok(t->count, t->shape[i], &t->count))
            return err_set(err, ERR_INPUT,
                           "%s: tensor '%s': the product of its shape overflows 64 bits", path,
                           name);
    }
    return 0;
}

static int entry_type(const char *dtype, const char *path, const char *name, struct st_tensor *t,
                      struct err *err)
{
    int k = find_type(dtype);
    int64_t bits;
    if (k < 0)
        return err_set(err, ERR_INPUT, "%s: tensor '%s': unknown dtype '%s'", path, name, dtype);
    t->dtype = st_types[k].dtype;
    snprintf(t->dtype_text, sizeof t->dtype_text, "%s", st_types[k].name);
    if (!mul_ok(t->count, st_types[k].bits, &bits))
        return err_set(err, ERR_INPUT, "%s: tensor '%s': its size in bits overflows 64 bits", path,
                       name);
    if (bits % 8)
        return err_set(err, ERR_INPUT,
                       "%s: tensor '%s': %lld elements of %s are not a whole number of bytes", path,
                       name, (long long)t->count, t->dtype_text);
    t->bytes = bits / 8;
    return 0;
}

/* dtype, shape and data_offsets of one tensor; t->offset is relative to the data. */
static int parse_entry(const json_t *e, const char *path, const char *name, struct st_tensor *t,
                       struct err *err)
{
    const char *dtype;
    json_t *shape;
    json_int_t begin, end;
    if (json_unpack((json_t *)(uintptr_t)e, "{s:s, s:o, s:[I, I!]}", "dtype", &dtype, "shape",
                    &shape, "data_offsets", &begin, &end) != 0 ||
        !json_is_array(shape) || begin < 0)
        return err_set(
            err, ERR_INPUT,
            "%s: tensor '%s' is not {\"dtype\": TYPE, \"shape\": [N, ...], \"data_offsets\": "
            "[BEGIN, END]}",
            path, name);
    t->offset = begin;
    PASS_ON(entry_shape(shape, path, name, t, err));
    PASS_ON(entry_type(dtype, path, name, t, err));
    if (end < begin)
        return err_set(err, ERR_INPUT,
                       "%s: tensor '%s': data_offsets end (%lld) before they begin (%lld)", path,
                       name, (long long)end, (long long)begin);
    if (end - begin != t->bytes)
        return err_set(
            err, ERR_INPUT,
            "%s: tensor '%s': its shape and dtype %s need %lld bytes, data_offsets span %lld", path,
            name, t->dtype_text, (long long)t->bytes, (long long)(end - begin));
    return 0;
}

/* ---- one file ------------------------------------------------------------------------------- */

static int read_at(const struct shard *s, int64_t offset, void *dst, int64_t n, struct err *err)
{
    return io_read_at(s->fd, s->path, s->size, offset, dst, n, err);
}

static int open_shard(struct shard *s, const char *path, struct err *err)
{
    s->path = strdup(path);
    if (!s->path)
        return err_set(err, ERR_NOMEM, "%s: out of memory", path);
    return io_open(path, &s->fd, &s->size, err);
}

/* Length of the JSON text and offset of the data. */
static int read_header_size(struct shard *s, int64_t *len, struct err *err)
{
    unsigned char b[8];
    uint64_t n;
    if (s->size < 8)
        return err_set(err, ERR_INPUT,
                       "%s: %lld bytes are too few for a safetensors file (at least 8)", s->path,
                       (long long)s->size);
    PASS_ON(read_at(s, 0, b, 8, err));
    n = little_endian(b, 8);
    if (n > HEADER_MAX)
        return err_set(err, ERR_INPUT,
                       "%s: header of %llu bytes, at most %d are allowed (not a safetensors file?)",
                       s->path, (unsigned long long)n, HEADER_MAX);
    if ((int64_t)n > s->size - 8)
        return err_set(err, ERR_INPUT,
                       "%s: header of %llu bytes goes past the end of the file (%lld bytes)",
                       s->path, (unsigned long long)n, (long long)s->size);
    *len = (int64_t)n;
    s->data = 8 + (int64_t)n;
    return 0;
}

/* The header as a JSON object. Only spaces may follow it (that is how writers align the data). */
static int read_header(struct shard *s, json_t **out, struct err *err)
{
    OWN(free_at) char *text = NULL;
    int64_t len = 0;
    PASS_ON(read_header_size(s, &len, err));
    PASS_ON(mem_alloc(&text, len + 1, 1, s->path, err));
    PASS_ON(read_at(s, 8, text, len, err));
    if (len == 0 || text[0] != '{')
        return err_set(err, ERR_INPUT, "%s: the header must begin with '{', found byte 0x%02x",
                       s->path, len ? (unsigned char)text[0] : 0u);
    while (text[len - 1] == ' ')
        len--;
    if (text[len - 1] != '}')
        return err_set(err, ERR_INPUT,
                       "%s: the header must end with '}' and spaces, found byte 0x%02x", s->path,
                       (unsigned char)text[len - 1]);
    return json_read_foreign_text(text, (size_t)len, s->path, out, err);
}

static int check_metadata(const json_t *meta, const char *path, struct err *err)
{
    if (!json_is_object(meta))
        return err_set(err, ERR_INPUT, "%s: '__metadata__' must be an object", path);
    json_t *m = (json_t *)meta; /* jansson's iterators are not const-correct */
    for (void *it = json_object_iter(m); it; it = json_object_iter_next(m, it))
        if (!json_is_string(json_object_iter_value(it)))
            return err_set(err, ERR_INPUT, "%s: '__metadata__' key '%s' must be a string", path,
                           json_object_iter_key(it));
    return 0;
}

static int by_offset(const void *a, const void *b)
{
    const struct st_tensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* The tensors t[0..n) of one shard tile its data without hole or overlap; offsets become absolute.
 */
static int check_tiling(struct shard *s, struct st_tensor *t, int64_t n, struct err *err)
{
    int64_t end = 0;
    if (n > 1)
        qsort(t, (size_t)n, sizeof *t, by_offset);
    for (int64_t i = 0; i < n; i++) {
        if (t[i].offset != end)
            return err_set(err, ERR_INPUT, "%s: tensor '%s' begins at %lld, expected %lld (%s)",
                           s->path, t[i].name, (long long)t[i].offset, (long long)end,
                           t[i].offset > end ? "a hole before it" : "it overlaps the one before");
        end = t[i].offset + t[i].bytes; /* no overflow: both come from one checked range */
        t[i].offset += s->data;
    }
    if (end != s->size - s->data)
        return err_set(err, ERR_INPUT,
                       "%s: the tensors need %lld bytes of data, the file has %lld (%s)", s->path,
                       (long long)end, (long long)(s->size - s->data),
                       end > s->size - s->data ? "it was cut short" : "extra bytes at its end");
    return 0;
}

/* Append the tensors of an open shard's header to f. */
static int add_tensors(struct st_file *f, int shard, const json_t *header, struct err *err)
{
    const char *path = f->shards[shard].path, *name;
    json_t *e;
    int64_t first = f->n;
    void *it;
    for (it = json_object_iter((json_t *)header); it;
         it = json_object_iter_next((json_t *)header, it)) {
        struct st_tensor t = {.shard = shard};
        name = json_object_iter_key(it);
        e = json_object_iter_value(it);
        PASS_ON(!strcmp(name, "__metadata__") ? check_metadata(e, path, err)
                                              : parse_entry(e, path, name, &t, err));
        if (!strcmp(name, "__metadata__"))
            continue;
        PASS_ON(mem_grow(&f->tensors, &f->cap, f->n + 1, sizeof t, path, err));
        if (!(t.name = strdup(name)))
            return err_set(err, ERR_NOMEM, "%s: out of memory", path);
        f->tensors[f->n++] = t;
    }
    return check_tiling(&f->shards[shard], f->tensors + first, f->n - first, err);
}

static int add_file(struct st_file *f, const char *path, struct err *err)
{
    OWN(json_decrefp) json_t *header = NULL;
    int k = (int)f->n_shards;
    f->shards[k].fd = -1;
    f->n_shards++;
    PASS_ON(open_shard(&f->shards[k], path, err));
    PASS_ON(read_header(&f->shards[k], &header, err));
    PASS_ON(add_tensors(f, k, header, err));
    f->shards[k].metadata = json_incref(json_object_get(header, "__metadata__"));
    return 0;
}

int st_metadata(const struct st_file *f, const char *key, const char **value, struct err *err)
{
    const char *from = NULL;
    *value = NULL;
    for (int64_t i = 0; i < f->n_shards; i++) {
        const struct shard *s = &f->shards[i];
        const char *text = json_string_value(json_object_get(s->metadata, key));
        if (text && *value && strcmp(text, *value) != 0)
            return err_set(err, ERR_INPUT, "'__metadata__' says %s = '%s' in %s, '%s' in %s", key,
                           *value, from, text, s->path);
        if (text && !*value) {
            *value = text;
            from = s->path;
        }
    }
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct st_tensor *)a)->name, ((const struct st_tensor *)b)->name);
}

/* Sort by name; one name must not occur in two shards (inside one, the JSON parser saw to it). */
static int sort_tensors(struct st_file *f, struct err *err)
{
    if (f->n > 1)
        qsort(f->tensors, (size_t)f->n, sizeof *f->tensors, by_name);
    for (int64_t i = 1; i < f->n; i++) {
        if (strcmp(f->tensors[i - 1].name, f->tensors[i].name) != 0)
            continue;
        if (f->tensors[i - 1].shard == f->tensors[i].shard)
            return err_set(err, ERR_INPUT, "%s: tensor '%s' is there twice", f->path,
                           f->tensors[i].name);
        return err_set(err, ERR_INPUT, "%s: tensor '%s' is in two shards, %s and %s", f->path,
                       f->tensors[i].name, f->shards[f->tensors[i - 1].shard].path,
                       f->shards[f->tensors[i].shard].path);
    }
    return 0;
}

static int new_file(const char *path, int64_t shards, struct st_file **out, struct err *err)
{
    OWN(st_close) struct st_file *f = NULL;
    PASS_ON(mem_zalloc(&f, 1, sizeof *f, path, err));
    PASS_ON(mem_zalloc(&f->shards, shards, sizeof *f->shards, path, err));
    PASS_ON(mem_dup(&f->path, path, path, err));
    *out = HAND_OVER(f);
    return 0;
}

void st_close(struct st_file **pf)
{
    struct st_file *f = *pf;
    if (!f)
        return;
    for (int64_t i = 0; i < f->n_shards; i++) {
        if (f->shards[i].fd >= 0)
            close(f->shards[i].fd);
        free(f->shards[i].path);
        json_decref(f->shards[i].metadata);
    }
    for (int64_t i = 0; i < f->n; i++)
        free((char *)f->tensors[i].name);
    free(f->tensors);
    free(f->shards);
    free(f->path);
    free(f);
    *pf = NULL;
}

/* ---- look-up and reading -------------------------------------------------------------------- */

int64_t st_count(const struct st_file *f)
{
    return f->n;
}

const struct st_tensor *st_at(const struct st_file *f, int64_t i)
{
    return &f->tensors[i];
}

const struct st_tensor *st_find(const struct st_file *f, const char *name)
{
    struct st_tensor key = {.name = name};
    return f->n ? bsearch(&key, f->tensors, (size_t)f->n, sizeof key, by_name) : NULL;
}

int st_require(const struct st_file *f, const char *name, int ndim, const int64_t *shape,
               const struct st_tensor **out, struct err *err)
{
    const struct st_tensor *t = st_find(f, name);
    if (!t)
        return err_set(err, ERR_INPUT, "%s: tensor '%s' is missing", f->path, name);
    if (ndim >= 0 &&
        (t->ndim != ndim || (ndim > 0 && memcmp(t->shape, shape, (size_t)ndim * sizeof *shape)))) {
        char want[200], found[200];
        shape_text(ndim, shape, want, sizeof want);
        shape_text(t->ndim, t->shape, found, sizeof found);
        return err_set(err, ERR_INPUT, "%s: tensor '%s': expected shape %s, found %s", f->path,
                       name, want, found);
    }
    *out = t;
    return 0;
}

static int check_range(const struct st_file *f, const struct st_tensor *t, int64_t first, int64_t n,
                       struct err *err)
{
    if (first < 0 || n < 0 || first > t->count || n > t->count - first)
        return err_set(err, ERR_RUN, "%s: tensor '%s': elements %lld + %lld of %lld", f->path,
                       t->name, (long long)first, (long long)n, (long long)t->count);
    return 0;
}

/* Bytes per element; fails for types narrower than a byte. */
static int element_size(const struct st_file *f, const struct st_tensor *t, int64_t *size,
                        struct err *err)
{
    int bits = st_types[find_type(t->dtype_text)].bits;
    if (bits % 8)
        return err_set(err, ERR_INPUT, "%s: tensor '%s': elements of type %s cannot be read singly",
                       f->path, t->name, t->dtype_text);
    *size = bits / 8;
    return 0;
}

enum { CHUNK = 1 << 16 }; /* elements converted at a time */

/* The numbers of block b that are among [first, first + n). */
static void decode_block(const struct st_blocks *k, const uint8_t *raw, int64_t b, int64_t first,
                         int64_t n, float *dst)
{
    int64_t at = b * k->count - first;
    float all[ST_BLOCK_MAX];
    if (at >= 0 && at + k->count <= n) {
        k->decode(raw, dst + at);
        return;
    }
    k->decode(raw, all);
    for (int i = 0; i < k->count; i++)
        if (at + i >= 0 && at + i < n)
            dst[at + i] = all[i];
}

static int read_blocks(const struct st_file *f, const struct st_tensor *t, int64_t first, int64_t n,
                       float *dst, struct err *err)
{
    const struct st_blocks *k = t->blocks;
    int64_t end = (first + n + k->count - 1) / k->count, step = CHUNK / k->count;
    OWN(free_at) uint8_t *raw = NULL;
    PASS_ON(mem_alloc(&raw, step, (size_t)k->bytes, t->name, err));
    for (int64_t b = first / k->count; b < end; b += step) {
        int64_t m = end - b < step ? end - b : step;
        PASS_ON(read_at(&f->shards[t->shard], t->offset + b * k->bytes, raw, m * k->bytes, err));
        for (int64_t i = 0; i < m; i++)
            decode_block(k, raw + i * k->bytes, b + i, first, n, dst);
    }
    return 0;
}

int st_read_raw(const struct st_file *f, const struct st_tensor *t, int64_t first, int64_t n,
                void *dst, struct err *err)
{
    int64_t size = 0;
    int rc = 0;
    TRY(check_range(f, t, first, n, err));
    if (t->blocks) {
        TRY(read_blocks(f, t, first, n, dst, err));
    } else {
        TRY(element_size(f, t, &size, err));
        TRY(read_at(&f->shards[t->shard], t->offset + first * size, dst, n * size, err));
    }
out:
    if (rc)
        err_prefix(err, "tensor '%s'", t->name);
    return rc;
}

int st_read_f32(const struct st_file *f, const struct st_tensor *t, int64_t first, int64_t n,
                float *dst, struct err *err)
{
    OWN(free_at) void *raw = NULL;
    if (t->dtype == DT_F32)
        return st_read_raw(f, t, first, n, dst, err);
    if (dtype_to_f32(t->dtype, dst, dst, 0) != 0)
        return err_set(err, ERR_INPUT, "%s: tensor '%s': type %s cannot be read as float32",
                       f->path, t->name, t->dtype_text);
    PASS_ON(
        mem_alloc(&raw, n < CHUNK ? (n < 0 ? 0 : n) : CHUNK, dtype_size(t->dtype), t->name, err));
    for (int64_t i = 0; i < n || i == 0; i += CHUNK) {
        int64_t m = n - i < CHUNK ? n - i : CHUNK;
        PASS_ON(st_read_raw(f, t, first + i, m, raw, err));
        dtype_to_f32(t->dtype, raw, dst + i, m);
    }
    return 0;
}

int st_read_i64(const struct st_file *f, const struct st_tensor *t, int64_t first, int64_t n,
                int64_t *dst, struct err *err)
{
    OWN(free_at) unsigned char *raw = NULL;
    size_t size = dtype_size(t->dtype);
    if (!dtype_is_integer(t->dtype) || t->dtype == DT_U64)
        return err_set(err, ERR_INPUT, "%s: tensor '%s': expected an integer type, found %s",
                       f->path, t->name, t->dtype_text);
    PASS_ON(mem_alloc(&raw, n < CHUNK ? (n < 0 ? 0 : n) : CHUNK, size, t->name, err));
    for (int64_t i = 0; i < n || i == 0; i += CHUNK) {
        int64_t m = n - i < CHUNK ? n - i : CHUNK;
        PASS_ON(st_read_raw(f, t, first + i, m, raw, err));
        for (int64_t k = 0; k < m; k++)
            dst[i + k] = dtype_i64(t->dtype, raw + (size_t)k * size);
    }
    return 0;
}

int st_content_id(const struct st_file *f, char text[40], struct err *err)
{
    OWN(hash_free_at) struct hash_state *h = NULL;
    OWN(free_at) char *raw = NULL;
    const int64_t step = 4 << 20;
    PASS_ON(hash_new(&h, err));
    PASS_ON(mem_alloc(&raw, step, 1, f->path, err));
    for (int64_t i = 0; i < f->n; i++) {
        const struct st_tensor *t = &f->tensors[i];
        char shape[200];
        shape_text(t->ndim, t->shape, shape, sizeof shape);
        hash_update(h, t->name, strlen(t->name) + 1);
        hash_update(h, t->dtype_text, strlen(t->dtype_text) + 1);
        hash_update(h, shape, strlen(shape) + 1);
        for (int64_t at = 0; at < t->bytes; at += step) {
            int64_t m = t->bytes - at < step ? t->bytes - at : step;
            PASS_ON(read_at(&f->shards[t->shard], t->offset + at, raw, m, err));
            hash_update(h, raw, (size_t)m);
        }
    }
    hash_text(hash_digest(h), text);
    return 0;
}

/* ---- checkpoints ----------------------------------------------------------------------------
 *
 * <stem>.safetensors.index.json names for every tensor the file that holds it. The file names come
 * from outside, so only plain names of files beside the index are followed. metadata.total_size is
 * advice, and not read. */

#define INDEX_MAX (64 << 20) /* bytes */
#define SHARDS_MAX 4096

/* A shard lies beside its index: a plain file name that ends in .safetensors. */
static int check_shard_name(const char *index, const char *tensor, const json_t *v, struct err *err)
{
    if (!json_is_string(v))
        return err_set(err, ERR_INPUT, "%s: weight_map of '%s' must be a file name (a string)",
                       index, tensor);
    const char *s = json_string_value(v);
    size_t len = json_string_length(v);
    if (strlen(s) != len || strchr(s, '/') || strchr(s, '\\') || strstr(s, ".."))
        return err_set(err, ERR_INPUT,
                       "%s: weight_map of '%s': '%s' must be a file name without a path", index,
                       tensor, s);
    if (len <= 12 || strcmp(s + len - 12, ".safetensors") != 0)
        return err_set(err, ERR_INPUT, "%s: weight_map of '%s': '%s' must end in .safetensors",
                       index, tensor, s);
    return 0;
}

static int by_string(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Sorted unique file names of the map; *names is malloc'd, the strings are borrowed from it. */
static int shard_names(const char *index, const json_t *map, const char ***names, int64_t *n,
                       struct err *err)
{
    OWN(free_at) const char **list = NULL;
    int64_t total = (int64_t)json_object_size(map), kept = 0, i = 0;
    PASS_ON(mem_alloc(&list, total, sizeof *list, index, err));
    for (void *it = json_object_iter((json_t *)map); it;
         it = json_object_iter_next((json_t *)map, it)) {
        PASS_ON(check_shard_name(index, json_object_iter_key(it), json_object_iter_value(it), err));
        list[i++] = json_string_value(json_object_iter_value(it));
    }
    if (total > 1)
        qsort(list, (size_t)total, sizeof *list, by_string);
    for (i = 0; i < total; i++)
        if (i == 0 || strcmp(list[i], list[kept - 1]) != 0)
            list[kept++] = list[i];
    if (kept == 0)
        return err_set(err, ERR_INPUT, "%s: weight_map names no tensor", index);
    if (kept > SHARDS_MAX)
        return err_set(err, ERR_INPUT, "%s: %lld shards, at most %d are read", index,
                       (long long)kept, SHARDS_MAX);
    *names = list;
    *n = kept;
    list = NULL;
    return 0;
}

/* Every tensor of the map is in the shard that the map names. */
static int check_map(const struct st_file *f, const char *index, const json_t *map, struct err *err)
{
    for (void *it = json_object_iter((json_t *)map); it;
         it = json_object_iter_next((json_t *)map, it)) {
        const char *name = json_object_iter_key(it);
        const char *shard = json_string_value(json_object_iter_value(it));
        const struct st_tensor *t = st_find(f, name);
        if (!t)
            return err_set(err, ERR_INPUT, "%s: tensor '%s' is not in its shard %s", index, name,
                           shard);
        const char *path = f->shards[t->shard].path, *base = strrchr(path, '/');
        if (strcmp(base ? base + 1 : path, shard) != 0)
            return err_set(err, ERR_INPUT, "%s: tensor '%s' is in %s, not in its shard %s", index,
                           name, path, shard);
    }
    if (f->n != (int64_t)json_object_size(map))
        log_warn("%s: lists %zu tensors, its shards hold %lld", index, json_object_size(map),
                 (long long)f->n);
    return 0;
}

static int open_index(const char *dir, const char *index, struct st_file **out, struct err *err)
{
    OWN(st_close) struct st_file *f = NULL;
    OWN(json_decrefp) json_t *doc = NULL;
    OWN(free_at) const char **names = NULL;
    int64_t n = 0;
    OWN(buf_free) struct buf path = {0};
    PASS_ON(json_read_foreign(index, INDEX_MAX, &doc, err));
    const json_t *map = json_object_get(doc, "weight_map");
    if (!json_is_object(map))
        return err_set(err, ERR_INPUT,
                       "%s: 'weight_map' must be an object (tensor name -> file name)", index);
    PASS_ON(shard_names(index, map, &names, &n, err));
    PASS_ON(new_file(dir, n, &f, err));
    for (int64_t i = 0; i < n; i++) {
        buf_reset(&path);
        buf_printf(&path, "%s/%s", dir, names[i]);
        PASS_ON(buf_check(&path, index, err));
        int rc = add_file(f, buf_str(&path), err);
        if (rc)
            return err_prefix(err, "%s: shard %s", index, names[i]), rc;
    }
    PASS_ON(sort_tensors(f, err));
    PASS_ON(check_map(f, index, map, err));
    *out = HAND_OVER(f);
    return 0;
}

int st_open(const char *path, struct st_file **out, struct err *err)
{
    OWN(st_close) struct st_file *f = NULL;
    PASS_ON(new_file(path, 1, &f, err));
    PASS_ON(add_file(f, path, err));
    PASS_ON(sort_tensors(f, err));
    *out = HAND_OVER(f);
    return 0;
}

static int check_placed(const struct st_file *f, struct err *err)
{
    const struct st_tensor *before = NULL;
    for (int64_t i = 0; i < f->n; before = &f->tensors[i++]) {
        const struct st_tensor *t = &f->tensors[i];
        if (t->offset < 0 || t->bytes < 0 || t->offset > f->shards[0].size - t->bytes)
            return err_set(err, ERR_INPUT,
                           "%s: tensor '%s': its %lld bytes from %lld on go past the end of the "
                           "file (%lld bytes): it was cut short",
                           f->path, t->name, (long long)t->bytes, (long long)t->offset,
                           (long long)f->shards[0].size);
        if (before && t->offset < before->offset + before->bytes)
            return err_set(err, ERR_INPUT, "%s: tensors '%s' and '%s' overlap", f->path,
                           before->name, t->name);
    }
    return 0;
}

int st_adopt(const char *path, const struct st_tensor *tensors, int64_t n, struct st_file **out,
             struct err *err)
{
    OWN(st_close) struct st_file *f = NULL;
    PASS_ON(new_file(path, 1, &f, err));
    f->n_shards = 1;
    f->shards[0].fd = -1;
    PASS_ON(open_shard(&f->shards[0], path, err));
    PASS_ON(mem_grow(&f->tensors, &f->cap, n, sizeof *f->tensors, path, err));
    for (; f->n < n; f->n++) {
        f->tensors[f->n] = tensors[f->n];
        PASS_ON(mem_dup(&f->tensors[f->n].name, tensors[f->n].name, path, err));
    }
    if (n > 1)
        qsort(f->tensors, (size_t)n, sizeof *f->tensors, by_offset);
    PASS_ON(check_placed(f, err));
    PASS_ON(sort_tensors(f, err));
    *out = HAND_OVER(f);
    return 0;
}

static bool is_index(const char *path)
{
    size_t len = strlen(path);
    return len > 11 && strcmp(path + len - 11, ".index.json") == 0;
}

static int open_index_path(const char *index, struct st_file **out, struct err *err)
{
    const char *slash = strrchr(index, '/');
    OWN(free_at) char *dir = slash ? strndup(index, (size_t)(slash - index)) : strdup(".");
    return dir ? open_index(dir, index, out, err) : err_set(err, ERR_NOMEM, "%s", index);
}

int st_open_all(const char *const *paths, int64_t n, struct st_file **out, struct err *err)
{
    OWN(st_close) struct st_file *f = NULL;
    if (n == 1 && is_index(paths[0]))
        return open_index_path(paths[0], out, err);
    if (n > SHARDS_MAX)
        return err_set(err, ERR_USAGE, "%lld files, at most %d are read", (long long)n, SHARDS_MAX);
    PASS_ON(new_file(paths[0], n, &f, err));
    for (int64_t i = 0; i < n; i++) {
        if (is_index(paths[i]))
            return err_set(err, ERR_USAGE, "%s: an index stands alone; it names its files",
                           paths[i]);
        PASS_ON(add_file(f, paths[i], err));
    }
    PASS_ON(sort_tensors(f, err));
    *out = HAND_OVER(f);
    return 0;
}

int st_open_dir(const char *dir, const char *stem, struct st_file **out, struct err *err)
{
    OWN(buf_free) struct buf index = {0}, single = {0};
    /* diffusers looks for the index first, transformers for the file. */
    bool sharded, whole, index_first = strcmp(stem, "model") != 0;
    buf_printf(&index, "%s/%s.safetensors.index.json", dir, stem);
    buf_printf(&single, "%s/%s.safetensors", dir, stem);
    PASS_ON(buf_check(&index, dir, err));
    PASS_ON(buf_check(&single, dir, err));
    PASS_ON(io_exists(buf_str(&index), &sharded, err));
    PASS_ON(io_exists(buf_str(&single), &whole, err));
    if (sharded && whole)
        log_warn("%s: both %s.safetensors and its index are there; the %s is taken", dir, stem,
                 index_first ? "index" : "file");
    if (sharded && (index_first || !whole))
        return open_index(dir, buf_str(&index), out, err);
    else if (whole)
        return st_open(buf_str(&single), out, err);
    else
        return err_set(err, ERR_INPUT,
                       "%s: neither %s.safetensors.index.json nor %s.safetensors is there", dir,
                       stem, stem);
}

/* ---- writing --------------------------------------------------------------------------------- */

static int out_by_name(const void *a, const void *b)
{
    return strcmp((*(const struct st_out *const *)a)->name,
                  (*(const struct st_out *const *)b)->name);
}

/* Wide types first, so that every tensor is aligned to its element size; then by name. */
static int by_size_name(const void *a, const void *b)
{
    const struct st_out *x = *(const struct st_out *const *)a,
                        *y = *(const struct st_out *const *)b;
    size_t sx = dtype_size(x->dtype), sy = dtype_size(y->dtype);
    return sx != sy ? (sx < sy ? 1 : -1) : strcmp(x->name, y->name);
}

static int out_bytes(const char *path, const struct st_out *t, int64_t *bytes, struct err *err)
{
    int64_t n = (int64_t)dtype_size(t->dtype);
    bool ok = n > 0 && t->ndim >= 0 && t->ndim <= ST_MAX_DIMS;
    for (int i = 0; ok && i < t->ndim; i++)
        ok = mul_ok(n, t->shape[i], &n);
    if (!ok)
        return err_set(err, ERR_RUN, "%s: tensor '%s' has no valid type or shape", path, t->name);
    *bytes = n;
    return 0;
}

static int out_header(const char *path, const struct st_out **order, int64_t n, const json_t *meta,
                      struct buf *b, struct err *err)
{
    int64_t at = 0, bytes = 0;
    struct jw w;
    buf_put(b, "\0\0\0\0\0\0\0\0", 8);
    jw_init(&w, b, 0);
    jw_obj(&w);
    if (meta) {
        jw_key(&w, "__metadata__");
        jw_value(&w, meta);
    }
    for (int64_t i = 0; i < n; i++) {
        const struct st_out *t = order[i];
        PASS_ON(out_bytes(path, t, &bytes, err));
        jw_key(&w, t->name);
        jw_obj(&w);
        jw_kstr(&w, "dtype", type_name(t->dtype));
        jw_karr(&w, "shape");
        for (int k = 0; k < t->ndim; k++)
            jw_int(&w, t->shape[k]);
        jw_arr_end(&w);
        jw_karr(&w, "data_offsets");
        jw_int(&w, at);
        if (!add_ok(at, bytes, &at))
            return err_set(err, ERR_RUN, "%s: more than 2^63 bytes", path);
        jw_int(&w, at);
        jw_arr_end(&w);
        jw_obj_end(&w);
    }
    jw_obj_end(&w);
    while (b->len % 8 && !b->failed)
        buf_puts(b, " ");
    PASS_ON(buf_check(b, path, err));
    for (int i = 0; i < 8; i++)
        b->data[i] = (char)((uint64_t)(b->len - 8) >> 8 * i & 0xff);
    return 0;
}

/* Pointers to the tensors in file order; *order is malloc'd. */
static int out_order(const char *path, const struct st_out *tensors, int64_t n,
                     const struct st_out ***order, struct err *err)
{
    PASS_ON(mem_alloc(order, n, sizeof **order, path, err));
    for (int64_t i = 0; i < n; i++)
        (*order)[i] = &tensors[i];
    if (n < 2)
        return 0;
    qsort(*order, (size_t)n, sizeof **order, out_by_name);
    for (int64_t i = 1; i < n; i++)
        if (out_by_name(&(*order)[i - 1], &(*order)[i]) == 0)
            return err_set(err, ERR_RUN, "%s: two tensors are named '%s'", path, (*order)[i]->name);
    qsort(*order, (size_t)n, sizeof **order, by_size_name);
    return 0;
}

int st_write(const char *path, const struct st_out *tensors, int64_t n, struct err *err)
{
    return st_write_meta(path, tensors, n, NULL, err);
}

int st_write_meta(const char *path, const struct st_out *tensors, int64_t n, const json_t *meta,
                  struct err *err)
{
    int rc = 0;
    const struct st_out **order = NULL;
    struct buf header = {0};
    struct io_part part = {0};
    int64_t bytes;
    TRY(out_order(path, tensors, n, &order, err));
    TRY(out_header(path, order, n, meta, &header, err));
    TRY(io_part_open(&part, path, err));
    TRY(io_write(part.fd, path, header.data, (int64_t)header.len, err));
    for (int64_t i = 0; i < n; i++) {
        TRY(out_bytes(path, order[i], &bytes, err));
        TRY(io_write(part.fd, path, order[i]->data, bytes, err));
    }
out:
    rc = io_part_close(&part, rc, err);
    free(order);
    buf_free(&header);
    return rc;
}
