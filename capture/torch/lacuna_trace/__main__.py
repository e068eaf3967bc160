"""python -m lacuna_trace: capture a local checkpoint, or look at a trace.

    python -m lacuna_trace --hf DIR --prompt FILE -o t.h5
    python -m lacuna_trace --hf DIR --prompt A.txt --prompt B.txt -o TRACES
    python -m lacuna_trace --diffusers DIR --prompt TEXT --size 81x480x832 --num-steps 50 --steps 0,25,49 -o v.h5
    python -m lacuna_trace info t.h5
    python -m lacuna_trace verify t.h5

Exit status: 0 ok, 1 the content is wrong, 2 usage, 3 bad input, 4 the machine lacks something.
"""
import argparse
import inspect
import json
import math
import os
import sys

from .layout import TraceError, UsageError, parse_list

USAGE, INPUT, MACHINE = 2, 3, 4


def parser():
    p = argparse.ArgumentParser(prog="python -m lacuna_trace", description=__doc__.split("\n\n", maxsplit=1)[0],
                                epilog="python -m lacuna_trace info T.h5 | verify T.h5 [--json]", allow_abbrev=False)
    p.add_argument("--hf", metavar="DIR", help="checkpoint directory of a language model (transformers)")
    p.add_argument("--diffusers", metavar="DIR", help="directory of a diffusion pipeline (diffusers)")
    p.add_argument("--prompt", metavar="P", action="append", help="--hf: prompt file, - for standard input; --diffusers: the text; "
                   "repeated: one trace each")
    p.add_argument("-o", "--output", metavar="T.h5", help="trace to write; of several prompts the directory of their traces")
    p.add_argument("--layers", metavar="LIST", help="layers to store, as in 0,4-7 [all]")
    p.add_argument("--heads", metavar="LIST", help="query heads to store [all]")
    p.add_argument("--dtype", default="keep", choices=("keep", "f32", "bf16", "f16"), help="type in which q, k, v are stored")
    p.add_argument("--compute", default="auto", choices=("auto", "f32", "bf16", "f16"), help="type in which the model runs [its own]")
    p.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ... [cpu]")
    p.add_argument("--maps", type=int, default=0, metavar="P", help="cell size of pooled attention maps, 0 = none")
    p.add_argument("--out", default="check", choices=("check", "full", "none"), help="what to keep of the attention outputs")
    p.add_argument("--tokens", type=int, metavar="N", help="--hf: the first N tokens; an error when there are fewer")
    p.add_argument("--rows", metavar="N[xR]", help="--hf: a sample of query rows, N groups of R (128) by --seed, against all keys")
    p.add_argument("--generate", type=int, default=0, metavar="T", help="--hf: go on for T tokens, greedily, and store their queries: a decode phase")
    p.add_argument("--window", type=int, default=128, metavar="W", help="--generate: queries of the last W tokens of the prompt too [128]")
    p.add_argument("--chunk", type=int, metavar="N", help="--hf: send the prompt in pieces of N tokens")
    p.add_argument("--attn", metavar="NAME", help="--hf: attention function: sdpa, eager, flash_attention_2")
    p.add_argument("--size", metavar="FxHxW", help="--diffusers: frames x height x width in pixels")
    p.add_argument("--num-steps", type=int, default=50, metavar="N", help="--diffusers: denoising steps [50]")
    p.add_argument("--guidance", type=float, metavar="X", help="--diffusers: guidance scale [the pipeline's]")
    p.add_argument("--steps", metavar="LIST", help="--diffusers: steps to store [all]")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--remote-code", action="store_true", help="run the Python files of the checkpoint directory")
    p.add_argument("--dry-run", action="store_true", help="say what would be stored, from the configuration alone")
    p.add_argument("--force", action="store_true", help="replace the output")
    p.add_argument("--json", action="store_true", help="JSON on standard output")
    return p


def import_or_fail(name, extra):
    try:
        return __import__(name)
    except ImportError as e:
        raise OSError(f"{name} is missing: pip install 'lacuna[{extra}]' ({e})") from e


def read_prompt(path):
    if path == "-":
        return sys.stdin.read()
    with open(path, encoding="utf-8") as f:
        return f.read()


def outputs(args):
    """(prompt, trace to write) of every prompt. Several lie in a directory, those of files under their names."""
    if not args.prompt:
        raise UsageError("--prompt is missing")
    if len(args.prompt) == 1:
        return [(args.prompt[0], args.output)]
    names = [os.path.splitext(os.path.basename(p))[0] if args.hf else f"prompt-{i:03d}" for i, p in enumerate(args.prompt)]
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise UsageError(f"two prompts are named {twice}: their traces would have one name")
    if args.output and args.output.endswith(".h5"):
        raise UsageError(f"-o {args.output}: {len(names)} prompts are {len(names)} traces, in a directory; a name without .h5")
    if args.output and not args.dry_run:
        os.makedirs(args.output, exist_ok=True)
    return [(p, os.path.join(args.output or "", n + ".h5")) for p, n in zip(args.prompt, names)]


