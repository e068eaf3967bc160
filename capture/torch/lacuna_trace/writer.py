"""A trace file from its creation as NAME.TAG.part to its final name, in the format of doc/trace-format.md.

HDF5 lays out groups and datasets; the payload goes to its place with pwrite (pipe.py). Equal content gives equal
bytes.
"""
import errno
import fcntl
import os
import secrets
import stat

import numpy as np
import torch
from h5py import h5a, h5f, h5g, h5p, h5s, h5t

from . import layout, xxh3
from .layout import TraceError
from .pipe import Slices


def remove_left_parts(path):
    """Parts of PATH that nobody writes: a writer, in C or Python, holds a lock on its own."""
    for part in layout.parts_of(path):
        try:
            fd = os.open(part, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(part)
        except BlockingIOError:
            raise TraceError(f"{path} is being written by another process") from None
        finally:
            os.close(fd)


def runs(ids):
    """Runs of consecutive numbers of a list: (place in the list, first number, count)."""
    at = 0
    while at < len(ids):
        end = at + 1
        while end < len(ids) and ids[end] == ids[end - 1] + 1:
            end += 1
        yield at, ids[at], end - at
        at = end


class OpenCall:
    """A call whose datasets are there and whose rows come in, in order, in one piece or in several."""

    def __init__(self, attrs, group, score):
        self.attrs, self.group, self.score, self.arrays, self.checks, self.aux = attrs, group, score, {}, {}, {}
        self.checked = False  # are the spot checks in the file?
        self.lines = {}  # of arrays that are written already: their lines of the content id


class Writer:
    """One trace file. meta: {"model": ..., "run": ...[, "video": ...]} with every field of layout.FIELDS."""

    def __init__(self, path, meta, pipe, force=False):
        self.path, self.meta, self.pipe = path, meta, pipe
        self.fd = self.file = None
        self.calls = []
        self.later = meta["model"]["weights_id"]  # a text, or one that is still being made
        if not isinstance(self.later, str):
            self.meta = meta = {**meta, "model": dict(meta["model"], weights_id=self.later.now())}
        layout.check_meta(meta)
        if os.path.lexists(path) and not (force and stat.S_ISREG(os.stat(path).st_mode)):
            raise TraceError(f"{path} exists; force=True replaces a regular file")
        remove_left_parts(path)
        self.part = f"{path}.{secrets.token_hex(3)}.part"
        self.fd = os.open(self.part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX)
            self._start()
        except BaseException:
            self.abort()
            raise

    def _start(self):
        # in the file that is open: its name may lead elsewhere by now
        self.file = h5f.create(f"/proc/self/fd/{self.fd}".encode(), h5f.ACC_TRUNC, layout.create_props(h5p.FILE_CREATE),
                               layout.access_props())
        root = self.root = h5g.open(self.file, b"/")
        for name, value in (("format", layout.FORMAT), ("version_major", layout.MAJOR),
                            ("version_minor", 0), ("tool", f"lacuna_trace {layout.VERSION}"),
                            ("complete", 0)):
            layout.put_attr(root, name, value)
        self.type = layout.element_type(self.meta["model"]["dtype"])
        if self.meta["model"]["dtype"] == "bfloat16":
            layout.commit_type(layout.create_group(root, "types"), "bfloat16", self.type)
        for group, fields in layout.FIELDS.items():
            if group in self.meta:
                self._put_fields(layout.create_group(root, group), self.meta[group], fields)
        self.call_group = layout.create_group(root, "calls")
        h5f.flush(self.file)

    @staticmethod
    def _put_fields(group, values, fields):
        optional = []
        for name, kind in fields:
            value = values.get(name, "") if name in layout.LEFT_OUT_IF_EMPTY else values[name]
            if name in layout.LEFT_OUT_IF_EMPTY and not value:
                continue
            layout.put_attr(group, name, float(value) if kind is float else int(value) if kind is int else value)
            optional += [name] if name in layout.NOT_IN_ID else []
        if optional:
            layout.put_attr(group, "optional", " ".join(optional))

    # ---- a call ---------------------------------------------------------------------------------

    def begin(self, attrs, names, score):
        """Create the group and the datasets `names` of a call; attrs: step branch layer block order timestep sigma.

        score: what of layout.SCORE and layout.SCORE_ARRAYS the call has; a bias of rows and keys as a tensor of any device.
        """
        layout.check_call(self.meta, attrs)
        for before in self.calls[-1:]:  # now, while a GPU has the attention of this call
            self._finish_checks(before)
        group = layout.enter_group(self.call_group, f"step-{attrs['step']:03d}")
        group = layout.enter_group(group, attrs["branch"])
        group = layout.create_group(group, f"layer-{attrs['layer']:02d}")
        for name in ("step", "branch", "layer", "order", "block", "timestep", "sigma"):
            layout.put_attr(group, name, attrs[name])
        for name, kind in layout.SCORE.items():
            if name in score:
                layout.put_attr(group, name, kind(score[name]))
        call = OpenCall(attrs, group, score)
        if "bias" in score:
            self._put_bias(call)
        for name in names:
            call.arrays[name] = self._create_array(group, name)
        h5f.flush(self.file)
        self.calls.append(call)
        return call

    def shape(self, name):
        m, r = self.meta["model"], self.meta["run"]
        cells = [-(-r[n] // r["pool"]) for n in ("n_q", "n_k")] if r["pool"] else [0, 0]
        return {"q": (m["heads"], r["n_q"], m["head_dim"]), "k": (m["kv_heads"], r["n_k"], m["head_dim"]),
                "v": (m["kv_heads"], r["n_k"], m["v_dim"]), "out": (m["heads"], r["n_q"], m["v_dim"]),
                "lse": (m["heads"], r["n_q"]), "map_sum": (m["heads"], *cells), "map_max": (m["heads"], *cells)}[name]

    def _create_array(self, group, name):
        shape = self.shape(name)
        of_model = name in ("q", "k", "v", "out")
        d = layout.create_dataset(group, name, self.type if of_model else h5t.IEEE_F32LE, shape)
        offset, size = d.get_offset(), layout.STORED[self.meta["model"]["dtype"]].itemsize if of_model else 4
        if offset is None:
            raise TraceError(f"{self.part}: '{name}' has no place in the file")
        row_bytes = int(np.prod(shape[2:], dtype=np.int64)) * size
        self._reserve(offset, int(np.prod(shape, dtype=np.int64)) * size)
        slices = Slices(name, shape, row_bytes, self.fd, offset)
        slices.sums_at = layout.create_dataset(group, name + "_xxh3", h5t.NATIVE_UINT8, (shape[0], 16)).get_offset()
        return slices

    def _reserve(self, offset, size):
        """Ask for the disk blocks now: a full disk says so before the work."""
        if os.fstat(self.fd).st_size < offset + size and size > layout.free_bytes(self.path):
            raise TraceError(f"{self.part}: no space left on the disk; make room or store fewer layers, heads or steps")

    def put(self, call, name, row, x, ids, ranges, whole=None):
        """Rows row.. of the heads `ids` of x [heads][rows][dim], which are the heads of the file in their order.

        `ranges` receives the smallest and the largest value of every piece. Values outside of the range of the file's
        dtype become infinite. whole: as of Pipe.send.
        """
        dtype = getattr(torch, self.meta["model"]["dtype"])
        for head, first, count in runs(ids):
            self.pipe.send(call.arrays[name], head, row, x[first:first + count], dtype, ranges, whole)

    def put_head(self, call, name, head, x):
        """One head of a map, float32 [1][rows][cells]."""
        self.pipe.send(call.arrays[name], head, 0, x, x.dtype, [])

    def put_checks(self, call, rows, out, lse):
        """Spot checks: int32 rows, what the program returned there and our log-sum-exp; marked as optional."""
        call.checks = {"check_rows": np.asarray(rows, "<i4"), "check_out": np.asarray(out, "<f4"),
                       "check_lse": np.asarray(lse, "<f4")}

    # ---- the end --------------------------------------------------------------------------------

    def finish(self, arrays, capture):
        """Checksums, arrays of the run, the content id, the final name. `capture`: strings for /capture."""
        self.pipe.drain()
        if not isinstance(self.later, str):
            self.meta["model"]["weights_id"] = self.later.result()
            model = h5g.open(self.root, b"model")
            h5a.delete(model, b"weights_id")
            layout.put_attr(model, "weights_id", self.meta["model"]["weights_id"])
        lines = [layout.meta_text(self.meta)]
        for call in sorted(self.calls, key=lambda c: c.attrs["order"]):
            lines.append(layout.call_text(call.attrs) + layout.score_text(call.score))
            lines += [self._finish_array(call, name) for name in layout.CALL_ARRAYS if name in call.arrays]
            lines += [self._put_score_array(call, name) for name in layout.SCORE_ARRAYS if name in call.score]
            lines += self._put_aux(call)
            self._finish_checks(call)
        run = h5g.open(self.root, b"run")
        for name, dtype in layout.RUN_ARRAYS.items():
            if name in arrays:
                data = np.asarray(arrays[name], dtype)
                lines.append(layout.array_text(name, data.shape, layout.put_checked(run, name, data)))
        note = layout.create_group(self.root, "capture")
        for name, value in capture.items():
            layout.put_attr(note, name, layout.short(value, 2048))
        layout.put_attr(self.root, "optional", "capture")
        self.id = xxh3.text("".join(lines).encode())
        layout.put_attr(self.root, "content_id", self.id)
        run = self.meta["run"]
        minor = layout.MINOR if run.get("decode_from") or any(call.aux for call in self.calls) else int(bool(any(call.score for call in self.calls) or run.get("row_group")))
        if minor:  # older readers can read all other files
            h5a.open(self.root, b"version_minor").write(np.array(minor, np.int64))
        h5a.open(self.root, b"complete").write(np.array(1, np.int64))
        self._commit()

    def _finish_array(self, call, name):
        a = call.arrays[name]
        a.finish()
        os.pwrite(self.fd, b"".join(a.sums), a.sums_at)
        return layout.array_text(name, a.shape, a.sums)

    def _put_score_array(self, call, name):
        """A value or a row per head: each has a checksum of its own."""
        if name in call.lines:
            return call.lines[name]
        data = np.ascontiguousarray(call.score[name], "<f4")
        sums = np.frombuffer(b"".join(xxh3.digest(data[i:i + 1]) for i in range(len(data))), np.uint8).reshape(-1, 16)
        layout.put_array(call.group, name, data)
        layout.put_array(call.group, name + "_xxh3", sums)
        return layout.array_text(name, data.shape, sums)

    def _put_aux(self, call):
        group = layout.create_group(call.group, "aux") if call.aux else None
        for name in (n for n in layout.AUX if n in call.aux):
            data = np.ascontiguousarray(call.aux[name], "<f4")
            sums = np.frombuffer(b"".join(xxh3.digest(data[i:i + 1]) for i in range(len(data))), np.uint8).reshape(-1, 16)
            layout.put_array(group, name, data)
            layout.put_array(group, name + "_xxh3", sums)
            yield layout.array_text("aux/" + name, data.shape, sums)

    def _put_bias(self, call):
        """A head at a time and at once: a bias of rows and keys is as large as the scores."""
        x = call.score["bias"]
        d, sums = layout.create_dataset(call.group, "bias", h5t.IEEE_F32LE, x.shape), []
        for i in range(x.shape[0]):
            one = np.ascontiguousarray(x[i:i + 1].cpu().numpy(), "<f4")
            where = d.get_space()
            where.select_hyperslab((i, 0, 0), one.shape)
            d.write(h5s.create_simple(one.shape), where, one)
            sums.append(xxh3.digest(one))
        layout.put_array(call.group, "bias_xxh3", np.frombuffer(b"".join(sums), np.uint8).reshape(-1, 16))
        call.lines["bias"] = layout.array_text("bias", x.shape, sums)
        call.score = dict(call.score, bias=None)

    def _finish_checks(self, call):
        if call.checked or not call.checks:
            return
        call.checked = True
        for name, data in call.checks.items():
            layout.put_checked(call.group, name, data)
        names = [n + end for n in call.checks for end in ("", "_xxh3")]
        layout.put_attr(call.group, "optional", " ".join(names))

    def _commit(self):
        for call in self.calls:
            call.group = None
        self.root = self.call_group = self.type = None
        h5f.flush(self.file)
        self.file.close()
        self.file = None
        os.fsync(self.fd)
        os.rename(self.part, self.path)
        directory = os.open(os.path.dirname(os.path.abspath(self.path)), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        except OSError as e:
            if e.errno != errno.EINVAL:  # file systems that cannot sync a directory
                raise
        finally:
            os.close(directory)
        os.close(self.fd)
        self.fd = None

    def abort(self):
        """Remove the unfinished file. Safe at any time and more than once."""
        self.calls = []
        self.root = self.call_group = self.type = None
        if self.file is not None:
            self.file.close()
            self.file = None
        if self.fd is not None:
            os.unlink(self.part)
            os.close(self.fd)
            self.fd = None
