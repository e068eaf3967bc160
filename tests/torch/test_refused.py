"""What the format cannot say, and what would give a wrong trace, is refused by name; nothing is left on the disk."""
import os
import tempfile
import types
import unittest
from unittest import mock

import torch
import torch.nn as nn
import torch.nn.functional as F
import transformers

import lacuna_trace
import tiny


class Refused(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.dir.name, "t.h5")

    def tearDown(self):
        self.dir.cleanup()

    def run_model(self, model, run=None, **options):
        with torch.no_grad(), lacuna_trace.capture(model, self.path, **options) as cap:
            (run or (lambda m: m(tiny.prompt())))(model)
        return cap

    def refused(self, pattern, model, run=None, **options):
        with self.assertRaisesRegex(lacuna_trace.TraceError, pattern):
            self.run_model(model, run, **options)
        self.assertEqual(os.listdir(self.dir.name), [])

    def test_a_bias_of_rows_and_keys(self):
        mask = torch.randn(1, 1, 300, 300, generator=tiny.rng())
        with mock.patch("lacuna_trace.calls.BIAS_MOST", 1000):
            self.refused("no function of their distance is added to the scores, and more than 1000 values", tiny.language_model("Llama"),
                         lambda m: m(tiny.prompt(n=300), attention_mask=mask))
        mask = mask.masked_fill(torch.ones(300, 300, dtype=torch.bool).triu(1), torch.finfo(torch.float32).min)
        self.refused("a bias of rows and keys is added to its scores: a sample of rows", tiny.language_model("Llama"),
                     lambda m: m(tiny.prompt(n=300), attention_mask=mask), rows="2")

    def test_both_stacks_of_an_encoder_and_decoder(self):
        config = transformers.T5Config(vocab_size=256, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, decoder_start_token_id=0)
        self.refused(r"layer 0 is both encoder\.block\.0.* and decoder\.block\.0.*choose it with modules=REGEX",
                     transformers.T5ForConditionalGeneration(config).eval(), lambda m: m(tiny.prompt(), decoder_input_ids=tiny.prompt(seed=4)))

    def test_models_that_compute_attention_by_themselves(self):
        for name, more in (("Bloom", dict(n_layer=2, n_head=4)), ("Mpt", dict(d_model=64, n_layers=2, n_heads=4))):
            with self.subTest(name=name):
                self.refused(r"ran, but none of the known attention functions was called", tiny.language_model(name, attn="eager", **more))

    def test_packed_sequences(self):
        ids, positions = tiny.prompt(), torch.cat([torch.arange(20), torch.arange(20)])[None]
        model = tiny.language_model("Llama")
        self.refused("the mask cuts the sequence into parts", model, lambda m: m(ids, position_ids=positions, use_cache=False))

    def test_holes_in_the_padding(self):
        mask = torch.ones(1, tiny.TOKENS, dtype=torch.long)
        mask[0, 11] = 0
        self.refused("the attention mask has holes", tiny.language_model("Llama"), lambda m: m(tiny.prompt(), attention_mask=mask))

    def test_a_mask_of_its_own(self):
        mask = torch.ones(tiny.TOKENS, tiny.TOKENS, dtype=torch.bool).tril()
        mask[10:20, 10:20] = True
        self.refused("neither causal nor full, no window", tiny.language_model("Llama"),
                     lambda m: m(tiny.prompt(), attention_mask=mask[None, None]))

    def test_second_prompt(self):
        def twice(m):
            m(tiny.prompt(), use_cache=False)
            m(tiny.prompt(seed=9), use_cache=False)
        self.refused("a second prompt", tiny.language_model("Llama"), twice)

    def test_cache_that_was_filled_before(self):
        model, cache = tiny.language_model("Llama"), transformers.DynamicCache()
        with torch.no_grad():
            model(tiny.prompt()[:, :12], past_key_values=cache, use_cache=True)
        self.refused("the cache was filled before", model, lambda m: m(tiny.prompt()[:, 12:], past_key_values=cache, use_cache=True))

    def test_training_mode_and_dropout(self):
        self.refused(r"training mode; call model\.eval\(\)", tiny.language_model("Llama").train())
        model = tiny.language_model("Llama", attention_dropout=0.1)
        model.model.layers[1].self_attn.training = True
        self.refused("dropout 0.1", model)

    def test_compiled_model(self):
        self.refused("torch.compile", torch.compile(tiny.language_model("Llama")), lambda m: None)
        for part in ("", "model", "model.layers.1.self_attn"):
            model = tiny.language_model("Llama")
            module = model.get_submodule(part)
            module.forward = torch.compile(module.forward, backend="eager")
            self.refused(rf"{part or 'LlamaForCausalLM'} is compiled \(torch\.compile\)", model)

    def test_a_model_that_chooses_its_own_keys(self):
        model = tiny.language_model("DeepseekV32", **dict(tiny.MLA, q_lora_rank=24), index_topk=8, index_n_heads=2, index_head_dim=16)
        self.refused(r"the model itself chooses 8 of 40 keys for every query \(index_topk\): it is sparse already", model)
        self.run_model(model, lambda m: m(tiny.prompt()[:, :8]))  # all of them

    def test_two_passes_in_one_forward(self):
        class Twice(nn.Module):
            def __init__(self):
                super().__init__()
                self.model = tiny.language_model("Llama")

            def forward(self, ids):
                return self.model(ids).logits - self.model(ids.flip(1)).logits
        self.refused(r"layers\.0\.self_attn: call 3 in one forward of a model with 2 layers: a trace holds one pass", Twice().eval())

    def test_no_call_and_a_missing_layer(self):
        model = tiny.language_model("Llama")
        self.refused("no attention call was captured", model, lambda m: None)
        self.refused("layer 7 had no softmax attention call; layers that had: 0", model, layers="0,7")

    def test_wrong_options(self):
        model = tiny.language_model("Llama")
        for options, pattern in ((dict(layers="3-"), "layers="), (dict(dtype="int8"), "dtype="), (dict(rows="0,5"), "even number of groups"),
                                 (dict(heads="2,1"), "must ascend"), (dict(out="some"), "out=")):
            with self.assertRaisesRegex(ValueError, pattern):
                lacuna_trace.capture(model, self.path, **options)
        self.refused("has 4 query heads", model, heads="0,9")
        self.refused("batch=3, but the input has 1", model, batch=3)
        self.refused("neither a torch.nn.Module nor a pipeline", types.SimpleNamespace(), lambda m: None)

    def test_not_a_number(self):
        model = tiny.language_model("Llama")
        with torch.no_grad():
            model.model.layers[1].self_attn.v_proj.weight[20, 3] = float("nan")
        self.refused(r"layers\.1\.self_attn: .*(NaN|largest error)", model)
        self.refused(r"layers\.1\.self_attn: v has \d+ values that are NaN or infinite, the first at head 1, row 0", model, out="none")

    def test_too_large_for_the_dtype(self):
        model = tiny.language_model("Llama")
        with torch.no_grad():
            model.model.layers[0].self_attn.v_proj.weight *= 1e6
        self.refused("infinite in the dtype of the file", model, dtype="f16")

    def test_hooks_are_gone_after_a_refusal(self):
        before = F.scaled_dot_product_attention
        functions = dict(transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS)
        model = tiny.language_model("Llama")
        self.refused("layer 7 had no softmax", model, layers="0,7")
        self.assertIs(F.scaled_dot_product_attention, before)
        self.assertEqual(dict(transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS), functions)
        self.assertNotIn("generate", vars(model))
        self.assertFalse(any(m._forward_hooks or m._forward_pre_hooks for m in model.modules()))

    def test_an_exception_of_the_program_passes_through(self):
        def fail(m):
            m(tiny.prompt())
            raise KeyError("mine")
        with self.assertRaises(KeyError):
            self.run_model(tiny.language_model("Llama"), fail)
        self.assertEqual(os.listdir(self.dir.name), [])


