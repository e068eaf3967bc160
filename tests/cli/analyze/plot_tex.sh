# A figure for TeX: its text has the size that gnuplot reckoned with; where a TeX is installed, it fits the column.
"$LACUNA" capture -q --model "$ROOT/datasets/models/code-lm" --prompt "$ROOT/core/mask.c" --tokens 200 --layers 0-1 -o t.h5
"$LACUNA" replay -q t.h5 -m dense -m streaming:window=8,16,32 -m sale:tau=0.1,0.5 -o r 2>/dev/null
for figure in pareto bars cdf; do
    for width in 3.3 6.9; do
        "$LACUNA" plot $figure r --style paper --width ${width}in -q -o $figure.tex --force
        grep -c 'fontsize{8}{9.6}' $figure.tex
        printf '%s\n' '\documentclass{article}\usepackage{graphicx,color}' \
            "\\usepackage[margin=0pt,paperwidth=${width}in,paperheight=40in]{geometry}" \
            "\\begin{document}\\noindent\\input{$figure.tex}\\end{document}" >page.tex
        command -v pdflatex >/dev/null || continue
        pdflatex -halt-on-error -interaction=nonstopmode page.tex >/dev/null 2>&1 </dev/null
        grep -aq '^Output written' page.log || echo "$figure.tex does not compile"
        grep -aE '^Overfull .hbox|^!' page.log
    done
done
exit 0
