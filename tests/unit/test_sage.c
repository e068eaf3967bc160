/*
 * SageAttention: what smoothing may and may not change, group geometry inside attention, 8-bit P.V
 * and its accumulators, and errors on real heads.
 */
#include "core/rng.h"
#include "sim/methods/sageattention/sageattention.h"
#include "tests/harness/methodrun.h"

extern const struct method method_sageattention;

static struct sage_params params_of(const char *text)
{
    OWN(run_free) struct method_run *run = run_of(text);
    return *(const struct sage_params *)run->params;
}

static struct sage_rules rules_of(const char *text, int d)
{
    struct sage_params p = params_of(text);
    struct sage_rules r;
    sage_resolve(&p, d, DT_BF16, &r);
    return r;
}

/* Owned head from filled arrays. */
static void make_head(struct sim_head *h, const float *q, const float *k, const float *v, int64_t n,
                      int d, double scale)
{
    struct head_in in = {
        .x = {.nq = n, .nk = n, .d = d, .dv = d, .q = q, .k = k, .v = v, .scale = scale},
        .src_dtype = DT_F32,
        .branch = "main"};
    MUST(head_init(h, &in, PREC_F64, ERR));
}

/* Outputs and log-sum-exp of a run, all rows. */
static void outputs(const char *text, const struct sim_head *h, double *out, double *lse)
{
    struct sage_params p = params_of(text);
    OWN(sage_free) struct sage s = {0};
    struct mask m;
    double tiles;
    sage_begin(&p, &h->in, &s);
    MUST(sage_make(&s, ERR));
    mask_full(&m, h->in.x.nq, h->in.x.nk, 0, h->in.x.nq, h->in.x.causal);
    MUST(tile_attn_rows(&s.tile, &m, out, lse, &tiles, ERR));
}

TEST(defaults_of_the_versions)
{
    struct sage_rules rules = rules_of("sageattention", 128);
    const struct own_quantised *r = &rules.own;
    ck_assert_int_eq(r->bq, 64);
    ck_assert_int_eq(r->bk, 128);
    ck_assert_int_eq(r->warp, 16);
    ck_assert_int_eq(r->gran, OWN_BY_THREAD);
    ck_assert_int_eq(r->round, OWN_RHA_EPS);
    ck_assert_int_eq(r->sum, OWN_SUM_F32);
    ck_assert_float_eq(r->offset, 8.807f);
    ck_assert_float_eq(r->v_top, 448);
    ck_assert(!rules.smooth_q);

    rules = rules_of("sageattention:arch=sm89", 128);
    ck_assert_int_eq(r->bq, 128);
    ck_assert_int_eq(r->warp, 32);
    rules = rules_of("sageattention:arch=sm80:pv=f16:accum=f16:gran=warp", 128);
    ck_assert_int_eq(r->warp, 16);
    ck_assert_int_eq(r->round, OWN_RNE);
    ck_assert_int_eq(r->keys_as, DT_F32);
    rules = rules_of("sageattention:arch=sm80:pv=f16:accum=f32", 128);
    ck_assert_int_eq(r->warp, 32);

    rules = rules_of("sageattention:version=1", 64);
    ck_assert_int_eq(r->bq, 128);
    ck_assert_int_eq(r->gran, OWN_BY_BLOCK);
    ck_assert_int_eq(r->round, OWN_RHA);
    ck_assert(!r->e4m3);
    ck_assert_int_eq(r->sum, OWN_SUM_F16);
    ck_assert(r->fold_scale);

    rules = rules_of("sageattention:version=2pp", 64);
    ck_assert_float_eq(r->v_top, 2.25f);
    ck_assert_int_eq(r->sum, OWN_SUM_F16);
    rules = rules_of("sageattention:version=2pp:profile=paper", 64);
    ck_assert_float_eq(r->v_top, 4.5f);
    ck_assert_float_eq(r->factor, 224);
    rules = rules_of("sageattention:profile=paper:qk=int4", 64);
    ck_assert(rules.smooth_q);
    ck_assert_int_eq(r->levels, 7);
    ck_assert_float_eq(r->factor, 448);
}

/* Values on the grid of the integers: q, k multiples of 1/16 with a largest value of 127/16 in
 * every group and smoothed likewise, so that quantisation is exact and only the identity remains.
 */
