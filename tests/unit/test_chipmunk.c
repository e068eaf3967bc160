/*
 * test_chipmunk.c - Chipmunk: geometry, static masks, schedules, list padding, selection, the
 * delta, state across steps, refusals.
 */
#include "core/accel.h"
#include "core/permute.h"
#include "core/rng.h"
#include "sim/methods/chipmunk/chipmunk.h"
#include "sim/headload.h"
#include "tests/harness/accelrun.h"
#include "tests/harness/methodrun.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t BOX[3] = {4, 6, 8};

static struct chip_rule rule(double top, int64_t lv, bool clean)
{
    return (struct chip_rule){
        .top_keys = top, .local_voxels = lv, .multiple = 128, .clean = clean, .seed = 1};
}

/* ---- geometry ------------------------------------------------------------------------------- */

static const struct {
    struct geometry g;
    double top;
    int64_t n, groups, last, grid[3], voxels, in_voxels, tail, top_keys;
} shapes[] = {
    {{21, 30, 52, 0, 0}, 0.1, 32760, 171, 120, {5, 5, 6}, 150, 28800, 3960, 3328},
    {{21, 45, 80, 0, 0}, 0.1, 75600, 394, 144, {5, 7, 10}, 350, 67200, 8400, 7552},
    {{33, 45, 80, 256, 2}, 0.05, 119056, 621, 16, {8, 7, 10}, 560, 107520, 11280, 6016},
    {{16, 32, 48, 0, 0}, 0.1, 24576, 128, 192, {4, 5, 6}, 120, 23040, 1536, 2432},
    {{8, 12, 16, 20, 2}, 0.1, 1556, 9, 20, {2, 2, 2}, 8, 1536, 0, 128},
};

TEST_N(groups_and_voxels, 5)
{
    struct chip_shape s;
    struct chip_rule r = rule(shapes[_i].top, 0, false);
    chip_shape_of(&shapes[_i].g, BOX, &s);
    ck_assert_int_eq(s.n, shapes[_i].n);
    ck_assert_int_eq(s.groups, shapes[_i].groups);
    ck_assert_int_eq(s.n - (s.groups - 1) * CHIP_ROWS, shapes[_i].last);
    for (int a = 0; a < 3; a++)
        ck_assert_int_eq(s.grid[a], shapes[_i].grid[a]);
    ck_assert_int_eq(s.voxels, shapes[_i].voxels);
    ck_assert_int_eq(s.voxels * CHIP_ROWS, shapes[_i].in_voxels);
    ck_assert_int_eq(s.video - s.voxels * CHIP_ROWS, shapes[_i].tail);
    ck_assert_int_eq(chip_top_keys(&r, s.n), shapes[_i].top_keys);
}

/* Half to even, and never more than there are. */
TEST(key_counts_are_rounded)
{
    struct chip_rule r = rule(0.25, 0, false);
    ck_assert_int_eq(chip_top_keys(&r, 256), 0);
    ck_assert_int_eq(chip_top_keys(&r, 768), 256);
    r.top_keys = 0.9;
    ck_assert_int_eq(chip_top_keys(&r, 200), 128);
    ck_assert_int_eq(chip_top_keys(&r, 240), 240);
    r.multiple = 112;
    ck_assert_int_eq(chip_top_keys(&r, 1120), 1008);
}

TEST(cube_moves_inwards_at_the_borders)
{
    static const int64_t cases[][3] = {{0, 5, 0}, {1, 6, -1}, {3, 6, -2}, {5, 6, -4}, {4, 5, -4}};
    for (int k = 0; k < 5; k++)
        ck_assert_int_eq(chip_cube_start(cases[k][0], cases[k][1], 5) - cases[k][0], cases[k][2]);
    ck_assert_int_eq(chip_cube_start(1, 3, 5), 0);
}

