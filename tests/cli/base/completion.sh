"$LACUNA" help --completion=bash >c.bash
cat >t.bash <<'END'
. ./c.bash
try()
{
    COMP_WORDS=("$@")
    COMP_CWORD=$(($# - 1))
    _lacuna
    echo "${COMPREPLY[@]}"
}
try lacuna li
try lacuna list me
try lacuna list --js
try lacuna records re
try lacuna help ver
try lacuna list --progress j
touch file.h5
try lacuna list x fil
try lacuna replay -m sale : ta
try lacuna plot par
try lacuna analyze --table by
END
bash t.bash
"$LACUNA" help --completion=zsh | grep -c "compadd"
"$LACUNA" help --completion=fish | grep -c "^complete -c lacuna"  >n; [ "$(cat n)" -gt 100 ] && echo "fish has its options"
"$LACUNA" help --completion=tcsh
