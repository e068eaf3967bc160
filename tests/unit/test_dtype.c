/*
 * test_dtype.c - conversions against a slow exact reference written with ldexp and rint.
 */
#include "tests/harness/test.h"
#include "core/dtype.h"
#include "core/rng.h"

#include <math.h>
#include <stdbool.h>

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* ---- the reference -------------------------------------------------------------------------- */

/* A binary float format: exponent bits, mantissa bits. */
struct format {
    int exp, man;
};
static const struct format half = {5, 10}, brain = {8, 7};

static double ref_decode(struct format f, uint16_t x)
{
    int bias = (1 << (f.exp - 1)) - 1, e = x >> f.man & ((1 << f.exp) - 1);
    int m = x & ((1 << f.man) - 1);
    double v = e == (1 << f.exp) - 1 ? (m ? NAN : INFINITY)
               : e                   ? ldexp(m + (1 << f.man), e - bias - f.man)
                                     : ldexp(m, 1 - bias - f.man);
    return x & 0x8000 ? -v : v;
}

/* Nearest value of the format, ties to the even mantissa, as a double; infinity from half an ulp
 * above the largest. All steps are exact in double (rint rounds to even). */
static double ref_round(struct format f, float x)
{
    int bias = (1 << (f.exp - 1)) - 1, e;
    if (x != x || isinf(x) || x == 0)
        return x;
    frexp(x, &e);
    e = e - 1 < 1 - bias ? 1 - bias : e - 1;
    double ulp = ldexp(1, e - f.man), r = rint((double)x / ulp) * ulp;
    double max = ldexp((2 << f.man) - 1, bias - f.man);
    return fabs(r) > max ? copysign(INFINITY, x) : r;
}

/* Millions of calls: only a failure goes through Check, whose asserts cost a system call each. */
static void check_narrow(struct format f, float x, uint16_t got)
{
    double want = ref_round(f, x), back = ref_decode(f, got);
    bool quiet = back != back && (got & 1u << (f.man - 1)) && got >> 15 == bits_of(x) >> 31;
    bool same = want == back && signbit(want) == signbit(back);
    if (x != x ? !quiet : !same)
        ck_abort_msg("%08x -> %04x = %a, want %a", bits_of(x), got, back, want);
}

static void check_both(float x)
{
    check_narrow(half, x, f32_to_f16(x));
    check_narrow(brain, x, f32_to_bf16(x));
}

/* ---- tests ---------------------------------------------------------------------------------- */

TEST(every_f16_and_bf16_pattern_decodes_exactly)
{
    for (uint32_t i = 0; i < 65536; i++) {
        double h = ref_decode(half, (uint16_t)i), b = ref_decode(brain, (uint16_t)i);
        float fh = f16_to_f32((uint16_t)i), fb = bf16_to_f32((uint16_t)i);
        ck_assert((h != h && fh != fh) || h == fh);
        ck_assert((b != b && fb != fb) || b == fb);
        ck_assert_int_eq(!!signbit(fh), i >> 15);
        ck_assert_int_eq(!!signbit(fb), i >> 15);
    }
}

TEST(every_f16_and_bf16_pattern_round_trips)
{
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t x = (uint16_t)i, h = f32_to_f16(f16_to_f32(x)), b = f32_to_bf16(bf16_to_f32(x));
        bool nan_h = (x & 0x7fff) > 0x7c00, nan_b = (x & 0x7fff) > 0x7f80;
        ck_assert_uint_eq(h, nan_h ? x | 0x200u : x); /* a NaN comes back quiet */
        ck_assert_uint_eq(b, nan_b ? x | 0x40u : x);
    }
}

TEST(narrowing_agrees_with_reference_around_every_representable_value)
{
    for (uint32_t i = 0; i < 0x8000; i++) {
        const double grid[2][2] = {
            {ref_decode(half, (uint16_t)i), ref_decode(half, (uint16_t)(i + 1))},
            {ref_decode(brain, (uint16_t)i), ref_decode(brain, (uint16_t)(i + 1))},
        };
        for (int k = 0; k < 2; k++) {
            float at = (float)grid[k][0], mid = (float)((grid[k][0] + grid[k][1]) / 2);
            float x[6] = {at,  nextafterf(at, INFINITY),  nextafterf(at, -INFINITY),
                          mid, nextafterf(mid, INFINITY), nextafterf(mid, -INFINITY)};
            for (int j = 0; j < 6; j++) {
                check_both(x[j]);
                check_both(-x[j]);
            }
        }
    }
}

