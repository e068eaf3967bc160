"""`capture`: the context manager that people use. It checks the target, installs the hooks and finishes the files."""
import collections
import dataclasses
import re
import time

import torch

from . import layout, rows, xxh3
from .files import Files
from .hooks import Hooks
from .identity import WeightsId, compute_of, computed_by, folder, name_of
from .layout import TraceError, UsageError, parse_list
from .text import Text
from .video import Video, is_diffusion


@dataclasses.dataclass
class Report:
    """What a capture did: paths, ids, counts, seconds; `left_out` has a reason and a count per module path."""
    files: list = dataclasses.field(default_factory=list)
    ids: list = dataclasses.field(default_factory=list)
    calls: int = 0
    bytes: int = 0
    seconds: float = 0.0           # inside the hooks
    seconds_waited: float = 0.0    # of these, for a free buffer
    worst_check: float = 0.0       # largest error of a recomputed row, in units of the tolerance
    left_out: dict = dataclasses.field(default_factory=lambda: collections.defaultdict(collections.Counter))
    no_softmax: list = dataclasses.field(default_factory=list)
    notes: list = dataclasses.field(default_factory=list)

    def leave_out(self, path, why):
        self.left_out[why][path] += 1


@dataclasses.dataclass
class Options:
    layers: object = None
    heads: object = None
    steps: object = None
    branches: object = None
    tokens: object = None
    rows: object = None
    decode: int = 0
    window: int = 128
    generated_by: str = ""
    batch: int = 0
    dtype: str = "keep"
    maps: int = 0
    out: str = "check"
    check_rows: int = 16
    modules: object = None
    name: object = None
    force: bool = False
    prompt: object = None
    seed: int = 0
    grid: object = None
    text_place: object = None

    def __post_init__(self):
        for name in ("layers", "heads", "steps"):
            setattr(self, name, parse_list(getattr(self, name), name))
        if isinstance(self.branches, str):
            self.branches = self.branches.split(",")
        choices = {"dtype": ("keep", "f32", "bf16", "f16", "float32", "bfloat16", "float16"), "out": ("check", "full", "none"),
                   "text_place": (None, "front", "back")}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise UsageError(f"{name}={getattr(self, name)!r}: choose one of {', '.join(filter(None, allowed))}")
        for name, least in (("tokens", 1), ("rows", 1), ("decode", 0), ("window", 0), ("batch", 0), ("maps", 0), ("check_rows", 2)):
            value = getattr(self, name)
            if name == "rows" and isinstance(value, str):
                rows.parse(value)
            elif value is not None and (not isinstance(value, int) or value < least):
                raise UsageError(f"{name}={value!r} is not a number of at least {least}" +
                                 ("; rows=N are the last N query rows, rows=\"NxR\" is a sample" if name == "rows" else ""))
        if isinstance(self.rows, str) and self.maps:
            raise UsageError(f"maps={self.maps} are of all query rows, rows={self.rows!r} is a sample of them")
        clash = next((n for n in ("tokens", "rows", "maps") if getattr(self, n)), None)
        if self.decode and clash:
            raise UsageError(f"decode={self.decode} stores the rows of the decoded tokens and window= before them; leave {clash}= out")
        self.modules = re.compile(self.modules) if isinstance(self.modules, str) else self.modules


