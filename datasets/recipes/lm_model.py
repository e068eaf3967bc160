"""The language model of datasets/models/code-lm: architecture, tokenizer, checkpoint directory.

A Llama decoder (rotary positions, grouped queries, RMS norm, SwiGLU, tied embeddings) written with
plain PyTorch modules, so that training needs nothing else. The checkpoint it saves is one that
transformers' LlamaForCausalLM and `lacuna capture` load.
"""
import json
import lzma
import math
import os

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

DEVICE = "cuda"
SHAPE = {
    "vocab_size": 4096,
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,  # 8 heads x 64 = 512: wider than the hidden state
    "intermediate_size": 896,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 32768,
}
FIXED = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
    "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True,
    "bos_token_id": 0, "eos_token_id": 0, "initializer_range": 0.02, "rope_scaling": None,
    "use_cache": True, "attention_dropout": 0.0,
}

# Llama 3's pre-tokenizer.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
END_OF_TEXT = "<|endoftext|>"  # id 0, stands before every document
SEPARATOR = "\x1e"             # between documents in the text files
SHARD_BYTES = 12 << 20
LONGEST = SHAPE["max_position_embeddings"]


# ---- model ---------------------------------------------------------------------------------------

class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), SHAPE["rms_norm_eps"])


def rotary_tables(n):
    """cos and sin [n][head_dim] of positions 0..n-1."""
    d = SHAPE["head_dim"]
    inverse = 1.0 / SHAPE["rope_theta"] ** (torch.arange(0, d, 2, device=DEVICE).float() / d)
    angle = torch.outer(torch.arange(n, device=DEVICE).float(), inverse)
    angle = torch.cat([angle, angle], -1)
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    """Channels i and i + d/2 are a pair."""
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return (x.float() * cos + turned.float() * sin).to(x.dtype)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        hidden, d = SHAPE["hidden_size"], SHAPE["head_dim"]
        self.heads, self.kv_heads, self.d = SHAPE["num_attention_heads"], SHAPE["num_key_value_heads"], d
        self.q_proj = nn.Linear(hidden, self.heads * d, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * d, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * d, bias=False)
        self.o_proj = nn.Linear(self.heads * d, hidden, bias=False)

    def forward(self, x, cos, sin):
        batch, n, _ = x.shape
        by_head = lambda t, heads: t.view(batch, n, heads, self.d).transpose(1, 2)
        q = rotate(by_head(self.q_proj(x), self.heads), cos, sin)
        k = rotate(by_head(self.k_proj(x), self.kv_heads), cos, sin)
        v = by_head(self.v_proj(x), self.kv_heads)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).reshape(batch, n, -1))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        hidden, inner = SHAPE["hidden_size"], SHAPE["intermediate_size"]
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm = RMSNorm(SHAPE["hidden_size"])
        self.self_attn = Attention()
        self.post_attention_layernorm = RMSNorm(SHAPE["hidden_size"])
        self.mlp = FeedForward()

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class CodeLM(nn.Module):
    """Parameters are named as in the checkpoint, less the leading "model."."""

    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(SHAPE["vocab_size"], SHAPE["hidden_size"])
        self.layers = nn.ModuleList(Layer() for _ in range(SHAPE["num_hidden_layers"]))
        self.norm = RMSNorm(SHAPE["hidden_size"])
        for name, p in self.named_parameters():
            if p.ndim == 2:
                # Projections back into the residual stream start smaller, by depth.
                back = "o_proj" in name or "down_proj" in name
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * len(self.layers)) if back else 0.02)

    def hidden(self, ids, cos, sin):
        x = self.embed_tokens(ids).to(torch.bfloat16)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)

    def logits(self, hidden):
        return F.linear(hidden, self.embed_tokens.weight.to(hidden.dtype))

    def loss(self, ids, cos, sin, reduction="mean"):
        """Cross entropy, in nat, of predicting ids[:, 1:]."""
        hidden = self.hidden(ids[:, :-1], cos, sin).reshape(-1, SHAPE["hidden_size"])
        return F.cross_entropy(self.logits(hidden).float(), ids[:, 1:].reshape(-1), reduction=reduction)


