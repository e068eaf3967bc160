# Every table has data somewhere and fits 100 characters of text; where a TeX is installed, it is TeX
# without an overfull box.
models=$ROOT/datasets/models
"$LACUNA" capture -q --model "$models/code-lm" --prompt "$ROOT/core/mask.c" --tokens 200 -o t.h5
"$LACUNA" capture -q --model "$models/video-dit" --size 4x32x48 --steps 3 -o v.h5
"$LACUNA" replay -q t.h5 -m dense -m streaming:window=16,32 -m sale -m spargeattn -m minference \
    -m xattention -m bigbird -m oracle:alpha=0.9,0.95 --layers 0-1 -o text 2>/dev/null
"$LACUNA" replay -q v.h5 -m dense -m fg-attn:refresh=2:tau=0.5,2 -m spargeattn:theta=-1,0.3:tau=0.5 \
    -m oracle -m radial --layers 0 -o video 2>/dev/null
"$LACUNA" replay -q v.h5 -m dense -m spargeattn:tau=0.5 --layers 0 --permute hilbert -o hilbert 2>/dev/null
"$LACUNA" replay -q t.h5 -m streaming@density_elem=0.5 -m spargeattn@density_elem=0.5 --layers 1 \
    -o equal 2>/dev/null
cp "$ROOT/tests/data/code-lm-a.txt" text.txt
"$LACUNA" eval -q --model "$models/code-lm" -m dense -m streaming:sink=4:window=64 --task text.txt \
    --task needle -n 128 --depth 0,1 --trials 2 -o inside 2>/dev/null
"$LACUNA" eval -q --model "$models/video-dit" --size 4x32x48 --steps 2 -m radial:dense_steps=0 \
    -m spargeattn:theta=-1:tau=0.5 -o clips 2>/dev/null
"$LACUNA" replay -q t.h5 -m streaming:sink=4:window=4,8,16,32,64 --layers 1 -o both 2>/dev/null
"$LACUNA" eval -q --model "$models/code-lm" -m streaming:sink=4:window=4,8,16,32,64 --task text.txt \
    -n 128 --windows 1 -o bothinside 2>/dev/null
"$LACUNA" replay -q t.h5 -m streaming:window=64,128 -m xattention:tau=0.3,0.5 --layers 1 -o equal 2>/dev/null
"$LACUNA" choose -q equal --limit 'err_l1_rel<=0.1' -o plan.json
"$LACUNA" replay -q t.h5 -m plan:file=plan.json --layers 1 -o equal 2>/dev/null
"$LACUNA" capture -q --model "$models/code-lm" --prompt "$ROOT/LICENSE" --tokens 700 --layers 0 --heads 0 --no-nll --rows 4 -o s.h5
"$LACUNA" replay -q s.h5 -m streaming:window=16,32 -m sale -o sampled 2>/dev/null
"$LACUNA" capture -q --model "$models/code-lm" --prompt "$ROOT/LICENSE" --tokens 90 --generate 6 --window 40 --layers 0 --no-nll -o d.h5
"$LACUNA" replay -q d.h5 --phase decode -m dense -m evict:by=snapkv,tova:capacity=50 -o decode 2>/dev/null
mkdir gpu # times and counters need a GPU: made up
for m in dense sale streaming; do
    printf '{"trace":"xxh3:a","model":"toy","run":0,"step":0,"branch":"main","timestep":null,'
    printf '"layer":0,"head":0,"kv_head":0,"method":"%s","params":"","seed":0,"backend":"cuda",' $m
    printf '"precision":"bf16","permute":"none","n_q":64,"n_k":64,"d":8,"causal":true,"status":"ok",'
    printf '"density_elem":0.5,"cra_p1":0.9,"time_quant_ns":1200,"time_select_ns":34567,'
    printf '"time_attend_ns":2345678,"time_total_ns":2381445,"time_dense_ns":4345678,"speedup":1.82,'
    printf '"speed_dense_eq":345.678,"speed_exec":123.456,"select_share":0.015,"samples":21,"copies":48,'
    printf '"copies_kv":48,"tensor_pipe_pct":57.1,"dram_read_bytes":123456789,"dram_write_bytes":1234567,'
    printf '"counter_copies":48,"counter_copies_kv":48,"mask_iou":0.8,"mask_age":1}\n'
