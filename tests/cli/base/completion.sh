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
END
bash t.bash
"$LACUNA" help --completion=fish
