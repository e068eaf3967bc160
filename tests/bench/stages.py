#!/usr/bin/env python3
"""Cycles of a stage of every attention kernel on the GPU at hand, for the cost model (doc/cost-model.md).

    python3 tests/bench/stages.py [--bench build/gpu/benchcu] [--seconds 80] [--raw FILE] [--csv SET] [--write]

Runs benchcu on some lines and fits s of each kernel in datasets/kernels.json, with half or masked where lists have such
stages, on a part of them. Prints these, and the errors on the other lines, which the fit has not seen, by kernel. The clock of a
line is told by the product beside it. --write: the constants go to datasets/kernels.json. --raw: lines that benchcu wrote earlier.
--csv: the lines that were not fitted, as tests/data/model_lines.csv has them. Standard library only; the arithmetic is that of
core/gpumodel.c, written again.
"""
import argparse, json, math, os, re, statistics, subprocess, tempfile, time

PATH = os.path.join(os.path.dirname(__file__), "../../datasets/kernels.json")
FILE = json.load(open(PATH))
SHARED, KERNELS = FILE["shared"], FILE["kernels"]
SMS, RATE, PRODUCT = 132, 4096, 0.8995  # multiprocessors, operations a cycle; the product keeps this share of them busy
FIT = r"4K full|hd\d+ 32K full 16/16|8K causal 32/8 bf16|list \S+ (100|10)% |slices|sink bf16|pv=16|32K full 32/32 sage"
PARTS = [  # samples and text of benchcu, what matters most first
    (3, "32K list"), (3, "hd128 32K full 16/16"), (3, "hd64 32K full 16/16"), (3, "4K full 16/16"), (3, "slices 128x1"),
    (3, "window 4096, sink"), (3, "x128 32K 100% pv=16"), (3, "x128 32K 25% pv=16"), (3, "x64 32K 100% pv=16"),
    (3, "x64 32K 25% pv=16"), (3, "32K full 32/32 sageattention"), (3, "pair 32K 100% pv=16"), (3, "pair 32K 25% pv=16"),
    (3, "warp 32K 100% pv=16"), (3, "warp 32K 25% pv=16"), (3, "8K causal 32/8"), (3, "16K causal"), (3, "32K causal 32/8 bf16"),
    (3, "64x32 25%"), (3, "columns, diagonals"), (3, "16K full"), (3, "x128 32K 25% pv=0"), (3, "x64 32K 25% pv=0"), (2, "128K full")]


