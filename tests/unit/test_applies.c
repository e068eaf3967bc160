/*
 * test_applies.c - what methods do not take: parameters that are refused, heads that are skipped,
 * prompts so short that they stay dense, the numbers of heads.
 */
#include "tests/harness/methodrun.h"

static const struct {
    const char *text, *why;
} refused[] = {
    {"bigbird:block=8", "[16, 128]"},
    {"bigbird:random=17", "[0, 16]"},
    {"chipmunk:full_steps=0+10", "steps 0 and 1 must be full"},
    {"chipmunk:full_steps=1+2", "steps 0 and 1 must be full"},
    {"chipmunk:full_steps=0+1+x", "full_steps"},
    {"chipmunk:full_steps=0+1:full_every=10", "two ways"},
    {"fg-attn:M=24", "multiple of 16"},
    {"fg-attn:M=512", "[16, 256]"},
    {"fg-attn:width=4", "1, 8, 16, 32, 64 or 128"},
    {"fg-attn:width=48", "1, 8, 16, 32, 64 or 128"},
    {"fg-attn:mode=pooled:pool=literal", "needs tau1"},
    {"fg-attn:mode=pooled:pool=topk", "needs kappa"},
    {"fg-attn:tau=0", "expected a number > 0"},
    {"fg-attn:permute=spiral", "hilbert"},
    {"hash-sparse:buckets=7", "buckets=7: expected an even number, such as 8"},
    {"hash-sparse:buckets=0", "buckets"},
    {"hash-sparse:buckets=130", "buckets"},
    {"longformer:global=x", "global"},
    {"longformer:global=-3", "global"},
    {"longformer:variant=no-overlap:dilation=2", "dilation"},
    {"longnet:segments=5:ratios=1+2", "1 segments and 2 ratios"},
    {"longnet:segments=0:ratios=1", "above 0"},
    {"minference:table_id=0123456789abcdef", "give table=FILE"},
    {"nm:n=5", "n=5 of m=4 keys: expected at most m"},
    {"nsa:block=64:stride=24", "expected multiples of stride=24"},
    {"nsa:profile=fla:stride=16", "leave kernel and stride out"},
    {"oracle:kind=topk", "k=10%"},
    {"oracle:unit=0x1", "ROWSxKEYS"},
    {"oracle:kind=block:unit=16", "ROWSxKEYS"},
    {"oracle:unit=16x1", "kind=topp"},
    {"oracle:forced=corner", "sink-N"},
    {"oracle:forced=sink-0", "sink-N"},
    {"oracle:alpha=0", "(0, 1]"},
    {"oracle:alpha=1.5", "(0, 1]"},
    {"oracle:kind=columns", "kind=columns needs k"},
    {"oracle:kind=strips", "kind=strips needs k"},
    {"oracle:kind=topk:k=5:rows=5%", "rows"},
    {"oracle:kind=strips:k=5:forced=diag", "forced"},
    {"oracle:kind=strips:k=5:unit=64x64", "unit"},
    {"skip-softmax:lambda=0.1:scale_factor=30", "give one of them"},
    {"spargeattn:lambda=-5:pv=7", "lambda"},
    {"spargeattn:l1=0.1:l2=0.05", "l2"},
    {"sparse-transformer:pattern=fixed:block=24", "8, 16, 32 or 64"},
    {"sparse-transformer:pattern=fixed:stride=100", "multiple of block"},
    {"sparse-transformer:pattern=fixed:verts=3:vertsize=2", "blocks of a chunk"},
    {"svg1:rows=0", "a number of rows"},
    {"svg1:rows=-3", "a number of rows"},
    {"svg1:rows=some", "a number of rows"},
    {"svg1:rows=1.5", "a number of rows"},
    {"xattention:chunk=100", "neither auto nor a multiple of 128"},
    {"xattention:chunk=0", "neither auto nor a multiple of 128"},
    {"xattention:chunk=-128", "neither auto nor a multiple of 128"},
    {"xattention:chunk=128x", "neither auto nor a multiple of 128"},
    {"xattention:chunk=many", "neither auto nor a multiple of 128"},
};