static const struct {
    struct geometry g;
    int64_t lv;
    double top;
    int64_t official[4], clean[4], sparse; /* total, group 0, fewest, most */
    /* clang-format off */
} statics[] = {
    {{21, 30, 52, 0, 0}, 5, 0.1, {4127040, 24000, 24000, 32640},
     {4112640, 24000, 24000, 32640}, 170},
    {{21, 45, 80, 0, 0}, 5, 0.1, {9566080, 24000, 24000, 75520},
     {9507520, 24000, 24000, 75520}, 393},
    {{33, 45, 80, 256, 2}, 0, 0.05, {504064, 448, 256, 119040}, {396544, 256, 256, 119040}, 619},
    {{16, 32, 48, 0, 0}, 3, 0.1, {704448, 5184, 5184, 24576}, {682944, 5184, 5184, 24576}, 127},
    {{8, 12, 16, 20, 2}, 0, 0.1, {3232, 212, 212, 1536}, {1696, 20, 20, 1536}, 8},
};
/* clang-format on */

TEST_N(static_masks, 10)
{
    struct chip_shape s;
    OWN(slice_mask_free) struct slice_mask m;
    bool clean = _i & 1;
    const int64_t *want = clean ? statics[_i / 2].clean : statics[_i / 2].official;
    struct chip_rule r = rule(statics[_i / 2].top, statics[_i / 2].lv, clean);
    int64_t fewest = INT64_MAX, most = 0, sparse = 0;
    chip_shape_of(&statics[_i / 2].g, BOX, &s);
    ck_assert(chip_cube_fits(&s, &r));
    MUST(chip_static(&s, &r, &m, ERR));
    for (int64_t g = 0; g < m.groups; g++) {
        int64_t n = slice_mask_count(&m, g);
        fewest = n < fewest ? n : fewest;
        most = n > most ? n : most;
        sparse += chip_sparse_group(&s, &r, n);
    }
    ck_assert_int_eq(slice_mask_total(&m), want[0]);
    ck_assert_int_eq(slice_mask_count(&m, 0), want[1]);
    ck_assert_int_eq(fewest, want[2]);
    ck_assert_int_eq(most, want[3]);
    ck_assert_int_eq(sparse, statics[_i / 2].sparse);
}

/* The cube of a group, by coordinates of tokens. */
TEST(cubes_hold_the_neighbouring_voxels)
{
    struct geometry g = {13, 19, 33, 5, 2}; /* 3 x 3 x 4 voxels, tails on all axes */
    struct chip_shape s;
    OWN(slice_mask_free) struct slice_mask m;
    OWN(free_at) int64_t *perm;
    struct chip_rule r = rule(0.1, 3, true);
    chip_shape_of(&g, BOX, &s);
    MUST(permute_make("voxel:4x6x8", &g, s.n, 0, &perm, ERR));
    MUST(chip_static(&s, &r, &m, ERR));
    for (int64_t v = 0; v < s.voxels; v++) {
        int64_t own[3] = {v / 12, v / 4 % 3, v % 4}, from[3], size[3] = {3, 3, 4};
        for (int a = 0; a < 3; a++)
            from[a] = own[a] == 0 ? 0 : own[a] == size[a] - 1 ? size[a] - 3 : own[a] - 1;
        for (int64_t j = 0; j < s.n; j++) {
            int64_t old = perm[j], at[3] = {old / (19 * 33) / 4, old / 33 % 19 / 6, old % 33 / 8};
            bool in = j >= s.video;
            if (j < s.voxels * CHIP_ROWS)
                in = at[0] - from[0] >= 0 && at[0] - from[0] < 3 && at[1] - from[1] >= 0 &&
                     at[1] - from[1] < 3 && at[2] - from[2] >= 0 && at[2] - from[2] < 3;
            ck_assert_msg(slice_mask_has(&m, v, j) == in, "voxel %lld key %lld", (long long)v,
                          (long long)j);
        }
    }
    /* Even sides act as the next odd one and leave no slot of the published table unused. */
    OWN(slice_mask_free) struct slice_mask even, odd;
    struct chip_rule two = rule(0.1, 2, false), three = rule(0.1, 3, true);
    MUST(chip_static(&s, &two, &even, ERR));
    MUST(chip_static(&s, &three, &odd, ERR));
    for (int64_t v = 0; v < s.voxels; v++)
        for (int64_t j = 0; j < s.n; j++)
            ck_assert_int_eq(slice_mask_has(&even, v, j), slice_mask_has(&odd, v, j));
}

