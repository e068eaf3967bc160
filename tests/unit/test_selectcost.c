/* What choosing a mask costs: every method's count against loops that are written out here, from
 * the method's page and not from its code. */
#include "sim/methods/sale/sale.h"
#include "tests/harness/conform.h"

enum { N = 512, D = 64 };

/* Operations and bytes that a loop adds up. */
struct tally {
    double flops, bytes;
};

static struct sim_head head;
static double in_bytes; /* of a number of q, k or v */

static void setup(void)
{
    conform_head(NORMAL, N, N, true, PREC_F64, &head);
    ck_assert_int_eq(head.in.x.d, D);
    in_bytes = (double)dtype_size(head.in.src_dtype);
}

static void teardown(void)
{
    sim_head_free(&head);
}
FIXTURE(setup, teardown)

static void product(struct tally *t)
{
    for (int c = 0; c < D; c++)
        t->flops += 2;
}

static void read_row(struct tally *t)
{
    t->bytes += D * in_bytes;
}

/* A number between two phases, in 4 bytes. */
static void write_and_read(struct tally *t)
{
    t->bytes += 4 + 4;
}

/* Exponential, sum, quotient. */
static void softmax_entry(struct tally *t)
{
    t->flops += 1 + 1 + 1;
}

static void assert_cost_of(const struct head_in *in, const char *text, struct tally want)
{
    RUN(r, text, in);
    struct tally got = {record_get(&r, "cost_select_flops"), record_get(&r, "cost_select_bytes")};
    ck_assert_msg(got.flops == want.flops && got.bytes == want.bytes,
                  "%s: %.17g flops and %.17g bytes, expected %.17g and %.17g", text, got.flops,
                  got.bytes, want.flops, want.bytes);
}

static void assert_cost(const char *text, struct tally want)
{
    assert_cost_of(&head.in, text, want);
}

/* Probabilities of one row, each of which enters `sums` sums. */
static void exact_row(struct tally *t, int i, int sums)
{
    read_row(t);
    for (int j = 0; j <= i; j++) {
        product(t);
        softmax_entry(t);
        t->flops += sums;
        write_and_read(t);
    }
}

TEST(sampled_slices)
{
    static const int ends[2] = {256, 512};
    struct tally t = {0, 0};
    for (int s = 0; s < 2; s++) {
        for (int i = ends[s] - 128; i < ends[s]; i++)
            exact_row(&t, i, 2);
        for (int j = 0; j < ends[s]; j++)
            read_row(&t);
        for (int block = 0; block < 4; block++) {
            write_and_read(&t); /* of columns */
            write_and_read(&t); /* of diagonals */
        }
    }
    assert_cost("sampleattention:chunks=2", t);
}

TEST(last_rows)
{
    struct tally t = {0, 0};
    for (int i = N - 64; i < N; i++)
        exact_row(&t, i, 2);
    for (int j = 0; j < N; j++) {
        read_row(&t);
        write_and_read(&t); /* mass of the column */
        write_and_read(&t); /* of the distance */
    }
    assert_cost("minference:v=40:s=60:force_dists=10:min_s=10", t);
}

TEST(pooled_blocks)
{
    struct tally t = {0, 0};
    for (int i = 0; i < N; i++) {
        t.flops += D + D; /* into the mean of its block of queries, of keys */
        read_row(&t);
        read_row(&t);
    }
    for (int i = 0; i < N / 64; i++) {
        for (int c = 0; c < 2 * D; c++)
            write_and_read(&t);
        for (int j = 0; j <= i; j++) {
            product(&t);
            write_and_read(&t);
        }
    }
    assert_cost("minference:pattern=block:top=2", t);
}

TEST(pattern_test)
{
    struct tally t = {0, 0};
    for (int i = N - 32; i < N; i++) {
        exact_row(&t, i, 2);
        read_row(&t);
        t.flops += D; /* into the mean query */
    }
    for (int j = 0; j < N; j++) {
        read_row(&t); /* for the rows */
        read_row(&t); /* for the means */
        t.flops += D + 2;
        write_and_read(&t);
        write_and_read(&t);
    }
    for (int b = 0; b < N / 32; b++) {
        for (int c = 0; c < D; c++)
            write_and_read(&t);
        product(&t);
        softmax_entry(&t);
        write_and_read(&t);
    }
    assert_cost("flexprefill:block=32:min_budget=0:tau=0", t);
}

