#!/usr/bin/env python3
"""Small GGUF files by the gguf package, and what others read from them.

Writes, beside this file
  types.gguf, types.safetensors   two blocks or more of random bits of every type, and gguf.dequantize of them in float32
  NAME.gguf                       a random model of two layers of every architecture, weights in bfloat16, with a
                                  tokenizer of 320 tokens; llama.cpp's order of the rows of Llama's q and k
  golden.safetensors              NAME.q, .k of the last layer [heads][tokens][d] and .nll, by transformers in float32
  tokens.json                     the prompt of the models; texts, and their ids with the tokenizer of NAME: by the
                                  package tokenizers, of phi3 (SentencePiece) by llama.cpp
test_gguf.c must get the same. Importing make_tokenizers also writes tests/data/tiny/tokenizers.json again. Needs gguf 0.19.0, torch, transformers 5.24.0, tokenizers 0.23.3, llama-cpp-python 0.3.36.
"""
import importlib, json, math, os, random, sys, tempfile

import gguf, numpy as np, torch
from llama_cpp import Llama
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE + "/../tiny")
from make_tokenizers import CORPUS, GPT2, LLAMA3, O200K, QWEN2, TEXTS  # the expressions of the models' own tokenizer.json

N, VOCAB, HIDDEN, FFN, LAYERS, HEADS, KV, DIM = 40, 320, 32, 48, 2, 4, 2, 16
Q = gguf.GGMLQuantizationType
rng = np.random.default_rng(7)


# ---- types ----------------------------------------------------------------------------------------

