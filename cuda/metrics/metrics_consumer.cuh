/*
 * metrics_consumer.cuh - a consumer warpgroup of a metrics pass: products, comparisons or
 * exponentials, sums of rows, and what a warp finds in its strip of 16 rows (metrics_pass.cuh).
 */
#pragma once

#include "cuda/metrics/metrics_common.cuh"

/* Access to shared memory by addresses that stay in registers. The compiler would recompute them
 * from the window of the thread block at each access. */
DEVICE uint32_t pass_load(uint32_t at) /* in the lane that warp_arrive chooses */
{
    uint32_t x;
    asm volatile("{\n.reg .pred P;\nelect.sync _|P, 0xffffffff;\nmov.b32 %0, 0;\n"
                 "@P ld.shared.b32 %0, [%1];\n}"
                 : "=r"(x)
                 : "r"(at)
                 : "memory");
    return x;
}

DEVICE void pass_store(uint32_t at, uint32_t x)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}

DEVICE void pass_store(uint32_t at, uint32_t x, uint32_t y)
{
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(x), "r"(y) : "memory");
}

/* Set bits of x where a row reaches its limit, by two comparisons that write only a predicate and
 * one addition of the bits. */
DEVICE void pass_mark(uint32_t &x, float s0, float limit0, float s1, float limit1, uint32_t bit)
{
    asm("{\n.reg .pred P;\nsetp.ge.f32 P, %1, %2;\nsetp.ge.or.f32 P, %3, %4, P;\n"
        "@P or.b32 %0, %0, %5;\n}"
        : "+r"(x)
        : "f"(s0), "f"(limit0), "f"(s1), "f"(limit1), "r"(bit));
}

/* Findings of a thread in a tile. */
template <class T> struct pass_part {
    uint32_t word;                  /* of its keys: set where both rows are below */
    float sum[2];                   /* of each half of the keys, both rows */
    int peak[2];                    /* the largest p there, as bits */
    float most[T::LEVELS ? 32 : 1]; /* of each key the larger p of the two rows; TOPS: its log2 */
};

