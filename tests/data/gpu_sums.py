#!/usr/bin/env python3
"""Sums in 16-bit types as GPU code forms them: the model behind the numbers in test_spargeattn.c,
test_svg2.c and test_flexprefill.c. Written from the sources that sim/blocks/gpusum.h names,
independently of the C code. Needs NumPy; prints every number that the tests hold.

    python3 tests/data/gpu_sums.py
"""
from math import ceil, log2

import numpy as np


def bf16(x):
    """Nearest bfloat16, ties to even, as float32."""
    u = np.asarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def fp16(x):
    return np.asarray(x, np.float16).astype(np.float32)


def running_sums(x, rows, rounded):
    """torch.cumsum on a GPU of one row of a tensor of `rows` rows."""
    n = len(x)
    threads = 2 ** min(max((9 + ceil(log2(n)) - ceil(log2(rows))) // 2, 4), 9)
    chunk = 2 * threads
    out = np.zeros(ceil(n / chunk) * chunk, np.float32)
    out[:n] = rounded(x)
    total = np.float32(0)
    a = np.arange(threads)
    for i in range(0, len(out), chunk):
        part = out[i:i + chunk]
        part[0] = rounded(part[0] + total)
        s = 1
        while s <= threads:
            start = a // s * 2 * s + s
            part[start + a % s] = rounded(part[start + a % s] + part[start - 1])
            s *= 2
        total = part[-1]
    return out[:n]


def fold(s):
    """s [warps][lanes][...]: lanes folded in half until one is left, then warps."""
    while s.shape[1] > 1:
        s = bf16(s[:, :s.shape[1] // 2] + s[:, s.shape[1] // 2:])
    while s.shape[0] > 1:
        s = bf16(s[:len(s) // 2] + s[len(s) // 2:])
    return s[0, 0]


def pooled_keys(x, block):
    """tl.sum over the tokens of a block x [rows][d], divided by rows."""
    rows, d = x.shape
    lanes = min(32, 256 // d, block)
    warps = min(4, block // lanes)
    p = np.zeros((block, d), np.float32)
    p[:rows] = x
    p = p.reshape(-1, warps * lanes, d)
    s = p[0]
    for tokens in p[1:]:
        s = bf16(s + tokens)
    return bf16(fold(s.reshape(warps, lanes, d)) / np.float32(rows))


def centroid_square(c):
    """tl.sum(c * c) where c lies in the accumulators of four warps: multiplications are fused into
    the additions, but for the first."""
    fma = lambda e, s: bf16(np.float32(float(c[e]) ** 2 + float(s)))
    s = np.zeros((4, 8), np.float32)
    for w in range(4):
        for g in range(8):
            own = [e for r in range(0, len(c), 64) for e in (r + 16 * w + g, r + 16 * w + g + 8)
                   if e < len(c)]
            if len(own) > 1:
                own[:2] = own[1::-1]
            for e in own:
                s[w, g] = fma(e, s[w, g])
    return fold(s)


def counts():
    n = 1000
    x = (np.float32(1) / (np.arange(n, dtype=np.float32) + np.float32(20)) / np.float32(4))
    bounds = (.3, .5, .7, .8, .9, .95)
    for rows in (1, 100, 1000, 100000):
        for name, f in (("bf16", bf16), ("fp16", fp16)):
            s = running_sums(x, rows, f)
            print("sums <= bound", rows, "rows", name, [int((s <= np.float32(b)).sum()) for b in bounds])
        s = running_sums(x, rows, bf16)
        print("entries up to the crossing", rows, "rows", [int((s <= bf16(b)).sum()) + 1 for b in bounds])
    s = np.cumsum(x.astype(np.float64)).astype(np.float32)
    print("float", [int((s <= np.float32(b)).sum()) for b in bounds])


def labels():
    n, k = 600, 48
    for d in (128, 64, 40):
        u = (np.arange(n * d, dtype=np.uint64) * np.uint64(2654435761) & np.uint64(0xFFFFFFFF)) >> np.uint64(24)
        x = ((u.astype(np.int64) - 128) / 32).astype(np.float32).reshape(n, d)
        c = x[np.arange(k) * 7]
        dots = (x.astype(np.float64) @ c.astype(np.float64).T).astype(np.float32)
        norms = {"bf16": (bf16(bf16(x * x).sum(1, dtype=np.float64).astype(np.float32)),
                          np.array([centroid_square(r) for r in c])),
                 "exact": ((x.astype(np.float64) ** 2).sum(1).astype(np.float32),
                           (c.astype(np.float64) ** 2).sum(1).astype(np.float32))}
        for name, (xs, cs) in norms.items():
            label = np.maximum(xs[:, None] + cs[None, :] - 2 * dots, np.float32(0)).argmin(1)
            print("labels", d, name, int(((np.arange(n) + 1) * label).sum()))


def eight_bits(n, d, salt):
    m = np.uint64(0xFFFFFFFF)
    v = (np.arange(n * d, dtype=np.uint64) + np.uint64(salt)) * np.uint64(2654435761) & m
    v = (v ^ (v >> np.uint64(15))) * np.uint64(2246822519) & m
    return (((v >> np.uint64(24)).astype(np.int64) - 100) / 32).astype(np.float32).reshape(n, d)


def checksum(x):
    bits = (np.ascontiguousarray(x).view(np.uint32) >> 16).astype(np.uint64).ravel()
    return int(((np.arange(len(bits), dtype=np.uint64) + np.uint64(1)) * bits).sum()) % 2 ** 32


def pools():
    for n, d, b in ((1000, 64, 128), (1024, 128, 128), (700, 32, 64), (500, 16, 32)):
        k, q, scale = eight_bits(n, d, 0), eight_bits(n, d, 77777), np.float32(1 / np.sqrt(d))
        kbar = np.array([pooled_keys(k[i:i + b], b) for i in range(0, n, b)])
        qbar = []
        for i in range(0, n, b):
            rows = q[i:i + b]
            mean = bf16((rows.sum(0, dtype=np.float64) / b).astype(np.float32))
            if len(rows) < b:
                mean = bf16(bf16(mean * np.float32(b)) / np.float32(len(rows)))
            qbar.append(bf16(mean * scale))
        last = bf16((bf16(q[n - b:] * scale).sum(0, dtype=np.float64) / b).astype(np.float32))
        z = bf16((kbar.astype(np.float64) @ last.astype(np.float64)).astype(np.float32))
        e = np.exp(z.astype(np.float64) - z.max())
        e /= e.sum()
        once = np.array([bf16(k[i:i + b].mean(0, dtype=np.float64).astype(np.float32))
                         for i in range(0, n, b)])
        print("pools", (n, b, d), checksum(kbar), checksum(np.array(qbar)), "%.9f %.9f" % (e[0], e[-1]),
              "other than rounded once: %.2f" % np.mean(kbar != once))


if __name__ == "__main__":
    counts()
    labels()
    pools()
