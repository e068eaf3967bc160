"""Store what the indexer of DeepSeek-V3.2 or GLM-5 multiplies, for replays of its choice by `-m dsa`.

    with torch.no_grad(), lacuna_trace.capture(model, "t.h5") as cap, indexers(model, cap):
        model(ids)

A trace is of dense attention: set index_topk of the model's configuration to at least the number of tokens.
"""
import contextlib
import sys

import torch


def operands(indexer, hidden, latent, rotation):
    """iq [heads][tokens][channels], ik [1][tokens][channels], iw [heads][tokens][1] of one sequence."""
    file = sys.modules[type(indexer).__module__]
    rotate = getattr(file, "apply_rotary_pos_emb", None) or file.apply_rotary_pos_emb_interleave  # GLM has the latter alone
    q = indexer.wq_b(latent).unflatten(-1, (indexer.n_heads, indexer.head_dim))
    k = indexer.k_norm(indexer.wk(hidden)).unsqueeze(2)
    r = indexer.qk_rope_head_dim
    turned = rotate(q[..., :r], k[..., :r], *rotation, unsqueeze_dim=2)
    q, k = (torch.cat([a, x[..., r:]], -1)[0].transpose(0, 1) for a, x in zip(turned, (q, k)))
    return {"iq": q, "ik": k, "iw": indexer.weights_proj(hidden)[0].T.unsqueeze(-1)}


@contextlib.contextmanager
def indexers(model, cap):
    def store(indexer, args):
        for name, x in operands(indexer, *args[:3]).items():
            cap.aux(indexer.layer_idx, name, x)
    found = [m for m in model.modules() if type(m).__name__.endswith("Indexer")]
    hooks = [m.register_forward_pre_hook(store) for m in found]
    try:
        yield
    finally:
        for h in hooks:
            h.remove()
