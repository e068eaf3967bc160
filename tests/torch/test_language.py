"""Language models of transformers: what the trace holds is what reached the attention function."""
import os
import tempfile
import unittest

import numpy as np
import torch
import transformers

import lacuna_trace
import tiny

FAMILIES = [n for n in tiny.LANGUAGE if hasattr(transformers, n + "Config")]


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.dir.name, "t.h5")

    def tearDown(self):
        self.dir.cleanup()

    def capture(self, model, run, **options):
        """Run under the capture; verify the file with both programs; (trace, report)."""
        with torch.no_grad(), lacuna_trace.capture(model, self.path, force=True, **options) as cap:
            run(model)
        tiny.lacuna("trace", "verify", self.path)
        t = lacuna_trace.open_trace(self.path)
        self.addCleanup(t.close)
        self.assertEqual(t.verify(), [])
        return t, cap.report

    def compare(self, t, calls, within=0.0, out=False):
        """The prefill calls that a spy saw, one per layer, with the trace; k and v of the spy may be repeated."""
        self.assertEqual([c.layer for c in t.calls], list(range(len(calls))))
        for call, (q, k, v, o) in zip(t.calls, calls):
            self.assertEqual((call.step, call.branch, call.block), (0, "main", "self"))
            h, n = q.shape[1], t.run["n_k"]
            for head in call.heads:
                kv = head * k.shape[1] // h
                tiny.same(call.q(head), q[0, head].float(), f"q of head {head}", within)
                tiny.same(call.k(head), k[0, kv, :n].float(), f"k of head {head}", within)
                tiny.same(call.v(head), v[0, kv, :n].float(), f"v of head {head}", within)
                if out:
                    tiny.same(call.out(head), o[0, head].float(), f"out of head {head}", within)


def family_test(name):
    def test(self):
        for dtype in (torch.float32, torch.bfloat16):
            with self.subTest(dtype=dtype):
                model = tiny.language_model(name, dtype)
                with tiny.spy_sdpa() as calls:
                    t, report = self.capture(model, lambda m: m(tiny.prompt()), out="full")
                self.compare(t, calls, out=True)
                self.assertEqual(t.model["causal"], 1)
                self.assertEqual(t.model["architecture"], type(model).__name__)
                self.assertEqual(t.model["dtype"], str(dtype).removeprefix("torch."))
                self.assertLess(report.worst_check, 1)
                np.testing.assert_array_equal(t.tokens, tiny.prompt()[0])
                want = {"Granite": 0.5, "Gemma3Text": 24 ** -0.5, "OPT": 1.0}.get(name)
                if want is not None:
                    self.assertAlmostEqual(t.model["scale"], want, places=6)
    return test


class Families(Case):
    """One test per family; the attention output is stored and recomputed by `lacuna trace verify`."""


for family in FAMILIES:
    setattr(Families, "test_" + family.lower(), family_test(family))


class Compiled(Case):
    def test_a_target_inside_of_compiled_code(self):
        """Code that was compiled around the target, before the capture or in it, stops at its attention."""
        model = tiny.language_model("Llama")
        want, _ = self.capture(model, lambda m: m(tiny.prompt()))
        want = [[getattr(c, what)(1) for what in "qkv"] for c in want.calls]
        compiled = torch.compile(model, backend="eager")
        for _ in range(2):
            t, report = self.capture(model, lambda m: compiled(tiny.prompt()))
            for call, arrays in zip(t.calls, want):
                for what, x in zip("qkv", arrays):
                    tiny.same(getattr(call, what)(1), x, what, 1e-6)
            self.assertEqual(report.calls, 2)


class SharedLayers(Case):
    """Several layers of a model are one module: its calls are numbered by their order in a forward."""

    def test_albert(self):
        for groups, inner in ((1, 1), (2, 2)):
            config = transformers.AlbertConfig(vocab_size=256, embedding_size=16, hidden_size=32, num_hidden_layers=4, num_attention_heads=4,
                                               intermediate_size=48, num_hidden_groups=groups, inner_group_num=inner, initializer_range=0.35)
            model = transformers.AlbertModel(config).eval()
            with self.subTest(groups=groups), tiny.spy_sdpa() as calls:
                t, report = self.capture(model, lambda m: m(tiny.prompt()), out="full")
                self.compare(t, calls, out=True)
                self.assertEqual((t.model["layers"], t.model["causal"], report.calls), (4 * inner, 0, 4 * inner))

    def test_numbered_modules(self):
        """MobileLLM's order of layers, and a stack that runs twice; a prompt in chunks begins anew."""
        for order in ((0, 0, 1, 1), (0, 1, 0, 1)):
            model = tiny.language_model("Llama")
            model.model.layers = torch.nn.ModuleList(model.model.layers[i] for i in order)
            model.config.num_hidden_layers = 4
            with self.subTest(order=order):
                with tiny.spy_sdpa() as calls:
                    t, _ = self.capture(model, lambda m: m(tiny.prompt(), use_cache=False))
                self.compare(t, calls)
                t, _ = self.capture(model, lambda m: m(tiny.prompt(), use_cache=False), layers="1,3")
                self.assertEqual([c.layer for c in t.calls], [1, 3])
                tiny.same(t.call(3).q(2), calls[3][0][0, 2], "q")


