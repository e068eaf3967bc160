# A sampler with methods inside it: the exact clip is capture's, a method that keeps everything
# gives the same clip, one that does not apply is skipped; what belongs to language models is refused.
model=$ROOT/datasets/models/video-dit
size='--size 4x32x48 --steps 3 --seed 5'
# shellcheck disable=SC2086
run()
{
    "$LACUNA" eval --model "$model" -o d $size "$@"
}
run -m radial:dense_steps=3 -m fg-attn -m spargeattn:theta=-1:tau=0.5 -m sale --save-frames f -q
# shellcheck disable=SC2086
"$LACUNA" capture --model "$model" $size --save-frames c --layers 0 -q -o t.h5
diff -r c f/dense && echo same clip
ls f
"$LACUNA" analyze d --group method --columns 'ssim,density_elem@step=0'
"$LACUNA" analyze d --columns psnr --group method | grep -E 'psnr|radial'
"$LACUNA" analyze d --table status --group reason
run -m radial:dense_steps=3 -m fg-attn --dry-run
run -m fg-attn --guidance 3 -q
"$LACUNA" analyze d --group task,method --columns density_elem@step=0 --format csv | cut -d, -f1-6 | tail -2
run -m fg-attn --task t.txt
run -m fg-attn --samples 3
run -m fg-attn --qkv model
run -m fg-attn@density_elem=0.3
"$LACUNA" eval --model "$model" -m radial -o e
"$LACUNA" eval --model "$ROOT/datasets/models/code-lm" -m streaming --task t.h5 --size 4x32x48 -o e
ls
