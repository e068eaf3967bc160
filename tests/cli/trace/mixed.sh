# Calls of one run that differ in causality or in valid text lie in one file, and mean what they mean in files of their own.
FILE=$ROOT/tests/data/video-dit-a.safetensors
run() { "$LACUNA" replay -q "$1" -m dense:map=0 -m streaming:sink=4:window=32 -m spargeattn:theta=-1 -m oracle:kind=topk:k=8 --heads 0 -o "$2"; }
same() { "$LACUNA" compare "$1" "$2" --ignore trace | tail -n 1; }
mkdir a v
"$LACUNA" import -q --safetensors "$FILE" --causal -o causal.h5 >/dev/null
"$LACUNA" import -q --safetensors "$FILE" -o both.h5 >/dev/null
"$LACUNA" trace subset causal.h5 --layers 0 -o a/0.h5 >/dev/null
"$LACUNA" trace subset both.h5 --layers 5 -o a/5.h5 >/dev/null
"$LACUNA" trace join a -o a.h5 >/dev/null
"$LACUNA" trace info a.h5 | tail -n 4
"$LACUNA" trace info a.h5 --json | grep -c '"causal": false'
run a one; run a.h5 two; same one two
grep -o '"layer":.*"causal":[a-z]*' two/records.jsonl | sed 's/"layer":\(.\).*:/\1 /' | sort | uniq -c | sed 's/^ *//'
# The part that is left says it for the model again.
"$LACUNA" trace subset a.h5 --layers 5 -o part.h5 | sed 's/.*, xxh3/xxh3/'
"$LACUNA" trace info a/5.h5 --json | sed -n 's/.*"content_id": "\(.*\)",*/\1/p'
"$LACUNA" trace subset a.h5 --tokens 64 -o x.h5; echo "exit $?"
# Padding text.
text() { echo "{\"text_tokens\": 32, \"text_place\": \"back\", \"text_valid\": $1}"; }
"$LACUNA" import -q --safetensors "$FILE" --grid 4x8x11 --meta "$(text 20)" -o long.h5 >/dev/null
"$LACUNA" import -q --safetensors "$FILE" --grid 4x8x11 --meta "$(text 7)" -o short.h5 >/dev/null
"$LACUNA" trace subset long.h5 --steps 0 -o v/0.h5 >/dev/null
"$LACUNA" trace subset short.h5 --steps 3 -o v/3.h5 >/dev/null
"$LACUNA" trace join v -o v.h5 >/dev/null
"$LACUNA" trace info v.h5 | tail -n 4
run v three; run v.h5 four; same three four
# Through another program's file and back; packed.
for t in a v; do
    "$LACUNA" trace export -q $t.h5 -o $t.safetensors >/dev/null
    "$LACUNA" import -q --safetensors $t.safetensors -o $t.again.h5 >/dev/null
    "$LACUNA" trace info $t.again.h5 | grep -c 'bidirectional$\|7 valid text tokens'
    "$LACUNA" trace pack -q $t.h5 -o $t.packed.h5 >/dev/null && "$LACUNA" trace verify $t.packed.h5
done
"$LACUNA" import -q --safetensors a.safetensors --causal -o all.h5 >/dev/null && "$LACUNA" trace info all.h5 | grep -c bidirectional || true
