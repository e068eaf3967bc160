"""The same checkpoint through `lacuna capture` and through this package: equal traces, for every native family."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import lacuna_trace
import tiny

ROOT = os.environ["ROOT"]
TOKENIZERS = os.path.join(ROOT, "tests/data/tiny/tokenizers.json")
TEXT = "static int next(struct state *s)\n{\n\treturn s->n == 1024 ? -1 : 0;\n}\n" * 2


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()

    def tearDown(self):
        self.dir.cleanup()

    def file(self, name):
        return os.path.join(self.dir.name, name)

    def open(self, name):
        t = lacuna_trace.open_trace(self.file(name))
        self.addCleanup(t.close)
        return t

    def same_calls(self, a, b, within):
        self.assertEqual([(c.step, c.branch, c.layer, c.block, c.order) for c in a.calls],
                         [(c.step, c.branch, c.layer, c.block, c.order) for c in b.calls])
        for x, y in zip(a.calls, b.calls):
            np.testing.assert_allclose([x.timestep, x.sigma], [y.timestep, y.sigma], rtol=1e-6)
            for head in x.heads:
                for what in ("q", "k", "v"):
                    p, q = getattr(x, what)(head), getattr(y, what)(head)
                    tiny.same(p, q, f"{what} of {x}, head {head}", within * max(1.0, float(np.abs(q).max())))


# Beside the plain configurations of tiny.py; a name before the colon is the class.
VARIANTS = {
    "Mistral:window": dict(sliding_window=16),
    "Qwen2:window": dict(use_sliding_window=True, sliding_window=16, max_window_layers=1),
    "Phi3:window": dict(sliding_window=16),
    "Phi3:long": dict(max_position_embeddings=512, original_max_position_embeddings=32, rope_parameters={
        "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0 + i / 8 for i in range(8)],
        "long_factor": [2.0 + i for i in range(8)], "original_max_position_embeddings": 32}),
    "Llama:dynamic": dict(max_position_embeddings=32, rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}),
    "Llama:yi": dict(rope_parameters={"rope_type": "default", "rope_theta": 5000000.0}, rms_norm_eps=1e-5, tie_word_embeddings=False),
    "Qwen3Moe:normed": dict(norm_topk_prob=True, mlp_only_layers=[0]),
}


def checkpoint(folder, name):
    """A tiny checkpoint with a tokenizer of tests/data."""
    more, name = VARIANTS.get(name, {}), name.split(":")[0]
    with open(TOKENIZERS, encoding="utf-8") as f:
        tokenizer = next(t for t in json.load(f)["tokenizers"] if t["name"].startswith("llama3" if name == "Llama" else "qwen2"))
    vocab = max(tokenizer["tokenizer"]["model"]["vocab"].values()) + 1 + len(tokenizer["tokenizer"].get("added_tokens", []))
    tiny.language_model(name, vocab_size=vocab + 16, initializer_range=0.1, **more).save_pretrained(folder)
    for file, content in (("tokenizer.json", tokenizer["tokenizer"]),
                          ("tokenizer_config.json", dict(tokenizer["config"] or {}, tokenizer_class="PreTrainedTokenizerFast"))):
        with open(os.path.join(folder, file), "w", encoding="utf-8") as f:
            json.dump(content, f)


def family_test(name):
    def test(self):
        model, prompt = self.file("model"), self.file("prompt.txt")
        os.mkdir(model)
        checkpoint(model, name)
        with open(prompt, "w", encoding="utf-8") as f:
            f.write(TEXT)
        tiny.lacuna("capture", "-q", "--model", model, "--prompt", prompt, "--maps", 8, "-o", self.file("c.h5"))
        for attn, file in (("sdpa", "p.h5"), ("eager", "e.h5"))[:2 if name == "Llama" else 1]:
            p = subprocess.run([sys.executable, "-W", "ignore", "-m", "lacuna_trace", "--hf", model, "--prompt", prompt, "--maps", "8",
                                "--attn", attn, "-o", self.file(file), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               check=False)
            self.assertEqual(p.returncode, 0, p.stderr)
            self.assertEqual(json.loads(p.stdout)["calls"], 2)
            c, t = self.open("c.h5"), self.open(file)
            self.same_calls(c, t, 1e-5)
            self.assertEqual([x.stored_score for x in c.calls], [x.stored_score for x in t.calls])
            if name.endswith(":window"):
                self.assertEqual(c.call(1).stored_score, {"window_left": 15})
            np.testing.assert_array_equal(c.tokens, t.tokens)
            for head in t.head_ids:
                tiny.same(c.call(1).map(head, 8), t.call(1).map(head, 8), "map", 1e-4)
            other = ("computed_by", "optional", "name")
            for group in ("model", "run"):
                mine, theirs = ({k: v for k, v in getattr(x, group).items() if k not in other} for x in (t, c))
                self.assertEqual(mine, theirs)
    return test


class Native(Case):
    """Language models, with their tokenizers, through both command lines."""


for family in ("Llama", "Mistral", "Qwen2", "Qwen3", "Mixtral", "Qwen3Moe", "Phi3", "Glm", "Glm4", *VARIANTS):
    setattr(Native, "test_" + family.lower().replace(":", "_"), family_test(family))


class InternLM2(Case):
    """No class of transformers: its checkpoint is that of a Llama with other names and q, k and v in one tensor."""

    def test_internlm2(self):
        model, renamed, prompt = self.file("model"), self.file("renamed"), self.file("prompt.txt")
        os.mkdir(model)
        os.mkdir(renamed)
        checkpoint(model, "Llama")
        with open(prompt, "w", encoding="utf-8") as f:
            f.write(TEXT)
        names = {"input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "feed_forward.w1",
                 "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2", "self_attn.o_proj": "attention.wo",
                 "embed_tokens": "tok_embeddings", "lm_head": "output"}
        tensors = load_file(os.path.join(model, "model.safetensors"))
        out = {}
        for name, x in tensors.items():
            new = name
            for a, b in names.items():
                new = new.replace(a, b)
            if "self_attn.q_proj" in name:
                k, v = (tensors[name.replace("q_proj", p)].view(2, 1, 16, 64) for p in ("k_proj", "v_proj"))
                out[name.replace("self_attn.q_proj", "attention.wqkv")] = torch.cat([x.view(2, 2, 16, 64), k, v], 1).reshape(128, 64)
            elif "self_attn.k_proj" not in name and "self_attn.v_proj" not in name:
                out[new] = x
        save_file({n: x.contiguous() for n, x in out.items()}, os.path.join(renamed, "model.safetensors"))
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(os.path.join(model, file), renamed)
        with open(os.path.join(model, "config.json"), encoding="utf-8") as f:
            config = dict(json.load(f), architectures=["InternLM2ForCausalLM"], bias=False)
        with open(os.path.join(renamed, "config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f)
        for folder, file in ((model, "a.h5"), (renamed, "b.h5")):
            tiny.lacuna("capture", "-q", "--model", folder, "--prompt", prompt, "-o", self.file(file))
        self.same_calls(self.open("a.h5"), self.open("b.h5"), 0)
        subprocess.run([sys.executable, "-W", "ignore", "-m", "lacuna_trace", "--hf", model, "--prompt", prompt, "-o", self.file("p.h5")],
                       stdout=subprocess.DEVNULL, check=True)
        self.same_calls(self.open("b.h5"), self.open("p.h5"), 1e-5)


class Wan(Case):
    def test_wan(self):
        """Three guided steps of a tiny Wan, by its diffusers class and the sampler x += (s' - s) v."""
        import diffusers
        cls, fields = tiny.VIDEO["Wan"]
        torch.manual_seed(0)
        model = getattr(diffusers, cls)(**fields).eval()
        with torch.no_grad():
            for name, p in model.named_parameters():
                if p.ndim > 1 and "scale_shift" not in name:
                    torch.nn.init.normal_(p, std=p[0].numel() ** -0.5)
        model.save_pretrained(self.file("model"))
        noise, text, negative = tiny.normal(4, 3, 8, 12), tiny.normal(7, 16), tiny.normal(7, 16, seed=4)
        save_file({"noise": noise}, self.file("noise.safetensors"))
        save_file({"text": text}, self.file("text.safetensors"))
        save_file({"text": negative}, self.file("negative.safetensors"))
        tiny.lacuna("capture", "-q", "--model", self.file("model"), "--size", "3x8x12", "--steps", 3, "--guidance", 2, "--shift", 5, "--dtype", "f32", "--text",
                    self.file("text.safetensors"), "--negative", self.file("negative.safetensors"), "--noise", self.file("noise.safetensors"),
                    "-o", self.file("c.h5"))
        c = self.open("c.h5")
        sigmas, x = c.array("sigmas"), noise[None]
        model.register_to_config(_name_or_path=self.file("model"))  # as from_pretrained does
        with torch.no_grad(), lacuna_trace.capture(model, self.file("p.h5")) as cap:
            for i in range(3):
                v = {}
                for branch, y in (("cond", text), ("uncond", negative)):
                    cap.step(i, timestep=1000 * sigmas[i], sigma=sigmas[i], branch=branch)
                    v[branch] = model(hidden_states=x, timestep=torch.tensor([1000 * sigmas[i]], dtype=torch.float32),
                                      encoder_hidden_states=y[None], return_dict=False)[0]
                x = x + float(sigmas[i + 1] - sigmas[i]) * (v["uncond"] + 2 * (v["cond"] - v["uncond"]))
        t = self.open("p.h5")
        self.same_calls(c, t, 1e-5)
        same = ("architecture", "weights_id", "layers", "heads", "kv_heads", "head_dim", "v_dim", "causal", "positions_applied", "positions",
                "dtype", "compute")
        self.assertEqual({k: c.model[k] for k in same}, {k: t.model[k] for k in same})
        self.assertAlmostEqual(c.model["scale"], t.model["scale"])
        for name in ("grid_t", "grid_h", "grid_w", "patch_t", "patch_h", "patch_w", "text_tokens", "text_place", "token_order"):
            self.assertEqual(c.video[name], t.video[name], name)


if __name__ == "__main__":
    unittest.main()
