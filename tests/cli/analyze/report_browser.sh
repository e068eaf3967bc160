# A report of 12 methods, 29 settings, 48 heads in a browser: no script error, small, findings on the first
# page of a print; the explorer follows clicks; names that are markup stay text.
# Prints what is wrong, then one line.
command -v chromium >/dev/null || { echo "the report in a browser: skipped, there is no chromium"; exit 0; }
LC_ALL=C awk 'function u() { seed = (seed * 16807) % 2147483647; return seed / 2147483647 }
BEGIN {
    seed = 7
    split("dense streaming sale spargeattn sampleattention minference flexprefill xattention fg-attn longformer bigbird oracle", m, " ")
    for (s = 0; s < 29; s++) for (l = 0; l < 6; l++) for (h = 0; h < 8; h++) {
        d = s == 0 ? 1 : 0.05 + 0.9 * u()
        e = s == 0 ? 0 : (1 - d) ^ 3 * u() / 4
        printf "{\"trace\":\"xxh3:a\",\"model\":\"</script><b>toy\",\"run\":0,\"step\":0,\"branch\":\"main\",\"timestep\":null,"
        printf "\"layer\":%d,\"head\":%d,\"kv_head\":%d,\"method\":\"%s\",\"params\":\"%s\",\"seed\":0,", l, h, int(h / 4), m[s % 12 + 1], s < 12 ? "" : "p=" int(s / 12)
        printf "\"backend\":\"cpu\",\"precision\":\"f32\",\"permute\":\"none\",\"n_q\":4096,\"n_k\":4096,\"d\":64,\"causal\":true,\"status\":\"ok\","
        printf "\"density_elem\":%.17g,\"err_l1_rel\":%.17g,\"cra_min\":%.17g,\"cra_p1\":%.17g,\"cra_mean\":%.17g", d, e, 1 - 4 * e, 1 - 3 * e, 1 - e
        for (i = 0; i < 30; i++) printf ",\"err_x%d\":%.17g", i, u()
        print "}"
    }
}' >records.jsonl
mkdir many && mv records.jsonl many/
"$LACUNA" report -q many -o r || exit
[ "$(wc -c <r/index.html)" -lt 5000000 ] || ls -l r/index.html
browser()
{
    timeout 1200 chromium --headless --no-sandbox --disable-gpu --user-data-dir="$PWD/profile" "$@" 2>/dev/null
}
browser --dump-dom "file://$PWD/r/index.html" >dom
grep -q '<html[^>]* data-error' dom && grep -o '<html[^>]*>' dom
ready=$(sed -n 's/.*<html[^>]* data-ready="\([0-9]*\)".*/\1/p' dom | head -n 1)
[ -n "$ready" ] || echo "the script did not come to its end"
grep -q '<b>toy' dom && echo "a name became markup"
[ "$(grep -o 'class="dot' dom | wc -l)" -eq 29 ] || echo "points are missing"
# A copy without the policy, with a user at its end: a head, another setting, a sorted and filtered table.
sed 's/<meta http-equiv[^>]*>//; s#</body></html>##' r/index.html >r/driven.html
cat >>r/driven.html <<'EOF'
<script>
const say = t => document.body.append(Object.assign(document.createElement("p"), {textContent: "us" + "er: " + t}));
const set = (i, v) => { const s = document.querySelectorAll("#controls select")[i]; s.value = v; s.dispatchEvent(new Event("change")); };
document.querySelectorAll("#grid-a button")[19].click();
say(document.querySelector("#head h3").textContent);
set(2, 3);
say(document.querySelector("#grid-b h3").textContent);
set(0, 0);
say(document.querySelector("#metric-text").textContent);
const table = document.querySelector("#table-summary table"), kept = table.tHead.rows[0].cells[2];
kept.click();
const shown = [...table.tBodies[0].rows].map(r => parseFloat(r.cells[2].textContent));
say("sorted: " + shown.every((x, i) => i === 0 || shown[i - 1] <= x));
const box = document.querySelector("#table-summary input");
box.value = "sale p=1";
box.dispatchEvent(new Event("input"));
say("rows that are left: " + [...table.tBodies[0].rows].filter(r => !r.hidden).length);
say("errors: " + (document.documentElement.dataset.error || "none"));
</script></body></html>
EOF
browser --dump-dom "file://$PWD/r/driven.html" | grep -o 'user: [^<]*' >did
diff - did <<'EOF'
user: Layer 2, head 3
user: B: bigbird
user: density_elem: |M| / |A|: kept pairs over allowed pairs; the headline density
user: sorted: true
user: rows that are left: 1
user: errors: none
EOF
if command -v pdftotext >/dev/null; then
    browser --no-pdf-header-footer --print-to-pdf="$PWD/r.pdf" "file://$PWD/r/index.html"
    [ "$(pdftotext -l 1 r.pdf - | grep -cE '^Findings$|Pareto front|cheapest setting')" -ge 3 ] ||
        echo "the findings are not on the first printed page"
fi
echo "the report in a browser: as it should be"
