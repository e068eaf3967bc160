"""One attention call as a hook saw it, and which rule of trace format 1.0 it follows.

Format 1.0 says: one scale, causal or not, padding text of a video. Whatever else a call does is refused by name.
A mask is compared with the rule at a few rows; no n x n tensor is built here.
"""
import dataclasses

import torch

from . import dense
from .layout import TraceError

LATER = "trace format 1.0 cannot say it"
HIDDEN = -1e4  # an additive mask at or below hides a key


@dataclasses.dataclass
class Seen:
    """q (b, h, s, d), k (b, g, n_k, d), v (b, g, n_k, dv), out (b, h, s, dv): views of the program's own tensors."""
    hook: str
    path: str
    module: object
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    scale: float
    causal: object = None       # without a mask: None, "upper" (key <= row), "lower" (aligned at the end)
    mask: object = None         # tensor that broadcasts to (b, h, s, n_k), (b, n_k), or a FlexAttention BlockMask
    window: tuple = (None, None)  # of the kernel itself: keys p - left .. p + right
    softcap: float = 0.0
    sinks: object = None
    bias: str = ""              # name of a bias that the call adds to its scores
    other: str = ""             # anything else that is unknown to the format
    positions: object = None    # (b, s) position ids when the program gave them
    again: object = None        # again(rows) -> out of these rows in float32, for functions that round their scores
    element: object = None      # how many calls of the same forward came before: programs may call once per batch element
    picked: bool = False        # the batch element was picked already: b = 1

    def refuse(self, what, advice):
        raise TraceError(f"{self.path}: {what}: {LATER}; {advice}")


@dataclasses.dataclass(frozen=True)
class Place:
    """Where the rows and keys of a call stand in the sequence. Key 0 of the call is token `key_start`."""
    row_start: int
    key_start: int
    valid: tuple     # (first, end) tokens that are no padding

    def rule(self, scale, causal):
        first, end = self.valid
        return dense.Rule(scale, causal, self.row_start - self.key_start, (first - self.key_start, end - self.key_start))


def refuse_unsupported(seen, tokens):
    """What the keywords of the call say. `tokens` = length of the sequence so far: a window may not bite yet."""
    other_layers = "capture other layers (layers=) or import with a later format"
    if seen.softcap:
        seen.refuse(f"scores are capped at {seen.softcap:g} (softcap)", other_layers)
    if seen.sinks is not None:
        seen.refuse("the softmax has sinks (s_aux)", other_layers)
    if seen.bias:
        seen.refuse(f"{seen.bias} is added to the scores", other_layers)
    if seen.other:
        seen.refuse(seen.other, other_layers)
    left, right = seen.window
    if left is not None and left + 1 < tokens or right is not None and right + 1 < tokens:
        refuse_window(seen, left + 1 if left is not None else right + 1)


def refuse_window(seen, width):
    seen.refuse(f"sliding window of {width} keys in a sequence that is longer",
                f"capture at most {width} tokens (tokens={width} and a prompt of that length), or layers without a window (layers=)")


# ---- masks ------------------------------------------------------------------------------------


def mask_rows(seen, b, rows):
    """The mask of query rows of batch element b: bool or float [heads or 1][rows][n_k]; None without a mask."""
    mask, n_k = seen.mask, seen.k.shape[2]
    if mask is None:
        return None
    if hasattr(mask, "mask_mod"):
        j = torch.arange(n_k, device=rows.device)[None, :]
        zero = torch.zeros((), dtype=torch.long, device=rows.device)
        return torch.as_tensor(mask.mask_mod(zero + b, zero, rows[:, None], j)).expand(len(rows), n_k)[None]
    if mask.ndim == 2 and mask.shape[0] == seen.q.shape[0] and mask.shape[1] == n_k and mask.shape[0] != seen.q.shape[2]:
        return mask[b].bool()[None, None].expand(1, len(rows), n_k)
    while mask.ndim < 4:
        mask = mask[None]
    mask = mask[min(b, mask.shape[0] - 1)]
    if mask.shape[1] > 1:
        mask = mask[:, rows.to(mask.device)]
    return mask[:, :, :n_k].expand(-1, len(rows), -1)


def hidden_and_bias(mask):
    """(visible bool, does a finite value other than 0 occur) of a float or bool mask."""
    if mask.dtype == torch.bool:
        return mask, False
    visible = mask > HIDDEN
    return visible, bool((mask.masked_fill(~visible, 0) != 0).any())


def describe_bias(mask, visible):
    """A float mask that grows by one step per key is ALiBi."""
    row = mask[-1, -1].double()
    seen = row[visible[-1, -1]]
    step = seen.diff()
    linear = len(step) > 1 and bool((step - step[0]).abs().max() <= 0.02 * step[0].abs() + 1e-6)
    return "ALiBi (a bias linear in the key)" if linear and step[0] != 0 else "a bias (a float mask with finite values)"


def classify(seen, b, place, rows, causal):
    """The rule of the call, from its mask at the sampled rows. causal: True or False when it is already known."""
    refuse_unsupported(seen, place.row_start + int(rows.max()) + 1)
    mask = mask_rows(seen, b, rows)
    if mask is None:
        return _without_mask(seen, place, causal)
    visible, bias = hidden_and_bias(mask)
    if bias:
        seen.refuse(f"{describe_bias(mask, visible)} is added to the scores", "capture other layers (layers=)")
    visible = visible.to(seen.k.device)
    if not bool((visible == visible[:1]).all()):
        seen.refuse("every head has a mask of its own", "capture a model without sparse heads")
    keep = (rows + place.row_start >= place.valid[0]) & (rows + place.row_start < place.valid[1])
    got, at = visible[0][keep], rows[keep]
    for candidate in (True, False) if causal is None else (causal,):
        rule = place.rule(seen.scale, candidate)
        if torch.equal(rule.allowed(at, seen.k.shape[2]), got):
            return rule
    _explain(seen, place, at, got)


