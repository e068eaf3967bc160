#!/usr/bin/env python3
"""Speed of other attention kernels on this GPU, and of ours beside them in the same process.

The kernels of a case take turns, in every second round backwards, each after an 8192^3 bf16 product,
on random normal data, after 0.3 s of warm-up, timed with CUDA events. Heat and power limit so meet all
alike: what a kernel does to the clock of the next one is done to each of them. Medians and quartiles;
the ratio is to the median of all products of the case, one number for all its kernels. FLOP by the
formulas of tests/bench/benchcu.c: dense 4 N^2 D per head, half when causal; block masks: blocks
multiplied. "l2" is the relative L2 difference of the outputs from those of the first kernel.

Needs PyTorch. FlashAttention-3 is measured where a build of it is installed: its own package
(flash_attn_3) or an xformers that contains it. It takes grouped keys and values as they are, and
one split, as its flash_attn_func does; the others get them repeated before the timing. Nothing of
all this is used by the product: the numbers are a yardstick.

  peers.py [--samples N] [--raw FILE] [--ours LIBRARY] [--masks MASKS] [TEXT]

TEXT keeps only cases that contain it. --masks: FlexAttention alone, over the 128 x 128 blocks in which
the masks of a file of `lacuna replay --dump-masks` keep anything, all pairs of each (benchcu --masks
measures ours; needs h5py). --ours: LIBRARY is build/gpu/libdense.so, which
`make gpu-bundle` builds; our kernel then takes part in the dense cases. N is for up to 32K tokens; half
as many samples are taken of 64K and a quarter of 128K.
"""
import argparse
import ctypes
import importlib
import json
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

LENGTHS = (4096, 8192, 16384, 32768, 65536, 131072)


class Case(ctypes.Structure):
    """struct dense_case of tests/bench/libdense.c."""
    _fields_ = ([(x, ctypes.c_int32) for x in ("heads", "kv_heads", "d", "causal")] +
                [("n", ctypes.c_int64)] + [(x, ctypes.c_void_p) for x in ("q", "k", "v", "out", "lse")])


class Ours:
    """Our kernel for a problem; calling it launches it."""

    def __init__(self, library, q, k, v, causal):
        self.lib, self.handle = library, ctypes.c_void_p()
        self.lib.dense_open.restype = self.lib.dense_launch.restype = ctypes.c_char_p
        self.out = torch.empty(*q.shape[:3], v.shape[3], device=q.device, dtype=q.dtype)
        lse = torch.empty(q.shape[:3], device=q.device)
        self.tensors = (q, k, v, self.out, lse)
        case = Case(q.shape[1], k.shape[1], q.shape[3], causal, q.shape[2],
                    *(x.data_ptr() for x in self.tensors))
        torch.cuda.synchronize()
        self.need(self.lib.dense_open(ctypes.byref(case), ctypes.byref(self.handle)))

    @staticmethod
    def need(error):
        if error:
            raise RuntimeError(error.decode())

    def __call__(self):
        self.need(self.lib.dense_launch(self.handle))
        return self.out

    def __del__(self):
        self.lib.dense_close(self.handle)


def warm_up(runs):
    end = time.monotonic() + 0.3
    while True:
        for run in runs.values():
            run()
        torch.cuda.synchronize()
        if time.monotonic() >= end:
            break


