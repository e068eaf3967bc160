#!/bin/sh
# variants.sh PROGRAM NAME... - what a test prints must depend neither on the processor nor on the
# locale: run files of tests/unit and the command-line tests as they would run on other machines.
#
#   LACUNA=build/lacuna [VARIANTS=all] sh tests/harness/variants.sh build/tests/check test_conform ...
#
# A variant is a family of OpenBLAS's kernels that this processor can run (they round differently),
# a C library that does not use FMA, or a locale with a decimal comma. One run has three at once: the
# family with the narrowest vectors, no FMA, the comma. With VARIANTS=all every one runs by itself.
# From the repository root; prints a line per variant, the output of what failed, and "N passed, N
# failed".
set -u
here=$(dirname "$0")

# has FLAG...: has the processor all of these?
has()
{
    for flag in "$@"; do
        case " $flags " in
        *" $flag "*) ;;
        *) return 1 ;;
        esac
    done
}

# Families of kernels by OpenBLAS's names, each behind the instructions that it uses: OpenBLAS does
# not check what OPENBLAS_CORETYPE asks for.
families()
{
    has pni && echo Prescott
    has sse4_2 && echo Nehalem
    has avx && echo Sandybridge
    has avx2 fma && echo Haswell && echo Zen
    has avx512f avx512dq avx512bw avx512vl && echo SkylakeX
    has avx512f avx512dq avx512bw avx512vl avx512_bf16 && echo Cooperlake
    has asimd && echo ARMV8 && echo CORTEXA57
}

# family ENV-ARGUMENT...: the one that OpenBLAS takes, in lower case.
family()
{
    env "$@" "$LACUNA" version 2>/dev/null | sed -n 's/^blas kernels //p' |
        tr '[:upper:]' '[:lower:]'
}

# comma_locale DIR: the name of a locale with a decimal comma that is made in DIR. Where the sources
# of locales are not installed, it is C.UTF-8 with the point of its numbers exchanged.
comma_locale()
{
    name=de_DE.UTF-8
    if ! localedef --no-archive -i de_DE -f UTF-8 "$1/$name" >/dev/null 2>&1; then
        rm -rf "${1:?}/$name"
        cp -R /usr/lib/locale/C.utf8 "$1/$name" 2>/dev/null || return 1
        LC_ALL=C tr . , </usr/lib/locale/C.utf8/LC_NUMERIC >"$1/$name/LC_NUMERIC"
    fi
    [ "$(LOCPATH=$1 LC_ALL=$name locale decimal_point 2>/dev/null)" = , ] && echo "$name"
}

# single DIR: a line per variant, its name and its variables.
single()
{
    flags=$(sed -n 's/^\(flags\|Features\)[[:space:]]*: //p' /proc/cpuinfo 2>/dev/null | head -n 1)
    usual=$(family -u OPENBLAS_CORETYPE)
    for name in $(families); do
        got=$(family OPENBLAS_CORETYPE="$name")
        [ "$got" = "$usual" ] || [ "$got" != "$(echo "$name" | tr '[:upper:]' '[:lower:]')" ] ||
            echo "$name OPENBLAS_CORETYPE=$name"
    done
    ! has fma || echo "without-FMA GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4"
    comma_locale "$1" | sed 's/.*/decimal-comma LC_ALL=& CASE_LOCALE=&/'
}

# variants DIR: those of single; without VARIANTS=all the first family of kernels, the C library
# without FMA and the locale, as one: it is furthest from the usual, and a run takes a minute.
variants()
{
    if [ "${VARIANTS-}" = all ]; then
        single "$1"
        return
    fi
    single "$1" | awk '
        NR > 1 && /^(without-FMA|decimal-comma) / { name = name "+" $1; sub(/^[^ ]+/, ""); vars = vars $0; next }
        NR == 1 { name = $1; sub(/^[^ ]+/, ""); vars = $0; next }
        END { if (NR) print name vars }'
}

# run_variant NAME VARIABLE=VALUE...: its line, and what failed; counts go to $tmp/counts.
run_variant()
{
    name=$1 log=$tmp/log start=$(date +%s)
    shift
    {
        # shellcheck disable=SC2086 # names without spaces
        env "$@" sh "$here/run.sh" $tests
        # shellcheck disable=SC2086
        env "$@" sh "$here/../cli/run.sh" $cases
    } >"$log" 2>&1 </dev/null
    counts=$(sed -n 's/^\(cli: \)\{0,1\}\([0-9]*\) passed, \([0-9]*\) failed$/\2 \3/p' "$log" |
        awk '{ p += $1; f += $2 } END { print p + 0, f + (NR != 2) }')
    echo "$counts" >>"$tmp/counts"
    if [ "${counts#* }" -eq 0 ]; then
        echo "  ok    $name: ${counts% *} checks, $(($(date +%s) - start)) s"
    else
        echo "  FAIL  $name: ${counts#* } checks with $*"
        grep -v '^  ok ' "$log" | sed 's/^/        /'
    fi
}

[ $# -gt 1 ] || { echo "usage: variants.sh build/tests/check test_NAME..."; exit 1; }
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM
tests=$*
# All but the longest whose subject is the same everywhere: widths of tables, drawings and kills of
# `reproduce`, files that it is given, and generated tasks, whose numbers test_evaltasks looks at.
cases=$(cd "$here/../cli" && printf '%s\n' */*.sh | sed 's/\.sh$//' |
    grep -vxE 'analyze/table_widths|reproduce/(figures|kill|tasks)|eval/tasks')
export LACUNA LOCPATH="$tmp"
variants "$tmp" >"$tmp/variants"
[ -s "$tmp/variants" ] || echo "as-it-is A=B" >"$tmp/variants" # this machine can be no other
while read -r line; do
    # shellcheck disable=SC2086 # its words
    run_variant $line
done <"$tmp/variants"
awk '{ p += $1; f += $2 } END { print p " passed, " f " failed"; exit f > 0 || p == 0 }' "$tmp/counts"