TEST(mean_queries_of_slices)
{
    struct tally t = {0, 0};
    for (int g = 0; g < N / 64; g++) {
        for (int c = 0; c < D; c++)
            write_and_read(&t);
        for (int j = 0; j < (g + 1) * 64; j++) {
            product(&t);
            softmax_entry(&t);
            write_and_read(&t);
        }
    }
    for (int i = 0; i < N; i++) {
        t.flops += D;
        read_row(&t);
        read_row(&t);
    }
    assert_cost("fg-attn:mode=pooled:M=64", t);
}

/* Without a dense call beside it the normalisers are a pass of their own. */
TEST(largest_weights_of_slices)
{
    struct tally t = {0, 0};
    for (int i = 0; i < N; i++) {
        for (int j = 0; j <= i; j++) {
            product(&t);
            t.flops += 2;
            product(&t);
            t.flops += 1;
        }
        for (int pass = 0; pass < 2; pass++) {
            read_row(&t);
            read_row(&t);
        }
        write_and_read(&t);
    }
    assert_cost("fg-attn:refresh=1", t);
}

TEST(antidiagonals)
{
    struct tally t = {0, 0};
    for (int r = 0; r < N / 16; r++)
        for (int j = 0; j <= r; j++) {
            for (int s = 0; s < 16; s++)
                product(&t);
            softmax_entry(&t);
            t.flops += 1;
            write_and_read(&t);
        }
    for (int i = 0; i < 2 * N; i++)
        read_row(&t);
    assert_cost("xattention", t);
}

TEST(similar_blocks)
{
    struct tally t = {0, 0};
    for (int j = 0; j < N; j++) {
        read_row(&t); /* the mean of all keys */
        read_row(&t); /* the difference to it */
        t.flops += 2 * D;
        for (int c = 0; c < D; c++)
            write_and_read(&t);
        read_row(&t); /* a query */
    }
    for (int i = 0; i < 2 * N; i++) {
        t.flops += D; /* mean */
        product(&t);  /* length */
        t.flops += 2 * D;
    }
    for (int b = 0; b < N / 128 + N / 64; b++) {
        product(&t);
        for (int c = 0; c < D + 1; c++)
            write_and_read(&t);
    }
    for (int i = 0; i < N / 128; i++)
        for (int j = 0; j * 64 < (i + 1) * 128; j++) {
            product(&t);
            softmax_entry(&t);
            write_and_read(&t);
        }
    assert_cost("spargeattn:theta=-1", t);
}

TEST(tested_pairs)
{
    struct tally t = {0, 0};
    for (int i = 0; i < 2 * N; i++) { /* queries, keys */
        t.flops += 2 * D + 2 * D;     /* mean, difference; scaling, and a half of the next line */
        for (int pass = 0; pass < 3; pass++)
            read_row(&t);
        t.bytes += D * 0.5 * 2; /* 4 bits, written and read */
    }
    for (int j = 0; j < N; j++)
        write_and_read(&t); /* the product with the mean query */
    for (int m = 0; m < N / 64; m++) {
        struct sale_regions g = sale_regions(N, m, 4);
        for (int i = 0; i < 64 && g.mid > 0; i++) {
            for (int j = 0; j < g.n * 32; j++) {
                product(&t);
                if (j >= 32 && j < (g.mid + 1) * 32)
                    t.flops += 1;
                else
                    softmax_entry(&t);
            }
            write_and_read(&t);
        }
    }
    assert_cost("sale:dense_below=0:local=128", t);
}

TEST(gates_of_chunks)
{
    struct tally t = {0, 0};
    for (int i = 0; i < N; i++) {
        read_row(&t);
        read_row(&t);
        t.flops += D;
        for (int chunk = 0; chunk < i / 64; chunk++) {
            product(&t);
            write_and_read(&t);
        }
    }
    for (int c = 0; c < N / 64 * D; c++)
        write_and_read(&t);
    assert_cost("moba:chunk=64:topk=2:dense_last=0", t);
}

TEST(shares_of_mean_keys)
{
    struct tally t = {0, 0};
    for (int first = 0; first + 32 <= N; first += 16)
        for (int c = 0; c < D; c++) {
            t.flops += 32;
            write_and_read(&t);
        }
    for (int i = 0; i < N; i++) {
        read_row(&t);
        read_row(&t);
        for (int first = 0; first + 32 <= i + 1; first += 16) {
            product(&t);
            softmax_entry(&t);
            t.flops += 1;
            write_and_read(&t);
        }
    }
    assert_cost("nsa:share=head", t);
}

