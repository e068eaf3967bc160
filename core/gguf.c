/*
 * gguf.c - the header of a GGUF file: counts, typed key-value pairs, the list of tensors.
 */
#include "core/gguf.h"

#include "core/fileio.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEADER_MAX ((int64_t)64 << 20)
#define WINDOW (1 << 16)
#define NAME_MAX_BYTES 1024
#define DEPTH_MAX 4 /* of arrays in arrays */

/* The header, read in order through a window of the file. */
struct reader {
    const char *path;
    int fd;
    int64_t size, at;   /* of the file; of the next byte */
    int64_t begin, end; /* of the window */
    uint8_t window[WINDOW];
    struct buf text;
};

/* The next n bytes. */
static int take(struct reader *r, void *dst, int64_t n, struct err *err)
{
    if (n > r->size - r->at)
        return err_set(err, ERR_INPUT, "%s: the header goes past the end of the file (%lld bytes)",
                       r->path, (long long)r->size);
    if (r->at + n > HEADER_MAX)
        return err_set(err, ERR_INPUT, "%s: a header of more than %d MiB", r->path,
                       (int)(HEADER_MAX >> 20));
    for (char *to = dst; n > 0;) {
        if (r->at >= r->end) {
            r->begin = r->at;
            r->end = r->at + (r->size - r->at < WINDOW ? r->size - r->at : WINDOW);
            PASS_ON(
                io_read_at(r->fd, r->path, r->size, r->begin, r->window, r->end - r->begin, err));
        }
        int64_t m = r->end - r->at < n ? r->end - r->at : n;
        memcpy(to, r->window + (r->at - r->begin), (size_t)m);
        r->at += m;
        to += m;
        n -= m;
    }
    return 0;
}

/* An unsigned number of n <= 8 bytes. */
static int number(struct reader *r, int n, uint64_t *out, struct err *err)
{
    uint8_t b[8];
    PASS_ON(take(r, b, n, err));
    *out = little_endian(b, n);
    return 0;
}

/* A count of things that take at least `least` bytes each in what is left of the file. */
static int count(struct reader *r, int64_t least, const char *what, int64_t *out, struct err *err)
{
    uint64_t n = 0;
    int rc = number(r, 8, &n, err);
    if (!rc && n > (uint64_t)((r->size - r->at) / least))
        rc = err_set(err, ERR_INPUT, "%s: %llu %s do not fit into the file (%lld bytes)", r->path,
                     (unsigned long long)n, what, (long long)r->size);
    *out = (int64_t)n;
    return rc;
}

