/*
 * filter_arith.cuh - the arithmetics of the kernels that skip P V (attn_filter.cuh): products,
 * maxima and exponentials of a stage, exact or with INT8 scores and P V in e4m3 or float16.
 *
 * All leave the probabilities of a stage in p. P V in e4m3 has sums u of its own. Beside the next
 * stage's scores it comes in PARTS of 64 channels, as registers do not hold more.
 */
#pragma once

#include "cuda/attn/attn8_consumer.cuh"
#include "cuda/attn/attn_consumer.cuh"
#include "cuda/attn/filter_shape.cuh"

enum filter_values { VALUES_BF16, VALUES_E4M3, VALUES_F16 };

template <class T, filter_values VALUES = !T::BYTES       ? VALUES_BF16
                                          : T::BY_CHANNEL ? VALUES_E4M3
                                                          : VALUES_F16>
struct filter_arith : consumer<T> {
    static constexpr int BN = T::BN, D = T::D, PARTS = 1;
    static constexpr int SCORES = T::UNIT / 2; /* of a thread and unit */

    using score = float;
    struct sums {
    }; /* P V is added to the outputs */

    using base = consumer<T>;
    using base::a, base::kv, base::l, base::m, base::o, base::p;

    DEVICE bool next_item(int4 &item)
    {
        int place;
        bool any = base::await_item(place);
        if (any)
            item = base::item();
        return any;
    }

    DEVICE void start_item(const int4 &item)
    {
        base::tile = item.x;
        base::slot = -1;
        base::clear_outputs();
        m[0] = m[1] = -INFINITY;
        l[0] = l[1] = 0;
    }

    DEVICE void issue_scores(float (&s)[BN / 2])
    {
        base::k_at = base::k_desc(kv.at);
        base::issue_qk(s);
    }

    DEVICE void look_up_scales()
    {
    }

    /* P V of the units in PENDING: a branch around products under way would serialise them. */
    template <int PENDING, int PART> DEVICE void issue_values(int of_stage, sums &u)
    {
        hold(o);
        wgmma_fence();
        uint64_t vd = descriptor(uniform(base::v_desc(of_stage)));
#pragma unroll
        for (int kk = 0; kk < BN / 16; kk++)
            if (PENDING >> kk * 8 / SCORES & 1)
                wgmma_rs<D>(o, p[4 * kk], p[4 * kk + 1], p[4 * kk + 2], p[4 * kk + 3],
                            vd + kk * 2048 / 16, true);
        wgmma_commit();
    }

    template <int PART> DEVICE void end_values(sums &u, const float (&c)[2] = {1, 1})
    {
        wgmma_wait<0>();
        hold(o);
    }

    /* some: scores may not count. */
    DEVICE void mask(float (&s)[BN / 2], bool some)
    {
        if (some)
            convert(s);
    }

    static DEVICE bool is_coarse()
    {
        return false;
    }

    DEVICE void convert(float (&s)[BN / 2])
    {
        base::mask_scores(s, kv.at, base::tile);
    }

    /* Are a stage's scores floats already, in the arithmetics where they are integers? */
    static DEVICE bool floats()
    {
        return false;
    }

    template <bool FLOATS, int FROM, int TO>
    static DEVICE void tops_of(const float (&s)[BN / 2], float (&top)[2])
    {
        tops<FROM, TO>(s, top);
    }

    template <int FROM, int TO> DEVICE void find_tops(const float (&s)[BN / 2], float (&top)[2])
    {
        tops<FROM, TO>(s, top);
    }

    /* The same of rows with a score that is not negative; of others, any score. */
    template <int FROM, int TO> DEVICE void bound_tops(const float (&s)[BN / 2], float (&top)[2])
    {
        int bits[2];
        top_bits<FROM, TO>(s, bits);
        top[0] = __int_as_float(bits[0]);
        top[1] = __int_as_float(bits[1]);
    }

    /* What the rows' exponentials subtract, in log2 units. */
    template <bool MASKED = true> DEVICE void references(float (&reference)[2]) const
    {
        log2_base<MASKED>(m, a.scale_log2, reference);
    }

    template <bool FLOATS, int FROM, int TO>
    DEVICE void soften(float (&s)[BN / 2], const float (&reference)[2], float (&sum)[2])
    {
        exponentials<FROM, TO>(s, reference, a.scale_log2, sum);
    }

    template <int FROM, int TO> DEVICE void pack_all(const float (&s)[BN / 2])
    {
        pack<FROM, TO>(s, p);
    }
};

