/*
 * test_svg.c - Sparse VideoGen, band masks: widths, counts, trial masks, the two token orders,
 * warm-up, classification, refusals, golden heads.
 */
#include "core/accel.h"
#include "core/permute.h"
#include "sim/methods/svg1/svg1.h"
#include "tests/harness/methodrun.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- widths and counts ---------------------------------------------------------------------- */

static const struct {
    double s;
    int64_t T, F;
    double frames;
    int64_t width, pairs;
    double elem;
    int64_t tiles;
    double tile;
} wan[] = {
    {0.3, 21, 3600, 3.430139, 12416, 1944185928, 0.340169, 119630, 0.342504},
    {0.25, 21, 3600, 2.813467, 10240, 1672309960, 0.292599, 103055, 0.295049},
    {0.3, 21, 1560, 3.430139, 5376, 364862988, 0.339971, 22645, 0.345535},
    {0.25, 21, 1560, 2.813467, 4480, 316386700, 0.294802, 19698, 0.300568},
    {0.3, 16, 1536, 2.613440, 4096, 214846720, 0.355718, 13266, 0.359863},
    {0.25, 16, 1536, 2.143594, 3328, 183980032, 0.304613, 11388, 0.308919},
    {0.3, 16, 384, 2.613440, 1024, 13431616, 0.355816, 858, 0.372396},
    {0.3, 8, 256, 1.306720, 384, 1820160, 0.433960, 123, 0.480469},
    {0.3, 5, 100, 0.816700, 128, 144138, 0.576552, 12, 0.750000},
    {0.3, 4, 96, 0.653360, 128, 102096, 0.692383, 8, 0.888889},
};

TEST_EACH(widths_and_masks_without_text, wan)
{
    int64_t T = wan[_i].T, F = wan[_i].F, n = T * F, side = (n + 127) / 128;
    double frames = svg_width_frames(wan[_i].s, 0, n, F);
    struct svg_band b = {SVG_WAN, T,    F,     0,
                         false,   true, false, svg_half_width(SVG_WAN, frames, F, false)};
    struct svg_count c;
    ck_assert_double_eq_tol(frames, wan[_i].frames, 5.1e-7);
    ck_assert_int_eq(b.width, wan[_i].width);
    ck_assert_int_eq(b.width % 128, 0);
    MUST(svg_band_count(&b, 0, &c, ERR));
    ck_assert_int_eq(c.pairs, wan[_i].pairs);
    ck_assert_int_eq(c.tiles, wan[_i].tiles);
    assert_printed((double)c.pairs / (double)n / (double)n, wan[_i].elem, 6);
    assert_printed((double)c.tiles / (double)(side * side), wan[_i].tile, 6);
    b.temporal = true;
    struct svg_count t;
    MUST(svg_band_count(&b, 0, &t, ERR));
    ck_assert(t.pairs == c.pairs && t.tiles == c.tiles);
}

static const struct {
    enum svg_family family;
    double s;
    int64_t T, F, text, valid, n;
    double frames;
    int64_t width, pairs;
    double all, of_valid;
} text[] = {
    {SVG_HUNYUAN, 0.25, 33, 3600, 256, 60, 119056, 4.348694, 15616, 3480696976, 0.245563, 0.246371},
    {SVG_HUNYUAN, 0.2, 33, 3600, 256, 60, 119056, 3.412012, 12160, 2755541776, 0.194404, 0.195043},
    {SVG_HUNYUAN, 0.2, 33, 1350, 256, 60, 44806, 3.292662, 4352, 374171114, 0.186379, 0.188001},
    {SVG_HUNYUAN, 0.3, 8, 256, 64, 20, 2112, 1.054950, 256, 1065504, 0.238873, 0.248693},
    {SVG_COG, 0.25, 13, 1350, 226, 226, 17776, 1.572404, 2048, 75658670, 0.239437, NAN},
    {SVG_COG, 0.3, 13, 1350, 226, 226, 17776, 1.952459, 2560, 91271086, 0.288845, NAN},
};