class WrongCaptures(unittest.TestCase):
    """The comparison with what the model returned finds a modifier that no keyword announces, and says which."""

    def check(self, pattern, change):
        model = tiny.language_model("Llama", attn="eager")
        file = __import__(type(model).__module__, fromlist=["eager_attention_forward"])
        real = file.eager_attention_forward

        def wrong(module, query, key, value, attention_mask, scaling, **kwargs):
            return change(real, module, query, key, value, attention_mask, scaling, kwargs)
        with tempfile.TemporaryDirectory() as d, mock.patch.object(file, "eager_attention_forward", wrong):
            with self.assertRaisesRegex(lacuna_trace.TraceError, pattern), torch.no_grad():
                with lacuna_trace.capture(model, os.path.join(d, "t.h5")):
                    model(tiny.prompt())

    def test_scale(self):
        self.check("not the softmax attention", lambda f, m, q, k, v, a, s, kw: f(m, q, k, v, a, scaling=1.01 * s, **kw))

    def test_no_mask(self):
        self.check("would fit if it were not causal", lambda f, m, q, k, v, a, s, kw: f(m, q, k, v, None, scaling=s, **kw))

    def test_interleaved_heads(self):
        self.check("would fit if query head h read kv head h mod g", _interleaved)

    def test_soft_cap(self):
        def capped(f, m, q, k, v, a, s, kw):
            k, v = (x.repeat_interleave(2, 1) for x in (k, v))
            scores = 50 * torch.tanh(q @ k.transpose(2, 3) * s / 50) + a
            return (scores.softmax(-1) @ v).transpose(1, 2), None
        self.check("would fit if scores were capped at 50", capped)


def _interleaved(f, m, q, k, v, a, s, kw):
    k, v = (torch.cat([x, x], 1) for x in (k, v))
    return ((q @ k.transpose(2, 3) * s + a).softmax(-1) @ v).transpose(1, 2), None


if __name__ == "__main__":
    unittest.main()
