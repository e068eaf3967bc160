#!/bin/sh
# make install into an empty prefix: the program runs from another folder with its data, manual pages and
# completions are there; after make uninstall nothing is left. Needs MAKE; run from the repository root.
set -u
fails=0
# verdict STATUS TEXT: 0 is good
verdict()
{
    if [ "$1" -eq 0 ]; then
        echo "  ok    $2"
    else
        echo "  FAIL  $2"
        fails=$((fails + 1))
    fi
}
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
root=$(pwd)
unset LACUNA_DATA

if ! ${MAKE:-make} --no-print-directory install PREFIX=/opt/lacuna DESTDIR="$tmp/dest" >"$tmp/log" 2>&1; then
    cat "$tmp/log"
    verdict 1 "make install"
fi
mv "$tmp/dest/opt/lacuna" "$tmp/moved" # the prefix may lie anywhere
at=$tmp/moved
mkdir "$tmp/elsewhere" && cd "$tmp/elsewhere" || exit 1
"$at/bin/lacuna" capture -q --model "$at/share/lacuna/models/code-lm" --prompt "$root/README.md" --tokens 64 --layers 0 \
    -o t.h5 && "$at/bin/lacuna" replay -q t.h5 -m dense -o r && "$at/bin/lacuna" analyze r >table.txt &&
    [ -s table.txt ] && "$at/bin/lacuna" reproduce --list >list.txt && [ -s list.txt ]
verdict $? "capture, replay and analyze from another folder"
"$at/bin/lacuna" trace verify t.h5 >trace.txt && "$at/bin/lacuna" report -q r --no-figures -o report &&
    grep -q 'id="findings"' report/index.html
verdict $? "trace verify and report from there"
if command -v gnuplot >/dev/null; then
    "$at/bin/lacuna" plot -q heatmap t.h5 -o heat.png && [ -s heat.png ]
    verdict $? "a figure from there"
fi
missing=
command -v help2man >/dev/null && for c in $("$at/bin/lacuna" help | sed -n '/^Commands/,/^$/s/^  \([a-z]*\) .*/\1/p'); do
    grep -q '^\.SH SYNOPSIS' "$at/share/man/man1/lacuna-$c.1" || missing="$missing $c"
done
[ -z "$missing" ]
verdict $? "a manual page per command${missing:+; none of$missing}"
for f in bash-completion/completions/lacuna zsh/site-functions/_lacuna fish/vendor_completions.d/lacuna.fish; do
    [ -s "$at/share/$f" ]
    verdict $? "$f"
done
mv "$tmp/moved" "$tmp/dest/opt/lacuna"
cd "$root" || exit 1
${MAKE:-make} --no-print-directory uninstall PREFIX=/opt/lacuna DESTDIR="$tmp/dest" >"$tmp/log" 2>&1
verdict $? "make uninstall"
left=$(find "$tmp/dest" ! -type d)
[ -z "$left" ] && [ ! -d "$tmp/dest/opt/lacuna" ]
verdict $? "uninstall leaves nothing${left:+; left: $left}"
[ "$fails" -eq 0 ] && echo "install: ok"
exit "$((fails > 0))"
