#!/bin/sh
# run.sh PROGRAM NAME... - run these files of tests/unit (PROGRAM is build/tests/check) from the
# repository root, one per processor at a time, show a line for each and the output of those that
# fail, and close with the plain "N passed, N failed".
set -u

one()
{
    name=$2
    "$1" "$name" >"$logs/$name.log" 2>&1
    code=$?
    times >"$logs/$name.times" # of this shell, and in the second line of what it ran
    cpu=$(sed -n '2s/[ms]/ /gp' "$logs/$name.times" | awk '{ printf "%.0f", 60 * ($1 + $3) + $2 + $4 }')
    summary=$(grep -E '^[0-9]+%: Checks:' "$logs/$name.log" | tail -n 1)
    passed=0 failed=1
    if [ -n "$summary" ]; then
        checks=$(echo "$summary" | sed -E 's/.*Checks: ([0-9]+).*/\1/')
        failures=$(echo "$summary" | sed -E 's/.*Failures: ([0-9]+).*/\1/')
        errors=$(echo "$summary" | sed -E 's/.*Errors: ([0-9]+).*/\1/')
        failed=$((failures + errors))
        passed=$((checks - failed))
        # A program that dies after its summary, or ran nothing, has not passed.
        [ "$code" -ne 0 ] && [ "$failed" -eq 0 ] && failed=1
        [ "$checks" -eq 0 ] && failed=1
    fi
    echo "$passed $failed" >"$logs/$name.count"
    if [ "$failed" -eq 0 ]; then
        echo "  ok    $name: $passed checks, $cpu s"
    else
        echo "  FAIL  $name (exit $code)"
        sed 's/^/        /' "$logs/$name.log" | tail -n 60
    fi
}

if [ "${1:-}" = --one ]; then
    logs=$2
    one "$3" "$4"
    exit 0
fi
logs=$(mktemp -d) || exit 1
trap 'rm -rf "$logs"' EXIT
[ $# -gt 1 ] || { echo "usage: run.sh build/tests/check test_NAME..."; exit 1; }
program=$1
shift
printf '%s\n' "$@" | xargs -P "$(nproc)" -I{} sh "$0" --one "$logs" "$program" {}

passed=0 failed=0 counts=0
for f in "$logs"/*.count; do
    read -r p x <"$f"
    passed=$((passed + p)) failed=$((failed + x)) counts=$((counts + 1))
done
[ "$counts" -eq $# ] || failed=$((failed + 1))
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
