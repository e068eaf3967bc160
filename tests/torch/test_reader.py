"""Reading: attention of a trace, masks, records, other libraries, and every example of the README."""
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import torch

import lacuna_trace
import test_video
import tiny

ROOT = os.environ["ROOT"]


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """A trace of 40 tokens, one of a video, and a replay with dumped masks of each."""
        cls.dir = tempfile.TemporaryDirectory()
        cls.text, cls.video = cls.file("t.h5"), cls.file("v.h5")
        model = tiny.language_model("Llama")
        with torch.no_grad(), lacuna_trace.capture(model, cls.text):
            model(tiny.prompt())
        wan = tiny.transformer("HunyuanVideo")
        with torch.no_grad(), lacuna_trace.capture(wan, cls.video):
            wan(**test_video.arguments("HunyuanVideo"))
        methods = ["-m", "dense", "-m", "streaming:sink=2:window=6,12", "-m", "spargeattn", "-m", "sampleattention", "-m", "oracle:alpha=0.8"]
        tiny.lacuna("replay", "-q", cls.text, *methods, "--dump-masks", cls.file("m.h5"), "--dump-outputs", cls.file("o.h5"), "-o", cls.file("r"))
        tiny.lacuna("replay", "-q", cls.video, "-m", "dense", "-m", "streaming:window=9", "--dump-outputs", cls.file("vo.h5"), "-o",
                    cls.file("vr"))
        tiny.lacuna("replay", "-q", cls.video, "-m", "streaming:window=9", "--permute", "hilbert", "--dump-masks", cls.file("hm.h5"), "-o",
                    cls.file("hr"))

    @classmethod
    def tearDownClass(cls):
        cls.dir.cleanup()

    @classmethod
    def file(cls, name):
        return os.path.join(cls.dir.name, name)

    def open(self, path):
        t = lacuna_trace.open_trace(path)
        self.addCleanup(t.close)
        return t


class Reader(Case):
    def test_a_decode_phase_of_the_program(self):
        """Sums of columns that `lacuna capture` stored, against probabilities computed here."""
        path, model = self.file("d.h5"), os.path.join(ROOT, "datasets/models/code-lm")
        tiny.lacuna("capture", "-q", "--model", model, "--prompt", os.path.join(ROOT, "LICENSE"), "--tokens", 40, "--generate", 6, "--window", 40,
                    "--col-sums", "--layers", 2, "--heads", "0,7", "-o", path)
        t = self.open(path)
        call = t.call(layer=2)
        self.assertEqual((t.run["decode_from"], t.run["n_q"], t.run["n_k"], t.run["generated_by"]), (40, 46, 46, "greedy"))
        for head in (0, 7):
            np.testing.assert_allclose(call.col_sum(head), call.probs(head, slice(0, 40)).sum(0)[:40], 1e-6)
        self.assertEqual(t.verify(), [])

    def test_exact_attention_is_that_of_replay(self):
        """The dense method's output and log-sum-exp, computed by the C program."""
        import h5py
        for trace, outputs in ((self.text, "o.h5"), (self.video, "vo.h5")):
            t = self.open(trace)
            with h5py.File(self.file(outputs)) as f:
                cells = [cell for thousand in f["cells"].values() for cell in thousand.values()]
                cells = [c for c in cells if c.attrs["method"] == b"dense"]
                self.assertEqual(len(cells), len(t.calls) * len(t.head_ids))
                for c in cells:
                    call, head = t.call(int(c.attrs["layer"])), int(c.attrs["head"])
                    out, lse = call.attend(head)
                    first, end = call.padding()
                    rows = [i for i in range(call.n_q) if not first <= i < end]
                    tiny.same(out[rows], c["out"][:][rows], "out", 1e-4)
                    tiny.same(lse[rows], c["lse"][:][rows], "lse", 1e-4)

    def test_names_of_the_model(self):
        t = self.open(self.text)
        self.assertEqual((t.call(1).kv_head(3), t.call(1).score), (1, {"scale": 0.25, "causal": True}))
        self.assertEqual(list(t.frame()["layer"]), [0, 1])
        self.assertEqual(t.frame()["holds"][0], "q k v")
        raw = t.call(0).q(2, slice(3, 5), dtype="raw")
        self.assertEqual((raw.dtype, raw.shape), (np.float32, (2, 16)))
        with self.assertRaisesRegex(lacuna_trace.TraceError, "has no query head 9; stored are 0-3"):
            t.call(0).q(9)
        with self.assertRaisesRegex(lacuna_trace.TraceError, "no call of step 0, branch any, layer 5; its layers are 0-1"):
            t.call(5)
        with self.assertRaisesRegex(lacuna_trace.TraceError, "holds no out"):
            t.call(0).out(0)

    def test_files_of_other_kinds(self):
        for path, pattern in ((self.file("m.h5"), "is a lacuna-masks, expected a lacuna-trace"), (__file__, "not an HDF5 file"),
                              ("/nowhere/t.h5", "no such file")):
            with self.assertRaisesRegex(lacuna_trace.TraceError, pattern):
                lacuna_trace.open_trace(path)

    def test_reading_needs_no_torch(self):
        code = "import sys; sys.modules['torch'] = None; import lacuna_trace; t = lacuna_trace.open_trace(sys.argv[1]); print(t.verify())"
        p = subprocess.run([sys.executable, "-c", code, self.text], stdout=subprocess.PIPE, text=True, check=True)
        self.assertEqual(p.stdout.strip(), "[]")


