# A table from a trace that is given: run, nothing to do, continue after a kill, explain.
sums() { find out/pages -type f | LC_ALL=C sort | xargs cksum; }
"$LACUNA" capture --model "$ROOT/datasets/models/video-dit" --size 4x32x48 --steps 50 \
    --capture-steps 0,15,30 -q -o clip.h5
"$LACUNA" reproduce fg-attn:2 spargeattn:f1 --quick --trace dit=clip.h5 -o out --dry-run
[ -e out ] || echo "a dry run makes nothing"
"$LACUNA" reproduce fg-attn:2 spargeattn:f1 --quick --trace dit=clip.h5 -o out -q
echo "exit $?"
ls out out/pages
grep -c 'a other model, b other length, c other prompts' out/pages/fg-attn-2.md
grep -cE 'agrees|differs' out/pages/fg-attn-2.csv
sums >first
"$LACUNA" reproduce fg-attn:2 spargeattn:f1 --quick --trace dit=clip.h5 -o out 2>&1
sums | cmp - first && echo "the second call changes nothing"

# A kill leaves a folder that is not finished, in it records of which the last may be torn.
for job in out/jobs/????????????????; do job=${job##*/}; done
mv "out/jobs/$job" "out/jobs/$job.part"
head -n 7 "out/jobs/$job.part/records.jsonl" >part && mv part "out/jobs/$job.part/records.jsonl"
printf '{"trace":' >>"out/jobs/$job.part/records.jsonl"
"$LACUNA" reproduce fg-attn:2 spargeattn:f1 --quick --trace dit=clip.h5 -o out -q
sums | cmp - first && echo "and neither does a kill"

"$LACUNA" analyze out --explain 'fg-attn:2:64×64:video-dit' | sed 's/[0-9a-f]\{16\}/ID/g; s|replay [^ ]*clip.h5|replay clip.h5|' |
    grep -vE '^(ours|model|weights|value|lo|hi|sd)'
"$LACUNA" analyze out --explain fg-attn:2:64x64:video-dit
"$LACUNA" analyze out --explain 'fg-attn:2:64×64:video-dt'
"$LACUNA" analyze out --explain spargeattn:9

# A calibration that is damaged fails what reads it, and no other table.
"$LACUNA" reproduce spargeattn:f14 --quick --trace dit=clip.h5 -o out -q
for calib in out/jobs/*/calib.json; do echo '{"sum": "0"}' >"$calib"; done
for replay in $(grep -l 'calib=' out/jobs/*/records.jsonl); do rm -r "${replay%/*}"; done
"$LACUNA" reproduce spargeattn:f14 fg-attn:2 --quick --trace dit=clip.h5 -o out -q
echo "exit $?"
grep -o 'Failed: .*' out/pages/*.md | sed 's|Failed: \([a-z, ]*\):.*calib.json|Failed: \1: calib.json|'
