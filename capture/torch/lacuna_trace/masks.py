"""Read the masks that `lacuna replay --dump-masks` writes: as boolean matrices, as blocks, for other libraries."""
import os

import numpy as np

from . import layout, xxh3
from .layout import TraceError
from .reader import attributes, causal_pairs, frame, open_file, within

FORMAT = "lacuna-masks"


class Masks:
    """An open dump; one pass over /cells made the index. Iterating gives every Mask."""

    def __init__(self, path):
        self.path = os.fspath(path)
        self.file = open_file(path, FORMAT)
        with layout.reading(self.path):
            cells = self.file["cells"]
            self.cells = [Mask(cells[f"{i // 1000:03d}/{i:06d}"]) for i in range(int(cells.attrs["count"]))]

    def find(self, **want):
        """Masks whose attributes are those given: method=, layer=, head=, step=, branch=, params=, ..."""
        for name in want:
            if self.cells and name not in self.cells[0].attrs:
                raise TraceError(f"masks have no attribute {name}; they have {', '.join(sorted(self.cells[0].attrs))}")
        return [m for m in self.cells if all(m.attrs.get(n) == v for n, v in want.items())]

    def frame(self):
        """A pandas DataFrame with a row per mask."""
        return frame([m.attrs for m in self.cells])

    def __iter__(self):
        return iter(self.cells)

    def __len__(self):
        return len(self.cells)

    def close(self):
        self.file.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


