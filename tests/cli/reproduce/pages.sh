# The five forms of a page: rows of equal length, no reference to a network, LaTeX that fits the page.
"$LACUNA" capture --model "$ROOT/datasets/models/video-dit" --size 4x32x48 --steps 50 \
    --capture-steps 0,15,30 -q -o clip.h5
"$LACUNA" capture --model "$ROOT/datasets/models/code-lm" --prompt "$ROOT/LICENSE" --tokens 256 -q -o t.h5
"$LACUNA" reproduce fg-attn:2 fg-attn:1 fg-attn:3 spargeattn:1 spargeattn:2 spargeattn:11 sampleattention:2 sale:1 sale:2 --quick \
    --trace dit=clip.h5 -o out -q
echo "exit $?"
for f in out/pages/*.md; do
    awk -F '[^\\\\][|]' '/^\|/ { if (last && NF != n) print FILENAME ": " NF " cells, not " n; n = NF; last = 1; next } { last = 0 }' "$f"
done
for f in out/pages/*.csv; do # commas outside of quotes
    awk '{ line = $0; gsub(/"([^"]|"")*"/, "", line); k = gsub(/,/, "", line); if (NR > 1 && k != n) print FILENAME ":" NR ": " k + 1 " fields, not " n + 1; n = k }' "$f"
done
cut -d, -f1-7,13- out/pages/fg-attn-2.csv | sed -n '1p;/^fg-attn:2,1,128×128,Sparsity/p' | tr -d '\r'
grep -lE 'https?://|src="[^.]' out/pages/*.html
for f in out/pages/*.html; do
    for tag in table tr td; do
        [ "$(grep -oE "<${tag}[ >]" "$f" | wc -l)" = "$(grep -o "</$tag>" "$f" | wc -l)" ] || echo "$f: $tag"
    done
done
grep -o 'Made by: .*' out/pages/fg-attn-2.md
grep -o 'open: below_b64 .* ratio' out/pages/fg-attn-2.md
"$LACUNA" reproduce sampleattention:3 sampleattention:4 fg-attn:f2 --quick --trace lm=t.h5 -o out -q
grep -o '([a-z]*q)' out/pages/sampleattention-4.html | sort | uniq -c | sed 's/^ *//'
grep -c 'fg-attn:2</a> Block sparsity' out/index.html # of the call before
"$LACUNA" analyze out --explain 'sampleattention:3:code-lm/(0.90,0.90):1' | grep -E '^(metric|second_metric|job|where)'
"$LACUNA" analyze out --explain 'sampleattention:4:256:ours, alpha 0.90' | grep '^where'
"$LACUNA" analyze out --explain fg-attn:f2:a:b
if command -v pdflatex >/dev/null && kpsewhich booktabs.sty graphicx.sty >/dev/null; then
    for f in out/pages/*.tex; do
        printf '%s\n' '\documentclass[twocolumn,10pt]{article}' '\usepackage{booktabs,graphicx}' \
            '\usepackage[a4paper,margin=18mm,columnsep=6mm]{geometry}' '\begin{document}' "\\input{$f}" '\end{document}' >t.tex
        pdflatex -interaction=nonstopmode -halt-on-error t.tex >log 2>&1 || { echo "$f:" && grep -m3 '^!' log; }
        grep '^Overfull' log | sed "s|^|$f: |"
    done
    echo "tex: compiled"
else
    echo "tex: skipped, no pdflatex with booktabs and graphicx"
fi
"$LACUNA" reproduce fg-attn:2 --quick --trace dit=clip.h5 --style huge -o out
