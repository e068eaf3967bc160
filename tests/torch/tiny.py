"""Tiny random models of transformers and diffusers, and spies that see the tensors which reach the attention kernel.

Weights have a standard deviation of 0.35: with the libraries' 0.02 all scores are nearly 0, and a wrong scale or
mask would go unseen.
"""
import contextlib
import os
import shutil
import subprocess
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

LACUNA = os.environ.get("LACUNA", "build/lacuna")
TOKENS = 40
BASE = dict(vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=512, pad_token_id=0, bos_token_id=1, eos_token_id=2, initializer_range=0.35)
MLA = dict(num_key_value_heads=4, kv_lora_rank=32, q_lora_rank=None, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12,
           n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, first_k_dense_replace=1, n_group=1, topk_group=1)
# name -> what the configuration has beside BASE. "-wide": a window that does nothing at 40 tokens.
LANGUAGE = {
    "Llama": {}, "Olmo2": {}, "Phi": {}, "StableLm": {}, "Nemotron": {},
    "Glm": dict(head_dim=16), "Glm4": dict(head_dim=16), "Ernie4_5": dict(head_dim=16), "SeedOss": dict(head_dim=16),
    "Qwen2": {}, "Qwen3": dict(head_dim=32), "Mistral": dict(sliding_window=None), "Mixtral": dict(num_local_experts=4),
    "Phi3": dict(sliding_window=64), "Starcoder2": dict(sliding_window=64),
    "Qwen3Moe": dict(head_dim=32, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32),
    "DeepseekV2": MLA, "DeepseekV3": dict(MLA, q_lora_rank=24), "Granite": dict(attention_multiplier=0.5),
    "SmolLM3": dict(no_rope_layers=[1, 0]), "OPT": dict(ffn_dim=96, word_embed_proj_dim=64),
    "Gemma3Text": dict(head_dim=16, query_pre_attn_scalar=24, sliding_window=64, layer_types=["sliding_attention", "full_attention"]),
    "Llama4Text": dict(head_dim=16, num_local_experts=2, intermediate_size_mlp=96, attention_chunk_size=64, no_rope_layers=[1, 0]),
}
GPT2 = dict(n_layer=2, n_head=4, n_embd=64, n_positions=512)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def config_class(name):
    import transformers
    return getattr(transformers, name + "Config")


def language_model(name, dtype=torch.float32, attn="sdpa", **more):
    """A causal language model in eval mode with weights of seed 0."""
    from transformers import AutoModelForCausalLM
    fields = dict(BASE, **LANGUAGE.get(name, {}))
    if name in ("GPT2",):
        fields = dict(GPT2, vocab_size=256, initializer_range=0.35)
    if name in ("OPT", "Falcon", "GPTNeoX", "Bloom", "Mpt", "GPTJ"):
        fields.pop("num_key_value_heads")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config_class(name)(**dict(fields, **more)), attn_implementation=attn)
    return model.eval().to(dtype)


def prompt(batch=1, n=TOKENS, seed=1):
    return torch.randint(3, 256, (batch, n), generator=rng(seed))


# ---- diffusers ----------------------------------------------------------------------------------

