#!/usr/bin/env python3
"""Run the clip of video-dit-a.safetensors (same noise, text and schedule) with PyTorch in float32 on the
CPU, from the model's own definition (datasets/recipes/dit_model.py), and print how far the two stored
runs are from it: video-dit-a itself and the float64 run of make_video_exact.py.

    check_video_torch.py          from the repository's root; needs torch >= 2.4, numpy, safetensors
"""
import sys

import torch
from safetensors.torch import load_file

sys.path.insert(0, "datasets/recipes")
import dit_model  # noqa: E402

dit_model.DEVICE = "cpu"
golden = load_file("tests/data/video-dit-a.safetensors")
exact = load_file("tests/data/video-dit-exact.safetensors")
model = dit_model.VideoDiT().eval()
weights = load_file("datasets/models/video-dit/diffusion_pytorch_model.safetensors")
model.load_state_dict({name: w.float() for name, w in weights.items()})

attention, calls = dit_model.F.scaled_dot_product_attention, []


def recording(q, k, v):
    calls.append({"q": q[0], "k": k[0], "v": v[0]})
    return attention(q, k, v)


dit_model.F.scaled_dot_product_attention = recording


def distance(a, b):
    """Relative L2."""
    return float((a.double() - b.double()).norm() / b.double().norm())


def compare(name, x):
    line = name
    if name in golden:
        line += f"  video-dit-a {distance(x, golden[name]):.1e}"
    if name in exact:
        every = x.shape[1] // exact[name].shape[1] if "layer" in name else 1
        part = x[:, ::every] if "layer" in name else x
        line += f"  float64 {distance(part, exact[name].reshape(part.shape)):.1e}"
    if line != name:
        print(line)


x, text, sigma = golden["noise"][None], golden["text"][None], golden["sigmas"].double()
frames, height, width = x.shape[2:]
tables = dit_model.rotary_tables(frames, height // 8, width // 8)
with torch.no_grad():
    for step in range(len(sigma) - 1):
        calls.clear()
        velocity = model(x, 1000 * sigma[step : step + 1].float(), text, *tables)
        for layer in range(len(model.blocks)):  # self- and cross-attention in turns
            for what, value in calls[2 * layer].items():
                compare(f"step{step}.layer{layer}.{what}", value)
        compare(f"step{step}.velocity", velocity[0])
        x = x + float(sigma[step + 1] - sigma[step]) * velocity
compare("sample", x[0])
