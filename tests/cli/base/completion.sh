# What the program offers, and how bash asks.
try() { echo "$*: $("$LACUNA" help --complete -- "$@" | paste -sd ' ')"; }
try li
try list me
try list --js
try records re
try help ver
try list --progress j
try list --progress=j
try list x fil
try replay -m sale:ta
try replay -m sale:tau=0.1:tau_
try replay --method=dens
try analyze --columns density,err_l
try plot par
try analyze --table by
try no-such-command x
mkdir bin && ln -s "$LACUNA" bin/lacuna && touch file.h5
cat >t.bash <<'END'
PATH=$PWD/bin:$PATH
compopt() { :; }
. "$1"
COMP_LINE="lacuna replay -m sale:ta" COMP_POINT=24
_lacuna
echo "bash: ${COMPREPLY[*]}"
END
bash t.bash "$ROOT/completion/lacuna.bash"