class OwnOutput(Case):
    def test_output_projection_gives_the_module_s_own_output(self):
        model, seen = tiny.language_model("Qwen3"), []
        hook = model.model.layers[1].self_attn.register_forward_hook(lambda m, a, r: seen.append(r[0]))
        t, _ = self.capture(model, lambda m: m(tiny.prompt()), out="full")
        hook.remove()
        call = t.call(1)
        rows = torch.tensor(np.concatenate([call.out(h) for h in call.heads], 1))
        mine = model.model.layers[1].self_attn.o_proj(rows)
        tiny.same(mine.detach(), seen[0][0], "output of the module", 1e-5)

    def test_logits_are_the_same_with_and_without(self):
        for name in ("Llama", "DeepseekV2"):
            model = tiny.language_model(name)
            with torch.no_grad():
                before = model(tiny.prompt()).logits
            logits = []
            self.capture(model, lambda m: logits.append(m(tiny.prompt()).logits))
            self.assertTrue(torch.equal(before, logits[0]))
            with torch.no_grad():
                self.assertTrue(torch.equal(before, model(tiny.prompt()).logits))

    def test_mla_has_its_own_value_width_and_no_grouping(self):
        t, _ = self.capture(tiny.language_model("DeepseekV2"), lambda m: m(tiny.prompt()))
        self.assertEqual((t.model["head_dim"], t.model["v_dim"], t.model["kv_heads"]), (24, 12, 4))