enum { GN = 128, GD = 16 };

static void grid_head(struct sim_head *h, float q_mean, float k_mean)
{
    float q[GN * GD], k[GN * GD], v[GN * GD];
    for (int t = 0; t < GN; t++)
        for (int c = 0; c < GD; c++) {
            int i = t * GD + c;
            /* Rows come in pairs of opposite sign: means of blocks are exactly the offsets. */
            float sign = t % 2 ? -1 : 1;
            int qi = (int)rng_below(1, 0, (uint64_t)(t / 2 * GD + c), 41) - 20;
            int ki = (int)rng_below(1, 1, (uint64_t)(t / 2 * GD + c), 41) - 20;
            if (c == 0)
                qi = 1, ki = 127 - (t / 2) % 2 * 127;
            if (c == 1)
                qi = 127 - (t / 2) % 2 * 127, ki = 1;
            q[i] = sign * (float)qi / 16 + q_mean;
            k[i] = sign * (float)ki / 16 + k_mean;
            v[i] = (float)((int)rng_below(1, 2, (uint64_t)i, 255) - 127);
        }
    make_head(h, q, k, v, GN, GD, 1 / 1.4426950408889634074);
}

static double worst(const double *a, const double *b, int64_t n)
{
    double w = 0;
    for (int64_t i = 0; i < n; i++)
        w = fmax(w, fabs(a[i] - b[i]));
    return w;
}

TEST(smoothing_is_an_identity)
{
    struct sim_head h;
    double a[GN * GD], b[GN * GD], la[GN], lb[GN];
    const char *base = "sageattention:version=1:accum=f32";
    grid_head(&h, 0, 0);
    outputs("sageattention:version=1:accum=f32:smooth_k=0", &h, a, la);
    outputs("sageattention:version=1:accum=f32:smooth_k=1", &h, b, lb);
    ck_assert_double_eq(worst(a, b, GN * GD), 0);
    /* Exact integers: what is left against exact attention is P in fp16. */
    ck_assert_double_lt(worst(a, head_out(&h.in), GN * GD), 127 * 1e-3);
    sim_head_free(&h);

    /* A mean of K that 8 bits could not hold disappears; the log-sum-exp gets it back. */
    grid_head(&h, 0, 512);
    outputs(base, &h, b, lb);
    ck_assert_double_lt(worst(a, b, GN * GD), 1e-9);
    ck_assert_double_lt(worst(lb, head_lse(&h.in), GN), 1e-3);
    sim_head_free(&h);

    /* The same for Q, with the correction qbar . k'. */
    grid_head(&h, 0.5f, 0);
    outputs("sageattention:version=1:accum=f32:smooth_q=1", &h, b, lb);
    ck_assert_double_lt(worst(b, head_out(&h.in), GN * GD), 127 * 1e-3);
    ck_assert_double_lt(worst(lb, head_lse(&h.in), GN), 1e-4);
    outputs("sageattention:version=1:accum=f32:smooth_q=1:smooth_v=1", &h, a, la);
    ck_assert_double_lt(worst(a, head_out(&h.in), GN * GD), 127 * 1e-3);
    sim_head_free(&h);
}

TEST(equal_keys_give_the_mean_of_v)
{
    static const char *const text[] = {
        "sageattention:gran=warp:pv=f16",  "sageattention:gran=thread:pv=f16",
        "sageattention:gran=block:pv=f16", "sageattention:version=1",
        "sageattention:gran=warp",         "sageattention:version=2pp",
    };
    enum { N = 200, D = 32 };
    static float q[N * D], k[N * D], v[N * D];
    static double out[N * D], lse[N];
    OWN(sim_head_free) struct sim_head h;
    double mean[D] = {0};
    for (int i = 0; i < N * D; i++) {
        q[i] = (float)rng_normal(1, 0, (uint64_t)i);
        k[i] = (float)(i % D) - 7.5f;
        v[i] = (float)rng_normal(1, 2, (uint64_t)i);
        mean[i % D] += v[i] / N;
    }
    make_head(&h, q, k, v, N, D, 0.2);
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        outputs(text[i], &h, out, lse);
        for (int e = 0; e < N * D; e++)
            ck_assert_double_eq_tol(out[e], mean[e % D], i < 4 ? 2e-3 : 0.03);
        ck_assert_double_lt(worst(lse, head_lse(&h.in), N), 1e-4);
    }
}

