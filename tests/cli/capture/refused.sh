# Architectures and tokenizers that are not supported are named, with what is.
echo "int main(void);" >p.txt
mkdir gemma bert
echo '{"architectures": ["Gemma2ForCausalLM"]}' >gemma/config.json
"$LACUNA" capture --model gemma --prompt /dev/null -o t.h5
echo $?
class() # DIR/FILE CLASS
{
    mkdir -p "${1%/*}"
    echo "{\"_class_name\": \"$2\"}" >"$1"
}
diffusers() # DIR/FILE CLASS
{
    class "$@"
    "$LACUNA" capture --model "${1%%/*}" --size 13x480x720 -o t.h5
    echo $?
}
diffusers cog/config.json CogVideoXTransformer3DModel
diffusers flux/model_index.json FluxPipeline
class hunyuan/transformer/config.json HunyuanVideoTransformer3DModel
diffusers hunyuan/model_index.json HunyuanVideoPipeline
diffusers vace/config.json WanVACETransformer3DModel
diffusers own/config.json WanModel
diffusers new/config.json BrandNewTransformerModel
class wan/transformer/config.json WanTransformer3DModel
diffusers wan/model_index.json WanPipeline
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
