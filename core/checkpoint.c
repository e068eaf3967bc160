#include "core/checkpoint.h"

#include "core/gguf.h"
#include "core/fileio.h"
#include "core/mem.h"
#include "core/utf8.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#define MAX_CONFIG (1 << 20)

bool checkpoint_is_gguf(const char *model)
{
    struct stat st;
    return stat(model, &st) == 0 && !S_ISDIR(st.st_mode);
}

static int json_of_gguf(const char *path, const char *name, json_t **out, struct err *err)
{
    bool config = strcmp(name, "config.json") == 0, tokenizer = strcmp(name, "tokenizer.json") == 0;
    struct gguf g;
    int rc;
    if (!config && !tokenizer && strcmp(name, "tokenizer_config.json") != 0)
        return 0;
    if ((rc = gguf_read(path, &g, err)))
        return rc;
    if (config)
        rc = gguf_config(path, &g, out, err);
    else if (tokenizer)
        rc = gguf_tokenizer(path, &g, out, err);
    else
        *out = json_pack("{s:O*}", "chat_template",
                         json_object_get(g.meta, "tokenizer.chat_template"));
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
        TRY(json_read_foreign(where, max, out, err));
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

/* The part of a path behind its last slash, without trailing ones. */
static void last_part(const char *path, char *name, size_t size)
{
    size_t n = strlen(path), a;
    while (n > 1 && path[n - 1] == '/')
        n--;
    for (a = n; a > 0 && path[a - 1] != '/'; a--)
        ;
    snprintf(name, size, "%.*s", (int)(n - a), path + a);
}

/* Cut what a GGUF file's name adds to the model's: Llama-3.2-1B-Q4_K_M.gguf, tiny.f16.gguf. */
static void cut_type(char *name)
{
    static const char *const floats[] = {"f16", "f32", "bf16", "fp16", "fp32"};
    char *end = strrchr(name, '.');
    bool type;
    if (end && strcasecmp(end, ".gguf") == 0)
        *end = '\0';
    end = name + strlen(name);
    while (end > name && end[-1] != '-' && end[-1] != '.')
        end--;
    type = (end[0] == 'q' || end[0] == 'Q') && isdigit((unsigned char)end[1]);
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++)
        type |= strcasecmp(end, floats[i]) == 0;
    if (type && end > name)
        end[-1] = '\0';
}

/* A name that says nothing of the model: a common one, or a hash in the cache of the hub or ollama.
 */
static bool says_nothing(const char *name)
{
    static const char *const common[] = {
        "", ".", "..", "hf", "model", "checkpoint", "final", "weights", "snapshot", "ggml-model"};
    for (size_t i = 0; i < sizeof common / sizeof *common; i++)
        if (strcmp(name, common[i]) == 0)
            return true;
    name += strncmp(name, "sha256-", 7) == 0 ? 7 : 0;
    return strlen(name) >= 40 && name[strspn(name, "0123456789abcdef")] == '\0';
}

void checkpoint_name(const char *model, char *name, size_t size)
{
    char path[CHECKPOINT_PATH], *real = realpath(model, NULL);
    const char *folder = real ? real : model, *given = NULL, *class = NULL;
    const char *hub = strstr(folder, "/models--"), *org = hub ? strstr(hub + 9, "--") : NULL;
    OWN(json_decrefp) json_t *o = NULL;
    struct err ignored = {0};
    bool gguf = checkpoint_is_gguf(model);
    if (checkpoint_json(model, "config.json", MAX_CONFIG, path, &o, &ignored) == 0) {
        given = jtext(json_object_get(o, "_name_or_path"));
        class = jtext(json_array_get(json_object_get(o, "architectures"), 0));
    }
    given = given ? given : "";
    last_part(gguf ? model : given, name, size);
    if (gguf)
        cut_type(name);
    if (says_nothing(name))
        last_part(gguf ? given : folder, name, size);
    if (says_nothing(name) && org)
        snprintf(name, size, "%.*s", (int)strcspn(org + 2, "/"), org + 2);
    if (says_nothing(name) && class)
        snprintf(name, size, "%s", class);
    utf8_make_plain(name);
    free(real);
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
