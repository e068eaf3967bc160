"""Every family x every way in which a prompt reaches a model x dtypes and parts: the trace holds what reached the kernel.

Every family runs in float32 over all ways, and in both dtypes over all parts of a prompt in one piece.
"""
import os
import resource
import tempfile
import unittest

import torch
import transformers

import lacuna_trace
import test_language
import tiny

WINDOW = dict(sliding_window=16)
# name -> (class, fields beside those of tiny.py, attention function)
LINES = {n: (n, {}, "sdpa") for n in ("Llama", "Olmo2", "Phi", "StableLm", "Nemotron", "Glm", "Glm4", "Ernie4_5", "SeedOss", "Qwen3", "Mixtral",
                                      "Qwen3Moe", "DeepseekV2", "DeepseekV3", "Granite", "SmolLM3", "GPT2", "OPT", "GPTNeoX")}
LINES |= {
    "Mistral": ("Mistral", WINDOW, "sdpa"), "Phi3": ("Phi3", WINDOW, "sdpa"), "Starcoder2": ("Starcoder2", WINDOW, "sdpa"),
    "Cohere2": ("Cohere2", WINDOW, "sdpa"), "Olmo3": ("Olmo3", WINDOW, "sdpa"),
    "Qwen2": ("Qwen2", dict(use_sliding_window=True, sliding_window=16, max_window_layers=1), "sdpa"),
    "Exaone4": ("Exaone4", dict(sliding_window=16, sliding_window_pattern=2), "sdpa"),
    "Gemma2": ("Gemma2", dict(head_dim=16, query_pre_attn_scalar=24, sliding_window=16, attn_logit_softcapping=50.0), "eager"),
    "Gemma3": ("Gemma3Text", WINDOW, "sdpa"),
    "GptOss": ("GptOss", dict(head_dim=16, num_local_experts=4, sliding_window=16), "eager"),
    "Llama4": ("Llama4Text", dict(attention_chunk_size=16), "sdpa"),
    "Qwen3Next": ("Qwen3Next", dict(head_dim=16, num_hidden_layers=4, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
                                    shared_expert_intermediate_size=32, linear_num_value_heads=4, linear_num_key_heads=2,
                                    linear_key_head_dim=16, linear_value_head_dim=16), "sdpa"),
    "MiniMax": ("MiniMax", dict(num_local_experts=2, head_dim=16), "sdpa"),
    "Falcon": ("Falcon", dict(alibi=False), "sdpa"), "Falcon-alibi": ("Falcon", dict(alibi=True), "sdpa"),
}
# Softmax layers, where they are not all.
LAYERS = {"Qwen3Next": [3], "MiniMax": [0]}
LONG = 300  # tokens, for samples of rows


def padded(n=tiny.TOKENS, left=9):
    ids = torch.cat([tiny.prompt(n=n), torch.cat([torch.zeros(1, left, dtype=torch.long), tiny.prompt(n=n - left, seed=2)], 1)])
    return ids, (ids > 0).long()


def generate(**more):
    return lambda m: m.generate(tiny.prompt(), max_new_tokens=2, do_sample=False, **more)


def run_padded(m):
    ids, mask = padded()
    m(ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0))


# way -> (run, options, prompt of the plain run)
WAYS = {
    "forward": (lambda m: m(tiny.prompt()), {}, tiny.prompt()),
    "generate": (generate(), {}, tiny.prompt()),
    "chunked": (generate(prefill_chunk_size=16), {}, tiny.prompt()),
    "static": (generate(cache_implementation="static"), {}, tiny.prompt()),
    "padded": (run_padded, dict(batch=1), tiny.prompt(n=tiny.TOKENS - 9, seed=2)),
}
# What transformers itself cannot do with a family.
LIBRARY = {("MiniMax", "chunked"): "MiniMax of transformers has no cache for chunks",
           ("Falcon-alibi", "static"): "transformers makes ALiBi of another length than its static cache"}
LOOSE = {("Qwen3Next", "padded"): 2e-3}  # padding runs through the linear layers
# transformers rounds Falcon's ALiBi to bfloat16 steps: of many tokens it is a bias of rows and keys.
REFUSED_PARTS = {"Falcon-alibi": "a sample of rows and decoded tokens have no place for it"}


