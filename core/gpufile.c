/*
 * gpufile.c - the files of the cost model: GPUs and kernels (gpumodel.h).
 */
#include "core/environment.h"
#include "core/gpumodel.h"

#include <glob.h>
#include <stdio.h>
#include <string.h>

#define FILE_MOST ((size_t)1 << 20)
#define TEXT_(...) #__VA_ARGS__
#define TEXT(...) TEXT_(__VA_ARGS__)

/* The numbers with these keys, "a, b; c" where c may be absent and then is 0. Each has a source,
 * its own ({"value", "unit", "source"}) or that of the object. */
static int read_numbers(const char *path, const json_t *o, const char *keys, double *out,
                        struct err *err)
{
    char key[32];
    bool needed = true;
    for (int n; sscanf(keys, "%31[a-z0-9_]%n", key, &n) == 1; out++) {
        const json_t *v = json_object_get(o, key), *of = json_is_object(v) ? v : o;
        const char *source = json_string_value(json_object_get(of, "source"));
        const char *unit = of == o ? "1" : json_string_value(json_object_get(v, "unit"));
        const json_t *x = of == o ? v : json_object_get(v, "value");
        *out = json_number_value(x);
        if ((v || needed) && (!(source && *source && unit && *unit) || !json_is_number(x) ||
                              *out < 0 || (of != o && *out == 0)))
            return err_set(err, ERR_INPUT, "%s: %s: it wants a value above 0, a unit and a source",
                           path, key);
        keys += n;
        needed &= *keys != ';';
        keys += strspn(keys, ",; ");
    }
    return 0;
}

static int read_entries(const char *path, const json_t *list, const char *keys,
                        struct kernel_model *out, int *n, struct err *err)
{
    const json_t *o;
    const char *name;
    size_t i;
    int rc = 0;
    if (json_array_size(list) > MODEL_ENTRIES)
        FAIL(err, ERR_INPUT, "%s: more than %d kernels or methods", path, MODEL_ENTRIES);
    json_array_foreach(list, i, o)
    {
        TRY(jget_str(o, "name", path, &name, err));
        snprintf(out[i].name, MODEL_NAME, "%s", name);
        TRY(read_numbers(path, o, keys, out[i].number, err));
    }
    *n = (int)json_array_size(list);
out:
    return rc;
}

static int read_gpu(const char *path, struct gpu_model *g, struct err *err)
{
    struct buf of_kernels = {0};
    json_t *gpu = NULL, *o = NULL;
    const char *name;
    int rc = 0;
    *g = (struct gpu_model){.tune = 1, .choosing = 1, .exp = 1, .tensor = 1};
    TRY(json_read_file(path, FILE_MOST, &gpu, err));
    TRY(jget_str(gpu, "name", path, &name, err));
    snprintf(g->name, sizeof g->name, "%s", name);
    TRY(read_numbers(path, gpu, TEXT(GPU_NEEDS) ";" TEXT(GPU_MAY), g->number, err));
    g->copy = g->copy > 0 ? g->copy : g->memory;
    TRY(datadir_find("kernels.json", &of_kernels, err));
    path = buf_str(&of_kernels);
    TRY(json_read_file(path, FILE_MOST, &o, err));
    TRY(read_numbers(path, json_object_get(o, "shared"), TEXT(LAUNCH_NEEDS), g->shared, err));
    TRY(read_entries(path, json_object_get(o, "kernels"), TEXT(KERNEL_NEEDS) ";" TEXT(KERNEL_MAY),
                     g->k, &g->n_kernels, err));
    TRY(read_entries(path, json_object_get(o, "select"), TEXT(SELECT_NEEDS), g->select,
                     &g->n_select, err));
out:
    json_decref(gpu);
    json_decref(o);
    buf_free(&of_kernels);
    return rc;
}

int gpu_model_load(const char *name, struct gpu_model *g, struct err *err)
{
    char below[64];
    struct buf path = {0};
    if (strchr(name, '/') || strstr(name, ".json"))
        return read_gpu(name, g, err);
    snprintf(below, sizeof below, "gpus/%s.json", name);
    int rc = datadir_find(below, &path, NULL)
                 ? err_set(err, ERR_USAGE, "unknown GPU '%s' (lacuna list gpus names them)", name)
                 : read_gpu(buf_str(&path), g, err);
    buf_free(&path);
    return rc;
}

int gpu_models_list(struct jw *w, struct err *err)
{
    struct buf pattern = {0};
    glob_t files = {0};
    struct gpu_model g;
    int rc = 0;
    TRY(datadir_find("gpus", &pattern, err));
    buf_puts(&pattern, "/*.json");
    if (glob(buf_str(&pattern), 0, NULL, &files))
        FAIL(err, ERR_INPUT, "%s: no file of a GPU", buf_str(&pattern));
    for (size_t i = 0; i < files.gl_pathc; i++) {
        char text[160];
        TRY(read_gpu(files.gl_pathv[i], &g, err));
        snprintf(text, sizeof text,
                 "for --gpu: sm_%.0f, %.0f multiprocessors, %.0f TFLOP/s at %.2f GHz, %.0f GB/s%s",
                 g.architecture, g.multiprocessors, g.peak_bf16, g.clock_rated, g.memory,
                 g.sustained_clock > 0 ? "; clock measured" : "");
        jw_obj(w);
        jw_kstr(w, "name", g.name);
        jw_kstr(w, "summary", text);
        jw_kstr(w, "for", "analyze --table model --gpu");
        jw_obj_end(w);
    }
out:
    globfree(&files);
    buf_free(&pattern);
    return rc;
}
