"""Language models and other stacks of transformer layers: a call per layer, put together from the pieces of a prompt.

A prompt comes in one piece, in chunks, with a dynamic, a sliding or a static cache. Its length is known from the
outermost call (generate or forward); `spool` holds the rows while it is not.
"""
import collections
import dataclasses
import re

import torch

from . import layout, rows
from .calls import Place, classify
from .files import Files
from .identity import count_layers, layer_of, positions_of
from .layout import TraceError
from .pipe import Pipe
from .writer import Writer

CROSS = re.compile(r"cross|encoder_attn|EncDec", re.I)


class Prompt:
    """What the outermost call says: lengths per batch element, padding, token ids."""

    def __init__(self, ids, embeds, mask, batch):
        source = ids if ids is not None else embeds
        self.n = source.shape[1]
        if batch >= source.shape[0]:
            raise TraceError(f"batch={batch}, but the input has {source.shape[0]} elements")
        self.first, self.end = 0, self.n
        if mask is not None and mask.ndim == 2 and mask.shape[1] == self.n:
            valid = mask[batch].nonzero().flatten()
            if not len(valid) or int(valid[-1] - valid[0]) + 1 != len(valid):
                raise TraceError("the attention mask has holes: one run of valid tokens is known; capture one prompt without holes")
            self.first, self.end = int(valid[0]), int(valid[-1]) + 1

    @property
    def padded(self):
        return self.end < self.n


class Stack:
    """The rows of one layer that have come so far."""

    def __init__(self, path):
        self.path, self.seen, self.stored, self.rule = path, 0, 0, None
        self.call = self.writer = self.wanted = None
        self.checks = {}


def positions_below(model, length):
    """The model's positions where a run is longer, else 0."""
    config = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    positions = getattr(config, "max_position_embeddings", None)
    return positions if isinstance(positions, int) and 0 < positions < length else 0


