/*
 * test_maskexport.c - dumped masks as tensors of other libraries, read back by the method mask.
 */
#include "analyze/maskexport.h"
#include "core/arrayfile.h"
#include "tests/harness/conform.h"

enum { N = 150, DUMPED = 3 };

static const char *const settings[DUMPED] = {
    "streaming:sink=3:window=20", "oracle:kind=block:unit=32x16:alpha=0.5", "oracle:kind=topk:k=7"};

struct sink {
    struct maskfile *file;
    struct record id;
    uint8_t *bits;
};

static int keep(void *ctx, const struct mask *m, const double *out, const double *lse,
                struct err *err)
{
    struct sink *s = ctx;
    PASS_ON(sink_bits(s->bits, m, out, lse, err));
    return maskfile_put(s->file, &s->id, NULL, m, err);
}

/* Masks of two heads of a call, with every setting; bits [DUMPED][2][N][N]. */
static void dump(const char *path, const int heads[2], bool causal, uint8_t *bits)
{
    struct maskfile *f = NULL;
    OWN(sim_head_free) struct sim_head h;
    conform_head(NORMAL, N, N, causal, PREC_F64, &h);
    MUST(maskfile_create(path, true, &f, ERR));
    for (int k = 0; k < DUMPED; k++)
        for (int i = 0; i < 2; i++) {
            struct record r;
            struct sink s = {.file = f, .bits = bits + (k * 2 + i) * N * N};
            record_init(&s.id);
            snprintf(s.id.trace, sizeof s.id.trace, "xxh3:1");
            snprintf(s.id.method, sizeof s.id.method, "%s", k ? "oracle" : "streaming");
            snprintf(s.id.branch, sizeof s.id.branch, "%s", h.in.branch);
            s.id.params = strdup(strchr(settings[k], ':') + 1);
            s.id.layer = h.in.layer;
            s.id.head = h.in.head = heads[i];
            run_text_carry(settings[k], &h.in, NULL, 1, keep, &s, &r);
            ck_assert_int_eq(r.status, RECORD_OK);
            record_free(&r);
            record_free(&s.id);
        }
    MUST(maskfile_commit(&f, ERR));
}

/* Whole blocks over the mask. */
static void cover(const uint8_t *bits, int64_t bq, int64_t bk, bool causal, uint8_t *out)
{
    static bool any[N][N]; /* by block */
    memset(any, 0, sizeof any);
    for (int64_t e = 0; e < N * N; e++)
        any[e / N / bq][e % N / bk] |= bits[e];
    for (int64_t i = 0; i < N; i++)
        for (int64_t j = 0; j < N; j++)
            out[i * N + j] = any[i / bq][j / bk] && (j <= i || !causal);
}

static void export_setting(const char *from, int setting, struct mask_export how, const char *to,
                           struct mask_exported *done)
{
    OWN(maskfile_close) struct maskfile *f = NULL;
    OWN(mask_index_free) struct mask_index x;
    int64_t entries[2], n = 0;
    MUST(maskfile_open(from, &f, ERR));
    MUST(mask_index_make(f, &x, ERR));
    ck_assert(x.n == 2 * DUMPED && x.n_settings == DUMPED);
    for (int64_t i = 0; i < x.n; i++)
        if (x.entries[i].setting == setting)
            entries[n++] = i;
    how.entries = entries;
    how.n = n;
    MUST(mask_export(f, &x, &how, to, done, ERR));
}

static void assert_back(const char *path, int head, bool causal, const uint8_t *want)
{
    OWN(conform_result_free) struct conform_result res;
    OWN(sim_head_free) struct sim_head h;
    char text[600];
    conform_head(NORMAL, N, N, causal, PREC_F64, &h);
    h.in.head = head;
    h.in.n_kv_heads = h.in.n_heads; /* as many masks as kv heads would be those of kv heads */
    snprintf(text, sizeof text, "mask:file=%s", path);
    conform_run(text, &h.in, NULL, 1, &res);
    ck_assert_msg(res.r.status == RECORD_OK, "%s: %s", text, res.r.reason);
    ck_assert_msg(memcmp(res.bits, want, N * N) == 0, "%s, head %d: another mask", text, head);
}

