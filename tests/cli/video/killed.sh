# A capture that is killed leaves only its unfinished file, which is refused; the next one starts over.
. "$ROOT/tests/cli/running.sh"
"$LACUNA" capture --model "$ROOT/datasets/models/video-dit" --size 16x128x192 --steps 50 \
    -o clip.h5 --quiet &
pid=$!
while running $pid && ! find . -name "clip.h5.*.part" -size +1000k 2>/dev/null | grep -q .; do sleep 0.05; done
kill -KILL $pid
wait $pid 2>/dev/null
echo $?
ls
"$LACUNA" trace info clip.h5
echo $?
"$LACUNA" trace verify clip.h5.*.part
echo $?
"$LACUNA" replay clip.h5.*.part -m dense -o out
echo $?
"$LACUNA" capture --model "$ROOT/datasets/models/video-dit" --size 4x64x96 --steps 4 \
    --capture-steps 1 -o clip.h5 --quiet
echo $?
ls
"$LACUNA" trace verify clip.h5
