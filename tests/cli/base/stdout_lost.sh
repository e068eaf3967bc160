# Results that cannot be written are a failure: closed, full, and a reader that went away.
"$LACUNA" list metrics >&-; echo $?
"$LACUNA" list metrics >/dev/full; echo $?
"$LACUNA" list metrics >/dev/full --json; echo $?
{
    until [ -e closed ]; do :; done
    "$LACUNA" list metrics
    echo $? >status
} | {
    exec <&-
    : >closed
}
cat status
