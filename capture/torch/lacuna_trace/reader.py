"""Read traces: q, k, v, scores, probabilities and maps as NumPy arrays. Needs NumPy and h5py; pandas for frames.

For files that you trust: h5py hands them to libhdf5, which believes what they say. `lacuna trace verify` checks a file of
someone else first.
"""
import math
import os
import re

import h5py
import numpy as np

from . import layout, rows, xxh3
from .layout import TraceError, call_path, expand

_ROOT = {"format", "version_major", "version_minor", "tool", "complete", "content_id"}
_CALL = {"step", "branch", "layer", "order", "block", "timestep", "sigma"}
ROWS = 256  # query rows at a time


def plain(value):
    """A Python value of an attribute: str, int or float."""
    if isinstance(value, bytes):
        return value.decode()
    return value.item() if hasattr(value, "item") else value


def attributes(group):
    return {name: plain(group.attrs[name]) for name in group.attrs}


def frame(rows):
    """A pandas DataFrame of a list of dicts."""
    try:
        import pandas
    except ImportError as e:
        raise TraceError("a frame needs pandas: pip install pandas") from e
    return pandas.DataFrame(rows)


def open_file(path, form, major=1):
    """An h5py file of lacuna after the checks that every reader makes: format, version, completeness."""
    path = os.fspath(path)
    if not os.path.exists(path):
        parts = layout.parts_of(path)
        raise TraceError(f"{path}: no such file" + (f", but {parts[0]} is there: its writer did not finish" if parts else ""))
    try:
        f = h5py.File(path, "r", locking=False)
    except OSError as e:
        raise TraceError(f"{path} is not an HDF5 file or is damaged: {e}") from e
    with layout.reading(path):
        return _check_root(f, path, form, major)


def _check_root(f, path, form, major):
    root = attributes(f)
    if root.get("format") != form:
        raise TraceError(f"{path} is {'a ' + str(root['format']) if 'format' in root else 'no file of lacuna'}, expected a {form}")
    if root["version_major"] != major:
        raise TraceError(f"{path} has format version {root['version_major']}.{root['version_minor']}; this reader knows {major}.x")
    if root.get("complete") != 1:
        raise TraceError(f"{path} is unfinished: its writer was stopped before the end; write it again")
    return f


def _refuse_unknown(group, known_attrs, known_links):
    """Names that the format does not have can change what the rest means, unless they are marked as optional."""
    optional = plain(group.attrs.get("optional", b"")).split()
    for name in group.attrs:
        if name not in known_attrs and name != "optional" and name not in optional and not (name[0] == "_" or name[0].isupper()):
            raise TraceError(f"{group.file.filename}: {group.name}: attribute '{name}' is not known to this reader and can change what the "
                             "trace means; read it with a newer lacuna_trace")
    for name in group:
        if known_links is not None and name not in known_links and name not in optional:
            raise TraceError(f"{group.file.filename}: {group.name}: object '{name}' is not known to this reader and can change what the "
                             "trace means; read it with a newer lacuna_trace")


def _with_sums(names):
    return {n + end for n in names for end in ("", "_xxh3")}


