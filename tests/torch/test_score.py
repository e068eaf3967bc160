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

import lacuna_trace
import tiny

GEMMA2 = dict(head_dim=16, query_pre_attn_scalar=24, sliding_window=16, attn_logit_softcapping=50.0)


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
                    for left in os.listdir(self.dir.name):
                        if left != "t.h5":
                            tiny.remove(os.path.join(self.dir.name, left))

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

    def test_maps(self):
        """Pooled maps, beside a sink and inside of a window, are those of the reader."""
        self.run_model(gpt_oss(), maps=8)
        t = self.opened()
        for c in t.calls:
            for head in t.head_ids:
                stored, p = c.map(head, 8), c.probs(head)
                tiny.same(stored, np.pad(p, ((0, 0), (0, 0))).reshape(5, 8, 5, 8).sum((1, 3)), "map", 1e-5)

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


if __name__ == "__main__":
    unittest.main()
