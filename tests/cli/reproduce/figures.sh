# Drawings: lines named as in the paper, another style draws and measures nothing again, and a trace
# that was deleted is not missed.
"$LACUNA" capture --model "$ROOT/datasets/models/code-lm" --prompt "$ROOT/LICENSE" --tokens 256 -q -o t.h5
"$LACUNA" reproduce sampleattention:f7 --quick --trace lm=t.h5 -q -o out
ls out/figures
cat out/jobs/*/figure.gp out/jobs/*/figure.dat 2>/dev/null | grep -o -e 'SampleAttention both' -e 'sampleattention' | sort -u
count() { find out/jobs -mindepth 2 -name "$1" | wc -l; }
echo "$(count records.jsonl) replay, $(count figure.png) drawing"
sed -n '/includegraphics/p; s/^.caption/caption/p' out/pages/sampleattention-f7.tex
if command -v pdflatex >/dev/null; then
    printf '%s\n' '\documentclass{article}' '\usepackage{graphicx}' '\graphicspath{{out/figures/}}' '\begin{document}' \
        '\input{out/pages/sampleattention-f7.tex}' '\end{document}' >t.tex
    pdflatex -interaction=nonstopmode -halt-on-error t.tex >log 2>&1 || grep -m3 '^!' log
fi
"$LACUNA" reproduce sampleattention:f7 --quick --trace lm=t.h5 -q --style slide -o out
echo "$(count records.jsonl) replay, $(count figure.png) drawings"
mkdir none # without gnuplot drawings are left to another call
PATH=$PWD/none "$LACUNA" reproduce sampleattention:f7 --quick --trace lm=t.h5 -q --style screen -o out
echo "exit $?, $(count figure.png) drawings, $(grep -c 'gnuplot was not found' out/pages/sampleattention-f7.md) note"
"$LACUNA" reproduce sampleattention:f7 --quick --trace lm=t.h5 -q --style screen -o out
echo "exit $?, $(count figure.png) drawings, $(grep -c 'gnuplot was not found' out/pages/sampleattention-f7.md) note"

"$LACUNA" reproduce sampleattention:f12-13 --quick -q -o kept
rm kept/jobs/*/trace.h5
"$LACUNA" reproduce sampleattention:f12-13 --quick -q --style slide -o kept
echo "exit $?: $(find kept/jobs -name trace.h5 | wc -l) traces, $(find kept/jobs -name figure.png | wc -l) drawings"

"$LACUNA" replay t.h5 -q -m streaming:window=64 -m oracle -o r
"$LACUNA" plot curves r --x head -q -o p.png
grep -c 'set xlabel' p.gp
"$LACUNA" plot means r --x depth -q -o p.png
