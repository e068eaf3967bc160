"$LACUNA" version
"$LACUNA" --version | head -1
"$LACUNA" version --json
