# Packed and unpacked traces have the same content.
"$LACUNA" import --safetensors "$ROOT/tests/data/video-dit-a.safetensors" --grid 4x8x12 --dtype bfloat16 -o v.h5
"$LACUNA" trace pack v.h5 -o z.h5 --dry-run
"$LACUNA" trace pack v.h5 -o z.h5
"$LACUNA" trace pack v.h5 -o g.h5 --gzip --json
"$LACUNA" trace pack z.h5 -o u.h5 --unpack
"$LACUNA" trace pack g.h5 -o u2.h5 --unpack
cmp u.h5 u2.h5 && echo "the same bytes"
"$LACUNA" trace verify z.h5
"$LACUNA" trace verify g.h5
for f in v z g u; do "$LACUNA" trace info $f.h5 | sed -n '2,3p'; done
"$LACUNA" trace pack v.h5 -o z.h5; echo "exit $?"
"$LACUNA" trace pack v.h5 -o z.h5 --gzip --unpack; echo "exit $?"
"$LACUNA" trace pack v.h5; echo "exit $?"
"$LACUNA" trace pack -q v.h5 -o f.h5 --kv fp8 | sed -n '1s/xxh3.*//p; /^  [kq]/p'
"$LACUNA" trace verify f.h5
"$LACUNA" trace info f.h5 --json | grep compute\"
"$LACUNA" trace pack -q f.h5 -o g8.h5 --kv fp8; echo "exit $?"
