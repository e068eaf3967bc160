# Generated tasks: grades, what is done already, tables; decoding with the method.
model=$ROOT/datasets/models/code-lm
"$LACUNA" eval --model "$model" -m streaming:sink=4:window=64 --task needle --task chain:h=2 --task copy \
    -n 512 --depth 0,1 --trials 2 --seed 7 --progress none -o d
"$LACUNA" eval --model "$model" -m streaming:sink=4:window=64 --task needle -n 512 --depth 0,1 --trials 2 \
    --seed 7 -o d --dry-run
"$LACUNA" eval --model "$model" -m streaming:sink=4:window=64 --decode method --dense-last question \
    --task needle -n 512 --depth 1 --trials 1 --seed 7 -o d
"$LACUNA" analyze d --group task,tokens,depth,setting,method --columns needle_acc,chain_acc,density_elem
grep -c . d/predictions.jsonl
sed -n 's/.*"prediction":"\([^"]*\)".*/\1/p' d/predictions.jsonl | head -2
