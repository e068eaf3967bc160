# A calibration of a part of the heads: the others keep what was given, and that is said.
model=$ROOT/datasets/models/code-lm
"$LACUNA" capture -q -m "$model" --prompt "$ROOT/core/shard.c" -n 256 --layers 0 --maps 0 -o t.h5
"$LACUNA" calibrate -q sampleattention t.h5 -o c.json
"$LACUNA" eval -q --model "$model" --task "$ROOT/core/version.c" --tokens 64 --windows 1 -m sampleattention:calib=c.json -o e
grep -c 'calib=absent for' e/records.jsonl
# A grid searched inside the model: what it found is in the file, the table of all that it judged is not.
for i in 1 2 3 4 5 6 7 8; do cat "$ROOT/core/version.c"; done >text.c
"$LACUNA" eval -q --model "$model" --task "$ROOT/core/shard.c" --tokens 64 --windows 1 -m sampleattention \
    --calibrate-inside text.c --calibrate-tokens 256 -o f && grep -c '"alpha_c"' f/*.json | grep -v ':0' | sed 's/.*:/alpha_c: /'
grep -l '"grid"' f/*.json || echo 'no grid'
