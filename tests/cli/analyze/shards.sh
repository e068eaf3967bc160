# Shards that were never started are told of where the numbers of the others are read.
"$LACUNA" capture -q -m "$ROOT/datasets/models/code-lm" --prompt "$ROOT/core/version.c" -n 64 --layers 1 --heads 0-3 --maps 0 -o t.h5
shard() { "$LACUNA" replay -q t.h5 -m dense --shard "$1" -o "$2"; }
read_both() { "$LACUNA" status "$@" && "$LACUNA" analyze "$@" --columns density_elem | grep ^dense; }
shard 0/3 a
read_both a
echo "-- one is left"
shard 1/3 a
read_both a
echo "-- it lies in a directory of its own"
shard 2/3 b
read_both a b
echo "-- of which others know nothing"
read_both b
echo "-- all in two halves"
shard 0/2 b && shard 1/2 b
read_both b
echo "-- by one process"
cp -r a c && "$LACUNA" replay -q t.h5 -m dense -o c
read_both c