TEST_EACH(parameters_are_refused, refused)
{
    assert_refused(refused[_i].text, refused[_i].why);
}

static const struct {
    const char *text, *why; /* NULL: it runs */
    int64_t x[4];           /* queries, keys, dimension, causal; 0: those of the grid, 16, no */
    struct geometry g;
    const char *order;
    int n_steps;
} skipped[] = {
    {"bigbird", "causal", .x = {64, 64, 4, true}},
    {"bigbird:preset=sample", "", .x = {64, 64, 4}},
    {"bigbird", "", .x = {40, 64, 4}},
    {"chipmunk", "", .x = {60, 60, 8, true}},
    {"chipmunk", "in front", .g = {8, 12, 16, 20, 1}},
    {"chipmunk", "video", .x = {300, 300, 16}},
    {"chipmunk:local_voxels=3", "2x2x2 voxels", .g = {8, 12, 16, 20, 2}},
    {"chipmunk:local_voxels=3:profile=clean", NULL, .g = {8, 12, 16, 20, 2}},
    {"draft", "patches of 8x16 tokens do not divide frames of 8x12", .g = {2, 8, 12}},
    {"flexprefill", "whole prompts only: 40 queries, 64 keys", .x = {40, 64, 16}},
    {"flexprefill", "whole prompts only: 40 queries, 64 keys", .x = {40, 64, 16, true}},
    {"hash-sparse:buckets=6:proj_dir=axes",
     "proj_dir=axes has no 3 unit vectors in a head of dimension 2", .x = {64, 64, 2}},
    {"hyperattention", "as many queries as keys", .x = {63, 129, 64, true}},
    {"minference", "whole prompts only: 40 queries, 64 keys", .x = {40, 64, 16}},
    {"minference", "whole prompts only: 40 queries, 64 keys", .x = {40, 64, 16, true}},
    {"radial", "bidirectional only", .x = {60, 60, 8, true}},
    {"radial", "grid", .x = {60, 60, 16}, .g = {3, 5, 5}},
    {"radial", "in front", .g = {3, 4, 5, 4, 1}},
    {"radial", "raster order", .g = {3, 4, 5}, .order = "hilbert"},
    {"radial", "video grid", .x = {60, 60, 16}},
    {"radial:pad=official", "no multiple of the block", .g = {3, 4, 5}},
    {"sageattention", "129", .x = {32, 32, 129}},
    {"sageattention", "", .x = {16, 32, 8, true}},
    {"sale", "causal only", .x = {64, 64, 16}},
    {"sale", "whole prompts only: 40 queries, 64 keys", .x = {40, 64, 16, true}},
    {"sale", "head dimension 24 is not a multiple of 16 up to 1024", .x = {64, 64, 24, true}},
    {"sampleattention", "causal only", .x = {300, 300, 16}},
    {"spargeattn", NULL, .x = {64, 128, 16}},
    {"spargeattn", "causal needs nq == nk", .x = {64, 128, 16, true}},
    {"spargeattn:permute=time", "video", .x = {64, 64, 16, true}},
    {"streaming:dilate=dilated2", "", .x = {64, 64, 4}},
    {"svg1", "bidirectional only", .x = {60, 60, 8, true}},
    {"svg1", "grid", .x = {60, 60, 16}, .g = {3, 5, 5}, .n_steps = 50},
    {"svg1", "how many steps", .g = {3, 4, 5}},
    {"svg1", "raster order", .g = {3, 4, 5}, .order = "time", .n_steps = 50},
    {"svg1", "video grid", .x = {60, 60, 16}, .n_steps = 50},
    {"svg1:dense_steps=0", NULL, .g = {3, 4, 5}},
    {"svg1:family=cog", "in front", .g = {3, 4, 5, 4, 2}, .n_steps = 50},
    {"svg1:family=hunyuan", "behind", .g = {3, 4, 5, 4, 1}, .n_steps = 50},
    {"svg1:family=wan", "no text", .g = {3, 4, 5, 4, 2}, .n_steps = 50},
    {"svg2:preset=none", "text in front", .g = {4, 6, 8, 5, 1}},
    {"svg2:preset=none:kc=12", "qc=200 clusters of 192 tokens", .g = {4, 6, 8}},
    {"svg2:preset=none:qc=6", "kc=1000 clusters of 192 tokens", .g = {4, 6, 8}},
    {"svg2:preset=none:qc=6:kc=12", "raster order", .g = {4, 6, 8}, .order = "time"},
    {"vsa", "bidirectional video trace", .x = {60, 60, 16}},
    {"vsa", NULL, .g = {3, 5, 5, 7, 1}},
};