/* A text into r->text. */
static int text(struct reader *r, struct err *err)
{
    int64_t n = 0;
    PASS_ON(count(r, 1, "bytes of a text", &n, err));
    buf_reset(&r->text);
    if (!buf_reserve(&r->text, (size_t)n))
        return err_set(err, ERR_NOMEM, "%s: metadata", r->path);
    PASS_ON(take(r, r->text.data, n, err));
    r->text.len = (size_t)n;
    r->text.data[n] = '\0';
    return 0;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Types of values by their numbers; bytes 0: of no fixed size. */
enum { V_BOOL = 7, V_TEXT, V_ARRAY, V_TYPES = 13 };
static const struct {
    int bytes;
    enum { UNSIGNED, SIGNED, FLOATING, OTHER } kind;
} values[V_TYPES] = {{1, UNSIGNED}, {1, SIGNED},   {2, UNSIGNED}, {2, SIGNED}, {4, UNSIGNED},
                     {4, SIGNED},   {4, FLOATING}, {1, OTHER},    {0, OTHER},  {0, OTHER},
                     {8, UNSIGNED}, {8, SIGNED},   {8, FLOATING}};

static double floating(uint64_t bits, int bytes)
{
    uint32_t low = (uint32_t)bits;
    double d;
    float f;
    if (bytes == 4) {
        memcpy(&f, &low, sizeof f);
        return f;
    }
    memcpy(&d, &bits, sizeof d);
    return d;
}

static json_t *simple(uint32_t type, uint64_t bits)
{
    int shift = 64 - 8 * values[type].bytes;
    switch (values[type].kind) {
    case UNSIGNED:
        return bits > INT64_MAX ? NULL : json_integer((json_int_t)bits);
    case SIGNED:
        return json_integer((json_int_t)((int64_t)(bits << shift) >> shift));
    case FLOATING:
        return json_real(floating(bits, values[type].bytes));
    default:
        return json_boolean(bits != 0);
    }
}

static int value(struct reader *r, uint32_t type, const char *key, int depth, json_t **out,
                 struct err *err);

static int array(struct reader *r, const char *key, int depth, json_t **out, struct err *err)
{
    OWN(json_decrefp) json_t *list = json_array();
    json_t *v = NULL;
    uint64_t type = 0;
    int64_t n = 0;
    PASS_ON(number(r, 4, &type, err));
    if (type >= V_TYPES || depth == DEPTH_MAX)
        return err_set(err, ERR_INPUT, "%s: %s: an array of type %llu", r->path, key,
                       (unsigned long long)type);
    PASS_ON(count(r, values[type].bytes ? values[type].bytes : 8, "values of an array", &n, err));
    for (int64_t i = 0; i < n; i++) {
        PASS_ON(value(r, (uint32_t)type, key, depth + 1, &v, err));
        if (json_array_append_new(list, v))
            return err_set(err, ERR_NOMEM, "%s: metadata", r->path);
    }
    *out = HAND_OVER(list);
    return 0;
}

static int value(struct reader *r, uint32_t type, const char *key, int depth, json_t **out,
                 struct err *err)
{
    uint64_t bits = 0;
    if (type >= V_TYPES)
        return err_set(err, ERR_INPUT, "%s: %s: a value of unknown type %u", r->path, key, type);
    if (type == V_ARRAY)
        return array(r, key, depth, out, err);
    if (type == V_TEXT) {
        PASS_ON(text(r, err));
        *out = strlen(buf_str(&r->text)) == r->text.len ? json_string(buf_str(&r->text)) : NULL;
        if (!*out)
            return err_set(err, ERR_INPUT,
                           "%s: %s: a text that is not UTF-8, or that holds a zero byte", r->path,
                           key);
        return 0;
    }
    PASS_ON(number(r, values[type].bytes, &bits, err));
    *out = simple(type, bits);
    if (!*out)
        return err_set(err, ERR_INPUT, "%s: %s: a number that is too large or not finite", r->path,
                       key);
    return 0;
}

static int pair(struct reader *r, json_t *meta, struct err *err)
{
    OWN(free_at) char *key = NULL;
    json_t *v = NULL;
    uint64_t type = 0;
    PASS_ON(text(r, err));
    key = strdup(buf_str(&r->text));
    if (!key)
        return err_set(err, ERR_NOMEM, "%s: metadata", r->path);
    if (strlen(key) != r->text.len || r->text.len == 0 || json_object_get(meta, key))
        return err_set(err, ERR_INPUT,
                       "%s: the key '%.60s' is empty, holds a zero byte or is there twice", r->path,
                       key);
    PASS_ON(number(r, 4, &type, err));
    PASS_ON(value(r, (uint32_t)type, key, 0, &v, err));
    if (json_object_set_new(meta, key, v))
        return err_set(err, ERR_INPUT, "%s: the key '%.60s' is not UTF-8", r->path, key);
    return 0;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Dimensions, the fastest first. */
static int shape(struct reader *r, struct st_tensor *t, struct err *err)
{
    uint64_t n = 0, d = 0;
    PASS_ON(number(r, 4, &n, err));
    if (n < 1 || n > 4)
        return err_set(err, ERR_INPUT, "%s: tensor '%s' has %llu dimensions, 1 to 4 were expected",
                       r->path, t->name, (unsigned long long)n);
    t->ndim = (int)n;
    t->count = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        PASS_ON(number(r, 8, &d, err));
        t->shape[i] = (int64_t)d;
        if (d > INT64_MAX || d == 0 || !mul_ok(t->count, (int64_t)d, &t->count))
            return err_set(err, ERR_INPUT, "%s: tensor '%s': dimension %llu is zero or too large",
                           r->path, t->name, (unsigned long long)d);
    }
    return 0;
}

static int type_of(struct reader *r, struct st_tensor *t, struct err *err)
{
    const struct gguf_type *type;
    uint64_t n = 0;
    PASS_ON(number(r, 4, &n, err));
    type = gguf_type((uint32_t)n);
    if (!type || type->dtype == DT_NONE)
        return err_set(
            err, ERR_INPUT,
            "%s: tensor '%s' is of type %llu (%s); supported: F32, F16, BF16, Q4_0, Q4_1, Q5_0, "
            "Q5_1, Q8_0, Q4_K, Q5_K, Q6_K; llama-quantize makes another file",
            r->path, t->name, (unsigned long long)n, type ? type->name : "unknown");
    if (t->shape[t->ndim - 1] % type->blocks.count ||
        !mul_ok(t->count / type->blocks.count, type->blocks.bytes, &t->bytes))
        return err_set(err, ERR_INPUT,
                       "%s: tensor '%s': rows of %lld numbers are no whole blocks of %s", r->path,
                       t->name, (long long)t->shape[t->ndim - 1], type->name);
    t->dtype = type->dtype;
    t->blocks = type->blocks.decode ? &type->blocks : NULL;
    snprintf(t->dtype_text, sizeof t->dtype_text, "%s", type->name);
    return 0;
}

/* t->offset is relative to the data. */
static int tensor(struct reader *r, struct gguf *g, struct err *err)
{
    struct st_tensor *t;
    uint64_t offset = 0;
    PASS_ON(mem_grow(&g->tensors, &g->cap, g->n + 1, sizeof *g->tensors, "tensors", err));
    t = memset(&g->tensors[g->n], 0, sizeof *t);
    PASS_ON(text(r, err));
    if (r->text.len == 0 || r->text.len > NAME_MAX_BYTES || strlen(r->text.data) != r->text.len)
        return err_set(err, ERR_INPUT, "%s: the name of tensor %lld has %zu bytes or a zero byte",
                       r->path, (long long)g->n, r->text.len);
    PASS_ON(mem_dup(&t->name, buf_str(&r->text), r->path, err));
    g->n++;
    PASS_ON(shape(r, t, err));
    PASS_ON(type_of(r, t, err));
    PASS_ON(number(r, 8, &offset, err));
    t->offset = offset > (uint64_t)r->size ? r->size : (int64_t)offset;
    return 0;
}

/* ---- the file -------------------------------------------------------------------------------- */

/* Magic, version, counts. */
static int preamble(struct reader *r, int64_t *tensors, int64_t *pairs, struct err *err)
{
    uint64_t version = 0;
    char magic[4] = "";
    if (r->size >= 4)
        PASS_ON(take(r, magic, 4, err));
    if (memcmp(magic, "GGUF", 4) != 0)
        return err_set(
            err, ERR_INPUT,
            "%s: this is a file, and no GGUF file; --model takes a checkpoint directory or a GGUF "
            "file",
            r->path);
    PASS_ON(number(r, 4, &version, err));
    if (version != 2 && version != 3)
        return err_set(err, ERR_INPUT, "%s: %s; versions 2 and 3, little-endian, are read", r->path,
                       version == 1           ? "GGUF version 1"
                       : version & 0xffff0000 ? "a big-endian GGUF file"
                                              : "a GGUF file of an unknown version");
    PASS_ON(count(r, 24, "tensors", tensors, err));
    return count(r, 13, "metadata pairs", pairs, err);
}

static int header(struct reader *r, struct gguf *g, struct err *err)
{
    int64_t tensors = 0, pairs = 0, align = 32, parts = 1;
    if (!(g->meta = json_object()))
        return err_set(err, ERR_NOMEM, "%s: metadata", r->path);
    PASS_ON(preamble(r, &tensors, &pairs, err));
    for (int64_t i = 0; i < pairs; i++)
        PASS_ON(pair(r, g->meta, err));
    PASS_ON(jget_int_opt(g->meta, "split.count", r->path, &parts, err));
    if (parts > 1)
        return err_set(
            err, ERR_INPUT,
            "%s: one of %lld parts of a model; join them: llama-gguf-split --merge FIRST OUT.gguf",
            r->path, (long long)parts);
    PASS_ON(jget_size_opt(g->meta, "general.alignment", r->path, 1 << 20, &align, err));
    for (int64_t i = 0; i < tensors; i++)
        PASS_ON(tensor(r, g, err));
    int64_t data = (r->at + align - 1) / align * align;
    for (int64_t i = 0; i < g->n; i++) {
        if (g->tensors[i].offset % align)
            return err_set(err, ERR_INPUT, "%s: tensor '%s': offset %lld is no multiple of %lld",
                           r->path, g->tensors[i].name, (long long)g->tensors[i].offset,
                           (long long)align);
        g->tensors[i].offset += data;
    }
    return 0;
}

int gguf_read(const char *path, struct gguf *g, struct err *err)
{
    struct reader *r = NULL;
    int rc = 0;
    memset(g, 0, sizeof *g);
    TRY(mem_zalloc(&r, 1, sizeof *r, path, err));
    r->path = path;
    r->fd = -1;
    TRY(io_open(path, &r->fd, &r->size, err));
    TRY(header(r, g, err));
out:
    if (r && r->fd >= 0)
        close(r->fd);
    if (r)
        buf_free(&r->text);
    free(r);
    if (rc)
        gguf_free(g);
    return rc;
}

void gguf_free(struct gguf *g)
{
    for (int64_t i = 0; i < g->n; i++)
        free((char *)(uintptr_t)g->tensors[i].name);
    free(g->tensors);
    json_decref(g->meta);
    memset(g, 0, sizeof *g);
}

const struct st_tensor *gguf_tensor(const struct gguf *g, const char *name)
{
    for (int64_t i = 0; i < g->n; i++)
        if (strcmp(g->tensors[i].name, name) == 0)
            return &g->tensors[i];
    return NULL;
}