TEST(channels_of_zeros_stay_zero)
{
    static double out[96 * 8], lse[96];
    HEAD(h, random_head, 2, 96, 96, 8, true, 1, PREC_F64);
    for (int t = 0; t < 96; t++)
        h.v[t * 8 + 3] = 0;
    outputs("sageattention", &h, out, lse);
    for (int e = 0; e < 96 * 8; e++) {
        ck_assert(isfinite(out[e]));
        if (e % 8 == 3)
            ck_assert_double_eq(out[e], 0);
    }
}

TEST(scores_are_exact_integer_products)
{
    static const char *const text[] = {"sageattention:smooth_k=0",
                                       "sageattention:smooth_k=0:qk=int4",
                                       "sageattention:smooth_k=0:gran=warp"};
    static double out[70 * 128], lse[70];
    for (int i = 0; i < 3; i++) {
        struct sage_params p = params_of(text[i]);
        OWN(sage_free) struct sage s = {0};
        HEAD(h, random_head, 5, 70, 1, 128, false, 3, PREC_F64);
        outputs(text[i], &h, out, lse);
        sage_begin(&p, &h.in, &s);
        MUST(sage_make(&s, ERR));
        for (int r = 0; r < 70; r++) {
            int32_t dot = 0;
            for (int c = 0; c < 128; c++)
                dot += s.operands.q.q[r * 128 + c] * s.operands.k.q[c];
            if (i == 1)
                ck_assert_int_le(abs(dot), 6272);
            double want = (double)dot * h.in.x.scale * quant_scale_of(&s.operands.q, r) *
                          s.operands.k.scale[0];
            ck_assert_double_eq_tol(lse[r], want, 1e-6 * (1 + fabs(want)));
        }
    }
}

/* The published rules in plain loops: group formulas, rounding, accumulators, causal mask. */
struct plain {
    int64_t bq, bk, warp;
    int levels, acc; /* tile_acc */
    bool f8, token, v1;
    float offset, factor, v_max;
};

static float rounded(float amax, int levels, bool v1, float x)
{
    float delta = amax / (float)levels + (v1 ? 0 : 1e-7f);
    return truncf(x / delta + (x > 0 ? 0.5f : -0.5f));
}

/* Largest |x| over the tokens of t's group. */
static float group_max(const float *x, int64_t n, int d, int64_t t, bool keys,
                       const struct plain *p)
{
    float amax = 0;
    for (int64_t u = 0; u < n; u++) {
        bool same = keys ? u / p->bk == t / p->bk && u % 8 / 2 == t % 8 / 2
                         : u / p->warp == t / p->warp && u % 8 == t % 8;
        if (p->token)
            same = u == t;
        if (p->v1)
            same = keys ? u / p->bk == t / p->bk : u / p->bq == t / p->bq;
        for (int c = 0; same && c < d; c++)
            amax = fmaxf(amax, fabsf(x[u * d + c]));
    }
    return amax;
}

static void plain_quant(float *x, float *delta, int64_t n, int d, bool keys, const struct plain *p)
{
    OWN(free_at) float *amax = malloc((size_t)n * sizeof *amax);
    for (int64_t t = 0; t < n; t++)
        amax[t] = group_max(x, n, d, t, keys, p);
    for (int64_t t = 0; t < n; t++) {
        for (int c = 0; c < d; c++)
            x[t * d + c] = rounded(amax[t], p->levels, p->v1, x[t * d + c]);
        delta[t] = amax[t] / (float)p->levels + (p->v1 ? 0 : 1e-7f);
    }
}

static float accumulate(const struct plain *p, const float *prob, const float *v, int64_t keys,
                        int d, int c)
{
    float o = 0, sum = 0;
    int step = p->f8 ? 32 : 16;
    for (int64_t j = 0; j < keys; j++) {
        sum += prob[j] * v[j * d + c];
        bool edge = (j + 1) % step == 0 || j + 1 == keys;
        if (edge && p->acc == OWN_SUM_F16)
            sum = dtype_round(DT_F16, sum);
        if (edge && p->acc == OWN_SUM_FP22) {
            int e;
            double m = frexp(sum, &e);
            sum = (float)ldexp(trunc(m * 16384), e - 14);
        }
        if (p->acc == OWN_SUM_F16 && (j + 1) % 64 == 0) {
            o += sum;
            sum = 0;
        }
    }
    return o + sum;
}

