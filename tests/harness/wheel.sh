#!/bin/sh
# The wheel in a Python environment of its own, with that environment alone on the path: the program runs with its data, asks
# for nothing but the C library, and Python reads its trace. Needs MAKE and PYTHON; run from the repository root.
set -eu
python=${PYTHON:-python3}
if ! "$python" -c 'import setuptools, wheel, venv' 2>/dev/null; then
    echo "skipped: $python lacks setuptools or wheel (PYTHON=path chooses another)"
    exit 0
fi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
${MAKE:-make} --no-print-directory wheel PYTHON="$python" >"$tmp/log" 2>&1 || { cat "$tmp/log"; exit 1; }
wheel=$(sed -n 's/^Repacking wheel as \(.*\.whl\)\.\.\.OK$/\1/p' "$tmp/log")
"$python" -m venv "$tmp/venv"
if ! "$tmp/venv/bin/pip" install -q "$wheel" >"$tmp/log" 2>&1; then
    echo "skipped: pip cannot install NumPy and h5py: $(tail -n 1 "$tmp/log")"
    exit 0
fi
other=$(readelf -d "$tmp/venv/bin/lacuna" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | grep -v '^lib[cm]\.so\.6$\|^ld-linux' || true)
[ -z "$other" ] || { echo "FAIL the program asks for $other"; exit 1; }
cp README.md "$tmp" && cd "$tmp"
bare() { env -i PATH="$tmp/venv/bin" "$@"; }
bare lacuna capture -q --model venv/share/lacuna/models/code-lm --prompt README.md --tokens 64 --layers 0 -o t.h5
bare lacuna replay -q t.h5 -m dense -m oracle -o r
bare lacuna analyze r >table.txt && [ -s table.txt ]
bare lacuna reproduce --list >list.txt && [ -s list.txt ]
if bare lacuna plot heatmap t.h5 -o h.png 2>err; then exit 1; fi
grep -q 'gnuplot not found: install gnuplot-nox' err
bare python -c 'import lacuna_trace; assert not lacuna_trace.open_trace("t.h5").verify()'
echo "1 passed, 0 failed"
