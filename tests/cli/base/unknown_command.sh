"$LACUNA" lsit methods; echo $?
"$LACUNA" frobnicate; echo $?
"$LACUNA" --json; echo $?
"$LACUNA" version extra; echo $?