def _without_mask(seen, place, causal):
    s, n_k = seen.q.shape[2], seen.k.shape[2]
    if seen.causal is None:
        if s > 1 and causal:
            seen.refuse("a call without a mask in a causal run", "send the prompt in one piece")
        return place.rule(seen.scale, bool(causal))
    offset = 0 if seen.causal == "upper" else n_k - s
    if offset != place.row_start - place.key_start:
        seen.refuse(f"a causal mask aligned at the {'first' if seen.causal == 'upper' else 'last'} key of {n_k} for "
                    f"{s} rows from token {place.row_start} on", "send the prompt in one piece and with an empty cache")
    return place.rule(seen.scale, True)


def _explain(seen, place, rows, got):
    """The mask is not plain: say what it looks like."""
    p = rows + place.row_start - place.key_start
    kept = got.sum(1)
    causal = bool((~got | (torch.arange(got.shape[1], device=got.device)[None] <= p[:, None])).all())
    first = torch.where(kept > 0, got.int().argmax(1), p)
    one_run = bool((kept == p + 1 - first).all())
    widths, full = (p + 1 - first), int(kept.max())
    if causal and one_run and bool(((widths == full) | (first == 0)).all()):
        refuse_window(seen, full)
    starts = sorted(set(first.tolist()))
    if causal and one_run and len(starts) > 1:
        seen.refuse(f"the mask cuts the sequence into parts (parts that were seen begin at tokens {starts[:4]}): chunked attention or "
                    "packed sequences", "capture one sequence of at most one chunk")
    bad = (got != place.rule(seen.scale, True).allowed(rows, got.shape[1])).nonzero()
    row, key = int(rows[bad[0, 0]]) + place.row_start, int(bad[0, 1]) + place.key_start
    seen.refuse(f"the mask is neither causal nor full nor padding at one end: first difference from causal at row {row}, key {key}",
                "a prefix that sees itself, image tokens and packed sequences need one")


# ---- what came out ------------------------------------------------------------------------------


def check_output(seen, b, rule, rows, heads, kv_of, slack):
    """Recompute the rows of the stored heads and compare with what the program returned.

    heads: query heads; kv_of: the kv head of each. Returns out, lse float32 [heads][rows][dv], [heads][rows] and the
    largest error in units of the tolerance; refuses when it is above 1 and says which change would fit.
    """
    q = seen.q[b][heads][:, rows]
    have = seen.out[b] if seen.again is None else seen.again(rows)[b]
    have = have[heads][:, rows] if seen.again is None else have[heads]
    dtype = seen.q.dtype if seen.again is None else torch.float32
    v_max = float(torch.stack(torch.aminmax(seen.v[b])).abs().max())

    def error(rule, b=b, kv_of=kv_of):
        out = torch.empty(have.shape, dtype=torch.float64, device=have.device)
        lse = torch.empty(have.shape[:2], dtype=torch.float64, device=have.device)
        most = max(1, dense.SCORES // (len(rows) * seen.k.shape[2]))
        for kv in sorted(set(kv_of)):
            mine = [i for i, x in enumerate(kv_of) if x == kv]
            for at in range(0, len(mine), most):
                i = mine[at:at + most]
                out[i], lse[i] = dense.attend(q[i], seen.k[b][kv:kv + 1], seen.v[b][kv:kv + 1], rule, rows)
        return dense.excess(have, out, v_max, dtype, slack), lse

    worst, lse = error(rule)
    if worst <= 1:
        return have.float(), lse.float(), worst
    raise TraceError(f"{seen.path}: what the model returned is not the softmax attention of its q, k and v: largest error "
                     f"{worst:.3g} times the tolerance{_what_fits(seen, rule, error, heads)}; the call does something that is not "
                     "known here")


def _what_fits(seen, rule, error, heads):
    """Alternatives that a wrong capture usually is; the first that explains the output."""
    n_k, g = seen.k.shape[2], seen.k.shape[1]
    others = [("the scale were 1/sqrt(d)", dict(rule=dataclasses.replace(rule, scale=seen.q.shape[3] ** -0.5))),
              ("it were causal, aligned at the first key", dict(rule=dataclasses.replace(rule, causal=True, offset=0))),
              ("it were causal, aligned at the last key",
               dict(rule=dataclasses.replace(rule, causal=True, offset=n_k - seen.q.shape[2]))),
              ("it were not causal", dict(rule=dataclasses.replace(rule, causal=False))),
              ("padding keys took part", dict(rule=dataclasses.replace(rule, keys=(0, n_k)))),
              ("query head h read kv head h mod g", dict(rule=rule, kv_of=[h % g for h in heads]))]
    width = getattr(seen.module, "sliding_window", None)
    for w in (width, width + 1) if isinstance(width, int) else ():
        others.append((f"a row saw the last {w} keys alone", dict(rule=dataclasses.replace(rule, window=(w - 1, None)))))
    for cap in (50.0, 30.0, 20.0):
        others.append((f"scores were capped at {cap:g}", dict(rule=dataclasses.replace(rule, softcap=cap))))
    others += [(f"k and v of batch element {b} were used", dict(rule=rule, b=b)) for b in range(min(4, seen.k.shape[0]))]
    for name, change in others:
        if error(**change)[0] <= 1:
            return f"; it would fit if {name}"
    return ""
