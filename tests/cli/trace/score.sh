# Windows and caps of a call: imported, shown, verified, exported and back, replayed or refused by name.
FILE=$ROOT/tests/data/video-dit-a.safetensors
"$LACUNA" import --safetensors "$FILE" --causal --meta '{"window_left": 63, "softcap": 20}' -o w.h5
"$LACUNA" trace info w.h5 | tail -n 4
"$LACUNA" trace export w.h5 -o w.safetensors
"$LACUNA" import --safetensors w.safetensors -o again.h5
"$LACUNA" trace export w.h5 --layers 0 -o npy
"$LACUNA" replay w.h5 -q --steps 0 --layers 0 --heads 0 -m dense:map=0 -m streaming:sink=2:window=16 -m minference -m svg1 -o r
sed -n 's/.*"method":"\([^"]*\)".*"status":"\([^"]*\)","reason":"\([^"]*\)".*/\1 \2: \3/p' r/records.jsonl
sed -n 's/.*"method":"\([^"]*\)".*"pairs_kept":\([^,]*\),"pairs_allowed":\([^,]*\),.*"notes":"\([^"]*\)".*/\1 \2 of \3, \4/p' r/records.jsonl
"$LACUNA" import --safetensors "$FILE" --meta '{"window_left": 499}' -o full.h5 >/dev/null
"$LACUNA" replay full.h5 -q --steps 0 --layers 0 --heads 0 -m spargeattn -o s && grep -c '"status":"ok"' s/records.jsonl
"$LACUNA" import --safetensors "$FILE" --meta '{"softcap": "much"}' -o x.h5; echo "exit $?"
echo '{"name": "m", "window": 9}' >meta.json
"$LACUNA" import --safetensors "$FILE" --meta meta.json -o x.h5; echo "exit $?"
"$LACUNA" import --safetensors "$FILE" --meta '{"name": [1]}' -o x.h5; echo "exit $?"
