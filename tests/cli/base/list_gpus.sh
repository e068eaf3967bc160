"$LACUNA" list gpus --json >out 2>err
echo $?
grep -q '^\[' out && echo array
