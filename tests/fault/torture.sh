#!/bin/sh
# torture.sh short|long [SEED] - fault injection over the chain of commands (fault.c), two processes
# at a time, as one table: case, step, tried, failed.
#
# short: some cases of every kind, for `make check`. long: every call and every allocation, with the
# sanitised program. BUILD is the build folder; its sanitised
# sister BUILD-san is used where it is built. Failed cases are printed with the command that repeats
# them. Closes with "N passed, N failed"; exit status 1 if one failed.
set -u
mode=${1:-short} seed=${2:-1} build=${BUILD:-build}
start=$(date +%s)
logs=$(mktemp -d) || exit 1
trap 'rm -rf "$logs"' EXIT
trap 'exit 130' INT TERM

# job NAME COMMAND...: one line for xargs.
job()
{
    name=$1
    shift
    echo "$* >$logs/$name 2>&1 || echo \"exit \$?\" >>$logs/$name"
}

san="env LACUNA=$build-san/lacuna ASAN_OPTIONS=verify_asan_link_order=0:exitcode=97 \
UBSAN_OPTIONS=halt_on_error=1:exitcode=97"
driver="$build/tests/fault/fault --seed $seed"
fault="env LACUNA=$build/lacuna $driver"
if [ "$mode" = short ]; then
    job 1-calls "$fault" calls clock --tries 4
    job 2-memory "$fault" memory --tries 4
    job 3-kills "$fault" kills --tries 2
    job 4-cuts "$fault" cuts flips --tries 4
else
    job 2-memory "$fault" memory --tries 5000
    job 4-kills "$fault" kills
    job 1-calls "$fault" calls clock
    job 5-cuts "$fault" cuts
    job 6-flips "$fault" flips
    [ -x "$build-san/lacuna" ] && job 3-san "$san $driver" memory --tries 40
    job 7-flips "$build/tests/check" test_flips
fi >"$logs/jobs"
tr '\n' '\0' <"$logs/jobs" | xargs -0 -P 2 -I{} sh -c '{}'

# Rows of the driver as they are; those of the other programs made like them.
awk -v seed="$seed" '
    function row(kind, step, n, bad) {
        printf "  %-8s %-18s %9d tried %5d failed\n", kind, step, n, bad
        tried += n; failed += bad
    }
    $4 == "tried" { row(FILENAME ~ /san$/ ? "asan" : $1, $2, $3, $9); next }
    /^FAILED/ { print; next }
    / bits flipped: / { row("bits", substr($1, 1, length($1) - 1), $2, $(NF - 1)); next }
    /^fault: seed|^Running suite|^[0-9]+%: Checks: .*Failures: 0, Errors: 0/ { next }
    /^exit 1$/ { if (!failed) failed = 1; next }
    { print; other = 1 }
    END {
        if (other && !failed) failed = 1
        printf "torture: seed %s\n", seed
        print tried - failed " passed, " failed " failed"
        exit failed > 0 || tried == 0
    }' "$logs"/[0-9]*
code=$?
echo "$(($(date +%s) - start)) s" >&2
exit $code
