/*
 * test_calls.c - replays call by call: with a back end that computes on the CPU, in double, the
 * records of heads say what they say one by one, and a record of each call has its times. What is
 * done again after an interruption, what shards share, and what a call with a missing head is.
 */
#include "core/cmd.h"
#include "core/fileio.h"
#include "core/intmath.h"
#include "core/rng.h"
#include "core/trace.h"
#include "sim/accelattend.h"
#include "sim/blocks/exact.h"
#include "sim/simulate.h"
#include "tests/harness/accelrun.h"
#include "tests/harness/rulechoice.h"
#include "tests/harness/methodrun.h"
#include "tests/harness/trace_fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

extern const struct command cmd_replay;

enum { N = 300, D = 16, HEADS = 4, KV = 2, LAYERS = 2 };

/* ---- a back end ----------------------------------------------------------------------------- */

struct accel_session {
    int n, group;           /* of the last call */
    int launches, selected; /* calls attended to; heads chosen for */
    int rules;              /* that the neighbours of these heads do not share */
    int filtered, whole;    /* heads with a filter, heads that attend densely */
    bool timed;
    struct mask kept[HEADS]; /* owned, where masks stay on the device */
    int stayed;              /* heads of which only counts came */
    bool holds;              /* it keeps what it makes of static masks: it was asked for them */
    uint64_t static_id;      /* of the masks in `held`; 0: nothing is held */
    struct mask held[HEADS]; /* owned */
    int reused;              /* calls attended to over them */
    int local_rank;          /* that it was opened for */
};

static struct accel_session session;
static struct method_run *settings; /* that the device tells apart by their rules */
static int64_t n_settings;
static int ceilings_measured; /* so often, over all sessions */
static int driver = 13000;

static int open_session(const struct accel_options *o, struct accel_session **out, struct err *err)
{
    (void)err;
    session = (struct accel_session){.timed = o->samples > 0, .local_rank = o->local_rank};
    *out = &session;
    return 0;
}

static void close_session(struct accel_session **s)
{
    for (int h = 0; h < HEADS; h++) {
        mask_free(&(*s)->kept[h]);
        mask_free(&(*s)->held[h]);
    }
    *s = NULL;
}

/* A filter that skips half of the tiles, and changes nothing by it. */
static bool filters_half(const struct accel_session *s, const struct accel_head *h, char why[160])
{
    return true;
}

static int describe(struct accel_session *s, struct jw *w, struct err *err)
{
    jw_kstr(w, "name", "none");
    jw_kstr(w, "uuid", "GPU-1");
    jw_kint(w, "cuda_driver", driver);
    jw_kint(w, "cuda_runtime", 13000);
    return 0;
}

static int ceilings(struct accel_session *s, struct jw *w, struct err *err)
{
    jw_knum(w, "matmul_8192_tflops", 700 + ceilings_measured++);
    jw_knum(w, "copy_tb_per_s", 4.2);
    return 0;
}

static int64_t bytes_peak(const struct accel_session *s)
{
    return 0;
}

/* A device that keeps the masks of one static number. */
static bool holds(struct accel_session *s, uint64_t static_id)
{
    s->holds = true;
    return s->static_id == static_id;
}

/* What head h of the call keeps, into *m; its blocks in the lists, or none. */
static int64_t mask_of(struct accel_session *s, const struct accel_call *c,
                       const struct accel_lists *l, int h, struct mask *m, struct err *err)
{
    const struct mask *kept = s->kept + h;
    const int64_t *ptr = accel_rows_of(c, l, h);
    bool holding = s->holds && l->static_id, held = holding && l->static_id == s->static_id;
    if (held || l->made) {
        ck_assert_ptr_null(ptr);
        ck_assert(held || l->made > ACCEL_LISTS ||
                  (kept->bq % l->bq == 0 && kept->bk % l->bk == 0));
        assert_ok(mask_lists_rows(held ? s->held + h : kept, 0, N, m, err), err);
        return held ? 0 : kept->ptr[kept->ngroups];
    }
    accel_head_mask(c, l, h, m, err);
    if (holding && ptr) {
        mask_free(s->held + h);
        assert_ok(mask_lists_rows(m, 0, N, s->held + h, err), err);
        if (h == c->n - 1)
            s->static_id = l->static_id;
    }
    return ptr ? ptr[ceil_div(N, l->bq)] - ptr[0] : 0;
}

static void attend_part(struct accel_session *s, const struct accel_call *c,
                        const struct accel_lists *l, int h, struct err *err)
{
    struct accel_head *r = c->heads + h;
    struct accel_outs o;
    OWN(mask_free) struct mask m = {0};
    int64_t blocks = mask_of(s, c, l, h, &m, err);
    s->filtered += r->filter != NULL;
    s->whole += r->whole;
    ck_assert(!(r->filter && r->whole));
    r->pairs_exec = N;
    r->tiles_pv = r->filter ? 0.5 * (double)blocks : 0;
    if (h >= c->copies) {
        ck_assert_ptr_null(r->out); /* nobody dumps it */
        accel_compute(r->x, &m, PREC_F64, &o, err);
        accel_measure(r, &o, 0);
        accel_outs_free(&o);
    }
}

