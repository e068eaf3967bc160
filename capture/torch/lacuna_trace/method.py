"""A sparse-attention method in Python: this one file speaks to `lacuna replay -m exec:cmd=...`. It needs NumPy alone.

    import numpy as np
    from lacuna_trace.method import method

    def select(q, k, v, head):
        scores = q @ k.T * head.scale
        return scores >= np.sort(scores, axis=1)[:, -32:-31]

    method(select)

    lacuna replay t.h5 -m 'exec:cmd=python3 mine.py' -m streaming -o run

The page doc/methods/exec.md of lacuna describes the messages.
"""
import json
import mmap
import os
import sys
import traceback
from types import SimpleNamespace

import numpy as np

__all__ = ["Skip", "method"]


class Skip(Exception):
    """Raised by a selection: the method does not apply to this head, for the reason that is given."""


def method(select, unit=(64, 64), requests=None, answers=None):
    """Answer requests until lacuna closes the pipe.

    select(q, k, v, head) gets float32 arrays [nq][d], [nk][d], [nk][dv], read-only, and `head` with nq, nk, d, dv,
    scale, causal, layer, head, kv_head, step, n_steps, branch, grid, text, text_place, seed, params; and rows: None, or with
    exec's rows=1 and a sample of query rows its runs [position, rows], outside of which q is 0 and nothing needs a choice. It
    returns what is kept, one of

      bool [nq][nk]                                        pairs
      bool [ceil(nq / bq)][ceil(nk / bk)]                  blocks of `unit` = (bq, bk)
      (indptr [ceil(nq / bq) + 1], indices [indptr[-1]])   the same blocks as compressed rows, ascending

    Pairs after the query are left out for causal heads. Raise Skip("why") where the method does not apply; any other
    exception makes the record of this head an error, and the next head follows. What select prints goes to
    lacuna's log.
    """
    requests = requests or sys.stdin.buffer
    if answers is None:
        answers = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)  # print() of the selection must not come between the answers
    for line in requests:
        request = json.loads(line)
        try:
            header, parts = _answer(select, unit, request)
        except Skip as why:
            header, parts = {"skip": str(why) or "no reason given"}, ()
        except Exception as why:
            traceback.print_exc()
            header, parts = {"error": f"{type(why).__name__}: {why}"[:400]}, ()
        answers.write(json.dumps({"cell": request["cell"], **header}).encode() + b"\n")
        for part in parts:
            answers.write(part.tobytes())
        answers.flush()
        sys.stdout.flush()


def _answer(select, unit, request):
    head = SimpleNamespace(**{name: value for name, value in request.items() if name not in ("lacuna", "arrays")})
    if request["lacuna"] != 1:
        raise ValueError(f"lacuna speaks version {request['lacuna']} of the messages, this file version 1")
    arrays = request["arrays"]
    size = max(at + 4 * rows * cols for at, (rows, cols) in arrays.values())
    memory = mmap.mmap(3, size, access=mmap.ACCESS_READ)  # goes with the last array that shows it
    data = np.frombuffer(memory, np.uint8)
    views = [data[at:at + 4 * rows * cols].view("<f4").reshape(rows, cols) for at, (rows, cols) in (arrays[n] for n in "qkv")]
    return _message(select(*views, head), unit, head)


def _message(kept, unit, head):
    bq, bk = unit
    rows, cols = -(-head.nq // bq), -(-head.nk // bk)
    if isinstance(kept, tuple):
        indptr, indices = (np.asarray(a) for a in kept)
        if indptr.shape != (rows + 1,) or indices.ndim != 1:
            raise ValueError(f"indptr has shape {indptr.shape} and indices {indices.shape}, expected ({rows + 1},) and (n,)")
        return ({"form": "lists", "bq": bq, "bk": bk, "nnz": len(indices)}, (indptr.astype("<i8"), indices.astype("<i4")))
    kept = np.asarray(kept)
    if kept.dtype != bool:
        raise ValueError(f"the selection has elements of type {kept.dtype}, expected bool")
    if kept.shape == (head.nq, head.nk):
        bq = bk = 1
    elif kept.shape != (rows, cols):
        raise ValueError(f"the selection has shape {kept.shape}, expected ({head.nq}, {head.nk}) pairs or ({rows}, {cols}) blocks of {bq} x {bk}")
    return {"form": "bits", "bq": bq, "bk": bk}, (np.packbits(kept, axis=1, bitorder="little"),)
