# What arith=auto of SpargeAttn became stands in the record: with tiles of 64 x 128, INT8 and e4m3 for heads of 128 channels, exact for 64.
"$LACUNA" import -q --safetensors "$ROOT/tests/data/video-dit-a.safetensors" -o 128.h5 >/dev/null
"$LACUNA" capture -q -m "$ROOT/datasets/models/code-lm" --prompt "$ROOT/core/version.c" -n 128 --heads 0 --layers 1 --maps 0 -o 64.h5
for d in 64 128; do
    "$LACUNA" replay -q $d.h5 --steps 0 --layers 0-1 --heads 0 -m spargeattn:arch=sm90:arith=auto,exact,sage2 -o r$d 2>/dev/null; echo "exit $?"
    grep -o '"params":"[^"]*"\|tile_arith=[^;"]*' r$d/records.jsonl
    sed -n 's/.*"params":"arch=sm90:arith=\([^"]*\)".*\("err_l1_rel":[^,]*\),.*/\2/p' r$d/records.jsonl | uniq | wc -l
done
"$LACUNA" replay -q 64.h5 --heads 0 -m spargeattn:arith=sage1,sage2:pv=6,off -o r 2>/dev/null # as the kernels are called
grep -o '"params":"[^"]*"\|;arith=[^;"]*' r/records.jsonl
"$LACUNA" replay 64.h5 -m spargeattn:arith=int8 -o x; echo "exit $?"
