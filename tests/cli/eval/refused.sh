# What cannot be done is refused by name, before anything is written.
model=$ROOT/datasets/models/code-lm
head -c 2000 "$ROOT/tests/data/code-lm-a.txt" >t.txt
try()
{
    "$LACUNA" eval "$@"
    echo "exit $?"
}
try
try --model "$model"
try --model "$model" -o d
try --model "$model" -o d -m streaming
try --model "$model" -o d -m streaming --task nothing.txt
try --model "$model" -o d -m streaming --task t.txt -n 4K
try --model "$model" -o d -m streaming --task t.txt -n 64K
try --model "$model" -o d -m streaming --task t.txt -n 12x
try --model "$model" -o d -m streaming --task t.txt -n 128 --stride 128
try --model "$model" -o d -m streaming --task t.txt -n 128 --score-from 128
try --model "$model" -o d -m streaming --task t.txt --dense-layers 6
try --model "$model" -o d -m streaming --task t.txt --dense-heads 1:8
try --model "$model" -o d -m streaming --task t.txt --dense-last many
try --model "$model" -o d -m streaming --task t.txt --task t.txt --dump-nll x.npy
try --model "$model" -o d -m streaming --task t.txt --dump-nll t.txt
ls
