# Flag over environment over file over default; --print-config writes what --config reads.
show() { "$LACUNA" "$@" --print-config | grep -e seed -e jobs -e '"json"'; }
echo '{"seed": 5, "jobs": 2, "json": true, "arguments": ["gpus"], "command": "list"}' >c.json
echo "default"; show list
echo "file"; show list --config c.json
echo "environment"; LACUNA_JOBS=3 show list --config c.json
echo "flag"; LACUNA_JOBS=3 show list --config=c.json --jobs 4 --no-json
echo "file named in the environment"; LACUNA_CONFIG=c.json show list
LACUNA_JOBS=3 "$LACUNA" list metrics --config c.json --print-config >d.json
"$LACUNA" list --config d.json --print-config | cmp - d.json && echo "round trip"
"$LACUNA" list --config c.json 2>/dev/null
