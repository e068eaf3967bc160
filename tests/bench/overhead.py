#!/usr/bin/env python3
"""What the Python package adds to a prefill, apart from the disk: numbers for a person to read, never a pass or fail.

A Llama of random weights in the shape of an 8B model (32 query and 8 kv heads of 128) over random tokens, every head of every layer
stored. In turns: the plain prefill; captures whose bytes are thrown away instead of written, so that the disk costs nothing;
captures into each DIR, and the same number of bytes written there by a plain program. Prints medians of wall seconds, from entering the
with block to leaving it, and how much the process grew.

  PYTHONPATH=capture/torch python3 tests/bench/overhead.py [DIR]... [--tokens 16384] [--layers 32] [--repeats 5]
      [--device cuda|cpu] [--shape 8b|tiny] [--seconds 60] [--profile]
"""
import argparse
import contextlib
import cProfile
import os
import pstats
import sys
import tempfile
import time
from unittest import mock

import torch
import transformers
from scale import SHAPES, VOCAB, memory, peak_reset

import lacuna_trace
from lacuna_trace import xxh3


def make(args):
    shape = dict(SHAPES[args.shape], num_hidden_layers=args.layers, vocab_size=VOCAB, max_position_embeddings=args.tokens, initializer_range=0.02)
    torch.manual_seed(0)
    with torch.device(args.device):
        model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**shape), attn_implementation="sdpa", dtype=torch.bfloat16)
    return model.eval(), torch.randint(3, VOCAB, (1, args.tokens), generator=torch.Generator().manual_seed(1)).to(args.device)


def nowhere():
    """Writes that cost nothing."""
    return mock.patch.object(os, "pwrite", lambda fd, data, at: len(data))


def write_seconds(folder, size):
    """Wall seconds of writing so many bytes in pieces of 64 MB and syncing them."""
    block, start, path = os.urandom(64 << 20), time.perf_counter(), os.path.join(folder, "rate")
    with open(path, "wb") as out:
        for at in range(0, size, len(block)):
            out.write(block[:size - at])
        out.flush()
        os.fsync(out.fileno())
    seconds = time.perf_counter() - start
    os.unlink(path)
    return seconds


class Bench:
    def __init__(self, args, trace=lacuna_trace):
        self.args, self.trace, self.seconds, self.ids, self.grown, self.parts, self.report = args, trace, {}, set(), {}, {}, None
        self.model, self.ids_in = make(args)
        self.sync = torch.cuda.synchronize if args.device == "cuda" else lambda: None

    def prefill(self):
        with torch.no_grad():
            self.model(self.ids_in, use_cache=False, logits_to_keep=1)
        self.sync()

    def note(self, name, start):
        self.seconds.setdefault(name, []).append(time.perf_counter() - start)

    def plain(self):
        start = time.perf_counter()
        self.prefill()
        self.note("plain", start)

    def capture(self, name, folder, out):
        path = os.path.join(folder, "overhead.h5")
        peak_reset()
        before, start = memory("VmRSS"), time.perf_counter()
        with self.trace.capture(self.model, path, out=out, force=True) as cap:
            entered = time.perf_counter()
            self.prefill()
            left = time.perf_counter()
        self.note(name, start)
        self.parts[name] = entered - start, left - entered, time.perf_counter() - left
        self.grown[name] = max(self.grown.get(name, 0), memory("VmHWM") - before)
        os.unlink(path)
        self.report = cap.report
        self.ids |= set(cap.report.ids)

    def turn(self, first):
        """One of each; the folders are asked at most twice."""
        self.plain()
        for out in ("none", "check"):
            with nowhere(), tempfile.TemporaryDirectory() as d:
                self.capture(f"no disk, out={out}", d, out)
        for folder in self.args.dirs if first < 2 else ():
            start = time.perf_counter()
            write_seconds(folder, self.report.bytes)
            self.note(f"writing to {folder}", start)
            self.capture(f"{folder}, out=check", folder, "check")

    def run(self):
        self.prefill()
        start = time.perf_counter()
        with nowhere(), tempfile.TemporaryDirectory() as d:
            self.capture("first in the process", d, "check")
        for i in range(self.args.repeats):
            if i and time.perf_counter() - start > self.args.seconds:
                break
            self.turn(i)
        self.tell()

    def tell(self):
        mid = {n: sorted(x)[len(x) // 2] for n, x in self.seconds.items()}
        plain, r = mid["plain"], self.report
        print(f"{self.args.layers} layers, {self.args.tokens} tokens, {r.calls} calls, {r.bytes / 1e9:.3f} GB; checksums by {xxh3.implementation()}; "
              f"{len(self.seconds['plain'])} turns, medians")
        for name, s in mid.items():
            disk = mid.get("writing to " + name.split(", ")[0], 0.0)
            told = f", {100 * (s - max(plain, disk)) / plain:+.1f} % of the prefill beyond {'the longer of prefill and writing' if disk else 'it'}"
            more = ("; the last one %.3f s to enter, %.3f s in the model, %.3f s to leave; host memory +%.0f MB" %
                    (*self.parts[name], self.grown[name] / 1e6) if name in self.grown else "")
            print(f"  {name}: {s:.3f} s{'' if name == 'plain' or name.startswith('writing') else told}{more}")
        if len(self.ids) != 1:
            sys.exit(f"captures of the same prompt have {len(self.ids)} different ids")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("dirs", nargs="*")
    p.add_argument("--tokens", type=int, default=16384)
    p.add_argument("--layers", type=int, default=32)
    p.add_argument("--repeats", type=int, default=5)
    p.add_argument("--seconds", type=float, default=60, help="no further turn after so many")
    p.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    p.add_argument("--shape", default="8b", choices=sorted(SHAPES))
    p.add_argument("--profile", action="store_true", help="where the calling thread spends one more capture")
    args = p.parse_args()
    b = Bench(args)
    b.run()
    if args.profile:
        profile = cProfile.Profile()
        with profile, nowhere(), tempfile.TemporaryDirectory() as d, contextlib.redirect_stdout(sys.stderr):
            b.capture("profiled", d, "check")
        pstats.Stats(profile, stream=sys.stdout).sort_stats("cumulative").print_stats(45)


if __name__ == "__main__":
    main()
