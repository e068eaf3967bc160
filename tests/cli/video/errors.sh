# What a video capture refuses: status 2 for the command line, 3 for files; none leaves a trace.
try()
{
    "$LACUNA" capture --model "$ROOT/datasets/models/video-dit" -o t.h5 "$@"
    echo "$?"
}
cp "$ROOT/tests/data/video-dit-a.safetensors" noise.safetensors
cp "$ROOT/tests/data/tiny/wan-golden.safetensors" other.safetensors
try --steps 2
try --size 4x60x96
try --size 1x16x24 --steps 2 --capture-steps 2
try --size 1x16x24 --negative noise.safetensors
try --size 1x16x24 --text other.safetensors
try --size 1x16x24 --noise noise.safetensors
ls
