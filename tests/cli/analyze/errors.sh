try() { "$LACUNA" "$@"; echo "exit $?"; }
try analyze
try analyze no-such
mkdir empty
try analyze empty
try analyze empty --table sumary
try analyze empty --format xlsx
try analyze empty --json --format csv
try plot
try plot heatmapp empty -o x.png
try plot pareto empty
try plot pareto empty -o x.jpg
try plot overlay t.h5 -o x.png
try plot pareto empty -o x.png --size big
try plot heatmap empty -o x.png --range 1:0
try compare empty
try report empty