TEST(windows_and_random_keys)
{
    struct geometry g = {8, 12, 16, 20, 2};
    struct chip_shape s;
    struct slice_mask m, again;
    struct chip_rule r = rule(0.1, 0, true);
    chip_shape_of(&g, BOX, &s);
    r.local_1d = 0.2; /* 307 of 1536 tokens: 153 to either side of the group's middle */
    MUST(chip_static(&s, &r, &m, ERR));
    for (int64_t k = 0; k < 8; k++)
        for (int64_t j = 0; j < 1536; j++)
            ck_assert_int_eq(slice_mask_has(&m, k, j),
                             j >= 192 * k + 96 - 153 && j < 192 * k + 96 + 153);
    slice_mask_free(&m);

    r.local_1d = 0;
    r.random_keys = 0.25;
    MUST(chip_static(&s, &r, &m, ERR));
    MUST(chip_static(&s, &r, &again, ERR));
    ck_assert_int_eq(slice_mask_common(&m, &again), slice_mask_total(&m));
    /* 8 groups of 1536 video keys; the last group is left out. 5 standard deviations: 240. */
    int64_t drawn = slice_mask_total(&m) - 8 * 20 - slice_mask_count(&m, 8);
    ck_assert_int_lt(llabs(drawn - 3072), 240);
    ck_assert_int_eq(slice_mask_count(&m, 8), 1536);
    slice_mask_free(&again);
    r.seed = 2;
    MUST(chip_static(&s, &r, &again, ERR));
    ck_assert_int_lt(slice_mask_common(&m, &again), slice_mask_total(&m));
    slice_mask_free(&again);
    slice_mask_free(&m);
}

/* ---- schedules and lists -------------------------------------------------------------------- */

TEST(full_steps)
{
    static const int64_t hunyuan[] = {0, 1, 10, 40};
    struct chip_schedule every = {10, NULL, 0}, list = {10, hunyuan, 4};
    for (int64_t t = 0; t < 50; t++) {
        ck_assert_int_eq(chip_full_step(&every, t), t < 2 || t % 10 == 0);
        ck_assert_int_eq(chip_full_step(&list, t), t == 0 || t == 1 || t == 10 || t == 40);
    }
    ck_assert_int_eq(chip_full_before(&every, 0), -1);
    ck_assert_int_eq(chip_full_before(&every, 10), 1);
    ck_assert_int_eq(chip_full_before(&every, 20), 10);
    ck_assert_int_eq(chip_full_before(&every, 25), 20);
    ck_assert_int_eq(chip_full_before(&list, 40), 10);
}

TEST(list_padding_by_hand)
{
    static const int64_t selected[] = {1, 5, 6, 9}, want[] = {0, 1, 5, 6};
    struct slice_mask m;
    for (int n = 3; n <= 4; n++) {
        MUST(slice_mask_init(&m, 10, 10, false, CHIP_ROWS, 1, ERR));
        for (int k = 0; k < n; k++)
            slice_mask_set(&m, 0, selected[k]);
        chip_pad(&m, 0, 4);
        ck_assert_int_eq(slice_mask_count(&m, 0), 4);
        for (int k = 0; k < 4; k++)
            ck_assert(slice_mask_has(&m, 0, n == 3 ? want[k] : selected[k]));
        slice_mask_free(&m);
    }
    /* All keys, and no multiple: nothing to add. */
    MUST(slice_mask_init(&m, 10, 10, false, CHIP_ROWS, 1, ERR));
    for (int k = 0; k < 10; k++)
        slice_mask_set(&m, 0, k);
    chip_pad(&m, 0, 4);
    ck_assert_int_eq(slice_mask_count(&m, 0), 10);
    slice_mask_free(&m);
}

