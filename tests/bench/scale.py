#!/usr/bin/env python3
"""Capture of a long prompt from a large model: what --dry-run predicts, and what it takes.

Makes a checkpoint of random weights in the shape of an 8B model (32 layers, 32 query and 8 kv heads of 128), runs
`lacuna capture` over random tokens, weights streamed from disk, and the Python package on transformers' own prefill,
with and without the capture. Prints seconds, peak host memory, bytes on disk, and the package's overhead.

  PYTHONPATH=capture/torch tests/bench/scale.py DIR --lacuna build/gpu/lacuna [--tokens 131072] [--layers 32]
      [--keep 0,15,31] [--heads 0-7] [--device cuda|cpu] [--shape 8b|tiny] [--only lacuna|package]

Needs PyTorch, safetensors, and transformers for the package. DIR must hold the weights (16 GB for 32 layers) and the traces.
"""
import argparse
import json
import os
import resource
import subprocess
import sys
import time

import torch
from safetensors.torch import save_file

SHAPES = {"8b": dict(hidden_size=4096, intermediate_size=14336, num_attention_heads=32, num_key_value_heads=8, head_dim=128),
          "tiny": dict(hidden_size=256, intermediate_size=512, num_attention_heads=8, num_key_value_heads=2, head_dim=32)}
VOCAB = 4096


def config(args):
    return dict(SHAPES[args.shape], architectures=["LlamaForCausalLM"], model_type="llama", num_hidden_layers=args.layers, vocab_size=VOCAB,
                max_position_embeddings=args.tokens, rms_norm_eps=1e-5, rope_theta=500000.0, hidden_act="silu", tie_word_embeddings=False,
                torch_dtype="bfloat16", bos_token_id=0, eos_token_id=1, attention_bias=False, mlp_bias=False)


def make(args):
    """Shards of one layer each, written from the device; q and k large enough for a peaked softmax."""
    c = config(args)
    h, f, d = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    shapes = {"self_attn.q_proj": (q, h), "self_attn.k_proj": (kv, h), "self_attn.v_proj": (kv, h), "self_attn.o_proj": (h, q),
              "mlp.gate_proj": (f, h), "mlp.up_proj": (f, h), "mlp.down_proj": (h, f)}
    torch.manual_seed(0)

    def normal(*shape, std):
        return (torch.randn(*shape, device=args.device, dtype=torch.bfloat16) * std).cpu()
    where, start = {}, time.perf_counter()
    for i in range(-1, args.layers):
        if i < 0:
            part = {"model.embed_tokens.weight": normal(VOCAB, h, std=1.0), "lm_head.weight": normal(VOCAB, h, std=0.02),
                    "model.norm.weight": torch.ones(h, dtype=torch.bfloat16)}
        else:
            std = {"self_attn.q_proj": 2, "self_attn.k_proj": 2, "self_attn.o_proj": 0.2, "mlp.down_proj": 0.2}
            part = {f"model.layers.{i}.{n}.weight": normal(*s, std=std.get(n, 1) * s[1] ** -0.5) for n, s in shapes.items()}
            part.update({f"model.layers.{i}.{n}_layernorm.weight": torch.ones(h, dtype=torch.bfloat16) for n in ("input", "post_attention")})
        name = f"model-{i + 2:05d}-of-{args.layers + 1:05d}.safetensors"
        save_file(part, os.path.join(args.model, name), metadata={"format": "pt"})
        where.update({n: name for n in part})
    with open(os.path.join(args.model, "model.safetensors.index.json"), "w") as out:
        json.dump({"metadata": {}, "weight_map": where}, out)
    with open(os.path.join(args.model, "config.json"), "w") as out:
        json.dump(c, out)
    size = sum(os.path.getsize(os.path.join(args.model, n)) for n in set(where.values()))
    print(f"checkpoint: {args.layers} layers, {size / 1e9:.2f} GB of weights, made in {time.perf_counter() - start:.1f} s", flush=True)


# ---- lacuna capture ---------------------------------------------------------------------------------


