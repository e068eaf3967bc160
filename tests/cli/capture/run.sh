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
