# A flipped byte is named and the exit status is 1; a replay does not compute with such a head.
"$LACUNA" import --safetensors "$ROOT/tests/data/video-dit-a.safetensors" --grid 4x8x12 -o v.h5
"$LACUNA" trace verify v.h5; echo "exit $?"
"$LACUNA" trace verify v.h5 --json; echo "exit $?"
printf '\101' | dd of=v.h5 bs=1 seek=100000 conv=notrunc 2>/dev/null
"$LACUNA" trace verify v.h5; echo "exit $?"
"$LACUNA" trace verify v.h5 --json; echo "exit $?"
"$LACUNA" trace pack v.h5 -o w.h5; echo "exit $?"
"$LACUNA" replay v.h5 -q -m dense --heads 0 -o r; echo "exit $?"
"$LACUNA" replay v.h5 -q -m dense --heads 1 -o s; echo "exit $?"
ls
