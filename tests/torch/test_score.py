"""Windows, chunks, soft caps, sinks and ALiBi: what the model returned is what the trace says.

Every capture compares sampled rows with the model's own output; here the C program recomputes stored outputs of all
heads (`trace verify`) and dense attention of every row (`replay`), both from the trace alone.
"""
import json
import os
import tempfile
import unittest

import h5py
import numpy as np
import torch
import torch.nn as nn
import transformers
from safetensors.numpy import save_file

import lacuna_trace
import tiny

GEMMA2 = dict(head_dim=16, query_pre_attn_scalar=24, sliding_window=16, attn_logit_softcapping=50.0)


class _AdditiveMask:
    """A model whose eager attention wants the mask as what is added to the scores."""

    def __init__(self, model):
        self.model = model

    def __call__(self, ids, attention_mask):
        return self.model(ids, attention_mask=torch.zeros(attention_mask.shape).masked_fill(~attention_mask, torch.finfo(torch.float32).min))


def gpt_oss():
    model = tiny.language_model("GptOss", attn="eager", head_dim=16, num_local_experts=4, sliding_window=16)
    with torch.no_grad():
        for layer in model.model.layers:
            nn.init.normal_(layer.self_attn.sinks)
    return model


class Scores(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.dir.name, "t.h5")

    def tearDown(self):
        self.dir.cleanup()

    def run_model(self, model, run=None, **options):
        with torch.no_grad(), lacuna_trace.capture(model, self.path, **options) as cap:
            (run or (lambda m: m(tiny.prompt())))(model)
        return cap

    def clear(self):
        """What a run left beside the trace."""
        for left in os.listdir(self.dir.name):
            if left != "t.h5":
                tiny.remove(os.path.join(self.dir.name, left))

    def opened(self):
        t = lacuna_trace.open_trace(self.path)
        self.addCleanup(t.close)
        return t

    def scores(self, t):
        return [{n: x for n, x in c.stored_score.items() if n != "scale"} for c in t.calls]

    def checked(self, model, want, arrays=(), run=None, **options):
        """Capture with outputs; the reader, trace verify and replay agree with the model."""
        spy = tiny.spy_eager(model) if model.config._attn_implementation == "eager" else tiny.spy_sdpa()
        with spy as calls:
            cap = self.run_model(model, run, out="full", **options)
        t = self.opened()
        self.assertEqual(self.scores(t), want)
        self.assertLessEqual(cap.report.worst_check, 1)
        self.assertEqual(t.verify(), [])
        for c in t.calls:
            self.assertEqual([n for n in ("sinks", "alibi") if n in c.score], list(arrays))
        status, text = tiny.lacuna("trace", "verify", self.path, "--rows", "40")
        self.assertIn("stored outputs are those of q, k, v", text)
        out = os.path.join(self.dir.name, "o.h5")
        tiny.lacuna("replay", "-q", self.path, "-m", "dense", "-m", "oracle:alpha=1", "--precision", "f64", "--dump-outputs", out, "-o",
                    os.path.join(self.dir.name, "r"))
        with h5py.File(out) as f:
            for cell in (c for thousand in f["cells"].values() for c in thousand.values()):
                head, layer = int(cell.attrs["head"]), int(cell.attrs["layer"])
                tiny.same(cell["out"][:], t.call(layer).out(head), f"layer {layer} head {head}", 2e-5)
        with open(os.path.join(self.dir.name, "r", "records.jsonl"), encoding="utf-8") as f:
            records = [json.loads(line) for line in f]
        for r in (r for r in records if r["method"] == "dense"):
            allowed = t.call(r["layer"]).allowed()
            self.assertEqual((r["pairs_allowed"], r["density_elem"], r["density_tile"]), (allowed.sum(), 1, 1))
            self.assertEqual("sink_mass_mean" in r, "sinks" in arrays)
            if arrays and "sinks" in arrays:
                p = t.call(r["layer"]).probs(r["head"])
                self.assertAlmostEqual(r["sink_mass_mean"], (1 - p.sum(1)).mean(), places=9)
        return t, calls

    def test_sliding_windows(self):
        w = {"window_left": 15}
        for name, more, want in (("Mistral", dict(sliding_window=16), [w, w]), ("Phi3", dict(sliding_window=16), [w, w]),
                                 ("Qwen2", dict(use_sliding_window=True, sliding_window=16, max_window_layers=1), [{}, w]),
                                 ("Gemma3Text", dict(sliding_window=16), [w, {}]), ("Cohere2", dict(sliding_window=16, sliding_window_pattern=2), None),
                                 ("Starcoder2", dict(sliding_window=16), [w, w])):
            for attn in ("sdpa", "eager"):
                with self.subTest(name=name, attn=attn):
                    model = tiny.language_model(name, attn=attn, **more)
                    if want is None:
                        want = [w if kind == "sliding_attention" else {} for kind in model.config.layer_types]
                    t, _ = self.checked(model, want, force=True)
                    self.assertEqual(int(t.call(0).allowed().sum()), 520 if want[0] else 820)
                    t.close()
                    self.clear()

    def test_a_window_that_does_nothing_is_not_written(self):
        self.run_model(tiny.language_model("Mistral", sliding_window=16), lambda m: m(tiny.prompt(n=16)))
        t = self.opened()
        self.assertEqual((self.scores(t), int(t.file.attrs["version_minor"])), ([{}, {}], 0))

    def test_windows_in_chunks_and_caches(self):
        """A prompt in pieces, through a cache that keeps the window alone, gives the trace of the whole prompt."""
        model = tiny.language_model("Mistral", sliding_window=16)
        self.run_model(model)
        with self.opened() as t:
            whole = [(c.score, np.stack([c.k(h) for h in t.head_ids])) for c in t.calls]
        self.run_model(model, lambda m: m.generate(tiny.prompt(), max_new_tokens=3, do_sample=False, prefill_chunk_size=12), force=True)
        t = self.opened()
        for c, (score, k) in zip(t.calls, whole):
            self.assertEqual(c.score, score)
            tiny.same(np.stack([c.k(h) for h in t.head_ids]), k, "k", 2e-5)
        tiny.lacuna("trace", "verify", self.path)

    def test_left_padding(self):
        mask = torch.ones(2, tiny.TOKENS, dtype=torch.long)
        mask[1, :7] = 0
        ids = torch.cat([tiny.prompt(), tiny.prompt(seed=5)])
        self.run_model(tiny.language_model("Mistral", sliding_window=16), lambda m: m(ids, attention_mask=mask), batch=1, out="full")
        t = self.opened()
        self.assertEqual((self.scores(t), t.run["n_q"]), ([{"window_left": 15}] * 2, tiny.TOKENS - 7))
        tiny.lacuna("trace", "verify", self.path)

    def test_soft_capping(self):
        model = tiny.language_model("Gemma2", attn="eager", **GEMMA2)
        self.checked(model, [{"window_left": 15, "softcap": 50.0}, {"softcap": 50.0}])

    def test_sinks(self):
        self.checked(gpt_oss(), [{"window_left": 15}, {}], arrays=["sinks"])
        self.assertEqual(int(self.opened().file.attrs["version_minor"]), 1)

    def test_sinks_of_some_heads(self):
        model = gpt_oss()
        self.run_model(model, heads="1,3")
        t = self.opened()
        for layer in (0, 1):
            tiny.same(t.call(layer).score["sinks"], model.model.layers[layer].self_attn.sinks.detach()[[1, 3]], "sinks")
        self.assertEqual(t.verify(), [])

    def test_chunked_attention(self):
        self.checked(tiny.language_model("Llama4Text", attention_chunk_size=16), [{"chunk": 16}, {}])
        self.assertEqual(int(self.opened().call(0).allowed().sum()), 2 * 136 + 36)

    def test_alibi(self):
        model = tiny.language_model("Falcon", alibi=True)
        self.run_model(model, out="full")
        t = self.opened()
        slopes = t.call(0).score["alibi"]
        self.assertTrue((slopes > 0).all() and len(set(slopes.tolist())) == len(slopes))
        tiny.lacuna("trace", "verify", self.path)

    def test_rounded_alibi_is_a_bias(self):
        """transformers makes Falcon's ALiBi in bfloat16: behind key 256 no slope says it, so the values themselves are stored."""
        model = tiny.language_model("Falcon", alibi=True)
        self.run_model(model, lambda m: m(tiny.prompt(n=300)), out="full")
        t = self.opened()
        self.assertEqual(t.call(1).score["bias"].shape, (4, 300, 300))
        self.assertNotIn("alibi", t.call(1).score)
        tiny.lacuna("trace", "verify", self.path)
        with self.assertRaisesRegex(lacuna_trace.TraceError, "send the prompt in one piece"):
            self.run_model(model, lambda m: m.generate(tiny.prompt(n=300), max_new_tokens=1, prefill_chunk_size=64), force=True)

    def prefixed(self, n=tiny.TOKENS, p=11):
        mask = torch.ones(n, n, dtype=torch.bool).tril()
        mask[:, :p] = True
        return lambda m: m(tiny.prompt(n=n), attention_mask=mask[None, None])

    def test_a_prefix_that_sees_itself(self):
        for attn in ("sdpa", "eager"):
            with self.subTest(attn=attn):
                model, run = tiny.language_model("Llama", attn=attn), self.prefixed()
                if attn == "eager":
                    bool_mask = run
                    run = lambda m: bool_mask(_AdditiveMask(m))
                t, _ = self.checked(model, [{"prefix": 11}] * 2, run=run, force=True)
                self.assertEqual(int(t.call(0).allowed().sum()), 820 + 55)
                t.close()
                self.clear()

    def test_other_methods_refuse_a_prefix_by_name(self):
        """Methods that take rows to see no key after them leave such a call out and say why."""
        self.run_model(tiny.language_model("Llama"), self.prefixed(n=256, p=70))
        methods = ["streaming:window=16", "minference", "flexprefill", "xattention", "sampleattention", "spargeattn", "sale", "fg-attn:mode=pooled",
                   "longformer:window=8", "bigbird", "sageattention",
                   "hash-sparse", "qk-sparse", "hyperattention", "longnet", "sparse-transformer"]
        out = os.path.join(self.dir.name, "r")
        tiny.lacuna("replay", "-q", self.path, *(a for m in methods for a in ("-m", m)), "-m", "oracle", "-o", out, check=False)
        with open(os.path.join(out, "records.jsonl"), encoding="utf-8") as f:
            records = [json.loads(line) for line in f]
        self.assertEqual({r["status"] for r in records if r["method"] == "oracle"}, {"ok"})
        others = [r for r in records if r["method"] != "oracle"]
        self.assertEqual(len({r["method"] for r in others}), len(methods))
        for r in others:
            self.assertEqual((r["status"], r["method"] + " cannot combine a prefix that sees itself"), ("skip", r["reason"]), r)

    def test_sampled_rows_of_a_prefix(self):
        run = self.prefixed(n=400, p=150)
        with tiny.spy_sdpa() as calls:
            self.run_model(tiny.language_model("Llama"), run, rows="2", seed=1)
        t = self.opened()
        self.assertEqual(self.scores(t), [{"prefix": 150}] * 2)
        for call, (_, _, _, out) in zip(t.calls, calls):
            for head in t.head_ids:
                tiny.same(call.attend(head)[0], out[0][head][call.positions()], "out", 1e-4)
        self.assertEqual(t.verify(), [])
        tiny.lacuna("trace", "verify", self.path)

    def test_tokens_inside_of_a_prefix_are_refused(self):
        with self.assertRaisesRegex(lacuna_trace.TraceError, "11 tokens of the prefix see each other"):
            self.run_model(tiny.language_model("Llama"), self.prefixed(), tokens=8)
        self.assertEqual(os.listdir(self.dir.name), [])
        self.run_model(tiny.language_model("Llama"), self.prefixed())
        status, text = tiny.lacuna("trace", "subset", self.path, "--tokens", "8", "-o", os.path.join(self.dir.name, "s.h5"), check=False)
        self.assertEqual(status, 2)
        self.assertIn("prefix = 11 is longer than the 8 keys", text)

    def test_relative_bias(self):
        config = transformers.T5Config(vocab_size=256, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, initializer_factor=1.0,
                                       decoder_start_token_id=0)
        for attn in ("sdpa", "eager"):
            torch.manual_seed(0)
            model = transformers.T5ForConditionalGeneration._from_config(config, attn_implementation=attn).eval()
            for side, causal in (("encoder", False), ("decoder", True)):
                with self.subTest(attn=attn, side=side):
                    run = lambda m: m(tiny.prompt(), decoder_input_ids=tiny.prompt(seed=4))
                    self.run_model(model, run, modules=f"^{side}", out="full", force=True)
                    t = self.opened()
                    table = model.get_submodule(f"{side}.block.0.layer.0.SelfAttention").compute_bias(tiny.TOKENS, tiny.TOKENS)[0].detach()
                    for call in t.calls:
                        self.assertEqual((call.score["causal"], call.score["scale"], "rel_bias" in call.score), (causal, 1.0, True))
                        for head in t.head_ids:
                            i, j = np.arange(tiny.TOKENS)[:, None], np.arange(tiny.TOKENS)[None]
                            mine = call.score["rel_bias"][head][j - i + tiny.TOKENS - 1]
                            tiny.same(np.where((j <= i) | (not causal), mine - table[head].numpy(), 0), np.zeros_like(mine), "bias")
                    self.assertEqual(t.verify(), [])
                    tiny.lacuna("trace", "verify", self.path)
                    t.close()
        part = self.run_model(model, lambda m: m(tiny.prompt(), decoder_input_ids=tiny.prompt(seed=4)), modules="^encoder", heads="1,3", force=True)
        self.assertLessEqual(part.report.worst_check, 1)
        t = self.opened()
        self.assertEqual(t.call(1).score["rel_bias"].shape, (2, 2 * tiny.TOKENS - 1))
        self.assertEqual(t.verify(), [])
        tiny.lacuna("replay", "-q", self.path, "-m", "dense", "-m", "oracle", "-o", os.path.join(self.dir.name, "r"))

    def test_a_bias_of_rows_and_keys(self):
        """Float masks that no rule makes: of all heads and of each, causal and not, whole and in parts."""
        n, causal = tiny.TOKENS, torch.ones(tiny.TOKENS, tiny.TOKENS, dtype=torch.bool).tril()
        for heads, keep in ((1, causal), (4, causal), (4, torch.ones_like(causal))):
            with self.subTest(heads=heads, causal=keep is causal):
                bias = torch.randn(1, heads, n, n, generator=tiny.rng())
                mask = bias.masked_fill(~keep, torch.finfo(torch.float32).min)
                model, run = tiny.language_model("Llama"), lambda m: m(tiny.prompt(), attention_mask=mask)
                t, _ = self.checked(model, [{}, {}], run=run, force=True)
                self.assertEqual((bool(t.model["causal"]), t.call(0).score["bias"].shape), (keep is causal, (heads, n, n)))
                tiny.same(np.where(keep, t.call(1).score["bias"] - bias[0].numpy(), 0), np.zeros((heads, n, n)), "bias")
                t.close()
                if keep is causal:
                    self.run_model(model, run, heads="1,3", rows=9, force=True)
                    t = self.opened()
                    self.assertEqual(t.call(0).score["bias"].shape, (min(heads, 2), 9, n))
                    self.assertEqual(t.verify(), [])
                    t.close()
                    tiny.lacuna("replay", "-q", self.path, "-m", "dense", "-m", "oracle", "-o", os.path.join(self.dir.name, "p"))
                    for args in (["--tokens", "8"], ["--heads", "3"]):
                        s = os.path.join(self.dir.name, "s.h5")
                        status, text = tiny.lacuna("trace", "subset", self.path, *args, "-o", s, "--force", check=False)
                        self.assertEqual(status, 2 if "--tokens" in args else 0, text)
                    with lacuna_trace.open_trace(os.path.join(self.dir.name, "s.h5")) as s:
                        self.assertEqual((s.call(0).score["bias"].shape, s.verify()), ((1, 9, n), []))
                self.clear()

    def test_maps(self):
        """Pooled maps, beside a sink and inside of a window, are those of the reader."""
        self.run_model(gpt_oss(), maps=8)
        t = self.opened()
        for c in t.calls:
            for head in t.head_ids:
                stored, p = c.map(head, 8), c.probs(head)
                tiny.same(stored, np.pad(p, ((0, 0), (0, 0))).reshape(5, 8, 5, 8).sum((1, 3)), "map", 1e-5)

    def test_maps_of_a_prefix_and_of_a_bias(self):
        """The package's maps, those of `lacuna trace map` and of `lacuna import --maps` are the reader's."""
        bias = torch.randn(1, 4, tiny.TOKENS, tiny.TOKENS, generator=tiny.rng())
        made, st, again = (os.path.join(self.dir.name, n) for n in ("m.h5", "t.safetensors", "u.h5"))
        for run in (self.prefixed(), lambda m: m(tiny.prompt(), attention_mask=bias)):
            self.run_model(tiny.language_model("Llama"), run, maps=8, force=True)
            tiny.lacuna("trace", "map", self.path, "--maps", "8", "-o", made, "--force")
            tiny.lacuna("trace", "export", self.path, "--tensors", "q,k,v", "-o", st, "--force")
            tiny.lacuna("import", "--safetensors", st, "--maps", "8", "-o", again, "--force")
            for path in (self.path, made, again):
                with lacuna_trace.open_trace(path) as t:
                    for c in t.calls:
                        for head in t.head_ids:
                            p = c.probs(head).reshape(5, 8, 5, 8)
                            tiny.same(c.map(head, 8), p.sum((1, 3)), f"{path}: map of {c}", 1e-5)

    def test_ids_are_those_of_an_import(self):
        """The same tensors through trace export and import: one content id, so the C writer agrees in every line of it."""
        self.run_model(gpt_oss(), out="full")
        st, again = (os.path.join(self.dir.name, n) for n in ("t.safetensors", "u.h5"))
        tiny.lacuna("trace", "export", self.path, "--tensors", "q,k,v,out", "-o", st)
        tiny.lacuna("import", "--safetensors", st, "-o", again)
        with lacuna_trace.open_trace(again) as u:
            t = self.opened()
            for a, b in zip(t.calls, u.calls):
                self.assertEqual(a.stored_score, b.stored_score)
                tiny.same(a.score["sinks"], b.score["sinks"], "sinks")
            for name in ("name", "scale", "causal", "layers", "positions", "architecture"):
                self.assertEqual(t.model[name], u.model[name])
            tiny.same(t.tokens, u.tokens, "tokens")


