# subset, join and map: what is kept keeps its content; maps afterwards are those of an import.
id() { "$LACUNA" trace info "$1" --json | sed -n 's/.*"content_id": "\(.*\)".*/\1/p'; }
same() { [ "$(id "$1")" = "$(id "$2")" ] && echo "$1 is $2"; }
"$LACUNA" import --safetensors "$ROOT/tests/data/video-dit-a.safetensors" --grid 4x8x12 -o v.h5
"$LACUNA" trace subset v.h5 -o all.h5 --dry-run
"$LACUNA" trace subset v.h5 -o all.h5 >/dev/null && same all.h5 v.h5
"$LACUNA" trace info v.h5 --json | grep -c '"order"'
"$LACUNA" trace subset v.h5 --steps 0-2 -o a.h5 >/dev/null
"$LACUNA" trace subset v.h5 --steps 3 -o b.h5 >/dev/null
"$LACUNA" trace join b.h5 a.h5 -o c.h5 >/dev/null && same c.h5 v.h5
"$LACUNA" trace join a.h5 v.h5 -o d.h5; echo "exit $?"
"$LACUNA" trace subset v.h5 --heads 1 -o h.h5 | sed 's/xxh3:.*/ID/'
"$LACUNA" trace subset h.h5 --heads 0 -o i.h5; echo "exit $?"
"$LACUNA" trace join h.h5 v.h5 -o i.h5; echo "exit $?"
"$LACUNA" trace join v.h5 -o i.h5; echo "exit $?"
"$LACUNA" trace subset v.h5 --tokens 9 -o i.h5; echo "exit $?"
"$LACUNA" trace subset v.h5 --layers 0 -o i.h5; echo "exit $?"
"$LACUNA" trace map v.h5 --maps 32 --steps 0 -o m.h5 | sed 's/xxh3:.*/ID/'
"$LACUNA" import --safetensors "$ROOT/tests/data/video-dit-a.safetensors" --grid 4x8x12 --maps 32 -o n.h5 >/dev/null
"$LACUNA" trace subset n.h5 --steps 0 -o o.h5 >/dev/null && same m.h5 o.h5
"$LACUNA" trace map v.h5 --steps 0 --json --dry-run -o p.h5 | grep '"pool"'
ls
