"""The trace format 1.2 of doc/trace-format.md: names, types and limits, and the HDF5 calls that the format asks for.

Reader and writer share this file. Nothing here needs PyTorch.
"""
import contextlib
import ctypes
import functools
import glob
import math
import os
import re

import numpy as np
from h5py import h5a, h5d, h5f, h5g, h5p, h5s, h5t
from h5py._objects import phil

from . import xxh3

FORMAT, MAJOR, MINOR = "lacuna-trace", 1, 2
VERSION = "0.1.0"  # of this package
ALIGNMENT, METADATA_BLOCK = 4096, 16384

# The order is that of the content id. A string has its largest size in bytes, the closing NUL included.
FIELDS = {
    "model": (("name", 128), ("architecture", 64), ("weights_id", 40), ("layers", int), ("heads", int),
              ("kv_heads", int), ("head_dim", int), ("v_dim", int), ("scale", float), ("causal", int),
              ("positions_applied", int), ("positions", 32), ("dtype", 16), ("compute", 32),
              ("head_ids", 512), ("kv_head_ids", 512), ("weight_types", 128)),
    "run": (("source", 32), ("prompt_id", 40), ("negative_id", 40), ("n_q", int), ("n_k", int), ("seed", int),
            ("pool", int), ("row_group", int), ("decode_from", int), ("question_from", int), ("generated_by", 64),
            ("max_positions", int), ("computed_by", 160)),
    "video": (("grid_t", int), ("grid_h", int), ("grid_w", int), ("frames", int), ("height", int), ("width", int),
              ("fps", float), ("vae_t", int), ("vae_h", int), ("vae_w", int), ("patch_t", int), ("patch_h", int),
              ("patch_w", int), ("text_tokens", int), ("text_valid", int), ("text_place", 8), ("token_order", 32),
              ("sampler", 32), ("steps", int), ("shift", float), ("guidance", float)),
}
LEFT_OUT_IF_EMPTY = ("head_ids", "kv_head_ids", "weight_types", "row_group", "decode_from", "question_from", "generated_by",
                     "max_positions", "computed_by")
NOT_IN_ID = ("weight_types", "max_positions", "computed_by")
CALL_ARRAYS = ("q", "k", "v", "out", "lse", "map_sum", "map_max")
# What a call does to its scores (format 1.1); a value at its default is left out. The order is that of the content id.
SCORE = {"scale": float, "causal": int, "window_left": int, "window_right": int, "chunk": int, "prefix": int, "text_valid": int,
         "softcap": float}
SCORE_ARRAYS = ("sinks", "alibi", "rel_bias", "bias")
DECODE_ARRAYS = ("col_sum",)  # of format 1.2, behind these in the content id
# Extra operands in the group aux of a call, float32 [heads][rows][channels]: the last in the content id. Whose rows they have.
AUX = {"q_pre": "q", "k_pre": "k", "iq": "q", "ik": "k", "iw": "q", "gate_q": None, "gate_k": None}
BIAS_MOST = 1 << 24  # values of one head's bias of rows and keys
RUN_ARRAYS = {"tokens": np.dtype("<i4"), "nll": np.dtype("<f4"), "timesteps": np.dtype("<f8"), "sigmas": np.dtype("<f8"),
              "rows": np.dtype("<i4")}
# Optional names: spot checks of what the program itself returned. They are not part of the content id.
CHECK_ARRAYS = ("check_rows", "check_out", "check_lse")
STORED = {"float32": np.dtype("<f4"), "float16": np.dtype("<f2"), "bfloat16": np.dtype("<u2")}  # bfloat16: the bits


class TraceError(Exception):
    """A trace, a mask dump or an output cannot be used; the message names the object and a fix."""


class UsageError(ValueError):
    """An option has no valid value."""


# ---- lists of numbers -------------------------------------------------------------------------


def parse_list(text, name):
    """"0,4-7" as an ascending list of numbers; a list or a range of numbers is taken as it is. None stays None."""
    if text is None:
        return None
    if isinstance(text, int):
        text = [text]
    if isinstance(text, str):
        ids = []
        for part in text.split(","):
            first, dash, last = part.strip().partition("-")
            if not first.isdigit() or (dash and not last.isdigit()):
                raise UsageError(f"{name}={text!r} is no list such as 0,4-7")
            ids += range(int(first), int(last if dash else first) + 1)
    else:
        ids = [int(x) for x in text]
    if not ids or any(b <= a for a, b in zip(ids, ids[1:])) or ids[0] < 0:
        raise UsageError(f"{name}={text!r}: the numbers must ascend and there must be one")
    return ids


def list_text(ids):
    """The opposite: runs of three numbers and of two become ranges; repeated numbers stay."""
    parts, i = [], 0
    while i < len(ids):
        last = i
        while last + 1 < len(ids) and ids[last + 1] == ids[last] + 1:
            last += 1
        parts.append(f"{ids[i]}-{ids[last]}" if last > i else str(ids[i]))
        i = last + 1
    return ",".join(parts)