template <class T> struct filter_arith<T, VALUES_E4M3> : consumer8<T> {
    static constexpr int BN = T::BN, D = T::D, UNITS = T::UNITS;
    static constexpr int PARTS = T::TEAMS > 1 ? 1 : D / 64, CHANNELS = D / PARTS;
    static constexpr int SCORES = T::UNIT / 2, STEPS = T::UNIT / 32; /* of a unit's P V */

    /* Log2 units of a score's one up to which the rounding of SHIFT of them moves an LSE by less
     * than 1e-3. */
    static constexpr float FINE = 0.0026f;

    using score = int;
    using sums = float[CHANNELS / 2];

    using base = consumer8<T>;
    using base::a, base::kv, base::m, base::o, base::sm;

    uint32_t p[BN / 8];
    float scale[UNITS]; /* of a stage's scores; negative: they are floats in log2 units already */

    DEVICE bool next_item(int4 &item)
    {
        return base::await_item(item);
    }

    DEVICE void look_up_scales()
    {
        if (T::TEAMS > 3) /* no register keeps it */
            base::look_up_query_scale();
#pragma unroll
        for (int u = 0; u < UNITS; u++)
            scale[u] = base::scale_of(u);
    }

    template <int PENDING, int PART> DEVICE void issue_values(int of_stage, sums &u)
    {
        hold(u);
        wgmma_fence();
#pragma unroll
        for (int unit = 0; unit < UNITS; unit++) {
            uint64_t vd = base::template operand<T::UNIT>(sm.v[of_stage] +
                                                          (unit * D + PART * CHANNELS) * T::UNIT);
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                const int at = 4 * (unit * STEPS + i);
                if (PENDING >> unit & 1)
                    wgmma_e4m3(u, p[at], p[at + 1], p[at + 2], p[at + 3], vd + 2 * i,
                               i > 0 || (unit > 0 && PENDING & 1));
            }
        }
        wgmma_commit();
    }

    /* o = o c + P V. */
    template <int PART> DEVICE void end_values(sums &u, const float (&c)[2] = {1, 1})
    {
        wgmma_wait<0>();
        hold(u);
#pragma unroll
        for (int i = 0; i < CHANNELS / 2; i++) {
            float &to = o[CHANNELS / 2 * PART + i];
            to = fmaf(to, c[i / 2 % 2], u[i]);
        }
    }

    DEVICE void mask(int (&s)[BN / 2], bool some)
    {
        if (some || is_coarse())
            convert(s);
    }

    DEVICE bool is_coarse() const
    {
        float most = scale[0];
#pragma unroll
        for (int u = 1; u < UNITS; u++)
            most = fmaxf(most, scale[u]);
        return __any_sync(~0u, most > FINE);
    }

    /* Scores become floats where some may not count, or where they are coarse. */
    DEVICE void convert(int (&s)[BN / 2])
    {
        mask_units<0>(s);
        scale[0] = -1;
    }

    /* Units from FIRST on. */
    template <int FIRST> DEVICE void mask_units(int (&s)[BN / 2])
    {
        base::template mask_scores<FIRST * SCORES, (FIRST + 1) * SCORES>(
            s, scale[FIRST], warp_load(&sm.keys[kv.at][FIRST]));
        if constexpr (FIRST + 1 < UNITS)
            mask_units<FIRST + 1>(s);
    }

    DEVICE bool floats() const
    {
        return scale[0] < 0;
    }

    template <bool FLOATS, int FROM, int TO>
    DEVICE void tops_of(const int (&s)[BN / 2], float (&top)[2]) const
    {
        base::template tops<FLOATS, FROM, TO>(s, scale[FROM / SCORES], top);
    }

    template <int FROM, int TO> DEVICE void find_tops(const int (&s)[BN / 2], float (&top)[2])
    {
        if (floats())
            tops_of<true, FROM, TO>(s, top);
        else
            tops_of<false, FROM, TO>(s, top);
    }

    template <int FROM, int TO> DEVICE void bound_tops(const int (&s)[BN / 2], float (&top)[2])
    {
        find_tops<FROM, TO>(s, top);
    }

    template <bool MASKED = true> DEVICE void references(float (&reference)[2]) const
    {
#pragma unroll
        for (int r = 0; r < 2; r++)
            reference[r] = (MASKED && m[r] == -INFINITY ? 0 : m[r]) - a.scales.top;
    }

    template <bool FLOATS, int FROM, int TO>
    DEVICE void soften(int (&s)[BN / 2], const float (&reference)[2], float (&sum)[2])
    {
        const float by = scale[FROM / SCORES];
        float from[2];
#pragma unroll
        for (int r = 0; r < 2; r++)
            from[r] = FLOATS ? reference[r] : fmaf(base::SHIFT, by, reference[r]);
        base::template exponentials<FLOATS, FROM, TO>(s, from, by, 0, sum);
    }

    template <int FROM, int TO> DEVICE void pack_all(const int (&s)[BN / 2])
    {
        base::template pack<FROM, TO>(s, p);
    }

    DEVICE void finish()
    {
        m[0] -= a.scales.top;
        m[1] -= a.scales.top;
        base::finish();
    }
};

/* P V is added to the outputs. */
template <class T> struct filter_arith<T, VALUES_F16> : filter_arith<T, VALUES_E4M3> {
    static constexpr int BN = T::BN, PARTS = 1;

    using base = filter_arith<T, VALUES_E4M3>;
    using base::o, base::sm, base::SCORES;

    struct sums {
    };

    uint32_t p[BN / 4];

    template <int PENDING, int PART> DEVICE void issue_values(int of_stage, sums &u)
    {
        hold(o);
        add_values<PENDING>(of_stage);
    }

    /* The same where other products may be under way. */
    template <int PENDING> DEVICE void add_values(int of_stage)
    {
        uint64_t vd = descriptor(uniform(desc_low(smem_addr(sm.v[of_stage]), BN * 128)));
        wgmma_fence();
#pragma unroll
        for (int kk = 0; kk < BN / 16; kk++)
            if (PENDING >> kk * 8 / SCORES & 1)
                wgmma_f16(o, p[4 * kk], p[4 * kk + 1], p[4 * kk + 2], p[4 * kk + 3],
                          vd + kk * 2048 / 16, 1);
        wgmma_commit();
    }

    template <int PART> DEVICE void end_values(sums &u, const float (&c)[2] = {1, 1})
    {
        wgmma_wait<0>();
        hold(o);
    }

    template <int FROM, int TO> DEVICE void pack_all(const int (&s)[BN / 2])
    {
#pragma unroll
        for (int i = FROM / 2; i < TO / 2; i++)
            p[i] = pack_f16(__int_as_float(s[2 * i]), __int_as_float(s[2 * i + 1]));
    }
};
