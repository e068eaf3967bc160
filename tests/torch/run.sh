#!/bin/sh
# run.sh [NAME]... - tests of capture/torch: all, or those that unittest knows by these names.
#
#   LACUNA=build/lacuna [PYTHON=python3] sh tests/torch/run.sh
#   ... sh tests/torch/run.sh test_language.Families.test_llama
#
# Prints "N passed, N failed"; without a Python that has the packages, one line "skipped: ..." and
# exit status 0.
set -u
here=$(cd "$(dirname "$0")" && pwd)
ROOT=$(cd "$here/../.." && pwd)
LACUNA=${LACUNA:-$ROOT/build/lacuna}
case $LACUNA in
/*) ;;
*) LACUNA=$(pwd)/$LACUNA ;;
esac
python=${PYTHON:-python3}
PYTHONPATH=$ROOT/capture/torch:$here
PYTHONDONTWRITEBYTECODE=1
HF_HUB_OFFLINE=1
OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
LC_ALL=C.UTF-8
export ROOT LACUNA PYTHONPATH PYTHONDONTWRITEBYTECODE HF_HUB_OFFLINE OMP_NUM_THREADS LC_ALL
unset DIFFUSERS_ATTN_BACKEND

if ! command -v "$python" >/dev/null; then
    echo "skipped: $python is not there (PYTHON=path chooses another)"
    exit 0
fi
if ! why=$("$python" -c 'import numpy, h5py, torch, transformers, diffusers' 2>&1); then
    echo "skipped: $python cannot import what the tests need: $(echo "$why" | tail -n 1)"
    exit 0
fi
exec "$python" -W ignore "$here/all.py" "$@"
