#!/bin/sh
# run.sh - `lacuna eval` against a float64 model in NumPy that is given the masks, a method in Python, masks of
# selectors, by blocks and by rows, and the decode phase against their rules in NumPy.
#
#   LACUNA=build/lacuna [PYTHON=python3] sh tests/numpy/run.sh
#
# Prints a line per method and "N passed, N failed"; without a Python that has numpy and h5py, one
# line "skipped: ..." and exit status 0.
set -u
here=$(cd "$(dirname "$0")" && pwd)
ROOT=$(cd "$here/../.." && pwd)
LACUNA=${LACUNA:-$ROOT/build/lacuna}
python=${PYTHON:-python3}
LC_ALL=C
PYTHONDONTWRITEBYTECODE=1
export LC_ALL PYTHONDONTWRITEBYTECODE

if ! command -v "$python" >/dev/null; then
    echo "skipped: $python is not there (PYTHON=path chooses another)"
    exit 0
fi
if ! why=$("$python" -c 'import numpy, h5py' 2>&1); then
    echo "skipped: $python cannot import what the test needs: $(echo "$why" | tail -n 1)"
    exit 0
fi
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
model=$ROOT/datasets/models/code-lm
text=$ROOT/tests/data/code-lm-a.txt
tokens=700
"$LACUNA" capture --model "$model" -p "$text" -n $tokens --layers 0 --maps 0 -q -o "$tmp/t.h5" || exit 1
passed=0 failed=0
# At its default the second filter of spargeattn leaves out what is below 2^-50 of the largest.
for method in streaming:sink=4:window=64 oracle oracle:kind=topk:k=32 \
    spargeattn:profile=paper:theta=-1:tau=0.7; do
    echo "$method"
    if "$LACUNA" eval --model "$model" -m "$method" --task "$text" -n $tokens --windows 1 -q --force \
        --dump-masks "$tmp/m.h5" --dump-nll "$tmp/n.npy" -o "$tmp/d" &&
        "$python" "$here/check_eval.py" "$model" "$tmp/t.h5" "$tmp/m.h5" "$tmp/n.npy"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
    fi
done
echo "quest, ds, twilight"
mkdir "$tmp/rows"
if "$python" "$here/check_rows.py" "$LACUNA" "$tmp/rows"; then
    passed=$((passed + 1))
else
    failed=$((failed + 1))
fi
echo "a method in Python"
export LACUNA ROOT PYTHON="$python"
if sh "$here/method.sh" "$tmp" "$tmp/t.h5"; then
    passed=$((passed + 1))
else
    failed=$((failed + 1))
fi
echo "a choice that the heads of a group share, inside of the model as in its trace"
if "$LACUNA" replay "$tmp/t.h5" -m nsa:block=16:top=8 -q --dump-masks "$tmp/g1.h5" -o "$tmp/g1" &&
    "$LACUNA" eval --model "$model" -m nsa:block=16:top=8 --task "$text" -n $tokens --windows 1 -q \
        --dump-masks "$tmp/g2.h5" -o "$tmp/g2" &&
    PYTHONPATH=$here "$python" -c "
import sys
from check_eval import load_masks
a, b = (load_masks(f'$tmp/g{i}.h5', $tokens) for i in (1, 2))
same = all((a[at] != b[at]).sum() < 0.01 * a[at].sum() for at in a)  # the trace is rounded
shared = all((a[0, h] == a[0, h // 4 * 4]).all() for _, h in a) and (a[0, 0] != a[0, 4]).any()
sys.exit(not (len(a) == 8 and same and shared))"; then
    passed=$((passed + 1))
else
    failed=$((failed + 1))
fi
echo "masks of selectors"
if "$python" "$here/check_selectors.py" "$tmp"; then
    passed=$((passed + 1))
else
    failed=$((failed + 1))
fi
echo "the decode phase"
if "$python" "$here/check_decode.py" "$LACUNA" "$tmp/decode"; then
    passed=$((passed + 1))
else
    failed=$((failed + 1))
fi
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
