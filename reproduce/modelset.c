/*
 * modelset.c - which model plays which role. What a model is follows from its configuration, never
 * from the name of its folder.
 */
#include "reproduce/modelset.h"

#include "core/environment.h"
#include "core/fileio.h"
#include "core/hash.h"
#include "core/mem.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Larger files count by name, size and time of change: reading a checkpoint of many gigabytes to
 * find that nothing is to be done would take minutes. */
#define HASHED_MAX ((int64_t)256 << 20)

/* ---- identity -------------------------------------------------------------------------------- */

static int is_weight(const struct dirent *e)
{
    size_t len = strlen(e->d_name);
    return (len > 12 && strcmp(e->d_name + len - 12, ".safetensors") == 0) ||
           strcmp(e->d_name, "config.json") == 0 || strcmp(e->d_name, "tokenizer.json") == 0;
}

int hash_input_file(struct hash_state *h, const char *path, const char *name, struct err *err)
{
    struct stat st;
    struct buf text = {0};
    int rc = 0;
    if (stat(path, &st) != 0)
        return err_sys(err, ERR_INPUT, "%s", path);
    hash_update(h, name, strlen(name) + 1);
    hash_update(h, &st.st_size, sizeof st.st_size);
    if (st.st_size > HASHED_MAX)
        hash_update(h, &st.st_mtim, sizeof st.st_mtim);
    else if ((rc = buf_read_file(&text, path, (size_t)HASHED_MAX, err)) == 0)
        hash_update(h, text.data, text.len);
    buf_free(&text);
    return rc;
}

static int identify(struct model_use *m, struct err *err)
{
    struct dirent **files = NULL;
    struct hash_state *h = NULL;
    int n = scandir(m->dir, &files, is_weight, alphasort), rc = 0;

    if (n < 0)
        FAIL(err, ERR_INPUT, "--model %s: no such folder", m->dir);
    TRY(hash_new(&h, err));
    for (int i = 0; i < n; i++) {
        struct buf path = {0};
        buf_printf(&path, "%s/%s", m->dir, files[i]->d_name);
        rc = hash_input_file(h, buf_str(&path), files[i]->d_name, err);
        buf_free(&path);
        if (rc)
            goto out;
    }
    hash_text(hash_digest(h), m->id);
out:
    for (int i = 0; i < n; i++)
        free(files[i]);
    free(files);
    hash_free(h);
    return rc;
}

/* ---- shape ----------------------------------------------------------------------------------- */

static int first_int(const json_t *o, const char *a, const char *b, int otherwise)
{
    const json_t *v = json_object_get(o, a);
    if (!json_is_integer(v) && b)
        v = json_object_get(o, b);
    return json_is_integer(v) ? (int)json_integer_value(v) : otherwise;
}

static int read_config(struct model_use *m, struct err *err)
{
    struct buf path = {0};
    json_t *o = NULL;
    int rc = 0;

    buf_printf(&path, "%s/config.json", m->dir);
    TRY(buf_check(&path, "path", err));
    TRY(json_read_file(buf_str(&path), (size_t)16 << 20, &o, err));
    const char *kind = json_str_or(o, "_class_name", NULL);
    if (!kind) {
        const json_t *first = json_array_get(json_object_get(o, "architectures"), 0);
        kind = json_is_string(first) ? json_string_value(first) : "";
    }
    struct shape *s = &m->shape;
    snprintf(s->architecture, sizeof s->architecture, "%s", kind);
    s->layers = first_int(o, "num_hidden_layers", "num_layers", 0);
    s->heads = first_int(o, "num_attention_heads", NULL, 0);
    s->kv_heads = first_int(o, "num_key_value_heads", NULL, s->heads);
    int hidden = first_int(o, "hidden_size", NULL, 0);
    s->head_dim =
        first_int(o, "head_dim", "attention_head_dim", s->heads > 0 ? hidden / s->heads : 0);
    m->causal = strstr(kind, "CausalLM") != NULL;
    for (int i = 0; i < 3; i++) {
        const json_t *p = json_array_get(json_object_get(o, "patch_size"), (size_t)i);
        m->patch[i] =
            json_is_integer(p) && json_integer_value(p) > 0 ? (int)json_integer_value(p) : 1;
    }
    if (s->layers < 1 || s->heads < 1 || s->head_dim < 1)
        FAIL(err, ERR_INPUT, "%s: layers, heads or head dimension are missing", buf_str(&path));
out:
    json_decref(o);
    buf_free(&path);
    return rc;
}

