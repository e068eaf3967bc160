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
try --model "$model" -o d -m streaming --task t.txt --depth 0.5
try --model "$model" -o d -m streaming --task t.txt --chat 'a {prompt}'
try --model "$model" -o d -m streaming --task needle -n 256 --windows 2
try --model "$model" -o d -m streaming --task needle -n 256 --template '{input}'
try --model "$model" -o d -m "mask:file=$ROOT/tests/data/masks/five.npy:unit=1x1" --task t.txt -n 128
ls
echo 'int b;' >cal.txt
try --model "$model" -o d -m streaming@density_elem=0.2:per=model --task t.txt
try --model "$model" -o d -m streaming@density_elem=0.2 --decode method --task t.txt
try --model "$model" -o d -m streaming --task t.txt --samples 3
try --model "$model" -o d -m streaming --task t.txt --shard 2/2
try --model "$model" -o d -m streaming --task t.txt --prefill-chunk 64 --dump-masks m.h5
try --model "$model" -o d -m spargeattn --task t.txt --calibrate-inside t.txt
cp t.txt same.txt
try --model "$model" -o d -m spargeattn --task t.txt --calibrate-inside same.txt
try --model "$model" -o e -m streaming --task t.txt --calibrate-inside cal.txt
try --model "$model" -o e -m spargeattn --task t.txt --calibrate-inside short.txt
echo 'int a;' >short.txt
try --model "$model" -o e -m spargeattn --task t.txt --calibrate-inside short.txt
try --model "$model" -o e:f -m spargeattn --task t.txt --calibrate-inside cal.txt
ls