/* ---- masks of a head ------------------------------------------------------------------------ */

#define SMALL 8, 12, 16, 20, 2
#define HALF 4, 12, 16, 20, 2

/* Column sums of an explicit map with the given normaliser, sorted: the kept keys are the largest,
 * the drawn ones and the static ones. */
TEST_N(masks_follow_explicit_column_sums, 2)
{
    struct chip_shape s;
    OWN(slice_mask_free) struct slice_mask m, fixed;
    struct chip_rule r = rule(0.2, 0, true);
    int64_t selected, n = 1556, total = 0;
    OWN(free_at) double *p = calloc((size_t)n, sizeof *p), *mass = calloc((size_t)n, sizeof *mass);
    OWN(free_at) double *lse = calloc((size_t)n, sizeof *lse);
    HEAD(raw, random_video, 4, SMALL);
    HEAD(h, sim_head_reorder, &raw.in, "voxel:4x6x8", 0);
    for (int64_t i = 0; i < n; i++)
        lse[i] = head_lse(&h.in)[i] + (double)(i % 7) - 900 * (i / CHIP_ROWS == 2);
    r.redraw = _i ? 0.01 : 0;
    r.random_keys = 0.02;
    chip_shape_of(&(struct geometry){SMALL}, BOX, &s);
    MUST(chip_static(&s, &r, &fixed, ERR));
    MUST(chip_raise(&h.in, lse, lse, ERR));
    MUST(chip_mask(&s, &r, &h.in, lse, 77, &m, &selected, ERR));
    for (int64_t g = 0; g < s.groups; g++) {
        int64_t r0 = g * CHIP_ROWS, r1 = r0 + CHIP_ROWS < n ? r0 + CHIP_ROWS : n, top = 0;
        double least = INFINITY, most = 0;
        memset(mass, 0, (size_t)n * sizeof *mass);
        for (int64_t i = r0; i < r1; i++) {
            MUST(exact_probs(h.in.exact, i, i + 1, p, ERR));
            for (int64_t j = 0; j < n; j++)
                mass[j] += p[j] * exp(-(double)(i % 7));
        }
        for (int64_t j = 0; j < n; j++) {
            bool drawn = rng_uniform(1, 77, (uint64_t)(g * n + j)) < r.redraw;
            if (slice_mask_has(&fixed, g, j) || drawn) {
                ck_assert(slice_mask_has(&m, g, j) || g == s.groups - 1);
                continue;
            }
            if (slice_mask_has(&m, g, j))
                least = fmin(least, mass[j]);
            else
                most = fmax(most, mass[j]);
        }
        for (int64_t j = 0; j < n; j++)
            top += mass[j] >= least * (1 - 1e-9);
        if (g < s.groups - 1) {
            ck_assert_double_ge(least * (1 + 1e-9), most);
            ck_assert_int_eq(top, chip_top_keys(&r, n)); /* round(311.2 / 128) 128 = 256 */
        } else {
            ck_assert_int_eq(slice_mask_count(&m, g), slice_mask_count(&fixed, g));
        }
        total += (r1 - r0) * slice_mask_count(&m, g);
    }
    ck_assert_int_eq(selected, total);
}

