# A checkpoint that leaves room for two readings is read as transformers does, with a word about it.
mkdir m
cp "$ROOT/datasets/models/code-lm/tokenizer.json" m
sed 's/"architectures"/"_name_or_path": "someone\/own-name", "dtype": "float32", "x": 1e400, "architectures"/' \
    "$ROOT/datasets/models/code-lm/config.json" >m/config.json
echo '{"add_bos_token": false, "model_max_length": 1000000000000000019884624838656}' >m/tokenizer_config.json
printf 'a \315\270 b' >p.txt
"$LACUNA" capture --model m --prompt p.txt --dry-run -o t.h5