class Inputs(Case):
    """Every way in which a prompt reaches the model gives the rows of the one-piece prompt."""

    @classmethod
    def setUpClass(cls):
        cls.model = tiny.language_model("Llama")

    def reference(self, model=None):
        with tiny.spy_sdpa() as calls, torch.no_grad():
            (model or self.model)(tiny.prompt())
        return calls

    def test_generate_leaves_decoding_out(self):
        t, report = self.capture(self.model, lambda m: m.generate(tiny.prompt(), max_new_tokens=3, do_sample=False))
        self.compare(t, self.reference())
        self.assertEqual(sum(sum(c.values()) for c in report.left_out.values()), 4)

    def test_generate_in_chunks(self):
        t, _ = self.capture(self.model, lambda m: m.generate(tiny.prompt(), max_new_tokens=2, do_sample=False, prefill_chunk_size=16))
        self.compare(t, self.reference(), 2e-5)

    def test_static_cache(self):
        t, _ = self.capture(self.model, lambda m: m.generate(tiny.prompt(), max_new_tokens=2, do_sample=False,
                                                             cache_implementation="static"))
        self.compare(t, self.reference(), 2e-5)

    def test_chunks_by_hand_need_the_length(self):
        def run(m):
            cache = transformers.DynamicCache()
            for at in range(0, tiny.TOKENS, 12):
                m(tiny.prompt()[:, at:at + 12], past_key_values=cache, use_cache=True)
        t, _ = self.capture(self.model, run, tokens=tiny.TOKENS)
        self.compare(t, self.reference(), 2e-5)
        with self.assertRaisesRegex(lacuna_trace.TraceError, "needs its length, tokens="):
            self.capture(self.model, run)

    def test_first_tokens_alone(self):
        t, _ = self.capture(self.model, lambda m: m(tiny.prompt()), tokens=25)
        self.compare(t, [tuple(x[:, :, :25] for x in c) for c in self.reference()])

    def test_decoded_tokens_too(self):
        made = []
        t, _ = self.capture(self.model, lambda m: made.append(m.generate(tiny.prompt(), max_new_tokens=6, do_sample=False)), tokens=44)
        n = t.run["n_q"]
        self.assertTrue(40 <= n <= 44)
        with tiny.spy_sdpa() as calls, torch.no_grad():
            self.model(made[0][:, :n])
        self.compare(t, calls, 2e-5)
        np.testing.assert_array_equal(t.tokens, made[0][0, :n])
        self.assertEqual(os.listdir(self.dir.name), ["t.h5"])

    def test_decoding_that_ends_early_gives_a_shorter_trace(self):
        t, _ = self.capture(self.model, lambda m: m.generate(tiny.prompt(), max_new_tokens=3, do_sample=False), tokens=1000)
        self.assertEqual(t.run["n_q"], 42)

    def decode(self, most, window, new=8, **options):
        made = []
        t, _ = self.capture(self.model, lambda m: made.append(m.generate(tiny.prompt(), max_new_tokens=new, do_sample=False)), decode=most,
                            window=window, generated_by="greedy", **options)
        n, w = t.run["n_k"], min(window, 40)
        with tiny.spy_sdpa() as calls, torch.no_grad():
            self.model(made[0][:, :n])
        self.assertEqual((t.run["decode_from"], t.run["n_q"], t.run["generated_by"]), (40, w + n - 40, "greedy"))
        np.testing.assert_array_equal(t.tokens, made[0][0, :n])
        np.testing.assert_array_equal(t.calls[0].positions(), np.arange(40 - w, n))
        self.compare(t, [(q[:, :, 40 - w:], k, v, o[:, :, 40 - w:]) for q, k, v, o in calls], 2e-5)
        return t

    def test_a_decode_phase(self):
        self.assertEqual(self.decode(7, 12).run["n_k"], 47)
        self.assertEqual(self.decode(100, 12).run["n_k"], 47)   # generation ends before
        self.assertEqual(self.decode(3, 128).run["n_k"], 43)    # more tokens come
        t = self.decode(7, 0, out="full")
        self.assertEqual(self.decode(7, 0, out="full").id, t.id)
        for options, text in (({"decode": 4, "rows": 3}, "leave rows= out"), ({"decode": -1}, "at least 0")):
            with self.assertRaisesRegex(ValueError, text):
                lacuna_trace.capture(self.model, self.path, **options)
        with self.assertRaisesRegex(lacuna_trace.TraceError, "no token was fed back"):
            self.decode(4, 4, new=1)

    def test_extra_operands(self):
        """Queries and keys before the rotation, by hooks of the test; of stored heads and rows, through chunks of decoding."""
        attn = self.model.model.layers[1].self_attn
        seen = {"q_pre": [], "k_pre": []}

        def run(cap, m):
            def store(name):
                def hook(module, args, out):
                    x = out[0].view(out.shape[1], -1, attn.head_dim).transpose(0, 1)
                    seen[name].append(x.clone())
                    cap.aux(1, name, x)
                return hook
            hooks = [attn.q_proj.register_forward_hook(store("q_pre")), attn.k_proj.register_forward_hook(store("k_pre"))]
            m.generate(tiny.prompt(), max_new_tokens=4, do_sample=False)
            for h in hooks:
                h.remove()
            cap.aux(1, "gate_k", torch.arange(24.).view(2, 3, 4))

        with torch.no_grad(), lacuna_trace.capture(self.model, self.path, decode=3, window=5, heads="2-3") as cap:
            run(cap, self.model)
        tiny.lacuna("trace", "verify", self.path)
        t = lacuna_trace.open_trace(self.path)
        self.addCleanup(t.close)
        self.assertEqual(t.verify(), [])
        self.assertIsNone(t.call(0).aux("q_pre"))
        q, k = (torch.cat(seen[n], 1)[:, :43] for n in ("q_pre", "k_pre"))
        np.testing.assert_array_equal(t.call(1).aux("q_pre"), q[2:4, 35:])
        np.testing.assert_array_equal(t.call(1).aux("k_pre"), k[t.kv_ids])
        np.testing.assert_array_equal(t.call(1).aux("gate_k").ravel(), np.arange(24))
        with self.assertRaisesRegex(lacuna_trace.TraceError, "has 40 tokens, the trace 43"):
            with torch.no_grad(), lacuna_trace.capture(self.model, self.path, decode=3, force=True) as cap:
                self.model.generate(tiny.prompt(), max_new_tokens=4, do_sample=False)
                cap.aux(0, "ik", torch.zeros(1, 40, 8))

    def test_padding_at_either_end_is_cut_off(self):
        ids = tiny.prompt()
        for left in (True, False):
            pad = torch.zeros(1, 7, dtype=torch.long)
            padded = torch.cat([pad, ids] if left else [ids, pad], 1)
            mask = (torch.cat([pad, ids] if left else [ids, pad], 1) > 0).long()
            both = torch.cat([tiny.prompt(n=47, seed=5), padded])
            t, _ = self.capture(self.model, lambda m: m(both, attention_mask=torch.cat([torch.ones(1, 47).long(), mask]),
                                                        position_ids=(mask.cumsum(1) - 1).clamp(min=0).expand(2, -1)), batch=1)
            self.compare(t, self.reference(), 2e-5)
            np.testing.assert_array_equal(t.tokens, ids[0])

    def test_generate_of_a_batch_with_left_padding(self):
        ids = torch.cat([tiny.prompt(), torch.cat([torch.zeros(1, 9, dtype=torch.long), tiny.prompt(n=31, seed=2)], 1)])
        mask = (ids > 0).long()
        t, _ = self.capture(self.model, lambda m: m.generate(ids, attention_mask=mask, max_new_tokens=2, do_sample=False), batch=1)
        with tiny.spy_sdpa() as calls, torch.no_grad():
            self.model(tiny.prompt(n=31, seed=2))
        self.compare(t, calls, 2e-5)

    def test_eager_and_sdpa_agree(self):
        for dtype in (torch.float32, torch.bfloat16):
            model = tiny.language_model("Llama", dtype, attn="eager")
            with tiny.spy_eager(model) as calls:
                t, report = self.capture(model, lambda m: m(tiny.prompt()))
            # In 16 bits the check calls the function once more, with the sampled rows alone.
            self.compare(t, [c for c in calls if c[0].shape[2] == tiny.TOKENS])
            self.assertLess(report.worst_check, 1)

    def test_windowed_model_below_its_window_in_chunks(self):
        model = tiny.language_model("Gemma3Text")
        t, _ = self.capture(model, lambda m: m.generate(tiny.prompt(), max_new_tokens=2, do_sample=False, prefill_chunk_size=16))
        self.compare(t, self.reference(model), 2e-5)

    def test_encoder_is_not_causal(self):
        config = transformers.BertConfig(vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                                         initializer_range=0.35)
        torch.manual_seed(0)
        model = transformers.BertModel(config).eval()
        with tiny.spy_sdpa() as calls:
            t, _ = self.capture(model, lambda m: m(tiny.prompt()), out="full")
        self.compare(t, calls, out=True)
        self.assertEqual((t.model["causal"], t.model["positions"]), (0, ""))


