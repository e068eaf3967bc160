"""Numbers of MInference and FlexPrefill on bidirectional heads: tests/unit/test_bidirectional.c has this output.

    python3 tests/data/bidirectional.py tests/data/video-dit-a.safetensors      # NumPy, safetensors

Written from the pages doc/methods/minference.md and flexprefill.md, as matrices of all pairs, in double precision.
"""
import sys

import numpy as np
from safetensors.numpy import load_file

data = load_file(sys.argv[1])
N = 384


def best(score, count, forced):
    s = score.copy()
    s[:forced] = np.inf
    return np.argsort(-s, kind="stable")[:count]


def head(step, layer, h):
    q, k = (data[f"step{step}.layer{layer}.{x}"][h].astype(float) for x in "qk")
    s = q @ k.T / np.sqrt(128)
    p = np.exp(s - s.max(1, keepdims=True))
    return q, k, p / p.sum(1, keepdims=True)


i, j = np.arange(N)[:, None], np.arange(N)[None, :]


def sums(p, rows):
    last = p[-rows:].astype(np.float32).astype(float)
    distance = abs(i - j)[-rows:]
    return last.sum(0), np.bincount(distance.ravel(), last.ravel(), N)


def minference(p, v, s, force_v, force_s):
    col, slash = sums(p, 64)
    cols, dists = best(col, v, force_v), best(slash, s, force_s)
    requested = np.isin(j, cols) | np.isin(abs(i - j), dists)
    realised = np.zeros((N, N), bool)
    blocks = columns = 0
    for m in range(0, N, 64):
        need = np.zeros(N, bool)
        for d in dists:
            for sign in (-1, 1):
                lo, hi = max(m + sign * d, 0), min(m + 64 + sign * d, N)
                need[lo:max(hi, lo)] = True
        at, covered = 0, np.zeros(N + 64, bool)
        while at < N:  # a block begins at the first key that is needed and not covered
            if need[at] and not covered[at]:
                covered[at:at + 64] = True
                blocks += 1
                at += 64
            else:
                at += 1
        left = [c for c in cols if not covered[c]]
        columns += len(left)
        covered[left] = True
        realised[m:m + 64] = covered[:N]
    return requested, realised, blocks, columns


def pooled(x, b):
    return np.stack([x[r:r + b].mean(0) for r in range(0, N, b)])


def minference_blocks(q, k, top):
    score = pooled(q, 64) @ pooled(k, 64).T
    keep = np.zeros(score.shape, bool)
    for r in range(len(score)):
        keep[r, np.argsort(-score[r], kind="stable")[:top]] = True
    return keep.repeat(64, 0).repeat(64, 1)


def flexprefill(q, k, p, b, gamma, tau, min_budget, paper):
    nb, mb = N // b, max(1, -(-min_budget // b))
    ver, sla = (x / b for x in sums(p, b))
    vb = ver.reshape(nb, b).sum(1)
    db = sla.reshape(nb, b).sum(1)  # N is a multiple of b: bins are block diagonals
    est = pooled(k, b) @ q[-b:].mean(0) / np.sqrt(128)
    est = np.exp(est - est.max())
    est /= est.sum()
    m = (est + vb) / 2
    js = np.sqrt((est * np.log(est / m)).sum() / 2 + (vb * np.log(vb / m)).sum() / 2)
    aware = js < tau

    def count(x):
        c = np.cumsum(np.sort(x)[::-1])
        return (c < gamma).sum() + 1 if paper else (c <= gamma).sum() + 1

    keep = np.eye(nb, dtype=bool)
    bi, bj = np.arange(nb)[:, None], np.arange(nb)[None, :]
    tv, ts = count(ver), count(sla)
    if not paper:
        kv, ks = ((mb, mb) if aware else (min(nb, max(mb, t // 128 + 1)) for t in (tv, ts)))
        vb2, db2 = vb.copy(), db.copy()
        vb2[0] = db2[0] = np.inf
        keep |= np.isin(bj, np.argsort(-vb2, kind="stable")[:kv])
        keep |= np.isin(abs(bi - bj), np.argsort(-db2, kind="stable")[:ks])
    elif not aware:
        keep |= np.isin(bj, np.argsort(-ver, kind="stable")[:max(tv, min_budget)] // b) | (bj == 0)
        for d in np.argsort(-sla, kind="stable")[:max(ts, min_budget)]:
            keep |= abs(bi - bj) == d // b
            if d % b:
                keep |= abs(bi - bj) == d // b + 1
    if aware:
        w = pooled(q, b) @ pooled(k, b).T / np.sqrt(128)
        w = np.exp(w - w.max(1, keepdims=True))
        w = (w / w.sum(1, keepdims=True)).ravel()
        order = np.argsort(-w, kind="stable")
        c = np.cumsum(w[order])
        n = (c < gamma * nb).sum() + 1 if paper else (c <= gamma * nb).sum()
        keep.ravel()[order[:n]] = True
    return keep.repeat(b, 0).repeat(b, 1), js


def line(name, mask, p, *more):
    print(f'{{"{name}", {int(mask.sum())}, {(p * mask).sum(1).mean():.9f}' + "".join(f", {x}" for x in more) + "},")


for step, layer, h in ((3, 5, 0), (0, 0, 1)):
    q, k, p = head(step, layer, h)
    print(f"step {step}, layer {layer}, head {h}")
    text = "minference:v=24:s=16:force_cols=4:force_dists=3:min_v=1:min_s=1"
    requested, realised, blocks, columns = minference(p, 24, 16, 4, 3)
    line(text + ":mask=requested", requested, p, -1, -1)
    line(text, realised, p, blocks, columns)
    line("minference:pattern=block:top=2", minference_blocks(q, k, 2), p, -1, -1)
    for text, paper in (("flexprefill:block=64:min_budget=0:gamma=", 0), ("flexprefill:block=32:min_budget=64:profile=paper:gamma=", 1)):
        for gamma, tau in ((0.7, 0), (0.8, 0.8326)):
            mask, js = flexprefill(q, k, p, 32 if paper else 64, gamma, tau, 64 if paper else 0, paper)
            line(f"{text}{gamma}:tau={tau}", mask, p, f"{js:.9f}", -1)
