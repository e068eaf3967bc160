"""Selectors that were trained with their model: a captured model's indexer or gate, replayed, chooses what the model chooses."""
import os
import sys
import tempfile
import unittest

import numpy as np
import torch
import torch.nn.functional as F
import transformers

import lacuna_trace
import tiny

sys.path.insert(0, os.path.join(os.environ["ROOT"], "capture/torch/examples"))
from indexer import indexers  # noqa: E402

PROMPT, NEW = tiny.TOKENS, 8


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        self.path = os.path.join(self.dir.name, "t.h5")

    def kept(self, layer, method, phase="prefill"):
        """bool [heads][rows][keys] of a replay."""
        out, masks = os.path.join(self.dir.name, "r"), os.path.join(self.dir.name, "m.h5")
        tiny.lacuna("replay", self.path, "--phase", phase, "-m", method, "--layers", layer, "--dump-masks", masks, "-o", out, "--force", "-q")
        with lacuna_trace.open_masks(masks) as dump:
            return np.array([m.dense() for m in dump])


class Indexer(Case):
    def model(self, name="DeepseekV32", **more):
        if not hasattr(transformers, name + "Config"):
            self.skipTest(f"transformers {transformers.__version__} has no {name}")
        return tiny.language_model(name, **{**tiny.MLA, "q_lora_rank": 24, "index_topk": 512, "index_n_heads": 6, "index_head_dim": 16, **more})

    def capture(self, model, **options):
        """What every indexer was given, all tokens: {layer: [hidden, latent, (cos, sin)]}."""
        seen = {}

        def see(m, args):
            seen.setdefault(m.layer_idx, []).append(args[:3])
        for m in model.modules():
            if type(m).__name__.endswith("Indexer"):
                m.register_forward_pre_hook(see)
        with torch.no_grad(), lacuna_trace.capture(model, self.path, force=True, **options) as cap, indexers(model, cap):
            if options:
                model.generate(tiny.prompt(), max_new_tokens=NEW, do_sample=False)
            else:
                model(tiny.prompt())
        join = lambda x: torch.cat(x, 1)
        return {n: (join([a[0] for a in x]), join([a[1] for a in x]), tuple(join([a[2][i] for a in x]) for i in (0, 1))) for n, x in seen.items()}

    def own(self, model, layer, given, topk):
        """The module's own choice: bool [rows][keys], and rows in which the last that it takes ties with one that it leaves."""
        indexer = next(m for m in model.modules() if type(m).__name__.endswith("Indexer") and m.layer_idx == layer)
        n = given[0].shape[1]
        scores, real = [], torch.Tensor.topk

        def spy(x, *args, **kwargs):
            scores.append(x[0])
            return real(x, *args, **kwargs)
        indexer.index_topk, torch.Tensor.topk = topk, spy
        try:
            causal = torch.ones(n, n, dtype=torch.bool).tril()
            chosen = indexer(*given, causal[None], torch.arange(n)[None])[0].long()
        finally:
            torch.Tensor.topk = real
        kept = torch.zeros(n, n, dtype=torch.bool).scatter_(1, chosen, True) & causal
        inside = scores[0].masked_fill(~kept, torch.inf).min(1).values
        ties = ((scores[0] == inside[:, None]) & ~kept & causal).any(1)
        return kept.numpy(), ties.numpy()

    def compare(self, masks, kept, ties):
        rows = kept.shape[0] - masks.shape[1]
        self.assertLess(ties.mean(), 0.3)
        for mask in masks:  # all heads of the layer
            np.testing.assert_array_equal(mask[~ties[rows:]], kept[rows:][~ties[rows:]])
            np.testing.assert_array_equal(mask.sum(1), kept[rows:].sum(1))

    def test_prefill(self):
        model = self.model()
        given = self.capture(model)
        for layer in (0, 1):
            for topk in (5, 17):
                self.compare(self.kept(layer, f"dsa:topk={topk}"), *self.own(model, layer, given[layer], topk))

    def test_decode(self):
        model = self.model()
        given = self.capture(model, decode=NEW, window=4, generated_by="greedy")
        masks = self.kept(1, "dsa:topk=9", "decode")
        n = lacuna_trace.open_trace(self.path).run["n_k"]
        kept, ties = self.own(model, 1, tuple(x[:, :n] for x in given[1][:2]) + (tuple(x[:, :n] for x in given[1][2]),), 9)
        self.assertEqual(masks.shape, (4, n - PROMPT, n))
        self.compare(masks, kept, ties)

    def test_layers_that_share_an_index(self):
        model = self.model("GlmMoeDsa", indexer_types=["full", "shared"])
        given = self.capture(model)
        self.compare(self.kept(1, "dsa:topk=9:share=0"), *self.own(model, 0, given[0], 9))
        status, said = tiny.lacuna("replay", self.path, "-m", "dsa", "--layers", 1, "-o", os.path.join(self.dir.name, "r"), check=False)
        self.assertEqual(status, 3)
        self.assertIn("the trace has no aux/iq of layer 1: record it with cap.aux(1, \"iq\", x)", said)


# ---- SeerAttention ------------------------------------------------------------------------------

BLOCK = 8


