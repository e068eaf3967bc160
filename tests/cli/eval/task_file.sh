# Questions of a file: grades; a line that cannot be used is named; prompts that are too long.
model=$ROOT/datasets/models/code-lm
run()
{
    "$LACUNA" eval --model "$model" -m streaming:sink=4:window=64 -q -o d "$@"
    echo "exit $?"
}
"$LACUNA" prompt needle -n 400 --json >q.jsonl
cat >>q.jsonl <<'JSON'
{"prompt":"int main(int argc, char *","answers":"argv","choices":["argv","banana"],"metric":"choice","group":"mc"}
{"input":"int main(int argc,","answer_prefix":" char *","outputs":["argv", "zebra"],"metric":"contains_all","max_new_tokens":3}
{"dataset":"lcc","prompt":"static int count;\nstatic int ","answers":["count;"],"max_new_tokens":4}
JSON
run --task q.jsonl
"$LACUNA" analyze d --group task,method --columns 'score@exact,score@contains_all,choice_acc,truncated'
run --task q.jsonl -n 120
"$LACUNA" analyze d --group task,method --columns truncated | grep 'limit=120.*exact\|exact.*limit=120'
run --task q.jsonl -n 120 --truncate error
cat >others.jsonl <<'JSON'
{"id":1,"context":"int x;","input":"Who?","answer":["Bob"],"options":["Ann","Bob","Cid","Dan"]}
JSON
run --task others.jsonl --grade letter --max-new 4 --template '{context} {input} A. {OPTION_A} B. {OPTION_B} Answer: B'
run --task others.jsonl --grade choice --template '{input}'
run --task others.jsonl --grade letter --template '{OPTION_E}'
run --task others.jsonl --template '{input}'
printf '{"index":0,"input":"int","answer_prefix":" main","outputs":["(void)"]}\n' >ruler.jsonl
run --task ruler.jsonl --grade contains_all --max-new 5
"$LACUNA" analyze d --where task='file:file=others*|file:file=ruler*' --group task,method --columns 'score@letter,choice_acc' |
    grep -oE '(others|ruler).jsonl:metric=[a-z_]*:max_new=[0-9]*' | sort -u
printf '{"prompt":"int","answers":[1.5],"metric":"first_int","max_new_tokens":1}\n' >decimal.jsonl
run --task decimal.jsonl
try()
{
    printf '%s\n' "$1" >bad.jsonl
    shift
    run --task bad.jsonl "$@"
}
try 'not json'
try '[]'
try '{"answers":["x"],"metric":"exact"}'
try '{"context":"a","input":"b","answers":["x"],"metric":"exact"}'
try '{"context":"a","input":"b","answers":["x"],"metric":"exact"}' --template '{contxt}'
try '{"prompt":"a","answers":["x"]}'
try '{"prompt":"a","answers":["x"],"metric":"rouge"}'
try '{"prompt":"a","metric":"exact"}'
try '{"prompt":"a","answers":[true],"metric":"exact"}'
try '{"prompt":"a","answers":["x"],"metric":"choice"}'
try '{"prompt":"a","answers":["x"],"metric":"choice","choices":["y","z"]}'
try '{"prompt":"a","answers":["x"],"metric":"exact","max_new_tokens":0}'
try '{"prompt":"a","answers":["x",""],"metric":"contains"}'
try '{"prompt":"a","answers":["x"],"metric":"choice","choices":["x",""]}'
try '{"prompt":"a","answers":["x"],"metric":"exact","stop":[""]}'
try '{"prompt":"a","answers":["x"],"metric":"exact","stop":[1]}'
try '{"context":"a","answers":["x"],"metric":"exact"}' --template 'the same for all'
try ''
