#!/bin/sh
# check.sh PART... - run every part of `make check`, whatever became of the ones before it, and
# close with a line per part and the sum, "N passed, N failed". From the repository root, with MAKE
# set; a part is the make target check-PART and may print counts of its own in that form.
set -u
logs=$(mktemp -d) || exit 1
trap 'rm -rf "$logs"' EXIT
trap 'exit 130' INT TERM

# run_part PART: shown as it comes; its line of the summary goes to $logs/summary.
run_part()
{
    start=$(date +%s) code=1
    echo "check-$1"
    rm -f "$logs/code"
    {
        $MAKE --no-print-directory -k "check-$1"
        echo $? >"$logs/code"
        times >"$logs/times"
    } 2>&1 | tee "$logs/log"
    [ -f "$logs/code" ] && read -r code <"$logs/code"
    counts=$(sed -n 's/^\(cli: \)\{0,1\}\([0-9]*\) passed, \([0-9]*\) failed$/\2 \3/p' "$logs/log" |
        tail -n 1)
    passed=${counts% *} failed=${counts#* }
    # A part without counts is one check; none that fails has only passed checks.
    [ -n "$counts" ] || passed=$((code == 0)) failed=0
    [ "$code" -eq 0 ] || [ "$failed" -gt 0 ] || failed=1
    cpu=$(sed -n '2s/[ms]/ /gp' "$logs/times" | awk '{ printf "%.0f", 60 * ($1 + $3) + $2 + $4 }')
    printf '  %-10s %6d passed, %d failed, %d s, %d s of processor time\n' \
        "$1" "$passed" "$failed" $(($(date +%s) - start)) "$cpu" >>"$logs/summary"
}

for part in "$@"; do
    run_part "$part"
done
echo "summary"
cat "$logs/summary"
awk '{ p += $2; f += $4 } END { print p " passed, " f " failed"; exit f > 0 || p == 0 }' "$logs/summary"