TEST_EACH(widths_and_masks_with_text, text)
{
    enum svg_family f = text[_i].family;
    int64_t F = text[_i].F, n = text[_i].T * F + text[_i].text;
    int64_t padding = text[_i].text - text[_i].valid;
    double frames = svg_width_frames(text[_i].s, text[_i].text, n, F);
    struct svg_band b = {f,     text[_i].T, F,     text[_i].valid,
                         false, false,      false, svg_half_width(f, frames, F, false)};
    struct svg_count c;
    ck_assert_int_eq(n, text[_i].n);
    ck_assert_double_eq_tol(frames, text[_i].frames, 5.1e-7);
    ck_assert_int_eq(b.width, text[_i].width);
    MUST(svg_band_count(&b, padding, &c, ERR));
    ck_assert_int_eq(c.pairs, text[_i].pairs);
    assert_printed((double)c.pairs / (double)n / (double)n, text[_i].all, 6);
    if (!isnan(text[_i].of_valid)) {
        double valid = (double)(n - padding);
        assert_printed((double)(c.pairs - padding * padding) / valid / valid, text[_i].of_valid, 6);
    }
}

TEST_N(trial_masks, 8)
{
    static const struct {
        enum svg_family family;
        int64_t T, F, limit, pairs;
    } cases[] = {
        {SVG_WAN, 21, 3600, 56, 1263762944},
        {SVG_WAN, 21, 1560, 24, 233234304},
        {SVG_WAN, 16, 1536, 24, 170754048},
        {SVG_WAN, 8, 256, 4, 2015232},
        {SVG_WAN, 4, 96, 1, 73728},
        {SVG_WAN, 16, 384, 6, -1},
        {SVG_HUNYUAN, 33, 3600, 42, 1233916160},
        {SVG_COG, 13, 1350, 15, -1},
    };
    static const double shares[] = {0.221117, 0.217322, 0.282715, 0.480469, 0.5};
    struct svg_band b = {cases[_i].family,
                         cases[_i].T,
                         cases[_i].F,
                         0,
                         false,
                         cases[_i].family == SVG_WAN,
                         true,
                         svg_trial_limit(cases[_i].family, cases[_i].F)};
    struct svg_count c, t;

    ck_assert_int_eq(b.width, cases[_i].limit);
    MUST(svg_band_count(&b, 0, &c, ERR));
    b.temporal = true;
    MUST(svg_band_count(&b, 0, &t, ERR));
    ck_assert_int_eq(c.pairs, t.pairs);
    if (cases[_i].pairs >= 0)
        ck_assert_int_eq(c.pairs, cases[_i].pairs);
    if (_i < 5) {
        double n = (double)svg_band_tokens(&b);
        assert_printed((double)c.pairs / n / n, shares[_i], 6);
    }
}

/* ---- masks element by element --------------------------------------------------------------- */

static bool wants_executed(const struct svg_band *b, int64_t q, int64_t k)
{
    int64_t video = b->T * b->F, d = llabs(q - k);
    switch (b->family) {
    case SVG_HUNYUAN:
        return d < b->width || q >= video || k >= video || (b->sink && k < b->F);
    case SVG_COG:
        return d < b->width || q < b->text || k < b->text + (b->sink ? b->F : 0);
    default:
        return d <= b->width || (b->sink && k < b->F);
    }
}

static bool wants_trial(const struct svg_band *b, int64_t q, int64_t k)
{
    int64_t video = b->T * b->F, blocks = (video + 127) / 128;
    int64_t v0 = b->family == SVG_COG ? b->text : 0;
    bool text_q = q < v0 || q >= v0 + video, text_k = k < v0 || k >= v0 + video;
    bool sink = b->sink && k >= v0 && k < v0 + b->F;
    if (b->family == SVG_COG && b->temporal)
        return sink || (!text_q && !text_k && llabs((q - v0) / 128 - (k - v0) / 128) < b->width);
    if (b->family == SVG_COG && !text_q && !text_k)
        return sink ||
               (llabs(q / 128 - k / 128) < b->width && q / 128 < blocks && k / 128 < blocks);
    return sink || text_q || text_k || llabs(q / 128 - k / 128) < b->width;
}

