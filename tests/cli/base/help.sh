"$LACUNA" help
"$LACUNA" --help | head -1
"$LACUNA" | head -1
