# The decode phase: captured, looked at, cut, exported and imported, packed, replayed as a prefill only with all queries of the prompt.
M="$ROOT/datasets/models/code-lm"
cp "$ROOT/LICENSE" prompt.txt
"$LACUNA" capture -q --model "$M" --prompt prompt.txt --tokens 300 --generate 20 --window 40 --col-sums --layers 1,3 --heads 0-1 --no-nll -o d.h5
"$LACUNA" trace info d.h5 | sed -n '/^run/s/, seed.*//p; /^decode/p; /^calls/,$p'
"$LACUNA" trace info d.h5 --json | grep -e decode_from -e generated_by -e '"n_[qk]"' -e col_sum
"$LACUNA" trace verify d.h5 | sed 's/, [0-9.]* GB//'
"$LACUNA" trace export d.h5 -o d.safetensors | sed 's/,.*//'
"$LACUNA" import -q --safetensors d.safetensors -o again.h5 >info.txt
"$LACUNA" trace pack -q again.h5 -o packed.h5 >/dev/null
"$LACUNA" trace subset packed.h5 --steps 5:12 --heads 1 -o part.h5 -q >/dev/null
for f in again packed part; do "$LACUNA" trace info $f.h5 | sed -n '/^run/s/, seed.*//p; /^decode/p'; done
"$LACUNA" trace info again.h5 --json | grep -c col_sum
"$LACUNA" trace subset d.h5 --steps 5:21 -o x.h5; echo "exit $?"
"$LACUNA" trace subset d.h5 --tokens 310 -o x.h5; echo "exit $?"
"$LACUNA" replay -q d.h5 -m dense -o run; echo "exit $?"
"$LACUNA" capture -q --model "$M" --prompt prompt.txt --tokens 90 --generate 30 --continuation prompt.txt --layers 3 --heads 1 --col-sums -o all.h5
"$LACUNA" trace info all.h5 | sed -n '/^decode/s/xxh3:[0-9a-f]*/ID/p'
"$LACUNA" trace verify all.h5 | sed 's/, [0-9.]* GB//'
"$LACUNA" replay -q all.h5 -m quest:dense_layers=0:budget=48 -o run && grep -o '"n_[qk]":[0-9]*\|"pages_kept":[0-9.]*' run/records.jsonl
"$LACUNA" capture -q --model "$M" --prompt prompt.txt --window 9 -o x.h5; echo "exit $?"
"$LACUNA" capture -q --model "$M" --prompt prompt.txt --generate 9 --rows 4 -o x.h5; echo "exit $?"
"$LACUNA" capture --model "$M" --tokens 90 --generate 30 --layers 3 --dry-run -o x.h5 2>&1 | sed 's/;.*//'
