"""check_decode.py LACUNA DIR: the decode phase in NumPy, from the published rules alone.

Random and adversarial layers (equal scores, equal keys, groups of query heads) go through `lacuna
import` and `replay --phase decode`. What every step attended to comes from its dumped masks, and
each eviction is checked given the cache before it: forced keys stay, no key that left is worth more
than one that stayed, and among equal ones the lower position stays. Recall, errors and lost mass
are computed anew from the masks.
"""
import json
import os
import subprocess
import sys

import h5py
import numpy as np

D, PROMPT, STEPS, HEADS, GROUP = 16, 40, 13, 4, 2
N = PROMPT + STEPS
TOL = 1e-9
SETTINGS = {
    "snapkv": "by=snapkv:window=8:pool=5:capacity=20",
    "kvpress": "by=snapkv:profile=kvpress:window=8:capacity=20",
    "frontier": "by=snapkv:profile=frontier:window=16:pool=3:recent=6:capacity=20",
    "often": "by=snapkv:unit=group:window=4:pool=3:when=every:every=3:capacity=18",
    "adakv": "by=adakv:window=8:pool=3:capacity=20",
    "spread": "by=knorm:safe=0.5:capacity=15",
    "tova": "by=tova:capacity=20",
    "h2o": "by=h2o:capacity=20",
    "heads": "by=h2o:unit=head:capacity=12:recent=3",
    "streaming": "by=streaming:capacity=20",
    "knorm": "by=knorm:capacity=50%",
    "keydiff": "by=keydiff:capacity=15:when=step",
    "observed": "by=observed:capacity=15:when=every:every=4",
    "random": "by=random:capacity=15:sink=2:recent=3",
}
PROFILES = {"official": (32, 5, "head"), "kvpress": (64, 5, "group"), "frontier": (256, 21, "group")}


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def mix(x):
    mask = (1 << 64) - 1
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & mask
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & mask
    return x ^ x >> 31


def uniform(seed, counter):
    mask = (1 << 64) - 1
    inner = mix(mix(seed + 0x9E3779B97F4A7C15 & mask))
    return (mix(inner + 0x9E3779B97F4A7C15 * (counter + 1) & mask) >> 11) * 2.0**-53


class Rule:
    """A setting with its defaults resolved as the papers' code has them."""

    def __init__(self, text):
        p = dict(part.split("=") for part in text.split(":"))
        self.by = p["by"]
        votes = self.by in ("snapkv", "adakv")
        window, pool, unit = PROFILES[p.get("profile", "official")]
        self.window = 1 if self.by == "tova" else int(p.get("window", window))
        self.pool = 1 if self.by == "tova" else int(p.get("pool", pool))
        self.unit = p.get("unit", "layer" if self.by == "tova" else unit if votes else "group")
        frontier = votes and p.get("profile") == "frontier"
        self.sink = int(p.get("sink", 4 if self.by == "streaming" or frontier else 0))
        c = p["capacity"]
        self.capacity = int(np.ceil(PROMPT * float(c[:-1]) / 100)) if c[-1] == "%" else int(c)
        recent = self.window if votes else self.capacity // 2 if self.by == "h2o" else 0
        self.recent = min(int(p.get("recent", recent)), self.capacity - self.sink)
        self.safe = float(p.get("safe", 0.2 if self.by == "adakv" else 1))
        steps = self.by in ("tova", "h2o", "streaming")
        self.when = p.get("when", "step" if steps else "prompt")
        self.every = {"step": 1, "prompt": 0}.get(self.when, int(p.get("every", 512)))


