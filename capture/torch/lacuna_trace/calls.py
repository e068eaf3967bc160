"""One attention call as a hook saw it, and which rule of the trace format it follows.

The format says: scale, causal or not, window, chunk, prefix, soft cap, sinks, ALiBi, relative bias, padding text of a video. Whatever else a
call does is refused by name. A mask is compared with the rule at a few rows; no n x n tensor is built here.
"""
import dataclasses

import torch

from . import dense
from .layout import BIAS_MOST, TraceError

LATER = "the trace format cannot say it"
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
    width: object = None        # sliding window that the program names beside a mask which may hold it
    alibi: object = None        # slopes (h) or (b, h) of the kernel itself
    softcap: float = 0.0
    sinks: object = None
    bias: object = None         # float (b or 1, h or 1, s, n_k) that the call adds to its scores beside the mask
    other: str = ""             # anything else that is unknown to the format
    positions: object = None    # (b, s) position ids when the program gave them
    again: object = None        # again(rows) -> out of these rows in float32, for functions that round their scores
    element: object = None      # how many calls of the same forward came before: programs may call once per batch element
    runs: object = None         # how often each module (by id) ran in this forward of the model: one object per forward
    picked: bool = False        # the batch element was picked already: b = 1
    whole: object = None        # since when q, k and v are what they are (pipe.Whole)

    def refuse(self, what, advice):
        raise TraceError(f"{self.path}: {what}: {LATER}; {advice}")


@dataclasses.dataclass(frozen=True)
class Place:
    """Where the rows and keys of a call stand in the sequence. Key 0 of the call is token `key_start`."""
    row_start: int
    key_start: int
    valid: tuple     # (first, end) tokens that are no padding

    def rule(self, seen, b, causal, window=(None, None), chunk=0, prefix=0, bias=None):
        """`bias`: what with_bias made of a float mask or a position bias."""
        first, end = self.valid
        sinks = None if seen.sinks is None else seen.sinks.detach().reshape(-1).float()
        arrays = dict(bias or {})
        if not arrays and seen.alibi is not None:
            alibi = seen.alibi.detach().float()
            arrays["alibi"] = alibi[b] if alibi.ndim == 2 else alibi
        return dense.Rule(seen.scale, causal, self.row_start - self.key_start, (first - self.key_start, end - self.key_start), window,
                          float(seen.softcap), chunk, self.key_start - first if chunk else self.key_start, prefix, sinks, **arrays)


def refuse_unsupported(seen):
    """What the keywords of the call say and no rule knows."""
    other_layers = "capture other layers (layers=)"
    if seen.other:
        seen.refuse(seen.other, other_layers)
    if seen.sinks is not None and seen.sinks.numel() != seen.q.shape[1]:
        seen.refuse(f"{seen.sinks.numel()} sinks for {seen.q.shape[1]} heads", other_layers)


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


def slopes_of(mask, visible):
    """ALiBi: what a float mask adds grows by one step per key. Slopes float32 [heads]; None when it is something else.

    Also where the program rounded the products: transformers has Falcon's in bfloat16, exact up to key 256 alone.
    """
    heads = mask.shape[0]
    slopes = torch.zeros(heads)
    for h in range(heads):
        row, seen = mask[h, -1].double(), visible[min(h, visible.shape[0] - 1), -1]
        if int(seen.sum()) < 2:
            return None
        at = seen.nonzero().flatten().double()
        step = (row[seen][-1] - row[seen][0]) / (at[-1] - at[0])
        fit = row[seen][-1] + (at - at[-1]) * step
        if float((row[seen] - fit).abs().max()) > 3e-7 * float(row[seen].abs().max()) + 1e-6:
            return None
        slopes[h] = float(step)
    return slopes


def by_distance(bias, rows, visible):
    """A bias that depends on key minus row alone, as of T5: float32 [heads][2 n - 1] by distance from 1 - n on; None when it does not.

    bias [heads][s][n_k] of a call that has all rows of the sequence, visible [1 or heads][rows][n_k] at the sampled rows.
    """
    n = bias.shape[2]
    if bias.shape[1] != n:
        return None
    table = torch.cat([bias[:, -1, :-1], bias[:, 0]], 1).float()
    table = table.masked_fill(table <= HIDDEN, 0.0)  # keys after the row: nobody reads them
    at = torch.arange(n, device=rows.device)[None] - rows[:, None] + n - 1
    same = (table[:, at] == bias[:, rows]) | ~visible
    return table if bool(same.all()) and bool(table.isfinite().all()) else None


