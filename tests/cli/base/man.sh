SOURCE_DATE_EPOCH=86400 "$LACUNA" help --man >lacuna.1
head -1 lacuna.1
grep '^\.SH' lacuna.1
grep -c '^\.SS' lacuna.1 >n
# every command has a section, every line that begins with a dot is a request
[ "$(cat n)" -eq "$("$LACUNA" help | sed -n '/^Commands/,/^$/p' | grep -c '^  ')" ] && echo complete
grep '^\.' lacuna.1 | grep -v -E '^\.(TH|SH|SS|TP|PP|nf|fi)' | head
SOURCE_DATE_EPOCH=86400 "$LACUNA" help --man status >status.1
grep '^\.SH\|^\.TH' status.1