def expand(text, count):
    """The numbers of head_ids or kv_head_ids, which may repeat; 0..count-1 when there is no list."""
    if not text:
        return list(range(count))
    ids = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        ids += range(int(first), int(last if dash else first) + 1)
    return ids


# ---- HDF5 -------------------------------------------------------------------------------------


def bfloat16_type():
    """2-byte float: sign at bit 15, exponent 8 bits at bit 7 with bias 127, mantissa 7 bits. The order matters."""
    t = h5t.IEEE_F32LE.copy()
    t.set_fields(15, 7, 8, 0, 7)
    t.set_precision(16)
    t.set_size(2)
    t.set_ebias(127)
    return t


def element_type(name):
    if name == "bfloat16":
        return bfloat16_type()
    return h5t.py_create(STORED[name] if name in STORED else np.dtype(name), logical=True)


def access_props():
    p = h5p.create(h5p.FILE_ACCESS)
    p.set_libver_bounds(h5f.LIBVER_V18, h5f.LIBVER_V18)
    p.set_alignment(ALIGNMENT, ALIGNMENT)
    p.set_meta_block_size(METADATA_BLOCK)
    p.set_fclose_degree(h5f.CLOSE_STRONG)
    if hasattr(p, "set_file_locking"):  # the writer has a lock of its own
        p.set_file_locking(False, True)
    return p


@functools.lru_cache(None)
def _hdf5():
    """The HDF5 library of h5py, for the functions that h5py does not wrap."""
    lib, hid = ctypes.CDLL(h5t.__file__), ctypes.c_int64
    for name, arguments in (("H5Tcommit2", [hid, ctypes.c_char_p, hid, hid, hid, hid]), ("H5Pcreate", [hid]), ("H5Pclose", [hid]),
                            ("H5Pset_obj_track_times", [hid, ctypes.c_bool]),
                            ("H5Pset_link_phase_change", [hid, ctypes.c_uint, ctypes.c_uint])):
        getattr(lib, name).argtypes = arguments
    lib.H5Pcreate.restype = hid
    return lib


def create_props(kind):
    """Of a file or a group: no times; attributes and links stay in the object header, which has a checksum."""
    p = h5p.create(kind)
    p.set_obj_track_times(False)
    p.set_attr_phase_change(65535, 0)
    _hdf5().H5Pset_link_phase_change(p.id, 65535, 0)
    return p


def commit_type(group, name, type_id):
    """Commit a type without times, so that two files of equal content are equal."""
    lib = _hdf5()
    with phil:
        props = lib.H5Pcreate(ctypes.c_int64.in_dll(lib, "H5P_CLS_DATATYPE_CREATE_ID_g"))
        lib.H5Pset_obj_track_times(props, False)
        failed = lib.H5Tcommit2(group.id, name.encode(), type_id.id, 0, props, 0) < 0
        lib.H5Pclose(props)
    if failed:
        raise OSError(f"HDF5 cannot commit the type {name}")


def create_group(parent, name):
    return h5g.create(parent, name.encode(), gcpl=create_props(h5p.GROUP_CREATE))


def enter_group(parent, name):
    """The group of that name, created when it is not there."""
    return h5g.open(parent, name.encode()) if name.encode() in parent else create_group(parent, name)


def put_attr(group, name, value):
    """A scalar: str as fixed-length UTF-8 with a NUL, int as int64, float as float64."""
    if isinstance(value, str):
        raw = value.encode()
        t = h5t.C_S1.copy()
        t.set_size(len(raw) + 1)
        t.set_strpad(h5t.STR_NULLTERM)
        t.set_cset(h5t.CSET_UTF8)
        data = np.array(raw, dtype=f"S{len(raw) + 1}")
    else:
        t = h5t.IEEE_F64LE if isinstance(value, float) else h5t.STD_I64LE
        data = np.array(value, np.float64 if isinstance(value, float) else np.int64)
    h5a.create(group, name.encode(), t, h5s.create(h5s.SCALAR)).write(data, mtype=t)


def create_dataset(group, name, type_id, shape):
    """A contiguous dataset whose place in the file is fixed at once, without fill and times."""
    p = h5p.create(h5p.DATASET_CREATE)
    p.set_obj_track_times(False)
    p.set_fill_time(h5d.FILL_TIME_NEVER)
    p.set_layout(h5d.CONTIGUOUS)
    p.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    return h5d.create(group, name.encode(), type_id, h5s.create_simple(tuple(shape)), p)


def put_array(group, name, data):
    """A small NumPy array as a dataset."""
    data = np.ascontiguousarray(data)
    t = h5t.py_create(data.dtype, logical=True)
    create_dataset(group, name, t, data.shape).write(h5s.ALL, h5s.ALL, data)


def put_checked(group, name, data):
    """An array and, beside it, its checksum as one slice; the 16 bytes are returned."""
    put_array(group, name, data)
    sums = np.frombuffer(xxh3.digest(data), np.uint8).reshape(1, 16)
    put_array(group, name + "_xxh3", sums)
    return sums