TEST_N(rows_follow_the_rules, 24)
{
    static const struct svg_band bands[] = {
        {SVG_WAN, 5, 60, 0, false, true, false, 128},
        {SVG_WAN, 7, 45, 0, false, false, false, 77},
        {SVG_COSMOS, 3, 100, 0, false, true, false, 0},
        {SVG_HUNYUAN, 4, 70, 9, false, false, false, 128},
        {SVG_HUNYUAN, 6, 50, 1, false, true, false, 0},
        {SVG_COG, 5, 61, 12, false, false, false, 40},
        {SVG_COG, 4, 66, 130, false, true, false, 20},
        {SVG_WAN, 4, 200, 0, false, true, true, 3},
        {SVG_WAN, 3, 50, 0, false, true, true, 0},
        {SVG_HUNYUAN, 4, 150, 33, false, false, true, 1},
        {SVG_COG, 3, 170, 70, false, false, true, 1},
        {SVG_COG, 3, 170, 200, false, true, true, 2},
    };
    struct svg_band b = bands[_i / 2];
    b.temporal = _i % 2;
    int64_t n = svg_band_tokens(&b), pairs = 0;
    OWN(free_at) struct span *s = calloc((size_t)svg_band_max_spans(&b), sizeof *s);
    OWN(free_at) uint8_t *bits = calloc((size_t)n, 1);
    for (int64_t i = 0; i < n; i++) {
        int64_t spans = svg_band_row(&b, i, s), q = svg_band_position(&b, i);
        ck_assert_int_le(spans, svg_band_max_spans(&b));
        memset(bits, 0, (size_t)n);
        for (int64_t k = 0; k < spans; k++) {
            ck_assert(s[k].lo < s[k].hi && (k == 0 || s[k].lo > s[k - 1].hi));
            memset(bits + s[k].lo, 1, (size_t)(s[k].hi - s[k].lo));
        }
        for (int64_t j = 0; j < n; j++) {
            int64_t k = svg_band_position(&b, j);
            bool want = b.trial ? wants_trial(&b, q, k) : wants_executed(&b, q, k);
            ck_assert_msg(bits[j] == want, "row %lld, key %lld", (long long)i, (long long)j);
            pairs += want;
        }
    }
    struct svg_count c;
    MUST(svg_band_count(&b, 0, &c, ERR));
    ck_assert_int_eq(c.pairs, pairs);
}

TEST(temporal_positions)
{
    static const int64_t want[] = {0, 3, 1, 4, 2, 5};
    struct svg_band b = {SVG_WAN, 3, 2, 0, true, true, false, 0};
    struct svg_band behind = {SVG_HUNYUAN, 3, 4, 2, true, false, false, 0};
    struct svg_band front = {SVG_COG, 3, 4, 2, true, false, false, 0};
    struct geometry g = {3, 2, 2, 2, 2};
    int64_t *perm;
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(svg_band_position(&b, i), want[i]);
    MUST(permute_make("time", &g, 14, 0, &perm, ERR));
    for (int r = 0; r < 14; r++)
        ck_assert_int_eq(svg_band_position(&behind, perm[r]), r);
    free(perm);
    g.text_place = 1;
    MUST(permute_make("time", &g, 14, 0, &perm, ERR));
    for (int r = 0; r < 14; r++)
        ck_assert_int_eq(svg_band_position(&front, perm[r]), r);
    free(perm);
}

/* ---- warm-up -------------------------------------------------------------------------------- */

TEST_N(warm_up_of_layers_and_steps, 8)
{
    static const struct {
        enum svg_family family;
        double layers, steps;
        int n_layers, n_steps, want_layers, want_steps;
    } cases[] = {
        {SVG_WAN, 0.03, 0.2, 40, 50, 1, 10},    {SVG_WAN, 0.03, 0.2, 30, 50, 0, 10},
        {SVG_HUNYUAN, 0.03, 0.1, 60, 50, 1, 5}, {SVG_HUNYUAN, 0, 0.04, 60, 50, 0, 2},
        {SVG_WAN, 0.03, 0.35, 40, 40, 1, 14},   {SVG_COSMOS, 0.03, 0.3, 28, 35, 0, 10},
        {SVG_COG, 0.025, 0.2, 42, 50, 2, 10},   {SVG_WAN, 1, 0, 6, 0, 6, 0},
    };
    struct method_ctx ctx = {0};
    struct svg_warmup w;
    struct head_in in = {.n_layers = cases[_i].n_layers, .n_steps = cases[_i].n_steps};
    ck_assert_int_eq(svg_warmup(&ctx, cases[_i].family, cases[_i].layers, cases[_i].steps, &in, &w),
                     0);
    ck_assert_int_eq(w.layers, cases[_i].want_layers);
    ck_assert_int_eq(w.steps, cases[_i].want_steps);
}

