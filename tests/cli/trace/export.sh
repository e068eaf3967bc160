# Tensors go out as .npy and .safetensors, and come in again the same.
"$LACUNA" import --safetensors "$ROOT/tests/data/video-dit-a.safetensors" --grid 4x8x12 --dtype bfloat16 -o v.h5
"$LACUNA" trace export v.h5 -o all.safetensors
"$LACUNA" import --safetensors all.safetensors --grid 4x8x12 -o w.h5
"$LACUNA" trace export v.h5 --layers 5 --steps 3 --heads 1 -o npy --dry-run
"$LACUNA" trace export v.h5 --layers 5 --steps 3 --heads 1 -o npy
ls npy
"$LACUNA" import --q npy/step-003.main.layer-05.q.npy --k npy/step-003.main.layer-05.k.npy \
    --v npy/step-003.main.layer-05.v.npy --meta '{"layer": 5}' -o one.h5
"$LACUNA" trace export one.h5 -o again
for t in q k v; do cmp npy/step-003.main.layer-05.$t.npy again/step-000.main.layer-05.$t.npy && echo "same $t"; done
"$LACUNA" trace export v.h5 --tensors q --layers 5 --steps 3 -o q.npy --json
"$LACUNA" trace export v.h5 --layers 9 -o x; echo "exit $?"
"$LACUNA" trace export v.h5 --tensors map_sum -o x; echo "exit $?"