TEST(narrowing_agrees_with_reference_on_edges)
{
    static const uint32_t edge[] = {
        0x00000000, 0x00000001, 0x007fffff, 0x00800000, 0x33000000, 0x33000001, 0x32ffffff,
        0x387fc000, 0x387fdfff, 0x387fe000, 0x387fe001, 0x38800000, 0x477fe000, 0x477fefff,
        0x477ff000, 0x477fffff, 0x47800000, 0x7f7f7fff, 0x7f7f8000, 0x7f7fffff, 0x7f800000,
        0x7f800001, 0x7f801fff, 0x7f80ffff, 0x7fbfffff, 0x7fc00000, 0x7fffffff,
    };
    for (size_t i = 0; i < sizeof edge / sizeof *edge; i++) {
        check_both(float_of(edge[i]));
        check_both(float_of(edge[i] | 0x80000000u));
    }
    ck_assert_uint_eq(f32_to_f16(65519.996f), 0x7bff);
    ck_assert_uint_eq(f32_to_f16(65520.0f), 0x7c00);
    ck_assert_uint_eq(f32_to_f16(0x1p-25f), 0); /* half of the smallest: tie to even zero */
    ck_assert_uint_eq(f32_to_f16(nextafterf(0x1p-25f, 1)), 1);
}

TEST(narrowing_agrees_with_reference_on_random_bits)
{
    for (uint64_t i = 0; i < 1000000; i++) {
        uint64_t r = rng_u64(7, 1, i);
        check_both(float_of((uint32_t)r));
        /* the same with an exponent in the range of f16 */
        check_both(
            float_of(((uint32_t)(r >> 32) & 0x807fffffu) | (0x65u + (uint32_t)r % 44) << 23));
    }
}

TEST(int8_rounds_to_even_and_saturates)
{
    static const struct {
        float x;
        int8_t want;
    } c[] = {{0.5f, 0},        {1.5f, 2},         {2.5f, 2},         {-0.5f, 0},   {-1.5f, -2},
             {126.5f, 126},    {127.49f, 127},    {127.5f, 127},     {1e30f, 127}, {-128.5f, -128},
             {-129, -128},     {INFINITY, 127},   {-INFINITY, -128}, {NAN, 0},     {-127.5f, -128},
             {0.49999997f, 0}, {-0.50000006f, -1}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        int8_t got = 77;
        ck_assert_int_eq(dtype_from_f32(DT_I8, &c[i].x, &got, 1), 0);
        ck_assert_int_eq(got, c[i].want);
    }
}

/* Bounds of the integer types; the largest int32 is not a float. */
static const struct {
    enum dtype t;
    double lo, hi;
} ints[] = {{DT_I8, -128, 127},
            {DT_U8, 0, 255},
            {DT_I16, -32768, 32767},
            {DT_U16, 0, 65535},
            {DT_I32, -2147483648.0, 2147483647.0}};

static double stored_int(enum dtype t, const void *p)
{
    int8_t a;
    uint8_t b;
    int16_t c;
    uint16_t d;
    int32_t e;
    memcpy(&a, p, 1), memcpy(&b, p, 1), memcpy(&c, p, 2), memcpy(&d, p, 2), memcpy(&e, p, 4);
    return t == DT_I8 ? a : t == DT_U8 ? b : t == DT_I16 ? c : t == DT_U16 ? d : e;
}

TEST(float_to_integers_rounds_to_even_and_saturates)
{
    static const float x[] = {0.0f,      0.5f,     1.5f,       2.5f,          -0.5f,      -1.5f,
                              126.5f,    254.5f,   255.5f,     300.0f,        -1.0f,      -32768.5f,
                              32767.5f,  65535.5f, 1e5f,       2147483648.0f, -3e9f,      INFINITY,
                              -INFINITY, NAN,      8388607.5f, -8388607.5f,   16777217.0f};
    for (size_t k = 0; k < sizeof ints / sizeof *ints; k++)
        for (size_t i = 0; i < sizeof x / sizeof *x; i++) {
            unsigned char out[8] = {0};
            double want = x[i] != x[i] ? 0 : fmin(fmax(rint(x[i]), ints[k].lo), ints[k].hi);
            ck_assert_int_eq(dtype_from_f32(ints[k].t, &x[i], out, 1), 0);
            ck_assert_msg(stored_int(ints[k].t, out) == want, "%s of %a: %.0f, want %.0f",
                          dtype_name(ints[k].t), (double)x[i], stored_int(ints[k].t, out), want);
        }
}

