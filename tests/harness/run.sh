#!/bin/sh
# run.sh PROGRAM... - run test programs from the repository root, two at a time, show a line for
# each and the output of those that fail, and close with the plain "N passed, N failed".
set -u
# Time limits are there for hangs; a loaded machine must not look like one.
export CK_DEFAULT_TIMEOUT="${CK_DEFAULT_TIMEOUT:-120}" CK_TIMEOUT_MULTIPLIER="${CK_TIMEOUT_MULTIPLIER:-3}"
one() {
    name=$(basename "$1")
    start=$(date +%s)
    "$1" >"$logs/$name.log" 2>&1
    code=$?
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
        echo "  ok    $name: $passed checks, $(($(date +%s) - start)) s"
    else
        echo "  FAIL  $name (exit $code)"
        sed 's/^/        /' "$logs/$name.log" | tail -n 60
    fi
}

if [ "${1:-}" = --one ]; then
    logs=$2
    one "$3"
    exit 0
fi
logs=$(mktemp -d) || exit 1
trap 'rm -rf "$logs"' EXIT
[ $# -gt 0 ] || { echo "run.sh: no test programs given"; exit 1; }
printf '%s\n' "$@" | xargs -P "$(nproc)" -I{} sh "$0" --one "$logs" {}

passed=0 failed=0 counts=0
for f in "$logs"/*.count; do
    read -r p x <"$f"
    passed=$((passed + p)) failed=$((failed + x)) counts=$((counts + 1))
done
[ "$counts" -eq $# ] || failed=$((failed + 1))
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