def types():
    w, want = gguf.GGUFWriter(HERE + "/types.gguf", "none"), {}
    for t in (Q.F32, Q.F16, Q.BF16, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0, Q.Q4_K, Q.Q5_K, Q.Q6_K):
        per, size = gguf.GGML_QUANT_SIZES[t]
        if per == 1:
            x = rng.standard_normal((2, 256)).astype(np.float32)
            raw = gguf.quantize(x, t)
        else:
            raw = rng.integers(0, 256, (512 // per, size), dtype=np.uint8)
            for at in {Q.Q4_1: (0, 2), Q.Q5_1: (0, 2), Q.Q4_K: (0, 2), Q.Q5_K: (0, 2), Q.Q6_K: (208,)}.get(t, (0,)):
                raw[:, at:at + 2] = rng.standard_normal(len(raw)).astype(np.float16).view(np.uint8).reshape(-1, 2)
            raw = raw.reshape(2, -1)
        w.add_tensor(t.name, raw, raw_dtype=t)
        want[t.name] = torch.tensor(np.ascontiguousarray(gguf.dequantize(raw, t), dtype=np.float32).reshape(2, 256))
    close(w)
    save_file(want, HERE + "/types.safetensors")


def close(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


# ---- tokenizers -----------------------------------------------------------------------------------

def cut(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


SMOLLM = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
SPECIAL = ["<unk>", "<s>", "</s>", "<|end|>"]


def byte_level(pre, ignore_merges=False, bos=False, norm=None):
    tok = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tok.pre_tokenizer = pre
    if norm:
        tok.normalizer = norm
    tok.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=SPECIAL, show_progress=False,
                                                        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    if bos:
        tok.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tok


def sentencepiece():
    """Tokens and scores; merges are what scores say."""
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tok.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=VOCAB - 261, show_progress=False))
    learned = [t for t, _ in sorted(tok.get_vocab().items(), key=lambda e: e[1])]
    tokens = SPECIAL + ["<|endoftext|>"] + [f"<0x{b:02X}>" for b in range(256)] + sorted(learned, key=lambda t: -len(t) if len(t) > 1 else 1)
    kinds = [2, 3, 3, 3, 3] + [6] * 256 + [1] * len(learned)
    return tokens, [-float(i) for i in range(len(tokens))], kinds


# ---- models ---------------------------------------------------------------------------------------

def config(arch, **more):
    base = dict(architectures=[arch], model_type=arch.replace("ForCausalLM", "").lower(), hidden_size=HIDDEN, intermediate_size=FFN,
                vocab_size=VOCAB, num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=KV, head_dim=DIM,
                hidden_act="silu", rms_norm_eps=1e-5, max_position_embeddings=256, tie_word_embeddings=True, pad_token_id=0, eos_token_id=2)
    return {**base, **more}


LLAMA3_ROPE = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
SHORT, LONG = [1 + i / 8 for i in range(3)], [2 + i / 2 for i in range(3)]
MODELS = {
    "llama": (config("LlamaForCausalLM", tie_word_embeddings=False, rope_parameters=dict(rope_theta=500.0, **LLAMA3_ROPE)), "llama-bpe",
              byte_level(cut(LLAMA3), ignore_merges=True, bos=True)),
    "smollm": (config("LlamaForCausalLM", head_dim=8, rope_parameters=dict(rope_type="linear", factor=3.0, rope_theta=1e4)),
               "smollm", byte_level(SMOLLM)),
    "qwen2": (config("Qwen2ForCausalLM", head_dim=8, rope_parameters=dict(rope_theta=100.0, rope_type="yarn", factor=4.0,
                                                                          original_max_position_embeddings=64)),
              "qwen2", byte_level(cut(QWEN2), norm=normalizers.NFC())),
    "qwen3": (config("Qwen3ForCausalLM"), "gpt-4o", byte_level(cut(O200K))),
    "phi3": (config("Phi3ForCausalLM", partial_rotary_factor=0.75, sliding_window=24, original_max_position_embeddings=32,
                    rope_parameters=dict(rope_theta=1e4, rope_type="longrope", short_factor=SHORT, long_factor=LONG,
                                         partial_rotary_factor=0.75, original_max_position_embeddings=32)), None, sentencepiece()),
    "glm4": (config("Glm4ForCausalLM", attention_bias=True, partial_rotary_factor=0.5, rope_parameters=dict(
        rope_theta=1e4, rope_type="default", partial_rotary_factor=0.5)), "glm4", byte_level(cut(LLAMA3))),
}
del MODELS["phi3"][0]["head_dim"], MODELS["smollm"][0]["head_dim"], MODELS["qwen2"][0]["head_dim"]


def build(conf):
    with tempfile.TemporaryDirectory() as d:
        json.dump(conf, open(d + "/config.json", "w"))
        c = AutoConfig.from_pretrained(d, attn_implementation="eager")
    torch.manual_seed(1)
    m = AutoModelForCausalLM.from_config(c, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, p in m.named_parameters():
            p.copy_((torch.randn(p.shape) * 0.3 + ("norm" in name and p.ndim == 1)).to(torch.bfloat16).float())
    return m


def run(m, tokens):
    seen, mod = [], importlib.import_module(type(m).__module__)
    eager = mod.eager_attention_forward
    def record(module, q, k, v, *args, **kw):
        seen.append((q[0].clone(), k[0].clone()))
        return eager(module, q, k, v, *args, **kw)
    mod.eager_attention_forward = record
    with torch.no_grad():
        logits = m(torch.tensor([tokens])).logits[0].double()
    mod.eager_attention_forward = eager
    nll = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(tokens[1:]), reduction="none").float()
    return {"q": seen[-1][0].contiguous(), "k": seen[-1][1].contiguous(), "nll": nll}


def paired(w, heads):
    """As llama.cpp's converter has it."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def put_config(w, m, name):
    c, rope = m.config, m.config.rope_parameters
    d = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    w.add_name(f"tiny {name}")
    w.add_block_count(LAYERS)
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(HIDDEN)
    w.add_feed_forward_length(FFN)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_rope_freq_base(rope["rope_theta"])
    w.add_rope_dimension_count(int(d * rope.get("partial_rotary_factor", 1)))
    if d != HIDDEN // HEADS:
        w.add_key_length(d)
        w.add_value_length(d)
    if rope["rope_type"] in ("linear", "yarn"):
        w.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        w.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] in ("yarn", "longrope"):
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "longrope":
        w.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(256 / 32) / math.log(32)))
        w.add_sliding_window(c.sliding_window)
        w.add_tensor("rope_factors_short.weight", np.array(SHORT, np.float32))
        w.add_tensor("rope_factors_long.weight", np.array(LONG, np.float32))
    if rope["rope_type"] == "llama3":  # what is left of the frequencies, as the converter writes it
        base = rope["rope_theta"] ** -(np.arange(0, d, 2) / d)
        wave, f = 2 * math.pi / base, []
        for x in wave:
            smooth = (32 / x - 1) / (4 - 1)
            f.append(1 if x < 32 / 4 else 8 if x > 32 else 1 / ((1 - smooth) / 8 + smooth))
        w.add_tensor("rope_freqs.weight", np.array(f, np.float32))


def put_tensors(w, m, arch):
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], LAYERS)
    for name, p in m.state_dict().items():
        if name == "lm_head.weight" and m.config.tie_word_embeddings:
            continue
        to = names.get_name(name, try_suffixes=(".weight", ".bias"))
        x = p.float()
        if arch == "llama" and ("q_proj" in name or "k_proj" in name):
            x = paired(x, HEADS if "q_proj" in name else KV)
        raw = x.numpy().astype(np.float32)
        w.add_tensor(to, raw if x.ndim == 1 else gguf.quantize(raw, Q.BF16), raw_dtype=Q.F32 if x.ndim == 1 else Q.BF16)


def put_tokenizer(w, pre, tok):
    if pre:
        vocab = sorted(tok.get_vocab().items(), key=lambda e: e[1])
        tokens, kinds = [t for t, _ in vocab], [3 if t in SPECIAL else 1 for t, _ in vocab]
        merges = json.loads(tok.to_str())["model"]["merges"]
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre(pre)
        w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])
    else:
        tokens, scores, kinds = tok
        w.add_tokenizer_model("llama")
        w.add_token_scores(scores)
        w.add_unk_token_id(0)
    w.add_token_list(tokens)
    w.add_token_types(kinds)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    if pre in ("llama-bpe", "smollm"):
        w.add_add_bos_token(pre == "llama-bpe")
        w.add_chat_template("{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}")


def llama_cpp(path, texts):
    m = Llama(path, vocab_only=True, verbose=False)
    return [m.tokenize(t.encode(), add_bos=True, special=True) for t in texts]


def main():
    types()
    tokens = torch.randint(0, VOCAB, (N,), generator=torch.Generator().manual_seed(3)).tolist()
    texts = [t for t in TEXTS if "\0" not in t and t]
    golden, ids = {}, {}
    for name, (conf, pre, tok) in MODELS.items():
        m = build(conf)
        arch = {"smollm": "llama"}.get(name, name)
        w = gguf.GGUFWriter(f"{HERE}/{name}.gguf", arch)
        put_config(w, m, name)
        put_tokenizer(w, pre, tok)
        put_tensors(w, m, arch)
        close(w)
        golden.update({f"{name}.{k}": v for k, v in run(m, tokens).items()})
        theirs = llama_cpp(f"{HERE}/{name}.gguf", texts)
        ids[name] = [tok.encode(t).ids for t in texts] if pre else theirs
        print(name, golden[name + ".nll"].mean(), [t for t, a, b in zip(texts, ids[name], theirs) if a != b])
    save_file(golden, HERE + "/golden.safetensors")
    with open(HERE + "/tokens.json", "w") as f:
        json.dump({"prompt": tokens, "texts": texts, "ids": ids}, f, ensure_ascii=False)
        f.write("\n")


if __name__ == "__main__":
    main()
