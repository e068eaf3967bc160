#!/bin/sh
# Runs tests/cli/<group>/<case>.sh and compares with the files beside it.
#
#   LACUNA=build/lacuna sh tests/cli/run.sh [--update] [GROUP | GROUP/CASE]...
#
# A case is a shell script that starts in an empty directory of its own with LACUNA (the program,
# absolute), ROOT (the repository) and nothing on standard input. <case>.stdout and <case>.stderr
# hold what it must print (absent: nothing), <case>.exit its status (absent: 0). In them a line
# "..." stands for any lines, "*" within a line for any text. --update rewrites what differs.
# Cases run JOBS at a time (default: one more than processors, as some wait), with the number format
# and the character set of CASE_LOCALE (default C) and sorting and messages of C. A program of a case
# may take 300 s of processor time; a case that waits is ended after an hour.
# Prints "N passed, N failed"; exit status 1 if a case failed or none ran.
set -u

here=$(cd "$(dirname "$0")" && pwd)
if [ "${1-}" = --one ]; then
    update=$2 tmp=$3 name=$4
else
    update=0
    if [ "${1-}" = --update ]; then
        update=1
        shift
    fi
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
    unset SOURCE_DATE_EPOCH GNUTERM
    export LACUNA_DATA="$ROOT/datasets" # the program may lie anywhere
    tmp=$(mktemp -d) || exit 1
    trap 'rm -rf "$tmp"' EXIT
    trap 'exit 130' INT TERM
fi

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
    if [ "$update" -eq 1 ]; then
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

# in_locale COMMAND...: LC_ALL would override the parts that have to stay those of C.
in_locale()
{
    if [ "${CASE_LOCALE:-C}" = C ]; then
        "$@"
    else
        env -u LC_ALL LANG="$CASE_LOCALE" LC_NUMERIC="$CASE_LOCALE" LC_CTYPE="$CASE_LOCALE" \
            LC_COLLATE=C LC_MESSAGES=C "$@"
    fi
}

# run_case BASE: in $tmp, which is this case's own; 0 if all is as expected.
run_case()
{
    mkdir "$tmp/work"
    # shellcheck disable=SC3045 # dash has it, too
    (cd "$tmp/work" && ulimit -t 300 && in_locale timeout 3600 sh "$1.sh") >"$tmp/out" 2>"$tmp/err" </dev/null
    echo $? >"$tmp/status"
    ok=0
    compare "$1" exit "$tmp/status" 0 || ok=1
    compare "$1" stdout "$tmp/out" "" || ok=1
    compare "$1" stderr "$tmp/err" "" || ok=1
    return $ok
}

# The second life of this script: one case in a directory of its own; its report comes in one piece.
if [ "${1-}" = --one ]; then
    tmp=$tmp/$(echo "$name" | tr / .)
    mkdir "$tmp"
    if run_case "$here/$name" >"$tmp/report"; then
        echo >"$tmp/passed"
    fi
    cat "$tmp/report"
    rm -rf "$tmp/work"
    exit 0
fi

# The cases of the arguments; all without one.
(cd "$here" && ls -- */*.sh) | sed 's/\.sh$//' >"$tmp/all"
[ $# -gt 0 ] || set -- '.*'
for pattern in "$@"; do
    pattern=${pattern%.sh}
    if ! grep -x -e "$pattern" -e "$pattern/.*" "$tmp/all" >>"$tmp/chosen"; then
        echo "cli: no case or group is called $pattern" >&2
        exit 1
    fi
done
sort -u "$tmp/chosen" >"$tmp/names"
xargs -P "${JOBS:-$(($(nproc) + 1))}" -I{} sh "$0" --one "$update" "$tmp" {} <"$tmp/names"
count=$(wc -l <"$tmp/names")
passed=$(find "$tmp" -mindepth 2 -maxdepth 2 -name passed | wc -l)
echo "cli: $passed passed, $((count - passed)) failed"
[ "$passed" -eq "$count" ] && [ "$passed" -gt 0 ]
