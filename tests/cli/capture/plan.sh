# A dry run needs no weights and no prompt: config.json and a number of tokens say what it takes.
mkdir m
cat > m/config.json <<'END'
{"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
 "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 128256, "max_position_embeddings": 131072,
 "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "torch_dtype": "bfloat16", "tie_word_embeddings": false}
END
"$LACUNA" capture --model m --tokens 131072 --dry-run -o x.h5
"$LACUNA" capture --model m --tokens 131072 --layers 0,15 --heads 0-3 --maps 0 --dry-run -o x.h5
"$LACUNA" capture --model m --dry-run -o x.h5; echo "exit $?"
"$LACUNA" capture --model m --tokens 10 -o x.h5; echo "exit $?"
ls
