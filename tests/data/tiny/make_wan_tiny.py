#!/usr/bin/env python3
"""Write wan-config.json, wan-weights.safetensors and wan-golden.safetensors: a tiny random checkpoint
with the structure of Wan 2.1 (16 latent channels, patch 1 x 2 x 2, several heads, every tensor by its
diffusers name, bfloat16) and a four-step run of it in float64 (make_video_exact.py).

    make_wan_tiny.py          in this directory; needs numpy, safetensors, ml_dtypes
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

here = os.path.dirname(os.path.abspath(__file__))
cfg = {
    "_class_name": "WanTransformer3DModel", "added_kv_proj_dim": None, "attention_head_dim": 16,
    "cross_attn_norm": True, "eps": 1e-06, "ffn_dim": 80, "freq_dim": 32, "image_dim": None,
    "in_channels": 16, "num_attention_heads": 3, "num_layers": 3, "out_channels": 16,
    "patch_size": [1, 2, 2], "pos_embed_seq_len": None, "qk_norm": "rms_norm_across_heads",
    "rope_max_seq_len": 1024, "text_dim": 20,
}
dim, ffn, text, freq = 48, cfg["ffn_dim"], cfg["text_dim"], cfg["freq_dim"]
rng = np.random.default_rng(20250326)
weights = {}


def put(name, *shape, scale=None, mean=0.0):
    fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else dim
    x = mean + rng.standard_normal(shape) * (scale or fan_in ** -0.5)
    weights[name] = x.astype(ml_dtypes.bfloat16)


def put_linear(name, n_out, n_in):
    put(name + ".weight", n_out, n_in)
    put(name + ".bias", n_out, scale=0.1)


put("patch_embedding.weight", dim, 16, 1, 2, 2)
put("patch_embedding.bias", dim, scale=0.1)
ce = "condition_embedder."
put_linear(ce + "time_embedder.linear_1", dim, freq)
put_linear(ce + "time_embedder.linear_2", dim, dim)
put_linear(ce + "time_proj", 6 * dim, dim)
put_linear(ce + "text_embedder.linear_1", dim, text)
put_linear(ce + "text_embedder.linear_2", dim, dim)
put_linear("proj_out", 64, dim)
put("scale_shift_table", 1, 2, dim, scale=0.2)
for i in range(cfg["num_layers"]):
    b = f"blocks.{i}."
    put(b + "scale_shift_table", 1, 6, dim, scale=0.3)
    for a in ("attn1.", "attn2."):
        for p in ("to_q", "to_k", "to_v", "to_out.0"):
            put_linear(b + a + p, dim, dim)
        for p in ("norm_q", "norm_k"):
            put(b + a + p + ".weight", dim, scale=0.2, mean=1.3)
    put(b + "norm2.weight", dim, scale=0.1, mean=1.0)
    put(b + "norm2.bias", dim, scale=0.1)
    put_linear(b + "ffn.net.0.proj", ffn, dim)
    put_linear(b + "ffn.net.2", dim, ffn)

steps, shift = 4, 3.0
u = 1 - np.arange(steps + 1) / steps
run = {
    "noise": rng.standard_normal((16, 3, 8, 12)).astype(np.float32),
    "text": rng.standard_normal((6, text)).astype(np.float32),
    "sigmas": (shift * u / (1 + (shift - 1) * u)).astype(np.float32),
}
with tempfile.TemporaryDirectory() as d:
    json.dump(cfg, open(d + "/config.json", "w"))
    save_file(weights, d + "/diffusion_pytorch_model.safetensors")
    save_file(run, d + "/run.safetensors")
    subprocess.run([sys.executable, here + "/../make_video_exact.py", d, d + "/run.safetensors",
                    d + "/exact.safetensors", "1", str(shift)], check=True)
    save_file({**run, **load_file(d + "/exact.safetensors")}, here + "/wan-golden.safetensors")
    shutil.copy(d + "/diffusion_pytorch_model.safetensors", here + "/wan-weights.safetensors")
json.dump(cfg, open(here + "/wan-config.json", "w"), indent=1)
