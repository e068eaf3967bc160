/*
 * manyrecords.c - records as a replay of a large model writes them, with made-up numbers, to
 * measure what reads them.
 *
 *   manyrecords N DIR
 *
 * Writes N records to DIR/records.jsonl (DIR is created): 32 layers x 32 heads of a trace under
 * dense and five settings, then the next trace. A line has 1.2 to 1.7 KB.
 */
#include "core/record.h"
#include "core/mem.h"
#include "core/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define LAYERS 32
#define HEADS 32

static const char *const settings[][2] = {
    {"dense", ""},      {"streaming", "sink=4:window=256"}, {"sale", ""},
    {"spargeattn", ""}, {"spargeattn", "tau=0.9"},          {"oracle", "alpha=0.95"}};
#define SETTINGS (int)(sizeof settings / sizeof *settings)

/* Metrics between 0 and 1; the last ones of dense alone. */
static const char *const shares[] = {
    "density_elem",
    "density_tile",
    "density_rect",
    "density_tile@64x64",
    "density_tile@128x128",
    "sparsity_qk",
    "sparsity_pv",
    "sparsity_total",
    "sparsity_total_rect",
    "density_exec",
    "cra_min",
    "cra_p1",
    "cra_p5",
    "cra_p50",
    "cra_mean",
    "err_l1_rel",
    "err_l1_tok",
    "err_l2_rel",
    "err_cos",
    "err_cos_row_min",
    "err_rmse",
    "err_max",
    "err_lse_mean",
    "err_lse_max",
    "rows_empty",
    "pairs_kept",
    "pairs_allowed",
    "pairs_exec",
    "cost_select_flops",
    "host_select_ns",
    "host_attend_ns",
    "host_prepare_ns",
    "below_b16",
    "below_b32",
    "below_b64",
    "below_b128",
    "below_s16",
    "below_s64",
    "below_s128",
    "p_max",
    "sim_q",
    "sim_k",
};
#define OF_DENSE 10
#define SHARES (int)(sizeof shares / sizeof *shares)

static int put(int64_t i, struct buf *line, struct err *err)
{
    int64_t cell = i % ((int64_t)SETTINGS * LAYERS * HEADS);
    const char *const *setting = settings[cell % SETTINGS];
    struct record r;
    int n = strcmp(setting[0], "dense") == 0 ? SHARES : SHARES - OF_DENSE, rc = 0;

    record_init(&r);
    snprintf(r.trace, sizeof r.trace, "xxh3:%032llx",
             (unsigned long long)(i / ((int64_t)SETTINGS * LAYERS * HEADS)));
    record_text(&r, &r.model, "made-up");
    snprintf(r.method, sizeof r.method, "%s", setting[0]);
    r.params = strdup(setting[1]);
    r.layer = (int)(cell / SETTINGS / HEADS);
    r.head = (int)(cell / SETTINGS % HEADS);
    r.kv_head = r.head / 4;
    r.n_q = r.n_k = 4096;
    r.d = 128;
    r.causal = true;
    for (int k = 0; k < n; k++)
        TRY(record_metric(&r, shares[k],
                          (double)rng_below(0, (uint64_t)i, (uint64_t)k, 1u << 30) / (1u << 30),
                          err));
    buf_reset(line);
    record_json(&r, line);
    TRY(buf_check(line, "record", err));
out:
    record_free(&r);
    return rc;
}

static int write_all(const char *path, int64_t n, struct err *err)
{
    OWN(buf_free) struct buf line = {0};
    FILE *f = fopen(path, "w");
    int rc = f ? 0 : err_sys(err, ERR_IO, "%s", path);
    for (int64_t i = 0; i < n && !rc; i++) {
        rc = put(i, &line, err);
        if (!rc && fwrite(line.data, 1, line.len, f) != line.len)
            rc = err_sys(err, ERR_IO, "%s", path);
    }
    if (f && fclose(f) && !rc)
        rc = err_sys(err, ERR_IO, "%s", path);
    return rc;
}

int main(int argc, char **argv)
{
    struct err err = {0};
    char path[4096];
    int64_t n = argc == 3 ? strtoll(argv[1], NULL, 10) : 0;
    if (n < 1) {
        fprintf(stderr, "usage: manyrecords N DIR\n");
        return 2;
    }
    mkdir(argv[2], 0777);
    snprintf(path, sizeof path, "%s/records.jsonl", argv[2]);
    if (write_all(path, n, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    return 0;
}
