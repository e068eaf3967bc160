"""check_rows.py LACUNA DIR: the masks of the row-wise methods of decoding (quest, ds, twilight) against their rules.

Random, tied and degenerate heads are imported, replayed with dumped masks and compared, pair by pair, with the rules as
the published code states them (doc/methods/). Nothing of it is lacuna's.
"""
import os
import subprocess
import sys

import h5py
import numpy as np

F = np.float32


def best(score, n):
    """Indices of the n largest, of equal ones the lower."""
    return np.sort(np.argsort(-score, kind="stable")[:max(n, 0)])


def bounds(q, k, page, half=False):
    """Largest possible q . k of every page of the keys k."""
    out = []
    for at in range(0, len(k), page):
        low, high = k[at:at + page].min(0), k[at:at + page].max(0)
        if half:
            low, high = low.astype(np.float16), high.astype(np.float16)
        out.append(np.maximum(q * low.astype(float), q * high.astype(float)).sum())
    return np.array(out)


def tokens(pages, page, n):
    return np.array([t for p in pages for t in range(p * page, min((p + 1) * page, n))], int)


def quest(q, k, page=16, budget=1024, profile="eval", floor=3):
    n, b = -(-len(k) // page), budget // page
    if profile == "eval":
        return tokens(best(bounds(q, k, page), max(floor, b)), page, len(k))
    if n <= b:
        return np.arange(len(k))
    rest = bounds(q, k, page, profile == "kernel")[:-1]
    return tokens([*best(rest, b - 1 if profile == "kernel" else b), n - 1], page, len(k))


def quantised(x, bits):
    """A token's values on the grid between its extremes."""
    if bits >= 16:
        return x
    low, high = x.min(1, keepdims=True), x.max(1, keepdims=True)
    step = (high - low) / F(2**bits - 1)
    with np.errstate(all="ignore"):
        code = np.clip(np.rint((x - low) / step), 0, F(2**bits - 1))
        return np.where(step > 0, low + code * step, x)


def channels(q, k, factor=4):
    """Those with the largest mean |q k| of pairs of one position."""
    own = k[len(k) - len(q):].astype(float)
    return best(np.abs(q * own).mean(0), max(1, q.shape[1] // factor))


def products(q, k):
    """Equal keys have equal products, which those of a BLAS need not be."""
    return (k.astype(float) * q.astype(float)).sum(1)


def ds(q, k, c, budget=128, bits=4):
    return best(products(q[c], quantised(k[:, c], bits)), budget)


def threshold(m, first, p):
    low, high = F(0), F(first)
    while True:
        mid = F((low + high) / F(2))
        a = min([x for x in m if x > low] + [high])
        b = max([x for x in m if x <= high] + [low])
        if m[m > mid].astype(float).sum() >= p:
            low = mid
        else:
            high = min(mid, b)
        if b - a <= F(1e-5):
            return low


def twilight(q, k, scale, chosen, p=0.85, bits=4, profile="official"):
    s = scale * products(q, quantised(k, bits)[chosen])
    e = np.exp(s - s.max())
    m = (e / e.sum()).astype(F)
    if profile == "official":
        return chosen[m > threshold(m, m[0] if chosen[0] == 0 else 0, p)]
    order = np.argsort(-m, kind="stable")
    n = int((np.cumsum(m[order].astype(float)) < p).sum()) + 1
    return np.sort(chosen[order[:n]])


RULES = {
    "quest:dense_layers=0:budget=64": lambda q, k, c, s: quest(q, k, budget=64),
    "quest:dense_layers=0:budget=40:floor=1:page=20": lambda q, k, c, s: quest(q, k, 20, 40, floor=1),
    "quest:dense_layers=0:budget=64:profile=kernel": lambda q, k, c, s: quest(q, k, 16, 64, "kernel"),
    "quest:budget=32:profile=frontier:page=8": lambda q, k, c, s: quest(q, k, 8, 32, "frontier"),
    "ds:budget=20": lambda q, k, c, s: ds(q, k, c, 20),
    "ds:budget=7:label_bits=16": lambda q, k, c, s: ds(q, k, c, 7, 16),
    "ds:budget=9:channels=1+4+23": lambda q, k, c, s: ds(q, k, [1, 4, 23], 9),
    "twilight:dense_layers=0:budget=70": lambda q, k, c, s: twilight(
        q, k, s, tokens(best(bounds(q, k, 16), 5), 16, len(k))),
    "twilight:dense_layers=0:select=ds:budget=40:p=0.5": lambda q, k, c, s: twilight(q, k, s, ds(q, k, c, 40), 0.5),
    "twilight:dense_layers=0:select=all:bits=16:p=0.6": lambda q, k, c, s: twilight(q, k, s, np.arange(len(k)), 0.6, 16),
    "twilight:dense_layers=0:select=all:profile=exact:p=0.6": lambda q, k, c, s: twilight(
        q, k, s, np.arange(len(k)), 0.6, 4, "exact"),
}


def heads(rng):
    """name, q [nq][24], k [150][24]"""
    def normal(n):
        return rng.standard_normal((n, 24)).astype(F)
    yield "normal", 2 * normal(150), normal(150)
    yield "the last rows", 2 * normal(40), normal(150)
    yield "ties", rng.integers(-1, 2, (150, 24)).astype(F), rng.integers(-1, 2, (150, 24)).astype(F)
    yield "equal keys", normal(150), np.repeat(normal(1), 150, 0)
    yield "zero queries", 0 * normal(150), normal(150)
    spikes = normal(150)
    spikes[::13] *= 40
    yield "spikes", normal(150), spikes
    sink = normal(150)
    sink[0] = 3
    yield "a sink", np.abs(normal(150)), sink


def expand(cell):
    """A dumped mask as booleans [query][key]."""
    a = dict(cell.attrs)
    nq, nk, bk = int(a["nq"]), int(a["nk"]), int(a["bk"])
    seen = np.arange(nk)[None, :] <= np.arange(nq)[:, None] + nk - nq
    if a["form"] != b"lists":
        return seen
    keep, ptr, col = np.zeros((nq, nk), bool), cell["row_ptr"][:], cell["col"][:]
    for i in range(nq):
        for u in col[ptr[i]:ptr[i + 1]]:
            keep[i, u * bk:(u + 1) * bk] = True
    return keep & seen


def main(lacuna, where):
    bad = 0
    for name, q, k in heads(np.random.default_rng(7)):
        base = os.path.join(where, name.replace(" ", "-"))
        for x, t in (("q", q), ("k", k), ("v", k)):
            np.save(f"{base}-{x}.npy", t[None])
        files = [w for x in "qkv" for w in (f"--{x}", f"{base}-{x}.npy")]
        subprocess.run([lacuna, "import", "-q", *files, "--causal", "-o", base + ".h5"], check=True, stdout=subprocess.DEVNULL)
        methods = [w for m in RULES for w in ("-m", m)]
        subprocess.run([lacuna, "replay", "-q", base + ".h5", *methods, "--dump-masks", base + "-m.h5", "-o", base], check=True,
                       stderr=subprocess.DEVNULL)
        found = {}
        with h5py.File(base + "-m.h5") as f:
            f["cells"].visititems(lambda _, g: found.update({key(g): expand(g)}) if "method" in g.attrs else None)
        scale = 1 / np.sqrt(24)
        own = channels(q, k)
        for text, rule in RULES.items():
            want = np.zeros((len(q), len(k)), bool)
            for i in range(len(q)):
                n = i + len(k) - len(q) + 1
                want[i, rule(q[i], k[:n], own, scale)] = True
            off = int((found[canonical(text)] != want).sum())
            if off:
                print(f"{name}: {text}: {off} pairs differ")
                bad += 1
    return bad


def canonical(text):
    method, _, params = text.partition(":")
    return method, frozenset(params.split(":"))


def key(cell):
    method, params = cell.attrs["method"].decode(), cell.attrs["params"].decode()
    return method, frozenset(params.split(":"))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) != 0)
