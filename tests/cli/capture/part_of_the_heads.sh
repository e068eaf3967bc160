# Every command knows heads by the model's numbers, and a calibration is not taken for another trace.
"$LACUNA" capture -q -m "$ROOT/datasets/models/code-lm" --prompt "$ROOT/core/version.c" -n 64 --heads 2,5-6 --layers 1,3 --maps 0 -o hh.h5
for heads in 5 2,6 all 0; do
    "$LACUNA" trace export hh.h5 --heads $heads --tensors q --layers 1 -o q$heads.safetensors; echo "exit $?"
done
"$LACUNA" replay -q hh.h5 --heads 5 --layers 1 -m dense -o r; echo "exit $?"
"$LACUNA" replay -q hh.h5 --heads 0 --layers 1 -m dense -o r; echo "exit $?"
"$LACUNA" calibrate -q sale hh.h5 --heads 5 --layers 1 -o c.json; echo "exit $?"
"$LACUNA" replay hh.h5 -q --layers 1 -m sale:calib=c.json -o s; echo "exit $?"
grep -c calib=absent s/records.jsonl
sed -e 's/"model": "[^"]*"/"model": "other"/' -e 's/"sum": .*/"sum": null/' c.json >d.json
"$LACUNA" replay hh.h5 -q --layers 1 -m sale:calib=d.json -o s; echo "exit $?"
