"""The trace files of one capture. Calls that the format cannot keep in one file go to t.h5, t.2.h5, ...

All calls of a file share heads, dimensions, tokens, dtype and, of a video, the grid and the length of the text.
"""
import math
import os

import torch

from . import layout
from .calls import check_output, score_of
from .dense import maps, sample
from .layout import TraceError
from .pipe import Pipe
from .writer import Writer

DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
SLACK = {"float32": 2e-5}  # of max|v|; arithmetic in less than float32: 2^-8


def choose_kv(heads, group):
    """The kv heads of the chosen query heads: each once when all are used equally often, else one per query head."""
    kv = [h // group for h in heads]
    once = sorted(set(kv))
    return once if all(kv.count(x) * len(once) == len(kv) for x in once) else kv


def exact_scale(scale, d):
    """Programs compute d ** -0.5, which can be a unit in the last place off 1 / sqrt(d): equal scales get equal ids."""
    return 1 / math.sqrt(d) if abs(scale * math.sqrt(d) - 1) < 1e-15 else float(scale)


class Files:
    def __init__(self, options, path):
        self.o, self.path = options, path
        self.writers, self.pipe, self.order = {}, None, 0
        self.worst, self.ranges = 0.0, []
        self.known_rows = (None, None)

    def name(self, number):
        stem, end = os.path.splitext(self.path)
        return self.path if number == 1 else f"{stem}.{number}{end}"

    # ---- a file -----------------------------------------------------------------------------------

    def dtype(self, x):
        want = DTYPES.get(self.o.dtype, self.o.dtype)
        return str(x.dtype).removeprefix("torch.") if want == "keep" else want

    def heads(self, seen):
        """(query heads, kv heads) to store, numbers of the model."""
        h, g = seen.q.shape[1], seen.k.shape[1]
        if h % g:
            raise TraceError(f"{seen.path}: {h} query heads are not a multiple of {g} kv heads")
        if self.o.heads is None:
            return list(range(h)), list(range(g))
        if self.o.heads[-1] >= h:
            raise TraceError(f"heads={layout.list_text(self.o.heads)}, but {seen.path} has {h} query heads")
        return self.o.heads, choose_kv(self.o.heads, h // g)

    def meta(self, seen, rule, base, run, video):
        """Every attribute of the file that a call belongs to. base, run, video: what does not depend on the call."""
        heads, kv = self.heads(seen)
        all_heads = len(heads) == seen.q.shape[1]
        model = dict(base, heads=len(heads), kv_heads=len(kv), head_dim=seen.q.shape[3], v_dim=seen.v.shape[3],
                     scale=exact_scale(rule.scale, seen.q.shape[3]), causal=int(rule.causal), dtype=self.dtype(seen.q),
                     head_ids="" if all_heads else layout.list_text(heads),
                     kv_head_ids="" if all_heads else layout.list_text(kv))
        meta = {"model": model, "run": dict(run, pool=self.o.maps)}
        return dict(meta, video=video) if video else meta

    def writer(self, seen, meta, calls):
        """The file of this meta data, created when there is none. `calls` = how many are expected.

        A call may have a scale, causality and valid text of its own: those of the file are the first call's.
        """
        parts = {name: dict(x) for name, x in meta.items()}
        for part, name in (("model", "scale"), ("model", "causal"), ("video", "text_valid")):
            parts.get(part, {}).pop(name, None)
        key = repr(parts)
        if key not in self.writers:
            if self.pipe is None:
                self.pipe = Pipe(seen.q.device)
            w = Writer(self.name(len(self.writers) + 1), meta, self.pipe, self.o.force)
            self.writers[key] = w
            need = calls * sum(self._bytes(w, n) for n in self.names())
            if need > layout.free_bytes(self.path):
                raise TraceError(f"{w.path} needs {need / 1e9:.3f} GB of disk space, {layout.free_bytes(self.path) / 1e9:.3f} GB are "
                                 "free there; make room, write elsewhere or store fewer layers, heads, steps or tokens")
        return self.writers[key]

    @staticmethod
    def _bytes(writer, name):
        size = 1
        for n in writer.shape(name):
            size *= n
        return size * (layout.STORED[writer.meta["model"]["dtype"]].itemsize if name in ("q", "k", "v", "out") else 4)

    def names(self):
        return ["q", "k", "v"] + (["out"] if self.o.out == "full" else []) + (["map_sum", "map_max"] if self.o.maps else [])

    def begin(self, writer, attrs, seen, rule, text_valid=None):
        """A call of the file; what it does to its scores is written with it. text_valid: of a video."""
        self.order += 1
        heads, _ = self.heads(seen)
        score = score_of(rule, heads, writer.meta["run"]["n_q"], writer.meta["run"]["n_k"])
        scale = exact_scale(rule.scale, seen.q.shape[3])
        for name, own, of_file in (("scale", scale, writer.meta["model"]["scale"]), ("causal", int(rule.causal), writer.meta["model"]["causal"]),
                                   ("text_valid", text_valid, writer.meta.get("video", {}).get("text_valid"))):
            if own != of_file:
                score[name] = own
        return writer.begin(dict(attrs, order=self.order - 1), self.names(), score)

    # ---- the rows of a call -------------------------------------------------------------------------

    def put(self, writer, call, seen, b, pieces, k_rows, k_at):
        """Of batch element b: query rows as pieces (slice of the call, row of the file), keys k_rows (a slice) to k_at.. of the file."""
        heads, kv = self.heads(seen)
        for q_rows, q_at in pieces:
            writer.put(call, "q", q_at, seen.q[b][:, q_rows], heads, self.ranges, seen.whole)
        for name, x in (("k", seen.k), ("v", seen.v)):
            writer.put(call, name, k_at, x[b][:, k_rows], kv, self.ranges, seen.whole)
        if self.o.out == "full":
            if seen.again is not None:
                raise TraceError(f"{seen.path}: eager attention in 16 bits rounds its scores, so out would not be the attention of q, k "
                                 "and v; use out='check', float32 or attn_implementation='sdpa'")
            for q_rows, q_at in pieces:
                writer.put(call, "out", q_at, seen.out[b][:, q_rows], heads, self.ranges)

    def settle(self, seen):
        """What `put` sent must be finite. Waits for the device: to be asked after everything else of the call was given to it."""
        ranges, self.ranges = self.ranges, []
        if ranges:
            check_finite(seen, ranges)

    def put_maps(self, writer, call, seen, b, q_rows, rule):
        heads, _ = self.heads(seen)
        group = seen.q.shape[1] // seen.k.shape[1]
        for i, head in enumerate(heads):
            q, k = seen.q[b][head:head + 1, q_rows], seen.k[b][head // group:head // group + 1]
            both = maps(q, k, rule, q_rows.start or 0, self.o.maps, [head])
            for name, x in zip(("map_sum", "map_max"), both):
                writer.put_head(call, name, i, x)

    def check(self, seen, b, rule, rows):
        """Compare sampled rows with what the program returned; (out, lse) of the stored heads there, on the host."""
        heads, _ = self.heads(seen)
        group = seen.q.shape[1] // seen.k.shape[1]
        rows = self.on_device(rows, seen.q.device)
        exact = seen.q.dtype == torch.float32 and not (seen.q.is_cuda and torch.backends.cuda.matmul.allow_tf32)
        slack = SLACK["float32"] if exact or seen.again is not None else 2.0 ** -8
        try:
            out, lse, worst = check_output(seen, b, rule, rows, heads, [h // group for h in heads], slack)
        except TraceError:
            self.settle(seen)
            raise
        self.worst = max(self.worst, worst)
        return out.cpu(), lse.cpu()

    def on_device(self, rows, device):
        """Numbers of rows as a tensor. Bringing them there waits for the device; most layers have those of the one before."""
        key = (tuple(rows), device)
        if self.known_rows[0] != key:
            self.known_rows = key, torch.as_tensor(rows, device=device)
        return self.known_rows[1]

    def sample(self, n):
        return sample(n, self.o.check_rows)

    # ---- the end ----------------------------------------------------------------------------------

    def finish(self, arrays, notes):
        """Complete all files. arrays(meta) -> arrays of /run; returns their paths."""
        if self.pipe is not None:
            self.pipe.drain()
        for w in self.writers.values():
            w.finish(arrays(w.meta), notes)
        return [w.path for w in self.writers.values()]

    def abort(self):
        if self.pipe is not None:
            self.pipe.close()
        for w in self.writers.values():
            w.abort()


def check_finite(seen, ranges):
    """ranges: (smallest, largest) of the pieces that were sent. One transfer from the device for all of them."""
    if bool(torch.stack([x for pair in ranges for x in pair]).isfinite().all()):
        return
    for name, x in (("q", seen.q), ("k", seen.k), ("v", seen.v)):
        bad = (~x.isfinite()).nonzero()
        if len(bad):
            _, head, row, _ = bad[0].tolist()
            raise TraceError(f"{seen.path}: {name} has {len(bad)} values that are NaN or infinite, the first at head {head}, row {row}; "
                             "the model is broken or its dtype is too narrow")
    raise TraceError(f"{seen.path}: values become infinite in the dtype of the file; choose dtype='f32' or 'bf16'")
