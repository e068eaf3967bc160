/*
 * trace_known.c - a name in a trace that this build does not know can change what the rest means (a
 * window, a cap of the scores), so it is refused unless its group marks it as optional
 * (doc/trace-format.md, section 9).
 */
#include "core/trace_internal.h"

#include "core/version.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define LIST "optional" /* attribute: names in this group that may be ignored */

static const char *const root_attrs[] = {
    "format", "version_major", "version_minor", "tool", "complete", "content_id", NULL};
static const char *const root_links[] = {"types", "model", "run", "video", "calls", NULL};
static const char *const call_attrs[] = {"step",  "branch",   "layer", "order",
                                         "block", "timestep", "sigma", NULL};

static bool has_name(const char *const *list, const char *name)
{
    for (; *list; list++)
        if (strcmp(*list, name) == 0)
            return true;
    return false;
}

static bool is_payload(const char *name, bool of_run)
{
    static const struct trace_meta any;
    struct trace_array a;
    char sums[32];

    for (int i = 0; i < (of_run ? RUN_ARRAYS : CALL_ARRAYS); i++) {
        of_run ? trace_run_array(i, 0, &a) : trace_call_array(&any, NULL, i, &a);
        snprintf(sums, sizeof sums, "%s_xxh3", a.name);
        if (strcmp(name, a.name) == 0 || strcmp(name, sums) == 0)
            return true;
    }
    return false;
}

static bool link_known(enum trace_place at, const char *name)
{
    return at == TRACE_AT_ROOT    ? has_name(root_links, name)
           : at == TRACE_AT_TYPES ? strcmp(name, "bfloat16") == 0
           : at == TRACE_AT_RUN   ? is_payload(name, true)
           : at == TRACE_AT_CALL  ? is_payload(name, false)
                                  : false;
}

static bool attr_known(enum trace_place at, const char *name)
{
    static const char *const groups[] = {
        [TRACE_AT_MODEL] = "model", [TRACE_AT_RUN] = "run", [TRACE_AT_VIDEO] = "video"};
    bool of_meta = at == TRACE_AT_MODEL || at == TRACE_AT_RUN || at == TRACE_AT_VIDEO;

    return strcmp(name, LIST) == 0 || (at == TRACE_AT_ROOT && has_name(root_attrs, name)) ||
           (at == TRACE_AT_CALL && (has_name(call_attrs, name) || trace_score_has(name))) ||
           (of_meta && trace_meta_has(groups[at], name));
}

/* The format's names begin with a small letter; HDF5 itself, its high-level libraries and viewers
 * use CLASS, TITLE, NX_class, _NCProperties and the like. */
static bool attr_of_others(const char *name)
{
    return name[0] == '_' || isupper((unsigned char)name[0]);
}

bool trace_name_listed(const char *list, const char *name)
{
    size_t len = strlen(name);
    for (const char *p = list + strspn(list, " "); *p; p += strspn(p, " ")) {
        size_t n = strcspn(p, " ");
        if (n == len && strncmp(p, name, n) == 0)
            return true;
        p += n;
    }
    return false;
}

int trace_optional_names(hid_t group, char list[TRACE_OPTIONAL_MAX], struct err *err)
{
    list[0] = '\0';
    return h5_has_attr(group, LIST) ? h5_get_str(group, LIST, list, TRACE_OPTIONAL_MAX, err) : 0;
}

/* ---- a group --------------------------------------------------------------------------------- */

struct look {
    struct trace *t;
    enum trace_place at;
    const char *where, *optional;
    struct err *err;
    int rc;
};

static void ignore(struct look *l, const char *name)
{
    struct trace_ignored *i = &l->t->ignored;
    if (i->n++ == 0)
        snprintf(i->first, sizeof i->first, "%s/%s", strcmp(l->where, "/") == 0 ? "" : l->where,
                 name);
}

static int refuse(struct look *l, const char *kind, const char *name)
{
    return err_set(l->err, ERR_INPUT,
                   "%s: %s '%.100s' is not known to this lacuna (%s, format %d.%d) and can change "
                   "what the trace means; the file has format %d.%lld: read it with a newer "
                   "lacuna, or, if '%.100s' may be ignored, name it in the attribute '" LIST
                   "' of %s",
                   l->where, kind, name, lacuna_version(), TRACE_VERSION_MAJOR, TRACE_VERSION_MINOR,
                   TRACE_VERSION_MAJOR, (long long)l->t->minor, name, l->where);
}

static herr_t see_attr(hid_t group, const char *name, const H5A_info_t *info, void *ctx)
{
    struct look *l = ctx;
    (void)group;
    (void)info;
    if (attr_known(l->at, name) || attr_of_others(name))
        return 0;
    if (trace_name_listed(l->optional, name))
        ignore(l, name);
    else
        l->rc = refuse(l, "attribute", name);
    return l->rc ? 1 : 0;
}

static int see_links(hid_t group, struct look *l)
{
    char **names = NULL;
    int64_t n = 0;
    int rc = 0;

    TRY(h5_names(group, &names, &n, l->err));
    for (int64_t i = 0; i < n; i++) {
        bool listed = trace_name_listed(l->optional, names[i]);
        /* Any other name may be a step or a branch: the paths of the calls decide. */
        if (l->at == TRACE_AT_STEPS ? !listed : link_known(l->at, names[i]))
            continue;
        if (listed)
            ignore(l, names[i]);
        else
            TRY(refuse(l, "object", names[i]));
    }
out:
    h5_names_free(names, n);
    return rc;
}

int trace_refuse_unknown(struct trace *t, hid_t group, enum trace_place at, struct err *err)
{
    char where[128], optional[TRACE_OPTIONAL_MAX];
    struct look l = {.t = t, .at = at, .where = h5_where(group, where), .optional = optional};
    int rc = 0;

    l.err = err;
    TRY(trace_optional_names(group, optional, err));
    if (H5Aiterate2(group, H5_INDEX_NAME, H5_ITER_INC, NULL, see_attr, &l) < 0) {
        rc = h5_fail(err, ERR_INPUT, "%s: listing the attributes", where);
        goto out;
    }
    if ((rc = l.rc) != 0)
        goto out;
    TRY(see_links(group, &l));
out:
    return rc;
}