def with_bias(seen, bias, rows, visible):
    """{"alibi": slopes} or {"rel": table} of a bias [heads][s or rows][n_k]; refuses what is neither."""
    h = seen.q.shape[1]
    at_rows = bias[:, rows] if bias.shape[1] == seen.q.shape[2] else bias
    ahead = bool(visible[:, :-1, -1].any())  # ALiBi of keys after a row falls, that before it grows
    slopes = None if ahead else slopes_of(at_rows, visible)
    if slopes is not None and len(slopes) in (1, h):
        return {"alibi": slopes.expand(h).contiguous() if len(slopes) == 1 else slopes}
    if len(bias) not in (1, h) or bias.shape[1] != bias.shape[2]:
        seen.refuse(f"a bias of {' x '.join(str(n) for n in bias.shape)} values is added to the scores, which is not that of all rows", "send the "
                    "prompt in one piece")
    table = by_distance(bias, rows, visible)
    if table is not None:
        return {"rel": table}
    if bias.shape[1] * bias.shape[2] > BIAS_MOST:
        seen.refuse(f"a bias of {bias.shape[1]} rows and keys that is no function of their distance is added to the scores, and more than "
                    f"{BIAS_MOST} values", "capture a shorter prompt")
    return {"bias": bias.detach().float().masked_fill(bias <= HIDDEN, 0.0)}


def whole_bias(seen, b):
    """What the call adds to its scores, [1 or heads][s][n_k]: of a float mask, or of a position bias beside a mask."""
    x = seen.mask if seen.bias is None else seen.bias
    while x.ndim < 4:
        x = x[None]
    return x[min(b, x.shape[0] - 1)][:, :, :seen.k.shape[2]]


def classify(seen, b, place, rows, known):
    """The rule of the call, from its mask at the sampled rows. known: the rule of an earlier piece, or causal True / False, or None."""
    refuse_unsupported(seen)
    mask = mask_rows(seen, b, rows)
    if mask is None:
        rule = _without_mask(seen, b, place, known)
        if seen.bias is None:
            return rule
        visible = rule.allowed(rows, seen.k.shape[2])[None]
        return dataclasses.replace(rule, **with_bias(seen, whole_bias(seen, b), rows, visible))
    visible, biased = hidden_and_bias(mask)
    if biased and seen.bias is not None:
        seen.refuse("a float mask and a position bias are both added to the scores", "capture other layers (layers=)")
    bias = with_bias(seen, whole_bias(seen, b), rows, visible) if biased or seen.bias is not None else {}
    visible = visible.to(seen.k.device)
    if not bool((visible == visible[:1]).all()):
        seen.refuse("every head has a mask of its own", "capture a model without sparse heads")
    keep = (rows + place.row_start >= place.valid[0]) & (rows + place.row_start < place.valid[1])
    got, at = visible[0][keep], rows[keep]
    for candidate in _candidates(seen, place, at, got, known):
        rule = place.rule(seen, b, *candidate, bias=bias)
        if torch.equal(rule.allowed(at, seen.k.shape[2]), got):
            if "alibi" in bias and not rule.causal:
                seen.refuse("a bias that grows with the key in attention that is not causal", "capture other layers (layers=)")
            return rule
    _explain(seen, b, place, at, got)


def _candidates(seen, place, rows, got, known):
    """(causal, window, chunk, prefix) that the call may follow, the likeliest first."""
    if isinstance(known, dense.Rule):
        yield known.causal, known.window, known.chunk, known.prefix
        return
    causals = (True, False) if known is None else (known,)
    width = (seen.width - 1, None) if isinstance(seen.width, int) and seen.width > 0 else None
    chunk = getattr(getattr(seen.module, "config", None), "attention_chunk_size", None)
    chunked = isinstance(chunk, int) and chunk > 0
    if chunked and _layer_type(seen.module) == "chunked_attention":
        yield True, (None, None), chunk, 0  # of a piece below the chunk's size the mask says nothing yet
    for causal in causals:
        for window in ([width] if width and causal else []) + [(None, None)]:
            yield causal, window, 0, 0
    left, right = _edges(place, rows, got)
    if right == 0 or right is None:
        yield True, (left, None), 0, 0
    if place.row_start <= place.valid[0] and known is not False:
        yield True, (None, None), 0, int(got[0].sum())  # the first row sees the prefix and nothing else
    yield False, (left, right), 0, 0
    if chunked:
        yield True, (None, None), chunk, 0


