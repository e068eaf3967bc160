/*
 * fuzz_manifest.c - the manifest of an earlier run: continued, written again, read again.
 */
#include "tests/fuzz/fuzz.h"
#include "core/manifest.h"

#include <stdio.h>
#include <unistd.h>

#define ID_A "xxh3:00112233445566778899aabbccddeeff"
#define ID_B "xxh3:ffeeddccbbaa99887766554433221100"

/* One run in the scratch directory that reads two inputs. */
static int run_once(const char *id_b, struct err *err)
{
    static char words[4][8] = {"lacuna", "replay", "a.h5", "b.h5"};
    char *argv[] = {words[0], words[1], words[2], words[3], NULL};
    struct manifest *m = NULL;
    int rc = 0;
    TRY(manifest_start(fuzz_dir(), 4, argv, &m, err));
    manifest_json(m, "permute", json_string("none"));
    manifest_num(m, "cells", 12);
    TRY(manifest_input(m, "a.h5", ID_A, err));
    TRY(manifest_input(m, "b.h5", id_b, err));
out:
    if (m) {
        struct err second = {0};
        int end = manifest_finish(&m, rc ? "failed" : "ok", rc ? &second : err);
        rc = rc ? rc : end;
    }
    return rc;
}

static int seeds(struct fuzz_corpus *c, struct err *err)
{
    char path[512];
    snprintf(path, sizeof path, "%s/manifest.json", fuzz_dir());
    unlink(path);
    for (int i = 0; i < 3; i++) {
        PASS_ON(run_once(ID_B, err));
        PASS_ON(fuzz_add_file(c, path, err));
        fuzz_unseal(&c->seeds[c->n - 1]);
    }
    PASS_ON(run_once(ID_B, err));
    return fuzz_add_file(c, path, err); /* and one with its checksum */
}

static int run(const void *data, size_t len, struct err *err)
{
    struct err again = {0};
    fuzz_file("manifest.json", data, len);
    PASS_ON(run_once(ID_B, err));
    /* What was written is a manifest that the next run continues. */
    if (run_once(ID_B, &again) != 0)
        fuzz_wild("its own manifest is refused: %s", again.msg);
    return 0;
}

const struct fuzz_target fuzz_manifest = {"manifest", seeds, NULL, true, run};