def timed(run):
    """Events around a launch."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    return begin, end


def samples_of(runs, matmul, rounds):
    """{name: (samples of the product in ms, of the kernel)}, taken in turns."""
    marks = {name: ([], []) for name in runs}
    for i in range(rounds):
        for name in list(runs)[::-1 if i % 2 else 1]:
            marks[name][0].append(timed(matmul))
            marks[name][1].append(timed(runs[name]))
    torch.cuda.synchronize()
    spans = lambda pairs: [begin.elapsed_time(end) for begin, end in pairs]
    return {name: (spans(top), spans(got)) for name, (top, got) in marks.items()}


def rank(x, share):
    """Nearest rank, as in timer.h."""
    return sorted(x)[max(0, -int(-share * len(x) // 1) - 1)]


def lines(args, text, runs, matmul, flop, rounds):
    """Measure the kernels (name, launch) of a case and print a line each."""
    able, apart, first = {}, {}, None
    for name, run in runs:
        try:
            out = run()
            torch.cuda.synchronize()
            first = out if first is None else first
            apart[name] = ((out - first).float().norm() / first.float().norm()).item()
            able[name] = run
        except RuntimeError as error:
            print(f"{text:28} {name:18} not available: {str(error).splitlines()[0][:60]}")
    del first, out
    warm_up(able)
    spans = samples_of(able, matmul, rounds)
    product = rank([x for top, _ in spans.values() for x in top], 0.5)
    tops = 2 * 8192**3 / product * 1e-9
    for name, (top, got) in spans.items():
        q1, mid, q3 = (rank(got, x) for x in (0.25, 0.5, 0.75))
        speed = flop / mid * 1e-9
        print(f"{text:28} {name:18} {mid * 1e3:10.1f} us {q1 * 1e3:9.1f} {q3 * 1e3:9.1f} "
              f"{speed:8.1f} {tops:8.1f} {speed / tops:6.3f} {apart[name]:8.1e}", flush=True)
        if args.raw:
            args.raw.write(json.dumps({"name": f"{text} {name}", "flop": flop,
                                       "ns": [x * 1e6 for x in got],
                                       "product_ns": [x * 1e6 for x in top]}) + "\n")
            args.raw.flush()


def tensors(n, d, heads, kv, dv=None):
    make = lambda h, d: torch.randn(1, h, n, d, device="cuda", dtype=torch.bfloat16)
    return make(heads, d), make(kv, d), make(kv, dv or d)


def flash_attention_3():
    """Its forward operator: q, k, v of (batch, tokens, heads, d); None when not installed."""
    for module in ("flash_attn_3._C", "xformers.flash_attn_3._C"):
        try:
            importlib.import_module(module)
            return torch.ops.flash_attn_3.fwd
        except (ImportError, OSError, AttributeError):
            continue
    return None


def dense_peers(q, k, v, causal, n, fa3, ours):
    """(name, launch) of each kernel for a problem, operands as it likes them."""
    group = q.shape[1] // k.shape[1]
    wide = [x.repeat_interleave(group, 1) for x in (k, v)]

    def by_sdpa(backend):
        def run():
            with sdpa_kernel(backend):
                return sdpa(q, *wide, is_causal=causal)
        return run

    if ours:
        yield "lacuna", Ours(ours, q, k, v, causal)
    if fa3:
        rows = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
        yield ("flash-attention-3",
               lambda: fa3(*rows, is_causal=causal, num_splits=1)[0].transpose(1, 2))
    yield "cudnn", by_sdpa(SDPBackend.CUDNN_ATTENTION)
    if n == 32768:
        yield "flash-attention-2", by_sdpa(SDPBackend.FLASH_ATTENTION)


def dense(args, matmul):
    fa3, ours = flash_attention_3(), ctypes.CDLL(args.ours) if args.ours else None
    if not fa3:
        print("FlashAttention-3: not installed (flash_attn_3 or xformers); its lines are left out")
    for n in LENGTHS:
        for d, dv in ((128, 128), (64, 64), (96, 96), (192, 128), (256, 256)):
            for causal in (False, True):
                heads, kv = (32, 8) if causal else (16, 16)
                text = f"hd{d} {n // 1024}K {'causal' if causal else 'full'} {heads}/{kv}"
                if args.only and args.only not in text:
                    continue
                q, k, v = tensors(n, d, heads, kv, dv)
                flop = 2 * (d + dv) * heads * (n * (n + 1) / 2 if causal else n * n)
                rounds = max(3, args.samples * 32768 // max(n, 32768))
                lines(args, text, dense_peers(q, k, v, causal, n, fa3, ours), matmul, flop, rounds)


def flex_line(args, matmul, text, keep, d=128):
    """FlexAttention over keep [heads][blocks][blocks] of 128 x 128 pairs, each of them whole."""
    from torch.nn.attention.flex_attention import BlockMask, flex_attention
    if args.only and args.only not in text:
        return
    compiled = torch.compile(flex_attention)
    heads, blocks = keep.shape[:2]
    q, k, v = tensors(128 * blocks, d, heads, heads)
    count = keep[None].sum(-1).to(torch.int32)
    order = torch.argsort(keep[None].to(torch.int8), dim=-1, descending=True, stable=True)
    none = torch.zeros_like(count)
    mask = BlockMask.from_kv_blocks(none, order.to(torch.int32), count, order.to(torch.int32),
                                    BLOCK_SIZE=128)
    flop = 4 * d * 128 * 128 * float(count.sum())
    lines(args, text, [("flex-attention", lambda: compiled(q, k, v, block_mask=mask))], matmul, flop,
          args.samples)


def flex(args, matmul):
    for share in (1.0, 0.5, 0.25, 0.1):
        keep = torch.rand(16, 256, 256, device="cuda") < share
        flex_line(args, matmul, f"hd128 32K list 128x128 {100 * share:.0f}%", keep)


def real_masks(path, most=16):
    """(setting, keep [heads][blocks][blocks], causal) of each method with parameters in a file of dumped
    masks (doc/trace-format.md, section 7), of its first heads: blocks of 128 x 128 with a kept pair."""
    import h5py
    import numpy
    sets = {}
    with h5py.File(path) as f:
        for i in range(int(f["cells"].attrs["count"])):
            cell = f[f"cells/{i // 1000:03d}/{i:06d}"]
            text = lambda key: (lambda x: x.decode() if isinstance(x, bytes) else str(x))(cell.attrs[key])
            name = text("method") + (":" + text("params") if text("params") else "")
            n, bq, bk = (int(cell.attrs[key]) for key in ("nq", "bq", "bk"))
            if text("form") != "lists" or n != int(cell.attrs["nk"]) or n % 128:
                print(f"{name}: form {text('form')} of {n} queries, lists of whole blocks are expected")
                continue
            row, col = cell["row_ptr"][:], cell["col"][:].astype(numpy.int64)
            group = numpy.repeat(numpy.arange(len(row) - 1), numpy.diff(row))
            keep = numpy.zeros((n // 128, n // 128), bool)
            for dq in range(0, bq, min(bq, 128)):
                for dk in range(0, bk, min(bk, 128)):
                    keep[(group * bq + dq) // 128, (col * bk + dk) // 128] = True
            sets.setdefault((name, n, bool(cell.attrs["causal"])), []).append(keep)
    for (name, n, causal), keeps in sets.items():
        yield name, numpy.stack(keeps[:most]), causal


def flex_masks(args, matmul):
    for name, keep, causal in real_masks(args.masks):
        blocks = keep.shape[1]
        share = keep.sum() / (len(keep) * (blocks * (blocks + 1) / 2 if causal else blocks * blocks))
        flex_line(args, matmul, f"hd128 {blocks // 8}K mask 128x128 {100 * share:.1f}% {name}",
                  torch.from_numpy(keep).cuda())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--raw", type=argparse.FileType("w"))
    parser.add_argument("--ours", metavar="LIBRARY")
    parser.add_argument("--masks", metavar="MASKS")
    parser.add_argument("only", nargs="?")
    args = parser.parse_args()
    torch.manual_seed(1)
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    matmul = lambda: torch.mm(a, b.t())
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, "
          f"cuDNN {torch.backends.cudnn.version()}")
    print(f"{'case':28} {'kernel':18} {'median':>13} {'q1':>9} {'q3':>9} {'TFLOP/s':>8} "
          f"{'product':>8} {'ratio':>6} {'l2':>8}")
    with torch.no_grad():
        if args.masks:
            flex_masks(args, matmul)
        else:
            dense(args, matmul)
            flex(args, matmul)


if __name__ == "__main__":
    main()