def _layer_type(module):
    """What the model's configuration says of the layer: "full_attention", "chunked_attention", ..."""
    types, index = getattr(getattr(module, "config", None), "layer_types", None), getattr(module, "layer_idx", None)
    return types[index] if types and isinstance(index, int) and index < len(types) else None


def _edges(place, rows, got):
    """(left, right) of a window that would leave these runs of keys; None where nothing is left out on that side."""
    n_k = got.shape[1]
    p = rows + place.row_start - place.key_start
    first, last = got.int().argmax(1), n_k - 1 - got.int().flip(1).argmax(1)
    start, end = max(place.valid[0] - place.key_start, 0), min(place.valid[1] - place.key_start, n_k)
    left, right = (p - first)[first > start], (last - p)[last < end - 1]
    return (int(left.max()) if len(left) else None), (int(right.max()) if len(right) else None)


def _without_mask(seen, b, place, known):
    s, n_k = seen.q.shape[2], seen.k.shape[2]
    causal = known.causal if isinstance(known, dense.Rule) else known
    window = seen.window
    if window == (None, None) and isinstance(seen.width, int) and place.row_start + s <= seen.width:
        window = (seen.width - 1, None)  # it does nothing yet; later rows may come with a mask
    if seen.causal is None:
        if s > 1 and causal:
            seen.refuse("a call without a mask in a causal run", "send the prompt in one piece")
        return place.rule(seen, b, bool(causal), window)
    offset = 0 if seen.causal == "upper" else n_k - s
    if offset != place.row_start - place.key_start:
        seen.refuse(f"a causal mask aligned at the {'first' if seen.causal == 'upper' else 'last'} key of {n_k} for "
                    f"{s} rows from token {place.row_start} on", "send the prompt in one piece and with an empty cache")
    return place.rule(seen, b, True, (window[0], None))


def _explain(seen, b, place, rows, got):
    """The mask is none that a rule makes: say what it looks like."""
    topk = getattr(getattr(seen.module, "config", None), "index_topk", None)
    if topk is not None and got.shape[1] > topk:
        seen.refuse(f"the model itself chooses {topk} of {got.shape[1]} keys for every query (index_topk): it is sparse already",
                    f"set index_topk to {got.shape[1]} or more, and `-m dsa` replays its choice (examples/indexer.py)")
    p = rows + place.row_start - place.key_start
    kept = got.sum(1)
    causal = bool((~got | (torch.arange(got.shape[1], device=got.device)[None] <= p[:, None])).all())
    first = torch.where(kept > 0, got.int().argmax(1), p)
    one_run = bool((kept == p + 1 - first).all())
    starts = sorted(set(first.tolist()))
    if causal and one_run and len(starts) > 1:
        seen.refuse(f"the mask cuts the sequence into parts (parts that were seen begin at tokens {starts[:4]}): packed sequences, or "
                    "chunks of a size that the model's configuration does not name", "capture one sequence of at most one part")
    bad = (got != place.rule(seen, b, True).allowed(rows, got.shape[1])).nonzero()
    row, key = int(rows[bad[0, 0]]) + place.row_start, int(bad[0, 1]) + place.key_start
    seen.refuse("the mask is neither causal nor full, no window, no chunk, no prefix that sees itself and no padding at one end: first "
                f"difference from causal at row {row}, key {key}", "packed sequences and image tokens in the middle of a text have such masks")