static const enum dtype convertible[] = {DT_F32, DT_BF16, DT_F16, DT_F64, DT_I8,
                                         DT_U8,  DT_I16,  DT_U16, DT_I32};
enum { N_CONVERTIBLE = sizeof convertible / sizeof *convertible };

/* Block loops, tails and unaligned bytes give what one element at a time gives. */
LOOP_TEST(arrays_equal_single_elements_at_any_length_and_alignment, N_CONVERTIBLE)
{
    enum dtype t = convertible[_i];
    size_t size = dtype_size(t);
    float x[200], back[200], one;
    unsigned char raw[200 * 8 + 8], single[8];
    for (int i = 0; i < 200; i++)
        x[i] = (float)((rng_uniform(3, (uint64_t)t, (uint64_t)i) - 0.3) * pow(10, i % 12 - 6));
    for (int n = 0; n <= 200; n += n < 70 ? 1 : 13) {
        unsigned char *p = raw + n % 8;
        memset(raw, 0xa5, sizeof raw);
        ck_assert_int_eq(dtype_from_f32(t, x, p, n), 0);
        ck_assert_uint_eq(p[(size_t)n * size], 0xa5);
        ck_assert_int_eq(dtype_to_f32(t, p, back, n), 0);
        for (int i = 0; i < n; i++) {
            dtype_from_f32(t, &x[i], single, 1);
            ck_assert(!memcmp(single, p + (size_t)i * size, size));
            dtype_to_f32(t, single, &one, 1);
            ck_assert_uint_eq(bits_of(one), bits_of(back[i]));
            ck_assert_uint_eq(bits_of(one), bits_of(dtype_round(t, x[i])));
        }
    }
}

LOOP_TEST(rounding_to_a_type_is_idempotent, N_CONVERTIBLE)
{
    enum dtype t = convertible[_i];
    for (uint64_t i = 0; i < 20000; i++) {
        float x = float_of((uint32_t)rng_u64(11, 0, i));
        float once = dtype_round(t, x), twice = dtype_round(t, once);
        /* INT32_MAX reads back as 2^31, which saturates to the same value again */
        if (once != twice && (once == once || twice == twice))
            ck_abort_msg("%s of %a: %a, then %a", dtype_name(t), (double)x, (double)once,
                         (double)twice);
    }
}

TEST(types_without_conversion_are_refused)
{
    static const enum dtype no[] = {DT_NONE, DT_U32, DT_I64, DT_U64, DT_BOOL, DT_COUNT};
    float f = 1;
    unsigned char raw[8] = {0};
    for (size_t i = 0; i < sizeof no / sizeof *no; i++) {
        ck_assert_int_eq(dtype_to_f32(no[i], raw, &f, 1), -1);
        ck_assert_int_eq(dtype_from_f32(no[i], &f, raw, 1), -1);
    }
    ck_assert_uint_eq(dtype_size(DT_COUNT), 0);
}

TEST(names_read_back)
{
    for (int t = DT_NONE + 1; t < DT_COUNT; t++) {
        ck_assert_int_eq(dtype_from_name(dtype_name((enum dtype)t)), t);
        ck_assert_uint_gt(dtype_size((enum dtype)t), 0);
    }
    ck_assert_int_eq(dtype_from_name("BF16"), DT_BF16);
    ck_assert_int_eq(dtype_from_name("fp32"), DT_F32);
    ck_assert_int_eq(dtype_from_name("F64"), DT_F64);
    ck_assert_int_eq(dtype_from_name("float8"), DT_NONE);
    ck_assert_int_eq(dtype_from_name("none"), DT_NONE);
    ck_assert_int_eq(dtype_from_name(""), DT_NONE);
}