/* ---- the method ----------------------------------------------------------------------------- */

TEST(a_target_below_the_text_share_is_an_error)
{
    OWN(run_free) struct method_run *run = run_of("svg1:target=0.4");
    OWN(record_free) struct record r;
    struct method_ctx ctx = {0};
    HEAD(h, random_video, 5, 2, 8, 8, 32, 2);
    h.in.step = 30;
    record_init(&r);
    struct sim_cell cell = {.method = run->method, .params = run->params, .ctx = &ctx, .in = &h.in};
    FAILS(sim_run(&cell, &r, ERR), ERR_INPUT, "target below text share");
    ck_assert_double_ge(metric_of("svg1:target=0.41", &h.in, "density_elem"), 0.36);
    ck_assert(isnan(svg_width_frames(0.4, 32, 160, 64)));
}

TEST(first_layers_and_steps_are_dense)
{
    HEAD(h, random_video, 5, 3, 8, 8, 0, 0);
    h.in.layer = 0;
    RUN(r, "svg1", &h.in);
    HAS(&r, 0, "dense_call density_elem temporal", 1, 1, NONE);
    h.in.layer = 1;
    h.in.step = 9;
    ck_assert_double_eq(metric_of("svg1", &h.in, "dense_call"), 1);
    ck_assert_double_eq(metric_of("svg1:preset=none", &h.in, "dense_call"), 0);
    h.in.step = 10;
    ck_assert_double_eq(metric_of("svg1", &h.in, "dense_call"), 0);
    ck_assert_double_eq(metric_of("svg1:preset=wan-i2v-720p", &h.in, "dense_call"), 1);
}

/* Explicit softmax of one row over the keys that a rule wants, times V; 0 without keys. */
static void masked_row(const struct head_in *in, const struct svg_band *b, int64_t i, double *out)
{
    OWN(free_at) double *w = calloc((size_t)in->x.nk, sizeof *w);
    int64_t q = svg_band_position(b, i);
    for (int64_t j = 0; j < in->x.nk; j++)
        w[j] = b->trial ? wants_trial(b, q, svg_band_position(b, j))
                        : wants_executed(b, q, svg_band_position(b, j));
    weighted_row(&in->x, i, w, 0, out);
}

TEST_N(classification_by_explicit_rows, 4)
{
    static const struct {
        int64_t t, h, w, text;
        int place;
        struct svg_band band;
    } cases[] = {
        {4, 8, 9, 0, 0, {SVG_WAN, 4, 72, 0, false, true, true, 1}},
        {4, 8, 9, 0, 0, {SVG_WAN, 4, 72, 0, false, true, false, 40}},
        {3, 9, 11, 10, 2, {SVG_HUNYUAN, 3, 99, 10, false, false, true, 1}},
        {3, 9, 11, 10, 1, {SVG_COG, 3, 99, 10, false, false, true, 1}},
    };
    enum { R = 40 };
    struct svg_class got, all;
    double want[2] = {0}, whole[2] = {0}, out[16];
    int64_t rows[R];

    HEAD(h, random_video, 5, cases[_i].t, cases[_i].h, cases[_i].w, cases[_i].text,
         cases[_i].place);
    struct svg_band trial[2] = {cases[_i].band, cases[_i].band};
    trial[1].temporal = true;
    int64_t n = h.in.x.nq;
    for (int r = 0; r < R; r++)
        rows[r] = r * 37 % 50;
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < n; i++) {
            double e = 0;
            masked_row(&h.in, &trial[k], i, out);
            for (int c = 0; c < 16; c++)
                e += pow(out[c] - head_out(&h.in)[i * 16 + c], 2);
            whole[k] += e / (double)(n * 16);
            for (int r = 0; r < R; r++)
                want[k] += rows[r] == i ? e / (R * 16) : 0;
        }
    MUST(svg_classify(&h.in, trial, rows, R, false, &got, ERR));
    MUST(svg_classify(&h.in, trial, NULL, 0, false, &all, ERR));
    for (int k = 0; k < 2; k++) {
        ck_assert_double_eq_tol(got.mse[k], want[k], 1e-10 * want[k] + 1e-18);
        ck_assert_double_eq_tol(all.mse[k], whole[k], 1e-10 * whole[k] + 1e-18);
    }
    ck_assert_int_eq(got.temporal, want[1] < want[0]);
    /* Eight bits of mantissa: a few percent of a mean squared error. */
    MUST(svg_classify(&h.in, trial, rows, R, true, &got, ERR));
    for (int k = 0; k < 2; k++) {
        ck_assert_double_eq_tol(got.mse[k], want[k], 0.05 * want[k]);
        ck_assert_double_eq(got.mse[k], (double)dtype_round(DT_BF16, (float)got.mse[k]));
    }
}

