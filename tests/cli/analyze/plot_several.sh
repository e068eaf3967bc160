# Maps of several traces in one figure, a row each with axes of its own; frames of clips.
"$LACUNA" capture --model "$ROOT/datasets/models/code-lm" --prompt "$ROOT/LICENSE" --tokens 256 --layers 1,5 -q -o text.h5
"$LACUNA" capture --model "$ROOT/datasets/models/video-dit" --size 4x32x48 --steps 2 --capture-steps 0,1 -q -o clip.h5
"$LACUNA" plot heatmap text.h5 clip.h5 --layers 5 --heads 0,1 --steps 1 --style paper -q -o maps.png
echo "exit $?, $(grep -c 'with image' maps.gp) maps"
grep -o "set xrange.*" maps.gp | sort | uniq -c | sed 's/^ *//'
head -1 maps.txt
"$LACUNA" plot heatmap text.h5 clip.h5 --layers 0,5 --heads 0 -o x.png
"$LACUNA" plot heatmap text.h5 text.h5 text.h5 text.h5 clip.h5 -o x.png
"$LACUNA" plot heatmap clip.h5 --steps 0,99 -o x.png
"$LACUNA" plot heatmap text.h5 clip.h5 --layers 5 --heads 0 --tokens code-lm -o x.png
"$LACUNA" eval --model "$ROOT/datasets/models/video-dit" --size 4x32x48 --steps 2 -m oracle:kind=topk:k=20% \
    -m streaming:window=16 --save-frames frames -q -o e
"$LACUNA" plot frames frames/01-oracle.png -q -o one.png
echo "exit $?: $(grep -c rgbimage one.gp) rows"
"$LACUNA" plot frames frames/01-oracle.png frames/02-streaming.png --style paper -q -o two.png
echo "exit $?: $(grep -c rgbimage two.gp) rows"
grep -o "set title '[^']*'" two.gp
"$LACUNA" plot frames frames/dense/frame-000.png -o x.png
[ -e x.png ] || echo "and no figure"