static void plain_attention(const struct attn_in *x, const struct plain *p, double *out,
                            double *lse)
{
    int64_t n = x->nq;
    int d = x->d;
    float *q = malloc((size_t)(n * d) * 4), *k = malloc((size_t)(n * d) * 4),
          *v = malloc((size_t)(n * d) * 4), *dq = malloc((size_t)n * 4),
          *dk = malloc((size_t)n * 4), *dv = calloc((size_t)d, 4), *kbar = malloc((size_t)d * 4);
    float sl = (float)(x->scale * 1.4426950408889634074);
    for (int c = 0; c < d; c++) {
        double sum = 0;
        for (int64_t t = 0; t < n; t++) {
            sum += x->k[t * d + c];
            dv[c] = fmaxf(dv[c], fabsf(x->v[t * d + c]));
        }
        kbar[c] = (float)(sum / (double)n);
    }
    for (int64_t i = 0; i < n * d; i++) {
        q[i] = p->v1 ? x->q[i] * sl : x->q[i];
        k[i] = x->k[i] - kbar[i % d];
        v[i] = p->f8 ? e4m3_round(x->v[i] * (p->v_max / dv[i % d])) : dtype_round(DT_F16, x->v[i]);
    }
    plain_quant(q, dq, n, d, false, p);
    plain_quant(k, dk, n, d, true, p);
    for (int64_t r = 0; r < n; r++) {
        float m = -INFINITY, l = 0, o[128] = {0};
        for (int64_t k0 = 0; k0 < n && (!x->causal || k0 <= r); k0 += p->bk) {
            float s[128], top = m, prob[128];
            int64_t keys = n - k0 < p->bk ? n - k0 : p->bk;
            for (int64_t j = 0; j < keys; j++) {
                float dot = 0;
                for (int c = 0; c < d; c++)
                    dot += q[r * d + c] * k[(k0 + j) * d + c];
                s[j] = x->causal && k0 + j > r ? -INFINITY
                                               : dot * ((p->v1 ? 1 : sl) * dq[r] * dk[k0 + j]);
                top = fmaxf(top, s[j]);
            }
            float f = exp2f(m - top);
            l *= f;
            m = top;
            for (int64_t j = 0; j < keys; j++) {
                prob[j] = exp2f(s[j] - m + p->offset) * p->factor;
                l += prob[j];
                prob[j] = p->f8 ? e4m3_round(prob[j]) : dtype_round(DT_F16, prob[j]);
            }
            for (int c = 0; c < d; c++)
                o[c] = o[c] * f + accumulate(p, prob, v + k0 * d, keys, d, c);
        }
        double dot = 0;
        for (int c = 0; c < d; c++) {
            out[r * d + c] = o[c] / l * (p->f8 ? dv[c] / p->v_max : 1);
            dot += x->q[r * d + c] * kbar[c];
        }
        lse[r] = (m + log2(l / p->factor) - p->offset) * log(2) + x->scale * dot;
    }
    free(q), free(k), free(v), free(dq), free(dk), free(dv), free(kbar);
}

