# The same help in three ways; --help=all has the options of every command, too.
"$LACUNA" help list >a
"$LACUNA" list --help >b
"$LACUNA" list no-such-topic -h >c
cmp a b && cmp a c && cat a
"$LACUNA" list --help=all | sed -n '/^Options of/,/^$/p'
"$LACUNA" list --help=some
"$LACUNA" help lsit
