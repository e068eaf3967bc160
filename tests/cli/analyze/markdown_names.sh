# A model's name is text in Markdown, wherever it stands.
"$LACUNA" import -q --safetensors "$ROOT/tests/data/video-dit-a.safetensors" --grid 4x8x12 \
    --name '<img src=x onerror=alert(1)> [x](javascript:alert(1))' -o t.h5 >/dev/null
"$LACUNA" replay -q t.h5 --layers 0 --heads 0 -m dense -o r
"$LACUNA" analyze r -f md | grep -n img
