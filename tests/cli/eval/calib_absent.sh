# A calibration of a part of the heads: the others keep what was given, and that is said.
model=$ROOT/datasets/models/code-lm
"$LACUNA" capture -q -m "$model" --prompt "$ROOT/core/shard.c" -n 256 --layers 0 --maps 0 -o t.h5
"$LACUNA" calibrate -q flexprefill t.h5 -o c.json
"$LACUNA" eval -q --model "$model" --task "$ROOT/core/version.c" --tokens 64 --windows 1 -m flexprefill:calib=c.json -o e
grep -c 'calib=absent for' e/records.jsonl
