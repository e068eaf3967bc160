# A checkpoint that leaves room for two readings is read as transformers does, with a word about it.
mkdir m
cp "$ROOT/datasets/models/code-lm/tokenizer.json" m
sed 's/"architectures"/"_name_or_path": "someone\/own-name", "dtype": "float32", "x": 1e400, "architectures"/' \
    "$ROOT/datasets/models/code-lm/config.json" >m/config.json
echo '{"add_bos_token": false, "model_max_length": 1000000000000000019884624838656}' >m/tokenizer_config.json
printf 'a \315\270 b' >p.txt
"$LACUNA" capture --model m --prompt p.txt --dry-run -o t.h5
LC_ALL=C sed 's/add_bos_token\x07\x00\x00\x00\x01/add_bos_token\x07\x00\x00\x00\x00/' "$ROOT/tests/data/gguf/llama.gguf" >l.gguf
"$LACUNA" capture --model l.gguf --prompt "$ROOT/datasets/prompts/core.txt" --tokens 8 --dry-run -o t.h5
