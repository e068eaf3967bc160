# Tensors of the golden files become traces; info says what they hold.
D=$ROOT/tests/data
"$LACUNA" import --safetensors "$D/video-dit-a.safetensors" --grid 4x8x12 --maps 32 --name video-dit -o v.h5
"$LACUNA" trace info v.h5
"$LACUNA" import --safetensors "$D/code-lm-a.safetensors" --q layer5.q.heads0,7 --k layer5.k \
    --v layer5.v --causal --dtype bf16 --name code-lm --meta '{"layer": 5, "positions": "rope"}' -o c.h5
"$LACUNA" trace info c.h5
"$LACUNA" trace info c.h5 --json
ls
