"""The file itself: checksums, content id, equal bytes, a killed writer, a flipped byte; other hooks; bounded memory."""
import importlib.util
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

import h5py
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import save_file

import lacuna_trace
import tiny
from lacuna_trace import layout, pipe, xxh3


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.dir.name, "t.h5")

    def tearDown(self):
        self.dir.cleanup()

    def capture(self, model=None, path=None, run=None, **options):
        model = model or tiny.language_model("Llama")
        with torch.no_grad(), lacuna_trace.capture(model, path or self.path, **options) as cap:
            (run or (lambda m: m(tiny.prompt())))(model)
        return cap.report


class Hash(unittest.TestCase):
    LENGTHS = [*range(260), 511, 512, 513, 1023, 1024, 1025, 1088, 2047, 2048, 2049, 5000, 70001]
    # Of no bytes, as `xxhsum -H2` prints it.
    KNOWN = {0: "99aa06d3014798d86001c324468d497f"}

    def implementations(self):
        yield xxh3.NumpyHash
        lib = xxh3._load_library()
        if lib:
            yield xxh3._library_class(lib)
        if importlib.util.find_spec("xxhash"):
            import xxhash
            yield xxhash.xxh3_128

    def test_all_implementations_agree_in_any_pieces(self):
        rnd = random.Random(1)
        classes = list(self.implementations())
        for n in self.LENGTHS:
            data, digests = rnd.randbytes(n), set()
            for cls, parts in itertools.product(classes, (1, 4)):
                cuts = [0, *sorted(rnd.randint(0, n) for _ in range(parts - 1)), n]
                h = cls()
                for a, b in zip(cuts, cuts[1:]):
                    h.update(data[a:b])
                digests.add(h.digest())
            self.assertEqual(len(digests), 1, n)
            if n in self.KNOWN:
                self.assertEqual(digests.pop().hex(), self.KNOWN[n])

    def test_lacuna_agrees_with_numpy(self):
        """A trace whose checksums NumPy made is whole for the C program."""
        with tempfile.TemporaryDirectory() as d, mock.patch.multiple(xxh3, Hash=xxh3.NumpyHash, _name="numpy"), torch.no_grad():
            model, path = tiny.language_model("Llama"), os.path.join(d, "t.h5")
            with lacuna_trace.capture(model, path, maps=8, out="full") as cap:
                model(tiny.prompt())
            self.assertIn("pip install xxhash", cap.report.notes[0])
            tiny.lacuna("trace", "verify", path)


