# What can be wrong on the command line and in the files.
try() { "$LACUNA" "$@"; echo "exit $?"; }
try trace
try trace inof v.h5
try trace info
try trace info none.h5
echo "no trace" >text.h5
try trace info text.h5
head -c 3000 /dev/zero >zero.h5.abcdef.part
try trace info zero.h5
try import -o t.h5
try import --q q.npy --k k.npy -o t.h5
try import --q none.npy --k k.npy --v v.npy -o t.h5
try import --safetensors text.h5 -o t.h5
D=$ROOT/tests/data/video-dit-a.safetensors
try import --safetensors "$D" --grid 4x8x13 -o t.h5
try import --safetensors "$D" --grid 4x8 -o t.h5
try import --safetensors "$D" --q step0.layer0.q --k nothing --v step0.layer0.v -o t.h5
try import --safetensors "$D" --meta '{"scale": 0}' -o t.h5
try import --safetensors "$D" --dtype int8 -o t.h5
try import --safetensors "$D" extra -o t.h5
try import --safetensors "$D" --grid 4x8x12 --dry-run -o t.h5
ls
