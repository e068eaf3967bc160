#!/usr/bin/env python3
"""Tiny random checkpoints of every supported architecture, and what transformers computes with them.

Writes into the directory given (default: beside this file)
  configs.json             {variant: config.json}
  tokens.json              the prompt
  weights.safetensors      bf16 weights that all variants share, biases and norms included
  weights-mha.safetensors  the same for variants without grouped queries
  golden.safetensors       per variant, in float32: VARIANT.q, .k, .v of the last layer [heads][N][dim] after
                           norm and position, .nll [N-1], .logits of the last token; and per rotary table
                           rope.NAME.inv_freq [d/2], rope.NAME.cos and .sin [positions][d]
  rope.json                {"positions": [...], "configs": {NAME: config.json}}
test_models.c and test_rope.c must get the same. Needs torch and transformers (2.11 and 5.17 were used).
"""
import importlib, json, os, sys, tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

N, VOCAB, HIDDEN, FFN, LAYERS, HEADS, KV, DIM = 40, 64, 32, 48, 2, 4, 2, 16
POSITIONS = [0, 1, 37, 1000, 8191, 32767, 131071]


def config(arch, **more):
    base = dict(architectures=[arch], model_type=arch.replace("ForCausalLM", "").lower(), hidden_size=HIDDEN, intermediate_size=FFN,
                vocab_size=VOCAB, num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=KV, head_dim=DIM,
                hidden_act="silu", rms_norm_eps=1e-5, max_position_embeddings=256, tie_word_embeddings=True, rope_theta=10000.0,
                torch_dtype="bfloat16")
    base.update(more)
    return {k: v for k, v in base.items() if v is not ...}


LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)


def new(theta, **rope):
    """transformers 5 spelling."""
    return dict(rope_theta=..., rope_parameters=dict(rope_theta=theta, **rope), torch_dtype=..., dtype="bfloat16")


VARIANTS = {
    "llama": config("LlamaForCausalLM"),
    "llama-untied": config("LlamaForCausalLM", tie_word_embeddings=False, rope_theta=500.0),
    "llama-bias": config("LlamaForCausalLM", attention_bias=True, mlp_bias=True),
    "llama-mha": config("LlamaForCausalLM", num_attention_heads=2, num_key_value_heads=..., head_dim=..., rope_theta=...),
    "llama-new": config("LlamaForCausalLM", **new(300.0, rope_type="default")),
    "linear": config("LlamaForCausalLM", rope_scaling=dict(type="linear", factor=3.0)),
    "linear-new": config("LlamaForCausalLM", **new(10000.0, rope_type="linear", factor=3.0)),
    "llama3": config("LlamaForCausalLM", rope_scaling=LLAMA3),
    "llama3-new": config("LlamaForCausalLM", **new(10000.0, **LLAMA3)),
    "yarn": config("LlamaForCausalLM", rope_theta=100.0, rope_scaling=YARN),
    "yarn-new": config("LlamaForCausalLM", **new(100.0, **YARN)),
    "yarn-betas": config("LlamaForCausalLM", rope_theta=100.0, rope_scaling=dict(YARN, beta_fast=4.0, beta_slow=0.5)),
    "yarn-factor": config("LlamaForCausalLM", rope_theta=100.0, rope_scaling=dict(YARN, attention_factor=1.25)),
    "yarn-mscale": config("LlamaForCausalLM", rope_theta=100.0, rope_scaling=dict(YARN, mscale=0.7, mscale_all_dim=1.5)),
    "yarn-one-mscale": config("LlamaForCausalLM", rope_theta=100.0, rope_scaling=dict(YARN, mscale=0.7)),
    "yarn-whole": config("LlamaForCausalLM", rope_theta=100.0, rope_scaling=dict(YARN, beta_fast=4.0, truncate=False)),
    "mistral": config("MistralForCausalLM", sliding_window=None, tie_word_embeddings=False),
    "mistral-window": config("MistralForCausalLM", sliding_window=N),
    "qwen2": config("Qwen2ForCausalLM", use_sliding_window=False, sliding_window=8, max_window_layers=1),
    "qwen2-yarn": config("Qwen2ForCausalLM", rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=64),
                         rope_theta=100.0, tie_word_embeddings=False),
    "qwen3": config("Qwen3ForCausalLM", rms_norm_eps=1e-6),
    "qwen3-bias": config("Qwen3ForCausalLM", attention_bias=True, tie_word_embeddings=False),
}

BIG = dict(max_position_embeddings=131072, head_dim=64)
ROPES = {
    "code-lm": config("LlamaForCausalLM", rope_theta=500000.0, **BIG),
    "linear": config("LlamaForCausalLM", rope_scaling=dict(rope_type="linear", factor=4.0), **BIG),
    "llama31": config("LlamaForCausalLM", rope_theta=500000.0, max_position_embeddings=131072, head_dim=128,
                      rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                        original_max_position_embeddings=8192)),
    "qwen25-yarn": config("Qwen2ForCausalLM", rope_theta=1000000.0, max_position_embeddings=131072, head_dim=128,
                          rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=32768)),
    "qwen25-card": config("Qwen2ForCausalLM", rope_theta=1000000.0, max_position_embeddings=32768, head_dim=128,
                          rope_scaling=dict(type="yarn", factor=4.0, original_max_position_embeddings=32768)),
}


