# SpargeAttn's table 6: both filters, filter 1 alone, filter 2 alone of one calibration are three different rows.
p=$ROOT/datasets/prompts/core.txt
"$LACUNA" capture -q -m "$ROOT/datasets/models/code-lm" --prompt "$p" -n 2048 --heads 0-3 --layers 2 --maps 0 -o t.h5
"$LACUNA" calibrate spargeattn:bounds=llama3.1 t.h5 --per layer --dry-run | sed 's/[0-9.]* [kM]B/N MB/g; s/[0-9]* threads, .*/N threads, N s/'
"$LACUNA" calibrate -q spargeattn:l1=0.05:l2=0.3 t.h5 --per layer -o mine.json; echo "exit $?"
ls mine.json*
"$LACUNA" replay -q t.h5 -m spargeattn:calib=mine.json -m spargeattn:calib=mine.json:pv=off -m spargeattn:calib=mine.json:tau=1 -o r; echo "exit $?"
"$LACUNA" analyze r --columns sparsity_total --format csv | cut -d, -f2,6 | tail -n +2 | cut -d, -f2 | sort -u | wc -l
"$LACUNA" analyze r --columns sparsity_total | grep -o 'calib=mine#[^ ]*' | sed 's/#..../#HASH/'
grep -o 'calib_name=[^;]*;calib_per=[^;]*' r/records.jsonl | sort -u
