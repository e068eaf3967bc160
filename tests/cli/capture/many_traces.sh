# More traces than a shell gives descriptors, one of them named more often than that, and a copy of it.
"$LACUNA" import -q --safetensors "$ROOT/tests/data/video-dit-a.safetensors" --grid 4x8x12 -o a.h5 >/dev/null
"$LACUNA" trace subset -q a.h5 --layers 0 --heads 0 --steps 0 -o t.h5 >/dev/null
"$LACUNA" trace export -q t.h5 -o x >/dev/null
mkdir many
i=0 args=
while [ $i -lt 40 ]; do
    "$LACUNA" import -q --q x/*q.npy --k x/*k.npy --v x/*v.npy --name $i -o many/$i.h5 >/dev/null
    args="$args t.h5 t.h5 t.h5 t.h5 t.h5"
    i=$((i + 1))
done
cp t.h5 u.h5
ulimit -Sn 50
"$LACUNA" replay -q many -m dense -o r
# shellcheck disable=SC2086 # a list
"$LACUNA" replay -q $args u.h5 -m dense -o r2
cat r/records.jsonl | wc -l
cat r2/records.jsonl | wc -l
