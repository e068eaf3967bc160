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


def write_seconds(folder, size):
    """Processor and wall seconds of writing so many bytes and syncing them: what no capture can do without."""
    block, start, cpu = os.urandom(min(size, 64 << 20)), time.perf_counter(), time.process_time()
    with open(os.path.join(folder, "rate"), "wb") as out:
        for at in range(0, size, len(block)):
            out.write(block[:size - at])
        out.flush()
        os.fsync(out.fileno())
    seconds = time.process_time() - cpu, time.perf_counter() - start
    os.unlink(os.path.join(folder, "rate"))
    return seconds


def overhead(folder, n=4096, layers=8, repeats=3):
    """A Llama of random weights (1024 wide, 16 query and 4 kv heads) over a prompt: plain and captured in turns, medians."""
    import transformers
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=4096, hidden_size=1024, intermediate_size=2816, num_hidden_layers=layers, num_attention_heads=16,
                                      num_key_value_heads=4, max_position_embeddings=n)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    ids, path, seconds = torch.randint(3, 4096, (1, n)), os.path.join(folder, "o.h5"), {}

    def run(name, out=None):
        start, cpu = time.perf_counter(), time.process_time()
        if out is None:
            model(ids, use_cache=False, logits_to_keep=1)
        else:
            with lacuna_trace.capture(model, path, out=out, force=True) as cap:
                model(ids, use_cache=False, logits_to_keep=1)
        seconds.setdefault(name, []).append((time.process_time() - cpu, time.perf_counter() - start))
        return None if out is None else cap.report
    with torch.no_grad():
        model(ids[:, :64], use_cache=False)
        for _ in range(repeats):
            run("plain")
            for out in ("none", "check"):
                report = run(out, out)
            seconds.setdefault("disk", []).append(write_seconds(folder, report.bytes))
    mid = {name: [sorted(x[i] for x in all_)[len(all_) // 2] for i in (0, 1)] for name, all_ in seconds.items()}
    plain, disk = mid["plain"], mid["disk"]
    print(f"Llama 1024 wide, {layers} layers, {n} tokens, {torch.get_num_threads()} threads, {repeats} of each in turns; {report.bytes / 1e6:.0f} MB")
    print(f"  plain: {plain[0]:.2f} s of processors, {plain[1]:.2f} s; writing the bytes: {disk[0]:.2f} s, {disk[1]:.2f} s")
    for out in ("none", "check"):
        more = [100 * (mid[out][i] - plain[i]) / plain[i] for i in (0, 1)]
        beyond = [more[i] - 100 * disk[i] / plain[i] for i in (0, 1)]
        print(f"  out={out}: {mid[out][0]:.2f} s of processors ({more[0]:+.1f} %, {beyond[0]:+.1f} % beyond the disk's), {mid[out][1]:.2f} s "
              f"({more[1]:+.1f} %, {beyond[1]:+.1f} %)")
    os.unlink(path)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else ".") as d:
        hashes()
        overhead(d)
        if "--long" in sys.argv:
            synthetic(d)