def torch_dtype(name):
    import torch
    return {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[name]


# ---- language models ------------------------------------------------------------------------------


def hf_config(args):
    transformers = import_or_fail("transformers", "hf")
    if not os.path.isfile(os.path.join(args.hf, "config.json")):
        raise TraceError(f"{args.hf} is no directory with a config.json; only local checkpoints are read")
    return transformers, transformers.AutoConfig.from_pretrained(args.hf, trust_remote_code=args.remote_code, local_files_only=True)


def hf_ids(tokenizer, args, prompt, text):
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    if args.tokens and ids.shape[1] < args.tokens:
        raise TraceError(f"{prompt} has {ids.shape[1]} tokens, --tokens asks for {args.tokens}")
    return ids[:, :args.tokens] if args.tokens else ids


def capture_hf(args):
    transformers, config = hf_config(args)
    import torch

    from .session import capture
    todo = outputs(args)
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.hf, trust_remote_code=args.remote_code, local_files_only=True)
    texts = [read_prompt(prompt) for prompt, _ in todo]
    ids = [hf_ids(tokenizer, args, prompt, text) for (prompt, _), text in zip(todo, texts)]
    if args.dry_run:
        return [plan_hf(args, config, path, x.shape[1]) for (_, path), x in zip(todo, ids)]
    version = tuple(int(x) for x in transformers.__version__.split(".")[:2])
    kwargs = {"dtype" if version >= (4, 56) else "torch_dtype": "auto" if args.compute == "auto" else torch_dtype(args.compute)}
    if args.attn:
        kwargs["attn_implementation"] = args.attn
    model = transformers.AutoModelForCausalLM.from_pretrained(args.hf, config=config, trust_remote_code=args.remote_code,
                                                              local_files_only=True, **kwargs).to(args.device).eval()
    reports = []
    for (_, path), text, x in zip(todo, texts, ids):
        with torch.no_grad(), capture(model, path, layers=args.layers, heads=args.heads, dtype=args.dtype, maps=args.maps, out=args.out,
                                      tokens=x.shape[1] if args.chunk else None, rows=args.rows, prompt=text, seed=args.seed,
                                      decode=args.generate, window=args.window, generated_by="greedy" if args.generate else "",
                                      force=args.force) as cap:
            if args.generate:  # the last token is not fed back
                model.generate(x.to(args.device), max_new_tokens=args.generate + 1, do_sample=False)
            else:
                run_prompt(transformers, model, x.to(args.device), args.chunk)
        reports.append(cap.report)
    return reports


def run_prompt(transformers, model, ids, chunk):
    """The prompt through the model, without the logits of all tokens where the model can leave them out."""
    known = inspect.signature(model.forward).parameters
    last = next(({n: 1} for n in ("logits_to_keep", "num_logits_to_keep") if n in known), {})
    if not chunk:
        model(ids, use_cache=False, **last)
        return
    cache = transformers.DynamicCache()
    for at in range(0, ids.shape[1], chunk):
        model(ids[:, at:at + chunk], past_key_values=cache, use_cache=True, **last)


def plan_hf(args, config, path, n):
    c = config.get_text_config()
    h = c.num_attention_heads
    g = getattr(c, "num_key_value_heads", None) or h
    d = getattr(c, "head_dim", None) or c.hidden_size // h
    dv = d
    if getattr(c, "qk_nope_head_dim", None):
        d, dv, g = c.qk_nope_head_dim + c.qk_rope_head_dim, c.v_head_dim, h
    layers = parse_list(args.layers, "layers") or range(c.num_hidden_layers)
    dtype = args.dtype if args.dtype != "keep" else args.compute
    size = 4 if dtype == "f32" or (dtype == "auto" and str(getattr(c, "dtype", None) or c.torch_dtype) == "torch.float32") else 2
    n, rows = n + args.generate, min(n, args.window) + args.generate if args.generate else n
    if args.rows:
        from .rows import draw, parse
        rows = len(draw(n, *parse(args.rows), args.seed))
    per_call = (rows * h * d + n * g * (d + dv)) * size
    return {"output": path, "tokens": n, "query_rows": rows, "layers": len(layers), "heads": h, "kv_heads": g, "head_dim": d, "v_dim": dv,
            "bytes_per_call": per_call, "bytes": per_call * len(layers)}


# ---- diffusion --------------------------------------------------------------------------------------


def parse_size(text):
    parts = text.split("x") if text else []
    if len(parts) not in (2, 3) or not all(p.isdigit() for p in parts):
        raise UsageError(f"--size {text}: give frames x height x width as in 81x480x832, or HxW for an image")
    return [int(p) for p in parts]


