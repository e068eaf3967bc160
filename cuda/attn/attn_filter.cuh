/*
 * attn_filter.cuh - attention over block lists with SpargeAttn's second filter (arXiv 2502.18137,
 * section 3.4), for Hopper, in exact arithmetic or in the authors' (filter_arith.cuh). The CPU side
 * is sim/blocks/tileattn.h.
 *
 *   for every tile of a row block's list, ascending, with scores s in log2 units:
 *     gap = max over the rows of the scope of (largest s of the tile - m)
 *     m, O, l follow the maximum
 *     P V and sum P only if gap + pv > 0, or the tile is one of the list's last ones
 *
 * Differences to the other kernels of attn_sm90.cuh:
 * - The maximum of a row is the true one at every tile, as the decision depends on it. The others
 *   keep a reference and raise it when scores exceed it by 2^8, or sums 2^60.
 * - Lists are walked from the beginning, as the method does. The others start with the diagonal.
 * - A list is never cut into pieces, unless the kernel skips nothing.
 *
 * A stage is one tile of the method per warpgroup, 64 rows x 128 keys, where two lists of 64 rows
 * share the stages of their union. Or it is two tiles (units) of both warpgroups x 64 keys, each
 * with its own decision, the second after the maximum of the first; probabilities of both are
 * relative to the maximum of both. The scores of a stage, and its first exponentials, are formed
 * while P V of the stage before runs. Values of a skipped tile are loaded but not multiplied, as in
 * the authors' kernels.
 *
 * Some kernels have teams (`teams`), each with items and buffers of its own, whose warps hide each
 * other's chains. With operands of 8 bits, a stage of theirs goes from scores to P V without
 * another beside it. A team is
 * - one warpgroup with items of 64 rows, so that no list waits for another: operands of 8 bits over
 *   lists of 64 rows, and with D = 128 over lists of 128 rows in which fewer rows decide
 *   together or no tile is skipped (two items walk each list);
 * - two warpgroups: D = 64 over lists of 128 rows.
 *
 * Teams of D = 128 take turns at the tensor cores (tile_rows). Shapes that are `unskipped` have
 * kernels without the filter's code, for launches in which no head skips.
 *
 * Warps vote through shared memory. Only a warp with a tile in which no score is near its maximum
 * waits for the other votes: a barrier would make warpgroups run in step, and both would leave the
 * tensor cores idle at once. Scopes of 16 and 32 rows share a warpgroup's product: a scope that
 * skips puts zeros into P.
 */
#pragma once

#include "cuda/attn/attn_producer.cuh"
#include "cuda/attn/filter_arith.cuh"
#include "cuda/attn/filter_votes.cuh"

