"""Every way into an attention function x every dtype: the trace holds the very bits that the function got.

Ways: the attention functions of transformers (also one that a program registers), the dispatcher and the processors of
diffusers, scaled_dot_product_attention of a program's own model, and the wrappers of flash-attn, xFormers and
FlexAttention. LACUNA_TORCH_DEVICE=cuda runs it on a GPU.
"""
import contextlib
import os
import sys
import types
import unittest
from unittest import mock

import torch
import torch.nn.functional as F
import transformers
from torch.nn.attention import flex_attention as flex

import lacuna_trace
import test_format
import tiny

DEVICE = os.environ.get("LACUNA_TORCH_DEVICE", "cpu")
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


class Kept:
    """What functions got and returned, as (q, k, v, out) of [b][heads][n][d]."""

    def __init__(self):
        self.calls = []

    def add(self, q, k, v, out):
        self.calls.append(tuple(x.detach().clone() for x in (q, k, v, out)))


class Case(test_format.Case):
    def check(self, model, run, kept, out="full", **options):
        """Captured with stored outputs, read back, verified by the program; every stored value is what the function got."""
        with torch.no_grad(), lacuna_trace.capture(model, self.path, out=out, **options) as cap:
            run(model)
        self.assertLessEqual(cap.report.worst_check, 1)
        tiny.lacuna("trace", "verify", self.path)
        with lacuna_trace.open_trace(self.path) as t:
            self.assertEqual(t.verify(), [])
            self.assertEqual(len(t.calls), len(kept.calls))
            for call, tensors in zip(t.calls, kept.calls):
                self.assertEqual(t.model["dtype"], str(tensors[0].dtype).removeprefix("torch."))
                for head in call.heads:
                    for name, x in zip(("q", "k", "v", "out"), tensors):
                        if name != "out" or out == "full":
                            own = x[0, head * x.shape[1] // tensors[0].shape[1]]
                            tiny.same(getattr(call, name)(head), own.float().cpu(), f"{name} of {call} head {head}")
            return [c.score for c in t.calls], cap.report


# ---- transformers -------------------------------------------------------------------------------


def flash_like(fake):
    """An attention function in the manner of transformers' flash attention: no mask, a window in its keywords."""
    def forward(module, query, key, value, attention_mask, scaling=None, sliding_window=None, **kwargs):
        window = (-1, -1) if sliding_window is None else (sliding_window - 1, 0)
        q, k, v = (x.transpose(1, 2) for x in (query, key, value))
        return fake.flash_attn_func(q, k, v, softmax_scale=scaling, causal=True, window_size=window), None
    return forward


class Interface(Case):
    """AttentionInterface: sdpa, eager, flash attention 2 and a function that a program registers under a name of its own."""

    def one(self, way, dtype):
        kept, registry = Kept(), transformers.AttentionInterface._global_mapping
        masks = transformers.masking_utils.AttentionMaskInterface._global_mapping
        functions = {"flash_attention_2": flash_like(exact(test_format.fake_flash())), "mine": registry["sdpa"]}
        with mock.patch.dict(registry, functions), mock.patch.dict(masks, {"mine": masks["sdpa"]}):
            model = tiny.language_model("Mistral", dtype, "sdpa", sliding_window=16).to(DEVICE)
            model.config._attn_implementation = way  # set_attn_implementation() asks for the real flash-attn
            file = sys.modules[type(model).__module__]
            real = file.eager_attention_forward if way == "eager" else registry[way]

            def spy(module, query, key, value, *args, **kwargs):
                result = real(module, query, key, value, *args, **kwargs)
                if query.dtype == dtype and query.shape[2] == tiny.TOKENS:  # eager functions are asked again for some rows in float32
                    kept.add(query, key, value, result[0].transpose(1, 2))
                return result
            patch = mock.patch.object(file, "eager_attention_forward", spy) if way == "eager" else mock.patch.dict(registry, {way: spy})
            with patch:
                narrow_eager = way == "eager" and dtype != torch.float32
                scores, report = self.check(model, lambda m: m(tiny.prompt().to(DEVICE)), kept, out="check" if narrow_eager else "full")
        self.assertEqual([s.get("window_left") for s in scores], [15, 15])


def interface_test(way, dtype):
    return lambda self: self.one(way, dtype)


# ---- diffusers ----------------------------------------------------------------------------------


class Diffusers(Case):
    """The dispatcher (Wan, Flux, LTX) and processors that call scaled_dot_product_attention (SD3, CogVideoX)."""

    def one(self, name, dtype):
        import test_video  # diffusers may be absent where only the others run
        model = tiny.transformer(name).to(DEVICE, dtype)
        a = {k: x.to(DEVICE, dtype if x.is_floating_point() else x.dtype) if isinstance(x, torch.Tensor) else x
             for k, x in test_video.arguments(name).items()}
        grid, text = test_video.FACTS[name][:2]
        kept, n, real = Kept(), grid[0] * grid[1] * grid[2] + text, F.scaled_dot_product_attention

        def spy(query, key, value, *args, **kwargs):
            out = real(query, key, value, *args, **kwargs)
            if query.shape[2] == key.shape[2] == n:
                kept.add(query, key, value, out)
            return out
        with mock.patch.object(F, "scaled_dot_product_attention", spy):
            self.check(model, lambda m: m(**a), kept)


def diffusers_test(name, dtype):
    return lambda self: self.one(name, dtype)


# ---- functions of other libraries, and PyTorch's own --------------------------------------------


def hnd(*tensors):
    return (x.transpose(1, 2) for x in tensors)


def own_sdpa(fake, m, q, k, v):
    return F.scaled_dot_product_attention(*hnd(q, k, v), is_causal=True, enable_gqa=True).transpose(1, 2)


def own_flash(fake, m, q, k, v):
    return fake.flash_attn_func(q, k, v, causal=True)


def own_varlen(fake, m, q, k, v):
    ends = torch.tensor([0, q.shape[1]], dtype=torch.int32, device=q.device)
    return fake.flash_attn_varlen_func(q[0], k[0], v[0], ends, ends, q.shape[1], q.shape[1], causal=True)[None]


def own_xformers(fake, m, q, k, v):
    mask = type("LowerTriangularMask", (), {})()
    return sys.modules["xformers.ops"].memory_efficient_attention(q, k, v, mask)


def own_flex(fake, m, q, k, v):
    mask = flex.create_block_mask(lambda b, h, i, j: j <= i, None, None, q.shape[1], k.shape[1], device=q.device)
    return flex.flex_attention(*hnd(q, k, v), block_mask=mask, enable_gqa=True).transpose(1, 2)


OWN = {"sdpa": own_sdpa, "flash": own_flash, "varlen": own_varlen, "xformers": own_xformers, "flex": own_flex}


class Functions(Case):
    """A program's own layers over each function."""

    def one(self, way, dtype):
        kept, fake, ops = Kept(), exact(test_format.fake_flash()), types.ModuleType("xformers.ops")
        ops.memory_efficient_attention = lambda query, key, value, attn_bias=None, p=0.0, scale=None: fake.flash_attn_func(
            query, key, value, softmax_scale=scale, causal=attn_bias is not None)

        def how(m, q, k, v):
            out = OWN[way](fake, m, q, k, v)
            kept.add(*hnd(q, k, v, out))
            return out
        model = test_format.Own(how, kv_heads=2).eval().to(DEVICE, dtype)
        absent = {} if way in ("sdpa", "flex") else {"flash_attn": fake, "xformers.ops": ops}
        # patch.dict forgets what flex_attention imports inside of it
        with mock.patch.dict(sys.modules, absent) if absent else contextlib.nullcontext():
            scores, _ = self.check(model, lambda m: m(tiny.normal(1, 24, 32).to(DEVICE, dtype)), kept)
        self.assertEqual([s["causal"] for s in scores], [True, True])

    def test_a_class_of_any_name(self):
        """A module that is not called Attention names its calls by the layer that it stands in, and is not left out."""
        kept = Kept()

        def how(m, q, k, v):
            out = OWN["sdpa"](None, m, q, k, v)
            kept.add(*hnd(q, k, v, out))
            return out
        model = test_format.Own(how, kv_heads=2)
        model.layers = torch.nn.ModuleList(test_format.Block(how, kv_heads=2) for _ in range(2))
        _, report = self.check(model.eval().to(DEVICE), lambda m: m(tiny.normal(1, 24, 32).to(DEVICE)), kept)
        self.assertEqual((report.calls, dict(report.left_out)), (2, {}))


def exact(fake):
    """The stand-in computes in float32 and rounds what it returns, as the kernels do."""
    flash, varlen = fake.flash_attn_func, fake.flash_attn_varlen_func
    fake.flash_attn_func = lambda q, k, v, *a, **kw: flash(q.float(), k.float(), v.float(), *a, **kw).to(q.dtype)
    fake.flash_attn_varlen_func = lambda q, k, v, *a, **kw: varlen(q.float(), k.float(), v.float(), *a, **kw).to(q.dtype)
    return fake


def function_test(way, dtype):
    return lambda self: self.one(way, dtype)


for dtype_name, torch_dtype in DTYPES.items():
    for w in ("sdpa", "eager", "flash_attention_2", "mine"):
        setattr(Interface, f"test_{w}_{dtype_name}", interface_test(w, torch_dtype))
    for w in ("Wan", "Flux", "LTX", "SD3", "CogVideoX"):
        setattr(Diffusers, f"test_{w.lower()}_{dtype_name}", diffusers_test(w, torch_dtype))
    for w in OWN:
        setattr(Functions, f"test_{w}_{dtype_name}", function_test(w, torch_dtype))

if __name__ == "__main__":
    unittest.main()