done >gpu/records.jsonl
mkdir first
for m in dense sale streaming; do
    printf '{"scope":"model","weights":"xxh3:a","model":"toy","task":"text:file=a.txt","setting":"",'
    printf '"method":"%s","params":"","seed":0,"backend":"cuda","precision":"f32","n_q":64,"n_k":64,' $m
    printf '"causal":true,"status":"ok","nll_mean":2.5,"density_elem":0.5,"ttft_ns":12345678,'
    printf '"ttft_dense_ns":23456789,"ttft_speedup":1.9,"time_attn_ns":2345678,'
    printf '"time_attn_dense_ns":13456789,"attn_speedup":5.7,"time_linear_ns":9876543,'
    printf '"host_plan_ns":123456}\n'
done >first/records.jsonl
mkdir timed
for m in dense radial fg-attn; do
    printf '{"scope":"model","weights":"xxh3:a","model":"toy","task":"video:size=1x8x8:steps=50:text=ab",'
    printf '"setting":"","method":"%s","params":"","seed":0,"backend":"cuda","precision":"f32",' $m
    printf '"n_q":64,"n_k":64,"causal":false,"status":"ok","density_elem":0.5,'
    printf '"time_attn_ns":2345678,"time_attn_dense_ns":13456789,"attn_speedup":5.7,'
    printf '"time_linear_ns":9876543,"time_product_ns":5432109,"time_other_ns":4444434,'
    printf '"attn_share":0.19,"generation_ns":611111050,"generation_dense_ns":1166666600,'
    printf '"generation_speedup":1.91,"host_plan_ns":123456}\n'
done >timed/records.jsonl

preamble='\usepackage{booktabs,graphicx}\hbadness=10000\vbadness=10000'
for form in '' twocolumn; do
    printf '\\documentclass[%s]{article}%s\\begin{document}\n' "$form" "$preamble" >"all$form.tex"
done
check() { # WHAT... of analyze
    "$LACUNA" analyze "$@" -f md >out || echo "$*: exit $?"
    "$LACUNA" analyze "$@" -f text >out || echo "$*: exit $?"
    LC_ALL=C.UTF-8 awk -v what="$*" 'length($0) > 100 { print what ": " length($0); exit }' out
    for wide in '' --wide; do
        "$LACUNA" analyze "$@" -f tex $wide >out || echo "$*: exit $?"
        { printf '\\typeout{== %s %s}\n' "$*" "$wide" && cat out && printf '%s\n' '\clearpage'; } |
            tee -a all.tex >>alltwocolumn.tex
    done
}
made=
for dir in text video 'video hilbert' equal inside clips sampled decode 'both bothinside' gpu first timed 'text video hilbert'; do
    for t in $("$LACUNA" list tables | awk '/^[a-z]/ { print $1 }'); do
        # shellcheck disable=SC2086 # several directories
        set -- $dir --table "$t"
        [ "$t" != model ] || set -- "$@" --gpu H200
        "$LACUNA" analyze "$@" -f csv >/dev/null 2>&1 || continue # no data
        made="$made $t"
        check "$@"
    done
done
for t in $("$LACUNA" list tables | awk '/^[a-z]/ { print $1 }'); do
    case " $made " in
    *" $t "*) ;;
    *) echo "no data for table $t" ;;
    esac
done
for form in '' twocolumn; do
    printf '%s\n' '\end{document}' >>"all$form.tex"
    command -v pdflatex >/dev/null || continue
    pdflatex -halt-on-error -interaction=nonstopmode "all$form.tex" >/dev/null 2>&1 </dev/null
    grep -aq '^Output written' "all$form.log" || echo "all$form.tex does not compile"
    grep -aE '^== |^Overfull .hbox|^!' "all$form.log" | grep -aB1 -E '^Overfull|^!' | head -20
done
echo "every table is written"
