# Times that the cost model predicts from the masks of a replay. Numbers are worked out by hand: where a stage is measured it has 2000
# cycles here, a row takes 1 besides and a masked stage 0.4 more.
exec 2>&1
mkdir data
cp -r "$ROOT/datasets/gpus" data
sed -E 's/"s": [0-9]+/"s": 2000/; s/"item": [0-9.]+/"item": 1/; s/"masked": [0-9.]+/"masked": 0.4/' "$ROOT/datasets/kernels.json" >data/kernels.json
export LACUNA_DATA=$PWD/data
rounded() { LC_ALL=C awk -F, -v OFS=, '{ for (i = 2; i <= NF; i++) if ($i + 0 == $i) $i = sprintf("%.4g", $i); print }'; }
"$LACUNA" capture --model "$ROOT/datasets/models/code-lm" --prompt "$ROOT/CONTRIBUTING.md" --tokens 512 --layers 0 -o c.h5 -q
"$LACUNA" replay c.h5 -m dense -m streaming:sink=64:window=128 -m sageattention --precision f32 -o run -q
grep -c _model run/records.jsonl
"$LACUNA" analyze run --table model --gpu H200,L40 --columns 'speedup_model*' --format csv | cut -d, -f1-8 | head -1
"$LACUNA" analyze run --table model --gpu H200 | sed -n '/predicted/p;/no prediction/,$p'
echo "-- 24 rows of 192 queries, 2 to 4 stages: the longest and the start take 5.667 x 2000 + 5000 cycles at 1.638 GHz, the launch 1100 ns"
"$LACUNA" analyze run --gpu H200 --columns time_attend_ns_model,clock_model --format csv | cut -d, -f1,6,12 | sed -n 1,2p | rounded
echo "-- 6 layers of 11070 ns and 2 x 512 x 1523712 operations at 0.9 x 132 x 4096 x 1.638 GHz"
"$LACUNA" analyze run --gpu H200 --config "$ROOT/datasets/models/code-lm/config.json" --columns ttft_ns_model --format csv | cut -d, -f1,6 | sed -n 1,2p | rounded
echo "-- beside measured times of calls: 4 rows of 33 stages on a multiprocessor; 837.8 + 6 stages, cut"
of_call() { # METHOD N HEADS MEMBERS
    printf '{"scope":"call","trace":"xxh3:a","model":"toy","run":0,"step":0,"branch":"main","timestep":null,"layer":0,"head":-1,'
    printf '"heads":"","method":"%s","params":"","seed":0,"backend":"cuda","precision":"f32","permute":"none","n_q":%s,"n_k":%s,' "$1" "$2" "$2"
    printf '"d":128,"causal":false,"status":"ok","call_heads":%s,"call_heads_kv":%s,%s}\n' "$3" "$3" "$4"
}
mkdir calls
of_call dense 4096 16 '"time_attend_ns":195000,"notes":"select_kind=none;kernel=bf16-hd128-dense"' >calls/records.jsonl
of_call xattention 16384 32 '"time_attend_ns":1250000,"work_rows@128x128":4096,"work_stages@128x128":106496,"work_masked@128x128":0,"work_half@128x128":0,"work_longest@128x128":26,"work_shortest@128x128":26,"notes":"columns=9;rows=512;select_kind=own"' >>calls/records.jsonl
"$LACUNA" analyze calls --gpu H200 --clock 1.392 --beside measured --group method --format csv | cut -d, -f1,5,11,17 | rounded
"$LACUNA" analyze calls --gpu H200 --clock 1.392 | grep -c measured_ || true
echo "-- by the clock of dense attention: the same; with a filter 32 waves of 27 stages; no kernel, no prediction, of heads neither"
mkdir clocks
work='"work_rows@128x64":4096,"work_stages@128x64":106496,"work_masked@128x64":0,"work_half@128x64":0,"work_longest@128x64":26,"work_shortest@128x64":26'
of_call dense 4096 16 '"time_attend_ns":195000,"time_dense_ns":195000,"notes":"select_kind=none;kernel=bf16-hd128-dense"' >clocks/records.jsonl
of_call spargeattn 16384 32 '"time_attend_ns":1950000,"time_dense_ns":5800000,'"$work"',"notes":"select_kind=own;kernel=filter-hd128-128x64"' >>clocks/records.jsonl
of_call longnet 16384 32 '"time_attend_ns":1950000,"time_dense_ns":5800000,'"$work"',"notes":"select_kind=static;kernel=dilated-bf16-hd128-dense"' >>clocks/records.jsonl
sed -n 's/"scope":"call",//; s/"head":-1,"heads":""/"head":0,"kv_head":0/; /longnet/p' clocks/records.jsonl >>clocks/records.jsonl
"$LACUNA" analyze clocks --gpu H200 --clock dense --beside measured --group method --format csv | cut -d, -f1,5,11,17 | rounded
"$LACUNA" analyze clocks --gpu H200 --clock dense | grep 'no prediction'
echo "-- heads of a CPU beside calls of a GPU"
"$LACUNA" analyze calls run --gpu H200 --columns time_attend_ns_model --group n_q,method --format csv | cut -d, -f1,2,6 | rounded
# shellcheck disable=SC2086 # several words
for bad in "--gpu H20" "--gpu B200" "--gpu H200 --clock fast" "--gpu H200,L40 --clock dense" "--gpu H200 --clock dense" "--gpu H200 --what-if l2=2"; do
    "$LACUNA" analyze run --table model $bad
done
"$LACUNA" analyze run --table model
echo "-- a plan by predicted cost, and a figure"
"$LACUNA" choose run -l 'err_l1_rel<=10' --cost time_total_ns_model --gpu L40 -o plan.json
"$LACUNA" choose run -l 'err_l1_rel<=10' --cost time_total_ns_model -o other.json
"$LACUNA" plot speeds run --gpu H200,L40 --metrics speedup_model@H200,speedup_model@L40 -o speeds.svg && ls speeds.svg
