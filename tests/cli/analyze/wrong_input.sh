# Records, a trace, dumped masks: what was given in place of what, and how to get it.
"$LACUNA" import --safetensors "$ROOT/tests/data/video-dit-a.safetensors" --grid 4x8x12 -q -o t.h5 >/dev/null
"$LACUNA" replay t.h5 -q -m dense --heads 0 --dump-masks m.h5 --dump-outputs o.h5 -o r
mkdir empty
head -c 3000 t.h5 >cut.h5
try() { "$LACUNA" "$@"; echo "exit $?"; }
for figure in $("$LACUNA" list figures | awk '$1 != "" { print $1 }'); do
    case $figure in
    heatmap | order) try plot $figure r -o x.png ;;
    overlay) try plot $figure r --masks m.h5 -o x.png; try plot $figure t.h5 --masks r -o x.png ;;
    mask) try plot $figure t.h5 -o x.png ;;
    *) try plot $figure t.h5 -o x.png ;;
    esac
done
try analyze t.h5
try analyze r m.h5
try analyze o.h5
try analyze cut.h5
try compare r t.h5
try compare t.h5 r
try report t.h5 -o page
try plot heatmap r/records.jsonl -o x.png
try plot heatmap m.h5 -o x.png
try plot heatmap o.h5 -o x.png
try plot heatmap empty -o x.png
try plot heatmap none.h5 -o x.png
try plot mask r -o x.png
try plot bars empty -o x.png
try analyze r --where layer=0x0
try analyze r --where 'density_elem<0x1'
{ printf '\357\273\277'; head -n 1 r/records.jsonl; } >bom.jsonl
try analyze bom.jsonl
ls
