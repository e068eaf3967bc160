/*
 * hop.cuh - thin wrappers around Hopper instructions that CUDA C++ does not offer: TMA copies,
 * mbarriers, named barriers, register reallocation, shared-memory descriptors, stmatrix. One
 * instruction each, no policy. PTX ISA 8.x, target sm_90a.
 */
#pragma once

#include <cuda.h>
#include <stdint.h>

#define DEVICE __device__ __forceinline__

/* The 16-bit float type of this file: "bf16", unless the includer defines "f16". */
#ifndef ATTN_ELEMENT
#define ATTN_ELEMENT "bf16"
#endif

DEVICE uint32_t smem_addr(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- mbarriers ------------------------------------------------------------------------------ */

DEVICE void mbar_init(uint32_t bar, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals));
}

DEVICE void mbar_init_fence()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Arrive and announce `bytes` of copies that belong to this phase. */
DEVICE void mbar_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}

/* Announce without arriving. */
DEVICE void mbar_announce(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}

DEVICE void mbar_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

/* Whether the phase with this parity is over, without waiting. */
DEVICE int mbar_test(uint32_t bar, uint32_t parity)
{
    int over;
    asm volatile("{\n.reg .pred P;\nmbarrier.test_wait.parity.shared::cta.b64 P, [%1], %2;\n"
                 "selp.b32 %0, 1, 0, P;\n}"
                 : "=r"(over)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return over;
}

/* Wait until the phase with this parity is over, unless mbar_test said that it is. A wait of some
 * seconds can only be a deadlock. It then stores to address 0, so that a fault in a kernel ends
 * with an error message and does not hang the machine. A trap instead of the store would be an exit
 * from the loop: ptxas then assumes that no warp is converged after it, which costs the attention
 * kernels 4 %. The counter is inside the PTX loop, because C code here makes ptxas serialise the
 * wgmma around it. */
DEVICE void mbar_wait_unless(int over, uint32_t bar, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred P, Q;\n"
                 ".reg .u32 n;\n"
                 ".reg .u64 null;\n"
                 "mov.u32 n, 0;\n"
                 "mov.u64 null, 0;\n"
                 "setp.ne.b32 P, %2, 0;\n"
                 "@P bra E;\n"
                 "W: mbarrier.try_wait.parity.shared::cta.b64 P, [%0], %1;\n"
                 "@P bra E;\n"
                 "add.u32 n, n, 1;\n"
                 "setp.gt.u32 Q, n, 4000000;\n"
                 "@Q st.global.u32 [null], n;\n"
                 "bra W;\n"
                 "E:\n"
                 "}" ::"r"(bar),
                 "r"(parity), "r"(over)
                 : "memory");
}

DEVICE void mbar_wait(uint32_t bar, uint32_t parity)
{
    mbar_wait_unless(0, bar, parity);
}

/* A position in a ring of buffers; the parity is that of the consumer's wait on "full". */
template <int N> struct ring {
    int at = 0;
    uint32_t parity = 0;
    DEVICE void next()
    {
        if (++at == N) {
            at = 0;
            parity ^= 1;
        }
    }
    DEVICE ring before() const
    {
        ring r;
        r.at = at ? at - 1 : N - 1;
        r.parity = at ? parity : parity ^ 1;
        return r;
    }
};

/* ---- named barriers (id 0 is __syncthreads) -------------------------------------------------- */

DEVICE void named_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* The same, with the answer whether x holds for any of the threads. */
DEVICE bool named_any(int id, int threads, bool x)
{
    int any;
    asm volatile("{\n.reg .pred P;\nsetp.ne.s32 P, %3, 0;\nbar.red.or.pred P, %1, %2, P;\n"
                 "selp.s32 %0, 1, 0, P;\n}"
                 : "=r"(any)
                 : "r"(id), "r"(threads), "r"((int)x)
                 : "memory");
    return any;
}

DEVICE void named_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* ---- TMA ------------------------------------------------------------------------------------ */

