#include "capture/arrays.h"

#include "core/mem.h"
#include "core/npy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int from_npy(const char *path, struct array *a, struct err *err)
{
    struct npy *n = NULL;
    int rc = 0;
    TRY(npy_open(path, true, &n, err));
    a->ndim = n->ndim;
    memcpy(a->shape, n->shape, sizeof n->shape);
    a->count = n->count;
    TRY(mem_alloc(&a->data, a->count, sizeof *a->data, path, err));
    TRY(npy_read_f32(n, a->data, err));
out:
    npy_close(&n);
    return rc;
}

static int from_safetensors(const char *path, const char *tensor, struct array *a, struct err *err)
{
    struct st_file *f = NULL;
    const struct st_tensor *t;
    int rc = 0;
    TRY(st_open(path, &f, err));
    TRY(st_require(f, tensor, -1, NULL, &t, err));
    a->ndim = t->ndim;
    memcpy(a->shape, t->shape, sizeof t->shape);
    a->count = t->count;
    TRY(mem_alloc(&a->data, a->count, sizeof *a->data, path, err));
    TRY(st_read_f32(f, t, 0, t->count, a->data, err));
out:
    st_close(&f);
    return rc;
}

int array_load(const char *path, const char *tensor, struct array *a, struct err *err)
{
    const char *dot = strrchr(path, '.');
    memset(a, 0, sizeof *a);
    int rc = dot && strcmp(dot, ".npy") == 0 ? from_npy(path, a, err)
             : dot && strcmp(dot, ".safetensors") == 0
                 ? from_safetensors(path, tensor, a, err)
                 : err_set(err, ERR_USAGE, "%s: expected a .npy or .safetensors file", path);
    if (rc) {
        array_free(a);
        return rc;
    }
    size_t used = 0;
    for (int i = 0; i < a->ndim && used < sizeof a->text; i++)
        used += (size_t)snprintf(a->text + used, sizeof a->text - used, "[%lld]",
                                 (long long)a->shape[i]);
    return 0;
}

void array_free(struct array *a)
{
    free(a->data);
    memset(a, 0, sizeof *a);
}