/* A bidirectional head of 4 x 8 x 16 tokens: 8 tiles, 4 patches, 8 blocks. */
TEST(blocks_of_a_video)
{
    OWN(sim_head_free) struct sim_head h;
    struct tally vsa = {0, 0}, sla = {0, 0}, draft = {0, 0}, sub = {0, 0}, sol = {0, 0};
    conform_head(NORMAL, N, N, false, PREC_F64, &h);
    h.in.geom = (struct geometry){.t = 4, .h = 8, .w = 16};
    struct tally *pooled[] = {&vsa, &draft, &sub, &sla};
    static const int blocks[] = {8, 4, 8, 8}, cells[] = {1, 1, 4, 1};
    for (int m = 0; m < 4; m++) {
        for (int i = 0; i < 2 * N; i++) {
            pooled[m]->flops += D;
            read_row(pooled[m]);
        }
        for (int c = 0; c < 2 * blocks[m] * cells[m] * D; c++)
            write_and_read(pooled[m]);
        for (int e = 0; e < blocks[m] * blocks[m]; e++) {
            write_and_read(pooled[m]);
            for (int p = 0; p < cells[m] * cells[m]; p++) {
                product(pooled[m]);
                if (m == 1 || m == 2)
                    softmax_entry(pooled[m]);
            }
        }
    }
    for (int j = 0; j < N; j++) { /* sla: the mean of all keys, the difference to it */
        sla.flops += 2 * D;
        read_row(&sla);
    }
    for (int i = 0; i < N; i++) {
        for (int row = 0; row < 3; row++)
            read_row(&sol);
        sol.flops += 2 * D; /* means of keys, sums of values */
        for (int j = 0; j < 8; j++) {
            product(&sol);
            sol.flops += 1;
        }
    }
    for (int e = 0; e < 8 * 2 * D + 8 * 8; e++)
        write_and_read(&sol);
    assert_cost_of(&h.in, "vsa", vsa);
    assert_cost_of(&h.in, "draft", draft);
    assert_cost_of(&h.in, "subblock:skip_first_steps=0:min_seq=0", sub);
    assert_cost_of(&h.in, "sla", sla);
    assert_cost_of(&h.in, "sol:dense_layers=0:dense_steps=0", sol);
}

TEST(hashes)
{
    struct tally t = {0, 0};
    for (int i = 0; i < 2 * N; i++) {
        for (int r = 0; r < 4; r++)
            product(&t);
        read_row(&t);
        write_and_read(&t);
    }
    assert_cost("hash-sparse:buckets=8", t);
}

/* Every halving hashes the later half's queries and the earlier half's keys. */
static void halve(struct tally *t, int n)
{
    if (n < 2)
        return;
    for (int i = 0; i < n; i++) {
        for (int r = 0; r < 7; r++)
            product(t);
        read_row(t);
        write_and_read(t);
    }
    halve(t, n / 2);
    halve(t, n - n / 2);
}

TEST(hashes_of_halves)
{
    struct tally t = {0, 0};
    halve(&t, N);
    assert_cost("hyperattention:min_len=0:block=16:samples=8", t);
}

TEST(norms_and_masses)
{
    struct tally norms = {0, 0}, mass = {0, 0};
    for (int j = 0; j < N; j++) {
        product(&norms);
        read_row(&norms);
        write_and_read(&norms);
        exact_row(&mass, j, 1);
        read_row(&mass);
        write_and_read(&mass);
    }
    assert_cost("qk-sparse:select=knorm", norms);
    assert_cost("qk-sparse:select=vnorm", norms);
    assert_cost("qk-sparse:select=mass", mass);
    assert_cost("qk-sparse", (struct tally){0, 0});
}

/* Masks that no data decide cost nothing; of bounds nobody says what they cost. */
TEST(nothing_and_unknown)
{
    static const char *const free_of_cost[] = {
        "dense",   "streaming", "longformer",         "bigbird:preset=sample",
        "longnet", "sale",      "sparse-transformer", "nm",
        NULL};
    struct record r;
    for (int i = 0; free_of_cost[i]; i++)
        assert_cost(free_of_cost[i], (struct tally){0, 0});
    run_text("oracle", &head.in, &r);
    ck_assert(isnan(record_get(&r, "cost_select_flops")));
    ck_assert(isnan(record_get(&r, "cost_attend_flops")));
    record_free(&r);
    run_text("streaming", &head.in, &r);
    ck_assert_double_eq(record_get(&r, "cost_attend_flops"),
                        2 * (D + D) * record_get(&r, "pairs_exec"));
    record_free(&r);
}
