# A damaged line is refused with its name, found by `records check` and taken out by `records repair`;
# the replay does its cell again.
"$LACUNA" capture -q -m "$ROOT/datasets/models/code-lm" --prompt "$ROOT/core/version.c" -n 64 --layers 1 --heads 0-3 --maps 0 -o t.h5
replay() { "$LACUNA" replay -q t.h5 -m dense -o r; echo "exit $?"; }
try() { "$LACUNA" "$@"; echo "exit $?"; }
replay
try records check r
try analyze -q r --columns density_elem | grep -c '^dense'
cp r/records.jsonl whole.jsonl
# One wrong digit of one metric, a line that is no JSON, and a torn last one.
sed -i -e '2s/"density_elem":1/"density_elem":2/' -e '3s/.*/{"trace":/' -e '$s/$/\n{"trace":"xx/' r/records.jsonl
printf %s "$(cat r/records.jsonl)" >torn && mv torn r/records.jsonl
try analyze r
try compare r r
try plot pareto r -o p.png
try report r -o page
replay
try records check r
try records check r --json
try records repair r --dry-run
# A writer is at work.
flock r/records.jsonl "$LACUNA" records repair r; echo "exit $?"
ls r
try records repair r
ls r
try records check -q r
replay
"$LACUNA" compare r whole.jsonl --metrics density_elem,cra_min | tail -1; wc -l <r/records.jsonl
# Earlier repairs keep what they left.
sed -i '1s/"ok"/"skip"/' r/records.jsonl
try records repair r | tail -2
# Lines without a checksum are records of older versions.
sed 's/,"sum":"[^"]*"}$/}/' whole.jsonl >old.jsonl
try records check old.jsonl
# A torn last line is how a killed run ends: the others read on, and say so.
printf '{"trace":"xx' >>old.jsonl
try analyze old.jsonl --columns density_elem | tail -1
try records check old.jsonl | tail -2
# Standard input, and what is no file of records.
try records check - <old.jsonl
try records repair - <old.jsonl
try records check /dev/zero
mkfifo pipe
try analyze pipe
echo text >text.jsonl
try records repair text.jsonl
cat text.jsonl
try records
try records chekc r
try records check
# A calibration and a manifest are sealed too.
"$LACUNA" calibrate -q sale t.h5 -o c.json
for f in c.json r/manifest.json; do tail -2 $f; done
sed -i 's/"seed": 0/"seed": 1/' c.json
"$LACUNA" replay -q t.h5 -m sale:calib=c.json -o s; echo "exit $?"
sed -i 's/"status": "ok"/"status": "OK"/' r/manifest.json
replay