class File(Case):
    def test_two_writes_are_equal_bytes(self):
        for dtype in ("keep", "bf16"):
            a, b = (os.path.join(self.dir.name, n) for n in ("a.h5", "b.h5"))
            for path in (a, b):
                self.capture(path=path, force=True, dtype=dtype, maps=8)
            with open(a, "rb") as f, open(b, "rb") as g:
                self.assertEqual(f.read(), g.read())

    def test_content_id_is_that_of_an_import(self):
        """The same tensors through `lacuna import` have the same id but for the facts that import cannot know."""
        report = self.capture(dtype="bf16", name="m")
        t = lacuna_trace.open_trace(self.path)
        tensors = {f"layer-{c.layer:02d}.{n}": torch.stack([
            torch.tensor(getattr(c, n)(h)).bfloat16() for h in (range(4) if n == "q" else (0, 2))]) for c in t.calls for n in "qkv"}
        tensors["tokens"] = torch.tensor(t.tokens)
        t.close()
        names, other = os.path.join(self.dir.name, "c.safetensors"), os.path.join(self.dir.name, "i.h5")
        save_file(tensors, names)
        tiny.lacuna("import", "-q", "--safetensors", names, "--causal", "--name", "m", "-o", other)
        mine, theirs = h5py.File(self.path), h5py.File(other)
        with mine, theirs:
            metas = [{g: {k: layout_value(v) for k, v in f[g].attrs.items()} for g in ("model", "run")} for f in (mine, theirs)]
            for group in ("model", "run"):
                for name in set(metas[0][group]) | set(metas[1][group]):
                    if name not in ("architecture", "source", "positions", "positions_applied", "computed_by", "optional", "layers"):
                        self.assertEqual(metas[0][group].get(name), metas[1][group].get(name), name)
            for path in ("calls/step-000/main/layer-00/q_xxh3", "calls/step-000/main/layer-01/v_xxh3", "run/tokens_xxh3"):
                np.testing.assert_array_equal(mine[path][:], theirs[path][:])
        self.assertEqual(len(report.ids), 1)

    def test_a_killed_writer_leaves_a_part_that_is_refused(self):
        code = ("import os, signal, torch, tiny, lacuna_trace\n"
                "m = tiny.language_model('Llama')\n"
                f"with torch.no_grad(), lacuna_trace.capture(m, {self.path!r}):\n"
                "    m(tiny.prompt())\n"
                "    os.kill(os.getpid(), signal.SIGKILL)\n")
        p = subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=False, stderr=subprocess.DEVNULL)
        self.assertEqual(p.returncode, -signal.SIGKILL)
        left = [os.path.join(self.dir.name, name) for name in os.listdir(self.dir.name)]
        self.assertRegex(" ".join(left), r"t\.h5\.[0-9a-f]{6}\.part$")
        status, text = tiny.lacuna("trace", "info", left[0], check=False)
        self.assertEqual(status, 3)
        self.assertIn("was stopped before the end", text)
        with self.assertRaisesRegex(lacuna_trace.TraceError, "unfinished|damaged"):
            lacuna_trace.open_trace(left[0])
        with self.assertRaisesRegex(lacuna_trace.TraceError, r"no such file, but .*\.part is there"):
            lacuna_trace.open_trace(self.path)
        self.capture()
        self.assertEqual(os.listdir(self.dir.name), ["t.h5"])
        tiny.lacuna("trace", "verify", self.path)

    def test_two_writers_of_one_file(self):
        model = tiny.language_model("Llama")
        with torch.no_grad(), lacuna_trace.capture(model, self.path):
            model(tiny.prompt())
            with self.assertRaisesRegex(lacuna_trace.TraceError, "is being written by another process"):
                with lacuna_trace.capture(tiny.language_model("Qwen3"), self.path) as other:
                    other.model(tiny.prompt())
        tiny.lacuna("trace", "verify", self.path)

    def test_an_existing_file_needs_force(self):
        self.capture()
        with self.assertRaisesRegex(lacuna_trace.TraceError, "exists; force=True"):
            self.capture()
        self.capture(force=True)

    def test_every_contradiction_is_a_trace_error(self):
        def heads(f):
            del f["model"].attrs["heads"]

        def ids(f):
            f["model"].attrs["head_ids"] = np.bytes_("x-y")

        def text(f):
            f["model"].attrs["name"] = np.void(b"\xff\xfe")

        def calls(f):
            del f["calls"]

        def sums(f):
            del f["calls/step-000/main/layer-00/q_xxh3"]

        for change in (heads, ids, text, calls, sums):
            self.capture(force=True)
            with h5py.File(self.path, "r+") as f:
                change(f)
            with self.subTest(change.__name__), self.assertRaises(lacuna_trace.TraceError):
                lacuna_trace.open_trace(self.path)
        self.capture(force=True)
        os.truncate(self.path, os.path.getsize(self.path) // 2)
        with self.assertRaises(lacuna_trace.TraceError):
            lacuna_trace.open_trace(self.path).verify()

    def test_a_flipped_byte_is_found(self):
        self.capture(out="full", maps=8)
        t = lacuna_trace.open_trace(self.path)
        group = t.call(1).group
        places = {n: group[n].id.get_offset() + 5 for n in ("q", "k", "v", "out", "map_max", "check_out")}
        t.close()
        with open(self.path, "rb") as f:
            good = f.read()
        for name, at in places.items():
            with open(self.path, "r+b") as f:
                f.seek(at)
                f.write(bytes([good[at] ^ 0x10]))
            with lacuna_trace.open_trace(self.path) as t:
                self.assertTrue(any(name in text for text in t.verify()), name)
            if name != "check_out":
                self.assertEqual(tiny.lacuna("trace", "verify", self.path, check=False)[0], 1, name)
            with open(self.path, "r+b") as f:
                f.seek(at)
                f.write(good[at:at + 1])
        with lacuna_trace.open_trace(self.path) as t:
            self.assertEqual(t.verify(), [])

    def test_changed_and_unknown_metadata_are_refused(self):
        self.capture()
        with h5py.File(self.path, "r+") as f:
            f["calls/step-000/main/layer-00"].attrs["temperature"] = 5
        with self.assertRaisesRegex(lacuna_trace.TraceError, "attribute 'temperature' is not known"):
            lacuna_trace.open_trace(self.path)
        with h5py.File(self.path, "r+") as f:
            del f["calls/step-000/main/layer-00"].attrs["temperature"]
            f["calls/step-000/main/layer-00"].attrs["window_left"] = 5
        with self.assertRaisesRegex(lacuna_trace.TraceError, "metadata or checksums were changed"):
            lacuna_trace.open_trace(self.path)
        with h5py.File(self.path, "r+") as f:
            del f["calls/step-000/main/layer-00"].attrs["window_left"]
            f["model"].attrs["scale"] = 0.5
        with self.assertRaisesRegex(lacuna_trace.TraceError, "metadata or checksums were changed"):
            lacuna_trace.open_trace(self.path)

    def test_checks_are_optional_for_other_readers(self):
        self.capture()
        with h5py.File(self.path) as f:
            c = f["calls/step-000/main/layer-01"]
            self.assertEqual(c["check_out"].shape, (4, 16, 16))
            self.assertEqual(list(c["check_rows"][:3]), [0, 2, 5])
            self.assertEqual(c.attrs["optional"].decode().split()[:2], ["check_rows", "check_rows_xxh3"])
            self.assertIn("transformers", f["capture"].attrs["hook"].decode())
        self.assertIn("ok", tiny.lacuna("trace", "verify", self.path)[1])

    def test_packed_traces_are_read(self):
        self.capture(dtype="bf16")
        packed = os.path.join(self.dir.name, "p.h5")
        tiny.lacuna("trace", "pack", "-q", "--gzip", self.path, "-o", packed)
        a, b = lacuna_trace.open_trace(self.path), lacuna_trace.open_trace(packed)
        with a, b:
            self.assertEqual(a.id, b.id)
            tiny.same(a.call(1).q(3), b.call(1).q(3), "q")
            tiny.same(a.call(1).k(3, slice(5, 9)), b.call(1).k(3, slice(5, 9)), "k")

    def test_a_full_disk_is_said_before_the_work(self):
        with mock.patch.object(layout, "free_bytes", lambda path: 5000):
            with self.assertRaisesRegex(lacuna_trace.TraceError, "needs 0.000 GB of disk space.*store fewer layers"):
                self.capture()
        self.assertEqual(os.listdir(self.dir.name), [])

    def test_a_failing_write_ends_the_capture(self):
        def fail(fd, data, at):
            raise OSError(28, "No space left on device")
        with mock.patch.object(pipe.os, "pwrite", fail), self.assertRaisesRegex(OSError, "No space left"):
            self.capture()
        self.assertEqual(os.listdir(self.dir.name), [])

    def test_pieces_of_any_size(self):
        """Rows and heads that do not fit a buffer give the same file."""
        one = self.capture(dtype="bf16").ids
        for size in (64, 100, 700, 5000):
            with mock.patch.object(pipe, "PIECE", size), mock.patch.object(pipe, "RING", 2), mock.patch.object(pipe, "HASHERS", size % 4 + 1):
                self.assertEqual(self.capture(dtype="bf16", force=True).ids, one)


class Memory(Case):
    def test_host_memory_does_not_grow_with_the_trace(self):
        """320 MB of q, k and v through buffers of 6 x 2 MB: the process may grow by far less than that."""
        code = f"""
import resource, sys, torch, lacuna_trace, test_format
from lacuna_trace import pipe
pipe.PIECE = 2 << 20
n = 8192
x = [torch.randn(1, n, h, 64).bfloat16() for h in (8, 2, 2)]
fake = test_format.fake_flash()
fake.flash_attn_func = lambda q, k, v, causal=False: torch.zeros_like(q)
sys.modules["flash_attn"] = fake
model = test_format.Own(lambda m, q, k, v: fake.flash_attn_func(*x, causal=True)[:, :, :4, :8]).eval()
model.layers = torch.nn.ModuleList(test_format.Attention(model.layers[0].how) for _ in range(26)).eval()
y = torch.zeros(1, n, 32)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with torch.no_grad():
    with lacuna_trace.capture(model, {self.path!r}, out="none", layers=[0]):
        model(y)
    before = peak()
    with lacuna_trace.capture(model, {self.path!r}, out="none", force=True) as cap:
        model(y)
print(cap.report.bytes >> 20, (peak() - before) >> 10)
"""
        p = subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=False, stdout=subprocess.PIPE, text=True)
        self.assertEqual(p.returncode, 0)
        written, grown = map(int, p.stdout.split())
        self.assertGreater(written, 300)
        self.assertLess(grown, 64)


