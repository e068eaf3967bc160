#!/usr/bin/env python3
"""Time of the decode phase: every method on a layer of random values in the shape of an 8B model.

A layer of 32 query and 8 KV heads of 128, 32,768 tokens of the prompt and 512 generated ones. Scores have a standard deviation of 2, so that
a row's mass lies on some hundred keys. Each method is a `lacuna replay --phase decode` of its own, exact attention included; prints
processor seconds, those of `dense` subtracted beside them, wall seconds and peak memory as a Markdown table.

  /usr/bin/python3 tests/bench/decode.py LACUNA DIR [--tokens 32768] [--steps 512] [--jobs 2] [--only REGEX] [--precision f64]

Needs NumPy. DIR gets the trace (160 MB) and the records.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import time

import numpy as np

HEADS, KV, D, WINDOW = 32, 8, 128, 256
SETTINGS = ["dense", "streaming:sink=4:window=2048", "oracle:kind=topk:k=2048", "oracle:alpha=0.95", "oracle:kind=evict:k=2048",
            "quest:budget=2048:dense_layers=0", "ds:budget=2048", "twilight:dense_layers=0", "twilight:dense_layers=0:select=ds",
            "twilight:dense_layers=0:select=all", "moba:dense_last=0:topk=3", "nsa"]
SETTINGS += ["evict:by=" + by for by in ("snapkv", "snapkv:profile=kvpress", "snapkv:profile=frontier", "adakv", "tova", "h2o", "streaming",
                                         "knorm", "keydiff", "observed", "random")]
SETTINGS += [f"evict:by={by}:when={when}" for when in ("step", "every:every=64") for by in ("snapkv", "knorm", "keydiff")]
SETTINGS += ["evict:then=quest+budget=256+dense_layers=0"]


def make(path, tokens, steps):
    rng = np.random.default_rng(0)
    n = tokens + steps
    tensors = {"q": 2 * rng.standard_normal((HEADS, WINDOW + steps, D), np.float32), "k": rng.standard_normal((KV, n, D), np.float32),
               "v": rng.standard_normal((KV, n, D), np.float32), "col_sum": rng.standard_exponential((HEADS, tokens), np.float32)}
    at, head = 0, {"__metadata__": {"name": "random", "causal": "true", "decode_from": str(tokens)}}
    for name, x in tensors.items():
        half = name != "col_sum"
        tensors[name] = (x.view(np.uint32) >> 16).astype(np.uint16) if half else x
        head[name] = {"dtype": "BF16" if half else "F32", "shape": list(x.shape), "data_offsets": [at, at + tensors[name].nbytes]}
        at += tensors[name].nbytes
    text = json.dumps(head).encode()
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for x in tensors.values():
            x.tofile(f)


def timed(args):
    start, child = time.perf_counter(), subprocess.Popen(args)
    _, status, use = os.wait4(child.pid, 0)
    assert status == 0, f"{args} failed"
    return use.ru_utime + use.ru_stime, time.perf_counter() - start, use.ru_maxrss / 2**20


def main():
    p = argparse.ArgumentParser()
    p.add_argument("lacuna")
    p.add_argument("dir")
    p.add_argument("--tokens", type=int, default=32768)
    p.add_argument("--steps", type=int, default=512)
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--only", default="")
    p.add_argument("--precision", default="f64")
    args = p.parse_args()
    trace = f"{args.dir}/decode-{args.tokens}-{args.steps}.h5"
    os.makedirs(args.dir, exist_ok=True)
    if not os.path.exists(trace):
        make(f"{args.dir}/t.safetensors", args.tokens, args.steps)
        subprocess.run([args.lacuna, "import", "--safetensors", f"{args.dir}/t.safetensors", "--check-rows", "0", "-q", "-o", trace], check=True)
        os.unlink(f"{args.dir}/t.safetensors")
    print("| method | processor s | over dense | wall s | GB |\n|---|---|---|---|---|")
    dense = None
    for text in SETTINGS:
        if text != "dense" and not re.search(args.only, text):
            continue
        cpu, wall, memory = timed([args.lacuna, "replay", trace, "--phase", "decode", "-m", text, "--jobs", str(args.jobs), "--precision",
                                   args.precision, "-q", "--force", "-o", f"{args.dir}/run{os.getpid()}"])
        with open(f"{args.dir}/run{os.getpid()}/records.jsonl", encoding="utf-8") as f:
            bad = [r for r in map(json.loads, f) if r["status"] != "ok"]
        dense = cpu if dense is None else dense
        print(f"| `{text}` | {cpu:.1f} | {cpu - dense:.1f} | {wall:.1f} | {memory:.2f} |" + (f" {bad[0]['reason']}" if bad else ""), flush=True)


if __name__ == "__main__":
    sys.exit(main())