def capture_diffusers(args):
    diffusers = import_or_fail("diffusers", "video")
    import torch

    from .session import capture
    if not os.path.isfile(os.path.join(args.diffusers, "model_index.json")):
        raise TraceError(f"{args.diffusers} is no directory with a model_index.json; only local pipelines are read")
    todo = outputs(args)
    if args.dry_run:
        raise UsageError("--dry-run is for --hf: the tokens of a video are known when the pipeline runs")
    kwargs = {} if args.compute == "auto" else {"torch_dtype": torch_dtype(args.compute)}
    pipe = diffusers.DiffusionPipeline.from_pretrained(args.diffusers, local_files_only=True, trust_remote_code=args.remote_code, **kwargs)
    pipe.to(args.device)
    known = inspect.signature(pipe.__call__).parameters
    size = parse_size(args.size) if args.size else []
    reports = []
    for prompt, path in todo:
        call = dict(zip(("num_frames", "height", "width")[3 - len(size):], size), prompt=prompt, num_inference_steps=args.num_steps,
                    guidance_scale=args.guidance, output_type="latent", generator=torch.Generator().manual_seed(args.seed))
        call = {k: v for k, v in call.items() if k in known and v is not None}
        with torch.no_grad(), capture(pipe, path, layers=args.layers, heads=args.heads, steps=args.steps, dtype=args.dtype,
                                      maps=args.maps, out=args.out, prompt=prompt, seed=args.seed, force=args.force) as cap:
            pipe(**call)
        reports.append(cap.report)
    return reports


# ---- looking at a trace --------------------------------------------------------------------------------


def look(command, argv):
    from .reader import traces_in
    p = argparse.ArgumentParser(prog=f"python -m lacuna_trace {command}")
    p.add_argument("trace", nargs="+", help="a trace, or a directory of traces")
    p.add_argument("--json", action="store_true", help="JSON, a line or an object per trace")
    args = p.parse_args(argv)
    return max([look_at(command, path, args.json) for arg in args.trace for path in traces_in(arg)])


def look_at(command, path, as_json):
    from .reader import open_trace
    with open_trace(path) as t:
        if command == "verify":
            bad = t.verify()
            print(json.dumps({"wrong": bad}) if as_json else "\n".join(bad) or f"ok: {len(t.calls)} calls")
            return 1 if bad else 0
        facts = {"trace": t.path, "content": t.id, "model": t.model, "run": t.run, "video": t.video, "calls": [c.attrs for c in t.calls]}
    print(json.dumps(finite(facts), indent=1) if as_json else "\n".join(lines(facts)))
    return 0


def finite(x):
    """JSON has no NaN: null."""
    if isinstance(x, dict):
        return {k: finite(v) for k, v in x.items()}
    if isinstance(x, list):
        return [finite(v) for v in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x


def lines(facts):
    yield f"{facts['trace']}  {facts['content']}"
    for group in ("model", "run", "video"):
        if facts[group]:
            yield f"{group}: " + ", ".join(f"{k} {v}" for k, v in facts[group].items() if v not in ("", 0))
    yield f"{len(facts['calls'])} calls"


def show(results, as_json):
    """Plans or reports, one per prompt; as JSON an array where there are several."""
    facts = [facts_of(r) for r in results]
    if as_json:
        print(json.dumps(finite(facts if len(facts) > 1 else facts[0]), indent=1))
        return
    for one in facts:
        for name, value in one.items():
            if name == "left_out":
                value = "; ".join(f"{sum(c.values())} calls {w}" for w, c in value.items())
            if value not in ([], ""):
                print(f"{name}: {', '.join(map(str, value)) if isinstance(value, list) else value}")


def facts_of(result):
    return result if isinstance(result, dict) else {
        "files": result.files, "ids": result.ids, "calls": result.calls, "bytes": result.bytes, "seconds": round(result.seconds, 3),
        "seconds_waited": round(result.seconds_waited, 3), "worst_check": result.worst_check,
        "left_out": {w: dict(c) for w, c in result.left_out.items()}, "no_softmax": result.no_softmax, "notes": result.notes}

def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    try:
        if argv[:1] in (["info"], ["verify"]):
            return look(argv[0], argv[1:])
        args = parser().parse_args(argv)
        if bool(args.hf) == bool(args.diffusers):
            raise UsageError("give one of --hf DIR and --diffusers DIR, or info T.h5 or verify T.h5")
        if not args.output and not args.dry_run:
            raise UsageError("-o is missing")
        show(capture_hf(args) if args.hf else capture_diffusers(args), args.json)
        return 0
    except UsageError as error:
        code, text = USAGE, error
    except (TraceError, FileNotFoundError, IsADirectoryError) as error:
        code, text = INPUT, error
    except OSError as error:
        code, text = MACHINE, error
    print(f"lacuna_trace: {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
