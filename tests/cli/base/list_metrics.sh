"$LACUNA" list metrics -v | sed -n '/^density_elem /,/^$/p'
"$LACUNA" list metrics | sed -n '/^err_lse_max /p'
"$LACUNA" list metrics --json | sed -n 1,7p
"$LACUNA" list metrics tau -v