/* The published lists end at multiples of 128 with real keys; clean lists do not. */
TEST(padding_keys_are_real_in_the_official_profile)
{
    struct chip_shape s;
    OWN(slice_mask_free) struct slice_mask a, b;
    int64_t before, same;
    struct chip_rule r = rule(0.1, 1, false), without = r;
    HEAD(h, random_video, 4, SMALL);
    chip_shape_of(&(struct geometry){SMALL}, BOX, &s);
    r.redraw = without.redraw = 0.01;
    without.multiple = 1;
    MUST(chip_mask(&s, &r, &h.in, head_lse(&h.in), 5, &a, &before, ERR));
    without.top_keys = 128.0 / 1556;
    MUST(chip_mask(&s, &without, &h.in, head_lse(&h.in), 5, &b, &same, ERR));
    ck_assert_int_eq(before, same);
    ck_assert_int_eq(slice_mask_common(&a, &b), slice_mask_total(&b));
    for (int64_t g = 0; g < s.groups; g++)
        ck_assert_int_eq(slice_mask_count(&a, g), (slice_mask_count(&b, g) + 127) / 128 * 128);
}

/* ---- the method ----------------------------------------------------------------------------- */

#define SMALL_RULE "chipmunk:kind=wan:local_voxels=1:full_every=4"

TEST(steps_follow_the_schedule)
{
    OWN(carry_end) struct carry carry = {0};
    double made = NAN;
    HEAD(h, random_video, 5, HALF);
    for (int t = 0; t < 10; t++) {
        bool full = t < 2 || t % 4 == 0;
        STEP(r, SMALL_RULE, &h, t, &carry);
        HAS(&r, 0, "dense_call refresh", full, full && t > 0);
        if (full) {
            HAS(&r, 0, "density_elem err_max", 1, 0);
            made = record_get(&r, "mask_density_elem");
            ck_assert_int_eq(isnan(made), t == 0);
        } else {
            ck_assert_double_eq_tol(record_get(&r, "density_elem"), made, 1e-15);
            ck_assert_double_lt(made, 0.7);
            ck_assert_double_lt(record_get(&r, "density_native"), made);
            ck_assert_double_eq(record_get(&r, "mask_age"), t < 4 ? t - 1 : t % 4);
        }
    }
    h.in.layer = 1;
    STEP_HAS(SMALL_RULE, &h, 2, &carry, 0, "dense_call", 1);
}

/* The keys of a device's choice are those of the next step. */
TEST(a_device_chooses)
{
    static const char *const text = "chipmunk:dense_layers=0:norm=exact:delta=0:local_voxels=0";
    OWN(carry_end) struct carry carry = {0};
    OWN(mask_free) struct mask choice = {0}, m = {0};
    int64_t selected = 77;
    HEAD(h, random_video, 8, SMALL);
    int64_t n = h.in.x.nq;
    MUST(mask_lists_init(&choice, n, n, 0, n, false, CHIP_ROWS, 1, ERR));
    for (int64_t g = 0; g < choice.ngroups; g++)
        MUST(mask_lists_add_run(&choice, g, (int32_t)(3 * g), (int32_t)(3 * g + 128), ERR));
    mask_lists_finish(&choice);
    for (h.in.step = 1; h.in.step <= 2; h.in.step++) {
        PREPARED(p, text, &h.in, 1, &carry);
        bool own = h.in.step == 1;
        ck_assert_int_eq(method_origin(p.me, p.state).source, own ? SOURCE_OWN : SOURCE_REUSED);
        if (own) {
            struct rule rule = rule_of(&p);
            ck_assert_int_eq(rule.of.chip.n, n);
            ck_assert_mem_eq(((const struct chip_given *)rule.data)->lse, head_lse(&h.in),
                             (size_t)n * sizeof(double));
            take_choice(&p, &choice, &(struct accel_own){&selected, sizeof selected});
        }
        mask_free(&m);
        MUST(p.me->select(p.state, 0, n, &m, ERR));
        if (own)
            ck_assert_int_eq(m.form, MASK_FULL); /* of the call itself */
        else
            ck_assert_int_eq(mask_lists_differ(&m, &choice), 0);
    }
}

