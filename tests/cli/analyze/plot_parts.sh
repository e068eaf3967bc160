# Names of tokens on the axes of a short part of a map; lines between frames over masks of video.
models=$ROOT/datasets/models
printf 'int main(void)\n{\n    return 0; /* a_b 50 %% */\n}\n' >p.c
"$LACUNA" capture -q --model "$models/code-lm" --prompt p.c --layers 0 --heads 0 -o t.h5
"$LACUNA" plot -q heatmap t.h5 --tokens "$models/code-lm" -o all.svg && sed -n '/^set [xy]tics.*(/p' all.gp
"$LACUNA" plot -q heatmap t.h5 --tokens "$models/code-lm" --rows 2-4 --keys 0-4 -o part.svg && sed -n '/^set [xy]tics.*(/p' part.gp
"$LACUNA" plot -q mask t.h5 --tokens "$models/code-lm" -o no.svg; echo "exit $?"
"$LACUNA" plot -q heatmap t.h5 --tokens "$ROOT/doc" -o no.svg; echo "exit $?"
"$LACUNA" capture -q --model "$models/video-dit" --size 4x32x48 --steps 1 --layers 0 --heads 0 -o v.h5
"$LACUNA" plot -q heatmap v.h5 --tokens "$models/code-lm" --rows 0-3 --keys 0-3 -o no.svg; echo "exit $?"
"$LACUNA" plot -q heatmap v.h5 --tokens "$models/code-lm" -o no.svg; echo "exit $?"
"$LACUNA" trace info v.h5 | grep grid
"$LACUNA" replay -q v.h5 -m streaming:window=16 --dump-masks m.h5 -o r
for frame in 0 24; do
    "$LACUNA" plot -q mask m.h5 --branch cond --frame $frame -o m.svg --force
    echo "frames of $frame: $(grep -c '^set arrow' m.gp) lines"
done
grep '^set arrow' m.gp | head -n 2
"$LACUNA" plot -q heatmap v.h5 --branch cond -o v.svg && echo "of the trace: $(grep -c '^set arrow' v.gp) lines"
