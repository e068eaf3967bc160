# A calibration is replayed under its settings, what is given beside it wins, and the record says both.
"$LACUNA" capture -q -m "$ROOT/datasets/models/code-lm" --prompt "$ROOT/core/version.c" -n 128 --heads 2 --layers 1 --maps 0 -o t.h5
"$LACUNA" calibrate -q sale:bits=16:dense_below=0 t.h5 -o c.json; echo "exit $?"
"$LACUNA" replay -q t.h5 -m sale:calib=c.json -m sale:calib=c.json:tau=0.004,0.5 -m sale:calib=c.json:bits=4 -o r; echo "exit $?"
grep -o '"params":"[^"]*"' r/records.jsonl | sed 's/calib=[0-9a-f]*/calib=HASH/'
grep -o '"notes":"[^"]*"' r/records.jsonl | uniq
"$LACUNA" replay -q t.h5 -m sale:calib=c.json:theta=0.5 -o r; echo "exit $?"
# The estimate of the replay has 16 bits: it keeps what bits=16 keeps.
tau=$(grep -o '"tau": [^,}]*' c.json | tail -1 | cut -d' ' -f2)
"$LACUNA" replay -q t.h5 -m "sale:bits=16:dense_below=0:tau=$tau" -o same; echo "exit $?"
for dir in r same; do head -1 $dir/records.jsonl | grep -o '"pairs_kept":[0-9]*'; done | uniq | wc -l
# Parameters per length of the prompt: a replay takes those of its own, and says where there are none.
for n in 300 500 900; do
    "$LACUNA" capture -q -m "$ROOT/datasets/models/code-lm" --prompt "$ROOT/core/opt.c" -n $n --heads 0,1 --layers 1 --maps 0 -o n$n.h5
done
"$LACUNA" calibrate sampleattention:block=64 n300.h5 n500.h5 --per model --segments 400,800 -o s.json 2>/dev/null; echo "exit $?"
grep -c '"tokens"' s.json
grep -c '"columns"' s.json
for n in 300 500 900; do
    "$LACUNA" replay -q n$n.h5 -m sampleattention:calib=s.json -o seg 2>&1 | grep -v dense
done
grep -c 'calib=absent' seg/records.jsonl
"$LACUNA" calibrate -q sampleattention n300.h5 --segments 800,400 -o x.json; echo "exit $?"
sed 's/"sum": .*/"sum": null/; s/^ *400,$/300,/' s.json >overlap.json
"$LACUNA" replay -q n300.h5 -m sampleattention:calib=overlap.json -o x; echo "exit $?"
# A head in which filter 2 skips too little goes without it; the report counts them, and the file has the parameter.
"$LACUNA" calibrate spargeattn:l1=0.2:l2=0.3:pv_min=1 n900.h5 -o pays.json; echo "exit $?"
grep -E '"pv"|"pv_min"' pays.json | tr -d ' '
"$LACUNA" replay -q n900.h5 -m spargeattn:calib=pays.json -o pays; echo "exit $?"
grep -o 'pv_min=1' pays/records.jsonl | uniq
"$LACUNA" calibrate -q spargeattn:pv_min=2 n900.h5 -o x.json; echo "exit $?"