def weights(heads, kv):
    g = torch.Generator().manual_seed(heads)
    rand = lambda *shape, s=0.3: torch.randn(*shape, generator=g) * s
    w = {"model.embed_tokens.weight": rand(VOCAB, HIDDEN, s=1.0), "lm_head.weight": rand(VOCAB, HIDDEN),
         "model.norm.weight": 1 + rand(HIDDEN)}
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        for name, rows in (("q", heads * DIM), ("k", kv * DIM), ("v", kv * DIM)):
            w[p + f"self_attn.{name}_proj.weight"], w[p + f"self_attn.{name}_proj.bias"] = rand(rows, HIDDEN), rand(rows)
        w[p + "self_attn.o_proj.weight"], w[p + "self_attn.o_proj.bias"] = rand(HIDDEN, heads * DIM), rand(HIDDEN)
        for name in ("q_norm", "k_norm"):
            w[p + f"self_attn.{name}.weight"] = 1 + rand(DIM)
        for name, rows, cols in (("gate", FFN, HIDDEN), ("up", FFN, HIDDEN), ("down", HIDDEN, FFN)):
            w[p + f"mlp.{name}_proj.weight"], w[p + f"mlp.{name}_proj.bias"] = rand(rows, cols, s=0.2), rand(rows)
        for name in ("input_layernorm", "post_attention_layernorm"):
            w[p + name + ".weight"] = 1 + rand(HIDDEN)
    return {k: v.to(torch.bfloat16).contiguous() for k, v in w.items()}


def load(conf, w, directory):
    """The model with exactly the tensors that its architecture has."""
    json.dump(conf, open(directory + "/config.json", "w"))
    c = AutoConfig.from_pretrained(directory)
    names = AutoModelForCausalLM.from_config(c).state_dict().keys()
    keep = {k: w[k] for k in names if not (k == "lm_head.weight" and c.tie_word_embeddings)}
    save_file(keep, directory + "/model.safetensors", metadata={"format": "pt"})
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()


def run(conf, w, tokens):
    seen = []
    with tempfile.TemporaryDirectory() as d, torch.no_grad():
        m = load(conf, w, d)
        mod = importlib.import_module(type(m).__module__)
        eager = mod.eager_attention_forward
        def record(module, q, k, v, *args, **kw):
            seen.append((q[0].clone(), k[0].clone(), v[0].clone()))
            return eager(module, q, k, v, *args, **kw)
        mod.eager_attention_forward = record
        logits = m(torch.tensor([tokens])).logits[0].float()
        mod.eager_attention_forward = eager
    assert len(seen) == LAYERS
    nll = torch.nn.functional.cross_entropy(logits[:-1].double(), torch.tensor(tokens[1:]), reduction="none").float()
    q, k, v = seen[-1]
    return {"q": q, "k": k, "v": v, "nll": nll, "logits": logits[-1]}


def rotary(conf):
    with tempfile.TemporaryDirectory() as d:
        json.dump(conf, open(d + "/config.json", "w"))
        c = AutoConfig.from_pretrained(d)
    mod = importlib.import_module(type(AutoModelForCausalLM.from_config(c)).__module__)
    rope = next(v for k, v in vars(mod).items() if k.endswith("RotaryEmbedding"))(c)
    cos, sin = rope(torch.zeros(1, 1, 1), torch.tensor([POSITIONS]))
    return {"inv_freq": rope.inv_freq.float(), "cos": cos[0].float(), "sin": sin[0].float()}


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    torch.manual_seed(0)
    tokens = torch.randint(0, VOCAB, (N,), generator=torch.Generator().manual_seed(3)).tolist()
    shared, mha = weights(HEADS, KV), weights(2, 2)
    golden = {}
    for name, conf in VARIANTS.items():
        for k, v in run(conf, mha if name == "llama-mha" else shared, tokens).items():
            golden[f"{name}.{k}"] = v.contiguous()
        print(f"{name:16} nll {golden[name + '.nll'].mean():.4f}", flush=True)
    for name, conf in ROPES.items():
        for k, v in rotary(conf).items():
            golden[f"rope.{name}.{k}"] = v.contiguous()
    save_file(shared, out + "/weights.safetensors", metadata={"format": "pt"})
    save_file(mha, out + "/weights-mha.safetensors", metadata={"format": "pt"})
    save_file(golden, out + "/golden.safetensors")
    for name, value in (("configs", VARIANTS), ("tokens", tokens), ("rope", {"positions": POSITIONS, "configs": ROPES})):
        with open(f"{out}/{name}.json", "w") as f:
            json.dump(value, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
