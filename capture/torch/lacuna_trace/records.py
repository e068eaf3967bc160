"""Read the records of `lacuna replay` as a pandas frame."""
import glob
import json
import math
import os
import subprocess

from .layout import TraceError, reading
from .reader import frame

KEY = ("trace", "run", "step", "branch", "layer", "head", "method", "params", "seed", "backend", "precision", "permute")


def _lines(folder):
    files = sorted(glob.glob(os.path.join(folder, "records*.jsonl")))
    if not files:
        raise TraceError(f"{folder} holds no records*.jsonl; is it the directory that `lacuna replay -o` wrote?")
    for path in files:
        with reading(path), open(path, encoding="utf-8") as f:
            lines = f.read().split("\n")
        for number, line in enumerate(lines[:-1], 1):  # behind the last newline: a torn line of a run that was killed
            with reading(f"{path}:{number}"):
                r = json.loads(line)
                r["method"], r["params"]  # noqa: B018  each record has them
            yield r


def _defaults(program):
    """{method: {parameter: default}} as the program says."""
    try:
        text = subprocess.run([program, "list", "methods", "--json"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as e:
        raise TraceError(f"{program} list methods --json: {e}; give lacuna=PATH, or fill=False") from e
    found = json.loads(text)
    found = found.get("methods", found) if isinstance(found, dict) else found
    return {m["name"]: {p["name"]: p.get("default") for p in m.get("params", m.get("parameters", []))} for m in found}


def _parameters(text):
    """"key=value:key=value" as a dict; numbers become numbers."""
    out = {}
    for part in text.split(":") if text else ():
        key, _, value = part.partition("=")
        out[key] = _number(value)
    return out


def _number(value):
    if not isinstance(value, str):
        return value
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            pass
    return value


def records(folder, fill=True, lacuna=None):
    """A DataFrame with a row per cell. The last line of a cell counts, a torn last line of a file is dropped.

    Parameters are the columns `p.<key>`; fill=True adds the defaults that `lacuna list methods --json` says (lacuna =
    path of the program, default: $LACUNA or the one on the PATH). Use r["head"]: r.head is a method of pandas.
    """
    defaults = _defaults(lacuna or os.environ.get("LACUNA", "lacuna")) if fill else {}
    cells = {}
    for r in _lines(os.fspath(folder)):
        for name in r.pop("inf", []):
            r[name] = math.inf
        cells[tuple(r.get(k) for k in KEY)] = r
    rows = []
    for r in cells.values():
        known = {k: _number(v) for k, v in defaults.get(r["method"], {}).items()}
        rows.append({**r, **{f"p.{k}": v for k, v in {**known, **_parameters(r["params"])}.items()}})
    return frame(rows)
