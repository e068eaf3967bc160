/*
 * fuzz_arguments.c - values of options as texts: numbers, shares, enumerations, lists of layers and
 * heads, orders of tokens, shards, grouping keys.
 */
#include "tests/fuzz/fuzz.h"
#include "analyze/keys.h"
#include "capture/trace/trace_tools.h"
#include "core/opt.h"
#include "core/permute.h"
#include "core/shard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fields {
    int64_t whole;
    double number;
    bool flag;
    int kind;
    struct share share;
    char *text;
    struct str_list list;
};

static const char *const kinds[] = {"mean", "max", NULL};

static const struct opt table[] = {
    OPT_INT(struct fields, whole, "1", -5, 1e15, "", "Whole."),
    OPT_NUM(struct fields, number, "0.5", -1e6, 1e6, "", "Number."),
    OPT_BOOL(struct fields, flag, "0", "Flag."),
    OPT_ENUM(struct fields, kind, "mean", kinds, "Kind."),
    OPT_SHARE(struct fields, share, "8%", 0, 1e6, "", "Share."),
    OPT_STR(struct fields, text, "", NULL, "Text."),
    OPT_LIST(struct fields, list, NULL, NULL, "List."),
    {0},
};

static int seeds(struct fuzz_corpus *c, struct err *err)
{
    static const char *const texts[] = {
        "whole=12",
        "number=-1.5e3",
        "flag=1",
        "kind=max",
        "share=12.5%",
        "share=64",
        "text=a b c",
        "list=x,y",
        "heads=0,4-7",
        "heads=all",
        "permute=voxel:2x3x4",
        "permute=hilbert",
        "shard=1/4",
        "keys=method,layer,n_q",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        fuzz_add(c, texts[i], strlen(texts[i]));
    return 0;
}

static int set_field(const char *key, const char *value, struct err *err)
{
    struct fields a = {0}, b = {0};
    struct buf text = {0};
    int rc = 0;
    TRY(opt_defaults(table, &a, err));
    TRY(opt_set(table, &a, "fuzz", key, value, err));
    const struct opt *o = opt_find(table, key);
    if (a.whole < -5 || a.whole > 1000000000000000 || !(a.number >= -1e6 && a.number <= 1e6) ||
        a.kind < 0 || a.kind > 1)
        fuzz_wild("%s=%s: %lld, %g, %d", key, value, (long long)a.whole, a.number, a.kind);
    /* What is printed for a record gives the same value again. */
    opt_value_text(o, &a, &text);
    TRY(opt_defaults(table, &b, err));
    if (o->type != OPT_LIST && opt_set(table, &b, "fuzz", key, buf_str(&text), err) != 0)
        fuzz_wild("%s=%s is printed as '%s', which is refused", key, value, buf_str(&text));
    if (a.whole != b.whole || a.number != b.number || a.kind != b.kind)
        fuzz_wild("%s=%s is printed as '%s', which is another value", key, value, buf_str(&text));
out:
    opt_free(table, &a);
    opt_free(table, &b);
    buf_free(&text);
    return rc;
}

static int select_heads(const char *value, struct err *err)
{
    struct head_select s = {0};
    int rc = head_select_parse(value, 16, 4, &s, err);
    for (int i = 0; !rc && i < s.n; i++)
        if (s.head[i] < 0 || s.head[i] >= 16 || (i && s.head[i] <= s.head[i - 1]))
            fuzz_wild("heads %s: item %d is %d", value, i, s.head[i]);
    head_select_free(&s);
    return rc;
}

static int make_order(const char *value, struct err *err)
{
    struct geometry g = {0};
    int64_t *perm = NULL, n = 60;
    bool seen[60] = {false};
    g.t = 3, g.h = 4, g.w = 5;
    int rc = permute_check(value, err);
    if (!rc)
        rc = permute_make(value, &g, n, 1, &perm, err);
    for (int64_t i = 0; !rc && i < n; i++) {
        if (perm[i] < 0 || perm[i] >= n || seen[perm[i]]) {
            fuzz_wild("order %s: place %lld holds %lld", value, (long long)i, (long long)perm[i]);
            break;
        }
        seen[perm[i]] = true;
    }
    free(perm);
    return rc;
}

static int run(const void *data, size_t len, struct err *err)
{
    char key[16];
    const char *text = data, *value = strchr(text, '=');
    enum group_key keys[KEYS_MAX];
    struct shard shard;
    int n = 0;
    snprintf(key, sizeof key, "%.*s", (int)(value ? value - text : 0), text);
    value = value ? value + 1 : text;
    if (strcmp(key, "heads") == 0)
        return select_heads(value, err);
    if (strcmp(key, "permute") == 0)
        return make_order(value, err);
    if (strcmp(key, "keys") == 0)
        return keys_parse(value, "--by", keys, &n, err);
    if (strcmp(key, "shard") != 0)
        return set_field(key, value, err);
    int rc = shard_from_env(value, &shard, err);
    if (!rc && *value && (shard.index < 0 || shard.index >= shard.count))
        fuzz_wild("shard %s: %d of %d", value, (int)shard.index, (int)shard.count);
    return rc;
}

const struct fuzz_target fuzz_arguments = {"arguments", seeds, NULL, true, run};
