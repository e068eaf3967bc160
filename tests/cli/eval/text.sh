# Likelihoods of a text: run, what is done already, a method that does not apply, tables.
model=$ROOT/datasets/models/code-lm
cp "$ROOT/tests/data/code-lm-a.txt" t.txt
"$LACUNA" eval --model "$model" -m dense -m streaming:sink=4:window=64 -m radial --task t.txt -n 128 -o d
"$LACUNA" eval --model "$model" -m streaming:sink=4:window=64 --task t.txt -n 128 -o d --dry-run
"$LACUNA" eval --model "$model" -m streaming:sink=4:window=64,32 --task t.txt -n 128 -o d
"$LACUNA" eval --model "$model" -m streaming:sink=4:window=64 --task t.txt -n 128 -o d --local-errors
"$LACUNA" analyze d --table eval --columns density_elem,tokens_scored
"$LACUNA" analyze d --table status
"$LACUNA" analyze d --group scope,task,tokens,setting,layer --columns density_elem
"$LACUNA" compare d d
# A replay's search serves the run inside the model.
"$LACUNA" capture --model "$model" --prompt t.txt --tokens 128 --maps 0 -q -o t.h5
"$LACUNA" replay t.h5 -m streaming:sink=4@density_elem=0.3:per=model -q -o found
"$LACUNA" eval --model "$model" -m streaming:sink=4@density_elem=0.3:per=model --found found --task t.txt -n 128 -o f
"$LACUNA" analyze f --table eval --columns density_elem
"$LACUNA" eval --model "$model" -m streaming@density_elem=0.3:per=model --found found --task t.txt -n 128 -o f
"$LACUNA" eval --model "$model" -m streaming --found found --task t.txt -n 128 -o f
# A search of what does not apply finds nothing, and says why.
"$LACUNA" replay t.h5 --layers 0 --heads 1 -m bigbird@density_elem=0.3:per=model -o none
"$LACUNA" eval --model "$model" -m bigbird@density_elem=0.3:per=model --found none --task t.txt -n 128 -o f
ls d