def layout_value(v):
    return v.decode() if isinstance(v, bytes) else v.item() if hasattr(v, "item") else v


# ---- other hooks --------------------------------------------------------------------------------


class Block(nn.Module):
    """An attention layer of a program's own; `how` is what it calls."""

    def __init__(self, how, dim=32, heads=4, kv_heads=4):
        super().__init__()
        self.how, self.heads, self.kv_heads = how, heads, kv_heads
        self.num_key_value_groups = heads // kv_heads
        self.qkv = nn.Linear(dim, dim * (heads + 2 * kv_heads) // heads, bias=False)

    def forward(self, x):
        b, n, dim = x.shape
        d = dim // self.heads
        q, k, v = self.qkv(x).split([self.heads * d, self.kv_heads * d, self.kv_heads * d], -1)
        q, k, v = (t.view(b, n, -1, d) for t in (q, k, v))
        return x + self.how(self, q, k, v).reshape(b, n, dim)


class Attention(Block):
    pass


class Own(nn.Module):
    def __init__(self, how, **more):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Attention(how, **more) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def fake_flash():
    """A module with flash_attn's functions and meanings, in plain PyTorch."""
    def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
                        deterministic=False, return_attn_probs=False):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
        i = torch.arange(q.shape[2], device=q.device)[:, None] + k.shape[2] - q.shape[2]
        j = torch.arange(k.shape[2], device=q.device)[None]
        keep = (j <= i) if causal else torch.ones_like(j <= i)
        keep = keep & (j >= i - window_size[0]) if window_size[0] >= 0 else keep
        keep = keep & (j <= i + window_size[1]) if window_size[1] >= 0 else keep
        s = q @ k.transpose(2, 3) * (softmax_scale or q.shape[-1] ** -0.5)
        s = softcap * torch.tanh(s / softcap) if softcap else s
        s = s - alibi_slopes[:, None, None] * (i - j).abs() if alibi_slopes is not None else s
        s = s.masked_fill(~keep, float("-inf"))
        return (s.softmax(-1) @ v).transpose(1, 2)

    def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
                               causal=False, window_size=(-1, -1), **more):
        parts = [flash_attn_func(q[a:b][None], k[a:b][None], v[a:b][None], dropout_p, softmax_scale, causal, window_size)[0]
                 for a, b in zip(cu_seqlens_q.tolist(), cu_seqlens_q.tolist()[1:])]
        return torch.cat(parts)
    m = types.ModuleType("flash_attn")
    m.__version__, m.flash_attn_func, m.flash_attn_varlen_func = "2", flash_attn_func, flash_attn_varlen_func
    return m


