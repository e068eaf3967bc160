"$LACUNA" list methods --jsn; echo $?
"$LACUNA" list methods --verb; echo $?
"$LACUNA" list methods --jobs=many; echo $?
"$LACUNA" list methods --jobs; echo $?
"$LACUNA" list methods -x; echo $?