TEST_EACH(heads_are_skipped, skipped)
{
    struct geometry g = skipped[_i].g;
    const int64_t *x = skipped[_i].x, n = g.t * g.h * g.w + g.text;
    HEAD(h, random_head, 3, x[0] ? x[0] : n, x[0] ? x[1] : n, x[0] ? (int)x[2] : 16, x[3] != 0, 1,
         PREC_F32);
    h.in.geom = g;
    h.in.order = skipped[_i].order;
    h.in.n_steps = skipped[_i].n_steps;
    h.in.n_layers = 40;
    h.in.layer = 7;
    if (skipped[_i].why) {
        assert_skips(skipped[_i].text, &h.in, skipped[_i].why);
    } else {
        RUN(r, skipped[_i].text, &h.in);
    }
}

static const struct {
    const char *text, *note;
    int64_t n;
    bool dense;
} shorts[] = {
    {"flexprefill", "pattern=dense", 1024, true},
    {"flexprefill", "pattern=dense", 1025, false},
    {"flexprefill:min_budget=0", "pattern=dense", 256, true},
    {"flexprefill:min_budget=0", "pattern=dense", 257, false},
    {"flexprefill:block=32:min_budget=0", "pattern=dense", 64, true},
    {"flexprefill:block=32:min_budget=0", "pattern=dense", 65, false},
    {"sale:tau=0.5", "dense=", 1024, true},
    {"sale:tau=0.5", "dense=", 1025, false},
    {"sale:tau=9e-6", "dense=", 1025, true},
    {"sale:tau=0", "dense=", 1025, true},
    {"sale:tau=0.5:dense_below=511", "dense=", 512, false},
    {"sampleattention", "fallback=dense", 255, true},
    {"sampleattention", "fallback=dense", 256, false},
    {"sampleattention:chunks=4", "fallback=dense", 512, true},
    {"sampleattention:chunks=4", "fallback=dense", 513, false},
    {"sampleattention:block=64", "fallback=dense", 127, true},
    {"sampleattention:block=64", "fallback=dense", 128, false},
};

TEST_EACH(short_prompts_stay_dense, shorts)
{
    HEAD(h, random_head, 3, shorts[_i].n, shorts[_i].n, 16, true, 1, PREC_F32);
    RUN(r, shorts[_i].text, &h.in);
    ck_assert_int_eq(strstr(buf_str(&r.notes), shorts[_i].note) != NULL, shorts[_i].dense);
    if (shorts[_i].dense)
        HAS(&r, 0, "density_elem sparsity_total", 1, 0);
    HAS(&r, 0, "rows_empty", 0);
}

/* K and V repeated to one head each. */
TEST_N(heads_of_a_group_do_not_depend_on_their_numbers, 2)
{
    static const char *const texts[] = {"sale:dense_below=0", "minference:v=40:s=110"};
    HEAD(h, golden_code_lm, 5, 7, PREC_F32);
    RUN(a, texts[_i], &h.in);
    h.in.head = h.in.kv_head = 0;
    h.in.n_heads = h.in.n_kv_heads = 1;
    RUN(b, texts[_i], &h.in);
    ck_assert_int_eq(assert_agree(&a, &b, 0, "pairs_kept err_l2_rel"), 2);
}
