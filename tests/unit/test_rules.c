/* Rules of core/rules.h: they say all that a choice follows from. Of the methods by whose rules
 * the choice is made here with the method's parts (tests/harness/rulechoice.h), the mask is that of
 * the method, which has parameters, presets and sizes. */
#include "tests/harness/methodrun.h"
#include "tests/harness/rulechoice.h"
#include "tests/harness/spargerun.h"

static const char *const settings[] = {
    "spargeattn:theta=-0.1:tau=0.9",
    "spargeattn:tau=0.5",
    "spargeattn:arch=sm90:theta=0.3:tau=0.7",
    "spargeattn:tile=64x128:judge=0:tau=0.4",
    "spargeattn:profile=paper:theta=0.3:tau=0.7",
    "spargeattn:select=topk:topk=0.3:sink=1",
    "spargeattn:select=topk:topk=0.01:theta=-1",
    "spargeattn:smooth_k=0:theta=0.2",
    "spargeattn:dense=1",
    "sampleattention",
    "sampleattention:block=64:chunks=4:alpha_c=0.8:alpha_s=0.7",
    "sampleattention:extend=centred:chunks=3:alpha_c=0.6",
    "sampleattention:merge=union:chunks=3:extend=cover1:alpha_s=0.5",
    "sampleattention:merge=mean:chunks=4:profile=safe:alpha_c=0.7",
    "sampleattention:profile=strict:alpha_c=0.3:alpha_s=0",
    "sampleattention:keep_diag=0:keep_sink=1:alpha_c=0.4:block=64",
    "sampleattention:preset=internlm2-spd:block=64",
    "sampleattention:profile=v2",
    "sampleattention:profile=v2:alpha=0.5:rows=0.3:window=0.02:bottom=5",
    "xattention",
    "xattention:stride=8:tau=0.6:profile=clean",
    "xattention:stride=4:tau=0.3:chunk=256",
    "xattention:stride=64:profile=paper:norm=0.5",
    "flexprefill",
    "flexprefill:min_budget=128",
    "flexprefill:gamma=0.7:tau=0.5:min_budget=0:block=64",
    "flexprefill:gamma=0.55:tau=0.8:min_budget=0",
    "flexprefill:gamma=0.9:min_budget=64:max_budget=200:block=64",
    "flexprefill:preset=api",
    "flexprefill:profile=frontier:preset=readme:min_budget=80",
    "flexprefill:profile=frontier",
    "flexprefill:profile=frontier:gamma=0.3:min_budget=80:max_budget=120",
    "minference:pattern=block:top=3",
    "minference:pattern=block:profile=paper:top=20",
    "minference",
    "minference:pattern=vs:v=60:s=120",
    "minference:v=300:s=500:last_q=128:force_cols=0:force_dists=0",
    "minference:budget=0.2:last_q=40:min_v=4",
    "minference:v=80:s=150:last_q=300:ratio=0.5",
    "minference:mask=requested:v=100:s=300:last_q=64:force_cols=4:force_dists=10",
    "minference:preset=light",
    "minference:sparsity=0.5",
    "minference:sparsity=0.3:mask=requested",
    "minference:sparsity=0.6:pattern=block",
};

/* The mask by the rule of a head; false where the method does not apply. */
static bool chosen_by_rule(const struct method_run *run, const struct head_in *in, struct mask *m,
                           struct mask *own)
{
    const struct method *me = run->method;
    struct method_ctx ctx = {.seed = 1};
    struct rule rule;
    struct err err = {0};
    void *state = NULL;
    char why[160] = "";
    int rc = method_prepare(me, &ctx, run->params, in, &state, &err);
    if (rc == METHOD_SKIP)
        return false;
    assert_ok(rc, &err);
    memset(&rule, 0, sizeof rule);
    ck_assert_msg(me->device.rule(state, &rule, why), "%s: %s", run->canonical, why);
    const struct accel_choice c = {.method = me->name, .rule = &rule.of};
    ck_assert(rule_choose(&c, in, m));
    assert_ok(me->select(state, 0, in->x.nq, own, &err), &err);
    method_release(me, state);
    return true;
}

/* Of units by means: on a grid of 4 x 8 x 16 or without one, with values of which many are equal.
 */