/* L2 policies: queries are read once per tile, keys and values by every tile of the head. */
#define L2_EVICT_FIRST 0x12F0000000000000ull
#define L2_EVICT_LAST 0x14F0000000000000ull

DEVICE void tma_prefetch(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Box at element x, row y, head z of the tensor; completes on `bar`. */
DEVICE void tma_load(uint32_t dst, const CUtensorMap *map, uint32_t bar, int x, int y, int z,
                     uint64_t policy)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(dst),
                 "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "l"(policy)
                 : "memory");
}

/* `bytes` of memory, a multiple of 16, into shared memory; completes on `bar`. */
DEVICE void bulk_load(uint32_t dst, const void *src, int bytes, uint32_t bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(dst),
                 "l"(src), "r"(bytes), "r"(bar)
                 : "memory");
}

/* `bytes` of memory, a multiple of 16, into L2. */
DEVICE void bulk_prefetch(const void *src, int bytes)
{
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(src), "r"(bytes) : "memory");
}

/* Copy 16 bytes by this thread, or write zeros if !valid. The copy belongs to the open cp.async
 * group. */
DEVICE void cp_async(uint32_t dst, const void *src, bool valid = true)
{
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes)
                 : "memory");
}

DEVICE void cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int PENDING> DEVICE void cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* Issued by one lane of a warp, in that lane's bulk group. Rows outside the tensor are not written.
 */