template <class T> struct pass_consumer {
    uint32_t base; /* address of pass_smem<T> */
    const metrics_args &a;
    int w; /* warpgroup */
    ring<1> q;
    ring<T::STAGES> k;
    ring<T::SLOTS> slot;
    int row0;      /* of the warpgroup */
    int inside;    /* metrics_inside of the item */
    float norm[2]; /* of the thread's rows 16 warp + lane / 4 + 8 r; METRICS_SIGNS: in scores */
    float sum[2];
    int top;                                       /* bits of the largest u */
    uint32_t below[T::LEVELS ? METRICS_C / 2 : 1]; /* S16 below two thresholds each, in 16 bits */
    int counted;                                   /* tiles in `below` */

    static DEVICE int warp()
    {
        return threadIdx.x >> 5 & 3;
    }
    static DEVICE int lane()
    {
        return threadIdx.x & 31;
    }
    DEVICE int strip() const
    {
        return 4 * (w & 1) + warp();
    }
    DEVICE uint32_t at(size_t member) const
    {
        return base + (uint32_t)member;
    }

    /* Turns at the tensor cores, from warpgroup to warpgroup. The products are committed in two
     * halves, so that a turn can be handed on when the first is done. */
    DEVICE void take_turn()
    {
        named_sync(1 + w, 256);
    }
    DEVICE void pass_turn()
    {
        named_arrive(1 + (w + 1) % T::WG, 256);
    }

    DEVICE void issue_scores(float (&s)[64], uint64_t qd, uint64_t kd)
    {
        wgmma_fence();
#pragma unroll
        for (int kk = 0; kk < T::D / 16; kk++) {
            wgmma_ss<128>(s, qd + (kk / 4 * (T::BM * 128) + kk % 4 * 32) / 16,
                          kd + (kk / 4 * (T::BN * 128) + kk % 4 * 32) / 16, kk > 0);
            if (kk == T::D / 32 - 1)
                wgmma_commit();
        }
        wgmma_commit();
    }

    /* Set scores to -inf that the thread's rows may not see. */
    DEVICE void mask(float (&s)[64], int key0) const
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = row0 + 16 * warp() + (lane() >> 2) + 8 * r;
            int limit = a.causal ? min(a.nk, row + a.offset + 1) : a.nk;
            int left = limit - key0 - 2 * (lane() & 3);
#pragma unroll
            for (int j = 0; j < 16; j++)
#pragma unroll
                for (int c = 0; c < 2; c++)
                    if (8 * j + c >= left)
                        s[4 * j + 2 * r + c] = -INFINITY;
        }
    }

    /* METRICS_SIGNS: comparisons alone. Two words shorten the chain of dependent additions. */
    DEVICE void compare(const float (&s)[64], pass_part<T> &p)
    {
        uint32_t x[2] = {};
#pragma unroll
        for (int i = 0; i < 32; i++)
            pass_mark(x[i & 1], s[4 * (i >> 1) + (i & 1)], norm[0], s[4 * (i >> 1) + 2 + (i & 1)],
                      norm[1], 0x80000000u >> i);
        p.word = ~(x[0] | x[1]);
    }

    /* METRICS_TOPS: exponents alone. */
    DEVICE void exponents(const float (&s)[64], pass_part<T> &p)
    {
#pragma unroll
        for (int i = 0; i < 32; i++)
            p.most[i] = fmaxf(fmaf(s[4 * (i >> 1) + (i & 1)], a.scale_log2, -norm[0]),
                              fmaf(s[4 * (i >> 1) + 2 + (i & 1)], a.scale_log2, -norm[1]));
    }

    /* p of a half of the keys of both rows. The signs enter the word from below. */
    DEVICE void reduce(const float (&s)[64], int half, pass_part<T> &p)
    {
        float x[2][2] = {};
        int peak = 0;
#pragma unroll
        for (int j = 8 * half; j < 8 * half + 8; j++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                float u = fmaf(s[4 * j + c], a.scale_log2, -norm[0]);
                float v = fmaf(s[4 * j + 2 + c], a.scale_log2, -norm[1]);
                if (T::SIGNS) {
                    int most = max(__float_as_int(u), __float_as_int(v));
                    top = max(top, most);
                    p.word = __funnelshift_l((uint32_t)most, p.word, 1);
                }
                u = exp2_fast(u);
                v = exp2_fast(v);
                x[0][c] += u;
                x[1][c] += v;
                if (T::LEVELS)
                    p.most[2 * j + c] = fmaxf(u, v);
                if (T::MAPS)
                    peak = __vimax3_s32(peak, __float_as_int(u), __float_as_int(v));
            }
        float add[2] = {x[0][0] + x[0][1], x[1][0] + x[1][1]};
        sum[0] += add[0];
        sum[1] += add[1];
        p.peak[half] = peak;
        p.sum[half] = add[0] + add[1];
    }

    DEVICE void reduce_tile(const float (&s)[64], pass_part<T> &p)
    {
        if constexpr (T::EXPS) {
            p.word = 0;
            reduce(s, 0, p);
            reduce(s, 1, p);
        } else if constexpr (T::TOPS) {
            exponents(s, p);
        } else {
            compare(s, p);
        }
    }

    /* ---- what the warp finds ---------------------------------------------------------------- */

    DEVICE void count_strip(const float (&v)[32])
    {
#pragma unroll
        for (int c = 0; c < METRICS_C; c++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                below[c / 2] += v[i] < a.below[c] ? (c & 1 ? 0x10000u : 1u) : 0;
    }

    /* Maxima of the warp's 16 rows: four keys per lane; counted here where no edge cuts them. */
    DEVICE void store_strip(pass_part<T> &p, bool edge, uint32_t to)
    {
        float(&v)[32] = p.most;
        fold<32>(v, 16);
        fold<16>(v, 8);
        fold<8>(v, 4);
        int l = lane();
        to += 4 * ((l & 16) * 4 + (l & 8) * 4 + (l & 4) * 4 + 2 * (l & 3));
        pass_store(to, __float_as_uint(v[0]), __float_as_uint(v[1]));
        pass_store(to + 32, __float_as_uint(v[2]), __float_as_uint(v[3]));
        if (!edge)
            count_strip(v);
    }

    /* Sums and maxima of the warp's 16 rows over both halves of the keys. */
    DEVICE void store_cells(const pass_part<T> &p, uint32_t to)
    {
        bool upper = lane() & 16;
        float x =
            (upper ? p.sum[1] : p.sum[0]) + __shfl_xor_sync(~0u, upper ? p.sum[0] : p.sum[1], 16);
        int peak = 0;
#pragma unroll
        for (int bit = 1; bit < 16; bit *= 2)
            x += __shfl_xor_sync(~0u, x, bit);
        if (T::MAPS) {
            int most[2] = {__reduce_max_sync(~0u, p.peak[0]), __reduce_max_sync(~0u, p.peak[1])};
            peak = upper ? most[1] : most[0];
        }
        if ((lane() & 15) == 0)
            pass_store(to + (lane() >> 1), __float_as_uint(x), (uint32_t)peak);
    }

    DEVICE void store_word(uint32_t word, uint32_t to)
    {
#pragma unroll
        for (int bit = 4; bit < 32; bit *= 2)
            word &= __shfl_xor_sync(~0u, word, bit);
        if (lane() < 4)
            pass_store(to + 4 * lane(), word);
    }

    DEVICE void store(pass_part<T> &p, int key0, bool edge)
    {
        using found = pass_found<T>;
        uint32_t here = (w >> 1) * T::SLOTS + slot.at, bar = 8 * here;
        uint32_t to = at(offsetof(pass_smem<T>, found)) + here * (uint32_t)sizeof(found);
        mbar_wait(at(offsetof(pass_smem<T>, found_empty)) + bar, slot.parity ^ 1);
        if constexpr (T::SIGNS)
            store_word(p.word, to + offsetof(found, words) + 16 * strip());
        if constexpr (T::LEVELS)
            store_strip(p, edge, to + offsetof(found, strips) + 4 * T::BN * strip());
        if constexpr (T::EXPS && (T::MAPS || T::LEVELS))
            if (T::MAPS || a.cell_sum)
                store_cells(p, to + offsetof(found, cells) + 16 * strip());
        if (strip() == 0 && lane() == 0)
            pass_store(to + offsetof(found, row0), row0, key0);
        if (pass_writes<T>(lane()))
            mbar_arrive(at(offsetof(pass_smem<T>, found_full)) + bar);
        slot.next();
    }

    /* ---- tiles and items -------------------------------------------------------------------- */

    DEVICE void tile(uint32_t q_desc, int key0, bool last)
    {
        float s[64];
        pass_part<T> p;
        const uint64_t layout = descriptor(desc_low(0, 16));
        uint32_t bar = 8 * k.at;
        uint32_t k_desc = (at(offsetof(pass_smem<T>, k)) + k.at * T::K_BYTES) >> 4;
        mbar_wait(at(offsetof(pass_smem<T>, k_full)) + bar, k.parity);
        take_turn();
        issue_scores(s, layout + q_desc, layout + k_desc);
        wgmma_wait<1>();
        pass_turn();
        wgmma_wait<0>();
        hold(s);
        warp_arrive(at(offsetof(pass_smem<T>, k_empty)) + bar);
        if (last)
            warp_arrive(at(offsetof(pass_smem<T>, q_empty)));
        k.next();
        bool edge = key0 > inside;
        if (edge)
            mask(s, key0);
        reduce_tile(s, p);
        store(p, key0, edge);
    }

    DEVICE void start_item(const int4 &item)
    {
        row0 = item.x * T::BM + 64 * w;
        inside = metrics_inside(a, row0 & ~127);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = row0 + 16 * warp() + (lane() >> 2) + 8 * r;
            norm[r] = row < a.nq ? __ldg(a.norm + row).x + a.shift : INFINITY;
            norm[r] *= T::SCORES ? a.per_scale : 1;
            sum[r] = 0;
        }
    }

    DEVICE void finish_item(int index)
    {
        float *to = a.parts + (size_t)index * T::BM + 64 * w;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float x = sum[r];
#pragma unroll
            for (int bit = 1; bit < 4; bit *= 2)
                x += __shfl_xor_sync(~0u, x, bit);
            int mine = 16 * warp() + (lane() >> 2) + 8 * r;
            if ((lane() & 3) == 0 && row0 + mine < a.nq) {
                float2 n = __ldg(a.norm + row0 + mine);
                to[mine] = n.y > 0 ? x * n.y * exp2f(norm[r] - n.x) : 0;
            }
        }
    }

    DEVICE void flush()
    {
        counted = 0;
#pragma unroll
        for (int c = 0; c < METRICS_C; c++)
            metrics_add_whole(a, S16, c, c & 1 ? below[c / 2] >> 16 : below[c / 2] & 0xffff);
#pragma unroll
        for (int i = 0; i < METRICS_C / 2; i++)
            below[i] = 0;
    }

    /* Row -1 tells the gathering warp of these 128 rows to stop. */
    DEVICE void stop_gathering()
    {
        uint32_t here = (w >> 1) * T::SLOTS + slot.at;
        uint32_t to = at(offsetof(pass_smem<T>, found)) + here * (uint32_t)sizeof(pass_found<T>);
        mbar_wait(at(offsetof(pass_smem<T>, found_empty)) + 8 * here, slot.parity ^ 1);
        if (strip() == 0 && lane() == 0)
            pass_store(to + offsetof(pass_found<T>, row0), ~0u);
        if (pass_writes<T>(lane()))
            mbar_arrive(at(offsetof(pass_smem<T>, found_full)) + 8 * here);
        int most = __reduce_max_sync(~0u, top);
        if (T::KIND == METRICS_SUMS && lane() == 0 && most >= 0)
            atomicMax(&a.counts->p_max, __float_as_uint(exp2f(__int_as_float(most)) * a.unit));
    }

    DEVICE int4 next_item()
    {
        mbar_wait(at(offsetof(pass_smem<T>, q_full)), q.parity);
        uint32_t from = at(offsetof(pass_smem<T>, work));
        return make_int4(uniform((int)pass_load(from)), uniform((int)pass_load(from + 4)),
                         uniform((int)pass_load(from + 8)), uniform((int)pass_load(from + 12)));
    }

    DEVICE void run()
    {
        uint32_t q_desc = (at(offsetof(pass_smem<T>, q)) + w * 64 * 128) >> 4;
        top = (int)0x80000000;
        if constexpr (T::LEVELS) {
#pragma unroll
            for (int i = 0; i < METRICS_C / 2; i++)
                below[i] = 0;
            counted = 0;
        }
        if (w == T::WG - 1) /* the last warpgroup hands the first turn to the first */
            pass_turn();
        for (;;) { /* in this form ptxas sees that warps stay together */
            int4 item = next_item();
            if (item.x < 0)
                break;
            int n = item.z - item.y;
            if constexpr (T::LEVELS) {
                if (counted + n > 16000) /* four per tile: below 2^16 */
                    flush();
                counted += n;
            }
            start_item(item);
#pragma unroll 1
            for (int i = 0; i < n; i++)
                tile(q_desc, (item.y + i) * T::BN, i == n - 1);
            if (T::EXPS)
                finish_item(item.w);
            q.next();
        }
        if constexpr (T::LEVELS)
            flush();
        stop_gathering();
    }
};
