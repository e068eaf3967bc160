# More traces than a shell gives descriptors, and one of them named more often than that.
"$LACUNA" import -q --safetensors "$ROOT/tests/data/video-dit-a.safetensors" --grid 4x8x12 -o a.h5 >/dev/null
"$LACUNA" trace subset -q a.h5 --layers 0 --heads 0 --steps 0 -o t.h5 >/dev/null
mkdir many
i=0 args=
while [ $i -lt 60 ]; do
    cp t.h5 many/$i.h5
    args="$args t.h5 t.h5 t.h5 t.h5 t.h5"
    i=$((i + 1))
done
ulimit -Sn 50
"$LACUNA" replay -q many -m dense -o r
# shellcheck disable=SC2086 # a list
"$LACUNA" replay -q $args -m dense -o r2
cat r*/records.jsonl | wc -l