class Session:
    """Between hooks and files; also what `with capture(...) as cap` yields."""

    def __init__(self, target, path, options):
        self.o, self.path, self.report = options, str(path), Report()
        self.roots, self.pipeline = roots_of(target)
        self.batch, self.hook_names = options.batch, set()
        self.hooks = Hooks(self.roots, self)
        self.model = next(iter(self.roots.values()))
        refuse_target(self.hooks, self.roots)
        self.files = Files(options, self.path)
        p = next(self.model.parameters(), torch.zeros(()))
        base = {"name": layout.short(options.name or name_of(self.model), 128),
                "architecture": layout.short(type(self.model).__name__, 64), "weights_id": "",
                "compute": compute_of(p.dtype, p.device)}
        run = {"source": "capture", "prompt_id": xxh3.text(options.prompt.encode()) if options.prompt is not None else "",
               "negative_id": "", "seed": int(options.seed), "computed_by": computed_by(p.device)}
        base["weights_id"] = WeightsId(folder(self.model))
        kind = Video if is_diffusion(self.model) else Text
        self.sink = kind(options, self.pipeline if kind is Video else self.model, self.files, self.report, base, run)

    # ---- what the hooks tell ------------------------------------------------------------------------

    def entered(self, module, args, kwargs):
        if module.training:
            raise TraceError(f"{type(module).__name__} is in training mode; call model.eval() before the capture")
        self.sink.start(args, kwargs) if isinstance(self.sink, Text) else self.sink.start(module, args, kwargs)

    def saw(self, seen):
        start = time.perf_counter()
        self.hook_names.add(seen.hook)
        for x in (seen.q, seen.k, seen.v):
            if type(x).__name__ == "DTensor":
                raise TraceError(f"{seen.path}: its tensors are spread over several processes (DTensor); capture without parallelism")
        if seen.q.device.type not in ("cpu", "cuda"):
            seen.q, seen.k, seen.v, seen.out = (x.cpu() for x in (seen.q, seen.k, seen.v, seen.out))
            seen.mask = seen.mask.cpu() if isinstance(seen.mask, torch.Tensor) else seen.mask
        self.sink.saw(seen)
        self.report.seconds += time.perf_counter() - start

    # ---- for samplers written by hand -----------------------------------------------------------------

    def step(self, index, timestep=float("nan"), sigma=float("nan"), branch="cond"):
        """Say which denoising step and branch comes next; branch may be a tuple, one per part of the batch."""
        if isinstance(self.sink, Text):
            raise TraceError("cap.step() is for diffusion transformers; a language model has no steps")
        self.sink.set_step(index, timestep, sigma, branch)

    def aux(self, layer, name, x):
        """Store an extra operand of a layer: x [heads][tokens][channels] of all tokens so far that come through the model, piece by piece.

        name: q_pre, k_pre (before the rotation, heads of the model), iq, ik, iw (of an indexer), gate_q, gate_k (of blocks, once).
        """
        if not isinstance(self.sink, Text):
            raise TraceError("cap.aux() is for language models")
        if name not in layout.AUX or x.ndim != 3:
            raise UsageError(f"cap.aux({layer}, {name!r}, ...) of {x.ndim} dimensions: one of {', '.join(layout.AUX)} with heads, tokens and channels was "
                             "expected")
        self.sink.aux[layer, name].append(x.detach().to("cpu", torch.float32, copy=True))

    # ---- begin and end ----------------------------------------------------------------------------

    def __enter__(self):
        self.hooks.install()
        try:
            if isinstance(self.sink, Text):
                self._wrap_generate()
            else:
                self.sink.wrap(self.hooks, self.roots)
        except BaseException:
            self.hooks.remove()
            raise
        return self

    def _wrap_generate(self):
        generate = getattr(self.model, "generate", None)
        if callable(generate):
            def wrapped(*args, **kwargs):
                self.sink.start(args, kwargs, generating=True)
                return generate(*args, **kwargs)
            self.hooks.put(self.model, "generate", wrapped)

    def __exit__(self, kind, error, trace):
        self.hooks.remove()
        try:
            if kind is None:
                self._finish()
        finally:
            self.sink.files.abort()
            self.files.abort()
        return False

    def _finish(self):
        r = self.report
        lost = self.hooks.bypassed()
        wanted = [(p, c) for p, c in lost if self.o.modules is None or self.o.modules.search(p)]
        if wanted:
            path, name = wanted[0]
            raise TraceError(f"{path} ({name}) ran, but none of the known attention functions was called from it"
                             f"{f' ({len(wanted)} such modules)' if len(wanted) > 1 else ''}: it computes attention by itself. Load the model with "
                             "attn_implementation='sdpa' or 'eager', or save q, k and v and use `lacuna import`")
        if xxh3.implementation() == "numpy":
            r.notes.append("checksums were computed by NumPy, at some hundred MB/s: pip install xxhash")
        r.no_softmax = self.hooks.linear()
        r.calls = sum(len(w.calls) for w in self.sink.files.writers.values())
        if not r.calls:
            why = "; ".join(f"{sum(c.values())} calls: {w}" for w, c in r.left_out.items())
            raise TraceError(f"no attention call was captured{f' ({why})' if why else ': was the model run inside the with block?'}")
        self._check_layers()
        notes = {"library": library_versions(), "hook": ", ".join(sorted(self.hook_names)),
                 "left_out": "; ".join(f"{w}: {len(c)} modules, {sum(c.values())} calls" for w, c in sorted(r.left_out.items())),
                 "modules": self.o.modules.pattern if self.o.modules else ""}
        pipes = [f.pipe for f in {id(f): f for f in (self.files, self.sink.files)}.values() if f.pipe]
        r.files = self.sink.finish(notes)
        r.bytes, r.seconds_waited = sum(p.bytes for p in pipes), sum(p.waited for p in pipes)
        r.worst_check = max(self.files.worst, self.sink.files.worst)
        r.ids = [w.id for f in {id(f): f for f in (self.files, self.sink.files)}.values() for w in f.writers.values() if hasattr(w, "id")]

    def _check_layers(self):
        """Every step and branch has the same layers, and every layer that was asked for came."""
        per = collections.defaultdict(set)
        for w in self.sink.files.writers.values():
            for c in w.calls:
                per[c.attrs["step"], c.attrs["branch"]].add(c.attrs["layer"])
        layers = set.union(*per.values())
        missing = sorted(set(self.o.layers or ()) - layers)
        if missing:
            raise TraceError(f"layers={layout.list_text(self.o.layers)}: layer {missing[0]} had no softmax attention call; layers that had: "
                             f"{layout.list_text(sorted(layers))}")
        for (step, branch), have in per.items():
            if have != layers:
                raise TraceError(f"step {step}, branch {branch}: layer {min(layers - have)} is missing: was a pass interrupted, or does a "
                                 "cache skip layers?")


