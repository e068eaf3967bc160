# Files of benchmarks: a page has numbers of those that are there and names the others. On the CPU by
# a recipe whose evals need no GPU, with two settings and one generated prompt.
mkdir -p data files wrong twice
cp -r "$ROOT/datasets/paper" data
ln -s "$ROOT/datasets/models" data/models
recipe=data/paper/recipes/sampleattention-2.json
sed -e '/^   "needs": "M",$/d' -e '/^    "\(minference\|bigbird:.*\|streaming:.*\)",$/d' \
    -e '/^ "claims": \[$/,/^ \],$/d' \
    -e 's/--task needle .*{trials}/--task needle --tokens 512 --depth 0.5 --trials 1/' \
    "$ROOT/datasets/paper/recipes/sampleattention-2.json" >$recipe
export LACUNA_DATA="$PWD/data"
context='int alpha(void)\n{\n    return 7;\n}\n'
line() { printf '{"context": "%s", "input": "What is it?", "answers": ["7"], "dataset": "%s"}\n' "$context" "$1"; }
line lcc >files/lcc.jsonl
line repobench-p >files/repobench-p.jsonl
line repobench-p >>files/repobench-p.jsonl
printf '{"context": "%s", "input": "The key?", "answer": ["7"], "options": []}\n' "$context" >files/passkey.jsonl
"$LACUNA" reproduce sampleattention:2 --quick --tasks files -q -o out
echo "exit $?"
# rows, columns and states of ours; printed numbers whose file is missing have its name
tr -d '\r' <out/pages/sampleattention-2.csv | cut -d, -f2-4,7,13-15,17- | sed -n '/^1,Ours,Task Type.Code/p; /^1,Full.*Single-Doc/p; /^2,Ours,Retr.Pass/p; /^1,Ours,[nA]/p' | sed "s/,[0-9.]\{1,\},ours/,N,ours/"
grep -o 'Files that were not given.*' out/pages/sampleattention-2.md
grep -o 'reproduce sampleattention:2 --quick .*DIR' out/pages/sampleattention-2.md
count() { find out/jobs -mindepth 2 -name log.txt | wc -l; }
echo "$(count) jobs"
mv files moved # a file counts by its content, not by its place
"$LACUNA" reproduce sampleattention:2 --quick --tasks moved -q -o out
echo "exit $?, $(count) jobs"
line lcc >>moved/lcc.jsonl
"$LACUNA" reproduce sampleattention:2 --quick --tasks moved -q -o out
echo "exit $?, $(count) jobs"

try() { "$LACUNA" reproduce sampleattention:2 -o none "$@"; echo "exit $?"; }
line hotpotqa >wrong/qasper.jsonl
try --tasks wrong
printf 'no JSON\n' >wrong/qasper.jsonl
try --tasks wrong
: >wrong/qasper.jsonl
try --tasks wrong
cp moved/lcc.jsonl twice
try --tasks moved --tasks twice
try --tasks data
try --tasks nowhere
