# A link that someone planted under the name NAME.part is not followed, and a killed writer's file is removed.
"$LACUNA" import -q --safetensors "$ROOT/tests/data/video-dit-a.safetensors" --grid 4x8x12 -o t.h5 >/dev/null
try()
{
    out=$1
    shift
    echo precious >victim
    ln -s victim "$out.part"
    : >"$out.abcdef.part"
    "$LACUNA" "$@" -q >/dev/null
    echo "exit $? $(cat victim)"
    [ -f "$out" ] && [ ! -L "$out" ] || echo "$out is no file"
}
try p.h5 trace pack t.h5 -o p.h5
try s.h5 trace subset t.h5 --heads 0 -o s.h5
try m.h5 replay t.h5 --layers 0 --steps 0 -m dense -o r --dump-masks m.h5
try o.h5 replay t.h5 --layers 0 --steps 0 -m dense -o r2 --dump-outputs o.h5
try i.h5 import --safetensors "$ROOT/tests/data/video-dit-a.safetensors" --grid 4x8x12 -o i.h5
ls
