#!/bin/sh
# make_prompt.sh FOLDER... - print the C sources of these folders of the project as one prompt, each
# file behind a line "// path", as in the text that code-lm was trained on.
set -eu
[ $# -gt 0 ] || { echo "usage: make_prompt.sh FOLDER..." >&2; exit 2; }
cd "$(dirname "$0")/../.."
for folder in "$@"; do
    [ -d "$folder" ] || { echo "make_prompt.sh: the project has no folder '$folder'" >&2; exit 2; }
    for file in "$folder"/*.h "$folder"/*.c; do
        [ -f "$file" ] || continue
        printf '// %s\n' "$file"
        cat "$file"
    done
done
