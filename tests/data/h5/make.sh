#!/bin/sh
# Make the files of this folder: a trace and a mask dump of lacuna, written again by h5py in the ways
# that its users have. Seeds of tests/fuzz and input of tests/unit/test_h5guard.c.
#
#   sh tests/data/h5/make.sh [PYTHON]      from the root, with build/lacuna; PYTHON has h5py and numpy
#
# Made with h5py 3.16.0 (HDF5 2.0.0) and numpy 2.x; the originals with libhdf5 1.10.8.
set -eu
python=${1:-python3}
dir=tests/data/h5
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

"$python" - "$tmp" <<'END'
import sys
import numpy as np
r = np.random.default_rng(1)
for name in "qkv":
    np.save(f"{sys.argv[1]}/{name}.npy", r.standard_normal((2, 6, 2)).astype(np.float32))
END
build/lacuna import -q --q "$tmp/q.npy" --k "$tmp/k.npy" --v "$tmp/v.npy" --dtype bfloat16 \
    --causal --maps 2 --name tiny -o "$tmp/trace.h5"
build/lacuna trace pack -q --gzip "$tmp/trace.h5" -o "$tmp/packed.h5"
build/lacuna replay -q "$tmp/trace.h5" -m streaming:window=4 -m longformer --dump-masks "$tmp/masks.h5" \
    -o "$tmp/out" >/dev/null
for kind in earliest ordered; do
    "$python" $dir/rewrite_h5.py $kind "$tmp/trace.h5" $dir/trace-$kind.h5
    "$python" $dir/rewrite_h5.py $kind "$tmp/packed.h5" $dir/packed-$kind.h5
    "$python" $dir/rewrite_h5.py $kind "$tmp/masks.h5" $dir/masks-$kind.h5
done
"$python" $dir/rewrite_h5.py vlen "$tmp/trace.h5" $dir/trace-vlen.h5
"$python" $dir/rewrite_h5.py chunked "$tmp/trace.h5" $dir/trace-chunked.h5
"$python" $dir/rewrite_h5.py latest "$tmp/packed.h5" $dir/packed-latest.h5
