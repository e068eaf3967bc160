try() { echo "$1" >c.json; "$LACUNA" list metrics --config c.json; echo $?; }
try '{"sede": 1}'
try '{"seed": "many"}'
try '{"seed": {}}'
try '{"seed": [1]}'
try '{"seed": 1, "seed": 2}'
try '[]'
try '{"command": "replay"}'
try '{"arguments": [1]}'
"$LACUNA" list metrics --config no-such.json; echo $?
LACUNA_SEED=x "$LACUNA" list metrics; echo $?
