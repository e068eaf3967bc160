"""Rates and memory of a capture on this machine: numbers for a person to read, never a pass or fail.

    PYTHONPATH=capture/torch:tests/torch python tests/torch/bench.py [DIR] [--long]     --long: a file of 10 GB in DIR
"""
import os
import resource
import sys
import tempfile
import time

import torch

import lacuna_trace
import test_format
from lacuna_trace import xxh3

PEAK = resource.RUSAGE_SELF


def hashes():
    data = os.urandom(64 << 20)
    classes = [("NumPy", xxh3.NumpyHash)]
    lib = xxh3._load_library()
    if lib:
        classes.append(("libxxhash", xxh3._library_class(lib)))
    if xxh3.implementation() == "xxhash":
        classes.append(("xxhash", xxh3.Hash))
    for name, cls in classes:
        h, start = cls(), time.thread_time()
        h.update(data)
        h.digest()
        print(f"XXH3-128, {name}: {len(data) / (time.thread_time() - start) / 1e6:.0f} MB per second of a core")


def synthetic(folder, n=32768, layers=24):
    """Calls of 32 query and 8 kv heads x 128 in bfloat16, with an attention function that costs nothing."""
    q, k, v = (torch.randn(1, n, h, 128).bfloat16() for h in (32, 8, 8))
    fake = test_format.fake_flash()
    fake.flash_attn_func = lambda q, k, v, causal=False: torch.zeros_like(q)
    sys.modules["flash_attn"] = fake
    model = test_format.Own(lambda m, *x: fake.flash_attn_func(q, k, v, causal=True)[:, :, :4, :8])
    model.layers = torch.nn.ModuleList(test_format.Attention(model.layers[0].how) for _ in range(layers))
    model.eval()
    before, start = resource.getrusage(PEAK).ru_maxrss, time.perf_counter()
    with torch.no_grad(), lacuna_trace.capture(model, os.path.join(folder, "s.h5"), out="none") as cap:
        model(torch.zeros(1, n, 32))
    seconds = time.perf_counter() - start
    os.unlink(os.path.join(folder, "s.h5"))
    grown = (resource.getrusage(PEAK).ru_maxrss - before) / 1024
    print(f"{cap.report.calls} calls, {cap.report.bytes / 1e9:.2f} GB in {seconds:.1f} s: {cap.report.bytes / seconds / 1e6:.0f} MB/s, "
          f"waited {cap.report.seconds_waited:.1f} s for buffers; host memory grew by {grown:.0f} MB")


def overhead(folder, n=2048):
    """The shipped language model over a prompt, with and without a capture of everything."""
    import transformers
    model = transformers.AutoModelForCausalLM.from_pretrained("datasets/models/code-lm", dtype=torch.float32).eval()
    ids = torch.randint(3, 4096, (1, n))

    def run():
        start, cpu = time.perf_counter(), time.process_time()
        model(ids, use_cache=False, logits_to_keep=1)
        return time.perf_counter() - start, time.process_time() - cpu
    with torch.no_grad():
        run()
        plain = min(run()[1] for _ in range(3))
        for out in ("none", "check"):
            path = os.path.join(folder, "o.h5")
            with lacuna_trace.capture(model, path, out=out, force=True) as cap:
                cost = run()[1]
            print(f"code-lm, {n} tokens, out={out}: {cost:.2f} s of processor time with, {plain:.2f} s without; {cap.report.seconds:.2f} s in hooks, "
                  f"{cap.report.bytes / 1e6:.0f} MB")
            os.unlink(path)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else ".") as d:
        hashes()
        overhead(d)
        if "--long" in sys.argv:
            synthetic(d)