static struct accel_time around(double ns)
{
    return (struct accel_time){ns, ns - 10, ns + 10, 5};
}

static int attend_call(struct accel_session *s, const struct accel_call *c,
                       const struct accel_lists *l, struct accel_result *r, struct err *err)
{
    bool chosen = false, built = false;
    s->reused += s->holds && l->static_id && l->static_id == s->static_id;
    for (int h = l->first; h < l->first + l->count; h++) {
        const struct accel_head *a = c->heads + h;
        attend_part(s, c, l, h, err);
        ck_assert_ptr_eq(a->x->k, c->heads[h / c->group * c->group].x->k);
        chosen |= a->choice.method && !a->is_static;
        built |= a->choice.method && a->is_static;
    }
    s->n = c->n;
    s->group = c->group;
    s->launches++;
    accel_untimed(c, r);
    if (!s->timed)
        return 0;
    bool plan = l->made && !built; /* that of a static mask is part of `build` */
    if (plan)
        r->plan = (struct accel_time){20, 19, 21, 5};
    if (chosen)
        r->select = around(100);
    if (built)
        r->build = (struct accel_time){7, 6, 8, 5};
    r->attend = around(300);
    r->dense = around(1200);
    r->total = (struct accel_time){(chosen ? 400 : 300) + (plan ? 20 : 0), 390, 410, 5};
    return 0;
}

static struct accel_heads two_copies(const struct accel_session *s, const struct attn_in *x,
                                     struct accel_heads call)
{
    ck_assert(call.q == HEADS && call.kv == KV);
    return (struct accel_heads){2, 1};
}

/* What the method itself would choose: by the rule alone, or with the parameters whose rule it is.
 */
static void select_by_rule(const struct accel_head *h, int head, struct mask *m, struct err *err)
{
    const struct accel_choice *c = &h->choice;
    OWN(exact_free) struct exact exact;
    struct head_in in = {.x = *h->x,
                         .src_dtype = DT_F32,
                         .head = head,
                         .n_layers = LAYERS,
                         .branch = "main",
                         .exact = &exact};
    exact_init(&exact, h->x, PREC_F64);
    bool found = rule_choose(c, &in, m);
    for (; !found && in.layer < LAYERS; in.layer++)
        found = setting_choose(settings, n_settings, c, &in, m);
    ck_assert_msg(found, "%s: a rule of no setting", c->method);
}

static bool chooses(const struct accel_choice *c)
{
    return c->method && strcmp(c->method, "oracle") != 0;
}

static int select_call(struct accel_session *s, const struct accel_call *call, struct err *err)
{
    const union method_rule *before = NULL;
    for (int i = 0; i < call->n; i++) {
        struct accel_head *h = call->heads + i;
        const struct accel_choice *c = &h->choice;
        const struct attn_in *x = h->x;
        if (!chooses(c))
            continue;
        s->rules += !before || memcmp(before, c->rule, sizeof *before) != 0;
        before = c->rule;
        if (strcmp(c->method, "fg-attn") == 0) /* slices: nothing is kept but by force */
            assert_ok(mask_lists_init(&h->mask, x->nq, x->nk, 0, x->nq, x->causal, c->rule->fg.M,
                                      c->rule->fg.width, err),
                      err);
        else
            select_by_rule(h, 0, &h->mask, err);
        h->answer = 0;
        s->selected++;
    }
    return 0;
}

static void count_units(const struct mask *m, struct accel_units *u, struct err *err)
{
    struct mask_counts c;
    int64_t kept, allowed;
    *u = (struct accel_units){.on_device = true, .bq = m->bq, .bk = m->bk, .groups = m->ngroups};
    assert_ok(mask_count(m, &c, err), err);
    assert_ok(mask_tiles_kept(m, 64, 64, &kept, &allowed, err), err);
    assert_ok(accel_tiles_count(m, 1, u->tiles, err), err);
    u->tiles[1] = m->bq % 64 || m->bk % 64 ? u->tiles[1] : 0;
    u->pairs = c.pairs_kept;
    u->units = c.tiles_kept;
    u->empty = c.rows_empty;
    u->kept64 = kept;
    u->count = calloc((size_t)m->ngroups, sizeof *u->count);
    for (int64_t g = 0; g < m->ngroups; g++)
        u->count[g] = (int32_t)(m->ptr[g + 1] - m->ptr[g]);
}

/* Rows of tiles, as work_add counts them. */
static void count_tile_rows(const struct mask *m, struct accel_units *u, struct err *err)
{
    u->tile_rows = calloc((size_t)(m->nq / 128 + 1), sizeof *u->tile_rows);
    for (int64_t row = 0; row < m->nq; row += 128) {
        OWN(mask_free) struct mask rows;
        struct mask_work w = {0};
        assert_ok(mask_lists_rows(m, row, MIN(row + 128, m->nq), &rows, err), err);
        assert_ok(work_add(&w, &rows, err), err);
        u->tile_rows[row / 128] = (struct accel_tile_row){(int32_t)w.of[WORK_BITS].stages,
                                                          (int32_t)w.of[WORK_BITS].masked,
                                                          (int32_t)w.of[WORK_GATHER].stages * 128};
    }
}

