# Architectures and tokenizers that are not supported are named, with what is.
echo "int main(void);" >p.txt
mkdir gemma bert
echo '{"architectures": ["Gemma2ForCausalLM"]}' >gemma/config.json
"$LACUNA" capture --model gemma --prompt /dev/null -o t.h5
echo $?
cp "$ROOT"/datasets/models/code-lm/*.safetensors* "$ROOT"/datasets/models/code-lm/config.json bert
echo '{"model": {"type": "WordPiece", "vocab": {}}}' >bert/tokenizer.json
"$LACUNA" capture --model bert --prompt p.txt -o t.h5
echo $?
rm bert/model-00002-of-00002.safetensors
"$LACUNA" capture --model bert --prompt p.txt -o t.h5
echo $?
"$LACUNA" capture --model "$ROOT/datasets/models/code-lm" --prompt p.txt --tokens 1000000 -o t.h5
echo $?
"$LACUNA" capture --model "$ROOT/datasets/models/code-lm" --prompt p.txt --device cuda -o t.h5 2>/dev/null # no CUDA here, or no GPU
echo $?
ls