/* Full steps give dense attention bit for bit. */
TEST(full_steps_are_dense)
{
    OWN(record_free) struct record r;
    HEAD(h, random_video, 6, HALF);
    int64_t n = h.in.x.nq;
    OWN(free_at) uint8_t *bits = calloc((size_t)(n * n), 1);
    run_text_carry(SMALL_RULE, &h.in, NULL, 1, sink_bits, bits, &r);
    for (int64_t k = 0; k < n * n; k++)
        ck_assert(bits[k]);
    HAS(&r, 0, "err_max err_lse_max", 0, 0);
    ck_assert_double_eq_tol(record_get(&r, "cra_min"), 1, 1e-12);
}

/* Unchanged q, k, v: dense minus sparse plus sparse. */
TEST_N(constant_inputs_are_exact_with_the_delta, 5)
{
    static const char *const rules[] = {SMALL_RULE, SMALL_RULE ":profile=clean",
                                        SMALL_RULE ":top_keys=0:random_keys=0",
                                        SMALL_RULE ":recompute=0", SMALL_RULE ":norm=exact"};
    OWN(carry_end) struct carry with = {0}, without = {0};
    char text[160];
    HEAD(h, random_video, 7, HALF);
    snprintf(text, sizeof text, "%s:delta=0", rules[_i]);
    for (int t = 0; t < 7; t++) {
        STEP_HAS(rules[_i], &h, t, &with, 1e-14, "err_l2_rel", 0);
        STEP(r, text, &h, t, &without);
        if (record_get(&r, "dense_call") == 0)
            ck_assert_double_gt(record_get(&r, "err_l2_rel"), 0.05);
    }
}

/* ---- on a device ---------------------------------------------------------------------------- */

struct accel_session {
    int added, attended; /* heads with a stored difference; all that were attended to */
};

/* In double; what is added is a float. */
static int attend_there(struct accel_session *s, const struct accel_call *c,
                        const struct accel_lists *l, struct accel_result *r, struct err *err)
{
    struct accel_head *h = c->heads;
    const struct attn_in *x = h->x;
    OWN(accel_outs_free) struct accel_outs o;
    OWN(mask_free) struct mask m = {0};
    ck_assert_int_eq(c->n, 1);
    accel_head_mask(c, l, 0, &m, err);
    accel_compute(x, &m, PREC_F64, &o, err);
    for (int64_t k = 0; h->added && k < x->nq * x->dv; k++)
        o.out[k] += h->added[k];
    accel_deliver(h, &o);
    if (h->mass)
        accel_measure(h, &o, 0);
    s->attended++;
    s->added += h->added != NULL;
    accel_untimed(c, r);
    return 0;
}

/* The device makes the sparse output of full steps, and adds the difference on the others. */
TEST(a_device_adds_the_difference)
{
    static const struct accel there = {
        .name = "there", .supports = accel_supports_all, .attend_call = attend_there};
    struct accel_session session = {0};
    const struct sim_device device = {.accel = &there, .session = &session, .metrics = true};
    OWN(carry_end) struct carry here = {0}, carry = {0};
    int compared = 0;
    for (int t = 0; t < 4; t++) {
        struct method_ctx ctx = {.seed = 1, .carry = &carry};
        OWN(record_free) struct record a, b;
        HEAD(h, random_video, 20 + (uint64_t)t, HALF);
        run_step(SMALL_RULE, &h, t, &here, &a);
        MUST(run_on_device(&device, &h.in, SMALL_RULE, &ctx, &b, ERR));
        ck_assert_msg(b.status == RECORD_OK, "%s", b.reason);
        compared += assert_agree(&a, &b, 1e-6,
                                 "err_l2_rel err_max err_lse_max cra_mean density_elem dense_call "
                                 "delta_l2_rel mask_age");
    }
    ck_assert_int_eq(session.added, 2);        /* steps 2 and 3 */
    ck_assert_int_eq(session.attended, 4 + 1); /* the sparse output of step 1 */
    ck_assert_int_gt(compared, 4 * 6);
}