static void fetch_map(const struct mask *m, struct accel_units *u)
{
    u->words = ((m->nk + m->bk - 1) / m->bk + 31) / 32;
    u->map = calloc((size_t)(u->groups * u->words), sizeof *u->map);
    for (int64_t g = 0; g < m->ngroups; g++)
        for (int64_t i = m->ptr[g]; i < m->ptr[g + 1]; i++)
            u->map[g * u->words + m->col[i] / 32] |= 1u << m->col[i] % 32;
}

/* A device that chooses what the method itself would, and keeps it. */
static int keep_call(struct accel_session *s, const struct accel_call *call, struct err *err)
{
    for (int i = 0; i < call->n; i++) {
        struct accel_head *h = call->heads + i;
        const struct accel_choice *c = &h->choice;
        struct mask *m = s->kept + i;
        if (!c->method)
            continue;
        mask_free(m);
        select_by_rule(h, i, m, err);
        h->answer = 0;
        s->selected++;
        bool stays = c->keep_on_device && m->form == MASK_LISTS;
        s->stayed += stays && !c->fetch;
        bool blocks = m->bq % 64 == 0 && m->bk % 64 == 0;
        if (stays)
            count_units(m, c->keep_on_device, err);
        if (stays && !blocks)
            count_tile_rows(m, c->keep_on_device, err);
        if (stays && (c->fetch || blocks))
            fetch_map(m, c->keep_on_device);
        else if (!stays && m->form == MASK_LISTS)
            assert_ok(mask_lists_rows(m, 0, m->nq, &h->mask, err), err);
        else if (!stays)
            mask_full(&h->mask, m->nq, m->nk, 0, m->nq, m->causal);
    }
    return 0;
}

static int map_on_cpu(struct accel_session *s, const struct attn_in *x, uint64_t data,
                      struct accel_map *m, struct err *err)
{
    accel_map_below(x, m, err);
    m->p_max = m->sum_err = NAN;
    return 0;
}

/* clang-format off */
#define ON_CPU                                                                                     \
    .name = "fake", .open = open_session, .close = close_session, .supports = accel_supports_all,  \
    .attend_call = attend_call, .map = map_on_cpu, .bytes_peak = bytes_peak, .describe = describe, \
    .ceilings = ceilings
/* clang-format on */
static const struct accel fake = {ON_CPU, .can_attend = filters_half, .copies = two_copies,
                                  .select_call = select_call};
static const struct accel holding = {ON_CPU, .has_cached = holds};
static const struct accel keeping = {ON_CPU, .can_attend = filters_half, .select_call = keep_call};

/* ---- replays -------------------------------------------------------------------------------- */

/* bad: the last layer has a NaN among its keys. */
static void make_trace(const char *path, bool bad)
{
    struct trace_meta m = fixture_text(DT_F32, HEADS, KV, N);
    m.layers = LAYERS;
    m.head_dim = m.v_dim = D;
    m.scale = 0.25;
    MUST(fixture_write_random(path, &m, 9, bad, ERR));
}

static const char *trace;

static void set_up(void)
{
    trace = test_path("calls.h5");
    if (access(trace, F_OK))
        make_trace(trace, false);
}

#define METHODS                                                                                    \
    "-m dense -m streaming:sink=2:window=40 -m spargeattn:pv=off:tau=0.5:theta=-1 -m oracle"
enum { RUNS = 4 };

struct set {
    struct record *records;
    int64_t count;
};

static void set_free(struct set *s)
{
    records_free(s->records, s->count);
}

/* `lacuna replay` with these words, on the CPU without a back end; the records in dir afterwards.
 */
static struct set replay_on(const struct accel *accel, const char *dir, const char *words)
{
    const struct app app = {.methods = test_methods, .accel = accel};
    char copy[1200], *argv[60];
    struct set s;
    int argc = 0;
    snprintf(copy, sizeof copy, "-q --backend %s %s -o %s %s", accel ? "cuda" : "cpu", trace, dir,
             words);
    for (char *w = strtok(copy, " "); w; w = strtok(NULL, " "))
        argv[argc++] = w;
    MUST(cmd_run(&cmd_replay, &app, argc, argv, ERR));
    MUST(records_load(dir, &s.records, &s.count, ERR));
    return s;
}

/* The n records `r` of a replay in the block. */
#define REPLAYED_ON(accel, r, n, dir, words)                                                       \
    OWN(set_free) struct set r##_set = replay_on(accel, dir, words);                               \
    const struct record *r = r##_set.records;                                                      \
    int64_t n = r##_set.count
#define REPLAYED(r, n, dir, words) REPLAYED_ON(&fake, r, n, dir, words)

/* Only how many there are. */
static int64_t replay(const char *dir, const char *words)
{
    OWN(set_free) struct set s = replay_on(&fake, dir, words);
    return s.count;
}

static int64_t count_of(const struct record *r, int64_t n, enum record_scope scope)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        count += r[i].scope == scope && r[i].status == RECORD_OK;
    return count;
}

static const struct record *find(const struct record *r, int64_t n, const struct record *like)
{
    for (int64_t i = 0; i < n; i++)
        if (r[i].scope == like->scope && r[i].layer == like->layer && r[i].head == like->head &&
            strcmp(r[i].method, like->method) == 0 &&
            (!like->params || strcmp(r[i].params, like->params) == 0))
            return r + i;
    return NULL;
}