template <class T, int SCOPE> struct filter_consumer : filter_arith<T>, filter_votes<T, SCOPE> {
    static constexpr int BN = T::BN, STAGES = T::STAGES, UNITS = T::UNITS;

    static constexpr int NONE = -1, ALL = (1 << UNITS) - 1;
    static constexpr int GROWS = 1 << UNITS, UNSURE = GROWS << 1;
    static constexpr int UNSEEN = 1 << 2 * UNITS; /* of a stage's bits */
    /* Exponentials of a stage that come before the end of the P V beside them; warps of other teams
     * fill the wait. */
    static constexpr int EARLY = T::BYTES ? BN / 4 : T::TEAMS > 1 ? 0 : T::EARLY;
    /* Probabilities are packed among the exponentials of a stage, where registers hold both; else
     * the wait for the values keeps them apart. */
    static constexpr bool PACKS_EARLY = T::REGS_CONSUMER > 112;
    /* Factors of the outputs wait for the sums of P V, where it has some. */
    static constexpr bool SCALES_LATE = T::BY_CHANNEL && PACKS_EARLY;

    int gap;          /* bits of the distance of the item's head */
    int whole_blocks; /* those that all rows of the warpgroup see in full */
    int pending; /* bit u: P V of unit u of the stage before is to be computed; NONE: there is no
                  * such stage */

    using arith = filter_arith<T>;
    using arith::a, arith::kv, arith::l, arith::m, arith::p, arith::q;
    using arith::PARTS, arith::SCORES, arith::sm, arith::w;
    using score = typename arith::score;
    using sums = typename arith::sums;
    using by = filter_votes<T, SCOPE>;
    using arith::first;
    using by::counts, by::f, by::near, by::vote;

    /* ---- stages ----------------------------------------------------------------------------- */

    DEVICE int key_of(int at) const
    {
        return warp_load(&sm.keys[kv.at][at]);
    }

    DEVICE float distance() const
    {
        return __int_as_float(gap);
    }

    /* No tile of the head is skipped. */
    DEVICE bool is_exempt() const
    {
        return !T::SKIPS || gap == __float_as_int(INFINITY);
    }

    DEVICE void drop_values(const ring<STAGES> &of)
    {
        mbar_wait(smem_addr(&sm.v_full[of.at]), of.parity);
        arith::arrive(&sm.v_empty[of.at]);
    }

    /* Bits of the stage's units: those that it has, and UNITS further those that are never skipped.
     * UNSEEN: a score may not count. */
    DEVICE int bits_of_stage() const
    {
        int bits = 0;
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            int entry = key_of(UNITS + u);
            bool whole = entry && (entry & FILTER_BLOCK) < whole_blocks;
            bits |= (entry >> (FILTER_WANTED + w) & 1) << u;
            bits |= (entry >> (FILTER_EXEMPT + w) & 1) << (UNITS + u);
            bits |= whole ? 0 : UNSEEN;
        }
        return bits;
    }

    /* Largest scores of a thread's rows, by unit. */
    using unit_tops = float[UNITS][2];

    /* BOUNDS: where they may exceed a maximum (bound_tops). */
    template <bool BOUNDS, int UNIT = 0>
    DEVICE void find_tops(const score (&s)[BN / 2], unit_tops &top)
    {
        constexpr int FROM = UNIT * SCORES, TO = FROM + SCORES;
        if constexpr (BOUNDS)
            arith::template bound_tops<FROM, TO>(s, top[UNIT]);
        else
            arith::template find_tops<FROM, TO>(s, top[UNIT]);
        if constexpr (UNIT + 1 < UNITS)
            find_tops<BOUNDS, UNIT + 1>(s, top);
    }

    /* In which units is a row of this thread near its maximum? GROWS: a score exceeds one. UNSURE:
     * the answer takes exact maxima. */
    DEVICE int glance(const unit_tops &top, float gap) const
    {
        const float limit[2] = {m[0] - gap, m[1] - gap};
        int found = 0, signs = 0;
        bool grows = false;
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            found |= (top[u][0] > limit[0] || top[u][1] > limit[1]) << u;
            grows = grows || top[u][0] > m[0] || top[u][1] > m[1];
#pragma unroll
            for (int r = 0; r < 2; r++)
                signs |= __float_as_int(top[u][r]) & __float_as_int(limit[r]);
        }
        return found | (grows ? GROWS : 0) | (!T::BYTES && signs < 0 ? UNSURE : 0);
    }

    /* The units in which a row of the warp is near its maximum. The maxima move, and the sums with
     * them; c: the factors of the outputs. */
    DEVICE int follow_units(unit_tops &top, float gap, float (&c)[2])
    {
        float to[2] = {m[0], m[1]};
        int own = 0;
#pragma unroll
        for (int u = 0; u < UNITS; u++)
            tops_of_lanes(top[u]);
#pragma unroll
        for (int u = 0; u < UNITS; u++) {
            own |= near(top[u], to, gap) << u;
            to[0] = fmaxf(to[0], top[u][0]);
            to[1] = fmaxf(to[1], top[u][1]);
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            c[r] = to[r] > m[r] ? exp2_fast((m[r] - to[r]) * a.scale_log2) : 1;
            m[r] = to[r];
            l[r] *= c[r];
        }
        return uniform(own);
    }

    /* Which units the scope (`mine`) and the warpgroup (`any`) multiply, of those in `bits`. Do
     * maxima move? c: then the factors of the outputs. Most stages raise no row of a warp, and one
     * instruction tells all that. */
    DEVICE bool decide(const score (&s)[BN / 2], int bits, int &mine, int &any, float (&c)[2])
    {
        int listed = bits & ALL, exempt = bits >> UNITS & ALL;
        unit_tops top;
        find_tops<true>(s, top);
        int found = uniform(glance(top, is_exempt() ? 0 : distance())), own = found & ALL;
        bool grows = found & (GROWS | UNSURE);
        if (found & UNSURE)
            find_tops<false>(s, top);
        if (grows)
            own = follow_units(top, distance(), c);
        exempt |= is_exempt() ? ALL : 0;
        any = is_exempt() ? 0 : vote(w, own, listed & ~exempt);
        mine = (own | exempt) & listed;
        any = (any | exempt) & listed;
        counts += __popc(mine);
        return grows;
    }

    /* Scores [FROM, TO) of a unit, or in bf16 of a stage, become probabilities. */
    template <int FROM, int TO>
    DEVICE void soften(score (&s)[BN / 2], const float (&reference)[2], float (&sum)[2])
    {
        if (arith::floats())
            arith::template soften<true, FROM, TO>(s, reference, sum);
        else
            arith::template soften<false, FROM, TO>(s, reference, sum);
    }

    /* Scores [FROM, TO) become probabilities, with sums in l as `mine` says. Sums end at EARLY and
     * with a unit, so that l has the same bits whether a stage is multiplied as a whole or not. */
    template <int FROM, int TO>
    DEVICE void soften_and_sum(score (&s)[BN / 2], const float (&reference)[2], int mine)
    {
        constexpr int UNIT = FROM / SCORES, END = (UNIT + 1) * SCORES;
        constexpr int CUT = FROM < EARLY && EARLY < END ? EARLY : END;
        float sum[2];
        soften<FROM, CUT>(s, reference, sum);
        add_sums<UNIT>(sum, mine);
        if constexpr (CUT < TO)
            soften_and_sum<CUT, TO>(s, reference, mine);
    }

    /* A part of a stage that is multiplied as a whole. Probabilities are packed among the last
     * exponentials, where P V of the stage before has ended by then. */
    template <int FROM, int TO>
    DEVICE void take_whole(score (&s)[BN / 2], const float (&reference)[2])
    {
        soften_and_sum<FROM, TO>(s, reference, ALL);
        if (TO == BN / 2 && PARTS == 1)
            arith::template pack_all<0, TO>(s);
    }

    /* The units that are multiplied, where not all are. Skipped ones may count, too. */
    template <int UNIT>
    DEVICE void take(score (&s)[BN / 2], const float (&reference)[2], int mine, int any)
    {
        if (any >> UNIT & 1 || f.keep_sum) {
            soften_and_sum<UNIT * SCORES, (UNIT + 1) * SCORES>(s, reference, mine);
            if (PARTS == 1)
                put<UNIT>(s, mine, any);
        }
        if constexpr (UNIT + 1 < UNITS)
            take<UNIT + 1>(s, reference, mine, any);
    }

    /* The probabilities of a unit count where the scope multiplies them, or always. */
    template <int UNIT> DEVICE void add_sums(const float (&sum)[2], int mine)
    {
#pragma unroll
        for (int r = 0; r < 2; r++)
            l[r] += mine >> UNIT & 1 || f.keep_sum ? sum[r] : 0;
    }

    /* They become the operand of P V. */
    template <int UNIT> DEVICE void put(const score (&s)[BN / 2], int mine, int any)
    {
        constexpr int EACH = sizeof p / 4 / UNITS;
        if (!(any >> UNIT & 1))
            return;
        arith::template pack_all<UNIT * SCORES, (UNIT + 1) * SCORES>(s);
#pragma unroll
        for (int i = UNIT * EACH; i < (UNIT + 1) * EACH && SCOPE < 64; i++)
            p[i] = mine >> UNIT & 1 ? p[i] : 0;
    }

    /* One stage; P V of the units of the stage before it that are pending. */
    template <int PENDING> DEVICE void stage(bool is_last)
    {
        const ring<STAGES> before = kv.before();
        score s[BN / 2];
        sums u;
        float c[2], reference[2];
        int mine, any;
        arith::issue_scores(s);
        int bits = bits_of_stage(); /* P V cannot begin before the scores are done */
        if (PENDING) {
            mbar_wait(smem_addr(&sm.v_full[before.at]), before.parity);
            arith::template issue_values<PENDING, 0>(before.at, u);
        }
        arith::look_up_scales();
        wgmma_wait<PENDING ? 1 : 0>();
        hold(s);
        if (bits & UNSEEN || T::BYTES)
            arith::mask(s, bits & UNSEEN);
        arith::arrive(&sm.k_empty[kv.at]);
        warp_arrive_if(is_last, smem_addr(&sm.q_empty[q.at]));
        bool grows = decide(s, bits, mine, any, c), whole = mine == ALL && any == ALL;
        arith::references(reference);
        if constexpr (EARLY > 0)
            if (whole)
                take_whole<0, EARLY>(s, reference);
        if (PENDING) {
            arith::template end_values<0>(u);
            if constexpr (PARTS > 1)
                arith::template issue_values<PENDING, 1>(before.at, u);
            else
                arith::arrive(&sm.v_empty[before.at]);
        } else if (pending != NONE) {
            drop_values(before);
        }
        if (whole)
            take_whole<EARLY, BN / 2>(s, reference);
        else
            take<0>(s, reference, mine, any);
        if constexpr (PARTS > 1) {
            if (PENDING) {
                arith::template end_values<1>(u);
                arith::arrive(&sm.v_empty[before.at]);
            }
            put<0>(s, mine, any);
            if constexpr (UNITS > 1)
                put<1>(s, mine, any);
        }
        if (grows)
            arith::rescale(c);
        pending = any;
    }

    /* A stage from its scores to P V; the warps of other teams hide the chain. lacks: its last unit
     * is missing. What does not depend on the scores is known before they are. */
    DEVICE void whole_stage(bool lacks, bool is_last)
    {
        score s[BN / 2];
        int listed = UNITS > 1 && lacks ? ALL >> 1 : ALL, exempt = ALL;
        arith::issue_scores(s);
        if constexpr (T::LENDS && STAGES > 1)
            arith::return_lent();
        if (!is_exempt()) {
            exempt = 0;
#pragma unroll
            for (int u = 0; u < UNITS; u++)
                exempt |= (key_of(UNITS + u) >> (FILTER_EXEMPT + w) & 1) << u;
        }
        arith::look_up_scales();
        bool converts = arith::is_coarse() || lacks;
        if (a.causal || a.nk % T::UNIT)
            converts |= by::has_unseen(key_of(UNITS - 1) + T::UNIT, first());
        wgmma_wait<0>();
        hold(s);
        if (converts)
            arith::convert(s);
        if (converts)
            take_stage<true>(s, listed, exempt, is_last);
        else
            take_stage<false>(s, listed, exempt, is_last);
        if (!T::LENDS || !is_last)
            arith::arrive(&sm.v_empty[kv.at]);
    }

    /* Decides about the units of a stage whose scores are there, and adds those that count. */
    template <bool FLOATS>
    DEVICE void take_stage(score (&s)[BN / 2], int listed, int exempt, bool is_last)
    {
        float c[2] = {1, 1};
        int own = ALL, any = 0, close;
        arith::arrive(&sm.k_empty[kv.at]);
        warp_arrive_if(is_last, smem_addr(&sm.q_empty[q.at]));
        bool grows = look_and_follow<FLOATS>(s, close, c);
        if (!is_exempt()) {
            own = uniform(close);
            any = vote(w, own, listed & ~exempt);
        }
        any = (any | exempt) & listed;
        int mine = SCOPE < 64 ? (own | exempt) & listed : any;
        if (T::SKIPS)
            counts += __popc(mine);
        if (any == ALL)
            multiply<FLOATS, ALL>(s, c, mine);
        else if (UNITS > 1 && any == 2)
            multiply<FLOATS, 2>(s, c, mine);
        else if (UNITS > 1 && any == 1)
            multiply<FLOATS, 1>(s, c, mine);
        else
            multiply<FLOATS, 0>(s, c, mine);
        if (SCALES_LATE && grows && !any)
            arith::rescale(c);
    }

    /* close: in which units a row of the thread is near its maximum. The maxima rise, and the sums
     * with them; true if so. c: factors that the outputs do not have yet. Most stages raise no row
     * of a warp. */
    template <bool FLOATS>
    DEVICE bool look_and_follow(const score (&s)[BN / 2], int &close, float (&c)[2])
    {
        float top[UNITS][2], most[2];
        arith::template tops_of<FLOATS, 0, SCORES>(s, top[0]);
        if constexpr (UNITS > 1)
            arith::template tops_of<FLOATS, SCORES, BN / 2>(s, top[1]);
        arith::pass_turn();
        close = near(top[0], m, distance());
        if (UNITS > 1)
            close |= near(top[UNITS - 1], m, distance()) << 1;
#pragma unroll
        for (int r = 0; r < 2; r++)
            most[r] = fmaxf(top[0][r], top[UNITS - 1][r]);
        bool grows = __any_sync(~0u, most[0] > m[0] || most[1] > m[1]);
        if (grows) {
            if (UNITS > 1 && !is_exempt()) {
                tops_of_lanes(top[0]);
                top[0][0] = fmaxf(top[0][0], m[0]);
                top[0][1] = fmaxf(top[0][1], m[1]);
                close = (close & 1) | near(top[UNITS - 1], top[0], distance()) << 1;
            }
            follow(most, c);
        }
        return grows;
    }

    DEVICE void follow(float (&top)[2], float (&c)[2])
    {
        tops_of_lanes(top);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            c[r] = top[r] > m[r] ? exp2_fast((m[r] - top[r]) * a.scale_log2) : 1;
            m[r] = fmaxf(m[r], top[r]);
            l[r] *= c[r];
        }
        if (!SCALES_LATE) {
            arith::rescale(c);
            c[0] = c[1] = 1;
        }
    }

    /* Probabilities and P V of the units in SOME; those of other scopes get zeros. */
    template <bool FLOATS, int SOME>
    DEVICE void multiply(score (&s)[BN / 2], const float (&c)[2], int mine)
    {
        take_unit<FLOATS, SOME, 0>(s, mine);
        if constexpr (UNITS > 1)
            take_unit<FLOATS, SOME, 1>(s, mine);
        if (PACKS_EARLY || !SOME)
            await_values();
        if (SOME)
            add_values<SOME>(kv.at, c);
    }

    template <bool FLOATS, int SOME, int UNIT> DEVICE void take_unit(score (&s)[BN / 2], int mine)
    {
        float reference[2], sum[2];
        if (!(SOME >> UNIT & 1) && !f.keep_sum)
            return;
        arith::template references<FLOATS>(reference);
        arith::template soften<FLOATS, UNIT * SCORES, (UNIT + 1) * SCORES>(s, reference, sum);
        add_sums<UNIT>(sum, mine);
        if (!PACKS_EARLY && SOME)
            await_values();
        put<UNIT>(s, mine, SOME);
    }

    DEVICE void await_values()
    {
        mbar_wait(smem_addr(&sm.v_full[kv.at]), kv.parity);
    }

    /* A stage that only the other warpgroup wants. */
    DEVICE void pass(bool is_last)
    {
        finish_values(kv.before());
        pending = 0;
        arith::arrive(&sm.k_empty[kv.at]);
        if (is_last)
            arith::arrive(&sm.q_empty[q.at]);
    }

    /* c: factors of the outputs. */
    template <int PENDING> DEVICE void add_values(int of_stage, const float (&c)[2] = {1, 1})
    {
        sums u;
        arith::template issue_values<PENDING, 0>(of_stage, u);
        arith::template end_values<0>(u, c);
        if constexpr (PARTS > 1) {
            arith::template issue_values<PENDING, 1>(of_stage, u);
            arith::template end_values<1>(u, c);
        }
    }

    /* P V of a stage alone. */
    template <int PENDING> DEVICE void finish_pending(const ring<STAGES> &of)
    {
        mbar_wait(smem_addr(&sm.v_full[of.at]), of.parity);
        add_values<PENDING>(of.at);
        arith::arrive(&sm.v_empty[of.at]);
    }

    /* The same, or the values back unused. */
    DEVICE void finish_values(const ring<STAGES> &of)
    {
        if (UNITS > 1 && pending == 3)
            finish_pending<3>(of);
        else if (UNITS > 1 && pending == 2)
            finish_pending<2>(of);
        else if (pending == 1)
            finish_pending<1>(of);
        else if (pending == 0)
            drop_values(of);
    }

    /* Does this warpgroup want a tile of the stage? Rows of 128 share their lists. */
    DEVICE bool is_wanted() const
    {
        return T::BLOCK == 64 || T::WG == 1 || (uint32_t)key_of(1) >> (FILTER_WANTED + w) & 1;
    }

    /* ---- items ------------------------------------------------------------------------------ */

    DEVICE void run_stage(bool is_last)
    {
        if (!is_wanted())
            pass(is_last);
        else if (pending <= 0)
            stage<0>(is_last);
        else if (UNITS == 1 || pending == 1)
            stage<1>(is_last);
        else if (pending == 2)
            stage<2>(is_last);
        else
            stage<3>(is_last);
        kv.next();
    }

    DEVICE void run_stages(int n)
    {
        whole_blocks = (a.causal ? min(a.nk, first() + a.offset + 1) : a.nk) / T::BLOCK;
        pending = NONE;
#pragma unroll 1
        for (; n > 0; n--) {
            mbar_wait(smem_addr(&sm.k_full[kv.at]), kv.parity);
            run_stage(n == 1);
        }
        finish_values(kv.before());
    }

    /* Every item wants all of its stages. lacks: the first stage lacks a unit. */
    DEVICE void run_whole_stages(int n, bool lacks)
    {
        static_assert(T::TEAMS == 1 || T::WG == 1 || T::BLOCK == 64);
#pragma unroll 1
        for (; n > 0; n--, kv.next()) {
            whole_stage(lacks, n == 1);
            lacks = false;
        }
        arith::sit_out();
        arith::lent = kv.before().at;
    }

    DEVICE void run()
    {
        int4 item;
        if (T::LENDS)
            arith::lent = -1;
        arith::begin_team_turns();
        while (arith::next_item(item)) {
            arith::start_item(item);
            by::start();
#pragma unroll
            for (int r = 0; r < 2 && T::SKIPS; r++) /* rows past the end have no say */
                if (first() + arith::warp() * 16 + (arith::lane() >> 2) + 8 * r >= a.nq)
                    m[r] = INFINITY;
            int stages = (item.z - item.y + UNITS - 1) / UNITS;
            if (T::SKIPS)
                gap = uniform(__float_as_int(by::gap_of(arith::tile)));
            else
                arith::slot = item.w;
            if constexpr (T::TEAMS > 1 && T::BYTES)
                run_whole_stages(stages, (item.z - item.y) % UNITS);
            else
                run_stages(stages);
            if (T::SKIPS)
                by::store_count(w, item.x, first());
            arith::finish();
            q.next();
        }
        arith::end_team_turns();
        tma_store_wait_read();
    }
};