class Masks(Case):
    def test_kept_pairs_are_those_of_the_records(self):
        r = lacuna_trace.records(self.file("r"), lacuna=tiny.LACUNA)
        with lacuna_trace.open_masks(self.file("m.h5")) as masks:
            self.assertEqual(len(masks), len(r))
            for m in masks:
                a = m.attrs
                row = r[(r["method"] == a["method"]) & (r["params"] == a["params"]) & (r["layer"] == a["layer"]) & (r["head"] == a["head"])]
                self.assertEqual(len(row), 1)
                self.assertEqual(m.dense().sum(), row["pairs_kept"].iloc[0], m)
                tiny.same(m.dense([7, 39]), m.dense()[[7, 39]], "rows")

    def test_blocks(self):
        masks = lacuna_trace.open_masks(self.file("m.h5"))
        self.addCleanup(masks.close)
        for m in masks:
            dense = np.pad(m.dense(), ((0, 2), (0, 2)))
            np.testing.assert_array_equal(m.blocks(6, 7), dense.reshape(7, 6, 6, 7).any((1, 3)))
            blocks, added = m.cover(5, 5)
            whole = blocks.repeat(5, 0).repeat(5, 1) & np.tri(40, dtype=bool)
            self.assertAlmostEqual(added, (whole.sum() - m.dense().sum()) / 820)
            self.assertTrue((whole | ~m.dense()).all())
            indptr, indices, (bq, bk) = m.bsr()
            again = np.zeros((len(indptr) - 1, -(-40 // bk)), bool)
            for i in range(len(indptr) - 1):
                again[i, indices[indptr[i]:indptr[i + 1]]] = True
            np.testing.assert_array_equal(again, m.blocks(bq, bk))

    def test_a_permuted_mask_says_so(self):
        with lacuna_trace.open_masks(self.file("hm.h5")) as masks:
            m = masks.find(head=1)[0]
            with self.assertRaisesRegex(lacuna_trace.TraceError, "in the order 'hilbert'"):
                m.dense()
            self.assertEqual(m.dense(as_stored=True).shape, (77, 77))  # 4 of the 81 tokens are padding
            with self.assertRaisesRegex(lacuna_trace.TraceError, "masks have no attribute colour"):
                masks.find(colour="red")

    def test_flex_attention_over_the_masks(self):
        """Masked exact attention in NumPy, and flex_attention with the BlockMask."""
        from torch.nn.attention.flex_attention import flex_attention
        masks, t = lacuna_trace.open_masks(self.file("m.h5")), self.open(self.text)
        self.addCleanup(masks.close)
        for layer, block in ((0, (8, 8)), (1, (16, 8))):
            mine = masks.find(method="streaming", params="sink=2:window=6", layer=layer)
            bm, call = lacuna_trace.block_mask(mine, block=block), t.call(layer)
            q = torch.tensor(np.stack([call.q(h) for h in range(4)]))[None]
            k, v = (torch.tensor(np.stack([f(h) for h in (0, 2)]))[None] for f in (call.k, call.v))
            out = flex_attention(q, k, v, block_mask=bm, scale=t.model["scale"], enable_gqa=True)
            table = np.stack([m.blocks(*block) for m in sorted(mine, key=lambda m: m.attrs["head"])])
            for head in range(4):
                keep = table[head].repeat(block[0], 0)[:40].repeat(block[1], 1)[:, :40]
                s = np.where(keep, call.scores(head), -np.inf)
                p = np.exp(s - s.max(1, keepdims=True))
                want = p / p.sum(1, keepdims=True) @ call.v(head)
                tiny.same(out[0, head].numpy(), want, f"head {head}", 2e-4)
            full = bm.full_kv_num_blocks.sum() if bm.full_kv_num_blocks is not None else 0
            self.assertEqual(int(bm.kv_num_blocks.sum() + full), int(table.sum()))
            for lists, counts in ((bm.kv_indices, bm.kv_num_blocks), (bm.full_kv_indices, bm.full_kv_num_blocks)):
                for h in range(4):
                    for r in range(table.shape[1]):
                        n = int(counts[0, h, r])
                        self.assertEqual(sorted(set(lists[0, h, r, :n].tolist())), lists[0, h, r, :n].tolist())

    def test_flashinfer_plan(self):
        with lacuna_trace.open_masks(self.file("m.h5")) as masks:
            mine = masks.find(method="streaming", params="sink=2:window=6", layer=0)
            plan, added = lacuna_trace.flashinfer_plan(mine, 4, 2, 16, block=(8, 8))
            self.assertEqual((plan["M"], plan["N"], plan["R"], plan["C"], added), (40, 40, 8, 8, 0.0))
            keep = np.zeros((40, 40), bool)
            for r in range(5):
                for at in range(plan["indptr"][r], plan["indptr"][r + 1]):
                    c = plan["indices"][at]
                    keep[8 * r:8 * r + 8, 8 * c:8 * c + 8] = plan["mask"][at]
            want = mine[0].blocks(8, 8).repeat(8, 0).repeat(8, 1) & np.tri(40, dtype=bool)
            np.testing.assert_array_equal(keep, want)


class Records(Case):
    def test_defaults_and_torn_lines(self):
        r = lacuna_trace.records(self.file("r"), lacuna=tiny.LACUNA)
        self.assertEqual(sorted(set(r[r["method"] == "streaming"]["p.window"])), [6, 12])
        self.assertEqual(set(r[r["method"] == "streaming"]["p.sink"]), {2})
        self.assertEqual(set(r[r["method"] == "oracle"]["p.alpha"]), {0.8})
        self.assertEqual(r[r["method"] == "spargeattn"]["p.profile"].iloc[0], "official")
        lines = [{"method": "a", "params": "", "head": 0, "x": 1.0, "inf": []}, {"method": "a", "params": "", "head": 0, "x": None, "inf": ["x"]}]
        with tempfile.TemporaryDirectory() as d:
            with open(os.path.join(d, "records.jsonl"), "w", encoding="utf-8") as f:
                f.write("".join(json.dumps(x) + "\n" for x in lines) + '{"method": "b", "par')
            torn = lacuna_trace.records(d, fill=False)
        self.assertEqual((len(torn), torn["x"][0]), (1, math.inf))
        with self.assertRaisesRegex(lacuna_trace.TraceError, "holds no records"):
            lacuna_trace.records(self.dir.name)


class CommandLine(Case):
    def run_it(self, *args):
        p = subprocess.run([sys.executable, "-m", "lacuna_trace", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        return p.returncode, p.stdout, p.stderr

    def test_statuses(self):
        status, out, _ = self.run_it("info", self.text, "--json")
        self.assertEqual((status, json.loads(out)["run"]["n_q"]), (0, 40))
        self.assertEqual(self.run_it("verify", self.text)[:2], (0, "ok: 2 calls\n"))
        for args, code, text in ((["verify", "/nowhere.h5"], 3, "no such file"), (["--hf", "/nowhere", "--prompt", __file__, "-o", "x"], 3, "config.json"),
                                 (["-o", "x"], 2, "give one of --hf DIR and --diffusers DIR"), (["--hf", "x", "--prompt", "y"], 2, "-o is missing"),
                                 (["--diffusers", "/nowhere", "--prompt", "y", "-o", "x"], 3, "model_index.json")):
            status, _, err = self.run_it(*args)
            self.assertEqual(status, code, err)
            self.assertIn(text, err)

    def test_dry_run_and_parts(self):
        model = os.path.join(ROOT, "datasets/models/code-lm")
        out = self.file("c.h5")
        args = ["--hf", model, "--prompt", os.path.join(ROOT, "core/hash.h"), "--tokens", "96", "--layers", "2,5"]
        status, text, err = self.run_it(*args, "--dry-run", "--json")
        self.assertEqual((status, json.loads(text)["bytes"] if not status else err), (0, 2 * 96 * (8 * 64 + 2 * 128) * 2))
        status, text, err = self.run_it(*args, "--chunk", "40", "--heads", "1,6", "--out", "none", "-o", out)
        self.assertEqual(status, 0, err)
        t = self.open(out)
        self.assertEqual((t.head_ids, [c.layer for c in t.calls], t.run["n_q"], t.model["dtype"]), ([1, 6], [2, 5], 96, "bfloat16"))
        tiny.lacuna("trace", "verify", out)
        self.assertEqual(self.run_it(*args, "-o", out)[0], 3)


    def test_several_prompts(self):
        """One model, a trace per prompt in a directory, which every reader takes."""
        model, out = os.path.join(ROOT, "datasets/models/code-lm"), self.file("traces")
        prompts = [a for n in ("core/hash.h", "core/sort.h") for a in ("--prompt", os.path.join(ROOT, n))]
        args = ["--hf", model, *prompts, "--tokens", "64", "--layers", "1", "--heads", "0", "-o", out]
        status, text, err = self.run_it(*args, "--dry-run", "--json")
        self.assertEqual((status, [os.path.basename(x["output"]) for x in json.loads(text)] if not status else err), (0, ["hash.h5", "sort.h5"]))
        self.assertFalse(os.path.exists(out))
        status, text, err = self.run_it(*args, "--json")
        self.assertEqual((status, [r["calls"] for r in json.loads(text)] if not status else err), (0, [1, 1]))
        a, b = lacuna_trace.open_traces(out)
        self.addCleanup(a.close)
        self.addCleanup(b.close)
        self.assertNotEqual(a.run["prompt_id"], b.run["prompt_id"])
        self.assertEqual([os.path.basename(t.path) for t in (a, b)], ["hash.h5", "sort.h5"])
        with self.assertRaisesRegex(lacuna_trace.TraceError, "holds 2 traces"):
            lacuna_trace.open_trace(out)
        self.assertEqual(self.run_it("verify", out)[:2], (0, "ok: 1 calls\nok: 1 calls\n"))
        tiny.lacuna("replay", "-q", out, "-m", "dense:map=0", "-o", self.file("run"))
        self.assertEqual(lacuna_trace.records(self.file("run"), fill=False)["trace"].nunique(), 2)
        for bad, why in ((["-o", "x.h5"], "in a directory"), (prompts[:2], "two prompts are named hash")):
            status, _, err = self.run_it(*args, *bad)
            self.assertEqual(status, 2, err)
            self.assertIn(why, err)


class Examples(Case):
    """Every Python block of the README and of the page runs, one after the other, in one directory."""

    def names(self):
        model, wan = tiny.language_model("Llama"), tiny.transformer("Wan")
        pipe, arguments = test_video.pipeline("Wan")
        return {"model": model, "ids": tiny.prompt(), "pipe": pipe, "pipe_arguments": arguments, "transformer": wan, "sigmas": [1.0, 0.5, 0.0],
                "transformer_arguments": dict(test_video.arguments("Wan"), return_dict=False), "lacuna": tiny.LACUNA, "lacuna_trace": lacuna_trace,
                "torch": torch}

    def run_page(self, page):
        with open(os.path.join(ROOT, page), encoding="utf-8") as f:
            blocks = re.findall(r"```python\n(.*?)```|^    lacuna (replay [^\n]*)$", f.read(), re.S | re.M)
        here, names = os.getcwd(), self.names()
        self.assertTrue(blocks)
        with tempfile.TemporaryDirectory() as d:
            os.chdir(d)
            try:
                for code, command in blocks:
                    if command and "mine.py" in command:
                        continue  # a program of the reader's own: test_method has whole ones
                    if command:
                        tiny.lacuna(*shlex.split(command), "-q")
                    else:
                        self.run_block(page, code, names)
            finally:
                os.chdir(here)

    def run_block(self, page, code, names):
        try:
            exec(compile(code, page, "exec"), names)  # noqa: S102
        except ModuleNotFoundError as e:
            if e.name != "matplotlib":
                raise

    def test_readme(self):
        self.run_page("capture/torch/README.md")

    def test_page(self):
        self.run_page("doc/capture-from-python.md")


if __name__ == "__main__":
    unittest.main()
