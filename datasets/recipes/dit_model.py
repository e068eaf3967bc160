"""The video diffusion transformer of datasets/models/video-dit.

Architecture and tensor names are those of Wan 2.1 in diffusers (WanTransformer3DModel): 3-D rotary
positions, queries and keys RMS-normalised over all heads, cross-attention to a text sequence, AdaLN by
timestep. It denoises RGB pixels: a patch is 1 x 8 x 8 of them, and there is no VAE.
"""
import math

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = "cuda"
CONFIG = {
    "patch_size": [1, 8, 8], "num_attention_heads": 2, "attention_head_dim": 128, "in_channels": 3,
    "out_channels": 3, "text_dim": 32, "freq_dim": 256, "ffn_dim": 768, "num_layers": 6,
    "cross_attn_norm": True, "qk_norm": "rms_norm_across_heads", "eps": 1e-6, "rope_max_seq_len": 1024,
}
HEADS, HEAD_DIM, EPS = CONFIG["num_attention_heads"], CONFIG["attention_head_dim"], CONFIG["eps"]
DIM = HEADS * HEAD_DIM


def rotary_tables(t, h, w):
    """cos and sin [t*h*w][head_dim / 2]: channel pairs for time first, then height, then width."""
    side = 2 * (HEAD_DIM // 6)
    parts = []
    for axis, (n, width) in enumerate(((t, HEAD_DIM - 2 * side), (h, side), (w, side))):
        inverse = 1.0 / 10000.0 ** (torch.arange(0, width, 2, device=DEVICE).double() / width)
        angle = torch.outer(torch.arange(n, device=DEVICE).double(), inverse)
        shape = [1, 1, 1, width // 2]
        shape[axis] = n
        parts.append(angle.view(shape).expand(t, h, w, width // 2))
    angle = torch.cat(parts, -1).reshape(t * h * w, HEAD_DIM // 2)
    return angle.cos().float(), angle.sin().float()


def rotate(x, cos, sin):
    """Adjacent channels are a pair. x [batch][heads][tokens][head_dim]."""
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2).to(x.dtype)


def normalise(x):
    return F.layer_norm(x.float(), (DIM,), eps=EPS).to(x.dtype)


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), EPS)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(DIM, DIM) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(DIM, DIM)])
        self.norm_q, self.norm_k = RMSNorm(DIM), RMSNorm(DIM)

    def forward(self, x, context=None, rotary=None):
        source = x if context is None else context
        by_head = lambda y: y.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        q, k = by_head(self.norm_q(self.to_q(x))), by_head(self.norm_k(self.to_k(source)))
        if rotary is not None:
            q, k = rotate(q, *rotary), rotate(k, *rotary)
        out = F.scaled_dot_product_attention(q, k, by_head(self.to_v(source)))
        return self.to_out[0](out.transpose(1, 2).flatten(2))


class Project(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.proj = nn.Linear(DIM, inner)

    def forward(self, x):
        return F.gelu(self.proj(x), approximate="tanh")


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        inner = CONFIG["ffn_dim"]
        self.net = nn.ModuleList([Project(inner), nn.Identity(), nn.Linear(inner, DIM)])

    def forward(self, x):
        return self.net[2](self.net[0](x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn1, self.attn2, self.ffn = Attention(), Attention(), FeedForward()
        self.norm2 = nn.LayerNorm(DIM, eps=EPS)
        self.scale_shift_table = nn.Parameter(torch.randn(1, 6, DIM) / DIM ** 0.5)

    def forward(self, x, text, time, cos, sin):
        modulation = (self.scale_shift_table + time.float()).to(x.dtype).chunk(6, 1)
        shift1, scale1, gate1, shift2, scale2, gate2 = modulation
        x = x + gate1 * self.attn1(normalise(x) * (1 + scale1) + shift1, rotary=(cos, sin))
        x = x + self.attn2(self.norm2(x.float()).to(x.dtype), context=text)
        return x + gate2 * self.ffn(normalise(x) * (1 + scale2) + shift2)


class TwoLayers(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear_1, self.linear_2 = nn.Linear(width, DIM), nn.Linear(DIM, DIM)


class Condition(nn.Module):
    def __init__(self):
        super().__init__()
        self.time_embedder = TwoLayers(CONFIG["freq_dim"])
        self.text_embedder = TwoLayers(CONFIG["text_dim"])
        self.time_proj = nn.Linear(DIM, 6 * DIM)

    def forward(self, timestep, text):
        half = CONFIG["freq_dim"] // 2
        step = torch.arange(half, device=timestep.device).float()
        angle = timestep.float()[:, None] * torch.exp(-math.log(10000) * step / half)
        wave = torch.cat([angle.cos(), angle.sin()], -1)
        time = self.time_embedder.linear_2(F.silu(self.time_embedder.linear_1(wave)))
        tokens = F.gelu(self.text_embedder.linear_1(text), approximate="tanh")
        modulation = self.time_proj(F.silu(time)).unflatten(1, (6, -1))
        return time, modulation, self.text_embedder.linear_2(tokens)


class VideoDiT(nn.Module):
    def __init__(self):
        super().__init__()
        patch = tuple(CONFIG["patch_size"])
        self.patch_embedding = nn.Conv3d(CONFIG["in_channels"], DIM, patch, patch)
        self.condition_embedder = Condition()
        self.blocks = nn.ModuleList(Block() for _ in range(CONFIG["num_layers"]))
        self.proj_out = nn.Linear(DIM, CONFIG["out_channels"] * math.prod(patch))
        self.scale_shift_table = nn.Parameter(torch.randn(1, 2, DIM) / DIM ** 0.5)
        nn.init.zeros_(self.proj_out.weight)
        nn.init.zeros_(self.proj_out.bias)

    def forward(self, x, timestep, text, cos, sin):
        """Velocity of x [batch][3][frames][height][width] at the timestep (0 to 1000)."""
        batch, channels, frames, height, width = x.shape
        _, ph, pw = CONFIG["patch_size"]
        h = self.patch_embedding(x).flatten(2).transpose(1, 2)
        time, modulation, tokens = self.condition_embedder(timestep, text)
        for block in self.blocks:
            h = block(h, tokens.to(h.dtype), modulation, cos, sin)
        shift, scale = (self.scale_shift_table + time.float()[:, None]).to(h.dtype).chunk(2, 1)
        h = self.proj_out(normalise(h) * (1 + scale) + shift)
        h = h.reshape(batch, frames, height // ph, width // pw, 1, ph, pw, channels)
        return h.permute(0, 7, 1, 4, 2, 5, 3, 6).reshape(x.shape)
