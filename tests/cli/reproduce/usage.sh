try() { "$LACUNA" reproduce "$@"; echo "exit $?"; }
try
try spargeattn:9
try spargattn -o out
try spargeattn:99 -o out
try fg-attn:2 -o out --model nowhere
: >t.h5
try fg-attn:2 -o out --model dit=t.h5
rm t.h5
try fg-attn:2 -o out --model xx="$ROOT/datasets/models/video-dit"
try fg-attn:2 -o out --model dit="$ROOT/datasets/models/code-lm"
try sale:3 -o out --model lm="$ROOT/datasets/models/video-dit"
"$LACUNA" reproduce --list | cut -c1-50 | grep -E '^(spargeattn:(9|2|11)|sampleattention:2|sale:3|fg-attn:3|sale:fp16)'
"$LACUNA" reproduce --list --json | grep -c '"id"'
ls