const json_t *shape_paper_model(const struct paper_data *d, const struct shape *s)
{
    size_t i;
    json_t *m;
    json_array_foreach(d->models, i,
                       m) if (strcmp(json_str_or(m, "architecture", ""), s->architecture) == 0 &&
                              first_int(m, "layers", NULL, -1) == s->layers &&
                              first_int(m, "heads", NULL, -1) == s->heads &&
                              first_int(m, "kv_heads", NULL, -1) == s->kv_heads &&
                              first_int(m, "head_dim", NULL, -1) == s->head_dim) return m;
    return NULL;
}

/* Letters and digits of a name, lower case. */
static void squeeze(const char *s, char *out, size_t size)
{
    size_t n = 0;
    for (; *s && n + 1 < size; s++)
        if ((*s >= '0' && *s <= '9') || (*s >= 'a' && *s <= 'z'))
            out[n++] = *s;
        else if (*s >= 'A' && *s <= 'Z')
            out[n++] = (char)(*s - 'A' + 'a');
    out[n] = '\0';
}

/* A model that is called like one of the papers' and has another shape is said to be so. */
static void compare_name(const struct paper_data *d, struct model_use *m)
{
    char own[160], other[160];
    size_t i;
    json_t *p;
    m->paper = m->has_weights ? shape_paper_model(d, &m->shape) : NULL;
    squeeze(m->name, own, sizeof own);
    json_array_foreach(d->models, i, p)
    {
        const char *id = json_str_or(p, "id", "");
        squeeze(id, other, sizeof other);
        if (other[0] && strstr(own, other) && p != m->paper)
            snprintf(m->odd, sizeof m->odd,
                     m->has_weights || shape_paper_model(d, &m->shape) != p
                         ? "%s is named like %s and has another shape"
                         : "%s is named and shaped like %s, but carries no hash of its weights",
                     m->name, id);
    }
}

/* ---- roles ----------------------------------------------------------------------------------- */

static int grow(struct model_set *s, struct model_use **out, struct err *err)
{
    int rc = mem_grow(&s->m, &s->cap, s->n + 1, sizeof *s->m, "models", err);
    if (rc)
        return rc;
    *out = &s->m[s->n++];
    memset(*out, 0, sizeof **out);
    return 0;
}

/* "ROLE=PATH" or "PATH". */
static const char *split_role(const char *text, char role[32])
{
    const char *eq = strchr(text, '='), *slash = strchr(text, '/');
    role[0] = '\0';
    if (!eq || (slash && slash < eq) || eq - text >= 32)
        return text;
    snprintf(role, 32, "%.*s", (int)(eq - text), text);
    return eq + 1;
}

static void default_role(struct model_use *m)
{
    if (!m->role[0])
        snprintf(m->role, sizeof m->role, "%s", m->causal ? "lm" : "dit");
}

static int add_dir(struct model_set *s, const char *text, const char *role,
                   const struct paper_data *d, struct err *err)
{
    struct model_use *m;
    int rc = 0;
    TRY(grow(s, &m, err));
    const char *path = role ? text : split_role(text, m->role);
    if (role)
        snprintf(m->role, sizeof m->role, "%s", role);
    m->given = !role;
    m->dir = realpath(path, NULL);
    if (!m->dir)
        return err_sys(err, ERR_INPUT, "--model %s", path);
    const char *slash = strrchr(m->dir, '/');
    snprintf(m->name, sizeof m->name, "%s", slash ? slash + 1 : m->dir);
    TRY(read_config(m, err));
    TRY(identify(m, err));
    m->has_weights = true;
    compare_name(d, m);
    default_role(m);
out:
    return rc;
}