/* Do the heads of the method keep different parts? */
static bool masks_differ(const struct record *r, int64_t n, const char *method)
{
    double least = INFINITY, most = 0;
    for (int64_t i = 0; i < n; i++)
        if (r[i].scope == RECORD_OF_HEAD && strcmp(r[i].method, method) == 0) {
            least = fmin(least, record_get(r + i, "density_elem"));
            most = fmax(most, record_get(r + i, "density_elem"));
        }
    return least < most && least < 1;
}

static bool measured(const char *name)
{
    static const char *const words[] = {"time_", "host_",   "copies",        "samples",
                                        "speed", "select_", "counter_copies"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strncmp(name, words[i], strlen(words[i])) == 0)
            return true;
    return strcmp(name, "density_kernel") == 0; /* a call has one geometry for all heads */
}

/* How many numbers two records share that no clock gives; they are equal. */
static int same_numbers(const struct record *a, const struct record *b)
{
    int compared = 0;
    for (int64_t k = 0; k < record_metrics(a); k++) {
        const char *name = a->names->name[k];
        double x = a->values[k], y = record_get(b, name);
        if (measured(name))
            continue;
        ck_assert_msg(fabs(x - y) <= 1e-6, "%s:%s head %d %s: %g and %g", a->method, a->params,
                      a->head, name, x, y);
        compared++;
    }
    return compared;
}

TEST(heads_say_what_they_say_one_by_one)
{
    int compared = 0;
    REPLAYED(calls, n, test_path("calls"), METHODS " --jobs 3");
    ck_assert_int_eq(session.launches, LAYERS * RUNS);
    ck_assert_int_eq(session.n, HEADS);
    ck_assert_int_eq(session.group, HEADS / KV);
    ck_assert_int_eq(session.selected, LAYERS * HEADS); /* spargeattn; no one else */
    ck_assert_int_eq(session.rules, LAYERS);
    ck_assert_int_eq(n, LAYERS * RUNS * (HEADS + 1));
    ck_assert_int_eq(count_of(calls, n, RECORD_OF_CALL), LAYERS * RUNS);
    ck_assert(masks_differ(calls, n, "spargeattn"));
    ck_assert(masks_differ(calls, n, "oracle"));
    REPLAYED(heads, m, test_path("heads"), METHODS " --copies 2");
    ck_assert_int_eq(m, LAYERS * RUNS * HEADS);
    ck_assert_int_eq(count_of(heads, m, RECORD_OF_HEAD), m);
    for (int64_t i = 0; i < m; i++) {
        const struct record *a = heads + i, *b = find(calls, n, a);
        ck_assert_ptr_nonnull(b);
        ck_assert(strstr(buf_str(&a->notes), "time=copies") != NULL);
        ck_assert(strstr(buf_str(&b->notes), "time=") == NULL);
        compared += same_numbers(a, b);
        for (int64_t k = 0; k < record_metrics(a); k++) {
            const char *name = a->names->name[k];
            ck_assert(!measured(name) || strcmp(name, "density_kernel") == 0 ||
                      strncmp(name, "host_", 5) == 0 || isnan(record_get(b, name)));
        }
    }
    ck_assert_int_gt(compared, 20 * (int)m);
}

#define UNITS                                                                                      \
    "-m oracle -m oracle:kind=topk:k=10% -m fg-attn:mode=pooled -m fg-attn:refresh=1:M=32 "        \
    "-m hash-sparse:buckets=6:proj_dir=axes -m sale:dense_below=0:tau=0.05:local=128 "             \
    "-m xattention:tau=0.5 -m sampleattention:alpha_c=0.5:alpha_s=0.3:block=64:chunks=2 "          \
    "-m sampleattention:profile=v2:alpha=0.4:rows=0.1:window=0.1 "                                 \
    "-m flexprefill:block=64:gamma=0.4:min_budget=0 -m "                                           \
    "flexprefill:tau=0.8:gamma=0.4:min_budget=0 "                                                  \
    "-m flexprefill:profile=frontier:gamma=0.2:min_budget=4 -m minference:pattern=block:top=2 "    \
    "-m minference:v=20:s=30:force_dists=5:min_s=5:min_v=4:force_cols=4 "                          \
    "-m minference:v=20:s=30:force_dists=5:min_s=5:min_v=4:force_cols=4:mask=requested "           \
    "-m oracle:kind=block:unit=64x64 -m spargeattn:pv=off:tau=0.5:theta=-1 "                       \
    "-m spargeattn:pv=30:tau=0.3:theta=-1:tile=64x128 -m sparse-transformer:stride=16 "            \
    "-m sparse-transformer:pattern=merged:stride=9"
enum { UNIT_RUNS = 20, ALONE = 18, BUILT = 2 };

/* Tell the device the settings of "-m SETTING ...". */
static void settings_parse(const char *words)
{
    char copy[1200];
    snprintf(copy, sizeof copy, "%s", words);
    for (char *w = strtok(copy, " "); w; w = strtok(NULL, " "))
        if (strcmp(w, "-m") != 0)
            MUST(method_runs_parse(test_methods, w, &settings, &n_settings, ERR));
}

