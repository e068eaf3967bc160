"""check_selectors.py DIR: masks of selectors, pair by pair, against the same rules in NumPy.

Writes arrays into DIR, lets $LACUNA import and replay them, and reads the dumped masks. Data are
random, or made so that ties and edges decide: small whole numbers, whose products are exact, equal
keys, zeros. Written from the published rules (doc/methods); nothing of it is lacuna's.
"""
import json
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
    """A query head of the group that shares k, its masks are compared. grid: TxHxW of a video; text:
    tokens in front of it (front) or behind it."""

    def __init__(self, group, k, causal, grid=None, text=0, front=False):
        self.group, self.q, self.k = group.astype(np.float64), group[1].astype(np.float64), k.astype(np.float64)
        self.causal, self.grid, self.text, self.front = causal, grid, text, front
        self.nq, self.nk = len(self.q), len(k)
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


def bf16(x):
    """float32 numbers, to nearest, ties to even."""
    u = np.asarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + (u >> 16 & 1)) & 0xFFFF0000).view(np.float32)


def mean(rows, factor=None):
    m = rows.mean(0).astype(np.float32)
    return bf16(m if factor is None else (m * np.float64(factor)).astype(np.float32)).astype(np.float64)


def best(scores, count):
    """The `count` largest, ties to the lower index."""
    keep = np.zeros(len(scores), bool)
    keep[np.argsort(-scores, kind="stable")[:count]] = True
    return keep


def pairs(blocks, rows, keys):
    """Pairs of the blocks that are kept; rows and keys have the numbers of their blocks."""
    return blocks[np.ix_(rows, keys)]


