/*
 * import_source.c - a tensor of an .npy or .safetensors file as heads of float32.
 */
#include "capture/import.h"

#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int set_shape(struct source *s, int ndim, const int64_t *shape, enum source_layout layout,
                     struct err *err)
{
    char text[128] = "";
    size_t used = 0;

    for (int i = 0; i < ndim && used < sizeof text - 24; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%lld", i ? ", " : "",
                                 (long long)shape[i]);
    if (ndim == 4 && shape[0] != 1)
        return err_set(err, ERR_INPUT, "%s has shape (%s): a batch of %lld; store one sequence",
                       s->name, text, (long long)shape[0]);
    if (ndim == 4) {
        shape++;
        ndim--;
    }
    if (ndim != 2 && ndim != 3)
        return err_set(err, ERR_INPUT, "%s has shape (%s), expected %s", s->name, text,
                       layout == LAYOUT_NHD ? "(tokens, heads, dim) or (tokens, dim)"
                                            : "(heads, tokens, dim) or (tokens, dim)");
    s->token_major = ndim == 3 && layout == LAYOUT_NHD;
    s->heads = ndim == 2 ? 1 : shape[s->token_major ? 1 : 0];
    s->tokens = ndim == 2 ? shape[0] : shape[s->token_major ? 0 : 1];
    s->dim = shape[ndim - 1];
    if (s->heads < 1 || s->tokens < 1 || s->dim < 1)
        return err_set(err, ERR_INPUT, "%s has shape (%s): it is empty", s->name, text);
    if (s->heads == 1)
        s->token_major = false;
    if (s->dtype == DT_NONE || dtype_to_f32(s->dtype, NULL, NULL, 0) != 0)
        return err_set(err, ERR_INPUT, "%s has elements that are not floating-point numbers",
                       s->name);
    return 0;
}

int source_npy(struct source *s, const char *path, enum source_layout layout, struct err *err)
{
    int rc = 0;

    memset(s, 0, sizeof *s);
    snprintf(s->name, sizeof s->name, "%s", path);
    TRY(npy_open(path, true, &s->npy, err));
    s->dtype = s->npy->dtype;
    TRY(set_shape(s, s->npy->ndim, s->npy->shape, layout, err));
out:
    if (rc)
        source_free(s);
    return rc;
}

int source_st(struct source *s, const struct st_file *f, const char *path,
              const struct st_tensor *t, enum source_layout layout, struct err *err)
{
    memset(s, 0, sizeof *s);
    snprintf(s->name, sizeof s->name, "%s: tensor '%s'", path, t->name);
    s->st = f;
    s->tensor = t;
    s->dtype = t->dtype;
    return set_shape(s, t->ndim, t->shape, layout, err);
}

void source_free(struct source *s)
{
    npy_close(&s->npy);
    free(s->whole);
    memset(s, 0, sizeof *s);
}

static int load_whole(struct source *s, struct err *err)
{
    int64_t count = s->heads * s->tokens * s->dim; /* the file is at least that large */
    int rc = 0;

    TRY(mem_alloc(&s->whole, count, sizeof *s->whole, s->name, err));
    rc = s->npy ? npy_read_f32(s->npy, s->whole, err)
                : st_read_f32(s->st, s->tensor, 0, count, s->whole, err);
    if (rc) {
        free(s->whole);
        s->whole = NULL;
    }
out:
    return rc;
}

int source_head(struct source *s, int64_t head, float *dst, struct err *err)
{
    int64_t n = s->tokens * s->dim;
    int rc = 0;

    if (!s->whole && (s->token_major || (s->npy && s->npy->fortran)))
        TRY(load_whole(s, err));
    if (!s->whole && s->npy)
        return npy_read_range_f32(s->npy, head * n, n, dst, err);
    if (!s->whole)
        return st_read_f32(s->st, s->tensor, head * n, n, dst, err);
    if (!s->token_major) {
        memcpy(dst, s->whole + head * n, (size_t)n * sizeof *dst);
        return 0;
    }
    for (int64_t t = 0; t < s->tokens; t++)
        memcpy(dst + t * s->dim, s->whole + (t * s->heads + head) * s->dim,
               (size_t)s->dim * sizeof *dst);
out:
    return rc;
}
