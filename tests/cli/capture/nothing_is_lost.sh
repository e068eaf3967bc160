# --force replaces results only when the run can begin; names in any encoding come back; a comparison of
# nothing is refused.
"$LACUNA" capture -q -m "$ROOT/datasets/models/code-lm" --prompt "$ROOT/core/version.c" -n 64 --layers 1 --heads 0-1 --maps 0 -o t.h5
"$LACUNA" replay -q t.h5 -m dense -o r; echo "exit $?"
"$LACUNA" replay -q t.h5 -m dense --steps 99 --force -o r; echo "exit $?"
"$LACUNA" replay -q t.h5 -m dense --force --dump-masks no/such/m.h5 -o r; echo "exit $?"
"$LACUNA" replay -q t.h5 -m dense --force --dump-masks x.h5 --dump-outputs x.h5 -o r; echo "exit $?"
grep -c '"method":"dense"' r/records.jsonl
printf 'damaged\n' >r/records.jsonl
"$LACUNA" replay -q t.h5 -m streaming --force -o r; echo "exit $?"
grep -c '"method":"streaming"' r/records.jsonl
"$LACUNA" trace export -q t.h5 -o ex
name=
for i in 1 2 3 4 5 6 7 8 9 10; do name="$name"éééé; done
"$LACUNA" import -q --q ex/*q.npy --k ex/*k.npy --v ex/*v.npy --name "$name" -o "$(printf 'caf\351.h5')"; echo "exit $?"
"$LACUNA" replay -q "$(printf 'caf\351.h5')" -m dense -o s; echo "exit $?"
"$LACUNA" replay -q "$(printf 'caf\351.h5')" -m dense -o s; echo "exit $?"
"$LACUNA" analyze s --columns density_elem -f md | tail -1
"$LACUNA" compare r r --metrics cra_men; echo "exit $?"
"$LACUNA" replay -q t.h5 -m minference:table=none.json -o m; echo "exit $?"
# What is read is never what is written.
cp t.h5 u.h5
for out in r/records.jsonl ./r/../r/records.jsonl; do "$LACUNA" analyze r -o $out; echo "exit $?"; done
"$LACUNA" replay -q u.h5 -m streaming --force --dump-masks u.h5 -o w; echo "exit $?"
"$LACUNA" calibrate -q sale u.h5 -o u.h5 --force; echo "exit $?"
"$LACUNA" calibrate -q sale u.h5 -o r --force; echo "exit $?"
echo text >p.txt
"$LACUNA" capture -q -m "$ROOT/datasets/models/code-lm" -p p.txt -o p.txt --force; echo "exit $?"
cp ex/*q.npy q.npy
"$LACUNA" import -q --q q.npy --k ex/*k.npy --v ex/*v.npy -o q.npy --force; echo "exit $?"
ln u.h5 u.safetensors
"$LACUNA" trace export u.h5 -o u.safetensors --force; echo "exit $?"
"$LACUNA" capture -q -m "$ROOT/datasets/models/code-lm" -p p.txt --capture-steps 3 -o n.h5; echo "exit $?"
cmp t.h5 u.h5 && echo same
