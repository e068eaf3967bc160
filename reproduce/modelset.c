/*
 * modelset.c - which model plays which role, and which files of benchmarks there are. What a model
 * is follows from its configuration, never from the name of its folder; a file counts by its
 * content, wherever it lies.
 */
#include "reproduce/modelset.h"

#include "core/checkpoint.h"
#include "core/environment.h"
#include "core/fileio.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/mem.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Reading a checkpoint of many gigabytes to find that nothing is to be done would take minutes. */
#define HASHED_MAX ((int64_t)256 << 20)

/* ---- identity -------------------------------------------------------------------------------- */

static int is_weight(const struct dirent *e)
{
    size_t len = strlen(e->d_name);
    return (len > 12 && strcmp(e->d_name + len - 12, ".safetensors") == 0) ||
           strcmp(e->d_name, "config.json") == 0 || strcmp(e->d_name, "tokenizer.json") == 0;
}

/* Add a file to a hash by name, size and content; one above 256 MiB by its time of change instead
 * of its content. Its size is added to *bytes. */
static int hash_input_file(struct hash_state *h, const char *path, const char *name, int64_t *bytes,
                           struct err *err)
{
    struct stat st;
    OWN(buf_free) struct buf text = {0};
    int rc = 0;
    if (stat(path, &st) != 0)
        return err_sys(err, ERR_INPUT, "%s", path);
    hash_update(h, name, strlen(name) + 1);
    hash_update(h, &st.st_size, sizeof st.st_size);
    *bytes += st.st_size;
    if (st.st_size > HASHED_MAX)
        hash_update(h, &st.st_mtim, sizeof st.st_mtim);
    else if ((rc = buf_read_file(&text, path, (size_t)HASHED_MAX, err)) == 0)
        hash_update(h, text.data, text.len);
    return rc;
}

