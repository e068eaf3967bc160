# Records of models in comparisons: another text, another setting and another sample are other cells. No plan is made of them.
model=$ROOT/datasets/models/code-lm
run() { "$LACUNA" eval -q --model "$model" --tokens 64 -m streaming:sink=4:window=16 "$@"; }
compare() { "$LACUNA" compare "$@" | tail -2 | head -1; }
run --task "$ROOT/core/version.c" --windows 1 -o a
run --task "$ROOT/core/log.h" --windows 1 -o b
run --task "$ROOT/core/version.c" --windows 1 --dense-layers 0-3 -o c
run --task needle --depth 0 --trials 2 -o n
compare a b
compare a c
compare n n
"$LACUNA" choose a --limit 'kl_mean<=10' --cost density_elem -o plan.json
echo "exit $?"