/* _i: causal, heads together or apart, setting. */
TEST_N(exports_read_back, 4 * DUMPED)
{
    static uint8_t bits[DUMPED * 2 * N * N], want[N * N];
    static const int64_t units[][2] = {{0, 0}, {64, 64}, {16, 48}};
    bool causal = _i & 1;
    int apart = _i >> 1 & 1, setting = _i >> 2;
    const int heads[2] = {0, apart ? 7 : 1};
    const char *from = test_path("dump.h5"), *to = test_path("export.safetensors");
    dump(from, heads, causal, bits);
    for (int format = 0; format < 3; format++)
        for (int u = 0; u < (format ? 3 : 1); u++) {
            struct mask_export how = {(enum mask_format)format, units[u][0], units[u][1], NULL, 0};
            struct mask_exported done = {0};
            int64_t bq = u ? units[u][0] : setting == 0 ? 64 : setting == 1 ? 32 : 1;
            int64_t bk = u ? units[u][1] : setting == 0 ? 64 : setting == 1 ? 16 : 1;
            double added = 0;
            export_setting(from, setting, how, to, &done);
            ck_assert_int_eq(done.masks, 2);
            ck_assert_int_eq(done.tensors, format == 0   ? 1 + apart
                                           : format == 1 ? 5 + 5 * apart
                                                         : 6);
            for (int i = 0; i < 2; i++) {
                const uint8_t *mask = bits + (setting * 2 + i) * N * N;
                double more = 0;
                cover(mask, format ? bq : 1, format ? bk : 1, causal, want);
                assert_back(to, heads[i], causal, want);
                for (int e = 0; e < N * N; e++)
                    more += want[e] && !mask[e];
                added = fmax(added, more / (causal ? N * (N + 1) / 2. : N * N));
            }
            ck_assert_double_eq_tol(done.added, added, 1e-12);
        }
}

static const struct array_at *find_array(const struct array_file *f, const char *name)
{
    int64_t i = 0;
    while (strcmp(array_file_at(f, i)->name, name) != 0)
        i++;
    return array_file_at(f, i);
}

/* FlexAttention skips the mask of full blocks: they hold kept pairs only, and lie inside. */
TEST(full_blocks_are_full)
{
    static uint8_t bits[DUMPED * 2 * N * N];
    const int heads[2] = {0, 1};
    struct array_file *f = NULL;
    struct mask_exported done;
    struct mask_export how = {MASK_AS_BLOCKMASK, 16, 16, NULL, 0};
    const char *from = test_path("dump.h5"), *to = test_path("export.safetensors");
    enum { R = 10 };
    int64_t count[2][2 * R], index[2][2 * R * R], fulls = 0, partials = 0;
    dump(from, heads, true, bits);
    export_setting(from, 0, how, to, &done);
    MUST(array_file_open(to, &f, ERR));
    for (int full = 0; full < 2; full++) {
        char name[120];
        snprintf(name, sizeof name, "step-000.main.layer-03.%skv_num_blocks", full ? "full_" : "");
        MUST(array_read_i64(f, find_array(f, name), 0, 2 * R, count[full], ERR));
        snprintf(name, sizeof name, "step-000.main.layer-03.%skv_indices", full ? "full_" : "");
        MUST(array_read_i64(f, find_array(f, name), 0, 2 * R * R, index[full], ERR));
    }
    array_file_close(&f);
    for (int64_t g = 0; g < 2 * R; g++)
        for (int full = 0; full < 2; full++)
            for (int64_t e = 0; e < count[full][g]; e++) {
                int64_t r = g % R, c = index[full][g * R + e], kept = 0;
                for (int64_t i = r * 16; i < r * 16 + 16 && i < N; i++)
                    for (int64_t j = c * 16; j < c * 16 + 16 && j < N; j++)
                        kept += bits[(g / R * N + i) * N + j];
                ck_assert(full ? kept == 256 : kept > 0 && kept < 256);
                fulls += full;
                partials += !full;
            }
    ck_assert(partials > 0);
    ck_assert_int_eq(fulls,
                     0); /* a window of 20 has no full block of 16 x 16 beside the diagonal */
}