DEVICE void warp_tma_store(const CUtensorMap *map, uint32_t src, int x, int y, int z)
{
    asm volatile("{\n.reg .pred P;\nelect.sync _|P, 0xffffffff;\n"
                 "@P cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group "
                 "[%0, {%2, %3, %4}], [%1];\n}" ::"l"(map),
                 "r"(src), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

DEVICE void warp_tma_commit()
{
    asm volatile("{\n.reg .pred P;\nelect.sync _|P, 0xffffffff;\n"
                 "@P cp.async.bulk.commit_group;\n}" ::
                     : "memory");
}

/* The stores issued so far by this thread have read their shared memory. */
DEVICE void tma_store_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

/* Make earlier ordinary writes to shared memory visible to later TMA and wgmma. */
DEVICE void async_proxy_fence()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- wgmma control -------------------------------------------------------------------------- */

DEVICE void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

DEVICE void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int PENDING> DEVICE void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* Keep the compiler from moving uses of accumulators across a wait. */
template <int N> DEVICE void hold(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* Descriptor of a 128-byte-swizzled tile whose groups of 8 rows are 1024 bytes apart; `lbo` is a
 * byte distance: ignored for keys, which are read K-major; the bytes of a 64-column panel for
 * values, which are read MN-major. Only the low word differs from tile to tile. */
DEVICE uint32_t desc_low(uint32_t addr, uint32_t lbo)
{
    return (addr & 0x3ffff) >> 4 | (lbo >> 4) << 16;
}

DEVICE uint64_t descriptor(uint32_t low)
{
    uint64_t d;
    asm("mov.b64 %0, {%1, %2};" : "=l"(d) : "r"(low), "r"(1024 >> 4 | 1 << 30));
    return d;
}

/* The same of a tile with 64-byte swizzle, whose groups are 512 bytes apart. */
DEVICE uint64_t descriptor64(uint32_t low)
{
    uint64_t d;
    asm("mov.b64 %0, {%1, %2};" : "=l"(d) : "r"(low), "r"(512 >> 4 | (int)(2u << 30)));
    return d;
}

/* Tell ptxas that x has the same value in all lanes. REDUX writes a uniform register, and values
 * derived from it nearby stay on the uniform datapath. A descriptor made from other registers costs
 * vector arithmetic and two moves in front of its wgmma. */
DEVICE int uniform(int x)
{
    return (int)__reduce_or_sync(~0u, (unsigned)x);
}

/* The same object of shared memory at an address that ptxas keeps. Otherwise it computes that of
 * the block's shared memory again at each use, and reads a slow special register for it. */
template <class S> DEVICE S &kept(S &x)
{
    return *(S *)__cvta_shared_to_generic(uniform(smem_addr(&x)));
}

/* ---- one lane for its warp ------------------------------------------------------------------- */

/* Read a word of shared memory in the lane that warp_arrive chooses; 0 in the other lanes. Whoever
 * waits for that arrival may then overwrite the word. */
DEVICE int elected_load(const int *p)
{
    int x;
    asm volatile("{\n.reg .pred P;\nelect.sync _|P, 0xffffffff;\nmov.b32 %0, 0;\n"
                 "@P ld.shared.b32 %0, [%1];\n}"
                 : "=r"(x)
                 : "r"(smem_addr(p))
                 : "memory");
    return x;
}

/* The same in all lanes. */
DEVICE int warp_load(const int *p)
{
    return uniform(elected_load(p));
}

DEVICE int4 warp_load(const int4 *p)
{
    int4 x;
    asm volatile("{\n.reg .pred P;\nelect.sync _|P, 0xffffffff;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\n"
                 "mov.b32 %2, 0;\nmov.b32 %3, 0;\n@P ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n}"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(smem_addr(p))
                 : "memory");
    return make_int4(uniform(x.x), uniform(x.y), uniform(x.z), uniform(x.w));
}

/* Is this the lane of warp_load and warp_arrive? */
DEVICE bool is_elected()
{
    int yes;
    asm volatile("{\n.reg .pred P;\nelect.sync _|P, 0xffffffff;\nselp.b32 %0, 1, 0, P;\n}"
                 : "=r"(yes));
    return yes;
}

DEVICE void warp_arrive(uint32_t bar)
{
    asm volatile("{\n.reg .pred P;\nelect.sync _|P, 0xffffffff;\n"
                 "@P mbarrier.arrive.shared::cta.b64 _, [%0];\n}" ::"r"(bar)
                 : "memory");
}

/* Store a byte of the warp at `at` and arrive, for a reader that waits on `bar`. */
DEVICE void warp_publish(uint32_t at, int x, uint32_t bar)
{
    asm volatile("{\n.reg .pred P;\nelect.sync _|P, 0xffffffff;\n@P st.shared.b8 [%0], %1;\n"
                 "@P mbarrier.arrive.shared::cta.b64 _, [%2];\n}" ::"r"(at),
                 "r"(x), "r"(bar)
                 : "memory");
}

DEVICE void warp_arrive_if(bool really, uint32_t bar)
{
    asm volatile("{\n.reg .pred P, Q;\nsetp.ne.b32 Q, %1, 0;\nelect.sync _|P, 0xffffffff;\n"
                 "and.pred P, P, Q;\n@P mbarrier.arrive.shared::cta.b64 _, [%0];\n}" ::"r"(bar),
                 "r"((int)really)
                 : "memory");
}

/* ---- stores without a branch ----------------------------------------------------------------- */

DEVICE void store_if(bool really, float *p, float x)
{
    asm volatile("{\n.reg .pred P;\nsetp.ne.b32 P, %0, 0;\n@P st.global.f32 [%1], %2;\n}"
                 :
                 : "r"((int)really), "l"(p), "f"(x)
                 : "memory");
}

DEVICE void store_if(bool really, float2 *p, float2 x)
{
    asm volatile("{\n.reg .pred P;\nsetp.ne.b32 P, %0, 0;\n"
                 "@P st.global.v2.f32 [%1], {%2, %3};\n}"
                 :
                 : "r"((int)really), "l"(p), "f"(x.x), "f"(x.y)
                 : "memory");
}

/* ---- registers and small arithmetic ---------------------------------------------------------- */

template <int N> DEVICE void regs_inc()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> DEVICE void regs_dec()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

DEVICE float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE float log2_fast(float x)
{
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE float reciprocal_fast(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Round to a packed pair of ATTN_ELEMENT. */
DEVICE uint32_t pack_pair(float lo, float hi)
{
    uint32_t r;
    asm("cvt.rn." ATTN_ELEMENT "x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

/* Four 8x8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8. */
DEVICE void stmatrix_x4(uint32_t addr, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(addr),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}