class Parts(Case):
    """Layers, heads, rows, dtype, maps: a part of the trace is that part of the whole."""

    @classmethod
    def setUpClass(cls):
        cls.model = tiny.language_model("Llama", num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=4)

    def both(self, **options):
        whole, _ = self.capture(self.model, lambda m: m(tiny.prompt()))
        whole.close()
        os.rename(self.path, self.path + ".whole")
        part, _ = self.capture(self.model, lambda m: m(tiny.prompt()), **options)
        whole = lacuna_trace.open_trace(self.path + ".whole")
        self.addCleanup(whole.close)
        return whole, part

    def test_layers(self):
        whole, part = self.both(layers="0,2")
        self.assertEqual([c.layer for c in part.calls], [0, 2])
        self.assertEqual(part.model["layers"], 3)
        tiny.same(part.call(2).q(5), whole.call(2).q(5), "q")

    def test_heads_keep_the_model_s_numbers(self):
        for heads, kv in (("1,6", "0,3"), ("2-5", "1-2"), ("0,1,2", "0,0-1"), ([7], "3")):
            whole, part = self.both(heads=heads)
            self.assertEqual(part.model["kv_head_ids"], kv)
            for head in part.head_ids:
                for what in ("q", "k", "v"):
                    tiny.same(getattr(part.call(1), what)(head), getattr(whole.call(1), what)(head), what)
                self.assertEqual(part.call(1).kv_head(head), head // 2)

    def test_last_rows(self):
        whole, part = self.both(rows=8)
        self.assertEqual((part.run["n_q"], part.run["n_k"]), (8, 40))
        tiny.same(part.call(1).q(3), whole.call(1).q(3)[-8:], "q")
        tiny.same(part.call(1).probs(3), whole.call(1).probs(3, slice(32, 40)), "probabilities")
        status, text = tiny.lacuna("replay", "-q", self.path, "-m", "dense", "-o", os.path.join(self.dir.name, "r"))
        self.assertEqual(status, 0, text)

    def test_dtype(self):
        for name, torch_type in (("bf16", torch.bfloat16), ("f16", torch.float16)):
            whole, part = self.both(dtype=name)
            want = torch.tensor(whole.call(0).q(1)).to(torch_type).float()
            tiny.same(part.call(0).q(1), want, "q")

    def test_maps(self):
        _, part = self.both(maps=8, heads="1,6")
        for head in (1, 6):
            p = part.call(2).probs(head).reshape(5, 8, 5, 8)
            tiny.same(part.call(2).map(head, 8), p.sum((1, 3)), "sums", 1e-5)
            tiny.same(part.call(2).map(head, 8, "max"), p.max((1, 3)), "largest", 1e-6)

    def test_modules(self):
        _, part = self.both(modules=r"layers\.1\.")
        self.assertEqual([c.layer for c in part.calls], [1])

    def test_a_scale_per_layer(self):
        model = tiny.language_model("GPT2", scale_attn_by_inverse_layer_idx=True)
        t, report = self.capture(model, lambda m: m(tiny.prompt()), out="full")
        self.assertEqual([os.path.basename(f) for f in report.files], ["t.h5"])
        self.assertAlmostEqual(t.model["scale"], 2 * t.call(1).score["scale"])
        tiny.lacuna("trace", "verify", report.files[0])


if __name__ == "__main__":
    unittest.main()