TEST_N(all_keys_are_exact_at_every_step, 3)
{
    static const char *const rules[] = {SMALL_RULE ":top_keys=1", SMALL_RULE ":top_keys=1:delta=0",
                                        SMALL_RULE ":top_keys=1:profile=clean"};
    OWN(carry_end) struct carry carry = {0};
    for (int t = 0; t < 3; t++) {
        HEAD(h, random_video, 20 + (uint64_t)t, HALF);
        STEP(r, rules[_i], &h, t, &carry);
        HAS(&r, 1e-13, "density_elem err_l2_rel", 1, 0);
        if (t == 1 && _i != 1)
            HAS(&r, 1e-14, "delta_l2_rel", 0);
    }
}

/* Output of a sparse step = stored difference + softmax over the list, step by step by hand. */
TEST(delta_by_explicit_attention)
{
    struct sim_head h[3], v[3];
    OWN(carry_end) struct carry carry = {0};
    OWN(record_free) struct record r;
    int64_t n = 1556;
    OWN(free_at) uint8_t *bits = calloc((size_t)(n * n), 1);
    OWN(free_at) double *p = calloc((size_t)n, sizeof *p);
    double worst = 0;
    for (int t = 0; t < 3; t++) {
        MUST(random_video(30 + (uint64_t)t, SMALL, &h[t], ERR));
        MUST(sim_head_reorder(&h[t].in, "voxel:4x6x8", 0, &v[t], ERR));
        h[t].in.step = t;
        if (t)
            record_free(&r);
        run_text_carry(SMALL_RULE, &h[t].in, &carry, 1, sink_bits, bits, &r);
    }
    for (int64_t i = 0; i < n; i++) {
        double out[2][16] = {{0}}, sum[2] = {0};
        for (int t = 0; t < 2; t++) {
            MUST(exact_probs(v[t + 1].in.exact, i, i + 1, p, ERR));
            for (int64_t j = 0; j < n; j++)
                if (bits[i * n + j]) {
                    sum[t] += p[j];
                    for (int c = 0; c < 16; c++)
                        out[t][c] += p[j] * (double)v[t + 1].v[j * 16 + c];
                }
        }
        for (int c = 0; c < 16; c++) {
            double want = head_out(&v[1].in)[i * 16 + c] - out[0][c] / sum[0] + out[1][c] / sum[1];
            worst = fmax(worst, fabs(want - head_out(&v[2].in)[i * 16 + c]));
        }
    }
    HAS(&r, 1e-10, "err_max", worst);
    ck_assert_double_gt(worst, 0.01);
    for (int t = 0; t < 3; t++) {
        sim_head_free(&h[t]);
        sim_head_free(&v[t]);
    }
}

TEST(missing_steps_are_skipped)
{
    OWN(carry_end) struct carry carry = {0}, exact = {0}, once = {0};
    HEAD(h, random_video, 8, HALF);
    step_skips(SMALL_RULE, &h, 3, &carry, "step 3 uses the mask of step 1");
    step_skips(SMALL_RULE, &h, 3, NULL, "step 3 uses the mask of step 1");
    step_skips(SMALL_RULE, &h, 4, &carry, "step 4 needs the normaliser of step 1");
    step_skips(SMALL_RULE, &h, 5, &carry, "step 5 uses the mask of step 4");
    /* The normaliser of step 4 is there all the same. */
    step_runs(SMALL_RULE, &h, 8, &carry);
    step_runs(SMALL_RULE, &h, 11, &carry);
    step_skips(SMALL_RULE, &h, 13, &carry, "step 13 uses the mask of step 12");
    step_runs(SMALL_RULE ":norm=exact", &h, 4, &exact);
    step_runs(SMALL_RULE ":norm=exact", &h, 6, &exact);
    step_skips(SMALL_RULE ":recompute=0", &h, 4, &once, "step 4 needs the mask of step 1");
}