/* A mask that stays on the device, and its counts alone or a copy come, says what the mask says. */
TEST(masks_may_stay_on_the_device)
{
    int compared = 0, planned = 0, built = 0;
    settings_parse(UNITS);
    REPLAYED(here, n, test_path("here"), UNITS " --select-backend cpu");
    REPLAYED_ON(&keeping, there, m, test_path("there"), UNITS);
    ck_assert_int_eq(n, LAYERS * UNIT_RUNS * (HEADS + 1));
    ck_assert_int_eq(m, n);
    ck_assert_int_eq(session.stayed, LAYERS * ALONE * HEADS);
    ck_assert(masks_differ(here, n, "oracle"));
    ck_assert(masks_differ(here, n, "spargeattn"));
    ck_assert(masks_differ(here, n, "hash-sparse"));
    ck_assert(masks_differ(here, n, "sampleattention"));
    ck_assert(masks_differ(here, n, "flexprefill"));
    ck_assert(masks_differ(here, n, "minference"));
    for (int64_t i = 0; i < m; i++) {
        const struct record *a = there + i, *b = find(here, n, a);
        ck_assert_ptr_nonnull(b);
        ck_assert_int_eq(a->status, b->status);
        planned += !isnan(record_get(a, "time_plan_ns"));
        built += record_get(a, "time_build_ns") == 7 && record_get(a, "time_select_ns") == 0 &&
                 record_get(a, "time_total_ns") == 300;
        compared += a->scope == RECORD_OF_HEAD ? same_numbers(a, b) : 0;
    }
    ck_assert_int_gt(compared, 20 * LAYERS * UNIT_RUNS * HEADS);
    ck_assert_int_ge(planned, LAYERS * (ALONE - BUILT + 2)); /* two have a copy here */
    ck_assert_int_eq(built, LAYERS * BUILT);
    method_runs_free(settings, n_settings);
}

/* In a call some heads skip P V, others attend exactly over their masks, and those that a
 * calibration left dense over all keys: where all are dense, nothing is chosen. */
TEST(heads_of_a_call_attend_each_in_its_way)
{
    int chosen = 0;
    char calib[300], words[400];
    OWN(buf_free) struct buf b = {0};
    snprintf(calib, sizeof calib, "%s/mixed-%d.json", test_tmpdir(), (int)getpid());
    buf_puts(&b, "{\"method\":\"spargeattn\",\"permute\":\"none\",\"params\":{},\"heads\":[");
    for (int i = 0; i < LAYERS * HEADS; i++)
        buf_printf(
            &b, "%s{\"layer\":%d,\"head\":%d,\"theta\":-1,\"tau\":%g,\"pv\":\"%s\",\"dense\":%s}",
            i ? "," : "", i / HEADS, i % HEADS, 0.3 + 0.1 * (i % HEADS),
            i % HEADS == 1 ? "off" : "10", i % HEADS && i < HEADS ? "false" : "true");
    buf_puts(&b, "]}");
    MUST(file_write_atomic(calib, buf_str(&b), b.len, ERR));
    snprintf(words, sizeof words, "-m spargeattn:calib=%s", calib);
    REPLAYED(r, n, test_path("mixed"), words);
    ck_assert_int_eq(n, LAYERS * (HEADS + 1));
    ck_assert_int_eq(count_of(r, n, RECORD_OF_HEAD), LAYERS * HEADS);
    ck_assert_int_eq(count_of(r, n, RECORD_OF_CALL), LAYERS);
    ck_assert_int_eq(session.launches, LAYERS);
    ck_assert_int_eq(session.rules, LAYERS * HEADS);
    ck_assert_int_eq(session.filtered, HEADS - 2);
    ck_assert_int_eq(session.whole, HEADS + 1);
    for (int64_t i = 0; i < n; i++) {
        bool dense = r[i].layer == 1 || r[i].head == 0;
        if (r[i].scope == RECORD_OF_CALL) {
            chosen += !isnan(record_get(r + i, "time_select_ns"));
            ck_assert_int_eq(strstr(buf_str(&r[i].notes), "select_kind=none") != NULL, dense);
            continue;
        }
        ck_assert_int_eq(record_get(r + i, "density_elem") == 1, dense);
        ck_assert_int_eq(record_get(r + i, "sparsity_pv") == record_get(r + i, "sparsity_qk"),
                         dense || r[i].head == 1);
    }
    ck_assert_int_eq(chosen, 1);
}

