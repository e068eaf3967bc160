"$LACUNA" list methods -v | sed -n '/^streaming /,/^$/p'
"$LACUNA" list methods --json >m.json
head -3 m.json
