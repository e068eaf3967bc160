#!/bin/sh
# Runs tests/cli/<group>/<case>.sh and compares with the files beside it.
#
#   LACUNA=build/lacuna sh tests/cli/run.sh [--update] [GROUP | GROUP/CASE]...
#
# A case is a shell script that starts in an empty directory of its own with LACUNA (the program,
# absolute), ROOT (the repository) and nothing on standard input. <case>.stdout and <case>.stderr
# hold what it must print (absent: nothing), <case>.exit its status (absent: 0). In them a line
# "..." stands for any lines, "*" within a line for any text. --update rewrites what differs.
# Prints "N passed, N failed"; exit status 1 if a case failed or none ran.
set -u

update=0
if [ "${1-}" = --update ]; then
    update=1
    shift
fi
here=$(cd "$(dirname "$0")" && pwd)
ROOT=$(cd "$here/../.." && pwd)
LACUNA=${LACUNA:-$ROOT/build/lacuna}
case $LACUNA in
/*) ;;
*) LACUNA=$(pwd)/$LACUNA ;;
esac
export ROOT LACUNA LC_ALL=C
if [ ! -x "$LACUNA" ]; then
    echo "cli: $LACUNA is not there; build it first" >&2
    exit 1
fi
for name in $(env | sed -n 's/^\(LACUNA_[A-Z_]*\|SLURM_[A-Z_]*\|OMPI_[A-Z_]*\|PMI_[A-Z_]*\)=.*/\1/p'); do
    unset "$name"
done
unset SOURCE_DATE_EPOCH

tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM

# matches EXPECTED ACTUAL: line by line, with "..." and "*".
matches()
{
    awk '
    function fits(pattern, text,    n, i, part, at)
    {
        if (pattern == text)
            return 1
        n = split(pattern, part, /[*]/)
        if (n < 2 || substr(text, 1, length(part[1])) != part[1])
            return 0
        text = substr(text, length(part[1]) + 1)
        for (i = 2; i < n; i++) {
            at = index(text, part[i])
            if (at == 0 && part[i] != "")
                return 0
            if (part[i] != "")
                text = substr(text, at + length(part[i]))
        }
        return length(text) >= length(part[n]) &&
               substr(text, length(text) - length(part[n]) + 1) == part[n]
    }
    BEGIN { w = g = 0 }
    FILENAME == ARGV[1] { want[++w] = $0; next }
    { got[++g] = $0 }
    END {
        # can[j]: the expected lines so far match the first j actual lines
        can[0] = 1
        for (i = 1; i <= w; i++) {
            for (j = 0; j <= g; j++)
                if (want[i] == "...")
                    new[j] = can[j] || (j > 0 && new[j - 1])
                else
                    new[j] = j > 0 && can[j - 1] && fits(want[i], got[j])
            for (j = 0; j <= g; j++)
                can[j] = new[j]
        }
        exit !can[g]
    }' "$1" "$2"
}

# compare CASE STREAM ACTUAL DEFAULT: 0 if as expected (or updated).
compare()
{
    want=$1.$2
    if [ ! -f "$want" ]; then
        want=$tmp/default
        printf '%s' "$4" >"$want"
    fi
    matches "$want" "$3" && return 0
    if [ $update -eq 1 ]; then
        if [ "$(cat "$3")" = "$4" ]; then
            rm -f "$1.$2"
        else
            cp "$3" "$1.$2"
        fi
        echo "updated ${1#"$here"/}.$2"
        return 0
    fi
    echo "FAILED ${1#"$here"/}: $2"
    diff -u "$want" "$3" | sed 1,2d
    return 1
}

run_case()
{
    base=${1%.sh}
    dir=$tmp/work
    mkdir "$dir"
    (cd "$dir" && timeout 300 sh "$1") >"$tmp/out" 2>"$tmp/err" </dev/null
    echo $? >"$tmp/status"
    rm -rf "$dir"
    ok=0
    compare "$base" exit "$tmp/status" 0 || ok=1
    compare "$base" stdout "$tmp/out" "" || ok=1
    compare "$base" stderr "$tmp/err" "" || ok=1
    return $ok
}

passed=0
failed=0
[ $# -gt 0 ] || set -- ''
for pattern in "$@"; do
    for case in "$here"/*/*.sh; do
        name=${case#"$here"/}
        case $name in
        "$pattern" | "$pattern".sh | "$pattern"/*) ;;
        *) [ -z "$pattern" ] || continue ;;
        esac
        if run_case "$case"; then
            passed=$((passed + 1))
        else
            failed=$((failed + 1))
        fi
    done
done
echo "cli: $passed passed, $failed failed"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
