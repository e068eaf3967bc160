#!/usr/bin/env python3
"""Write video-dit-exact.safetensors: the run of video-dit-a.safetensors (same noise, text and
schedule) in float64 with NumPy, written from the published description of the model and
independently of the C runner.

Why it exists: the linear layers of video-dit-a were computed in TF32 (10-bit mantissas, rounded to
nearest, away from zero in ties). Emulating that for the 384-token products brings step 0, layer 0, v
from 1.8e-4 to 1.7e-5 of the file, so the file cannot tell implementations apart below about 2e-4.

    make_video_exact.py MODEL_DIR video-dit-a.safetensors OUT     (needs numpy, safetensors, ml_dtypes)

q, k, v of the first and the last layer at the first and the last step are stored for every eighth
token: [head][48][dim]; a fourth argument is another stride, a
fifth another shift of the schedule. The second file needs noise, text and
sigmas; what else it holds of the run is compared. make_wan_tiny.py uses it as well.
"""
import json
import sys

import ml_dtypes  # noqa: F401  (teaches NumPy bfloat16)
import numpy as np
from safetensors.numpy import load_file, save_file

model, golden, out = sys.argv[1:4]
stride = int(sys.argv[4]) if len(sys.argv) > 4 else 8
shift = float(sys.argv[5]) if len(sys.argv) > 5 else 5.0
cfg = json.load(open(model + "/config.json"))
W = {k: v.astype(np.float64) for k, v in
     load_file(model + "/diffusion_pytorch_model.safetensors").items()}
g = load_file(golden)
heads, d, layers = cfg["num_attention_heads"], cfg["attention_head_dim"], cfg["num_layers"]
dim, eps = heads * d, cfg["eps"]
pt, ph, pw = cfg["patch_size"]


def linear(x, name):
    return x @ W[name + ".weight"].reshape(W[name + ".weight"].shape[0], -1).T + W[name + ".bias"]


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))


def layer_norm(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)


def rms_norm(x, w):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def split(x):
    return x.reshape(len(x), heads, d).transpose(1, 0, 2)


def attend(q, k, v):
    s = split(q) @ split(k).transpose(0, 2, 1) / np.sqrt(d)
    p = np.exp(s - s.max(-1, keepdims=True))
    o = p / p.sum(-1, keepdims=True) @ split(v)
    return o.transpose(1, 0, 2).reshape(-1, dim)


def angles(t, h, w):
    hw = 2 * (d // 6)
    pos = np.stack(np.meshgrid(np.arange(t), np.arange(h), np.arange(w), indexing="ij"), -1)
    pos = pos.reshape(-1, 3)
    return np.concatenate([pos[:, a, None] * 10000.0 ** (-np.arange(0, n, 2) / n)
                           for a, n in ((0, d - 2 * hw), (1, hw), (2, hw))], 1)


def rotate(x, a):
    z = (x.reshape(len(x), heads, d // 2, 2) @ [1, 1j]) * np.exp(1j * a)[:, None]
    return np.stack([z.real, z.imag], -1).reshape(len(x), dim)


def forward(x, timestep, text, keep):
    c, t, h, w = x.shape
    grid = t // pt, h // ph, w // pw
    p = x.reshape(c, grid[0], pt, grid[1], ph, grid[2], pw).transpose(1, 3, 5, 0, 2, 4, 6)
    y = linear(p.reshape(np.prod(grid), -1), "patch_embedding")
    half = cfg["freq_dim"] // 2
    f = timestep * 10000.0 ** (-np.arange(half) / half)
    e = np.concatenate([np.cos(f), np.sin(f)])[None]
    ce = "condition_embedder."
    e = linear(silu(linear(e, ce + "time_embedder.linear_1")), ce + "time_embedder.linear_2")
    mod = linear(silu(e), ce + "time_proj").reshape(6, dim)
    ctx = linear(gelu(linear(text, ce + "text_embedder.linear_1")), ce + "text_embedder.linear_2")
    a = angles(*grid)
    for i in range(layers):
        b = f"blocks.{i}."
        m = W[b + "scale_shift_table"][0] + mod
        z = layer_norm(y) * (1 + m[1]) + m[0]
        n = b + "attn1."
        q = rotate(rms_norm(linear(z, n + "to_q"), W[n + "norm_q.weight"]), a)
        k = rotate(rms_norm(linear(z, n + "to_k"), W[n + "norm_k.weight"]), a)
        v = linear(z, n + "to_v")
        keep(i, q, k, v)
        y = y + linear(attend(q, k, v), n + "to_out.0") * m[2]
        z = layer_norm(y) * W[b + "norm2.weight"] + W[b + "norm2.bias"]
        n = b + "attn2."
        q = rms_norm(linear(z, n + "to_q"), W[n + "norm_q.weight"])
        k = rms_norm(linear(ctx, n + "to_k"), W[n + "norm_k.weight"])
        y = y + linear(attend(q, k, linear(ctx, n + "to_v")), n + "to_out.0")
        z = layer_norm(y) * (1 + m[4]) + m[3]
        y = y + linear(gelu(linear(z, b + "ffn.net.0.proj")), b + "ffn.net.2") * m[5]
    m = W["scale_shift_table"][0] + e
    y = linear(layer_norm(y) * (1 + m[1]) + m[0], "proj_out")
    y = y.reshape(*grid, pt, ph, pw, -1).transpose(6, 0, 3, 1, 4, 2, 5)
    return y.reshape(-1, t, h, w)


x, text = g["noise"].astype(np.float64), g["text"].astype(np.float64)
steps = len(g["sigmas"]) - 1
u = 1 - np.arange(steps + 1) / steps
sigma = shift * u / (1 + (shift - 1) * u)
res = {}
for s in range(steps):
    def keep(layer, *qkv):
        if s in (0, steps - 1) and layer in (0, layers - 1):
            for name, z in zip("qkv", qkv):
                res[f"step{s}.layer{layer}.{name}"] = split(z)[:, ::stride]
    v = forward(x, 1000 * sigma[s], text, keep)
    res[f"step{s}.velocity"] = v
    x = x + (sigma[s + 1] - sigma[s]) * v
res["sample"] = x
for k, v in sorted(res.items()):
    if k not in g:
        continue
    full = g[k][:, ::stride] if k[-2:] in (".q", ".k", ".v") else g[k]
    print(f"{k:16s} TF32 file against float64: {np.linalg.norm(full - v) / np.linalg.norm(v):.2e}")
save_file({k: np.ascontiguousarray(v, np.float32) for k, v in res.items()}, out)
