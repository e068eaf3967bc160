"$LACUNA" list methods dense streaming | grep -v '^  '
"$LACUNA" list methods dense streaming --json | grep '"name": "\(dense\|streaming\|sale\)"'
"$LACUNA" list methods strming; echo $?