class Text:
    """Takes the calls of a language model. One run: one prompt."""

    def __init__(self, options, model, files, report, base, run):
        self.o, self.model, self.files, self.report = options, model, files, report
        self.base = dict(base, layers=count_layers(model), positions=positions_of(model), positions_applied=1)
        self.run = run
        self.prompt, self.generating, self.ids, self.stacks = None, False, [], {}
        self.spool = None
        self.aux = collections.defaultdict(list)    # (layer, name): pieces of extra operands
        self.drawn = None           # positions of sampled rows
        self.positions = None       # position ids that were looked at last
        self.numbered = any(layer_of(path, m) for path, m in model.named_modules())
        self.runs, self.order = None, 0     # the forward of the last call, and how many calls of layers it had
        self.shared = not self.numbered     # layers are numbered by the order of their calls in a forward
        self.gap = None                     # the first call whose layer's number is not its place in that order

    # ---- what the outermost call says ---------------------------------------------------------------

    def start(self, args, kwargs, generating=False):
        """Arguments of generate() or forward(); the first one counts."""
        ids = kwargs.get("input_ids", kwargs.get("inputs", args[0] if args else None))
        embeds = kwargs.get("inputs_embeds")
        if ids is not None and (not isinstance(ids, torch.Tensor) or ids.is_floating_point()):
            ids, embeds = None, embeds if embeds is not None else ids
        if ids is not None and not generating and len(self.ids) < self._most():
            self.ids += ids[min(self.o.batch, ids.shape[0] - 1)].tolist()
        if self.prompt is None and (isinstance(ids, torch.Tensor) or isinstance(embeds, torch.Tensor)):
            self.prompt = Prompt(ids, embeds, kwargs.get("attention_mask"), self.o.batch)
            self.generating = generating

    def _most(self):
        return 1 << 40 if self.prompt is None else self.prompt.first + self._length()[0]

    def _length(self):
        """(rows to store, are they certain to come)."""
        known = self._prompt_tokens()
        if self.o.decode:
            if self.prompt.padded:
                raise TraceError(f"decode={self.o.decode}, but the prompt has padding behind its {known} tokens; pad in front of it")
            return known + self.o.decode, False
        if self.o.tokens is None or self.o.tokens <= known:
            return min(known, self.o.tokens or known), True
        if self.prompt.padded:
            raise TraceError(f"tokens={self.o.tokens}, but the prompt has {known} tokens and padding behind them")
        return self.o.tokens, bool(self.o.rows)  # which rows are stored follows from the length: tokens= must come true

    # ---- a call -----------------------------------------------------------------------------------

    def saw(self, seen):
        if self.o.modules and not self.o.modules.search(seen.path):
            return self.report.leave_out(seen.path, "not in modules=")
        if getattr(seen.module, "is_cross_attention", False) or CROSS.search(seen.path):
            return self.report.leave_out(seen.path, "cross-attention")
        layer = self._layer(seen)
        if layer is None:
            return self.report.leave_out(seen.path, "no layer number: neither a name with one in its path, as in layers.3, nor a layer_idx")
        if self.o.layers is not None and layer not in self.o.layers:
            return self.report.leave_out(seen.path, "not in layers=")
        stack = self.stacks.setdefault(layer, Stack(seen.path))
        if stack.path != seen.path:
            raise TraceError(f"layer {layer} is both {stack.path} and {seen.path}: a trace holds one stack of layers; choose it with "
                             "modules=REGEX")
        self._place(seen, stack, layer)

    def _layer(self, seen):
        """The module's own number; by order in the forward where modules have none, or one of them is several layers (ALBERT)."""
        at = layer_of(seen.path, seen.module)
        if at is None and self.numbered:
            return None
        if seen.runs is not self.runs:
            self.runs, self.order = seen.runs, 0
        place, self.order = self.order, self.order + 1
        if not self.shared and seen.runs[id(seen.module)] > 1:
            if self.gap:
                raise TraceError(f"{seen.path} ran again in one forward: layers that share a module are numbered by the order of their calls, but "
                                 f"{self.gap}; choose the modules of one kind of layer with modules=REGEX")
            self.shared = True
        if self.shared:
            if place >= self.base["layers"]:
                raise TraceError(f"{seen.path}: call {place + 1} in one forward of a model with {self.base['layers']} layers: a trace holds one pass; "
                                 "where layers share a module, model.config.num_hidden_layers says how many they are")
            return place
        if at[1] != place and not self.gap:
            self.gap = f"{seen.path} is number {at[1]} and was call {place}"
        return at[1]

    def _place(self, seen, stack, layer):
        b, s, n_k = 0 if seen.picked else self.o.batch, seen.q.shape[2], seen.k.shape[2]
        if b >= seen.q.shape[0]:
            raise TraceError(f"batch={b}, but {seen.path} has {seen.q.shape[0]} elements")
        if self.prompt is None:
            self.prompt = Prompt(None, seen.q[:, 0], None, b)
        length, certain = self._length()
        first, p0 = self.prompt.first, stack.seen
        end = first + length
        if p0 >= end:
            return self._after_the_end(seen, stack, s, n_k)
        self._refuse_full_cache(seen, stack, b)
        stack.seen += s
        lo, hi = max(p0, first), min(p0 + s, end)
        if lo >= hi:
            return None
        tail = n_k > p0 + s
        valid = (first, self.prompt.end if self.prompt.padded else 1 << 40)
        place = Place(p0, 0 if tail else p0 + s - n_k, valid)
        self._store(seen, stack, layer, b, place, lo, hi, length, certain)

    def _after_the_end(self, seen, stack, s, n_k):
        """Rows behind the last one that is stored: decoding, or a prompt that nobody announced."""
        p0 = stack.seen
        stack.seen += s
        if s == 1 or self.generating or self.o.tokens:
            return self.report.leave_out(seen.path, "tokens after the last one that is stored")
        if n_k == s:
            raise TraceError(f"{seen.path}: a second prompt of {s} tokens: a trace holds one run; leave the with block before it")
        raise TraceError(f"{seen.path}: {s} more rows after the {p0} of the first call: a prompt in chunks needs its length, tokens={n_k} "
                         "or more")

    def _refuse_full_cache(self, seen, stack, b):
        p = seen.positions
        if p is self.positions:  # all layers get the same, and a look at it waits for the device
            return
        self.positions = p
        if stack.seen == 0 and isinstance(p, torch.Tensor) and p.ndim == 2 and p.shape[1] == seen.q.shape[2]:
            row = p[min(b, p.shape[0] - 1), :2].tolist()
            if row[0] > 0 and (len(row) == 1 or row[1] == row[0] + 1):
                raise TraceError(f"{seen.path}: the first call begins at token {row[0]}: the cache was filled before; capture from "
                                 "the first token on")

    def _store(self, seen, stack, layer, b, place, lo, hi, length, certain):
        first, stored = self.prompt.first, self._positions(length)
        check, at = self._rows_to_check(place, lo, hi, stored)
        rule = classify(seen, b, place, self.files.on_device(check, seen.q.device), stack.rule)
        if stack.call is None:
            self._begin(seen, stack, layer, rule, length, certain, len(stored))
        pieces = []
        for at_row, position, count in rows.runs(stored):
            a, z = max(lo, first + position), min(hi, first + position + count)
            if a < z:
                pieces.append((slice(a - place.row_start, z - place.row_start), at_row + a - first - position))
        k_rows = slice(lo - place.key_start, hi - place.key_start)
        self.files.put(stack.writer, stack.call, seen, b, pieces, k_rows, lo - first)
        if self.o.out != "none" and check:
            out, lse = self.files.check(seen, b, rule, check)
            for i, row in enumerate(at):
                if row is not None:
                    stack.checks[row] = (out[:, i], lse[:, i])
        self.files.settle(seen)
        if self.o.maps:
            if hi - lo != length:
                raise TraceError(f"{seen.path}: maps={self.o.maps} needs the prompt in one piece; leave maps out or send no chunks")
            self.files.put_maps(stack.writer, stack.call, seen, b, pieces[0][0], rule)
        stack.stored = hi - first
        if stack.stored == length:
            self._put_checks(stack)

    def _positions(self, length):
        """Positions of the query rows to store: all, the last ones, those decoded with a window before them, or a sample."""
        if self.o.decode:
            return range(max(0, self._prompt_tokens() - self.o.window), length)
        if not isinstance(self.o.rows, str):
            return range(length - min(self.o.rows or length, length), length)
        if self.drawn is None:
            self.drawn = rows.draw(length, *rows.parse(self.o.rows), self.o.seed)
        return self.drawn

    def _prompt_tokens(self):
        return self.prompt.end - self.prompt.first

    def _rows_to_check(self, place, lo, hi, stored):
        """Rows of the call to recompute, and for each its number in the file or None when it is not stored as a check."""
        first = self.prompt.first
        wanted = {first + int(stored[i]): i for i in self.files.sample(len(stored))}
        here = [r for r in sorted(wanted) if lo <= r < hi]
        extra = [r for r in {lo, hi - 1} if r not in wanted]
        chosen = sorted(here + extra)
        return [r - place.row_start for r in chosen], [wanted.get(r) for r in chosen]

    def _begin(self, seen, stack, layer, rule, length, certain, rows_kept):
        if not rule.causal and (self.o.tokens or self.o.rows or self.o.decode):
            raise TraceError(f"{seen.path} is not causal: tokens=, rows= and decode= would change its attention; capture the whole input")
        if rule.prefix > length:
            raise TraceError(f"{seen.path}: the first {rule.prefix} tokens of the prefix see each other, tokens={length} would cut them apart; store "
                             f"at least {rule.prefix}")
        if rule.bias is not None and (isinstance(self.o.rows, str) or not certain):
            raise TraceError(f"{seen.path}: a bias of rows and keys is added to its scores: a sample of rows and decoded tokens have no place for "
                             "it; leave rows= and tokens= out")
        stack.rule = dataclasses.replace(rule, bias=None)  # as large as the scores, and of one piece
        run = dict(self.run, n_q=rows_kept, n_k=length, row_group=rows.parse(self.o.rows)[1] if isinstance(self.o.rows, str) else 0,
                   max_positions=positions_below(self.model, length))
        if self.o.decode:
            run.update(decode_from=self._prompt_tokens(), generated_by=layout.short(self.o.generated_by, 64))
        meta = self.files.meta(seen, rule, self.base, run, None)
        if not certain and self.spool is None:
            self.spool = self.files
            self.files = Files(self.o, self.spool.path + ".spool")
        stack.writer = self.files.writer(seen, meta, len(self.o.layers or range(self.base["layers"])))
        block = {"step": 0, "branch": "main", "layer": layer, "block": "self", "timestep": float("nan"), "sigma": float("nan")}
        stack.call = self.files.begin(stack.writer, block, seen, rule)

    # ---- the end ----------------------------------------------------------------------------------

    def finish(self, notes):
        stacks = [s for s in self.stacks.values() if s.call is not None]
        lengths = {s.stored for s in stacks}
        if len(lengths) > 1:
            raise TraceError(f"the layers have seen different numbers of tokens ({sorted(lengths)}); was the run interrupted?")
        for s in stacks:
            if not s.call.checks:
                self._put_checks(s)
        if self.spool is not None:
            return self._unspool(lengths.pop(), notes)
        length = self._length()[0] if stacks else 0
        if stacks and lengths != {length}:
            raise TraceError(f"{lengths.pop()} tokens came, {length} were announced by the input")
        self._attach_aux(self.files.writers)
        return self.files.finish(self._arrays, notes)

    def _attach_aux(self, writers):
        """The stored heads and rows of the extra operands, to their calls."""
        for w in writers.values():
            m, n = w.meta["model"], w.meta["run"]["n_k"]
            heads = {"q_pre": layout.expand(m.get("head_ids", ""), m["heads"]), "k_pre": layout.expand(m.get("kv_head_ids", ""), m["kv_heads"])}
            for call in w.calls:
                for name, like in layout.AUX.items():
                    x = torch.cat(self.aux.get((call.attrs["layer"], name), [torch.empty(0, 0, 0)]), 1)
                    if not x.numel():
                        continue
                    if like and x.shape[1] < self.prompt.first + n:
                        raise TraceError(f"cap.aux: {name} of layer {call.attrs['layer']} has {x.shape[1]} tokens, the trace {n}: give those of every piece "
                                         "of the prompt and of every step")
                    x = x[:, self.prompt.first:self.prompt.first + n] if like else x
                    x = x[:, list(self._positions(n))] if like == "q" else x
                    call.aux[name] = (x[heads[name]] if name in heads else x).numpy()

    def _put_checks(self, stack):
        at = sorted(stack.checks)
        if at and stack.writer is not None:
            out = torch.stack([stack.checks[i][0] for i in at], 1)
            lse = torch.stack([stack.checks[i][1] for i in at], 1)
            stack.writer.put_checks(stack.call, at, out.numpy(), lse.numpy())

    def _arrays(self, meta):
        first, n = self.prompt.first, meta["run"]["n_k"]
        ids = self.ids[first:first + n]
        arrays = {"tokens": ids} if len(ids) == n else {}
        return dict(arrays, rows=self.drawn) if self.drawn is not None else arrays

    def _unspool(self, length, notes):
        """Copy the rows that came into files of their length."""
        self.files.pipe.drain()
        if self.o.decode and length <= self._prompt_tokens():
            raise TraceError(f"decode={self.o.decode}, but no token was fed back behind the {length} of the prompt: generate() does not feed back the last "
                             "token that it makes")
        n_q = len(self._positions(length))
        target, self.spool = self.spool, None
        target.pipe = Pipe(torch.device("cpu"))
        try:
            for w in self.files.writers.values():
                meta = {**w.meta, "run": dict(w.meta["run"], n_q=n_q, n_k=length, max_positions=positions_below(self.model, length))}
                new = Writer(target.name(len(target.writers) + 1), meta, target.pipe, self.o.force)
                target.writers[len(target.writers)] = new
                for call in w.calls:
                    copy_call(w, call, new)
            self._attach_aux(target.writers)
            return target.finish(self._arrays, notes)
        except BaseException:
            target.abort()
            raise
        finally:
            self.files.abort()


def copy_call(old, call, new):
    """The first rows of a call, from the spooled file into a new one, which may have fewer."""
    dtype = getattr(torch, old.meta["model"]["dtype"])
    to = new.begin(call.attrs, list(call.arrays), call.score)
    with open(old.part, "rb") as f:
        for name, a in call.arrays.items():
            for head in range(a.shape[0]):
                f.seek(a.offset + head * a.rows * a.row_bytes)
                left, row = new.shape(name)[1], 0
                while left:
                    n = min(left, max(1, layout.METADATA_BLOCK * 64 // a.row_bytes))
                    data = torch.frombuffer(bytearray(f.read(n * a.row_bytes)), dtype=dtype)
                    new.pipe.send(to.arrays[name], head, row, data.view(1, n, -1), dtype, [])
                    row, left = row + n, left - n
    at = [i for i, r in enumerate(call.checks.get("check_rows", ())) if r < new.meta["run"]["n_q"]]
    if at:
        new.put_checks(to, call.checks["check_rows"][at], call.checks["check_out"][:, at], call.checks["check_lse"][:, at])