/* One mask for the whole run, and a difference of the last full step. */
TEST(masks_are_made_once_without_recompute)
{
    OWN(carry_end) struct carry carry = {0};
    HEAD(h, random_video, 9, HALF);
    for (int t = 0; t < 7; t++) {
        STEP(r, SMALL_RULE ":recompute=0", &h, t, &carry);
        ck_assert_double_eq(record_get(&r, "refresh"), t == 1);
        if (t == 2 || t == 5)
            ck_assert_double_eq(record_get(&r, "mask_age"), t - 1);
    }
    step_skips(SMALL_RULE ":recompute=0", &h, 9, &carry, "step 9 uses the difference of step 8");
}

/* Both heads' records of three steps are the same. */
static void assert_same_steps(const char *text, struct sim_head *h, const char *other,
                              struct sim_head *o)
{
    OWN(carry_end) struct carry ca = {0}, cb = {0};
    for (int t = 0; t < 3; t++) {
        STEP(a, text, h, t, &ca);
        STEP(b, other, o, t, &cb);
        ck_assert_int_eq(assert_agree(&a, &b, 0, "pairs_kept err_l2_rel"), 2);
    }
}

/* Tokens that are in voxel order already are taken as they are, other orders are not undone. */
TEST(stored_voxel_order_is_used)
{
    HEAD(h, random_video, 11, HALF);
    HEAD(v, sim_head_reorder, &h.in, "voxel:4x6x8", 0);
    ck_assert_str_eq(v.in.order, "voxel:4x6x8");
    assert_same_steps(SMALL_RULE, &h, SMALL_RULE, &v);
    step_skips(SMALL_RULE ":voxel=4x8x6", &v, 0, NULL, "already in order 'voxel:4x6x8'");
}

TEST(families_have_their_defaults)
{
    static const char *const same[][2] = {
        {"chipmunk:kind=wan:profile=clean",
         "chipmunk:kind=hunyuan:profile=clean:top_keys=0.1:local_voxels=5:full_every=10"},
        {"chipmunk:kind=hunyuan", "chipmunk:kind=wan:top_keys=0.05:local_voxels=0:full_every=10"},
        {"chipmunk", "chipmunk:kind=hunyuan"}, /* HALF has joint text */
    };
    HEAD(h, random_video, 12, HALF);
    for (int k = 0; k < 3; k++)
        assert_same_steps(same[k][0], &h, same[k][1], &h);
    /* Hunyuan's list has no step 20. */
    step_skips("chipmunk", &h, 20, NULL, "step 20 uses the mask of step 10");
    step_runs("chipmunk:full_every=5", &h, 20, NULL);
    step_runs("chipmunk:full_steps=0+1+20", &h, 20, NULL);
}

/* Kernel tiles: 192 rows, lists in steps of 128 keys. */
TEST(executed_pairs)
{
    OWN(carry_end) struct carry carry = {0};
    OWN(record_free) struct record r;
    const char *text = SMALL_RULE ":profile=clean";
    int64_t n = 1556;
    OWN(free_at) uint8_t *bits = calloc((size_t)(n * n), 1);
    HEAD(h, random_video, 13, SMALL);
    for (int t = 0; t < 2; t++)
        step_runs(text, &h, t, &carry);
    h.in.step = 2;
    run_text_carry(text, &h.in, &carry, 1, sink_bits, bits, &r);
    int64_t exec = 0, kept = 0;
    for (int64_t r0 = 0; r0 < n; r0 += CHIP_ROWS) {
        int64_t count = 0;
        for (int64_t j = 0; j < n; j++)
            count += bits[r0 * n + j];
        exec += CHIP_ROWS * 128 * ((count + 127) / 128);
        kept += count * (r0 + CHIP_ROWS < n ? CHIP_ROWS : n - r0);
    }
    HAS(&r, 0, "pairs_kept pairs_exec density_native", (double)kept, (double)exec,
        record_get(&r, "density_elem"));
}