def roots_of(target):
    """The modules whose forward is a pass of the model, by name, and the pipeline or None."""
    if isinstance(target, torch.nn.Module):
        return {"": target}, None
    for name in ("transformer", "unet"):
        if isinstance(getattr(target, name, None), torch.nn.Module):
            second = getattr(target, name + "_2", None)
            one = {"": getattr(target, name)}
            return (dict(one, **{name + "_2": second}) if isinstance(second, torch.nn.Module) else one), target
    if isinstance(getattr(target, "model", None), torch.nn.Module):
        return {"": target.model}, None
    raise TraceError(f"{type(target).__name__} is neither a torch.nn.Module nor a pipeline with a transformer or a model")


def refuse_target(hooks, roots):
    for path, m in hooks.paths.values():
        if hasattr(m, "_orig_mod") or getattr(m, "_compiled_call_impl", None) is not None or \
                hasattr(m.forward, "_torchdynamo_orig_callable"):
            raise TraceError(f"{path or type(m).__name__} is compiled (torch.compile): hooks would be skipped; capture the model before it is compiled")
        if getattr(m, "_parallel_config", None) is not None or getattr(m, "_tp_plan_applied", False):
            raise TraceError(f"{path or type(m).__name__} is split over several processes; capture without parallelism")


def library_versions():
    import sys
    names = ("torch", "transformers", "diffusers", "flash_attn", "xformers")
    return ", ".join(f"{n} {sys.modules[n].__version__}" for n in names if hasattr(sys.modules.get(n), "__version__"))


def capture(target, path, **options):
    """Record the attention calls of `target` into the trace `path` while the with block runs.

    target: a torch.nn.Module or a pipeline of transformers or diffusers. Options:
      layers, heads, steps   "0,4-7" or numbers; numbers of the model. Default all.
      branches               names: "cond", "uncond".
      tokens                 first N tokens of a prompt; more than the prompt has: decoded tokens too.
      rows                   N: only the last N query rows; "64x128": a sample, 64 groups of 128 rows drawn by seed. All keys are stored.
      decode                 up to T tokens fed back behind the prompt: a decode phase, with the queries of these tokens.
      window                 decode: queries of the last tokens of the prompt that are stored as well (128).
      generated_by           decode: "greedy", "sample:top_p=0.9", ...; written into the trace.
      batch                  element of the batch.
      dtype                  "keep", "f32", "bf16", "f16".
      maps                   cell size of pooled attention maps, 0 = none. Costs the attention once more.
      out                    "check": compare sampled rows and keep them; "full": store the output too; "none".
      check_rows             rows per head to compare.
      modules                regular expression: only attention modules whose path it finds.
      name, prompt, seed     written into the trace.
      grid                   (T, H, W) tokens of a video, for transformers whose grid is not known.
      text_place             "front" or "back": where text stands beside these tokens.
      force                  replace an existing file.

    Yields an object with `step(i, timestep=, sigma=, branch=)` for samplers written by hand and, afterwards, `report`.
    Raises TraceError for whatever the trace format cannot hold.
    """
    return Session(target, path, Options(**options))