class Trace:
    """An open trace. `model`, `run`, `video` are dicts (video is {} for text), `calls` a list in the order of the run.

    `rows`: positions of the query rows where the trace holds a sample of them, else None. run["decode_from"], where it is there: tokens of
    the prompt, behind which tokens were generated.
    """

    def __init__(self, path):
        self.path = os.fspath(path)
        self.file = open_file(path, layout.FORMAT)
        try:
            with layout.reading(self.path):
                self._read()
        except BaseException:
            self.file.close()
            raise

    def _read(self):
        _refuse_unknown(self.file, _ROOT, {"types", "model", "run", "video", "calls"})
        groups = {g: attributes(self.file[g]) for g in layout.FIELDS if g in self.file}
        for name, values in groups.items():
            links = _with_sums(layout.RUN_ARRAYS) if name == "run" else set()
            _refuse_unknown(self.file[name], {n for n, _ in layout.FIELDS[name]}, links)
        self.model, self.run, self.video = (groups.get(g, {}) for g in ("model", "run", "video"))
        self.head_ids = expand(self.model.get("head_ids", ""), self.model["heads"])
        self.kv_ids = expand(self.model.get("kv_head_ids", ""), self.model["kv_heads"])
        self.rows = self.file["run"]["rows"][:] if "rows" in self.file["run"] else None
        if (self.rows is None) != (not self.run.get("row_group")):
            raise TraceError(f"{self.path}: /run: of row_group and rows only one is there")
        if self.rows is not None:
            rows.check(self.rows, self.run["row_group"], self.run["n_k"], self.path)
        self.calls = sorted(self._find_calls(), key=lambda c: c.order)
        self.id = plain(self.file.attrs["content_id"])
        found = self._content_id(groups)
        if found != self.id:
            raise TraceError(f"{self.path}: metadata or checksums were changed after writing: their content id is {found}, stored is {self.id}")

    def _find_calls(self):
        calls = self.file["calls"]
        for step in calls:
            for branch in calls[step]:
                for layer in calls[step][branch]:
                    yield Call(self, calls[step][branch][layer])

    def _content_id(self, groups):
        lines = [layout.meta_text(groups)]
        for call in self.calls:
            lines.append(layout.call_text(call.attrs) + layout.score_text(call.stored_score))
            for name in call.arrays():
                if name in call.group:
                    lines.append(layout.array_text(name, call.group[name].shape, call.group[name + "_xxh3"][:]))
        run = self.file["run"]
        for name in layout.RUN_ARRAYS:
            if name in run:
                lines.append(layout.array_text(name, run[name].shape, run[name + "_xxh3"][:]))
        return xxh3.text("".join(lines).encode())

    def call(self, layer, step=0, branch=None):
        """The call of a layer. Without a branch: "main", or the only one of the step, or "cond"."""
        found = [c for c in self.calls if c.layer == layer and c.step == step and branch in (None, c.branch)]
        found = [c for c in found if c.branch in ("main", "cond")] if len(found) > 1 else found
        if not found:
            layers = layout.list_text(sorted({c.layer for c in self.calls}))
            raise TraceError(f"{self.path} has no call of step {step}, branch {branch or 'any'}, layer {layer}; its layers are {layers}")
        return found[0]

    def array(self, name):
        """An array of the run (tokens, nll, timesteps, sigmas); None when it is not stored."""
        with layout.reading(self.path):
            return self.file["run"][name][:] if name in self.file["run"] else None

    @property
    def tokens(self):
        return self.array("tokens")

    def frame(self):
        """A pandas DataFrame with a row per call."""
        return frame([dict(c.attrs, holds=" ".join(n for n in layout.CALL_ARRAYS if n in c.group)) for c in self.calls])

    def verify(self):
        """Every checksum, and the rows of outputs that are stored. A list of what is wrong; empty = all is well."""
        with layout.reading(self.path):
            bad = [f"/run/{name}: its checksum differs" for name in layout.RUN_ARRAYS
                   if name in self.file["run"] and not _sum_is_right(self.file["run"], name)]
            return bad + [text for c in self.calls for text in c.verify()]

    def close(self):
        self.file.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def __repr__(self):
        m = self.model
        return f"<Trace {self.path}: {m['name']}, {len(self.calls)} calls, {m['heads']} heads, {self.run['n_q']} x {self.run['n_k']}>"


def causal_pairs(p, j, score):
    """bool [rows][keys]: keys up to the row's own position p [rows][1], and those of a prefix of the model; j [1][keys]."""
    return (j <= p) | (j < score.get("prefix", 0))