TEST(ties_are_spatial)
{
    struct svg_class got;
    struct svg_band b[2] = {{SVG_WAN, 2, 30, 0, false, true, false, 60},
                            {SVG_WAN, 2, 30, 0, true, true, false, 60}};
    HEAD(h, random_video, 5, 2, 5, 6, 0, 0);
    MUST(svg_classify(&h.in, b, NULL, 0, true, &got, ERR));
    ck_assert_double_eq(got.mse[0], got.mse[1]);
    ck_assert(!got.temporal);
}

/* Rows depend on the seed and the call, not on the head; the first row_limit ones only. */
TEST(sampled_rows_are_the_calls_own)
{
    HEAD(h, random_video, 5, 3, 8, 8, 0, 0);
    h.in.step = 30;
    double one = metric_of("svg1:rows=3", &h.in, "mse_spatial");
    h.in.head = 5;
    ck_assert_double_eq(metric_of("svg1:rows=3", &h.in, "mse_spatial"), one);
    h.in.step++;
    ck_assert_double_ne(metric_of("svg1:rows=3", &h.in, "mse_spatial"), one);
    h.in.branch = "uncond";
    double other = metric_of("svg1:rows=3", &h.in, "mse_spatial");
    h.in.step--;
    ck_assert_double_ne(metric_of("svg1:rows=3", &h.in, "mse_spatial"), other);
    /* One row left to draw from. */
    double first = metric_of("svg1:rows=1:row_limit=1", &h.in, "mse_spatial");
    ck_assert_double_eq_tol(metric_of("svg1:rows=9:row_limit=1", &h.in, "mse_spatial"), first,
                            1e-14);
}

static int64_t half_width(const struct record *r)
{
    int64_t width = 0;
    const char *note = strstr(buf_str(&r->notes), "half_width=");
    ck_assert_int_eq(sscanf(note, "half_width=%" SCNd64, &width), 1);
    return width;
}

/* Masks in the order of the trace: kept pairs of either class are those of the band, and the tiles
 * are counted in the order of the head. */
TEST_N(masks_of_both_classes, 4)
{
    static const char *const methods[] = {"svg1:preset=none:target=0.3", "svg1:profile=plain",
                                          "svg1:preset=none:target=0.45",
                                          "svg1:preset=none:target=0.45"};
    struct sim_head h;
    struct record r;
    int seen[2] = {0};
    for (int k = 0; k < 16; k++) {
        MUST(random_video(5, 4, 9, 10, _i < 2 ? 0 : 12, _i - 1, &h, ERR));
        for (int64_t j = 0; j < h.in.x.nk * h.in.x.d; j++)
            h.k[j] = (float)(h.k[j] * (k % 8));
        OWN(sim_head_free) struct sim_head again;
        MUST(head_init(&again, &h.in, PREC_F64, ERR));
        again.in.step = k + 10;
        int64_t n = again.in.x.nq;
        OWN(free_at) uint8_t *bits = calloc((size_t)(n * n), 1);
        run_text_carry(methods[_i], &again.in, NULL, 1, sink_bits, bits, &r);
        ck_assert_int_eq(r.status, RECORD_OK);
        bool temporal = record_get(&r, "temporal") == 1;
        struct svg_band b = {svg_family(0, -1, &again.in),
                             4,
                             90,
                             again.in.geom.text,
                             temporal,
                             _i < 2,
                             false,
                             half_width(&r)};
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++)
                ck_assert_int_eq(bits[i * n + j], wants_executed(&b, svg_band_position(&b, i),
                                                                 svg_band_position(&b, j)));
        struct svg_count c;
        MUST(svg_band_count(&b, 0, &c, ERR));
        double side = (double)((n + 127) / 128);
        HAS(&r, 1e-15, "pairs_kept density_tile density_native pairs_exec", (double)c.pairs,
            (double)c.tiles / side / side, (double)c.tiles / side / side,
            (double)(c.tiles * 128 * 128));
        seen[temporal]++;
        record_free(&r);
        sim_head_free(&h);
    }
    ck_assert_msg(seen[0] && seen[1], "%d spatial, %d temporal", seen[0], seen[1]);
}