def score_of(rule, heads, n_q, n_k):
    """What the file says of a call of n_q rows, the last ones of n_k keys: no attributes at their defaults, arrays of the stored heads."""
    left, right = rule.window
    score = {"window_left": left if left is not None and left + 1 < n_k else None,
             "window_right": right if right is not None and right + 1 < n_k and not rule.causal else None,
             "chunk": rule.chunk if 0 < rule.chunk < n_k else None, "prefix": rule.prefix if rule.prefix > 1 else None,
             "softcap": rule.softcap or None}
    arrays = {name: x.cpu().float()[heads].numpy() for name, x in (("sinks", rule.sinks), ("alibi", rule.alibi)) if x is not None}
    if rule.rel is not None:
        n = (rule.rel.shape[1] + 1) // 2
        arrays["rel_bias"] = (rule.rel if len(rule.rel) == 1 else rule.rel[heads])[:, n - n_k:n + n_k - 1].cpu().numpy()
    if rule.bias is not None:
        first = rule.keys[0]  # padding before the prompt is cut off
        end = first + n_k
        arrays["bias"] = (rule.bias if len(rule.bias) == 1 else rule.bias[heads])[:, end - n_q:end, first:end]
    return {n: x for n, x in score.items() if x is not None} | arrays


# ---- what came out ------------------------------------------------------------------------------


def check_output(seen, b, rule, rows, heads, kv_of, slack):
    """Recompute the rows of the stored heads and compare with what the program returned.

    heads: query heads; kv_of: the kv head of each. Returns out, lse float32 [heads][rows][dv], [heads][rows] and the
    largest error in units of the tolerance; refuses when it is above 1 and says which change would fit.
    """
    q = pick(seen.q[b], heads)[:, rows]
    have = pick(seen.out[b], heads)[:, rows] if seen.again is None else pick(seen.again(rows)[b], heads)
    dtype = seen.q.dtype if seen.again is None else torch.float32
    v_max = torch.stack(torch.aminmax(seen.v[b])).abs().max()

    def error(rule, b=b, kv_of=kv_of):
        parts = []
        for mine, kv in together(kv_of, max(1, dense.SCORES // (len(rows) * seen.k.shape[2]))):
            parts.append((mine, *dense.attend(pick(q, mine), pick(seen.k[b], kv), pick(seen.v[b], kv), rule, rows, [heads[i] for i in mine])))
        order = [i for mine, _, _ in parts for i in mine]
        place = sorted(range(len(order)), key=order.__getitem__)
        out, lse = (pick(torch.cat([part[n] for part in parts]), place) for n in (1, 2))
        return dense.excess(have, out, v_max, dtype, slack), lse

    worst, lse = error(rule)
    if worst <= 1:
        return have.float(), lse.float(), worst
    raise TraceError(f"{seen.path}: what the model returned is not the softmax attention of its q, k and v: largest error "
                     f"{worst:.3g} times the tolerance{_what_fits(seen, rule, error, heads)}; the call does something that is not "
                     "known here")


def pick(x, ids):
    """x[ids] along the first axis; of a run of numbers a view, since a list of numbers waits for the device."""
    run = list(ids) == list(range(ids[0], ids[0] + len(ids)))
    return x[ids[0]:ids[0] + len(ids)] if run else x[list(ids)]


def together(kv_of, most):
    """Heads to compute at once, at most `most` of them: (their places in kv_of, the kv heads that equally many of them read)."""
    groups = [(kv, [i for i, x in enumerate(kv_of) if x == kv]) for kv in sorted(set(kv_of))]
    at = 0
    while at < len(groups):
        each, end = len(groups[at][1]), at + 1
        while end < len(groups) and len(groups[end][1]) == each and (end + 1 - at) * each <= most:
            end += 1
        mine = [i for _, group in groups[at:end] for i in group]
        for i in range(0, len(mine), most):
            yield mine[i:i + most], [kv for kv, _ in groups[at:end]]
        at = end


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
    if rule.softcap:
        others.append(("scores were not capped", dict(rule=dataclasses.replace(rule, softcap=0.0))))
    if rule.sinks is not None:
        others.append(("there were no sinks", dict(rule=dataclasses.replace(rule, sinks=None))))
    if rule.window != (None, None):
        left, right = rule.window
        others.append(("there were no window", dict(rule=dataclasses.replace(rule, window=(None, None)))))
        others.append(("the window were one key longer", dict(rule=dataclasses.replace(rule, window=(left + 1 if left else left, right)))))
    others += [(f"k and v of batch element {b} were used", dict(rule=rule, b=b)) for b in range(min(4, seen.k.shape[0]))]
    for name, change in others:
        if error(**change)[0] <= 1:
            return f"; it would fit if {name}"
    return ""
