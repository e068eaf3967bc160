"$LACUNA" list methods
