"$LACUNA" list metrcs; echo $?
"$LACUNA" list; echo $?
"$LACUNA" list methods metrics; echo $?