class Layer:
    def __init__(self, q, k, v):
        self.k, self.v = k.astype(np.float64), v.astype(np.float64)
        s = np.einsum("hnd,hmd->hnm", q.astype(np.float64), np.repeat(self.k, GROUP, 0)) / 4
        self.s = np.where(np.tril(np.ones((N, N), bool)), s, -np.inf)

    def head_score(self, rule, h, cache, p, sums):
        """What head h says of the cached positions after the attention of the row at position p."""
        k = self.k[h // GROUP][cache]
        if rule.by in ("snapkv", "adakv", "tova"):
            rows = [np.exp(self.s[h, r, cache] - self.s[h, r, cache].max()) for r in range(p - rule.window + 1, p + 1)]
            score = np.sum([r / r.sum() for r in rows], 0)
            n = len(cache) - rule.recent if rule.recent >= rule.window and rule.pool > 1 else len(cache)
            padded = np.concatenate([np.zeros(rule.pool // 2), score[:n], np.zeros(rule.pool // 2)])
            score[:n] = np.convolve(padded, np.ones(rule.pool) / rule.pool, "valid")
            return score
        if rule.by == "h2o":
            return sums[h][cache]
        if rule.by == "observed":
            return sums[h][cache] / (p + 1 - cache)
        if rule.by == "knorm":
            return -np.linalg.norm(k, axis=1)
        if rule.by == "keydiff":
            unit = k / np.maximum(np.linalg.norm(k, axis=1, keepdims=True), 1e-300)
            anchor = unit.mean(0)
            return -unit @ anchor / max(np.linalg.norm(anchor), 1e-300)
        if rule.by == "random":
            return np.array([uniform(0, int(j)) for j in cache])
        return cache.astype(float)


def check_cut(score, stays, free, keep, exact):
    """Of the free keys `keep` of the best stay."""
    inside, out = np.flatnonzero(free & stays), np.flatnonzero(free & ~stays)
    assert len(inside) == min(keep, free.sum()), f"{len(inside)} keys stay, not {keep}"
    if len(inside) and len(out):
        cut = score[inside].min()
        assert score[out].max() <= cut + TOL, "a better key left"
        if exact:
            equal = free & (np.abs(score - cut) <= 1e-12 * abs(cut))
            assert not np.any(np.diff(stays[equal].astype(int)) > 0), "of equal keys a later one stayed"


def check_eviction(rule, scores, caches, stays):
    """One eviction of all caches: scores, positions and what stays, by cache."""
    if max(map(len, caches)) <= rule.capacity:
        assert all(s.all() for s in stays), "a cache that fits was cut"
        return
    exact = rule.by in ("tova", "knorm", "streaming", "random")
    rest, pool = 0, []
    for score, cache, stay in zip(scores, caches, stays):
        n = len(cache)
        forced = (np.arange(n) < rule.sink) | (np.arange(n) >= n - rule.recent)
        assert stay[forced].all(), "a forced key left"
        keep = max(0, min(rule.capacity, n) - forced.sum())
        if rule.safe == 1:
            check_cut(score, stay, ~forced, keep, exact)
            continue
        safe = int(keep * rule.safe)
        rest += keep - safe
        order = np.lexsort((np.arange(n), -np.where(forced, -np.inf, score)))[:safe]
        sure = score >= (score[order].min() + TOL if safe else np.inf)
        assert stay[sure & ~forced].all(), "a safe key left"
        pool.append((score, stay, ~forced, safe))
    if not pool:
        return
    assert sum((s & f).sum() for _, s, f, _ in pool) == rest + sum(p[3] for p in pool), "another total"
    out = max((score[f & ~s].max() for score, s, f, _ in pool if (f & ~s).any()), default=-np.inf)
    for score, s, f, safe in pool:
        weak = (f & s & (score < out - TOL)).sum()
        assert weak <= safe, "a worse key of another cache stayed"


def check_setting(layer, rule, kept):
    """kept [heads][STEPS][N]: the cache of each step."""
    share = 1 if rule.unit == "head" else GROUP
    sums = [np.where(np.isfinite(layer.s[h, :PROMPT, :]), layer.s[h, :PROMPT, :], -np.inf) for h in range(HEADS)]
    sums = [np.sum([softmax(row) for row in rows], 0) for rows in sums]
    caches = [np.arange(PROMPT) for _ in range(HEADS // share)]
    for t in range(-1, STEPS - 1):
        p = PROMPT + t
        if t >= 0:
            caches = [np.flatnonzero(kept[c * share, t]) for c in range(HEADS // share)]
            for h in range(HEADS):
                assert (kept[h, t] == kept[h // share * share, t]).all(), "heads of a cache differ"
                sums[h][caches[h // share]] += softmax(layer.s[h, p, caches[h // share]])
        after = [kept[c * share, t + 1] for c in range(len(caches))]
        assert all(a[p + 1] and not a[p + 2 :].any() for a in after), "the row's own key is missing"
        stays = [a[c] for a, c in zip(after, caches)]
        assert all(a[:p + 1].sum() == s.sum() for a, s in zip(after, stays)), "a key came back"
        due = rule.when != "every" if t < 0 else rule.every and (t + 1) % rule.every == 0
        if not due:
            assert all(s.all() for s in stays), "an eviction out of turn"
            continue
        scores = [np.mean([layer.head_score(rule, h, c, p, sums) for h in range(i * share, (i + 1) * share)], 0)
                  for i, c in enumerate(caches)]
        if rule.unit == "layer":
            scores = [np.mean(scores, 0)] * len(scores)
        check_eviction(rule, scores, caches, stays)


def check_record(layer, h, cache, kept, r):
    """cache: the heads that share it."""
    ref, out, recall, top = [], [], [], []
    for t in range(STEPS):
        s = layer.s[h, PROMPT + t]
        p = softmax(s)
        on = kept[t]
        ref.append(p @ layer.v[h // GROUP])
        recall.append(p[on].sum())
        out.append(p[on] @ layer.v[h // GROUP][on] / recall[-1])
        top.append(np.sort(p)[::-1][: on.sum()].sum())
    ref, out = np.array(ref), np.array(out)
    hot = [not kept[t][np.argsort(-layer.s[h, PROMPT + t], kind="stable")[:16]].all() for t in range(STEPS)]
    want = {
        "cra_mean": np.mean(recall), "cra_min": min(recall), "recall@token=3": recall[3],
        "cum_lost": 1 - np.mean(recall), "lost_max": 1 - min(recall), "hot_lost": np.mean(hot),
        "regret_topk": np.mean(top) - np.mean(recall), "cache_keys": kept.sum(1).mean(),
        "cra_drift": np.mean(recall[-3:]) - np.mean(recall[:3]),
        "err_l2_rel": np.sqrt(((out - ref) ** 2).sum() / (ref**2).sum()),
        "err_l1_rel": np.abs(out - ref).sum() / np.abs(ref).sum(),
        "reuse": np.mean([(kept[t] & kept[t - 1]).sum() / kept[t].sum() for t in range(1, STEPS)]),
    }
    if "regret_evict" in r:
        mass = np.mean([[softmax(row) for row in layer.s[i, PROMPT:]] for i in cache], 0)
        best = np.sort(mass[:, :PROMPT].sum(0))[::-1][: kept[0, :PROMPT].sum()].sum() + mass[:, PROMPT:].sum()
        want["regret_evict"] = (best - (mass * kept).sum()) / STEPS
    for name, x in want.items():
        assert abs(r[name] - x) <= 1e-6 * max(1, abs(x)), f"{name}: {r[name]}, not {x}"


def data(kind, rng):
    shape = (HEADS, N, D), (HEADS // GROUP, N, D)
    if kind == "equal":  # every score is the same
        q, k = np.zeros(shape[0]), rng.integers(-2, 3, shape[1])
    elif kind == "ties":  # few different scores, keys that repeat
        q, k = rng.integers(-1, 2, shape[0]), np.repeat(rng.integers(-1, 2, (HEADS // GROUP, (N + 2) // 3, D)), 3, 1)[:, :N]
    elif kind == "sharp":  # a row is nearly one key
        q, k = 12 * rng.standard_normal(shape[0]), rng.standard_normal(shape[1])
    else:
        q, k = rng.standard_normal(shape[0]) * 2, rng.standard_normal(shape[1])
    return [np.ascontiguousarray(x, np.float32) for x in (q, k, rng.standard_normal(shape[1]))]


def load_masks(path):
    """{(method's parameters, head): [STEPS][N]}"""
    found = {}
    with h5py.File(path) as f:
        def visit(_, cell):
            if isinstance(cell, h5py.Group) and "form" in cell.attrs:
                m = np.zeros((STEPS, N), bool)
                ptr, col = cell["row_ptr"][:], cell["col"][:]
                for t in range(STEPS):
                    m[t, col[ptr[t] : ptr[t + 1]]] = True
                found[cell.attrs["params"].decode(), int(cell.attrs["head"])] = m
        f.visititems(visit)
    return found


def check(lacuna, folder, kind):
    tensors = data(kind, np.random.default_rng(5))
    for name, x in zip("qkv", tensors):
        np.save(f"{folder}/{name}.npy", x)
    args = [f"--{n}={folder}/{n}.npy" for n in "qkv"]
    subprocess.run([lacuna, "import", *args, "--causal", "--name", kind, "--meta", json.dumps({"decode_from": PROMPT}),
                    "-q", "--force", "-o", f"{folder}/{kind}.h5"], check=True)
    methods = [a for text in SETTINGS.values() for a in ("-m", "evict:" + text)]
    subprocess.run([lacuna, "replay", f"{folder}/{kind}.h5", "--phase", "decode", *methods, "-q", "--force",
                    "--dump-masks", f"{folder}/m.h5", "-o", f"{folder}/{kind}"], check=True)
    layer, masks, records = Layer(*tensors), load_masks(f"{folder}/m.h5"), {}
    with open(f"{folder}/{kind}/records.jsonl", encoding="utf-8") as f:
        for line in f:
            r = json.loads(line)
            records[r["params"], r["head"]] = r
    texts = list(dict.fromkeys(p for p, _ in masks))
    assert len(texts) == len(SETTINGS), f"{len(texts)} settings ran: {sorted(r['reason'] for r in records.values() if 'reason' in r)[:1]}"
    wrong = 0
    for name, text in zip(SETTINGS, texts):
        try:
            kept = np.array([masks[text, h] for h in range(HEADS)])
            check_setting(layer, Rule(SETTINGS[name]), kept)
            share = 1 if Rule(SETTINGS[name]).unit == "head" else GROUP
            for h in range(HEADS):
                check_record(layer, h, range(h // share * share, h // share * share + share), kept[h], records[text, h])
        except AssertionError as why:
            print(f"{kind}, {name}: WRONG: {why}")
            wrong += 1
    print(f"{kind}: {len(SETTINGS) - wrong} of {len(SETTINGS)} settings ok")
    return wrong > 0


if __name__ == "__main__":
    os.makedirs(sys.argv[2], exist_ok=True)
    sys.exit(any([check(sys.argv[1], sys.argv[2], kind) for kind in ("random", "ties", "equal", "sharp")]))
