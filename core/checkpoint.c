#include "core/checkpoint.h"

#include "core/gguf.h"
#include "core/fileio.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_CONFIG (1 << 20)

bool checkpoint_is_gguf(const char *model)
{
    struct stat st;
    return stat(model, &st) == 0 && !S_ISDIR(st.st_mode);
}

static int json_of_gguf(const char *path, const char *name, json_t **out, struct err *err)
{
    struct gguf g;
    int rc = gguf_read(path, &g, err);
    if (!rc && strcmp(name, "config.json") == 0)
        rc = gguf_config(path, &g, out, err);
    else if (!rc && strcmp(name, "tokenizer.json") == 0)
        rc = gguf_tokenizer(path, &g, out, err);
    gguf_free(&g);
    return rc;
}

int checkpoint_json(const char *model, const char *name, size_t max, char *where, json_t **out,
                    struct err *err)
{
    bool there;
    int rc = 0;

    *out = NULL;
    if (checkpoint_is_gguf(model)) {
        snprintf(where, CHECKPOINT_PATH, "%s", model);
        return json_of_gguf(model, name, out, err);
    }
    snprintf(where, CHECKPOINT_PATH, "%s/%s", model, name);
    TRY(io_exists(where, &there, err));
    if (there)
        TRY(json_read_file(where, max, out, err));
    if (there && !json_is_object(*out))
        FAIL(err, ERR_INPUT, "%s: not a JSON object", where);
out:
    if (rc) {
        json_decref(*out);
        *out = NULL;
    }
    return rc;
}

int checkpoint_weights(const char *model, struct st_file **out, struct err *err)
{
    struct gguf g;
    if (!checkpoint_is_gguf(model))
        return st_open_dir(model, "model", out, err);
    int rc = gguf_read(model, &g, err);
    if (!rc)
        rc = st_adopt(model, g.tensors, g.n, out, err);
    gguf_free(&g);
    return rc;
}

/* The last part of a path without what stands behind it. */
static void last_part(const char *path, char *name, size_t size)
{
    size_t n = strlen(path), a;
    while (n > 1 && path[n - 1] == '/')
        n--;
    for (a = n; a > 0 && path[a - 1] != '/'; a--)
        ;
    snprintf(name, size, "%.*s", (int)(n - a), path + a);
}

void checkpoint_name(const char *model, char *name, size_t size)
{
    char where[CHECKPOINT_PATH];
    json_t *config = NULL;
    struct err ignored = {0};

    checkpoint_json(model, "config.json", MAX_CONFIG, where, &config, &ignored);
    const char *own = json_string_value(json_object_get(config, "_name_or_path"));
    if (own && own[0] && own[0] != '/' && own[0] != '.') {
        last_part(own, name, size);
        for (char *c = name; *c; c++)
            *c = *c == ' ' ? '-' : *c;
    } else {
        char *real = realpath(model, NULL);
        last_part(real ? real : model, name, size);
        free(real);
    }
    json_decref(config);
}

struct share {
    const char *type;
    int n;
};

static int by_count(const void *pa, const void *pb)
{
    const struct share *a = pa, *b = pb;
    return a->n != b->n ? (a->n > b->n ? -1 : 1) : strcmp(a->type, b->type);
}

void checkpoint_types(const struct st_file *weights, char *text, size_t size)
{
    struct share all[32];
    int n = 0;
    size_t at = 0;

    for (int64_t i = 0; i < st_count(weights); i++) {
        const char *type = st_at(weights, i)->dtype_text;
        int k = 0;
        while (k < n && strcmp(all[k].type, type) != 0)
            k++;
        if (k == n && n < 32)
            all[n++] = (struct share){type, 0};
        all[k < n ? k : n - 1].n++;
    }
    if (n > 1)
        qsort(all, (size_t)n, sizeof *all, by_count);
    text[0] = '\0';
    for (int k = 0; k < n && at < size; k++)
        at += (size_t)snprintf(text + at, size - at, "%s%s (%d)", k ? ", " : "", all[k].type,
                               all[k].n);
}