static int identify(struct model_use *m, struct err *err)
{
    struct dirent **files = NULL;
    struct hash_state *h = NULL;
    bool gguf = checkpoint_is_gguf(m->dir);
    int n = gguf ? 0 : scandir(m->dir, &files, is_weight, alphasort), rc = 0;
    if (n < 0)
        return err_sys(err, ERR_INPUT, "--model %s", m->dir);
    TRY(hash_new(&h, err));
    if (gguf)
        TRY(hash_input_file(h, m->dir, "", &m->bytes, err));
    for (int i = 0; i < n; i++) {
        struct buf path = {0};
        buf_printf(&path, "%s/%s", m->dir, files[i]->d_name);
        rc = hash_input_file(h, buf_str(&path), files[i]->d_name, &m->bytes, err);
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

static int read_config(struct model_use *m, const char *model, struct err *err)
{
    char path[CHECKPOINT_PATH];
    OWN(json_decrefp) json_t *o = NULL;
    PASS_ON(checkpoint_json(model, "config.json", (size_t)16 << 20, path, &o, err));
    if (!o)
        return err_set(err, ERR_INPUT, "%s does not exist", path);
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
    m->value_bytes = strcmp(json_str_or(o, "torch_dtype", ""), "float32") == 0 ? 4 : 2;
    m->positions = m->causal ? first_int(o, "max_position_embeddings", NULL, 0) : 0;
    for (int i = 0; i < 3; i++) {
        const json_t *p = json_array_get(json_object_get(o, "patch_size"), (size_t)i);
        m->patch[i] =
            json_is_integer(p) && json_integer_value(p) > 0 ? (int)json_integer_value(p) : 1;
    }
    if (s->layers < 1 || s->heads < 1 || s->head_dim < 1)
        return err_set(err, ERR_INPUT, "%s: layers, heads or head dimension are missing", path);
    return 0;
}

const json_t *shape_paper_model(const struct paper_data *d, const struct shape *s)
{
    size_t i;
    json_t *m;
    json_array_foreach(d->models, i, m)
    {
        if (strcmp(json_str_or(m, "architecture", ""), s->architecture) == 0 &&
            first_int(m, "layers", NULL, -1) == s->layers &&
            first_int(m, "heads", NULL, -1) == s->heads &&
            first_int(m, "kv_heads", NULL, -1) == s->kv_heads &&
            first_int(m, "head_dim", NULL, -1) == s->head_dim)
            return m;
    }
    return NULL;
}

/* ---- roles ----------------------------------------------------------------------------------- */

/* "NAME=PATH" or "PATH". */
static const char *split_role(const char *text, char role[32])
{
    const char *eq = strchr(text, '='), *slash = strchr(text, '/');
    role[0] = '\0';
    if (!eq || (slash && slash < eq) || eq - text >= 32)
        return text;
    snprintf(role, 32, "%.*s", (int)(eq - text), text);
    return eq + 1;
}

static int read_dir(struct model_use *m, const char *path, struct err *err)
{
    m->dir = realpath(path, NULL);
    if (!m->dir)
        return err_sys(err, ERR_INPUT, "--model %s", path);
    checkpoint_name(m->dir, m->name, sizeof m->name);
    m->has_weights = true;
    PASS_ON(read_config(m, path, err));
    return identify(m, err);
}

static int read_trace(struct model_use *m, const char *path, struct err *err)
{
    OWN(trace_close) struct trace *t = NULL;
    PASS_ON(trace_open(path, &t, err));
    const struct trace_meta *meta = trace_meta(t);
    m->trace = realpath(path, NULL);
    snprintf(m->name, sizeof m->name, "%s", meta->name);
    snprintf(m->id, sizeof m->id, "%s", trace_id(t));
    m->shape = (struct shape){"", meta->layers, meta->heads, meta->kv_heads, meta->head_dim};
    snprintf(m->shape.architecture, sizeof m->shape.architecture, "%s", meta->architecture);
    m->causal = meta->causal;
    m->has_weights = meta->weights_id[0] != '\0';
    m->n = meta->n_q;
    return 0;
}

/* What a user gave, or with a role its default. */
static int add_model(struct model_set *s, const char *text, const char *role, bool trace,
                     const struct paper_data *d, struct err *err)
{
    PASS_ON(mem_grow(&s->m, &s->cap, s->n + 1, sizeof *s->m, "models", err));
    struct model_use *m = &s->m[s->n++];
    *m = (struct model_use){.given = !role};
    const char *path = role ? text : split_role(text, m->role);
    PASS_ON(trace ? read_trace(m, path, err) : read_dir(m, path, err));
    m->paper = m->has_weights ? shape_paper_model(d, &m->shape) : NULL;
    m->fills = m->role[0] ? json_with_id(d->models, m->role) : NULL;
    if (m->fills) /* a name of the papers, and no role */
        m->role[0] = '\0';
    else
        m->fills = m->paper;
    if (role || !m->role[0])
        snprintf(m->role, sizeof m->role, "%s", role ? role : m->causal ? "lm" : "dit");
    return 0;
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
    json_object_foreach((json_t *)r->roles, role, o)
    {
        OWN(buf_free) struct buf below = {0}, path = {0};
        if (has_role(s, role))
            continue;
        buf_printf(&below, "models/%s", json_str_or(o, "default", ""));
        PASS_ON(datadir_find(buf_str(&below), &path, err));
        PASS_ON(add_model(s, buf_str(&path), role, false, d, err));
    }
    return 0;
}

/* A role that no recipe has would be silently without effect, and hours of captures would fail
 * where a video model stands in the place of a language model. */
static int check_roles(const struct model_set *s, const struct recipe *recipes, int n,
                       struct err *err)
{
    for (int i = 0; i < s->n; i++) {
        bool used = false;
        for (int k = 0; k < n; k++) {
            const char *role;
            json_t *o;
            json_object_foreach((json_t *)recipes[k].roles, role, o)
            {
                (void)o;
                used = used || strcmp(role, s->m[i].role) == 0;
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
    for (int64_t i = 0; i < dirs->n; i++)
        PASS_ON(add_model(out, dirs->items[i], NULL, false, d, err));
    for (int64_t i = 0; i < traces->n; i++)
        PASS_ON(add_model(out, traces->items[i], NULL, true, d, err));
    PASS_ON(check_roles(out, recipes, n_recipes, err));
    for (int i = 0; i < n_recipes; i++)
        PASS_ON(add_defaults(out, &recipes[i], d, err));
    return 0;
}

void model_set_free(struct model_set *s)
{
    for (int i = 0; i < s->n; i++) {
        free(s->m[i].dir);
        free(s->m[i].trace);
        free(s->m[i].chat);
    }
    free(s->m);
    memset(s, 0, sizeof *s);
}

/* ---- models that are not here ---------------------------------------------------------------- */

/* Is it a model that lacuna runs, in a role, among those that `fills` names (NULL: any)? */
static bool is_candidate(const json_t *o, const char *role, const json_t *fills)
{
    bool video = json_object_get(o, "size") != NULL;
    return json_object_get(o, "gb") && video == (strcmp(role, "dit") == 0) &&
           (!fills || json_object_get(fills, json_str_or(o, "id", "")));
}

static const json_t *candidate(const struct paper_data *d, const char *role, const json_t *fills)
{
    size_t i;
    json_t *o;
    json_array_foreach(d->models, i, o)
    {
        if (is_candidate(o, role, fills))
            return o;
    }
    return NULL;
}

int model_set_of_papers(const struct recipe *r, const struct paper_data *d, struct model_set *out,
                        struct err *err)
{
    const char *role;
    json_t *o;
    json_object_foreach((json_t *)r->roles, role, o)
    {
        const json_t *paper = candidate(d, role, json_object_get(o, "fills"));
        paper = paper ? paper : candidate(d, role, NULL);
        PASS_ON(paper ? mem_grow(&out->m, &out->cap, out->n + 1, sizeof *out->m, "models", err)
                      : 0);
        if (!paper)
            continue;
        struct model_use *m = &out->m[out->n++];
        *m = (struct model_use){.dir = strdup("DIR"), .has_weights = true, .value_bytes = 2};
        m->paper = m->fills = paper;
        snprintf(m->role, sizeof m->role, "%s", role);
        snprintf(m->name, sizeof m->name, "%s", json_str_or(paper, "id", ""));
        m->causal = !json_object_get(paper, "size");
        m->positions = first_int(paper, "positions", NULL, 0);
        m->bytes = (int64_t)(1e9 * json_number_value(json_object_get(paper, "gb")));
        m->shape = (struct shape){
            "", first_int(paper, "layers", NULL, 0), first_int(paper, "heads", NULL, 0),
            first_int(paper, "kv_heads", NULL, 0), first_int(paper, "head_dim", NULL, 0)};
        memcpy(m->patch, (int[]){1, 2, 2}, sizeof m->patch);
        if (!m->dir)
            return err_set(err, ERR_NOMEM, "models: out of memory");
    }
    return 0;
}

/* ---- chat ------------------------------------------------------------------------------------ */

/* The template of a checkpoint's tokenizer, in its configuration or in a file; empty: it has none.
 */
static int read_template(const char *dir, struct buf *out, struct err *err)
{
    char path[CHECKPOINT_PATH];
    OWN(json_decrefp) json_t *o = NULL;
    PASS_ON(checkpoint_json(dir, "tokenizer_config.json", (size_t)16 << 20, path, &o, err));
    json_t *t = json_object_get(o, "chat_template");
    json_t *first = json_object_get(json_array_get(t, 0), "template");
    snprintf(path, sizeof path, "%s/chat_template.jinja", dir);
    if (json_is_string(t) || json_is_string(first))
        buf_puts(out, json_string_value(json_is_string(t) ? t : first));
    else if (access(path, F_OK) == 0)
        PASS_ON(buf_read_file(out, path, (size_t)1 << 20, err));
    return buf_check(out, "chat template", err);
}

static int find_chat(struct model_use *m, const struct paper_data *d, struct err *err)
{
    OWN(buf_free) struct buf template = {0};
    size_t i;
    json_t *o;
    PASS_ON(read_template(m->dir, &template, err));
    json_array_foreach(d->models, i, o)
    {
        const char *sign = json_str_or(o, "sign", NULL);
        if (sign && strstr(buf_str(&template), sign)) {
            m->chat = strdup(json_str_or(o, "chat", ""));
            if (!m->chat)
                return err_set(err, ERR_NOMEM, "chat: out of memory");
            return 0;
        }
    }
    if (template.len)
        log_warn(
            "%s: its chat template is not one that reproduce knows, and prompts stand without "
            "it; --chat TEXT with {prompt} in it puts a text around them, --chat none is silent",
            m->name);
    return 0;
}

int model_set_chat(struct model_set *s, const struct paper_data *d, const char *chat,
                   struct err *err)
{
    bool find = strcmp(chat, "auto") == 0, none = strcmp(chat, "none") == 0;
    if (!find && !none && !strstr(chat, "{prompt}"))
        return err_set(err, ERR_USAGE, "reproduce: --chat: the text has no {prompt}");
    for (int i = 0; i < s->n && !none; i++) {
        struct model_use *m = &s->m[i];
        if (!m->given || !m->causal || !m->dir)
            continue;
        if (find)
            PASS_ON(find_chat(m, d, err));
        else
            PASS_ON(mem_dup(&m->chat, chat, "chat", err));
    }
    return 0;
}

/* ---- files of benchmarks --------------------------------------------------------------------- */

#define LINE_MAX_BYTES ((size_t)256 << 20)
#define FILE_MAX_BYTES ((int64_t)16 << 30)

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Another dataset under this name would be asked without a word; what else lines lack the eval
 * says.
 */
static int check_dataset(const struct task_file *f, struct err *err)
{
    OWN(io_lines_close) struct io_lines l = {0};
    enum io_line kind;
    const char *text;
    size_t len;
    OWN(buf_free) struct buf where = {0};
    OWN(json_decrefp) json_t *line = NULL;
    PASS_ON(io_lines_open(&l, f->path, LINE_MAX_BYTES, FILE_MAX_BYTES, err));
    PASS_ON(io_line(&l, &kind, &text, &len, err));
    if (kind == IO_LINE_END || kind == IO_LINE_LONG)
        return err_set(err, ERR_INPUT, "%s: no question in line 1", f->path);
    buf_printf(&where, "%s: line 1", f->path);
    PASS_ON(buf_check(&where, "path", err));
    PASS_ON(json_read_text(text, len, buf_str(&where), &line, err));
    const char *found = json_str_or(line, "dataset", f->id);
    if (strcmp(found, f->id) != 0)
        return err_set(err, ERR_INPUT, "%s: line 1: dataset '%s' was expected, found '%.60s'",
                       f->path, f->id, found);
    return 0;
}

/* The file in this folder, if it is there. */
static int look_in(struct task_file *f, const char *folder, bool *has, struct err *err)
{
    OWN(buf_free) struct buf path = {0};
    OWN(hash_free_at) struct hash_state *h = NULL;
    struct stat st;
    int64_t bytes = 0;
    buf_printf(&path, "%s/%s", folder, f->file);
    PASS_ON(buf_check(&path, "path", err));
    if (stat(buf_str(&path), &st) != 0)
        return 0;
    if (f->path)
        return err_set(err, ERR_USAGE,
                       "reproduce: --tasks %s: %s stands in another folder as well: %s", folder,
                       f->file, f->path);
    *has = true;
    f->path = realpath(buf_str(&path), NULL);
    if (!f->path)
        return err_set(err, ERR_NOMEM, "tasks: out of memory");
    PASS_ON(check_dataset(f, err));
    PASS_ON(hash_new(&h, err));
    PASS_ON(hash_input_file(h, f->path, f->file, &bytes, err));
    hash_text(hash_digest(h), f->hash);
    return 0;
}

int task_set_make(const struct paper_data *d, const struct str_list *folders, struct task_set *s,
                  struct err *err)
{
    size_t i;
    json_t *o;
    PASS_ON(mem_zalloc(&s->f, (int64_t)json_array_size(d->tasks) + 1, sizeof *s->f, "tasks", err));
    json_array_foreach(d->tasks, i, o) s->f[s->n++] =
        (struct task_file){.j = o,
                           .id = json_str_or(o, "id", ""),
                           .file = json_str_or(o, "file", ""),
                           .of = json_str_or(o, "of", "")};
    for (int64_t k = 0; k < folders->n; k++) {
        const char *folder = folders->items[k];
        bool any = false;
        if (!is_folder(folder))
            return err_set(err, ERR_USAGE, "reproduce: --tasks %s: no such folder", folder);
        for (int n = 0; n < s->n; n++)
            PASS_ON(look_in(&s->f[n], folder, &any, err));
        if (!any)
            return err_set(
                err, ERR_USAGE,
                "reproduce: --tasks %s: none of the files of datasets/paper/tasks.json is there "
                "(%s, ...)",
                folder, s->n ? s->f[0].file : "");
    }
    return 0;
}

void task_set_free(struct task_set *s)
{
    for (int i = 0; i < s->n; i++)
        free(s->f[i].path);
    free(s->f);
    memset(s, 0, sizeof *s);
}

const struct task_file *task_set_find(const struct task_set *s, const char *id)
{
    for (int i = 0; s && i < s->n; i++)
        if (strcmp(s->f[i].id, id) == 0)
            return &s->f[i];
    return NULL;
}

int task_file_options(const struct task_file *f, struct str_list *words, struct err *err)
{
    static const char *const keys[3][2] = {
        {"template", "--template"}, {"metric", "--grade"}, {"max_new", "--max-new"}};
    char text[4096];
    for (int i = 0; i < 3; i++)
        if (json_text(f->j, keys[i][0], text, sizeof text)) {
            str_list_add(words, keys[i][1]);
            str_list_add(words, text);
        }
    return words->failed ? err_set(err, ERR_NOMEM, "tasks: out of memory") : 0;
}
