"""check_eval.py MODEL TRACE MASKS NLL...: the forward pass of a Llama checkpoint in float64 with
dumped masks, against what `lacuna eval` says.

The tokens are those of TRACE (of `lacuna capture`), MASKS what --dump-masks wrote for one method and
NLL what --dump-nll wrote: row 0 exact attention, row 1 the method. Written from the definitions of
the architecture and of doc/trace-format.md alone; nothing of it is lacuna's.
"""
import json
import os
import sys

import h5py
import numpy as np


def tensors(directory):
    """All weights in float64: safetensors is a JSON header, then raw little-endian data."""
    found = {}
    for name in sorted(os.listdir(directory)):
        if not name.endswith(".safetensors"):
            continue
        with open(os.path.join(directory, name), "rb") as f:
            size = int.from_bytes(f.read(8), "little")
            header = json.loads(f.read(size))
            data = f.read()
        for key, t in header.items():
            if key == "__metadata__":
                continue
            lo, hi = t["data_offsets"]
            raw = data[lo:hi]
            if t["dtype"] == "BF16":
                x = (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
            else:
                x = np.frombuffer(raw, {"F32": "<f4", "F16": "<f2"}[t["dtype"]])
            found[key] = x.astype(np.float64).reshape(t["shape"])
    return found


def rms_norm(x, w, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def rotate(x, theta):
    """Half-split rotary embedding of x [n][heads][d]."""
    n, _, d = x.shape
    angle = np.arange(n)[:, None] * theta ** (-np.arange(0, d, 2) / d)
    cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def expand(cell, n):
    """A dumped mask as booleans [query][key]."""
    a = {k: v.decode() if isinstance(v, bytes) else v for k, v in cell.attrs.items()}
    query, key = np.arange(n)[:, None], np.arange(n)[None, :]
    causal = key <= query
    if a["form"] == "full":
        return causal
    if a["form"] == "band":
        near = (query - key < a["window"]) | (key < a["sink"])
        return causal & (near | (query >= a["dense_from"]))
    kept = np.zeros((n, n), bool)
    rows, col = cell["row_ptr"][:], cell["col"][:]
    bq, bk = int(a["bq"]), int(a["bk"])
    for g in range(len(rows) - 1):
        for c in col[rows[g] : rows[g + 1]]:
            kept[g * bq : (g + 1) * bq, c * bk : (c + 1) * bk] = True
    return kept & causal


def load_masks(path, n):
    """{(layer, head): booleans}"""
    found = {}
    with h5py.File(path) as f:
        def visit(_, cell):
            if isinstance(cell, h5py.Group) and "form" in cell.attrs:
                found[int(cell.attrs["layer"]), int(cell.attrs["head"])] = expand(cell, n)
        f.visititems(visit)
    return found


def attention(q, k, v, mask):
    s = np.where(mask, q @ k.T / np.sqrt(q.shape[1]), -np.inf)
    top = s.max(1, keepdims=True)
    p = np.exp(s - np.where(np.isfinite(top), top, 0))
    total = p.sum(1, keepdims=True)
    return p @ v / np.where(total > 0, total, 1)


def likelihoods(directory, tokens, masks):
    """-ln p of the tokens behind the first; masks None: exact attention."""
    with open(os.path.join(directory, "config.json")) as f:
        c = json.load(f)
    w = tensors(directory)
    n, heads, kv, eps = len(tokens), c["num_attention_heads"], c["num_key_value_heads"], c["rms_norm_eps"]
    causal = np.tril(np.ones((n, n), bool))
    h = w["model.embed_tokens.weight"][tokens]
    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        x = rms_norm(h, w[p + "input_layernorm.weight"], eps)
        q, k, v = (x @ w[p + f"self_attn.{name}_proj.weight"].T for name in "qkv")
        q = rotate(q.reshape(n, heads, -1), c["rope_theta"])
        k = rotate(k.reshape(n, kv, -1), c["rope_theta"])
        v = v.reshape(n, kv, -1)
        o = [attention(q[:, i], k[:, i * kv // heads], v[:, i * kv // heads],
                       causal if masks is None else masks[layer, i]) for i in range(heads)]
        h = h + np.concatenate(o, 1) @ w[p + "self_attn.o_proj.weight"].T
        x = rms_norm(h, w[p + "post_attention_layernorm.weight"], eps)
        gate = x @ w[p + "mlp.gate_proj.weight"].T
        up = x @ w[p + "mlp.up_proj.weight"].T
        h = h + (gate / (1 + np.exp(-gate)) * up) @ w[p + "mlp.down_proj.weight"].T
    head = w["model.embed_tokens.weight" if c["tie_word_embeddings"] else "lm_head.weight"]
    logits = rms_norm(h, w["model.norm.weight"], eps)[:-1] @ head.T
    top = logits.max(1)
    lse = top + np.log(np.exp(logits - top[:, None]).sum(1))
    return lse - logits[np.arange(n - 1), tokens[1:]]


def main(directory, trace, mask_file, nll_file):
    with h5py.File(trace) as f:
        tokens = f["run/tokens"][:].astype(int)
    said = np.load(nll_file).astype(np.float64)
    masks = load_masks(mask_file, len(tokens))
    density = np.mean([m.sum() for m in masks.values()]) / (len(tokens) * (len(tokens) + 1) / 2)
    bad = False
    for name, row, m in (("exact", said[0], None), ("method", said[1], masks)):
        want = likelihoods(directory, tokens, m)
        off, mean = np.abs(row - want).max(), abs(row.mean() - want.mean())
        ok = off < 1e-3 and mean < 1e-5
        bad |= not ok
        print(f"{name}: {'ok' if ok else 'WRONG'}: largest difference {off:.2g}, of the mean {mean:.2g}, "
              f"nll {want.mean():.4f}")
    print(f"density {density:.3f}")
    if not np.abs(said[0] - said[1]).max() > 1e-2:
        print("WRONG: the method is exact attention here, which shows nothing")
        bad = True
    return bad


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
