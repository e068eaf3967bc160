# From noise to tables and a figure of mask stability, on a clip of 24 tokens.
set -e
"$LACUNA" capture -q --model "$ROOT/datasets/models/video-dit" --size 2x24x32 --steps 4 --maps 6 -o v.h5
"$LACUNA" replay -q v.h5 -m dense -m fg-attn:M=16:refresh=4:compare=1 --layers 0,5 -o out
"$LACUNA" analyze -q out --table stability --format csv | cut -d, -f1-5
"$LACUNA" analyze -q out --table blocks --format csv >blocks.csv
cut -d, -f1,2 blocks.csv
head -n 1 blocks.csv | tr , "\n" | grep -E "^below_[bs][0-9]+$"
"$LACUNA" plot -q heatmap v.h5 --layers 5 --heads 0 --steps all -o steps.png
"$LACUNA" plot -q stability out -o stability.png
ls
