#!/usr/bin/env python3
"""Speed of other attention kernels on this GPU, measured as tests/checkcu_bench.c measures ours.

Every sample of a kernel is taken between samples of an 8192^3 bf16 product, on random normal data,
after 0.3 s of warm-up, with CUDA events; medians, and their ratio to the product's median. FLOP by
the same formulas: dense 4 N^2 D per head, half when causal; block masks: blocks multiplied.

Needs PyTorch. FlashAttention-3 is measured where a build of it is installed: its own package
(flash_attn_3) or an xformers that contains it; it gets grouped keys and values as they are, and one
split, as from its flash_attn_func. Nothing of all this is used by the product; the numbers are a
yardstick.

  peers.py [--samples N] [--raw FILE] [TEXT]     only lines whose text contains TEXT
"""
import argparse
import importlib
import json
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

LENGTHS = (4096, 8192, 16384, 32768, 65536, 131072)


def samples_of(run, matmul, n):
    """Interleaved samples in ms: (matmul, kernel)."""
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        run()
        torch.cuda.synchronize()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(2 * n + 1)]
    marks[0].record()
    for i in range(n):
        matmul()
        marks[2 * i + 1].record()
        run()
        marks[2 * i + 2].record()
    torch.cuda.synchronize()
    span = [marks[i].elapsed_time(marks[i + 1]) for i in range(2 * n)]
    return sorted(span[0::2]), sorted(span[1::2])


def line(args, text, name, run, matmul, flop):
    if args.only and args.only not in text and args.only not in name:
        return
    try:
        top, got = samples_of(run, matmul, args.samples)
    except RuntimeError as error:
        print(f"{text:34} {name:22} not available: {str(error).splitlines()[0][:60]}", flush=True)
        return
    mid = lambda x: x[(len(x) + 1) // 2 - 1]
    tops, speed = 2 * 8192**3 / mid(top) * 1e-9, flop / mid(got) * 1e-9
    print(f"{text:34} {name:22} {mid(got) * 1e3:10.1f} us {speed:14.1f} {tops:7.1f} "
          f"{speed / tops:6.3f}", flush=True)
    if args.raw:
        args.raw.write(json.dumps({"name": f"{text} {name}", "flop": flop,
                                   "ns": [x * 1e6 for x in got]}) + "\n")


def tensors(n, d, heads, kv):
    make = lambda h: torch.randn(1, h, n, d, device="cuda", dtype=torch.bfloat16)
    return make(heads), make(kv), make(kv)


def flash_attention_3():
    """Its forward operator: q, k, v of (batch, tokens, heads, d); None when not installed."""
    for module in ("flash_attn_3._C", "xformers.flash_attn_3._C"):
        try:
            importlib.import_module(module)
            return torch.ops.flash_attn_3.fwd
        except (ImportError, OSError, AttributeError):
            continue
    return None


def dense_peers(q, k, v, causal, n, fa3):
    """(name, launch) of each kernel for a problem, operands as it likes them."""
    group = q.shape[1] // k.shape[1]
    wide = [x.repeat_interleave(group, 1) for x in (k, v)]

    def by_sdpa(backend):
        def run():
            with sdpa_kernel(backend):
                sdpa(q, *wide, is_causal=causal)
        return run

    yield "cudnn", by_sdpa(SDPBackend.CUDNN_ATTENTION)
    if n == 32768:
        yield "flash-attention-2", by_sdpa(SDPBackend.FLASH_ATTENTION)
    if fa3:
        rows = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
        yield "flash-attention-3", lambda: fa3(*rows, is_causal=causal, num_splits=1)


def dense(args, matmul):
    fa3 = flash_attention_3()
    if not fa3:
        print("FlashAttention-3: not installed (flash_attn_3 or xformers); its lines are left out")
    for d in (128, 64):
        for causal in (False, True):
            heads, kv = (32, 8) if causal else (16, 16)
            for n in LENGTHS:
                text = f"hd{d} {n // 1024}K {'causal' if causal else 'full'} {heads}/{kv}"
                q, k, v = tensors(n, d, heads, kv)
                flop = 4 * d * heads * (n * (n + 1) / 2 if causal else n * n)
                for name, run in dense_peers(q, k, v, causal, n, fa3):
                    line(args, text, name, run, matmul, flop)


def flex(args, matmul):
    from torch.nn.attention.flex_attention import BlockMask, flex_attention
    compiled = torch.compile(flex_attention)
    n, d, heads = 32768, 128, 16
    blocks = n // 128
    q, k, v = tensors(n, d, heads, heads)
    for share in (1.0, 0.5, 0.25, 0.1):
        keep = torch.rand(1, heads, blocks, blocks, device="cuda") < share
        count = keep.sum(-1).to(torch.int32)
        order = torch.argsort(keep.to(torch.int8), dim=-1, descending=True, stable=True)
        none = torch.zeros_like(count)
        mask = BlockMask.from_kv_blocks(none, order.to(torch.int32), count, order.to(torch.int32),
                                        BLOCK_SIZE=128)
        flop = 4 * d * 128 * 128 * float(count.sum())
        line(args, f"hd128 32K list 128x128 {100 * share:.0f}%", "flex-attention",
             lambda: compiled(q, k, v, block_mask=mask), matmul, flop)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--raw", type=argparse.FileType("w"))
    parser.add_argument("only", nargs="?")
    args = parser.parse_args()
    torch.manual_seed(1)
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    matmul = lambda: torch.mm(a, b.t())
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, "
          f"cuDNN {torch.backends.cudnn.version()}")
    print(f"{'case':34} {'kernel':22} {'median':>13} {'TFLOP/s':>14} {'matmul':>7} {'ratio':>6}")
    with torch.no_grad():
        dense(args, matmul)
        flex(args, matmul)


if __name__ == "__main__":
    main()