/* Spatial or temporal by the choice of a device. */
TEST_N(a_device_classifies, 2)
{
    struct svg1_own numbers = {{2.5, _i ? 1.5 : 3.5}};
    OWN(mask_free) struct mask m = {0}, want = {0}, choice = {0};
    OWN(record_free) struct record r;
    HEAD(h, random_video, 5, 4, 9, 10, 12, 2);
    int64_t n = h.in.x.nq;
    PREPARED(p, "svg1:preset=none:target=0.45", &h.in, 1, NULL);
    struct rule rule = rule_of(&p);
    ck_assert_int_eq(rule.of.svg1.frames * rule.of.svg1.frame + rule.of.svg1.text, n);
    MUST(mask_lists_init(&choice, n, n, 0, n, false, n, n, ERR));
    if (_i)
        MUST(mask_lists_add(&choice, 0, 0, ERR));
    mask_lists_finish(&choice);
    take_choice(&p, &choice, &(struct accel_own){&numbers, sizeof numbers});
    MUST(p.me->select(p.state, 0, n, &m, ERR));
    record_init(&r);
    MUST(p.me->report(p.state, &r, ERR));
    struct svg_band b = {SVG_HUNYUAN, 4, 90, 12, _i, false, false, half_width(&r)};
    MUST(svg_band_mask(&b, 0, n, &want, ERR));
    ck_assert_int_eq(mask_lists_differ(&m, &want), 0);
    HAS(&r, 0, "temporal mse_spatial mse_temporal", _i, 2.5, _i ? 1.5 : 3.5);
}

TEST_N(golden_classes, 8)
{
    static const struct {
        int step, layer, head;
        double spatial, temporal;
        int is_temporal;
        double min, mean, l1;
    } cases[] = {
        {0, 0, 0, 1.032249e-3, 1.986579e-3, 0, 0.331505, 0.691610, 0.239118},
        {0, 0, 1, 7.935327e-4, 6.848277e-4, 1, 0.459811, 0.758913, 0.261870},
        {0, 5, 0, 1.037580e-2, 3.785138e-3, 1, 0.591113, 0.935493, 0.0797472},
        {0, 5, 1, 1.047425e-2, 4.286877e-3, 1, 0.474652, 0.930825, 0.0862594},
        {3, 0, 0, 3.929322e-3, 3.122278e-2, 0, 0.324797, 0.707735, 0.191022},
        {3, 0, 1, 4.887097e-3, 3.036859e-3, 1, 0.822116, 0.964754, 0.0371182},
        {3, 5, 0, 2.216789e-2, 4.652708e-3, 1, 0.385927, 0.955489, 0.0406723},
        {3, 5, 1, 2.262433e-2, 5.443089e-3, 1, 0.339311, 0.953513, 0.0402258},
    };
    HEAD(h, golden_video, cases[_i].step, cases[_i].layer, cases[_i].head, PREC_F64);
    RUN(r, "svg1:rows=all", &h.in);
    HAS(&r, DIGITS(7), "temporal mse_spatial mse_temporal pairs_kept", cases[_i].is_temporal,
        cases[_i].spatial, cases[_i].temporal, 102096);
    ck_assert_double_eq_tol(record_get(&r, "density_tile"), 8.0 / 9, 1e-15);
    HAS(&r, DIGITS(6), "cra_min cra_mean err_l1_rel", cases[_i].min, cases[_i].mean, cases[_i].l1);
    /* 16-bit classification agrees on these heads. */
    RUN_HAS("svg1:rows=all:arith=bf16", &h.in, 0, "class_changed", 0);
}
