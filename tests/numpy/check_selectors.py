"""check_selectors.py DIR: masks of selectors, pair by pair, against the same rules in NumPy.

Writes arrays into DIR, lets $LACUNA import and replay them, and reads the dumped masks. Data are
random, or made so that ties and edges decide: small whole numbers, whose products are exact, equal
keys, zeros. Written from the published rules (doc/methods); nothing of it is lacuna's.
"""
import os
import subprocess
import sys

import h5py
import numpy as np

SCALE = 0.25  # of 16 dimensions


def allowed(h):
    i, j = np.arange(h.nq)[:, None] + h.nk - h.nq, np.arange(h.nk)[None, :]
    return (j <= i) if h.causal else np.ones((h.nq, h.nk), bool)


class Head:
    def __init__(self, q, k, causal, grid):
        self.q, self.k, self.causal, self.grid = q.astype(np.float64), k.astype(np.float64), causal, grid
        self.nq, self.nk = len(q), len(k)
        self.allowed = allowed(self)

    def scores(self):
        return np.where(self.allowed, self.q @ self.k.T * SCALE, -np.inf)


def whole(blocks, h, bq, bk):
    """Pairs of the blocks that are kept."""
    return blocks.repeat(bq, 0)[:h.nq].repeat(bk, 1)[:, :h.nk] & h.allowed


def skip_softmax(h, lam=1e-3, rows=128, calib=False):
    s, keep = h.scores(), np.zeros((h.nq, h.nk), bool)
    for r in range(0, h.nq, rows):
        tile = s[r:r + rows]
        most = np.full(len(tile), -np.inf)
        for c in range(0, h.nk, 128):
            if not h.allowed[r:r + rows, c:c + 128].any():
                break
            top = tile[:, c:c + 128].max(1)
            below = top - np.maximum(most, top) <= np.log(lam) if calib else top - most < np.log(lam)
            if not below.all():
                keep[r:r + rows, c:c + 128] = True
                most = np.maximum(most, top)
    return keep & h.allowed


def nm(h, n=2, m=4, sink=0, recent=64):
    """Scores are compared one by one: the number of those before a key in its group decides."""
    s, at = h.scores(), np.arange(h.nq)[:, None] + h.nk - h.nq
    keep = np.zeros((h.nq, h.nk), bool)
    for a in range(h.nk):
        group = range(a // m * m, min(a // m * m + m, h.nk))
        before = sum((s[:, b] > s[:, a]) | ((s[:, b] == s[:, a]) & (b < a) & (m == 4)) for b in group)
        keep[:, a] = before < n
    distance = at - np.arange(h.nk)
    return (keep | (np.arange(h.nk) < sink) | ((distance >= 0) & (distance < recent))) & h.allowed


# setting -> (its rule, whether heads are causal: None both)
SETTINGS = {
    "skip-softmax:lambda=0.1": (lambda h: skip_softmax(h, 0.1), None),
    "skip-softmax:lambda=0.3:unit=64x128": (lambda h: skip_softmax(h, 0.3, 64), None),
    "skip-softmax:lambda=0.7:unit=64x128:profile=calib": (lambda h: skip_softmax(h, 0.7, 64, True), None),
    "skip-softmax:scale_factor=150": (lambda h: skip_softmax(h, 150 / h.nk), None),
    "nm": (nm, None),
    "nm:n=1:recent=0": (lambda h: nm(h, 1, recent=0), None),
    "nm:n=3:m=8:sink=5:recent=3": (lambda h: nm(h, 3, 8, 5, 3), None),
}


def data(kind, n, d, rng):
    if kind == "whole numbers":
        return rng.integers(-2, 3, (n, d)).astype(np.float32)
    if kind == "equal keys":
        return np.tile(rng.integers(-2, 3, (1, d)), (n, 1)).astype(np.float32)
    if kind == "zeros":
        return np.zeros((n, d), np.float32)
    level = rng.random((-(-n // 64), 1)).repeat(64, 0)[:n]
    return (2 * level + 0.5 * rng.normal(size=(n, d))).astype(np.float32)


def heads(rng):
    """(name, q, k, causal, grid)"""
    for kind in ("levels of blocks", "whole numbers", "equal keys", "zeros"):
        for nq, nk, causal, grid in ((517, 517, True, None), (300, 430, True, None), (450, 450, False, None)):
            q = data("whole numbers" if kind == "equal keys" else kind, nq, 16, rng)
            yield f"{kind} {nq}x{nk}", q, data(kind, nk, 16, rng), causal, grid


def dumped(cell, h):
    """A dumped mask as booleans [query][key], in the method's order."""
    a = {k: v.decode() if isinstance(v, bytes) else v for k, v in cell.attrs.items()}
    if a["form"] == "full":
        return h.allowed
    ptr, col, bq, bk = cell["row_ptr"][:], cell["col"][:], int(a["bq"]), int(a["bk"])
    units = np.zeros((len(ptr) - 1, -(-h.nk // bk)), bool)
    units[np.repeat(np.arange(len(ptr) - 1), np.diff(ptr)), col] = True
    return whole(units, h, bq, bk)


def masks(path, h):
    """{"method:params": booleans}"""
    found = {}
    with h5py.File(path) as f:
        def visit(_, cell):
            if isinstance(cell, h5py.Group) and "form" in cell.attrs:
                text = (cell.attrs[a] for a in ("method", "params"))
                found[":".join(t for t in (t.decode() if isinstance(t, bytes) else t for t in text) if t)] = dumped(cell, h)
        f.visititems(visit)
    return found


def run(*args):
    said = subprocess.run([os.environ.get("LACUNA", "build/lacuna"), *args, "-q", "--force"], capture_output=True, text=True)
    if said.returncode:
        sys.exit(said.stderr)


def compare(directory, name, q, k, causal, grid, kept):
    """Wrong masks of a head; the shares of pairs that its masks keep go to kept."""
    at = lambda f: os.path.join(directory, f)
    for n, x in (("q", q), ("k", k), ("v", k)):
        np.save(at(n + ".npy"), x[None])
    run("import", *(a for n in "qkv" for a in ("--" + n, at(n + ".npy"))), "--causal" if causal else "--no-causal",
        *(("--grid", grid) if grid else ()), "-o", at("t.h5"))
    mine = {s: rule for s, (rule, which) in SETTINGS.items() if which in (None, causal)}
    run("replay", at("t.h5"), *(a for s in mine for a in ("-m", s)), "--precision", "f64", "--dump-masks", at("m.h5"), "-o", at("r"))
    h, bad = Head(q, k, causal, grid), 0
    found = masks(at("m.h5"), h)
    for s, rule in mine.items():
        want = rule(h)
        differ = int((found[s] != want).sum())
        kept.setdefault(s, []).append(want.sum() / h.allowed.sum())
        if differ:
            print(f"WRONG: {name}, {s}: {differ} of {h.allowed.sum()} pairs differ")
        bad += differ > 0
    return bad


def main(directory):
    kept, bad = {}, 0
    for head in heads(np.random.default_rng(42)):
        bad += compare(directory, *head, kept)
    for s, shares in kept.items():
        print(f"{s}: {len(shares)} heads, keeps {min(shares):.3f} to {max(shares):.3f}")
        if min(shares) == 1:
            print("WRONG: it keeps everything, which shows nothing")
            bad += 1
    return bad > 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
