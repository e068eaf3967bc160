#!/bin/sh
# run.sh - other HDF5 programs read what lacuna writes, and lacuna reads their copies.
#
#   LACUNA=build/lacuna [PYTHON=python3] sh tests/h5/run.sh
#
# PYTHON has h5py and numpy; h5dump and h5repack are those of hdf5-tools. Prints a line per file and
# program, then "N passed, N failed". What is missing is skipped, with a line that says so.
set -u
here=$(cd "$(dirname "$0")" && pwd)
ROOT=$(cd "$here/../.." && pwd)
LACUNA=${LACUNA:-$ROOT/build/lacuna}
case $LACUNA in
/*) ;;
*) LACUNA=$(pwd)/$LACUNA ;;
esac
python=${PYTHON:-python3}
PYTHONDONTWRITEBYTECODE=1
LC_ALL=C.UTF-8
export ROOT LACUNA PYTHONDONTWRITEBYTECODE LC_ALL

if ! command -v "$python" >/dev/null; then
    echo "skipped: $python is not there (PYTHON=path chooses another)"
    exit 0
fi
if ! why=$("$python" -c 'import numpy, h5py' 2>&1); then
    echo "skipped: $python cannot import what the test needs: $(echo "$why" | tail -n 1)"
    exit 0
fi
exec "$python" "$here/interop.py"