def within(allowed, p, j, score):
    """The allowed pairs inside of a window or chunk of the model; p [rows][1] positions, j [1][keys]."""
    if "window_left" in score:
        allowed = allowed & (j >= p - score["window_left"])
    if "window_right" in score:
        allowed = allowed & (j <= p + score["window_right"])
    return allowed & (j // score["chunk"] == p // score["chunk"]) if "chunk" in score else allowed


def _sum_is_right(group, name):
    return xxh3.digest(group[name][:]) == group[name + "_xxh3"][0].tobytes()


class Call:
    """One attention call. Heads have the model's numbers; rows are numbers, slices or None for all."""

    def __init__(self, trace, group):
        self.trace, self.group = trace, group
        _refuse_unknown(group, _CALL | set(layout.SCORE), _with_sums(layout.CALL_ARRAYS + layout.SCORE_ARRAYS + layout.DECODE_ARRAYS) | {"aux"})
        if "aux" in group:
            _refuse_unknown(group["aux"], set(), _with_sums(layout.AUX))
        self.attrs = {name: plain(group.attrs[name]) for name in _CALL}
        if "/" + call_path(self.attrs) != group.name:
            raise TraceError(f"{trace.path}: {group.name}: its attributes belong to /{call_path(self.attrs)}")
        for name, value in self.attrs.items():
            setattr(self, name, value)
        r, m = trace.run, trace.model
        self.n_q, self.n_k, self.heads = r["n_q"], r["n_k"], trace.head_ids
        self.stored_score = {n: kind(plain(group.attrs[n])) for n, kind in layout.SCORE.items() if n in group.attrs}
        self.score = {"scale": m["scale"], "causal": m["causal"]} | self.stored_score
        self.score["causal"] = bool(self.score["causal"])
        self.score |= {n: group[n][:] for n in layout.SCORE_ARRAYS if n in group}

    # ---- stored values ----------------------------------------------------------------------------

    @staticmethod
    def arrays():
        """Names of everything that a call may hold, in the order of the content id."""
        return layout.CALL_ARRAYS + layout.SCORE_ARRAYS + layout.DECODE_ARRAYS + tuple("aux/" + n for n in layout.AUX)

    def aux(self, name):
        """float32 [heads][rows][channels]: an extra operand, q_pre, k_pre, iq, ik, iw, gate_q or gate_k; None where it is not stored."""
        if name not in layout.AUX:
            raise TraceError(f"aux({name!r}): one of {', '.join(layout.AUX)} was expected")
        return self.group["aux/" + name][:] if "aux/" + name in self.group else None

    def _index(self, head):
        try:
            return self.trace.head_ids.index(head)
        except ValueError:
            raise TraceError(f"{self.trace.path} has no query head {head}; stored are {layout.list_text(self.trace.head_ids)}") from None

    def _kv_index(self, head):
        return self._index(head) // (len(self.trace.head_ids) // len(self.trace.kv_ids))

    def kv_head(self, head):
        """The model's number of the kv head that a query head reads."""
        return self.trace.kv_ids[self._kv_index(head)]

    def _read(self, name, index, rows, dtype):
        if name not in self.group:
            raise TraceError(f"{self.trace.path}: {self.group.name} holds no {name}")
        d, stored = self.group[name], self.trace.model["dtype"]
        with layout.reading(self.trace.path):
            raw = self._raw(d, index)
        if dtype == "raw":
            return raw if rows is None else raw[rows]
        raw = raw if rows is None else raw[rows]
        if stored == "bfloat16":
            raw = (raw.astype(np.uint32) << 16).view(np.float32)
        return np.asarray(raw, dtype)

    def _raw(self, d, index):
        """One head as it is stored: a memory map, or what HDF5 unpacks. bfloat16 comes as uint16."""
        kind = layout.STORED[self.trace.model["dtype"]]
        at = d.id.get_offset()
        if at is not None:
            size = math.prod(d.shape[1:]) * kind.itemsize
            return np.memmap(self.trace.path, kind, "r", at + index * size, d.shape[1:])
        try:
            import hdf5plugin  # noqa: F401  registers the zstd filter
        except ImportError:
            pass
        out = np.empty((1, *d.shape[1:]), kind)
        where = d.id.get_space()
        where.select_hyperslab((index, *[0] * (d.ndim - 1)), out.shape)
        try:
            d.id.read(h5py.h5s.create_simple(out.shape), where, out, mtype=d.id.get_type())
        except OSError as e:
            raise TraceError(f"{self.trace.path} is packed with a filter that HDF5 lacks here: pip install hdf5plugin, or "
                             "`lacuna trace pack --unpack`") from e
        return out[0]

    def q(self, head, rows=None, dtype="float32"):
        """[rows][head_dim]. dtype "raw": the stored type, of bfloat16 the bits as uint16."""
        return self._read("q", self._index(head), rows, dtype)

    def k(self, head, rows=None, dtype="float32"):
        """[rows][head_dim] of the kv head that query head `head` reads."""
        return self._read("k", self._kv_index(head), rows, dtype)

    def v(self, head, rows=None, dtype="float32"):
        return self._read("v", self._kv_index(head), rows, dtype)

    def out(self, head, rows=None, dtype="float32"):
        return self._read("out", self._index(head), rows, dtype)

    def col_sum(self, head):
        """float32 [decode_from]: what each key of the prompt gets of the softmax of all rows of the prompt; None where it is not stored."""
        return self.group["col_sum"][self._index(head)] if "col_sum" in self.group else None

    def checks(self, head):
        """Spot checks of the capture: (rows, out [rows][v_dim], lse [rows]); None when there are none."""
        if "check_rows" not in self.group:
            return None
        i = self._index(head)
        return self.group["check_rows"][:], self.group["check_out"][i], self.group["check_lse"][i]

    # ---- attention --------------------------------------------------------------------------------

    def _rows(self, rows):
        return np.atleast_1d(np.arange(self.n_q)[slice(None) if rows is None else rows])

    def positions(self, rows=None):
        """Where stored query rows stand in the sequence."""
        at = self._rows(rows)
        return at + self.n_k - self.n_q if self.trace.rows is None else self.trace.rows[at].astype(np.int64)

    def padding(self):
        """(first, end) of the padding text tokens; equal when there are none."""
        v = self.trace.video
        valid = self.score.get("text_valid", v["text_valid"]) if v else 0
        if not v or valid == v["text_tokens"]:
            return 0, 0
        start = self.n_k - v["text_tokens"] if v["text_place"] == "back" else 0
        return start + valid, start + v["text_tokens"]

    def allowed(self, rows=None):
        """bool [rows][n_k]: which keys a query row may see."""
        p, j = self.positions(rows)[:, None], np.arange(self.n_k)[None, :]
        first, end = self.padding()
        a = np.broadcast_to((j < first) | (j >= end), (len(p), self.n_k))
        a = a & causal_pairs(p, j, self.score) if self.score["causal"] else a
        return within(a, p, j, self.score)

    def scores(self, head, rows=None):
        """float64 [rows][n_k]: cap(scale q k) + bias, -inf where a pair is not allowed."""
        s = self.score["scale"] * (self.q(head, self._rows(rows), "float64") @ self.k(head, None, "float64").T)
        cap, far = self.score.get("softcap"), np.arange(self.n_k)[None, :] - self.positions(rows)[:, None]
        s = cap * np.tanh(s / cap) if cap else s
        if "alibi" in self.score:
            s = s - float(self.score["alibi"][self._index(head)]) * abs(far)
        if "rel_bias" in self.score:
            bias = self.score["rel_bias"]
            s = s + bias[self._index(head) if len(bias) > 1 else 0].astype(np.float64)[far + self.n_k - 1]
        if "bias" in self.score:
            bias = self.score["bias"]
            s = s + bias[self._index(head) if len(bias) > 1 else 0][self._rows(rows)].astype(np.float64)
        return np.where(self.allowed(rows), s, -np.inf)

    def sink(self, head):
        """The logit of a head that belongs to no key; -inf without one."""
        return float(self.score["sinks"][self._index(head)]) if "sinks" in self.score else -np.inf

    def probs(self, head, rows=None):
        """float64 [rows][n_k]: the softmax; beside a sink a row adds up to less than 1."""
        s = self.scores(head, rows)
        top = s.max(1, keepdims=True)
        p = np.exp(s - top)
        return p / (p.sum(1, keepdims=True) + np.exp(self.sink(head) - top))

    def attend(self, head, rows=None):
        """Output float64 [rows][v_dim] and log-sum-exp over the keys float64 [rows] of exact attention."""
        s = self.scores(head, rows)
        top = s.max(1, keepdims=True)
        p = np.exp(s - top)
        total = p.sum(1, keepdims=True)
        whole = total + np.exp(self.sink(head) - top)
        return p / whole @ self.v(head, None, "float64"), (top + np.log(total))[:, 0]

    def map(self, head, pool=64, kind="sum"):
        """float32 [cells][cells]: sum or largest probability per cell of pool x pool pairs; stored or computed by rows."""
        name = {"sum": "map_sum", "max": "map_max"}[kind]
        if name in self.group and self.trace.run["pool"] == pool:
            return self.group[name][self._index(head)]
        if self.trace.rows is not None:
            raise TraceError(f"{self.trace.path} holds a sample of query rows; a map is of all rows")
        wide = -(-self.n_k // pool)
        out = np.zeros((-(-self.n_q // pool), wide), np.float32)
        step = max(1, ROWS // pool) * pool
        for at in range(0, self.n_q, step):
            p = self.probs(head, slice(at, at + step))
            p = np.pad(p, ((0, -len(p) % pool), (0, wide * pool - self.n_k))).reshape(-1, pool, wide, pool)
            out[at // pool:at // pool + len(p)] = p.sum((1, 3)) if kind == "sum" else p.max((1, 3))
        return out

    # ---- checks -----------------------------------------------------------------------------------

    def verify(self):
        """Checksums of every head, and sampled rows of what the program returned. A list of what is wrong."""
        bad = []
        for name in (n for n in self.arrays() if n in self.group):
            d, sums = self.group[name], self.group[name + "_xxh3"][:]
            for i in range(d.shape[0]):
                data = self._raw(d, i) if name in ("q", "k", "v", "out") else d[i]
                if xxh3.digest(np.ascontiguousarray(data)) != sums[i].tobytes():
                    bad.append(f"{d.name}: the checksum of head {i} differs")
        for name in layout.CHECK_ARRAYS:
            if name in self.group and not _sum_is_right(self.group, name):
                bad.append(f"{self.group[name].name}: its checksum differs")
        return bad + [text for head in self.heads for text in self._verify_checks(head)]

    def _verify_checks(self, head):
        checks = self.checks(head)
        if checks is None:
            return
        rows, out, lse = checks
        want, want_lse = self.attend(head, rows)
        exact = self.trace.model["compute"] in ("float32", "float64")
        half_ulp = {"float32": 2.0 ** -24, "float16": 2.0 ** -11, "bfloat16": 2.0 ** -8}[self.trace.model["dtype"]]
        slack = (2e-5 if exact else 2.0 ** -8) * np.abs(self.v(head)).max()
        # q, k and v of a narrower dtype than the model's are rounded: their attention is another one.
        narrowed = exact and self.trace.model["dtype"] != "float32"
        if not narrowed and not (np.abs(out - want) <= 1.01 * half_ulp * np.abs(want) + slack).all():
            yield f"{self.group.name}: head {head}: what the program returned is not the attention of q, k and v"
        if not narrowed and not (np.abs(lse - want_lse) <= (1e-3 if exact else 2e-2)).all():
            yield f"{self.group.name}: head {head}: lse is not that of q and k"

    def __repr__(self):
        return f"<Call step {self.step}, {self.branch}, layer {self.layer} of {self.trace.path}>"


def traces_in(path):
    """The paths of the traces that a file or a directory stands for: its *.h5 that are no dumped masks or outputs, numbers in order."""
    path = os.fspath(path)
    if not os.path.isdir(path):
        return [path]
    names = sorted((n for n in os.listdir(path) if n.endswith(".h5") and n[0] != "."),
                   key=lambda n: [(int(x), "") if x.isdigit() else (-1, x) for x in re.split(r"(\d+)", n)])
    found = [p for p in (os.path.join(path, n) for n in names) if _format(p) not in ("lacuna-masks", "lacuna-outputs")]
    if not found:
        raise TraceError(f"{path}: the directory holds no traces (*.h5)")
    return found


def _format(path):
    try:
        with h5py.File(path, "r", locking=False) as f:
            return plain(f.attrs.get("format", b""))
    except OSError:
        return ""  # a damaged trace is reported by whoever opens it


def open_trace(path):
    """Open a trace, or the only one of a directory; metadata and checksums are compared with the content id. TraceError says what is wrong."""
    found = traces_in(path)
    if len(found) > 1:
        raise TraceError(f"{path} holds {len(found)} traces, such as {found[0]}; open_traces() opens all")
    return Trace(found[0])


def open_traces(path):
    """The traces of a directory, one per prompt or per file of a capture, as a list; of a file itself."""
    return [Trace(p) for p in traces_in(path)]