class Matrix(test_language.Case):
    def model(self, name, dtype, n=tiny.TOKENS):
        cls, more, attn = LINES[name]
        if not hasattr(transformers, cls + "Config"):
            self.skipTest(f"transformers {transformers.__version__} has no {cls}")
        model = tiny.language_model(cls, dtype, attn, **more)
        for layer in getattr(getattr(model, "model", None), "layers", ()):
            if name == "GptOss":
                torch.nn.init.normal_(layer.self_attn.sinks, generator=tiny.rng())
        return model

    def seen(self, name, model, ids):
        with (tiny.spy_eager(model) if LINES[name][2] == "eager" else tiny.spy_sdpa()) as calls, torch.no_grad():
            model(ids)
        return [c for c in calls if c[0].shape[2] == ids.shape[1]]

    def check(self, name, t, calls, within):
        """q, k, v of the trace, whatever part it is, against what the spy saw; and the attention of both."""
        layers = LAYERS.get(name, range(len(calls)))
        for call in t.calls:
            q, k, v, out = (x[0].float() for x in calls[list(layers).index(call.layer)])
            at = call.positions()
            for head in call.heads:
                kv = head * k.shape[0] // q.shape[0]
                top = max(1.0, float(q[head].abs().max()))
                tiny.same(call.q(head), q[head][at], f"{name}: q of {call}, head {head}", within * top)
                tiny.same(call.k(head), k[kv], f"{name}: k of {call}, head {head}", within * max(1.0, float(k[kv].abs().max())))
                tiny.same(call.v(head), v[kv], f"{name}: v of {call}, head {head}", within * max(1.0, float(v[kv].abs().max())))
                if t.model["dtype"] == "float32":
                    mine = call.attend(head)[0]
                    tiny.same(mine, out[head][at], f"{name}: output of {call}, head {head}", 1e-4 * max(1.0, float(out[head].abs().max())))

    def one(self, name, way):
        run, options, ids = WAYS[way]
        model = self.model(name, torch.float32)
        if (name, way) in LIBRARY:
            self.skipTest(LIBRARY[name, way])
        t, report = self.capture(model, run, **options)
        self.check(name, t, self.seen(name, model, ids), 0 if way in ("forward", "generate") else LOOSE.get((name, way), 2e-4))
        self.assertEqual([c.layer for c in t.calls], list(LAYERS.get(name, range(len(t.calls)))))
        self.assertLess(report.worst_check, 1)
        t.close()

    def parts(self, name):
        for dtype in (torch.float32, torch.bfloat16):
            model = self.model(name, dtype)
            layer = LAYERS.get(name, [0, 1])[-1]
            ids = tiny.prompt(n=LONG)
            calls, short = self.seen(name, model, ids), self.seen(name, model, tiny.prompt())
            for options, run, seen in ((dict(layers=str(layer), heads="2"), lambda m: m(tiny.prompt()), short),
                                       (dict(rows=9), lambda m: m(tiny.prompt()), short),
                                       (dict(rows="2", seed=1), lambda m: m(ids), calls)):
                with self.subTest(dtype=dtype, options=options):
                    if seen is calls and name in REFUSED_PARTS:
                        with self.assertRaisesRegex(lacuna_trace.TraceError, REFUSED_PARTS[name]):
                            self.capture(model, run, **options)
                        continue
                    t, _ = self.capture(model, run, **options)
                    self.check(name, t, seen, 0)
                    self.assertEqual({c.layer for c in t.calls}, {layer} if "layers" in options else set(LAYERS.get(name, [0, 1])))
                    t.close()


def way_test(name, way):
    return lambda self: self.one(name, way)


def parts_test(name):
    return lambda self: self.parts(name)


for line in LINES:
    for w in WAYS:
        setattr(Matrix, f"test_{line.lower().replace('-', '_')}_{w}", way_test(line, w))
    setattr(Matrix, f"test_{line.lower().replace('-', '_')}_parts", parts_test(line))


class Memory(unittest.TestCase):
    """Host memory of a capture does not grow with the trace: a ring of buffers."""

    def test_a_long_prompt(self):
        model = tiny.language_model("Llama", max_position_embeddings=65536, num_hidden_layers=8)
        ids = tiny.prompt(n=16384)
        with tempfile.TemporaryDirectory() as d, torch.no_grad():
            model(ids, logits_to_keep=1)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            with lacuna_trace.capture(model, os.path.join(d, "t.h5"), out="check") as cap:
                model(ids, logits_to_keep=1)
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        self.assertEqual(cap.report.calls, 8)
        self.assertLess(grown, 1 << 30)


if __name__ == "__main__":
    unittest.main()
