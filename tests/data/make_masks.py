"""Writes tests/data/masks/: one mask of 70 x 70 pairs per head, in the forms that the method mask reads.

    python3 tests/data/make_masks.py tests/data/masks      # NumPy, safetensors

Head h keeps the keys 0 <= i - j < 3 + h, key 0, and for every 9th row (i % 9 == 4) all earlier keys. Blocks are those of
16 x 16 that hold a kept pair. tests/unit/test_outside.c computes the same in C.
"""
import sys
import zipfile

import numpy as np
from safetensors.numpy import save_file

N, HEADS, B, to = 70, 8, 16, sys.argv[1] + "/"
i, j = np.arange(N)[:, None], np.arange(N)[None, :]
pairs = np.stack([((i - j >= 0) & (i - j < 3 + h)) | ((j == 0) | (i % 9 == 4)) & (j <= i) for h in range(HEADS)])
nb = -(-N // B)
padded = np.zeros((HEADS, nb * B, nb * B), bool)
padded[:, :N, :N] = pairs
tiles = padded.reshape(HEADS, nb, B, nb, B)
blocks, whole = tiles.any((2, 4)), tiles.all((2, 4))

np.save(to + "five.npy", pairs[5])
np.savez(to + "blocks.npz", mask=blocks[None], BLOCK_SIZE=np.array([B, B]))
np.savez_compressed(to + "pairs.npz", **{"layer-02.mask": ~pairs, "layer-03.mask": pairs.astype(np.int32), "other": np.ones(3)})
zipfile.ZIP64_LIMIT, zipfile.ZIP_FILECOUNT_LIMIT = 1000, 0  # small: sizes as of an archive beyond 4 GB
with zipfile.ZipFile(to + "zip64.npz", "w", zipfile.ZIP_DEFLATED, allowZip64=True) as z:
    with z.open("mask.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array(member, pairs[5])

rows = {}
for h in range(HEADS):
    rows[f"layer-03.head-{h:02d}.indptr"] = np.concatenate([[0], np.cumsum(blocks[h].sum(1))]).astype(np.int32)
    rows[f"layer-03.head-{h:02d}.indices"] = np.nonzero(blocks[h])[1].astype(np.int32)
save_file(rows, to + "rows.safetensors")


def lists(table):
    return table.sum(-1).astype(np.int32)[None], np.argsort(~table, axis=-1, kind="stable").astype(np.int32)[None]


count, index = lists(blocks & ~whole)
full_count, full_index = lists(whole)
save_file({"kv_num_blocks": count, "kv_indices": index, "full_kv_num_blocks": full_count, "full_kv_indices": full_index,
           "q_num_blocks": count}, to + "flex.safetensors")