class Gate(torch.nn.Module):
    """In the shape of SeerAttention's: keys pooled by maximum, minimum and mean, a linear map per head, rotation at the block's first token."""

    def __init__(self, heads, kv_heads, dim):
        super().__init__()
        self.q = torch.nn.Parameter(torch.randn(heads, dim, dim) * dim ** -0.5)
        self.k = torch.nn.Parameter(torch.randn(kv_heads, 3 * dim, dim) * dim ** -0.5)

    def keys(self, k, cos, sin):
        """[kv heads][blocks][dim] of k [kv heads][tokens][dim]; a last block may be incomplete."""
        n, d = k.shape[1:]
        blocks = [k[:, a:a + BLOCK] for a in range(0, n, BLOCK)]
        pooled = torch.stack([torch.cat([b.amax(1), b.amin(1), b.mean(1)], -1) for b in blocks], 1)
        return self.turn(pooled @ self.k, cos[:n:BLOCK], sin[:n:BLOCK])

    def turn(self, x, cos, sin):
        half = x.shape[-1] // 2
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    def blocks(self, q, cos, sin):
        """[heads][blocks][dim] of blocks of queries."""
        n = q.shape[1]
        return self.turn(torch.stack([q[:, a:a + BLOCK].mean(1) for a in range(0, n, BLOCK)], 1) @ self.q, cos[:n:BLOCK], sin[:n:BLOCK])


class Seer(Case):
    def capture(self, gates, **options):
        """A tiny Llama whose q_proj and k_proj feed a gate of layer 1; q, k before the rotation, cos, sin of all tokens."""
        model = tiny.language_model("Llama")
        attn, seen = model.model.layers[1].self_attn, {"q": [], "k": []}
        hooks = [getattr(attn, n + "_proj").register_forward_hook(lambda m, a, out, n=n: seen[n].append(out[0].unflatten(-1, (-1, attn.head_dim)).transpose(0, 1)))
                 for n in "qk"]
        with torch.no_grad(), lacuna_trace.capture(model, self.path, force=True, **options) as cap:
            if options:
                ids = model.generate(tiny.prompt(), max_new_tokens=NEW, do_sample=False)
            else:
                model(tiny.prompt())
            n = ids.shape[1] - 1 if options else PROMPT
            q, k = (torch.cat(seen[x], 1)[:, :n] for x in "qk")
            cos, sin = (x[0] for x in model.model.rotary_emb(q[None, 0], torch.arange(n)[None]))
            torch.manual_seed(3)
            gate = Gate(len(q), len(k), attn.head_dim)
            for name, x in gates(gate, q, k, cos, sin).items():
                cap.aux(1, name, x)
        for h in hooks:
            h.remove()
        return gate, q, k, cos, sin

    def test_prefill(self):
        with torch.no_grad():
            gate, q, k, cos, sin = self.capture(lambda g, q, k, cos, sin: {"gate_q": g.blocks(q, cos, sin), "gate_k": g.keys(k, cos, sin)})
            gq, gk = gate.blocks(q, cos, sin), gate.keys(k, cos, sin).repeat_interleave(len(q) // len(k), 0)
            n = gq.shape[1]
            later = torch.ones(n, n, dtype=torch.bool).triu(1)
            scores = (gq @ gk.transpose(1, 2) * gq.shape[-1] ** -0.5).masked_fill(later, -1e9)
        for text, rows in (("threshold=0.15", F.softmax(scores, -1) > 0.15), ("nz=0.7:last_dense=0", None)):
            if rows is None:
                count = int((1 - (1 - 0.7) ** 0.5) * n)
                rows = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, scores.topk(count, -1).indices, True)
            else:
                rows[:, -2:] = True
            want = (rows & ~later).repeat_interleave(BLOCK, 1).repeat_interleave(BLOCK, 2)[:, :PROMPT, :PROMPT].tril()
            masks = self.kept(1, f"seer:block={BLOCK}:{text}")
            self.assertTrue(0.2 < masks.mean() / 0.5 < 0.99)
            np.testing.assert_array_equal(masks, want.numpy())

    def test_decode(self):
        """A query of a KV head is the mean of its heads'; an incomplete block has a key of zeros, and the last one stays."""
        def gates(g, q, k, cos, sin):
            mean = q.unflatten(0, (len(k), -1)).mean(1)
            return {"gate_q": g.turn(mean @ g.q[:len(k)], cos, sin)[:, PROMPT:], "gate_k": g.keys(k, cos, sin)}
        with torch.no_grad():
            made = self.capture(gates, decode=NEW, window=4, generated_by="greedy")
        gate, n = gates(*made), made[1].shape[1]
        for text, budget in (("threshold=0.2", 0), (f"budget={2 * BLOCK}", 2)):
            masks = self.kept(1, f"seer:profile=decode:block={BLOCK}:{text}", "decode")
            for t in range(n - PROMPT):
                whole, blocks = (PROMPT + t + 1) // BLOCK, -(-(PROMPT + t + 1) // BLOCK)
                keys = F.pad(gate["gate_k"][:, :whole], (0, 0, 0, blocks - whole))
                p = F.softmax(torch.einsum("hd,hbd->hb", gate["gate_q"][:, t], keys) * keys.shape[-1] ** -0.5, -1)
                stay = torch.zeros_like(p, dtype=torch.bool).scatter_(-1, p.topk(budget, -1).indices, True) if budget else p > 0.2
                stay[:, -1] = True
                want = stay.repeat_interleave(BLOCK, 1)[:, :PROMPT + t + 1].repeat_interleave(len(masks) // len(p), 0)
                np.testing.assert_array_equal(masks[:, t, :PROMPT + t + 1], want.numpy())
                self.assertFalse(masks[:, t, PROMPT + t + 1:].any())


if __name__ == "__main__":
    unittest.main()