template <class T> struct list_consumer; /* attn8_lists.cuh */

template <class T, int SCOPE>
__global__ void __launch_bounds__(T::THREADS, 1)
    attn_filter(const __grid_constant__ attn_maps maps, const __grid_constant__ filter_args f)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t raw[];
    attn_smem<T> *teams = (attn_smem<T> *)raw;
    const int group = uniform(threadIdx.x >> 7);

    for (int team = 0; team < T::TEAMS; team++) {
        if (threadIdx.x == 0) {
            for (int i = 0; i < teams->SLOTS * T::WG; i++)
                mbar_init(smem_addr(&teams[team].said_full[0][i]), SCOPE == 128 ? 8 : 4);
            mbar_init(smem_addr(&teams[team].done), 4 * T::TEAMS);
        }
        attn_begin(teams[team], maps);
    }
    if (group == 0) {
        regs_dec<T::REGS_PRODUCER>();
        int warp = uniform(threadIdx.x >> 5);
        if (warp < T::TEAMS * T::PRODUCERS)
            produce(teams[warp / T::PRODUCERS], f.base, maps);
    } else {
        regs_inc<T::REGS_CONSUMER>();
        int w = uniform(group - 1);
        attn_smem<T> &own = teams[w / T::WG], &sm = T::TEAMS > 1 ? kept(own) : own;
        if constexpr (T::BLOCK > 32) {
            filter_consumer<T, SCOPE> c = {{{sm, f.base, &maps.o, w % T::WG}}, {f, sm}};
            c.run();
        } else {
            list_consumer<T> c = {{{{sm, f.base, &maps.o, w % T::WG}}, {f, sm}}};
            c.run();
        }
    }
#endif
}

template <class T, int SCOPE>
void filter_launch(int grid, cudaStream_t stream, const void *maps, const void *args)
{
    cudaFuncSetAttribute(attn_filter<T, SCOPE>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         T::TEAMS * (int)sizeof(attn_smem<T>));
    attn_filter<T, SCOPE><<<grid, T::THREADS, T::TEAMS * sizeof(attn_smem<T>), stream>>>(
        *(const attn_maps *)maps, *(const filter_args *)args);
}

#define FILTER_LAUNCH(shape, scope)                                                                \
    template void filter_launch<shape, scope>(int grid, cudaStream_t stream, const void *maps,     \
                                              const void *args);