def optimizer(model, lr):
    """AdamW; weight decay on matrices only."""
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8, fused=True)


def step(model, opt, loss, lr):
    for group in opt.param_groups:
        group["lr"] = lr
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad(set_to_none=True)


def compile_layers(model):
    for i, layer in enumerate(model.layers):
        model.layers[i] = torch.compile(layer, dynamic=False)


def plain_parameters(model):
    """Names without what torch.compile adds to them."""
    return {n.replace("._orig_mod", ""): p.detach() for n, p in model.named_parameters()}


# ---- text ----------------------------------------------------------------------------------------

def read_text(path, limit=-1):
    with lzma.open(path, "rt", encoding="utf-8", errors="replace") as f:
        return f.read(limit)


def train_tokenizer(text, path):
    """Byte-level BPE over an even sample of the documents, about 24 MiB."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=SHAPE["vocab_size"], special_tokens=[END_OF_TEXT],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    documents = text.split(SEPARATOR)
    tok.train_from_iterator(documents[:: max(1, len(text) // (24 << 20))], trainer)
    tok.post_processor = processors.TemplateProcessing(single=f"{END_OF_TEXT} $A", special_tokens=[(END_OF_TEXT, 0)])
    tok.save(path)
    return tok


def encode(tok, text):
    """All documents in one int32 tensor, id 0 before each."""
    documents = [d for d in text.split(SEPARATOR) if d]
    parts = []
    for i in range(0, len(documents), 2048):
        for e in tok.encode_batch_fast(documents[i:i + 2048]):
            parts.append(torch.tensor(e.ids, dtype=torch.int32))
    return torch.cat(parts)


# ---- measuring -----------------------------------------------------------------------------------

def loss_by_position(model, held, cos, sin):
    """Mean loss at each of the 32768 positions over the held-out text."""
    total, n = torch.zeros(LONGEST, device=DEVICE), (held.numel() - 1) // LONGEST
    with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16):
        for i in range(n):
            ids = held[i * LONGEST: (i + 1) * LONGEST + 1][None]
            total += model.loss(ids, cos, sin, "none").float()
    return (total / max(n, 1)).tolist()


def position_report(losses):
    ends = [0, 256, 1024, 4096, 8192, 16384, 32768]
    return {f"held_nll_{a}_{b}": sum(losses[a:b]) / (b - a) for a, b in zip(ends, ends[1:])}


# ---- checkpoints ---------------------------------------------------------------------------------

def load_weights(model, directory):
    state = {}
    for name in sorted(os.listdir(directory)):
        if name.endswith(".safetensors"):
            state.update(load_file(os.path.join(directory, name)))
    model.load_state_dict({n.removeprefix("model."): t.float() for n, t in state.items()})


def shard_names(state):
    """Tensors in name order, cut into files of at most 12 MiB."""
    shards, size = [[]], 0
    for name in sorted(state):
        n = state[name].numel() * state[name].element_size()
        if shards[-1] and size + n > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += n
    return shards


def save_json(path, value):
    with open(path, "w") as f:
        json.dump(value, f, indent=1, sort_keys=True)


def save_checkpoint(model, directory, report):
    state = {"model." + n: p.to(torch.bfloat16).contiguous().cpu()
             for n, p in plain_parameters(model).items()}
    shards, where = shard_names(state), {}
    for i, names in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        save_file({n: state[n] for n in names}, os.path.join(directory, file), metadata={"format": "pt"})
        where.update({n: file for n in names})
    total = sum(t.numel() * t.element_size() for t in state.values())
    save_json(os.path.join(directory, "model.safetensors.index.json"),
              {"metadata": {"total_size": total}, "weight_map": where})
    save_json(os.path.join(directory, "config.json"), {**SHAPE, **FIXED})
    with open(os.path.join(directory, "training.json"), "w") as f:
        json.dump(report, f, indent=1)
