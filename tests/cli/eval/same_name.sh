# Two texts of one file name are two tasks: each is compared with its own exact attention, in a row of its own.
model=$ROOT/datasets/models/code-lm
mkdir a b
cp "$ROOT/core/version.c" a/text.c
cp "$ROOT/core/shard.c" b/text.c
for d in a b; do
    "$LACUNA" eval -q --model "$model" --task $d/text.c --tokens 64 --windows 1 -m streaming:sink=4:window=16 -o $d/e
done
"$LACUNA" analyze a/e b/e --group task,method --columns heads_dense --format csv | sed 's/hash=[0-9a-f]\{8\}/hash=8 digits/'
"$LACUNA" analyze a/e --group task,method --columns heads_dense --format csv