TEST(a_call_has_its_own_times)
{
    static const struct {
        const char *method, *kind, *where;
        double select, total;
    } want[] = {{"dense", "none", "none", NONE, 300},
                {"streaming", "static", "cpu", 0, 300},
                {"spargeattn", "own", "cuda", 100, 400},
                {"oracle", "own", "cpu", NONE, NONE}};
    REPLAYED(r, n, test_path("times"), METHODS);
    for (int k = 0; k < RUNS; k++) {
        char note[128];
        struct record like = {.scope = RECORD_OF_CALL, .layer = 1, .head = -1};
        snprintf(like.method, sizeof like.method, "%s", want[k].method);
        const struct record *c = find(r, n, &like);
        ck_assert_ptr_nonnull(c);
        snprintf(note, sizeof note, "time=call;select_backend=%s;select_kind=%s;", want[k].where,
                 want[k].kind);
        ck_assert_msg(strstr(buf_str(&c->notes), note) != NULL, "%s", buf_str(&c->notes));
        ck_assert_str_eq(c->heads, "");
        HAS(c, 0, "call_heads call_heads_kv time_attend_ns time_dense_ns density_elem", HEADS, KV,
            300, 1200, NONE);
        ck_assert_double_gt(record_get(c, "host_plan_ns"), -1);
        double total = want[k].total, pairs = HEADS * (N * (N + 1) / 2.0);
        HAS(c, 0, "time_select_ns time_total_ns", want[k].select, total);
        if (total > 0)
            HAS(c, 1e-9, "speedup speed_dense_eq", 1200 / total, 4e-3 * D * pairs / total);
        if (want[k].select > 0)
            HAS(c, 0, "select_share", 0.25);
    }
}

static void assert_same_cells(const struct record *a, const struct record *b)
{
    ck_assert_str_eq(a->method, b->method);
    ck_assert_int_eq(a->layer, b->layer);
    ck_assert_int_eq(a->head, b->head);
    ck_assert_int_eq(record_metrics(a), record_metrics(b));
    for (int64_t k = 0; k < record_metrics(a); k++)
        if (strncmp(a->names->name[k], "host_", 5) != 0 && !strstr(a->names->name[k], "select_ns"))
            ck_assert_msg(a->values[k] == record_get(b, a->names->name[k]), "%s",
                          a->names->name[k]);
}

/* The records, and their order, are the same whether the next call is read meanwhile or not. */
TEST(reading_ahead_changes_nothing)
{
    REPLAYED(ahead, n, test_path("ahead"), METHODS " --jobs 3");
    REPLAYED(alone, m, test_path("alone"), METHODS " --jobs 3 --read-ahead=0");
    ck_assert_int_eq(m, n);
    for (int64_t i = 0; i < n; i++)
        assert_same_cells(ahead + i, alone + i);
}

/* What is wrong with a call that was read ahead is told after the one before it is complete. */
TEST(a_call_that_cannot_be_read_ends_the_replay_in_its_turn)
{
    static const char *const how[] = {"--read-ahead=1", "--read-ahead=0"};
    const struct app app = {.methods = test_methods, .accel = &fake};
    const char *bad = test_path("bad.h5");
    make_trace(bad, true);
    for (int i = 0; i < 2; i++) {
        const char *dir = test_path(how[i] + 2);
        const char *argv[] = {"-q", "--backend", "cuda", bad, "-m", "dense", "-o", dir, how[i]};
        struct record *r;
        int64_t n = 0;
        FAILS(cmd_run(&cmd_replay, &app, 9, (char **)argv, ERR), ERR_INPUT, "layer 1");
        MUST(records_load(dir, &r, &n, ERR));
        ck_assert_int_eq(n, HEADS + 1); /* those of layer 0 */
        ck_assert_int_eq(count_of(r, n, RECORD_OF_HEAD), HEADS);
        records_free(r, n);
    }
}

static double matmul_of(const char *dir)
{
    char path[600];
    OWN(json_decrefp) json_t *doc = NULL;
    snprintf(path, sizeof path, "%s/manifest.json", dir);
    MUST(json_read_file(path, 1 << 20, &doc, ERR));
    return json_number_value(json_object_get(json_object_get(doc, "gpu"), "matmul_8192_tflops"));
}

/* Once per GPU and driver, kept beside the run; a file that nobody can read is as good as none. */
TEST(ceilings_are_measured_once)
{
    static const struct {
        const char *words;
        int driver, damage, measured;
    } steps[] = {
        {"-m dense", 13000, 0, 1}, {"-m dense", 13000, 0, 1}, {"-m dense --ceilings", 13000, 0, 2},
        {"-m dense", 13010, 0, 3}, {"-m dense", 13010, 0, 3}, {"-m dense", 13010, 1, 4}};
    const char *dir = test_path("ceilings");
    ceilings_measured = 0;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        char path[600];
        driver = steps[i].driver;
        snprintf(path, sizeof path, "%s/ceilings-GPU-1.json", dir);
        if (steps[i].damage)
            MUST(file_write_atomic(path, "{\"uuid\":", 8, ERR));
        replay(dir, steps[i].words);
        ck_assert_int_eq(ceilings_measured, steps[i].measured);
        ck_assert_double_eq(matmul_of(dir), 700 + steps[i].measured - 1);
        ck_assert(access(path, R_OK) == 0);
    }
    driver = 13000;
}