class Mask:
    """One mask. Query row i stands at position i + nk - nq."""

    def __init__(self, group):
        self.group, self.attrs = group, attributes(group)
        a = self.attrs
        self.nq, self.nk, self.bq, self.bk, self.form = a["nq"], a["nk"], a["bq"], a["bk"], a["form"]
        self.causal, self.order = bool(a["causal"]), a.get("order", a["permute"])

    def _lists(self):
        """row_ptr and col of the form "lists", after their checksum."""
        with layout.reading(self.group.file.filename):
            ptr, col = self.group["row_ptr"][:], self.group["col"][:]
        if xxh3.text(col.tobytes() + ptr.tobytes()) != self.attrs["xxh3"]:
            raise TraceError(f"{self.group.file.filename}: {self.group.name}: the checksum of its lists differs")
        return ptr, col

    def dense(self, rows=None, as_stored=False):
        """bool [rows][nk]: the pairs that are kept. as_stored=True: rows and keys of the order `order`, not of the trace."""
        if self.order != "none" and not as_stored:
            raise TraceError(f"{self.group.name}: its rows and keys are in the order '{self.order}', not in the trace's; as_stored=True gives "
                             "them like that")
        i = np.atleast_1d(np.arange(self.nq)[slice(None) if rows is None else rows])[:, None]
        j, p = np.arange(self.nk)[None, :], i + self.nk - self.nq
        if self.form == "full":
            m = np.ones((len(i), self.nk), bool)
        elif self.form == "band":
            a = self.attrs
            m = (abs(p - j) < a["window"]) & ((j <= p) | (not self.causal)) | (j < a["sink"]) | (i >= a["dense_from"])
        else:
            m = self._units()[i[:, 0] // self.bq].repeat(self.bk, 1)[:, :self.nk]
        return within(m & causal_pairs(p, j, self.attrs) if self.causal else m, p, j, self.attrs)

    def _units(self):
        """bool [groups][units of keys]."""
        ptr, col = self._lists()
        units = np.zeros((len(ptr) - 1, -(-self.nk // self.bk)), bool)
        units[np.repeat(np.arange(len(ptr) - 1), np.diff(ptr)), col] = True
        return units

    def blocks(self, bq=None, bk=None):
        """bool [ceil(nq/bq)][ceil(nk/bk)]: blocks that hold a kept pair. Default size: the mask's own unit."""
        bq, bk = bq or self.bq, bk or self.bk
        out = np.zeros((-(-self.nq // bq), -(-self.nk // bk)), bool)
        for r in range(len(out)):
            kept = self.dense(slice(r * bq, (r + 1) * bq)).any(0)
            out[r] = np.pad(kept, (0, -self.nk % bk)).reshape(-1, bk).any(1)
        return out

    def cover(self, bq, bk):
        """(blocks, added): whole blocks of bq x bk over the mask, and the allowed pairs that they add, as a part of all."""
        blocks = self.blocks(bq, bk)
        kept = allowed = covered = 0
        for r in range(len(blocks)):
            rows = slice(r * bq, (r + 1) * bq)
            m = self.dense(rows)
            a = self._allowed(rows, len(m))
            kept, allowed = kept + m.sum(), allowed + a.sum()
            covered += (a & blocks[r].repeat(bk)[:self.nk]).sum()
        return blocks, float((covered - kept) / allowed)

    def _allowed(self, rows, n):
        p = np.arange(self.nq)[rows][:, None] + self.nk - self.nq
        j = np.arange(self.nk)[None, :]
        return within(causal_pairs(p, j, self.attrs) if self.causal else np.ones((n, self.nk), bool), p, j, self.attrs)

    def bsr(self):
        """(indptr int32, indices int32, (bq, bk)): the kept blocks of every row of blocks, ascending. Blocks are of the mask's own unit."""
        blocks = self.blocks()
        indptr = np.concatenate([[0], np.cumsum(blocks.sum(1))]).astype(np.int32)
        return indptr, np.nonzero(blocks)[1].astype(np.int32), (self.bq, self.bk)

    def __repr__(self):
        a = self.attrs
        return f"<Mask {a['method']} {a['params'] or 'defaults'}, step {a['step']}, layer {a['layer']}, head {a['head']}, {self.form}>"


def open_masks(path):
    """Open a dump of masks."""
    return Masks(path)


# ---- other libraries ------------------------------------------------------------------------------


def _table(masks, block):
    masks = sorted(masks, key=lambda m: m.attrs["head"])
    if not masks:
        raise TraceError("no masks were given; find() takes the attributes of one call and method")
    first = masks[0]
    if any((m.nq, m.nk, m.causal) != (first.nq, first.nk, first.causal) for m in masks):
        raise TraceError("the masks are of different calls: shapes or causality differ")
    if any(name in first.attrs for name in ("window_left", "window_right", "chunk", "prefix")):
        raise TraceError("the model itself has a window, chunk or prefix here, which whole blocks do not show; use dense() or blocks()")
    if any(m.order != "none" for m in masks):
        raise TraceError(f"the mask's tokens are in the order '{first.order}', not in the trace's: permute q, k and v the same way")
    bq, bk = block or (first.bq, first.bk)
    return first, np.stack([m.blocks(bq, bk) for m in masks]), bq, bk


def block_mask(masks, device="cpu", block=None):
    """A FlexAttention BlockMask of the masks of all query heads of one call (q has these heads, with enable_gqa).

    The blocks are whole: pairs that a finer mask leaves out inside of a kept block are computed. Its mask_mod holds the
    table too, because flex_attention ignores the lists when it is not compiled.
    """
    import torch
    from torch.nn.attention.flex_attention import BlockMask
    first, table, bq, bk = _table(masks, block)
    heads, nr, nc = table.shape
    kept = torch.as_tensor(table, device=device)
    shift = first.nk - first.nq
    i = torch.arange(nr, device=device)[:, None] * bq
    j = torch.arange(nc, device=device)[None, :] * bk
    last = (j + bk - 1).clamp(max=first.nk - 1)
    whole = (last <= i + shift) if first.causal else torch.ones(nr, nc, dtype=torch.bool, device=device)
    whole = whole & (i + bq <= first.nq) & (j + bk <= first.nk)

    def lists(t):
        order = torch.argsort(t.int(), dim=-1, descending=True, stable=True).int()
        count = t.sum(-1).int()
        used = torch.arange(nc, device=device)[None, None] < count[..., None]
        return count[None], torch.where(used, order, torch.zeros_like(order))[None]

    def mask_mod(b, h, qi, kj):
        keep = kept[h, qi // bq, kj // bk]
        return keep & (kj <= qi + shift) if first.causal else keep

    return BlockMask.from_kv_blocks(*lists(kept & ~whole), *lists(kept & whole), BLOCK_SIZE=(bq, bk), mask_mod=mask_mod,
                                    seq_lengths=(first.nq, first.nk))


def flashinfer_plan(masks, num_qo_heads, num_kv_heads, head_dim, block=None):
    """Keywords for `plan` of FlashInfer's BlockSparseAttentionWrapper: one pattern for all heads.

    The pattern is the union of the masks; the second value is what the union adds, as a part of all blocks. Causal
    masks come with an element mask: the kernel counts positions among the gathered keys.
    """
    first, table, bq, bk = _table(masks, block)
    union = table.any(0)
    added = float((union[None] & ~table).sum() / table.size)
    nr, nc = union.shape
    indptr = np.concatenate([[0], np.cumsum(union.sum(1))]).astype(np.int32)
    rows, cols = np.nonzero(union)
    plan = {"indptr": indptr, "indices": cols.astype(np.int32), "M": nr * bq, "N": nc * bk, "R": bq, "C": bk,
            "num_qo_heads": num_qo_heads, "num_kv_heads": num_kv_heads, "head_dim": head_dim, "mask": None, "causal": False}
    if first.causal or first.nq % bq or first.nk % bk:
        i = (rows[:, None] * bq + np.arange(bq))[:, :, None]
        j = (cols[:, None] * bk + np.arange(bk))[:, None, :]
        inside = (i < first.nq) & (j < first.nk)
        plan["mask"] = inside & (j <= i + first.nk - first.nq) if first.causal else inside
    return plan, added
