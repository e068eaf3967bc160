# The same help in three ways; -h is the short one.
"$LACUNA" help list >a
"$LACUNA" list --help >b
"$LACUNA" list no-such-topic --help >c
cmp a b && cmp a c && cat a
"$LACUNA" list -h | grep -c -e --seed
"$LACUNA" help lsit
