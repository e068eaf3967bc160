# Dumps of equal runs are equal bytes, whatever the number of threads is; a method that skips every head leaves no gap.
D=$ROOT/tests/data
"$LACUNA" import -q --safetensors "$D/video-dit-a.safetensors" --grid 4x8x12 -o t.h5 >/dev/null
for j in 1 2 5; do
    "$LACUNA" replay -q -j $j t.h5 -m dense -m svg1 -m svg2 -m sampleattention -m streaming:window=9:sink=1 \
        -o r$j --dump-masks m$j.h5 --dump-outputs o$j.h5 2>err || cat err
    "$LACUNA" eval -q -j $j --model "$ROOT/datasets/models/code-lm" --task "$D/code-lm-a.txt" -n 128 \
        -m oracle:kind=topk:k=8 -m oracle:kind=topp:alpha=0.5 --dense-heads 1:0 --dump-masks e$j.h5 -o e$j
done
sha256sum m?.h5 o?.h5 e?.h5 | cut -c 1-64 | sort | uniq -c | cut -c 1-8
"$LACUNA" mask list m5.h5
