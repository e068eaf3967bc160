/*
 * rawtensor.c - see rawtensor.h.
 */
#include "capture/rawtensor.h"

#include "core/mem.h"

#include <stdlib.h>

int raw_tensor_read(const struct st_file *file, const struct st_tensor *t,
                    struct decoder_tensor *out, struct err *err)
{
    bool stored = t->dtype == DT_F32 || t->dtype == DT_BF16 || t->dtype == DT_F16;
    enum dtype type = stored ? t->dtype : DT_F32;
    int64_t rows = t->ndim ? t->shape[0] : 1;
    void *data = NULL;
    int rc = 0;

    TRY(mem_alloc(&data, t->count, dtype_size(type), t->name, err));
    if (stored)
        TRY(st_read_raw(file, t, 0, t->count, data, err));
    else
        TRY(st_read_f32(file, t, 0, t->count, data, err));
    *out = (struct decoder_tensor){data, type, rows, rows ? t->count / rows : 0};
    data = NULL;
out:
    free(data);
    return rc;
}

void raw_tensor_free(struct decoder_tensor *t)
{
    free((void *)(uintptr_t)t->data);
    t->data = NULL;
}
