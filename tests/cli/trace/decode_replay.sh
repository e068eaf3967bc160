# Replays of the decode phase: caches, tables, masks, plans per KV head, and what is refused.
cp "$ROOT/LICENSE" prompt.txt
"$LACUNA" capture -q --model "$ROOT/datasets/models/code-lm" --prompt prompt.txt --tokens 90 --generate 8 --window 40 --layers 1 --no-nll --continuation prompt.txt -o d.h5
"$LACUNA" replay -q d.h5 --phase decode -m dense -m evict:by=tova,h2o,streaming,knorm:capacity=16,24 --dump-masks m.h5 -o run
"$LACUNA" analyze run --table decode --columns cache_keys,cache_keys_peak,cache_keys_end,bytes_kv,bytes_dense -f csv -q | cut -d, -f1,2,3,4,6,12,18,24,30
"$LACUNA" analyze run --table decode-steps -f csv --where method=evict --where 'params=by=streaming:capacity=16' -q | cut -d, -f1-3,17
"$LACUNA" replay d.h5 --phase decode -m dense -o run
"$LACUNA" mask list m.h5 | sed -n 1,4p
"$LACUNA" choose run --per kv-head --cost bytes_cache --limit 'cache_keys_end<=24' --where 'params=by=streaming*' -o plan.json
"$LACUNA" replay -q d.h5 --phase decode -m plan:file=plan.json -o planned && "$LACUNA" analyze planned --table decode --columns cache_keys -f csv -q | cut -d, -f1,3,6
"$LACUNA" replay d.h5 --phase decode -m evict@cra_mean=0.5 -o x; echo "exit $?"
"$LACUNA" replay d.h5 --phase decode -m streaming@density_elem=0.5 -o x; echo "exit $?"
"$LACUNA" replay d.h5 --phase decode -m dense --heads 0 -o x; echo "exit $?"
"$LACUNA" replay d.h5 --phase decode -m dense --backend cuda -o x; echo "exit $?"
for m in dsa seer:profile=decode; do "$LACUNA" replay d.h5 --phase decode -m $m -o x; echo "exit $?"; done
"$LACUNA" replay d.h5 --phase decode -m evict:then=evict:capacity=5 -o x; echo "exit $?"
"$LACUNA" replay -q d.h5 --phase decode -m evict:window=64 -o skipped; "$LACUNA" analyze skipped --table status -q | tail -n 3
"$LACUNA" capture -q --model "$ROOT/datasets/models/code-lm" --prompt prompt.txt --tokens 50 --layers 1 --heads 0 --no-nll -o t.h5
"$LACUNA" replay t.h5 --phase decode -m dense -o y; echo "exit $?"
"$LACUNA" replay t.h5 -m evict -o z; "$LACUNA" analyze z --table status -q | tail -n 3
