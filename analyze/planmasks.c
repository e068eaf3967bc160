/*
 * planmasks.c - see planmasks.h. Masks are made by `lacuna replay`, which knows methods and traces;
 * here is only what comes out of it.
 */
#include "analyze/planmasks.h"

#include "core/fileio.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/mem.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* As the method plan has it (sim/methods/plan.c): the content's hash. */
static int plan_id(const char *path, char id[HASH_TEXT_MAX], struct err *err)
{
    struct buf file = {0};
    char text[HASH_TEXT_MAX];
    int rc = buf_read_file(&file, path, (size_t)256 << 20, err);
    if (!rc) {
        hash_text(hash_bytes(buf_str(&file), file.len), text);
        snprintf(id, HASH_TEXT_MAX, "%s", strchr(text, ':') + 1);
    }
    buf_free(&file);
    return rc;
}

/* ---- the replay ----------------------------------------------------------------------------- */

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    return remove(path);
}

/* A folder that a replay writes into. */
static int make_folder(const char *output, struct buf *folder, struct err *err)
{
    buf_printf(folder, "%s.masks.XXXXXX", output);
    int rc = buf_check(folder, output, err);
    if (!rc && !mkdtemp(folder->data)) {
        rc = err_set(err, ERR_IO, "%s: cannot make a folder: %s", buf_str(folder), strerror(errno));
        buf_reset(folder);
    }
    return rc;
}

/* lacuna replay DATA -m plan:file=PLAN --dump-masks FOLDER/masks.h5 -o FOLDER/run -q */
static int replay(const struct app *app, const struct plan_masks *x, const char *folder,
                  struct err *err)
{
    const struct command *cmd = app_command(app, "replay", err);
    enum log_level level = log_get_level();
    struct buf method = {0}, dump = {0}, run = {0}, jobs = {0}, seed = {0};
    int rc = 0;
    if (!cmd)
        return err->code;
    buf_printf(&method, "plan:file=%s", x->plan);
    buf_printf(&dump, "%s/masks.h5", folder);
    buf_printf(&run, "%s/run", folder);
    buf_printf(&jobs, "%lld", (long long)x->common->jobs);
    buf_printf(&seed, "%lld", (long long)x->common->seed);
    TRY(buf_check(&method, "replay", err));
    TRY(buf_check(&dump, "replay", err));
    TRY(buf_check(&run, "replay", err));
    TRY(buf_check(&jobs, "replay", err));
    TRY(buf_check(&seed, "replay", err));
    /* clang-format off */
    const char *const words[] = {x->data, "-m", buf_str(&method), "--dump-masks", buf_str(&dump),
                                 "-o", buf_str(&run), "--jobs", buf_str(&jobs), "--seed",
                                 buf_str(&seed), "-q", NULL};
    /* clang-format on */
    char *argv[sizeof words / sizeof *words];
    memcpy(argv, words, sizeof words);
    rc = cmd->run(app, (int)(sizeof words / sizeof *words) - 1, argv, err);
    log_set_level(level);
out:
    buf_free(&method);
    buf_free(&dump);
    buf_free(&run);
    buf_free(&jobs);
    buf_free(&seed);
    return rc;
}

/* ---- the masks ------------------------------------------------------------------------------ */

/* The setting of the plan in a dump; -1: none. */
static int setting_of(const struct mask_index *x, const char *id)
{
    char want[HASH_TEXT_MAX + 4];
    snprintf(want, sizeof want, "id=%s", id);
    for (int k = 0; k < x->n_settings; k++)
        if (strcmp(x->settings[k].method, "plan") == 0 && strcmp(x->settings[k].params, want) == 0)
            return k;
    return -1;
}

/* The entries of the plan's masks, all of one trace. */
static int choose_entries(const struct mask_index *x, const char *path, const char *id,
                          int64_t **entries, int64_t *n, struct err *err)
{
    int setting = setting_of(x, id), rc = 0;
    const struct mask_entry *first = NULL;
    *n = 0;
    if (setting < 0)
        FAIL(err, ERR_INPUT, "%s has no masks of this plan (its id is %s)", path, id);
    TRY(mem_alloc(entries, x->n, sizeof **entries, "masks", err));
    for (int64_t i = 0; i < x->n; i++) {
        const struct mask_entry *e = &x->entries[i];
        if (e->setting != setting)
            continue;
        first = first ? first : e;
        if (strcmp(e->trace, first->trace) != 0)
            FAIL(err, ERR_INPUT,
                 "%s has masks of several traces, whose tensors would have the same names: export "
                 "one at a time (lacuna mask export %s --trace %.21s ...)",
                 path, path, e->trace);
        (*entries)[(*n)++] = i;
    }
out:
    return rc;
}

static int export_dump(const struct plan_masks *x, struct maskfile *f, const char *path,
                       const char *id, struct mask_exported *done, struct err *err)
{
    struct mask_index index = {0};
    struct mask_export how = {.format = x->format, .bq = x->bq, .bk = x->bk};
    int64_t *entries = NULL;
    int rc = 0;
    TRY(mask_index_make(f, &index, err));
    TRY(choose_entries(&index, path, id, &entries, &how.n, err));
    how.entries = entries;
    TRY(mask_export(f, &index, &how, x->output, done, err));
out:
    free(entries);
    mask_index_free(&index);
    return rc;
}

int plan_masks_export(const struct app *app, const struct plan_masks *x, struct mask_exported *done,
                      struct err *err)
{
    struct maskfile *f = NULL;
    struct buf folder = {0}, path = {0};
    struct err no_dump = {0};
    char id[HASH_TEXT_MAX];
    int rc = 0;

    TRY(plan_id(x->plan, id, err));
    buf_puts(&path, x->data);
    if (maskfile_open(x->data, &f, &no_dump) != 0) {
        TRY(make_folder(x->output, &folder, err));
        TRY(replay(app, x, buf_str(&folder), err));
        buf_reset(&path);
        buf_printf(&path, "%s/masks.h5", buf_str(&folder));
        TRY(buf_check(&path, "masks", err));
        TRY(maskfile_open(buf_str(&path), &f, err));
    }
    TRY(buf_check(&path, "masks", err));
    TRY(export_dump(x, f, buf_str(&path), id, done, err));
out:
    maskfile_close(&f);
    if (folder.len)
        nftw(buf_str(&folder), remove_one, 8, FTW_DEPTH | FTW_PHYS);
    buf_free(&folder);
    buf_free(&path);
    return rc;
}