def measure(bench, seconds, raw):
    end = time.time() + seconds
    for samples, text in PARTS:
        if time.time() > end - 4:
            print("left out, no time:", text)
            continue
        part = tempfile.mktemp()
        try:
            every = ["--all"] if text[:4] in ("pair", "warp") else []
            subprocess.run([bench, *every, "--samples", str(samples), "--raw", part, text], timeout=max(5, end - time.time()), stdout=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            print("cut, no time:", text)
        if os.path.exists(part):
            raw.write(open(part).read())
            os.remove(part)


def read(path):
    """Lines with work: name, kernel, work, product in TFLOP/s, us."""
    lines, product = {}, None
    for text in open(path):
        try:
            x = json.loads(text)
        except ValueError:  # of a part that was cut
            continue
        us = statistics.median(x["ns"]) * 1e-3 if x["ns"] else 0
        if x["name"] == "matmul":
            product = x["flop"] / us * 1e-6
        elif "work" in x:
            kernel = re.sub("^bf16-", "", x["kernel"])
            lines[x["name"]] = dict(name=x["name"], kernel=kernel, work=x["work"], product=product, us=us)
    return list(lines.values())


def entry(kernel):
    """As kernels.json has it; one that is new there begins as that of blocks that decide together, of P V in fp8, or of 128 channels."""
    block = re.sub("-(pair|warp)$", "", kernel).replace("-f16", "")
    for name in (kernel, block, block.replace("hd64", "hd128")):
        for k in KERNELS:
            if k["sm"] == 90 and k["name"] == name:
                new = dict(k, name=kernel, d=64 if "hd64" in kernel else 128)
                return {key: v for key, v in new.items() if key != "pv_fp8" or "-f16" not in kernel}
    return None


def launch(k, work):
    """Stages until the last multiprocessor ends, and us besides."""
    rows, stages, half, masked, longest, shortest = work
    item = k["item"] + k["masked"] * masked / rows
    whole = stages + k.get("half", 1) / 2 * half
    mean = whole / (stages + half)
    b = (whole + item * rows) / SMS
    once = max(k.get("whole", 1), 1)
    e = max(b, once * (longest * mean + item), math.ceil(rows / SMS / once) * once * (shortest * mean + item))
    if e > b + SHARED["cut_stages"] and not k.get("whole"):
        return b + SHARED["cut_stages"], SHARED["launch_us"] + SHARED["combine_us"]
    return e, SHARED["launch_us"]


def stage(k, x):
    """Cycles of a stage by one line."""
    stages, us = launch(k, x["work"])
    return (x["us"] - us) * 1e3 * clock(x) / stages


def clock(x):
    return x["product"] * 1e3 / (SMS * RATE * PRODUCT)


def fit(k, lines):
    """s, and the share of a half or masked stage with which the lines agree best."""
    key = "half" if any(x["work"][2] for x in lines) else "masked" if "bits" in k["name"] else None
    best = None
    least = 200 if key == "half" else 0  # a half stage costs half of one at least
    for i in range(least, 500) if key and len(lines) > 1 else [None]:
        t = k if i is None else dict(k, **{key: i / 200})
        logs = [math.log(stage(t, x)) for x in lines]
        spread = statistics.pvariance(logs)
        if best is None or spread < best[0]:
            best = spread, dict(t, s=round(math.exp(statistics.mean(logs))))
    return best[1]


def errors(ks, lines):
    return [launch_us(ks[x["kernel"]], x) / x["us"] - 1 for x in lines]


def launch_us(k, x):
    stages, us = launch(k, x["work"])
    return stages * k["s"] / clock(x) * 1e-3 + us


def say(what, e):
    a = sorted(map(abs, e))
    if a:
        print("%-28s n %3d  median %4.1f %%  p90 %4.1f %%  worst %4.1f %%" % (
            what, len(a), 100 * statistics.median(a), 100 * a[math.ceil(0.9 * len(a)) - 1], 100 * a[-1]))


def write(fits):
    out = []
    for text in open(PATH):
        if text.startswith('    {"name": '):
            k = json.loads(text.strip().rstrip(","))
            new = [x for name, x in fits.items() if name == k["name"]]
            if k["name"] == "hd128-*":  # what was not described before
                new = [x for name, x in fits.items() if name not in [y["name"] for y in KERNELS]] + [k]
            text = ",\n".join("    " + json.dumps(x) for x in new or [k]) + text.rstrip()[-1:].replace("}", "") + "\n"
        out.append(text)
    open(PATH, "w").write("".join(out))


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("--bench", default="build/gpu/benchcu")
    a.add_argument("--seconds", type=float, default=80)
    a.add_argument("--raw")
    a.add_argument("--csv", metavar="SET")
    a.add_argument("--write", action="store_true")
    o = a.parse_args()
    if not o.raw and not os.access(o.bench, os.X_OK):
        a.error(o.bench + ": no program; make gpu-bundle builds it, --bench names it")
    if not o.raw:
        o.raw = "stages.jsonl"
        with open(o.raw, "w") as f:
            measure(o.bench, o.seconds, f)
    lines = [x for x in read(o.raw) if x["product"] and entry(x["kernel"])]
    used = [x for x in lines if re.search(FIT, x["name"])]
    others = [x for x in lines if x not in used]
    old, new, fits = {}, {}, {}
    for kernel in sorted({x["kernel"] for x in lines}):
        k, mine = entry(kernel), [x for x in used if x["kernel"] == kernel]
        old[kernel] = new[kernel] = k
        if mine:
            new[kernel] = fits[kernel] = dict(fit(k, mine), source="tests/bench/stages.py on an H200")
        print("%-28s s %5d, was %5d  " % (kernel, new[kernel]["s"], k["s"]), ", ".join(
            "%s %.3g, was %.3g" % (w, new[kernel][w], k[w]) for w in ("half", "masked") if k.get(w)))
    for kernel in sorted({x["kernel"] for x in others}):
        say(kernel, errors(new, [x for x in others if x["kernel"] == kernel]))
    say("held out", errors(new, others))
    say("all, constants as they were", errors(old, lines))
    for x in others if o.csv else ():
        print(",".join(map(str, [o.csv, x["kernel"], *x["work"], round(x["product"], 1), round(x["us"] * 1e-3, 4)])))
    if o.write:
        write(fits)


if __name__ == "__main__":
    main()
