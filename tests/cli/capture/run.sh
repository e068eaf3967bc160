# A prompt from standard input becomes a trace; the summary is JSON alone; a dry run writes nothing.
M=$ROOT/datasets/models/code-lm
printf 'int main(void)\n{\n\treturn 0;\n}\n' >p.txt
"$LACUNA" capture --model "$M" --prompt p.txt --layers 0,5 --dry-run --json -o t.h5
ls
"$LACUNA" capture --model "$M" --prompt - --layers 0,5 --json -o t.h5 <p.txt
"$LACUNA" capture --model "$M" -p p.txt -o u.h5 --layers 5 --heads 1,6 --dtype f16
"$LACUNA" trace info u.h5
"$LACUNA" trace verify u.h5
ls
# Several prompts: a trace each, in a directory that other commands take as one.
printf 'static int one;\n' >q.txt
"$LACUNA" capture --model "$M" -p p.txt -p q.txt --layers 5 --heads 1 --no-nll --maps 0 --json -o two | grep -c '"trace_id"'
ls two
"$LACUNA" replay -q two -m dense:map=0 -o r && grep -c '"status":"ok"' r/records.jsonl
"$LACUNA" capture --model "$M" -p p.txt -p q.txt -o two.h5; echo "exit $?"
"$LACUNA" capture --model "$M" -p p.txt -p ./p.txt -o three; echo "exit $?"