def tiles(h, shape, size):
    """(block of every token, which blocks are of video), in the order in which h was put."""
    t, y, x = (int(a) for a in h.grid.split("x"))
    cell = [np.arange(n) // a for n, a in zip((t, y, x), shape)]
    number = ((cell[0][:, None, None] * (cell[1][-1] + 1) + cell[1][:, None]) * (cell[2][-1] + 1) + cell[2]).ravel()
    video = np.sort(number, kind="stable")
    text = np.arange(h.text) // size
    label = np.concatenate([text, video + (text[-1] + 1 if h.text else 0)] if h.front else [video, text + video[-1] + 1])
    of = np.zeros(label[-1] + 1, bool)
    of[label[h.text:] if h.front else label[:t * y * x]] = True
    return label, of, np.argsort(number, kind="stable")


def reordered(h, perm):
    """Queries and keys with the video tokens of h in another order."""
    at = np.concatenate([np.arange(h.text), h.text + perm] if h.front else [perm, np.arange(len(perm), h.nq)])
    return h.q[at], h.k[at]


def vsa(h, sparsity=0.9, shape=(4, 4, 4), compete=False):
    label, video, perm = tiles(h, shape, int(np.prod(shape)))
    q, k = reordered(h, perm)
    n = len(video)
    qm, km = (np.array([mean(x[label == b]) for b in range(n)]) for x in (q, k))
    count = max(1, min(int(np.ceil((1 - sparsity) * video.sum())), video.sum()))
    keep = np.ones((n, n), bool)
    for i in np.flatnonzero(video):
        s = km @ qm[i]
        if compete:
            keep[i] = best(s, count + n - video.sum())
        else:
            keep[i, video] = best(s[video], count)
    return pairs(keep, label, label)


def sla(h, topk=0.1, bq=64, bk=64):
    k = bf16(h.k - mean(h.k)).astype(np.float64)
    rows, keys = np.arange(h.nq) // bq, np.arange(h.nk) // bk
    qm = np.array([mean(h.q[rows == b]) for b in range(rows[-1] + 1)])
    km = np.array([mean(k[keys == b]) for b in range(keys[-1] + 1)])
    return pairs(np.array([best(km @ a, int(topk * len(km))) for a in qm]), rows, keys)


def draft(h, sparsity=0.9):
    label, video, perm = tiles(h, (1, 8, 16), 128)
    q, k = reordered(h, perm)
    n, of = len(video), np.flatnonzero(video)
    qm, km = (np.array([mean(x[label == b]) for b in of]) for x in (q, k))
    s = qm @ km.T * SCALE
    p = np.exp(s - s.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    drop = int((1 - (1 - sparsity)) * p.size)
    keep = np.ones((n, n), bool)
    keep[np.ix_(of, of)] = p >= np.sort(p.ravel())[drop - 1] if 0 < drop < p.size else drop == 0
    return pairs(keep, label, label)


def subblock(h, sparsity=0.75, nq=4, nk=4):
    def cells(x, n, factor=None):
        return [[mean(x[i:min(i + 64 // n, b + 64)], factor) for i in range(b, min(b + 64, len(x)), 64 // n)] for b in range(0, len(x), 64)]
    qs, ks = cells(h.q, nq, SCALE * np.log2(np.e)), cells(h.k, nk)
    s = np.array([[np.logaddexp2.reduce((np.array(a) @ np.array(b).T).ravel()) for b in ks] for a in qs])
    count = min(len(ks), 8 * max(1, -(-int(np.ceil((1 - sparsity) * len(ks))) // 8)))
    return pairs(np.array([best(row, count) for row in s]), np.arange(h.nq) // 64, np.arange(h.nk) // 64)


def moba(h, chunk, topk):
    means = np.array([mean(h.k[a:a + chunk]) for a in range(0, h.nk, chunk)])
    keep = np.zeros((h.nq, len(means)), bool)
    for i, at in enumerate(range(h.nk - h.nq, h.nk)):
        gate = means @ h.q[i]
        gate[at // chunk] = np.inf
        gate[at // chunk + 1:] = -np.inf
        keep[i] = best(gate, topk)
    return pairs(keep, np.arange(h.nq), np.arange(h.nk) // chunk) & h.allowed


def sol(h, tau=1, exact=False, near=1, sink=(0, 0)):
    rows, keys = np.arange(h.nq) // 64, np.arange(h.nk) // 64
    kc = np.array([mean(h.k[keys == j]) for j in range(keys[-1] + 1)])
    qc = np.array([h.q[rows == i].mean(0) for i in range(rows[-1] + 1)])
    s = SCALE * np.log2(np.e) * qc @ kc.T
    var = s.var(1) if exact else (SCALE * np.log2(np.e)) ** 2 * qc ** 2 @ ((kc ** 2).mean(0) - kc.mean(0) ** 2)
    i, j = np.arange(len(qc))[:, None], np.arange(len(kc))
    keep = s > (s.mean(1) + tau * np.sqrt(np.maximum(var, 0) + 1e-6))[:, None]
    return pairs(keep | (abs(i - j) <= near) | (j >= sink[0] // 64) & (j < -(-sink[1] // 64)), rows, keys)


def touches(blocks, means, block, kernel, stride):
    """[block][mean]: how often a mean counts for a block."""
    w = np.zeros((blocks, means), int)
    for b in range(blocks):
        for m in range(block // stride):
            for n in range(kernel // stride):
                j = b * block // stride + m - n
                if 0 <= j < means:
                    w[b, j] += 1
    return w


assert touches(3, 5, 4, 4, 2).tolist() == [[2, 1, 0, 0, 0], [0, 1, 2, 1, 0], [0, 0, 0, 1, 2]]
assert touches(2, 12, 64, 32, 16)[:, :8].tolist() == [[2, 2, 2, 1, 0, 0, 0, 0], [0, 0, 0, 1, 2, 2, 2, 1]]


def nsa(h, profile, block, top, local=1, kernel=None, stride=None):
    kernel, stride = kernel or block, stride or block
    means = np.array([h.k[a:a + kernel].mean(0) for a in range(0, h.nk - kernel + 1, stride)])
    ends, keep = np.arange(len(means)) * stride + kernel - 1, np.zeros((h.nq, -(-h.nk // block)), bool)
    w = touches(keep.shape[1], len(means), block, kernel, stride)
    for i, at in enumerate(range(h.nk - h.nq, h.nk)):
        p = np.zeros(len(means))
        for q in h.group:
            s = means[ends <= at] @ q[i] * SCALE
            if len(s):
                p[ends <= at] += np.exp(s - s.max()) / np.exp(s - s.max()).sum()
        score = (w > 0) * p
        score = score.max(1) if profile == "infllm" else (w * p).sum(1)
        own = at // block
        if profile == "fla":
            score[own] = len(h.group)
        else:
            score[max(0, own - local + 1):own + 1] = score[0] = np.inf
        keep[i] = best(np.where(np.arange(len(score)) <= own, score, -np.inf), top)
    return pairs(keep, np.arange(h.nq), np.arange(h.nk) // block) & h.allowed


def every(h):
    return True


def causal(h):
    return h.causal


def bidirectional(h):
    return not h.causal


def video(h):
    return h.grid is not None


def patches(h):
    return video(h) and int(h.grid.split("x")[1]) % 8 == 0 and int(h.grid.split("x")[2]) % 16 == 0


# setting -> (its rule, the heads that it takes)
SETTINGS = {
    "skip-softmax:lambda=0.1": (lambda h: skip_softmax(h, 0.1), every),
    "skip-softmax:lambda=0.3:unit=64x128": (lambda h: skip_softmax(h, 0.3, 64), every),
    "skip-softmax:lambda=0.7:unit=64x128:profile=calib": (lambda h: skip_softmax(h, 0.7, 64, True), every),
    "skip-softmax:scale_factor=150": (lambda h: skip_softmax(h, 150 / h.nk), every),
    "nm": (nm, every),
    "nm:n=1:recent=0": (lambda h: nm(h, 1, recent=0), every),
    "nm:n=3:m=8:sink=5:recent=3": (lambda h: nm(h, 3, 8, 5, 3), every),
    "moba:chunk=32:topk=4:dense_last=0": (lambda h: moba(h, 32, 4), causal),
    "moba:chunk=50:topk=2:dense_last=0": (lambda h: moba(h, 50, 2), causal),
    "sol:dense_layers=0:dense_steps=0": (sol, bidirectional),
    "sol:tau=0.5:var=exact:near=0:sink_from=70:sink_to=130:compensate=0:dense_layers=0:dense_steps=0":
        (lambda h: sol(h, 0.5, True, 0, (70, 130)), bidirectional),
    "nsa:block=16:top=4": (lambda h: nsa(h, "triton", 16, 4, 2, 8, 4), causal),
    "nsa:profile=fla:block=32:top=3": (lambda h: nsa(h, "fla", 32, 3), causal),
    "nsa:profile=infllm:block=16:top=5:local=2:dense_below=0": (lambda h: nsa(h, "infllm", 16, 5, 2, 8, 4), causal),
    "vsa": (vsa, video),
    "vsa:sparsity=0.4:tile=4x8x8": (lambda h: vsa(h, 0.4, (4, 8, 8)), video),
    "vsa:sparsity=0.7:text=compete": (lambda h: vsa(h, 0.7, compete=True), video),
    "sla:topk=0.3": (lambda h: sla(h, 0.3), bidirectional),
    "sla:topk=0.5:block=128x64": (lambda h: sla(h, 0.5, 128), bidirectional),
    "sla:topk=0.5:block=64x128": (lambda h: sla(h, 0.5, 64, 128), bidirectional),
    "draft:sparsity=0.75": (lambda h: draft(h, 0.75), patches),
    "draft:sparsity=0.3": (lambda h: draft(h, 0.3), patches),
    "subblock:skip_first_steps=0:min_seq=0": (subblock, bidirectional),
    "subblock:nq=1:nk=8:skip_first_steps=0:min_seq=0": (lambda h: subblock(h, nq=1, nk=8), bidirectional),
}


def data(kind, n, d, rng):
    if kind == "whole numbers":
        return rng.integers(-2, 3, (n, d)).astype(np.float32)
    if kind == "equal keys":
        return np.tile(rng.integers(-2, 3, (1, d)), (n, 1)).astype(np.float32)
    if kind == "zeros":
        return np.zeros((n, d), np.float32)
    level = rng.random((-(-n // 64), 1)).repeat(64, 0)[:n]
    return bf16(2 * level + 0.5 * rng.normal(size=(n, d)))


def heads(rng):
    """(name, q of two heads and k, what Head takes beside them)"""
    shapes = [(517, 517, True), (300, 430, True), (450, 610, False), (630, 630, False, "7x9x10"), (1024, 1024, False, "4x16x16"),
              (809, 809, False, "6x8x16", 41, True), (898, 898, False, "5x8x16", 258, False)]
    for kind in ("levels of blocks", "whole numbers", "equal keys", "zeros"):
        for nq, nk, *more in shapes:
            q = np.array([data("whole numbers" if kind == "equal keys" else kind, nq, 16, rng) for _ in range(2)])
            yield f"{kind} {nq}x{nk}", q, data(kind, nk, 16, rng), more


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


def compare(directory, name, q, k, more, kept):
    """Wrong masks of a head; the shares of pairs that its masks keep go to kept."""
    at = lambda f: os.path.join(directory, f)
    h, bad = Head(q, k, *more), 0
    for n, x in (("q", q), ("k", k[None]), ("v", k[None])):
        np.save(at(n + ".npy"), x)
    run("import", *(a for n in "qkv" for a in ("--" + n, at(n + ".npy"))), "--causal" if h.causal else "--no-causal", "--dtype", "bf16",
        *(("--grid", h.grid, "--meta", json.dumps({"text_tokens": h.text, "text_place": ("front" if h.front else "back") if h.text else "none"})) if h.grid else ()),
        "-o", at("t.h5"))
    mine = {s: rule for s, (rule, takes) in SETTINGS.items() if takes(h)}
    run("replay", at("t.h5"), *(a for s in mine for a in ("-m", s)), "--precision", "f64", "--heads", "1", "--dump-masks", at("m.h5"), "-o", at("r"))
    found = masks(at("m.h5"), h)
    for s, rule in mine.items():
        want = rule(h)
        differ = int((found[s] != want).sum())
        kept.setdefault(s, []).append(want.sum() / h.allowed.sum())
        if differ:
            print(f"WRONG: {name}, {s}: {differ} of {h.allowed.sum()} pairs differ")
        bad += differ > 0
    return bad


def e4m3(x):
    step = 2.0 ** (np.maximum(np.frexp(x)[1] - 1, -6) - 3)
    return np.clip(np.rint(x / step) * step, -448, 448)


def fp8(x):
    scale = 2.0 ** np.ceil(np.log2(np.maximum(abs(x).max(-1, keepdims=True), np.float32(1e-4)) / np.float32(448)))
    return e4m3(x / scale) * scale


def dsa(a, h, topk, rounded=lambda x: x):
    iq, ik = (rounded(a[n].astype(np.float64)) for n in ("iq", "ik"))
    score = (np.maximum(iq @ ik[0].T, 0) * a["iw"].astype(np.float64)).sum(0)
    return np.array([best(np.where(h.allowed[i], score[i], -np.inf), topk) for i in range(h.nq)]) & h.allowed


def gates(q, k, empty):
    """Probabilities of blocks; beside those of k `empty` ones of key 0."""
    s = np.concatenate([k @ q / np.sqrt(len(q)), np.zeros(empty)])
    return np.exp(s - s.max()) / np.exp(s - s.max()).sum()


def seer(a, h, block, threshold=2e-3, nz=None, last_dense=2):
    q, k, n = a["gate_q"][1].astype(np.float64), a["gate_k"][0].astype(np.float64), -(-h.nk // block)
    keep = np.zeros((n, n), bool)
    for i in range(n):
        p = gates(q[i], k[:i + 1], 0)
        keep[i, :i + 1] = best(p, max(1, int((1 - np.sqrt(1 - nz)) * n))) if nz else p > threshold
        keep[i, :i + 1] |= i >= n - last_dense
    return whole(keep, h, block, block)


def seer_decode(a, h, block, threshold=2e-3, budget=None):
    q, k, first = a["tokens_q"][0].astype(np.float64), a["gate_k"][0].astype(np.float64), h.nq - a["tokens_q"].shape[1]
    keep = np.ones((h.nq, -(-h.nk // block)), bool)
    for i in range(first, h.nq):
        n, full = -(-(i + 1) // block), (i + 1) // block
        p = gates(q[i - first], k[:full], n - full)
        keep[i, :n] = (best(p, budget // block) if budget and n > budget // block else p > (0 if budget else threshold)) | (np.arange(n) == n - 1)
    return pairs(keep, np.arange(h.nq), np.arange(h.nk) // block) & h.allowed


# setting -> its rule
TRAINED = {
    "dsa:topk=17": lambda a, h: dsa(a, h, 17),
    "dsa:topk=60:emulate=fp8": lambda a, h: dsa(a, h, 60, fp8),
    "seer:threshold=0.09:block=16": lambda a, h: seer(a, h, 16, 0.09),
    "seer:nz=0.4:block=16:last_dense=0": lambda a, h: seer(a, h, 16, nz=0.4, last_dense=0),
    "seer:profile=decode:threshold=0.09:block=16": lambda a, h: seer_decode(a, h, 16, 0.09),
    "seer:profile=decode:budget=70:block=16": lambda a, h: seer_decode(a, h, 16, budget=70),
}


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, x in tensors.items():
        header[name] = {"dtype": "F32", "shape": x.shape, "data_offsets": [at, at := at + x.nbytes]}
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + b"".join(x.tobytes() for x in tensors.values()))


def trained(directory, kind, rng, kept):
    """Operands of an indexer and a gate, in the prefill and in the decode phase of the same tokens."""
    n, steps, bad = 203, 60, 0
    a = {"q": data(kind, 2 * n, 16, rng).reshape(2, n, 16), "k": data(kind, n, 16, rng)[None]}
    for name, heads, rows, d in (("iq", 5, n, 12), ("ik", 1, n, 12), ("iw", 5, n, 1), ("gate_q", 2, 13, 8), ("tokens_q", 1, steps, 8), ("gate_k", 1, 13, 8)):
        a[name] = (data(kind, heads * rows, d, rng) / 2).reshape(heads, rows, d).astype(np.float32)
    h, a["v"] = Head(a["q"], a["k"][0], True), a["k"]
    at = lambda f: os.path.join(directory, f)
    for phase, gate in (("prefill", "gate_q"), ("prefill", "tokens_q"), ("decode", "tokens_q")):
        mine = [s for s in TRAINED if s.startswith("dsa") or ("decode" in s) == (gate == "tokens_q")]
        write_safetensors(at("a.safetensors"), {"layer-00." + n.replace("tokens", "gate"): x for n, x in a.items() if n == gate or n[-2:] != "_q"})
        run("import", "--safetensors", at("a.safetensors"), "--causal", "-o", at("a.h5"),
            *(("--meta", json.dumps({"decode_from": n - steps})) if phase == "decode" else ()))
        run("replay", at("a.h5"), "--phase", phase, *(x for s in mine for x in ("-m", s)), "--dump-masks", at("m.h5"), "-o", at("r"))
        seen = Head(a["q"][:, n - steps:], a["k"][0], True) if phase == "decode" else h
        found = masks(at("m.h5"), seen)
        for s in mine:
            want = TRAINED[s](a, h)[h.nq - seen.nq:]
            kept.setdefault(s, []).append(want.sum() / seen.allowed.sum())
            differ = int((found[s] != want).sum())
            if differ:
                print(f"WRONG: {kind}, {phase}, {s}: {differ} of {seen.allowed.sum()} pairs differ")
            bad += differ > 0
    return bad


def main(directory):
    kept, bad, rng = {}, 0, np.random.default_rng(42)
    for head in heads(rng):
        bad += compare(directory, *head, kept)
    for kind in ("levels of blocks", "whole numbers", "equal keys", "zeros"):
        bad += trained(directory, kind, rng, kept)
    for s, shares in kept.items():
        print(f"{s}: {len(shares)} heads, keeps {min(shares):.3f} to {max(shares):.3f}")
        if min(shares) == 1:
            print("WRONG: it keeps everything, which shows nothing")
            bad += 1
    return bad > 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