/* Of several GPUs the one of the launcher's local rank is asked for, whatever the shard. */
TEST(the_local_rank_picks_the_gpu)
{
    setenv("OMPI_COMM_WORLD_RANK", "3", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
    setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1", 1);
    replay(test_path("rank"), "-m dense --shard 0/1");
    ck_assert_int_eq(session.local_rank, 1);
    unsetenv("OMPI_COMM_WORLD_RANK");
    unsetenv("OMPI_COMM_WORLD_SIZE");
    unsetenv("OMPI_COMM_WORLD_LOCAL_RANK");
}

/* Masks that follow from sizes and parameters are made once, and tiles of them on the device too;
 * records say what they say on the CPU, where every head makes its own. */
TEST(static_masks_are_shared)
{
    static const struct {
        const char *method;
        int reused; /* of the calls of all layers */
    } cases[] = {{"longformer:window=9:global=2", LAYERS - 1},
                 {"sparse-transformer:stride=16", LAYERS - 1},
                 {"sparse-transformer:pattern=fixed:stride=64:block=16", LAYERS - 1},
                 {"streaming:sink=2:window=40", LAYERS - 1},
                 {"bigbird:preset=sample:random=2:block=32", 0}}; /* drawn for every head */
    char words[100];
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char name[40];
        snprintf(words, sizeof words, "-m %s --jobs 3", cases[k].method);
        snprintf(name, sizeof name, "shared%zu", k);
        REPLAYED_ON(&holding, shared, n, test_path(name), words);
        ck_assert_int_eq(n, LAYERS * (HEADS + 1));
        ck_assert_int_eq(session.reused, cases[k].reused);
        snprintf(name, sizeof name, "own%zu", k);
        REPLAYED_ON(NULL, own, m, test_path(name), words);
        ck_assert_int_eq(m, LAYERS * HEADS);
        for (int64_t i = 0; i < m; i++) {
            const struct record *b = find(shared, n, own + i);
            ck_assert_ptr_nonnull(b);
            ck_assert_double_lt(record_get(b, "density_elem"), 1);
            same_numbers(own + i, b);
        }
    }
}

/* Take out the first line that has both texts. */
static void drop_line(const char *dir, const char *one, const char *other)
{
    char path[600];
    OWN(buf_free) struct buf b = {0}, kept = {0};
    bool dropped = false;
    snprintf(path, sizeof path, "%s/records.jsonl", dir);
    MUST(buf_read_file(&b, path, 1 << 24, ERR));
    for (char *line = b.data, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        if (!dropped && strstr(line, one) && strstr(line, other))
            dropped = true;
        else
            buf_printf(&kept, "%s\n", line);
    }
    ck_assert(dropped);
    MUST(file_write_atomic(path, kept.data, kept.len, ERR));
}

/* What lacks is done, for all heads at once, and nothing else is written. */
TEST(what_lacks_is_done_again)
{
    static const struct {
        const char *one, *other;
        int launches;
    } cases[] = {{"\"scope\":\"call\"", "\"method\":\"dense\"", 1},
                 {"\"head\":2,", "\"method\":\"spargeattn\"", 1}};
    const char *dir = test_path("again");
    int64_t all = replay(dir, METHODS);
    ck_assert_int_eq(replay(dir, METHODS), all);
    ck_assert_int_eq(session.launches, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        drop_line(dir, cases[i].one, cases[i].other);
        ck_assert_int_eq(replay(dir, METHODS), all);
        ck_assert_int_eq(session.launches, cases[i].launches);
        ck_assert_int_eq(session.n, HEADS);
    }
    /* Without times there is no call to do. */
    drop_line(dir, cases[0].one, cases[0].other);
    ck_assert_int_eq(replay(dir, METHODS " --samples 0"), all - 1);
    ck_assert_int_eq(session.launches, 0);
}

/* Layers go to shards whole; where there are fewer layers than shards, groups of heads do. */
TEST(shards_share_calls)
{
    static const char *const parts[] = {"0-1", "2-3"};
    char words[200];
    for (int i = 0; i < 2; i++) {
        const char *dir = test_path(i ? "whole1" : "whole0");
        snprintf(words, sizeof words, "-m dense --shard %d/2", i);
        REPLAYED(r, n, dir, words);
        ck_assert_int_eq(n, HEADS + 1);
        ck_assert_int_eq(count_of(r, n, RECORD_OF_CALL), 1);
        ck_assert_str_eq(r[n - 1].heads, "");
    }
    for (int i = 0; i < 2; i++) {
        const char *dir = test_path(i ? "part1" : "part0");
        bool seen = false;
        snprintf(words, sizeof words, "-m dense --layers 1 --shard %d/2", i);
        REPLAYED(r, n, dir, words);
        ck_assert_int_eq(n, HEADS / 2 + 1);
        ck_assert_int_eq(session.n, 2);
        ck_assert_int_eq(session.group, 2);
        for (int k = 0; k < 2; k++)
            seen |= strcmp(r[n - 1].heads, parts[k]) == 0;
        ck_assert(seen);
    }
}

TEST(chosen_heads_are_named)
{
    static const struct {
        const char *words, *heads;
        int n, group;
    } cases[] = {{"--heads 0,3", "0,3", 2, 1},
                 {"--heads 1-3", "1-3", 3, 1},
                 {"--heads 2-3", "2-3", 2, 2},
                 {"--heads 0-3", "", 4, 2}};
    char words[200];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *dir = test_path(cases[i].words + 8);
        snprintf(words, sizeof words, "-m dense --layers 0 %s", cases[i].words);
        REPLAYED(r, n, dir, words);
        ck_assert_int_eq(n, cases[i].n + 1);
        ck_assert_int_eq(session.n, cases[i].n);
        ck_assert_int_eq(session.group, cases[i].group);
        ck_assert_str_eq(r[n - 1].heads, cases[i].heads);
    }
}

