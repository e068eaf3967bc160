"""The method of topblocks.py with its scores from a Triton kernel.

    lacuna replay t.h5 -m 'exec:cmd=python3 topblocks_triton.py:params=8' -o run       # on a GPU
    TRITON_INTERPRET=1 lacuna replay ...                                               # without one
"""
import os

import torch
import triton
import triton.language as tl

from lacuna_trace.method import method

B = 64
DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"


@triton.jit
def block_means(x, out, n, D: tl.constexpr, DP: tl.constexpr, BLOCK: tl.constexpr):
    """out[b] = mean of the rows of block b; one program per block."""
    block = tl.program_id(0)
    row = block * BLOCK + tl.arange(0, BLOCK)
    col = tl.arange(0, DP)
    inside = (row < n)[:, None] & (col < D)[None, :]
    values = tl.load(x + row[:, None] * D + col[None, :], mask=inside, other=0.0)
    count = tl.minimum(n - block * BLOCK, BLOCK)
    tl.store(out + block * D + col, tl.sum(values, 0) / count, mask=col < D)


def means(x):
    x = torch.tensor(x, device=DEVICE)
    n, d = x.shape
    out = torch.empty((triton.cdiv(n, B), d), device=DEVICE)
    block_means[(len(out),)](x, out, n, d, triton.next_power_of_2(d), B)
    return out


def select(q, k, v, head):
    scores = means(q) @ means(k).T * head.scale
    rows = torch.arange(scores.shape[0], device=DEVICE)[:, None] + (head.nk - head.nq) // B
    cols = torch.arange(scores.shape[1], device=DEVICE)[None, :]
    scores[(cols == 0) | (cols == rows)] = torch.inf
    if head.causal:
        scores[cols > rows] = -torch.inf
    rank = torch.argsort(torch.argsort(scores, dim=1, descending=True, stable=True), dim=1)
    return ((rank < int(head.params)) & (scores > -torch.inf)).cpu().numpy()


method(select, unit=(B, B))