static int add_trace(struct model_set *s, const char *text, const struct paper_data *d,
                     struct err *err)
{
    struct model_use *m;
    struct trace *t = NULL;
    int rc = 0;
    TRY(grow(s, &m, err));
    const char *path = split_role(text, m->role);
    TRY(trace_open(path, &t, err));
    const struct trace_meta *meta = trace_meta(t);
    m->given = true;
    m->trace = realpath(path, NULL);
    snprintf(m->name, sizeof m->name, "%s", meta->name);
    snprintf(m->id, sizeof m->id, "%s", trace_id(t));
    snprintf(m->shape.architecture, sizeof m->shape.architecture, "%s", meta->architecture);
    m->shape.layers = meta->layers;
    m->shape.heads = meta->heads;
    m->shape.kv_heads = meta->kv_heads;
    m->shape.head_dim = meta->head_dim;
    m->causal = meta->causal;
    m->has_weights = meta->weights_id[0] != '\0';
    m->n = meta->n_q;
    compare_name(d, m);
    default_role(m);
out:
    trace_close(&t);
    return rc;
}

static bool has_role(const struct model_set *s, const char *role)
{
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->m[i].role, role) == 0)
            return true;
    return false;
}

static int add_defaults(struct model_set *s, const struct recipe *r, const struct paper_data *d,
                        struct err *err)
{
    const char *role;
    json_t *o;
    int rc = 0;
    json_object_foreach((json_t *)r->roles, role, o)
    {
        struct buf below = {0}, path = {0};
        if (has_role(s, role))
            continue;
        buf_printf(&below, "models/%s", json_str_or(o, "default", ""));
        rc = datadir_find(buf_str(&below), &path, err);
        if (!rc)
            rc = add_dir(s, buf_str(&path), role, d, err);
        buf_free(&below);
        buf_free(&path);
        if (rc)
            break;
    }
    return rc;
}

/* A role that no recipe has would be silently without effect, and hours of captures would fail
 * where a video model stands in the place of a language model. */
static int check_roles(const struct model_set *s, const struct recipe *recipes, int n,
                       struct err *err)
{
    for (int i = 0; i < s->n; i++) {
        struct names all = {0};
        bool used = false;
        for (int k = 0; k < n; k++) {
            const char *role;
            json_t *o;
            json_object_foreach((json_t *)recipes[k].roles, role, o)
            {
                (void)o;
                used = used || strcmp(role, s->m[i].role) == 0;
                names_add(&all, role);
            }
        }
        if (!used)
            return err_set(err, ERR_USAGE,
                           "reproduce: %s has the role '%s', and none of these tables has a model "
                           "in it; give another as ROLE=PATH, or other tables",
                           s->m[i].name, s->m[i].role);
        if (s->m[i].causal != (strcmp(s->m[i].role, "lm") == 0))
            return err_set(err, ERR_USAGE,
                           "reproduce: %s attends %s; the role '%s' is of %s models", s->m[i].name,
                           s->m[i].causal ? "causally" : "in both directions", s->m[i].role,
                           s->m[i].causal ? "video" : "language");
    }
    return 0;
}

int model_set_make(const struct str_list *dirs, const struct str_list *traces,
                   const struct recipe *recipes, int n_recipes, const struct paper_data *d,
                   struct model_set *out, struct err *err)
{
    int rc = 0;
    for (int64_t i = 0; i < dirs->n; i++)
        TRY(add_dir(out, dirs->items[i], NULL, d, err));
    for (int64_t i = 0; i < traces->n; i++)
        TRY(add_trace(out, traces->items[i], d, err));
    TRY(check_roles(out, recipes, n_recipes, err));
    for (int i = 0; i < n_recipes; i++)
        TRY(add_defaults(out, &recipes[i], d, err));
out:
    return rc;
}

void model_set_free(struct model_set *s)
{
    for (int i = 0; i < s->n; i++) {
        free(s->m[i].dir);
        free(s->m[i].trace);
    }
    free(s->m);
    memset(s, 0, sizeof *s);
}