def lacuna(args):
    tokens = os.path.join(args.dir, "tokens.txt")
    torch.manual_seed(1)
    with open(tokens, "w") as out:
        out.write(" ".join(map(str, torch.randint(3, VOCAB, (args.tokens,)).tolist())))
    trace = os.path.join(args.dir, "lacuna.h5")
    command = [args.lacuna, "capture", "--model", args.model, "--layers", args.keep, "--heads", args.heads, "--maps", "0", "--no-nll",
               "--device", args.device, "-o", trace]
    plan = json.loads(subprocess.run(command + ["--dry-run", "--json", "--tokens", str(args.tokens)], stdout=subprocess.PIPE, check=True).stdout)
    start = time.perf_counter()
    done, peak = subprocess.Popen(command + ["--tokens-file", tokens, "--json", "-q"], stdout=subprocess.PIPE), 0
    while done.poll() is None:  # ru_maxrss of a child begins with its parent's
        peak = max(peak, memory("VmHWM", done.pid))
        time.sleep(0.02)
    seconds = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"lacuna capture: status {done.returncode}")
    result = json.loads(done.stdout.read())
    size = os.path.getsize(trace)
    device = f", {result['device_seconds']:.1f} s of them on the device" if "device_seconds" in result else ""
    print(f"lacuna capture: {args.tokens} tokens, layers {args.keep} of {args.layers}, heads {args.heads}: {seconds:.1f} s{device}")
    print(f"  bytes on disk: {size / 1e9:.3f} GB; --dry-run said {plan['file_bytes'] / 1e9:.3f} GB")
    print(f"  peak host memory: {peak / 1e9:.2f} GB; --dry-run said {plan['memory_bytes'] / 1e9:.2f} GB")
    if plan.get("estimated_seconds"):
        print(f"  --dry-run said {plan['estimated_seconds']:.0f} s")
    subprocess.run([args.lacuna, "trace", "verify", trace], check=True)
    os.unlink(trace)


# ---- the package ------------------------------------------------------------------------------------


def peak_reset():
    with open("/proc/self/clear_refs", "w") as out:
        out.write("5")


def memory(field, pid="self"):
    """A field of /proc/PID/status in bytes; 0 where the process is gone."""
    try:
        with open(f"/proc/{pid}/status") as f:
            return next((int(line.split()[1]) * 1024 for line in f if line.startswith(field)), 0)
    except OSError:
        return 0


def disk_rate(folder, size=2 << 30):
    """Bytes per second of plain writes of 64 MB, synced once."""
    path, block = os.path.join(folder, "rate"), os.urandom(64 << 20)
    start = time.perf_counter()
    with open(path, "wb") as out:
        for _ in range(size // len(block)):
            out.write(block)
        out.flush()
        os.fsync(out.fileno())
    rate = size / (time.perf_counter() - start)
    os.unlink(path)
    return rate


def package(args):
    import transformers

    import lacuna_trace
    model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16, attn_implementation="sdpa").to(args.device).eval()
    torch.manual_seed(1)
    ids = torch.randint(3, VOCAB, (1, args.tokens)).to(args.device)
    sync = torch.cuda.synchronize if args.device == "cuda" else lambda: None

    def run():
        sync()
        start = time.perf_counter()
        model(ids, use_cache=False, logits_to_keep=1)
        sync()
        return time.perf_counter() - start
    rate = disk_rate(args.dir)
    print(f"package: disk writes {rate / 1e9:.2f} GB/s", flush=True)
    with torch.no_grad():
        run()
        plain = min(run() for _ in range(2))
        print(f"  prefill without a capture: {plain:.2f} s", flush=True)
        for out in ("none", "check"):
            path = os.path.join(args.dir, "package.h5")
            peak_reset()
            before = memory("VmRSS")
            start = time.perf_counter()
            with lacuna_trace.capture(model, path, layers=args.keep, heads=args.heads, out=out, force=True) as cap:
                inside = run()
            total, grown = time.perf_counter() - start, memory("VmHWM") - before
            beyond = max(0.0, total - max(plain, cap.report.bytes / rate)) / plain
            print(f"  out={out}: {total:.2f} s ({inside:.2f} s in the model, {cap.report.seconds:.2f} s in hooks, {cap.report.seconds_waited:.2f} s "
                  f"waiting for buffers), {cap.report.bytes / 1e9:.3f} GB, {100 * beyond:.1f} % beyond the prefill or the disk's time; "
                  f"host memory grew by {grown / 1e6:.0f} MB", flush=True)
    print(f"  peak of the process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9:.2f} GB")
    subprocess.run([args.lacuna, "trace", "verify", path], check=True)
    os.unlink(path)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("dir")
    p.add_argument("--lacuna", default="build/lacuna")
    p.add_argument("--tokens", type=int, default=131072)
    p.add_argument("--layers", type=int, default=32)
    p.add_argument("--keep", default="0,15,31")
    p.add_argument("--heads", default="0-7")
    p.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    p.add_argument("--shape", default="8b", choices=sorted(SHAPES))
    p.add_argument("--only", choices=("lacuna", "package"))
    args = p.parse_args()
    args.model = os.path.join(args.dir, "random-8b")
    os.makedirs(args.model, exist_ok=True)
    if not os.path.exists(os.path.join(args.model, "config.json")):
        make(args)
    if args.only != "package":
        lacuna(args)
    if args.only != "lacuna":
        package(args)


if __name__ == "__main__":
    main()
