"""Exact attention of sampled rows, in PyTorch: the check of what a model returned, and pooled maps.

s_ij = cap(scale q_i k_j) + b_ij, j allowed by the rule; LSE_i = ln sum_j e^{s_ij}; O_i = sum_j e^{s_ij} v_j over
e^{LSE_i} + e^z with a sink z. Memory is that of a few rows of scores, whatever the length.
"""
import dataclasses
import math

import torch

SCORES = 16 << 20  # scores at a time
KEYS = 1 << 15     # keys at a time


@dataclasses.dataclass(frozen=True)
class Rule:
    """Which scores a call computes and which pairs it allows.

    Query row i (of the call) stands at position i + offset; keys are counted from 0. `keys` = (first, end) are the
    valid keys; `window` = (left, right), inclusive, None = no limit; `chunk`: only keys of the row's own run of so many
    tokens, counted from token -base; `prefix`: a causal row also sees so many of the first valid
    keys. `sinks` and `alibi` have a value per query head of the model.
    """
    scale: float
    causal: bool = False
    offset: int = 0
    keys: tuple = (0, 1 << 62)
    window: tuple = (None, None)
    softcap: float = 0.0
    chunk: int = 0
    base: int = 0
    prefix: int = 0
    sinks: object = None
    alibi: object = None
    bias: object = None     # float32 [1 or heads][rows][keys]: what is added to the score of every row and key of the call
    rel: object = None      # float32 [1 or heads][2 n - 1]: what is added to the score of a key at distance j - p from 1 - n on

    def allowed(self, rows, n_k, first=0):
        """bool [rows][n_k] for the keys first.. of the call; rows: int64 tensor of query rows."""
        p = (rows + self.offset)[:, None]
        j = torch.arange(first, first + n_k, device=rows.device)[None, :]
        a = (j >= self.keys[0]) & (j < self.keys[1])
        a = a & ((j <= p) | (j < self.keys[0] + self.prefix)) if self.causal else a.expand(len(rows), -1)
        left, right = self.window
        a = a & (j >= p - left) if left is not None else a
        a = a & (j <= p + right) if right is not None else a
        return a & ((j + self.base) // self.chunk == (p + self.base) // self.chunk) if self.chunk else a


def _distances(rule, rows, first, part):
    """Places in rule.rel [rows][keys] of the keys first..; what lies outside of it is not allowed either."""
    n = (rule.rel.shape[1] + 1) // 2
    j = torch.arange(first, first + part.shape[2], device=rows.device)[None]
    return (j - (rows + rule.offset)[:, None] + n - 1).clamp(0, 2 * n - 2)


def scores(q, k, rule, rows, heads):
    """float64 [heads][rows][n_k] of q [heads][rows][d] and k [kv heads][n_k][d]; -inf where a pair is not allowed.

    Equally many query heads in a row read each kv head. heads: the model's numbers of the query heads.
    """
    n_k = k.shape[1]
    s = torch.empty(q.shape[0], q.shape[1], n_k, dtype=torch.float64, device=q.device)
    grouped = q.double().reshape(k.shape[0], -1, q.shape[2])
    for at in range(0, n_k, KEYS):
        part = torch.matmul(grouped, k[:, at:at + KEYS].double().transpose(1, 2)).view(*q.shape[:2], -1) * rule.scale
        if rule.softcap:
            part = rule.softcap * torch.tanh(part / rule.softcap)
        if rule.alibi is not None:
            j = torch.arange(at, at + part.shape[2], device=q.device)[None]
            far = (rows + rule.offset)[:, None].sub(j).abs().double()
            part -= rule.alibi.to(q.device)[heads].double()[:, None, None] * far
        if rule.rel is not None:
            part += rule.rel.to(q.device)[heads if len(rule.rel) > 1 else [0] * len(heads)][:, _distances(rule, rows, at, part)].double()
        if rule.bias is not None:
            mine = rule.bias[heads] if len(rule.bias) > 1 else rule.bias
            part += mine[:, rows, at:at + part.shape[2]].to(part)
        allowed = rule.allowed(rows, part.shape[2], at)
        s[:, :, at:at + KEYS] = part.masked_fill_(~allowed, -math.inf)
    return s


def attend(q, k, v, rule, rows, heads):
    """Outputs and log-sum-exp of the rows: float64 [heads][rows][dv], [heads][rows]. k, v: [kv heads][n_k][...]."""
    s = scores(q, k, rule, rows, heads)
    top = s.amax(-1, keepdim=True).clamp_min(-1e300)
    p = torch.exp(s - top)
    total = p.sum(-1, keepdim=True)
    lse = (top + torch.log(total)).squeeze(-1)
    out = torch.zeros(*q.shape[:2], v.shape[2], dtype=torch.float64, device=q.device)
    grouped, sums = p.view(v.shape[0], -1, p.shape[2]), out.view(v.shape[0], -1, v.shape[2])
    for at in range(0, k.shape[1], KEYS):
        sums += torch.matmul(grouped[:, :, at:at + KEYS], v[:, at:at + KEYS].double())
    if rule.sinks is not None:
        total = total + torch.exp(rule.sinks.to(q.device)[heads].double()[:, None, None] - top)
    return out / total.clamp_min(1e-300), lse


HALF_ULP = {torch.float32: 2.0 ** -24, torch.float16: 2.0 ** -11, torch.bfloat16: 2.0 ** -8}


def excess(have, want, v_max, dtype, slack):
    """Largest error of `have` in units of what is tolerated: 1.01 half units in the last place, and slack * max|v|."""
    tolerated = 1.01 * HALF_ULP[dtype] * want.abs() + slack * v_max
    return float(((have.double() - want).abs() / tolerated).nan_to_num(math.inf).max())


def sample(n, count):
    """Rows 0 .. n-1, `count` of them evenly spread with both ends: those that `lacuna trace verify` looks at."""
    count = min(n, count)
    return [i * (n - 1) // (count - 1) if count > 1 else n - 1 for i in range(count)]


def maps(q, k, rule, first_row, pool, heads):
    """Sum and largest softmax weight per cell of pool x pool pairs: two float32 tensors [heads][cells][cells].

    q [h][n][d] are the rows first_row .. of the call, k [g][n_k][d]. Two passes over s_ij are not needed: a block of
    rows has all its scores in memory.
    """
    h, n, g, n_k = q.shape[0], q.shape[1], k.shape[0], k.shape[1]
    wide = -(-n_k // pool)
    total = torch.zeros(h, -(-n // pool), wide, device=q.device)
    largest = torch.zeros_like(total)
    rows_at_once = max(1, SCORES // max(1, n_k * pool)) * pool
    for head in range(h):
        for at in range(0, n, rows_at_once):
            part = q[head:head + 1, at:at + rows_at_once]
            rows = torch.arange(first_row + at, first_row + at + part.shape[1], device=q.device)
            s = scores(part, k[head // (h // g)][None], rule, rows, [heads[head]])[0]
            if rule.sinks is not None:
                s = torch.cat([s, rule.sinks.to(s)[heads[head]].expand(len(rows), 1)], -1)
            p = torch.softmax(s, -1).nan_to_num(0.0)[:, :n_k]
            p = torch.nn.functional.pad(p, (0, wide * pool - n_k, 0, -len(rows) % pool))
            cells = p.view(-1, pool, wide, pool)
            c = at // pool
            total[head, c:c + cells.shape[0]] = cells.sum((1, 3)).float()
            largest[head, c:c + cells.shape[0]] = cells.amax((1, 3)).float()
    return total, largest
