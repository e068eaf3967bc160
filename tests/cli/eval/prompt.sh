# Generated prompts, whose texts are fixed: sums of whole prompts, and what is refused.
"$LACUNA" prompt needle:domain=c -n 2K --depth 0 --seed 7 | sha256sum | cut -c1-16
"$LACUNA" prompt needle:domain=c -n 2K --depth 0.5 --seed 7 | sha256sum | cut -c1-16
"$LACUNA" prompt needle:domain=c -n 2K --depth 1 --seed 7 -o p.txt
sha256sum <p.txt | cut -c1-16
"$LACUNA" prompt needle:domain=c -n 8K --depth 0.25 --seed 7 | sha256sum | cut -c1-16
"$LACUNA" prompt needle:domain=c -n 32K --depth 0.5 --seed 7 | sha256sum | cut -c1-16
"$LACUNA" prompt needle:domain=en -n 200 --seed 7
echo
"$LACUNA" prompt track:domain=en:h=2 -n 180 --seed 7 --json
"$LACUNA" prompt kv -n 100 --depth 1
echo
printf 'one\ntwo\nthree\n' >h.txt
"$LACUNA" prompt needle -n 70 --haystack h.txt
echo
try()
{
    "$LACUNA" prompt "$@"
    echo "exit $?"
}
try
try needel
try needle kv
try needle:n=2
try needle:domain=c:domain=en
try needle -n 1K,2K
try needle -n 20
try needle --depth 2
try chain --json
try needle --chat 'no hole'
try needle --model nowhere
try needle --haystack h.txt -o h.txt