# ---- the content id ---------------------------------------------------------------------------


def number_text(x):
    return "nan" if math.isnan(x) else "%.17g" % x


def meta_text(meta):
    """The lines of the content id for the attributes. `meta` is {"model": {...}, "run": {...}[, "video": {...}]}."""
    lines = [f"{FORMAT} {MAJOR}"]
    for group, fields in FIELDS.items():
        for name, kind in fields if group in meta else ():
            value = meta[group][name] if name not in LEFT_OUT_IF_EMPTY else meta[group].get(name, "")
            if name in NOT_IN_ID or (name in LEFT_OUT_IF_EMPTY and not value):
                continue
            lines.append(f"{group}.{name}={number_text(value) if kind is float else value}")
    return "\n".join(lines) + "\n"


def call_text(call):
    return (f"call step={call['step']} branch={call['branch']} layer={call['layer']} block={call['block']} "
            f"order={call['order']} timestep={number_text(call['timestep'])} sigma={number_text(call['sigma'])}\n")


def score_text(score):
    """The line of what a call does to its scores; "" without."""
    said = [f" {n}={number_text(score[n]) if kind is float else score[n]}" for n, kind in SCORE.items() if n in score]
    return "score" + "".join(said) + "\n" if said else ""


def array_text(name, shape, sums):
    """`sums`: uint8 [slices][16]."""
    hexes = " ".join(bytes(s).hex() for s in sums)
    return f"{name} {'x'.join(str(n) for n in shape)} {hexes}\n"


# ---- limits that the reader of lacuna enforces --------------------------------------------------


# Control characters, marks that change the direction of text, line separators, and what is no text.
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def short(text, size):
    """The text without characters that lacuna refuses in a name, cut to fit `size` bytes with its NUL."""
    return UNSAFE.sub("", str(text)).encode()[:size - 1].decode("utf-8", "ignore")


def check_meta(meta):
    """Refuse what `lacuna` would refuse when it opens the file."""
    for group, fields in FIELDS.items():
        for name, kind in fields if group in meta else ():
            value = meta[group].get(name, "")
            if isinstance(kind, int) and short(value, kind) != value:
                raise TraceError(f"/{group}: {name} {value!r} is longer than {kind - 1} bytes or has characters "
                                 "that no name may have (controls, direction marks)")
    m, r, v = meta["model"], meta["run"], meta.get("video")
    if m["heads"] % m["kv_heads"]:
        raise TraceError(f"/model: {m['heads']} query heads are not a multiple of {m['kv_heads']} kv heads")
    if not math.isfinite(m["scale"]) or m["scale"] == 0:
        raise TraceError(f"/model: scale {m['scale']} is not a usable softmax scale")
    if m["causal"] and r["n_q"] > r["n_k"]:
        raise TraceError(f"/run: causal with more queries ({r['n_q']}) than keys ({r['n_k']})")
    p = r.get("decode_from", 0)
    if p and (not m["causal"] or r.get("row_group") or v or not r["n_k"] - r["n_q"] <= p < r["n_k"]):
        raise TraceError(f"/run: decode_from {p} of {r['n_k']} tokens, of which the last {r['n_q']} have queries: a causal run over text has a query "
                         "of every token from decode_from on, at least one")
    if v and not v["grid_t"] * v["grid_h"] * v["grid_w"] + v["text_tokens"] == r["n_q"] == r["n_k"]:
        raise TraceError(f"/video: grid {v['grid_t']}x{v['grid_h']}x{v['grid_w']} and {v['text_tokens']} text tokens "
                         f"do not make {r['n_q']} queries and {r['n_k']} keys")


def check_call(meta, call):
    layers, steps = meta["model"]["layers"], meta.get("video", {}).get("steps", 0)
    if not 0 <= call["layer"] < layers:
        raise TraceError(f"layer {call['layer']} of a model with {layers} layers")
    if call["step"] < 0 or 0 < steps <= call["step"]:
        raise TraceError(f"step {call['step']} of a run with {steps} steps")
    branch = call["branch"]
    if not 0 < len(branch) < 16 or not all(c.isascii() and (c.isalnum() or c in "-_") for c in branch):
        raise TraceError(f"branch {branch!r} is no short name of letters, digits, '-' and '_'")
    if len(call["block"]) > 15:
        raise TraceError(f"block {call['block']!r} is longer than 15 characters")


def call_path(call):
    return f"calls/step-{call['step']:03d}/{call['branch']}/layer-{call['layer']:02d}"


@contextlib.contextmanager
def reading(path):
    """What goes wrong in a file that contradicts itself is a TraceError that names the file."""
    try:
        yield
    except TraceError:
        raise
    except Exception as e:
        raise TraceError(f"{path} is damaged: {type(e).__name__}: {e}") from e


def parts_of(path):
    """Unfinished files of the writers of PATH."""
    return glob.glob(glob.escape(path) + ".??????.part")


def free_bytes(path):
    s = os.statvfs(os.path.dirname(os.path.abspath(path)))
    return s.f_bavail * s.f_frsize