/* ---- a call by itself ----------------------------------------------------------------------- */

static struct sim_head h[HEADS];
static struct carry carry[HEADS];

static void make_heads(void)
{
    for (int k = 0; k < HEADS; k++) {
        MUST(random_head((uint64_t)k, N, N, D, true, 3, PREC_F64, h + k, ERR));
        h[k].in.n_heads = h[k].in.n_kv_heads = HEADS;
    }
}

static void free_heads(void)
{
    for (int k = 0; k < HEADS; k++) {
        carry_end(carry + k);
        sim_head_free(h + k);
    }
}

FIXTURE(set_up, free_heads)

/* Records of the heads, and of the call. */
struct outcome {
    struct record heads[HEADS], call;
};

static void outcome_free(struct outcome *o)
{
    for (int i = 0; i < HEADS; i++)
        record_free(o->heads + i);
    record_free(&o->call);
}

static int64_t section_bytes;

/* One call of the heads. */
static void run_call(const char *text, double *choose_ns, struct outcome *o)
{
    OWN(run_free) struct method_run *run = run_of(text);
    struct method_ctx ctx[HEADS];
    struct sim_cell cells[HEADS];
    struct call_outcome out[HEADS];
    const struct sim_device device = {.accel = &fake,
                                      .session = &session,
                                      .metrics = true,
                                      .calls = true,
                                      .timed = true,
                                      .section_bytes = section_bytes};
    record_init(&o->call);
    for (int i = 0; i < HEADS; i++) {
        record_init(o->heads + i);
        o->heads[i].head = i;
        ctx[i] = (struct method_ctx){.seed = 1, .carry = carry + i};
        cells[i] = (struct sim_cell){.method = run->method,
                                     .params = run->params,
                                     .ctx = ctx + i,
                                     .in = &h[i].in,
                                     .device = &device};
        out[i] = (struct call_outcome){.record = o->heads + i};
    }
    session = (struct accel_session){.timed = true};
    struct sim_call c = {.cells = cells,
                         .heads = out,
                         .n = HEADS,
                         .group = 1,
                         .data = device_numbers(HEADS),
                         .jobs = 2,
                         .record = &o->call,
                         .choose_ns = choose_ns};
    MUST(sim_run_call(&c, ERR));
}

/* The others are measured, but they are not the call. */
static void check_skipped(const char *why)
{
    OWN(outcome_free) struct outcome o;
    run_call("dense", NULL, &o);
    ck_assert_int_eq(session.n, HEADS - 1);
    for (int i = 0; i < HEADS; i++)
        ck_assert_int_eq(o.heads[i].status, i == 2 ? RECORD_SKIP : RECORD_OK);
    HAS(o.heads + 3, 0, "density_elem", 1);
    ck_assert_int_eq(o.call.status, RECORD_SKIP);
    ck_assert_msg(strstr(o.call.reason, why) != NULL, "%s", o.call.reason);
    HAS(&o.call, 0, "time_attend_ns", NONE);
}

TEST(a_skipped_head_leaves_no_call)
{
    make_heads();
    h[2].in.x.reach.back = 10;
    check_skipped("head 2: the GPU kernels know no window");
}

/* The kernels take whole heads. */
TEST(sampled_rows_are_not_for_a_device)
{
    struct row_sample rows = {0};
    make_heads();
    h[2].in.rows = &rows;
    check_skipped("head 2: the GPU kernels take whole heads: --backend cpu replays sampled");
}

/* Lists that would take too much memory at once are made and attended to in sections. */
TEST(sections_are_one_call)
{
    static const char *const method = "streaming:sink=2:window=40";
    OWN(outcome_free) struct outcome whole, parts;
    make_heads();
    run_call(method, NULL, &whole);
    ck_assert_int_eq(session.launches, 1);
    section_bytes = 1;
    run_call(method, NULL, &parts);
    section_bytes = 0;
    ck_assert_int_eq(session.launches, HEADS);
    for (int i = 0; i < HEADS; i++)
        ck_assert_int_gt(same_numbers(whole.heads + i, parts.heads + i), 20);
    assert_note(&parts.call, "sections=4");
    ck_assert(strstr(buf_str(&whole.call.notes), "sections") == NULL);
    HAS(&parts.call, 0, "call_launches time_attend_ns time_total_ns time_dense_ns", HEADS,
        300 * HEADS, 300 * HEADS, 1200);
}

/* The call that chooses pays, those that reuse its masks bear a share in a number of its own. */
TEST(carried_masks_cost_a_share)
{
    double choose_ns = 0;
    make_heads();
    for (int step = 0; step < 2; step++) {
        OWN(outcome_free) struct outcome o;
        for (int i = 0; i < HEADS; i++)
            h[i].in.step = step;
        run_call("fg-attn:refresh=4", &choose_ns, &o);
        ck_assert_int_eq(o.call.status, RECORD_OK);
        assert_note(&o.call, step ? "select_kind=reused" : "select_kind=own");
        ck_assert_int_eq(session.selected, step ? 0 : HEADS);
        HAS(&o.call, 0, "time_select_ns time_select_amortised_ns dense_call", step ? 0 : 100, 25,
            !step);
    }
}
