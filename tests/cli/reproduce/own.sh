# A model of one's own: in a paper's cells by its name and beside them, at other lengths, in its chat
# text, with traces in turns.
copy() { # the shipped model with one layer and more positions
    mkdir "$1"
    cp "$ROOT"/datasets/models/code-lm/* "$1"
    chmod u+w "$1"/*
    sed -e 's/"num_hidden_layers": 6/"num_hidden_layers": 1/' -e 's/"max_position_embeddings": 32768/"max_position_embeddings": 131072/' \
        "$ROOT/datasets/models/code-lm/config.json" >"$1/config.json"
}
copy tiny
copy other
printf '%s\n' '{"chat_template": "{% for m in messages %}<|im_start|>{% endfor %}"}' >other/tokenizer_config.json
run() { "$LACUNA" reproduce sampleattention:4 --model internlm-7b=tiny --model other --lengths 1K,4K,200K --quick "$@"; }
run -o out --dry-run | sed 's/, [^,]*, [^,]*B\([,;]\)/, COST\1/; s/ of a processor.*//; s/on [0-9]* threads/on N threads/; s/[0-9:.]* \(s\|min\), [0-9.]* \(kB\|MB\)/COST/'
run -o out --disk 0.001
echo "exit $?"
run -q -o out --disk 0.007
echo "exit $?"
find out/jobs -name trace.h5
# 4K: printed and ours in the cells of InternLM-7B, and a column of the other model
tr -d '\r' <out/pages/sampleattention-4.csv | cut -d, -f3-5,7,13- | sed -n '/^4K,Average/p; /^4K,other/p; /^1K,other/p' | sed 's/,[0-9.]*%,\(beside\|ours\)/,N%,\1/; s/,[0-9a-f]\{16\},/,ID,/'
grep -o '^- \(Prompts\|Left\|Made\).*' out/pages/sampleattention-4.md
for f in out/jobs/*/prompt.txt; do head -n 1 "$f"; done | LC_ALL=C sort | uniq -c | sed 's/^ *//'
find out -type f | LC_ALL=C sort | xargs cksum >first
run -q -o out
echo "exit $?"
find out -type f | LC_ALL=C sort | xargs cksum | cmp - first && echo "nothing is made again"
# another table reads a trace that was deleted: it is captured again
"$LACUNA" reproduce sampleattention:f7 --model lm=tiny --lengths 1K --quick -o out 2>&1 | grep -v drawing
