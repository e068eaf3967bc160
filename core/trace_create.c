/*
 * trace_create.c - the beginning and the end of writing a trace: the disk's space, the file under
 * its temporary name, the content id, the final name.
 */
#include "core/trace_writer.h"

#include "core/mem.h"

#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

void trace_write_advice(const struct trace_meta *m, bool copy, int sys, char text[TRACE_ADVICE_MAX])
{
    const char *smaller = copy                               ? ""
                          : strcmp(m->source, "import") == 0 ? ", or import fewer calls"
                          : m->grid_t > 0 ? ", or store fewer layers, heads or steps"
                                          : ", or store fewer layers, heads or tokens";
    text[0] = '\0';
    if (sys == ENOSPC || sys == EDQUOT)
        snprintf(text, TRACE_ADVICE_MAX, "make room there, write elsewhere%s", smaller);
    else if (sys == EFBIG)
        snprintf(text, TRACE_ADVICE_MAX,
                 "the file system there or ulimit -f allows no larger file: write elsewhere%s",
                 smaller);
}

/* Put the advice, if there is any, behind the message of a failed write. */
void trace_writer_advise(const struct trace_writer *w, struct err *err)
{
    char text[TRACE_ADVICE_MAX];
    size_t len = err ? strlen(err->msg) : 0;

    if (!err || !err->code)
        return;
    trace_write_advice(&w->meta, w->form.copy, err->sys, text);
    if (text[0] && !strstr(err->msg, text))
        snprintf(err->msg + len, sizeof err->msg - len, "; %s", text);
}

static int check_space(const char *path, const struct trace_meta *m, const struct trace_form *form,
                       struct err *err)
{
    struct statvfs fs;
    char advice[TRACE_ADVICE_MAX], *copy = strdup(path);
    int64_t have, need = form->need_bytes;
    int rc = 0;

    if (!copy)
        return err_set(err, ERR_NOMEM, "name of %s", path);
    const char *dir = dirname(copy);
    if (statvfs(dir, &fs) != 0)
        rc = err_sys(err, ERR_IO, "%s: its directory %s", path, dir);
    free(copy);
    if (rc)
        return rc;
    if (!mul_ok((int64_t)fs.f_bavail, (int64_t)fs.f_frsize, &have))
        have = INT64_MAX;
    trace_write_advice(m, form->copy, ENOSPC, advice);
    if (need > have)
        return err_set(err, ERR_MACHINE,
                       "%s needs %.3f GB (%lld bytes) of disk space, %.3f GB (%lld "
                       "bytes) are free there; %s",
                       path, (double)need / 1e9, (long long)need, (double)have / 1e9,
                       (long long)have, advice);
    return 0;
}

/* bfloat16 is a type of its own in the file, so that viewers show its name. */
static int commit_type(struct trace_writer *w, struct err *err)
{
    hid_t group = H5I_INVALID_HID, props = H5I_INVALID_HID;
    int rc = 0;

    w->type = h5_type(w->meta.dtype);
    if (w->meta.dtype != DT_BF16)
        return 0;
    TRY(h5_create_group(w->part.file, "types", &group, err));
    props = H5Pcreate(H5P_DATATYPE_CREATE);
    H5Pset_obj_track_times(props, 0);
    if (H5Tcommit2(group, "bfloat16", w->type, H5P_DEFAULT, props, H5P_DEFAULT) < 0)
        rc = h5_fail(err, ERR_IO, "type bfloat16");
out:
    h5_close(props);
    h5_close(group);
    return rc;
}

static int start_file(struct trace_writer *w, struct err *err)
{
    int rc = 0;
    TRY(commit_type(w, err));
    TRY(trace_meta_put(w->part.file, &w->meta, err));
    TRY(h5_open_group(w->part.file, "run", &w->run, err));
    TRY(h5_create_group(w->part.file, "calls", &w->calls, err));
    if (H5Fflush(w->part.file, H5F_SCOPE_GLOBAL) < 0)
        rc = h5_fail(err, ERR_IO, "flush");
out:
    if (rc)
        err_prefix(err, "%s", w->part.part);
    return rc;
}

int trace_create_as(const char *path, const struct trace_meta *m, const struct trace_form *form,
                    struct trace_writer **out, struct err *err)
{
    struct trace_writer *w = NULL;
    int rc = 0;

    TRY(mem_zalloc(&w, 1, sizeof *w, "trace writer", err));
    w->meta = *m;
    w->form = *form;
    w->last_order = -1;
    w->type = w->calls = w->run = w->group = H5I_INVALID_HID;
    for (int i = 0; i < CALL_ARRAYS; i++)
        w->out[i].dset = H5I_INVALID_HID;
    TRY(trace_meta_check(&w->meta, err));
    TRY(check_space(path, &w->meta, form, err));
    /* 1.0 until something needs more: older programs read what they can. */
    w->extended = m->row_group != 0;
    TRY(h5_part_create(&w->part, path, TRACE_FORMAT, TRACE_VERSION_MAJOR,
                       w->extended ? TRACE_VERSION_MINOR : 0, form->force, err));
    h5_lock();
    rc = start_file(w, err);
    h5_unlock();
    if (rc)
        goto out;
    content_meta(&w->meta, &w->content);
    *out = w;
    w = NULL;
out:
    if (w)
        trace_writer_advise(w, err);
    trace_abort(&w);
    return rc;
}

int trace_create(const char *path, const struct trace_meta *m, int64_t n_calls, bool force,
                 struct trace_writer **out, struct err *err)
{
    struct trace_form form = {.jobs = 1, .need_bytes = trace_size(m, n_calls), .force = force};
    return trace_create_as(path, m, &form, out, err);
}

/* ---- commit ---------------------------------------------------------------------------------- */

static void release(struct trace_writer *w)
{
    h5_lock();
    trace_writer_end_arrays(w);
    h5_close(w->run);
    h5_close(w->calls);
    h5_close(w->type);
    h5_unlock();
    for (int i = 0; i < RUN_ARRAYS; i++)
        free(w->run_arrays[i].sums);
    buf_free(&w->content);
}

static int write_id(struct trace_writer *w, struct err *err)
{
    char id[HASH_TEXT_MAX];
    for (int i = 0; i < RUN_ARRAYS; i++)
        content_array(&w->run_arrays[i], &w->content);
    int rc = buf_check(&w->content, "content id", err);
    if (rc)
        return rc;
    hash_text(hash_bytes(buf_str(&w->content), w->content.len), id);
    return h5_put_str(w->part.file, "content_id", id, err);
}

int trace_commit(struct trace_writer **wp, struct err *err)
{
    struct trace_writer *w = *wp;
    int rc = 0;

    if (w->meta.row_group != 0 && !w->run_arrays[ARR_ROWS].present)
        FAIL(err, ERR_RUN, "%s: the positions of its rows are missing", w->part.path);
    if (w->failed || w->in_call)
        FAIL(err, ERR_RUN, "%s: the file is not finished: %s", w->part.path,
             w->failed ? "writing failed before" : "the last call was not ended");
    h5_lock();
    rc = write_id(w, err);
    h5_unlock();
    if (rc)
        goto out;
    release(w);
    if ((rc = h5_part_commit(&w->part, err)) != 0)
        trace_writer_advise(w, err);
    free(w);
    *wp = NULL;
    return rc;
out:
    trace_abort(wp);
    return rc;
}

void trace_abort(struct trace_writer **wp)
{
    struct trace_writer *w = *wp;
    if (!w)
        return;
    release(w);
    h5_part_abort(&w->part);
    free(w);
    *wp = NULL;
}
