# Times that the cost model predicts from the masks of a replay.
exec 2>&1
"$LACUNA" capture --model "$ROOT/datasets/models/code-lm" --prompt "$ROOT/CONTRIBUTING.md" --tokens 512 --layers 0 -o c.h5 -q
"$LACUNA" replay c.h5 -m dense -m streaming:sink=64:window=128 -m sageattention --precision f32 -o run -q
"$LACUNA" analyze run --table model --gpu H200,L40 --columns 'speedup_model*' --format csv | cut -d, -f1-8 | head -1
"$LACUNA" analyze run --table model --gpu H200 | sed -n '/predicted/p;/no prediction/,$p'
grep -c _model run/records.jsonl
for bad in "--gpu H20" "--gpu B200" "--gpu H200 --clock fast" "--gpu H200 --what-if l2=2x"; do
    "$LACUNA" analyze run --table model $bad
done
"$LACUNA" analyze run --table model
"$LACUNA" choose run -l 'err_l1_rel<=10' --cost time_total_ns_model --gpu L40 -o plan.json
"$LACUNA" plot speeds run --gpu H200,L40 --metrics speedup_model@H200,speedup_model@L40 -o speeds.svg && ls speeds.svg