static const struct {
    const char *text;
    int64_t nq, nk;
    bool causal, grid;
} of_units[] = {
    {"vsa:sparsity=0.6", 512, 512, false, true},
    {"draft:sparsity=0.5", 512, 512, false, true},
    {"draft:sparsity=0", 512, 512, false, true},
    {"draft:sparsity=1", 512, 512, false, true},
    {"sla:topk=0.4", 300, 700, false, false},
    {"sla:topk=0.05:block=128x64", 300, 700, false, false},
    {"subblock:skip_first_steps=0:min_seq=0:sparsity=0.9", 700, 700, false, false},
    {"subblock:skip_first_steps=0:min_seq=0:sparsity=0.9:nq=1:nk=8", 700, 700, false, false},
    {"sol:dense_layers=0:dense_steps=0", 700, 700, false, false},
    {"sol:dense_layers=0:dense_steps=0:tau=0.3:near=0:sink_from=70:sink_to=140", 300, 700, false,
     false},
    {"sol:dense_layers=0:dense_steps=0:tau=0.5:var=exact", 700, 700, false, false},
    {"moba:chunk=32:topk=4:dense_last=0", 300, 700, true, false},
    {"moba:chunk=50:topk=1:dense_last=0", 700, 300, true, false},
    {"nsa:share=head:block=16:top=6", 700, 700, true, false},
    {"nsa:share=head:profile=fla:block=16:top=4", 300, 700, true, false},
    {"nsa:share=head:profile=infllm:block=16:top=9:local=3:dense_below=0", 700, 700, true, false},
    {"nsa:share=head:block=64:top=3", 500, 300, true, false},
};

TEST_EACH(rules_of_units, of_units)
{
    enum { N = 700, D = 16 };
    struct method_run *run = NULL;
    int64_t n = 0, nq = of_units[_i].nq, nk = of_units[_i].nk;
    OWN(free_at) float *x = normals(_i + 1, 3 * N * D);
    MUST(method_runs_parse(test_methods, of_units[_i].text, &run, &n, ERR));
    for (int coarse = 0; coarse < 2; coarse++) {
        OWN(mask_free) struct mask m = {0}, own = {0};
        for (int64_t i = 0; i < 3 * N * D; i++)
            x[i] = coarse ? (float)((i / D * 7 + i % D) % 3 - 1) : dtype_round(DT_BF16, x[i]);
        struct head_in from = one_head(x, x + N * D, x + 2 * N * D, nq, nk, D, of_units[_i].causal);
        OWN(sim_head_free) struct sim_head h;
        from.src_dtype = DT_BF16;
        if (of_units[_i].grid)
            from.geom = (struct geometry){.t = 4, .h = 8, .w = 16};
        MUST(head_init(&h, &from, PREC_F64, ERR));
        ck_assert(chosen_by_rule(run, &h.in, &m, &own));
        ck_assert(m.form == MASK_LISTS && m.bq == own.bq && m.bk == own.bk);
        ck_assert_msg(!mask_lists_differ(&m, &own), "%s: %lld units differ", of_units[_i].text,
                      (long long)mask_lists_differ(&m, &own));
    }
    method_runs_free(run, n);
}

TEST_EACH(rules_are_complete, settings)
{
    static const int64_t shapes[][3] = {{65, 65, 1}, {700, 700, 1}, {640, 700, 1}, {700, 700, 0}};
    enum { N = 700, D = 16 };
    struct method_run *run = NULL;
    int64_t n = 0, seen = 0;
    OWN(free_at) float *x = normals(3, 3 * N * D);
    MUST(method_runs_parse(test_methods, settings[_i], &run, &n, ERR));
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        const struct head_in from =
            one_head(x, x + N * D, x + 2 * N * D, shapes[k][0], shapes[k][1], D, shapes[k][2] != 0);
        OWN(mask_free) struct mask m = {0}, own = {0};
        OWN(sim_head_free) struct sim_head h;
        MUST(head_init(&h, &from, PREC_F64, ERR));
        if (chosen_by_rule(run, &h.in, &m, &own)) {
            ck_assert_int_eq(m.form, own.form);
            if (m.form == MASK_LISTS)
                ck_assert_msg(m.bq == own.bq && m.bk == own.bk && !mask_lists_differ(&m, &own),
                              "%s, shape %zu", settings[_i], k);
            seen++;
        }
    }
    ck_assert_int_gt(seen, 1);
    method_runs_free(run, n);
}
