"""Methods of one's own through `lacuna replay -m exec:cmd=...`: the helper of Python and the examples."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.environ["ROOT"]
MINE = """
import numpy as np
from lacuna_trace.method import Skip, method


def select(q, k, v, head):
    print("a line on stdout goes to the log")
    i, j = np.arange(head.nq)[:, None], np.arange(head.nk)[None, :]
    if head.params == "skip":
        raise Skip("not this head")
    if head.params == "shape":
        return np.ones((3, 3), bool)
    if head.params == "type":
        return q @ k.T
    if head.params == "sums":
        raise Skip(f"{q.sum(dtype=float):.4f} {k.sum(dtype=float):.4f} {v.sum(dtype=float):.4f}")
    window = (abs(i - j) < 40) & (j <= i)
    if head.params == "pairs":
        return window
    blocks = np.stack([np.stack([window[r:r + 64, c:c + 64].any() for c in range(0, head.nk, 64)]) for r in range(0, head.nq, 64)])
    if head.params == "blocks":
        return blocks
    return np.concatenate([[0], np.cumsum(blocks.sum(1))]), np.nonzero(blocks)[1]


method(select, unit=(64, 64))
"""


class Method(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.mkdtemp()
        with open(os.path.join(cls.dir, "mine.py"), "w", encoding="utf-8") as f:
            f.write(MINE)
        cls.lacuna("import", "--safetensors", ROOT + "/tests/data/code-lm-a.safetensors", "--q", "layer5.q.heads0,7", "--k",
                   "layer5.k", "--v", "layer5.v", "--causal", "--meta", '{"layer": 5}', "-o", "t.h5", "-q")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.dir)

    @classmethod
    def lacuna(cls, *words, status=0, env=None):
        p = subprocess.run([os.environ["LACUNA"], *words], cwd=cls.dir, capture_output=True, text=True, env={**os.environ, **(env or {})})
        assert p.returncode == status, (p.returncode, p.stdout, p.stderr)
        return p

    def replay(self, *methods, status=0, env=None):
        out = os.path.join(self.dir, self.id())
        words = [w for m in methods for w in ("-m", m)]
        p = self.lacuna("replay", "t.h5", *words, "-j", "1", "-o", out, status=status, env=env)
        with open(os.path.join(out, "records.jsonl"), encoding="utf-8") as f:
            return [json.loads(line) for line in f], p

    def exec(self, file, params):
        return f"exec:cmd={sys.executable} {file}:params={params}"

    def test_the_same_mask_gives_the_same_numbers(self):
        records, p = self.replay("streaming:sink=0:window=40", self.exec("mine.py", "pairs,blocks,lists"))
        self.assertIn("a line on stdout goes to the log", p.stderr)
        for head in (0, 1):
            r = {x["params"][-5:]: x for x in records if x["head"] == head}
            built_in, pairs, blocks, lists = (r[k] for k in ("ow=40", "pairs", "locks", "lists"))
            for name in ("density_elem", "cra_min", "cra_mean", "err_l1_rel", "err_max", "density_tile@64x64"):
                self.assertEqual(built_in[name], pairs[name])
                self.assertEqual(blocks[name], lists[name])
            self.assertGreater(blocks["density_elem"], pairs["density_elem"])
            self.assertEqual(pairs["pairs_dropped"], 0)

    def test_what_it_may_not_return(self):
        records, _ = self.replay(self.exec("mine.py", "skip,shape,type"), status=5)
        reasons = {(x["params"].split("=")[-1], x["status"], x["reason"]) for x in records}
        self.assertIn(("skip", "skip", "not this head"), reasons)
        self.assertEqual({(p, s) for p, s, _ in reasons}, {("skip", "skip"), ("shape", "error"), ("type", "error")})
        text = " ".join(r for _, _, r in reasons)
        self.assertIn("expected (770, 770) pairs or (13, 13) blocks of 64 x 64", text)
        self.assertIn("elements of type float32, expected bool", text)

    def test_the_example_and_its_triton_twin(self):
        folder = ROOT + "/capture/torch/examples/"
        records, _ = self.replay(self.exec(folder + "topblocks.py", "3,6"))
        self.assertTrue(all(x["status"] == "ok" for x in records))
        self.assertEqual(len(records), 4)
        try:
            import triton  # noqa: F401
        except ImportError:
            self.skipTest("no triton")
        twins, _ = self.replay(self.exec(folder + "topblocks_triton.py", "3,6"), env={"TRITON_INTERPRET": "1"})
        twins = [x for x in twins if "triton" in x["params"]]
        for a, b in zip(records, twins):
            self.assertEqual((a["head"], a["params"][-1], a["cra_mean"]), (b["head"], b["params"][-1], b["cra_mean"]))

    def test_the_helper_needs_numpy_alone(self):
        code = "import sys; sys.modules['h5py'] = None; from lacuna_trace.method import method; import lacuna_trace\n" \
               "try: lacuna_trace.open_trace\nexcept ModuleNotFoundError as e: print(e)"
        p = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertIn("needs h5py", p.stdout)


if __name__ == "__main__":
    unittest.main()