VIDEO = {
    "Wan": ("WanTransformer3DModel", dict(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=12, in_channels=4, out_channels=4, text_dim=16, freq_dim=32,
        ffn_dim=32, num_layers=2, cross_attn_norm=True, qk_norm="rms_norm_across_heads", rope_max_seq_len=32)),
    "Flux": ("FluxTransformer2DModel", dict(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 4, 8), guidance_embeds=True)),
    "HunyuanVideo": ("HunyuanVideoTransformer3DModel", dict(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=10, num_layers=1, num_single_layers=1,
        num_refiner_layers=1, patch_size=2, patch_size_t=1, guidance_embeds=True, text_embed_dim=16, pooled_projection_dim=8,
        rope_axes_dim=(2, 4, 4))),
    "CogVideoX": ("CogVideoXTransformer3DModel", dict(
        num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=4, time_embed_dim=2, text_embed_dim=8, num_layers=2,
        sample_width=12, sample_height=8, sample_frames=9, patch_size=2, temporal_compression_ratio=4, max_text_seq_length=8)),
    "SD3": ("SD3Transformer2DModel", dict(
        sample_size=32, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=4, joint_attention_dim=32,
        caption_projection_dim=32, pooled_projection_dim=64, out_channels=4, pos_embed_max_size=96, qk_norm="rms_norm",
        dual_attention_layers=(0,))),
    "Mochi": ("MochiTransformer3DModel", dict(
        patch_size=2, num_attention_heads=2, attention_head_dim=8, num_layers=2, pooled_projection_dim=16, in_channels=4,
        out_channels=None, qk_norm="rms_norm", text_embed_dim=16, time_embed_dim=4, activation_fn="swiglu", max_sequence_length=16)),
    "Flux2": ("Flux2Transformer2DModel", dict(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=2, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, timestep_guidance_channels=16, axes_dims_rope=(4, 4, 4, 4), guidance_embeds=True)),
    "QwenImage": ("QwenImageTransformer2DModel", dict(
        patch_size=2, in_channels=16, out_channels=4, num_layers=2, attention_head_dim=16, num_attention_heads=2, joint_attention_dim=16,
        guidance_embeds=False, axes_dims_rope=(8, 4, 4))),
    "LTX": ("LTXVideoTransformer3DModel", dict(
        in_channels=4, out_channels=4, patch_size=1, patch_size_t=1, num_attention_heads=2, attention_head_dim=16, cross_attention_dim=32,
        num_layers=1, qk_norm="rms_norm_across_heads", caption_channels=16)),
}


def transformer(name, **more):
    """A diffusion transformer in eval mode; matrices have a standard deviation of 0.35 / sqrt(16)."""
    import diffusers
    cls, fields = VIDEO[name]
    torch.manual_seed(0)
    model = getattr(diffusers, cls)(**dict(fields, **more)).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                nn.init.normal_(p, std=0.35)
    return model


def normal(*shape, seed=3):
    return torch.randn(shape, generator=rng(seed))


# ---- spies --------------------------------------------------------------------------------------


@contextlib.contextmanager
def spy_sdpa():
    """Every call that reaches scaled_dot_product_attention, beneath the hooks: a list of (q, k, v, out)."""
    calls, real = [], F.scaled_dot_product_attention

    def spy(query, key, value, *args, **kwargs):
        out = real(query, key, value, *args, **kwargs)
        calls.append(tuple(x.detach().clone() for x in (query, key, value, out)))
        return out
    F.scaled_dot_product_attention = spy
    try:
        yield calls
    finally:
        F.scaled_dot_product_attention = real


@contextlib.contextmanager
def spy_eager(model):
    """The same for a model whose file computes attention by itself."""
    calls = []
    file = next(sys.modules[type(m).__module__] for m in model.modules() if hasattr(sys.modules[type(m).__module__], "eager_attention_forward"))
    real = file.eager_attention_forward

    def spy(module, query, key, value, *args, **kwargs):
        out = real(module, query, key, value, *args, **kwargs)
        calls.append(tuple(x.detach().clone() for x in (query, key, value, out[0].transpose(1, 2))))
        return out
    file.eager_attention_forward = spy
    try:
        yield calls
    finally:
        file.eager_attention_forward = real


def lacuna(*args, check=True):
    """Run the program; returns (status, output of both streams)."""
    p = subprocess.run([LACUNA, *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if check and p.returncode:
        raise AssertionError(f"lacuna {' '.join(map(str, args))}: status {p.returncode}\n{p.stdout}")
    return p.returncode, p.stdout


def remove(path):
    """A file or a directory."""
    shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)


def same(a, b, name, within=0.0):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    assert a.shape == b.shape, f"{name}: {a.shape} and {b.shape}"
    worst = float(np.abs(a - b).max()) if a.size else 0.0
    assert worst <= within, f"{name}: largest difference {worst}"
