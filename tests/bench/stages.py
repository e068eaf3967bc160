#!/usr/bin/env python3
"""Cycles of a stage of every attention kernel on the GPU at hand, for the cost model (doc/cost-model.md).

    python3 tests/bench/stages.py [--bench build/gpu/benchcu] [--seconds 80] [--raw FILE] [--csv SET] [--write]

Counts the cycles of some lines of benchcu and fits s of each kernel in datasets/kernels.json, with half or masked where lists have
such stages, on a part of them. Prints these, and the errors on the other lines, which the fit has not seen, by kernel. --write: the
constants go to datasets/kernels.json. --raw: lines that benchcu wrote earlier. --csv: the lines that were not fitted, as
tests/data/model_lines.csv has them. Standard library only; the arithmetic is that of core/gpumodel.c, written again.
"""
import argparse, json, math, os, re, statistics, subprocess, tempfile, time

PATH = os.path.join(os.path.dirname(__file__), "../../datasets/kernels.json")
FILE = json.load(open(PATH))
SHARED, KERNELS = FILE["shared"], {k["name"]: k for k in FILE["kernels"] if k["sm"] == 90}
SMS = 132  # multiprocessors
FIT = (r"4K full|hd\d+ 32K full 16/16|list \S+ (100|10|2)% |slices|sink bf16|32K 64x32|columns.*gather|(100|25)% pv"
       r"|32K full 32/32 sage")
PARTS = [  # options and lines of benchcu, what matters most first
    ["hd(64|128) (32K (list|full 16/16|64x32|slices|columns|window)|4K full 16/16)"],
    ["--all", r"(x64|x128|pair|warp) 32K (100|25)% pv=16|^int8-\S+ 32K (100|25)% pv=inf|K full 32/32 sageattention"],
    ["--all", r"(x64|x128|pair|warp) 32K (50|12.5)% pv=16|^int8-\S+ 32K (50|12.5)% pv=inf|x(64|128) 32K 25% pv=0"],
    ["hd(64|128) (8K|32K|128K) causal 32/8$|hd(64|128) (16K|64K) full 16/16|K causal 32/8 sageattention(:version=1)?$"]]
BARE = r"(slices|window).*gather"  # a replay looks at the bits of every gathered tile, these lines at few


def measure(bench, seconds, raw):
    end = time.time() + seconds
    for words in PARTS:
        if time.time() > end - 4:
            print("left out, no time:", words[-1])
            continue
        part = tempfile.mktemp()
        try:
            subprocess.run([bench, "--cycles", *words[:-1], "--samples", "3", "--raw", part, words[-1]], timeout=max(5, end - time.time()),
                           stdout=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            print("cut, no time:", words[-1])
        if os.path.exists(part):
            raw.write(open(part).read())
            os.remove(part)


def read(path):
    """Lines with work: name, kernel, work, cycles."""
    lines = {}
    for text in open(path):
        try:
            x = json.loads(text)
        except ValueError:  # of a part that was cut
            continue
        if "work" in x and x["cycles"] and not re.search(BARE, x["name"]):
            kernel = re.sub("^bf16-", "", x["kernel"])
            lines[x["name"]] = dict(name=x["name"], kernel=kernel, work=x["work"], cycles=statistics.median(x["cycles"]))
    return list(lines.values())


def cycles(k, work):
    """Until the last multiprocessor ends."""
    rows, stages, half, masked, longest, shortest = work
    item = k["item"] + k["masked"] * masked / rows
    whole = stages + k.get("half", 1) / 2 * half
    mean = whole / (stages + half)
    b = (whole + item * rows) / SMS
    once = max(k.get("whole", 1), 1)
    e = max(b, once * (longest * mean + item), math.ceil(rows / SMS / once) * once * (shortest * mean + item))
    return SHARED["start_cycles"] + k["s"] * (e if k.get("whole") else min(e, b + SHARED["cut_stages"]))


def fit(k, lines):
    """s, and with which costs of a half or masked stage and of a row the lines agree best; those of a row only where rows are short."""
    key = "half" if any(x["work"][2] for x in lines) else "masked" if "bits" in k["name"] else None
    short = any(sum(x["work"][1:3]) < 12 * x["work"][0] for x in lines)
    best = None
    for i in range(100 if key == "half" else 0, 200) if key and len(lines) > 1 else [None]:  # half a stage costs half of one at least
        for item in [j / 20 for j in range(61)] if short and len(lines) > (2 if key else 1) else [k["item"]]:
            t = dict(k, s=1, item=item, **({key: i / 100} if key and i is not None else {}))
            logs = [math.log((x["cycles"] - SHARED["start_cycles"]) / (cycles(t, x["work"]) - SHARED["start_cycles"])) for x in lines]
            spread = statistics.pvariance(logs)
            if best is None or spread < best[0]:
                best = spread, dict(t, s=round(math.exp(statistics.mean(logs))))
    return best[1]


def errors(ks, lines):
    return [cycles(ks[x["kernel"]], x["work"]) / x["cycles"] - 1 for x in lines]


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
            text = "    " + json.dumps(fits.get(k["name"], k)) + text.rstrip()[-1:].replace("}", "") + "\n"
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
    known = [x for x in read(o.raw) if x["kernel"] in KERNELS]
    lines = [x for x in known if "pv=0" not in x["name"]]
    used = [x for x in lines if re.search(FIT, x["name"])]
    others = [x for x in lines if x not in used]
    new, fits = dict(KERNELS), {}
    for kernel in sorted({x["kernel"] for x in lines}):
        k, mine = KERNELS[kernel], [x for x in used if x["kernel"] == kernel]
        if mine:
            new[kernel] = fits[kernel] = dict(fit(k, mine), source="tests/bench/stages.py on an H200")
        print("%-28s s %5d, was %5d  " % (kernel, new[kernel]["s"], k["s"]), ", ".join(
            "%s %.3g, was %.3g" % (w, new[kernel][w], k[w]) for w in ("half", "masked", "item") if k.get(w)))
    for kernel in sorted({x["kernel"] for x in others}):
        say(kernel, errors(new, [x for x in others if x["kernel"] == kernel]))
    say("held out", errors(new, others))
    say("all, constants as they were", errors(KERNELS, lines))
    say("P V that a filter skipped", errors(new, [x for x in known if x not in lines]))
    for x in others if o.csv else ():
        print(",".join(map(str, [o.csv, x["kernel"], *x["work"], 0, round(x["cycles"])])))
    if o.write:
        write(fits)


if __name__ == "__main__":
    main()
