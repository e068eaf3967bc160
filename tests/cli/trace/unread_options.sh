# An option that the action does not read is refused: --kv fp8 of a subset would leave keys as they are.
"$LACUNA" capture -q -m "$ROOT/datasets/models/code-lm" --prompt "$ROOT/core/version.c" -n 64 --layers 1 --heads 0-3 --maps 0 -o t.h5
for words in "subset t.h5 --kv fp8 -o s.h5" "verify t.h5 --gzip" "info t.h5 -o s.h5" "pack t.h5 --layers 1 -o s.h5"; do
    # shellcheck disable=SC2086 # words
    "$LACUNA" trace $words
    echo "exit $?"
done
ls