class Reference(unittest.TestCase):
    """Records of a replay against NumPy, from the tensors that were imported: pairs, tiles, recall, errors, the map."""

    H, G, NQ, N, D = 4, 2, 150, 170, 16
    CASES = [dict(back=40), dict(chunk=48), dict(back=50, cap=4.0, sinks=True), dict(sinks=True), dict(alibi=True), dict(back=70, rel=1),
             dict(causal=False, back=20, ahead=30, cap=3.0, rel=4, sinks=True), dict(back=33, cap=4.0, sinks=True, alibi=True),
             dict(prefix=70), dict(prefix=41, cap=4.0, sinks=True, rel=4), dict(bias=1),
             dict(back=60, bias=4, cap=4.0, sinks=True)]
    METHODS = ["dense", "oracle:alpha=0.9", "oracle:kind=block:unit=16x16:alpha=0.8", "oracle:kind=topk:k=5:forced=sink-2",
               "streaming:sink=4:window=16", "longformer:window=9:global=2", "sampleattention:block=64:chunks=2"]

    def tensors(self, case):
        rng = np.random.default_rng(len(str(case)))
        t = {name: rng.normal(size=(heads, n, self.D)).astype("f4") * 1.3
             for name, heads, n in (("q", self.H, self.NQ), ("k", self.G, self.N), ("v", self.G, self.N))}
        if case.get("sinks"):
            t["sinks"] = rng.normal(size=self.H).astype("f4") + 1
        if case.get("alibi"):
            t["alibi"] = (2.0 ** -np.arange(1, self.H + 1)).astype("f4")
        if case.get("rel"):
            t["rel_bias"] = rng.normal(size=(case["rel"], 2 * self.N - 1)).astype("f4")
        if case.get("bias"):
            t["bias"] = rng.normal(size=(case["bias"], self.NQ, self.N)).astype("f4")
        return t

    def attention(self, case, t, h):
        """Scores, allowed pairs, log-sum-exp over keys, e^(z - lse) of head h."""
        p, j = np.arange(self.NQ)[:, None] + self.N - self.NQ, np.arange(self.N)[None]
        allowed = (j <= p) | (j < case.get("prefix", 0)) if case.get("causal", True) else np.ones((self.NQ, self.N), bool)
        allowed = allowed & (j > p - case["back"]) if "back" in case else allowed
        allowed = allowed & (j < p + case["ahead"]) if "ahead" in case else allowed
        allowed = allowed & (j // case["chunk"] == p // case["chunk"]) if "chunk" in case else allowed
        s = 0.3 * (t["q"][h].astype(float) @ t["k"][h // 2].astype(float).T)
        s = case["cap"] * np.tanh(s / case["cap"]) if "cap" in case else s
        s = s - float(t["alibi"][h]) * abs(p - j) if "alibi" in t else s
        s = s + t["rel_bias"][h % len(t["rel_bias"])].astype(float)[j - p + self.N - 1] if "rel_bias" in t else s
        s = s + t["bias"][h % len(t["bias"])].astype(float) if "bias" in t else s
        lse = np.log(np.where(allowed, np.exp(s), 0).sum(1))
        sink = np.exp(float(t["sinks"][h]) - lse) if "sinks" in t else np.zeros(self.NQ)
        return s, allowed, lse, sink

    @staticmethod
    def tiles(m, bq, bk):
        m = np.pad(m, ((0, -m.shape[0] % bq), (0, -m.shape[1] % bk)))
        return m.reshape(m.shape[0] // bq, bq, -1, bk).any((1, 3)).sum()

    def check_cell(self, case, t, mask, record):
        h, a = record["head"], mask.attrs
        s, allowed, lse, sink = self.attention(case, t, h)
        kept = mask.dense() & allowed
        p = np.where(allowed, np.exp(s - lse[:, None]), 0)
        recall, v = (p * kept).sum(1), t["v"][h // 2].astype(float)
        dense = p @ v / (1 + sink)[:, None]
        part = (p * kept) @ v / (recall + sink + (recall + sink == 0))[:, None]
        want = {"pairs_kept": kept.sum(), "pairs_allowed": allowed.sum(), "rows_empty": (~kept.any(1)).sum(),
                "density_tile": self.tiles(kept, a["bq"], a["bk"]) / self.tiles(allowed, a["bq"], a["bk"]),
                "density_tile@64x64": self.tiles(kept, 64, 64) / self.tiles(allowed, 64, 64), "cra_mean": recall.mean(),
                "cra_min": recall.min(), "err_l2_rel": np.linalg.norm(part - dense) / np.linalg.norm(dense),
                "err_max": abs(part - dense).max()}
        if "sinks" in t:
            want["sink_mass_mean"] = (sink / (1 + sink)).mean()
        if record["method"] == "dense":
            largest = np.where(allowed, p / (1 + sink)[:, None], 0)
            want["below_b16"] = 1 - self.tiles(largest >= 0.5 / self.N, 16, 16) / self.tiles(allowed, 16, 16)
            want["p_max"] = largest.max()
        for name, value in want.items():
            self.assertAlmostEqual(record[name], value, delta=1e-9, msg=f"{case}: {record['method']} {record['params']}: {name}")

    def test_records(self):
        for case in self.CASES:
            with self.subTest(case=case), tempfile.TemporaryDirectory() as d:
                t = self.tensors(case)
                meta = {"scale": "0.3", "causal": str(case.get("causal", True)).lower(), "name": "numpy", "layers": "4"}
                for name, key, less in (("window_left", "back", 1), ("window_right", "ahead", 1), ("chunk", "chunk", 0), ("prefix", "prefix", 0)):
                    if key in case:
                        meta["layer-02." + name] = str(case[key] - less)
                if "cap" in case:
                    meta["softcap"] = str(case["cap"])
                st, h5, m, out = (os.path.join(d, n) for n in ("t.safetensors", "t.h5", "m.h5", "r"))
                save_file({"layer-02." + n: x for n, x in t.items()}, st, metadata=meta)
                tiny.lacuna("import", "--safetensors", st, "-o", h5)
                methods = [a for name in self.METHODS for a in ("-m", name)]
                tiny.lacuna("replay", "-q", h5, *methods, "--precision", "f64", "--dump-masks", m, "-o", out)
                with open(os.path.join(out, "records.jsonl"), encoding="utf-8") as f:
                    records = {(r["method"], r["params"], r["head"]): r for r in map(json.loads, f) if r["status"] == "ok"}
                with lacuna_trace.open_masks(m) as masks:
                    fit = [m for m in self.METHODS if "prefix" not in case or m.startswith(("dense", "oracle"))]
                    self.assertGreaterEqual(len(masks), self.H * (len(fit) - 1))
                    for mask in masks:
                        self.check_cell(case, t, mask, records[mask.attrs["method"], mask.attrs["params"], mask.attrs["head"]])


if __name__ == "__main__":
    unittest.main()
