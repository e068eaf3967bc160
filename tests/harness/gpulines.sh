#!/bin/sh
# Which phases of a method run where in `replay --backend cuda`: the last line of its page in
# doc/methods, as `lacuna list methods` has it from the registries.
#
#   LACUNA=build/lacuna sh tests/harness/gpulines.sh [--update]
#
# Names the pages whose line differs, exit status 1; --update writes the lines.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck disable=SC2016 # no expansion is meant
mark='On a GPU, by `lacuna list methods -v`: '
bad=0
for name in $("$LACUNA" list methods | sed -n 's/^\([a-z][a-z0-9-]*\)  .*/\1/p'); do
    page=$root/doc/methods/$name.md
    line=$mark$("$LACUNA" list methods "$name" --json | tr -d '\n' |
        sed 's/.*"on a GPU": \[ *\([^]]*[^] ]\) *\].*/\1/; s/", *"/; /g; s/"//g').
    [ "$(tail -n 1 "$page")" = "$line" ] && continue
    if [ "${1-}" = --update ]; then
        grep -vF "$mark" "$page" | sed -e :a -e '/^\n*$/{$d;N;ba' -e '}' >"$page.new"
        printf '\n%s\n' "$line" >>"$page.new"
        mv "$page.new" "$page"
    else
        echo "doc/methods/$name.md: its last line is not: $line"
        bad=1
    fi
done
exit $bad