TEST(attention_follows_the_published_rules)
{
    static const struct {
        const char *text;
        struct plain p;
        double tol; /* a rounding step of the accumulator may fall either way */
    } c[] = {
        {"sageattention",
         {64, 128, 16, 127, OWN_SUM_F32, true, false, false, 8.807f, 1, 448},
         1e-4},
        {"sageattention:accum=fp22",
         {64, 128, 16, 127, OWN_SUM_FP22, true, false, false, 8.807f, 1, 448},
         1e-3},
        {"sageattention:arch=sm89:qk=int4:profile=paper:smooth_q=0",
         {128, 64, 32, 7, OWN_SUM_F32, true, false, false, 0, 448, 448},
         1e-4},
        {"sageattention:version=2pp",
         {64, 128, 16, 127, OWN_SUM_F16, true, false, false, 8.807f, 1, 2.25f},
         4e-3},
        {"sageattention:gran=token:pv=f16:accum=f16",
         {64, 128, 16, 127, OWN_SUM_F16, false, true, false, 0, 1, 1},
         4e-3},
        {"sageattention:version=1",
         {128, 64, 32, 127, OWN_SUM_F16, false, false, true, 0, 1, 1},
         4e-3},
    };
    enum { N = 300, D = 40 };
    static double out[N * D], lse[N], want[N * D], want_lse[N];
    for (size_t i = 0; i < sizeof c / sizeof *c; i++)
        for (int causal = 0; causal < 2; causal++) {
            HEAD(h, random_head, i, N, N, D, causal, 1.5, PREC_F64);
            outputs(c[i].text, &h, out, lse);
            plain_attention(&h.in.x, &c[i].p, want, want_lse);
            for (int r = 0; r < N; r++)
                ck_assert_double_eq_tol(lse[r], want_lse[r], 3e-5);
            for (int e = 0; e < N * D; e++)
                ck_assert_msg(fabs(out[e] - want[e]) < c[i].tol, "%s: row %d: %g, not %g",
                              c[i].text, e / D, out[e], want[e]);
        }
}

TEST(spargeattn_with_a_dense_list_is_the_same_arithmetic)
{
    HEAD(h, golden_code_lm, 5, 0, PREC_F64);
    for (int i = 0; i < 770 * 64; i++)
        h.v[i] = dtype_round(DT_F16, h.v[i]); /* SpargeAttn's V is fp16 before it is e4m3 */
    RUN(a, "spargeattn:theta=1:pv=off:arith=sage2:arch=sm90", &h.in);
    RUN(b, "sageattention:gran=block", &h.in);
    assert_agree(&a, &b, 0, "err_l1_rel err_l2_rel err_max err_lse_mean");
}

TEST(masks_are_full_and_counted_in_kernel_tiles)
{
    HEAD(h, golden_code_lm, 5, 7, PREC_F32);
    h.in.src_dtype = DT_BF16;
    RUN(r, "sageattention", &h.in);
    /* 13 blocks of 64 rows see 49 tiles of 128 keys. */
    HAS(&r, 0, "density_elem density_tile sparsity_total pairs_exec", 1, 1, 0, 49.0 * 64 * 128);
    assert_note(&r, "out_dtype=bfloat16");
}

static double error_of(const char *text, const struct sim_head *h)
{
    return metric_of(text, &h->in, "err_l1_rel");
}

TEST(errors_on_real_heads)
{
    for (int head = 0; head <= 7; head += 7) {
        HEAD(h, golden_code_lm, 5, head, PREC_F64);
        double v1 = error_of("sageattention:version=1", &h), v2 = error_of("sageattention", &h);
        double pp = error_of("sageattention:version=2pp", &h);
        double pp_paper = error_of("sageattention:version=2pp:profile=paper", &h);
        ck_assert_double_lt(v1, 0.0511); /* worst layer of arXiv 2410.02367, table 5 */
        ck_assert_double_gt(v1, 1e-4);
        ck_assert_double_lt(v2, 0.06);
        /* The ranges of P and V make no difference (arXiv 2505.21136, table 2). */
        ck_assert_double_eq_tol(pp / v2, 1, 0.1);
        ck_assert_double_eq_tol(pp_paper / v2, 1, 0.1);
        ck_assert_double_gt(metric_of("sageattention:version=1", &h.in, "err_cos"), 0.9984);

        /* Finer groups help, most visibly with 4 bits. */
        double tensor = error_of("sageattention:qk=int4:gran=tensor", &h);
        double thread = error_of("sageattention:qk=int4:gran=thread", &h);
        double token = error_of("sageattention:qk=int4:gran=token", &h);
        ck_assert_double_gt(tensor, thread);
        ck_assert_double_lt(token, tensor);
        ck_assert_double_gt(thread, 3 * v2);
        double both = error_of("sageattention:qk=int4:smooth_q=1", &h);
        double none = error_of("sageattention:qk=int4:smooth_k=0", &h);
        ck_assert_double_lt(both, none);
    }
}