def seen_by(how, keep):
    """The same function, noting what it is given."""
    def call(module, q, k, v):
        keep.append((q, k, v))
        return how(module, q, k, v)
    return call


class OtherHooks(Case):
    def check(self, how, causal, b=0, x=None, calls=2, **more):
        kept = []
        model = Own(seen_by(how, kept), **more).eval()
        x = tiny.normal(1, 24, 32) if x is None else x
        self.capture(model, run=lambda m: m(x), force=True, out="full", batch=b)
        tiny.lacuna("trace", "verify", self.path)
        with lacuna_trace.open_trace(self.path) as t:
            self.assertEqual((t.model["causal"], len(t.calls)), (int(causal), calls))
            for call, (q, k, v) in zip(t.calls, kept):
                for head in call.heads:
                    tiny.same(call.q(head), q[b, :, head], "q")
                    tiny.same(call.k(head), k[b, :, head * k.shape[2] // q.shape[2]], "k")
                    tiny.same(call.v(head), v[b, :, head * k.shape[2] // q.shape[2]], "v")
        return t

    def test_sdpa_positional_and_keyword(self):
        def positional(m, q, k, v):
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            return F.scaled_dot_product_attention(q, k, v, None, 0.0, True).transpose(1, 2)

        def keyword(m, q, k, v):
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            return F.scaled_dot_product_attention(query=q, key=k, value=v, is_causal=False, scale=0.3).transpose(1, 2)
        self.check(positional, True)
        t = self.check(keyword, False)
        self.assertAlmostEqual(t.model["scale"], 0.3)

    def test_sdpa_with_repeated_keys(self):
        def repeated(m, q, k, v):
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            k, v = (t.repeat_interleave(m.num_key_value_groups, 1) for t in (k, v))
            return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

        def grouped(m, q, k, v):
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)
        for how in (repeated, grouped):
            t = self.check(how, True, kv_heads=2)
            self.assertEqual(t.model["kv_heads"], 2)

    def test_sdpa_in_a_batch(self):
        def plain(m, q, k, v):
            return F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True).transpose(1, 2)
        self.check(plain, True, b=2, x=tiny.normal(3, 24, 32))

    def test_layers_that_differ_in_causality(self):
        def how(m, q, k, v):
            return F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=m is model.layers[1]).transpose(1, 2)
        model = Own(how).eval()
        with torch.no_grad(), lacuna_trace.capture(model, self.path, out="full") as cap:
            model(tiny.normal(1, 24, 32))
        self.assertEqual(cap.report.files, [self.path])
        tiny.lacuna("trace", "verify", self.path)
        with lacuna_trace.open_trace(self.path) as t:
            self.assertEqual([(c.score["causal"], c.stored_score) for c in t.calls], [(False, {}), (True, {"causal": 1})])
            self.assertEqual(t.verify(), [])
            for c in t.calls:
                self.assertEqual(int(c.allowed().sum()), 24 * 25 // 2 if c.layer else 24 * 24)
                tiny.same(c.attend(2)[0], c.out(2), "out", 1e-5)
        out = os.path.join(self.dir.name, "run")
        tiny.lacuna("replay", "-q", self.path, "-m", "dense", "-o", out)
        with open(os.path.join(out, "records.jsonl"), encoding="utf-8") as f:
            records = [json.loads(line) for line in f]
        self.assertEqual(sorted((r["layer"], r["causal"], r["head"]) for r in records), [(i, bool(i), h) for i in (0, 1) for h in range(4)])

    def test_flash_attn(self):
        fake = fake_flash()
        with mock.patch.dict(sys.modules, flash_attn=fake):
            self.check(lambda m, q, k, v: fake.flash_attn_func(q, k, v, 0.0, 0.2, True), True, kv_heads=2)
            self.check(lambda m, q, k, v: fake.flash_attn_func(q, k, v, causal=False, window_size=(40, 40)), False)
            t = self.check(lambda m, q, k, v: fake.flash_attn_func(q, k, v, causal=True, window_size=(7, 0)), True)
            self.assertEqual(t.call(0).stored_score, {"window_left": 7})
            t = self.check(lambda m, q, k, v: fake.flash_attn_func(q, k, v, window_size=(5, 3), softcap=0.5), False)
            self.assertEqual(t.call(0).stored_score, {"window_left": 5, "window_right": 3, "softcap": 0.5})
            slopes = torch.tensor([0.5, 0.25, 0.125, 0.0625])
            t = self.check(lambda m, q, k, v: fake.flash_attn_func(q, k, v, causal=True, alibi_slopes=slopes), True)
            tiny.same(t.call(0).score["alibi"], slopes, "slopes")

    def test_flash_attn_varlen(self):
        fake, ends = fake_flash(), torch.tensor([0, 24, 48], dtype=torch.int32)

        def varlen(m, q, k, v):
            flat = [t.reshape(48, *t.shape[2:]) for t in (q, k, v)]
            return fake.flash_attn_varlen_func(*flat, ends, ends, 24, 24, causal=True).view(q.shape)
        with mock.patch.dict(sys.modules, flash_attn=fake):
            for b in (0, 1):
                self.check(varlen, True, b=b, x=tiny.normal(2, 24, 32))

    def test_xformers(self):
        class LowerTriangularMask:
            pass
        ops = types.ModuleType("xformers.ops")
        fake = fake_flash()
        ops.memory_efficient_attention = lambda query, key, value, attn_bias=None, p=0.0, scale=None: fake.flash_attn_func(
            query, key, value, softmax_scale=scale, causal=attn_bias is not None)
        with mock.patch.dict(sys.modules, {"xformers.ops": ops}):
            self.check(lambda m, q, k, v: ops.memory_efficient_attention(q, k, v, LowerTriangularMask()), True)
            self.check(lambda m, q, k, v: ops.memory_efficient_attention(q, k, v, scale=0.4), False)
            with self.assertRaisesRegex(lacuna_trace.TraceError, "xformers' dict is not known"):
                self.check(lambda m, q, k, v: ops.memory_efficient_attention(q, k, v, {}), True)

    def test_flex_attention(self):
        from torch.nn.attention import flex_attention as flex

        def causal(m, q, k, v):
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            mask = flex.create_block_mask(lambda b, h, i, j: j <= i, None, None, q.shape[2], k.shape[2], device="cpu")
            return flex.flex_attention(q, k, v, block_mask=mask).transpose(1, 2)

        def windowed(m, q, k, v):
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            mask = flex.create_block_mask(lambda b, h, i, j: (j <= i) & (i - j < 9), None, None, q.shape[2], k.shape[2], device="cpu")
            return flex.flex_attention(q, k, v, block_mask=mask).transpose(1, 2)
        self.check(causal, True)
        self.assertEqual(self.check(windowed, True).call(0).stored_score, {"window_left": 8})


if __name__ == "__main__":
    unittest.main()
