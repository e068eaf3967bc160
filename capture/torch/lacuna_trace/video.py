"""Diffusion transformers: grid, text tokens, denoising step and guidance branch of every self-attention call.

Facts per architecture stand in KINDS. What is stored: calls with n_q = n_k of at least the grid's tokens that are no
cross-attention, no text refiner and no second attention of a block; the rest is listed in the report.
"""
import contextlib
import dataclasses
import inspect
import math
import re

import torch

from .calls import Place, classify
from .identity import layer_of
from .layout import TraceError, short

LEFT_OUT = re.compile(r"refiner|context_embedder|add_.*cross|attn2")


def is_diffusion(model):
    return any(c.__module__.startswith("diffusers.") for c in type(model).__mro__)


# ---- grids: (T, H, W) in tokens and the patch (t, h, w), from the arguments of the transformer ------


def _patched(latent, patch):
    sizes = [n // p for n, p in zip(latent, patch)]
    return sizes, patch


def _wan(m, a):
    return _patched(a["hidden_states"].shape[2:], tuple(m.config.patch_size))


def _hunyuan(m, a):
    return _patched(a["hidden_states"].shape[2:], (m.config.patch_size_t, m.config.patch_size, m.config.patch_size))


def _mochi(m, a):
    return _patched(a["hidden_states"].shape[2:], (1, m.config.patch_size, m.config.patch_size))


def _cogvideo(m, a):
    _, f, _, h, w = a["hidden_states"].shape
    p = m.config.patch_size
    return _patched((f, h, w), (m.config.patch_size_t or 1, p, p))


def _sd3(m, a):
    p = m.config.patch_size
    return _patched((1, *a["hidden_states"].shape[2:]), (1, p, p))


def _ltx(m, a):
    if a.get("num_frames") is None:
        raise TraceError("LTXVideoTransformer3DModel was called without num_frames, height and width: give grid=(T, H, W)")
    return [a["num_frames"], a["height"], a["width"]], (m.config.patch_size_t, m.config.patch_size, m.config.patch_size)


def _flux(m, a):
    ids = a["img_ids"] if a["img_ids"].ndim == 2 else a["img_ids"][0]
    return [1, int(ids[:, 1].max()) + 1, int(ids[:, 2].max()) + 1], (1, 2, 2)


def _qwen_image(m, a):
    shape = a["img_shapes"][0]
    return list(shape[0] if isinstance(shape, list) else shape), (1, m.config.patch_size, m.config.patch_size)


@dataclasses.dataclass(frozen=True)
class Kind:
    grid: object             # (module, arguments) -> sizes, patch
    text: str                # where text stands in the joint sequence
    positions: str
    two_passes: bool = False  # guidance is a second pass, not a second half of the batch


KINDS = {
    "WanTransformer3DModel": Kind(_wan, "none", "rope-3d", True),
    "SkyReelsV2Transformer3DModel": Kind(_wan, "none", "rope-3d", True),
    "FluxTransformer2DModel": Kind(_flux, "front", "rope-2d", True),
    "Flux2Transformer2DModel": Kind(_flux, "front", "rope-2d", True),
    "QwenImageTransformer2DModel": Kind(_qwen_image, "front", "rope-3d", True),
    "HunyuanVideoTransformer3DModel": Kind(_hunyuan, "back", "rope-3d", True),
    "CogVideoXTransformer3DModel": Kind(_cogvideo, "front", "rope-3d"),
    "SD3Transformer2DModel": Kind(_sd3, "back", ""),
    "MochiTransformer3DModel": Kind(_mochi, "back", "rope-3d"),
    "LTXVideoTransformer3DModel": Kind(_ltx, "none", "rope-3d"),
}


@dataclasses.dataclass
class Pass:
    """A forward of the transformer: its batch, grid and text."""
    module: object
    batch: int
    grid: list
    patch: tuple
    text_mask: object   # (b, text) or None
    branches: tuple     # per part of the batch, equal parts


class Video:
    """Takes the calls of a diffusion transformer, of a pipeline or called by hand."""

    def __init__(self, options, pipeline, files, report, base, run):
        self.o, self.pipe, self.files, self.report, self.base, self.run = options, pipeline, files, report, base, run
        self.now = None             # Pass
        self.index = 0              # denoising step
        self.context = None         # name of the cache context
        self.passes = []            # batch sizes of the passes of this step
        self.by_hand = None         # (timestep, sigma, branches) of set_step
        self.first_q = {}

    # ---- steps and branches ---------------------------------------------------------------------

    def wrap(self, hooks, roots):
        """Count scheduler steps and note the names of cache contexts, on the instances."""
        if self.pipe is not None:
            step = self.pipe.scheduler.step

            def stepped(*args, **kwargs):
                sample = kwargs.get("sample", args[2] if len(args) > 2 else None)
                self._confirm(sample)
                result = step(*args, **kwargs)
                self.index, self.passes = self.index + 1, []
                return result
            hooks.put(self.pipe.scheduler, "step", stepped)
        for root in roots.values():
            if hasattr(root, "cache_context"):
                hooks.put(root, "cache_context", self._context_of(root.cache_context))

    def _context_of(self, original):
        @contextlib.contextmanager
        def context(name, *args, **kwargs):
            self.context = name
            try:
                with original(name, *args, **kwargs):
                    yield
            finally:
                self.context = None
        return context

    def _confirm(self, sample):
        """The batch of every pass of a step must be what the sampler's own batch says."""
        if not isinstance(sample, torch.Tensor):
            return
        for size, parts in self.passes:
            if size != parts * sample.shape[0]:
                raise TraceError(f"step {self.index}: a pass had {size} elements where guidance in {parts} part(s) of a batch of "
                                 f"{sample.shape[0]} was expected: perturbed or skipped-layer guidance is not known; switch it off")

    def set_step(self, index, timestep, sigma, branch):
        if self.pipe is not None:
            raise TraceError("cap.step() is for samplers written by hand; steps of a pipeline are counted")
        branches = (branch,) if isinstance(branch, str) else tuple(branch)
        self.index, self.by_hand, self.passes = index, (float(timestep), float(sigma), branches), []

    def _guided(self):
        guided = getattr(self.pipe, "do_classifier_free_guidance", None)
        return bool(guided) if guided is not None else (getattr(self.pipe, "guidance_scale", None) or 0) > 1

    def _branches(self, kind):
        """Names of the equal parts of this pass's batch."""
        if self.pipe is None:
            return self.by_hand[2] if self.by_hand else ("cond",)
        if self.context not in (None, "cond_uncond"):
            return (str(self.context),)
        if self._guided() and not (kind and kind.two_passes):
            return ("uncond", "cond")
        return ("cond" if not self.passes else "uncond",)

    def start(self, module, args, kwargs):
        """A forward of a transformer begins."""
        a = inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments
        kind = KINDS.get(type(module).__name__)
        if self.o.grid is not None:
            grid, patch = list(self.o.grid), (0, 0, 0)
        elif kind is None:
            raise TraceError(f"{type(module).__name__}: how its tokens lie in a grid is not known; known are {', '.join(sorted(KINDS))}; "
                             "give grid=(T, H, W) in tokens for another one, and text_place= where it has text beside them")
        else:
            grid, patch = kind.grid(module, a)
        if self.pipe is None and self.passes and not (self.by_hand and len(self.passes) < 1):
            raise TraceError("a second pass of the transformer: call cap.step(i, timestep=, sigma=, branch=) before each")
        self._refuse_other_tokens(module, a["hidden_states"], grid)
        branches = self._branches(kind)
        size = a["hidden_states"].shape[0]
        if size % len(branches):
            raise TraceError(f"step {self.index}: a batch of {size} elements does not have the parts {', '.join(branches)}: perturbed or "
                             "skipped-layer guidance is not known; switch it off")
        self.passes.append((size, len(branches)))
        masks = [a[n] for n in ("encoder_attention_mask", "encoder_hidden_states_mask") if a.get(n) is not None]
        self.now = Pass(module, size, grid, patch, masks[0] if masks else None, branches)

    @staticmethod
    def _refuse_other_tokens(module, hidden, grid):
        """Tokens beside the grid are text: a reference image among those of the image would be called that."""
        tokens = math.prod(grid)
        if isinstance(hidden, torch.Tensor) and hidden.ndim == 3 and hidden.shape[1] != tokens:
            raise TraceError(f"{type(module).__name__}: hidden_states has {hidden.shape[1]} tokens, the grid {' x '.join(map(str, grid))} has {tokens}: "
                             "tokens of a second image, or another grid=, have no place in the trace format")

    # ---- a call -----------------------------------------------------------------------------------

    def saw(self, seen):
        if self.o.modules is not None and not self.o.modules.search(seen.path):
            return self.report.leave_out(seen.path, "not in modules=")
        if self.o.modules is None and LEFT_OUT.search(seen.path):
            return self.report.leave_out(seen.path, "cross-attention, text refiner or second attention of a block")
        if self.now is None:
            return self.report.leave_out(seen.path, "outside of the transformer's forward")
        n, tokens = seen.q.shape[2], math.prod(self.now.grid)
        if n != seen.k.shape[2] or n < tokens:
            return self.report.leave_out(seen.path, "no self-attention over the grid")
        at = self._layer(seen)
        if at is None or self.o.layers is not None and at[0] not in self.o.layers:
            return self.report.leave_out(seen.path, "not in layers=" if at else "no layer number: neither a name with one in its path, as in layers.3, nor a layer_idx")
        if self.o.steps is not None and self.index not in self.o.steps:
            return self.report.leave_out(seen.path, "not in steps=")
        part = self.now.batch // len(self.now.branches)
        if self.o.batch >= part:
            raise TraceError(f"batch={self.o.batch}, but a pass has {part} elements per branch")
        for i, branch in enumerate(self.now.branches):
            if self.o.branches is None or branch in self.o.branches:
                self._element(seen, i * part + self.o.batch, branch, *at)

    def _layer(self, seen):
        """(number, block kind): single blocks are numbered after the double ones."""
        at = layer_of(seen.path, None)
        singles = hasattr(self.now.module, "single_transformer_blocks")
        if at is None or not singles:
            return at and (at[1], "self")
        if at[0] == "single_transformer_blocks":
            return len(self.now.module.transformer_blocks) + at[1], "single"
        return at[1], "double"

    def _element(self, seen, element, branch, layer, block):
        b = element
        if seen.q.shape[0] == 1 and self.now.batch > 1:  # one call per element
            if seen.element != element:
                return
            b = 0
        elif seen.q.shape[0] != self.now.batch:
            raise TraceError(f"{seen.path}: {seen.q.shape[0]} elements in a pass of {self.now.batch}")
        if self.o.tokens or self.o.rows:
            raise TraceError("tokens= and rows= are for language models: a video is stored with its whole grid")
        n, padding, video = seen.q.shape[2], *self._video(seen, element)
        valid = n - padding
        place = Place(0, 0, (0, valid))
        rows = self.files.sample(valid)
        rule = classify(seen, b, place, self.files.on_device(rows, seen.q.device), False)
        base = dict(self.base, layers=self._layers(), positions=self._positions(), positions_applied=1)
        meta = self.files.meta(seen, rule, base, dict(self.run, n_q=n, n_k=n), video)
        writer = self.files.writer(seen, meta, self._expected(video))
        timestep, sigma = self._times()
        call = self.files.begin(writer, {"step": self.index, "branch": branch, "layer": layer, "block": block,
                                         "timestep": timestep, "sigma": sigma}, seen, rule, video["text_valid"])
        everything = slice(0, n)
        self.files.put(writer, call, seen, b, [(everything, 0)], everything, 0)
        if self.o.out != "none":
            out, lse = self.files.check(seen, b, rule, rows)
            writer.put_checks(call, rows, out.numpy(), lse.numpy())
        self.files.settle(seen)
        if self.o.maps:
            self.files.put_maps(writer, call, seen, b, everything, rule)

    def _expected(self, video):
        steps = len(self.o.steps) if self.o.steps else max(1, video["steps"])
        guided = self.pipe is not None and self._guided()
        return steps * len(self.o.layers or range(self._layers())) * (2 if guided and len(self.o.branches or (1, 2)) > 1 else 1)

    # ---- attributes -------------------------------------------------------------------------------

    def _layers(self):
        names = ("blocks", "transformer_blocks", "single_transformer_blocks", "layers")
        return sum(len(getattr(self.now.module, n)) for n in names if isinstance(getattr(self.now.module, n, None), torch.nn.ModuleList))

    def _positions(self):
        kind = KINDS.get(type(self.now.module).__name__)
        rotary = getattr(self.now.module.config, "use_rotary_positional_embeddings", True)
        return kind.positions if kind and rotary else ""

    def _times(self):
        if self.by_hand:
            return self.by_hand[:2]
        if self.pipe is None:
            return float("nan"), float("nan")
        s = self.pipe.scheduler
        sigmas = getattr(s, "sigmas", None)
        return float(s.timesteps[self.index]), float(sigmas[self.index]) if sigmas is not None else float("nan")

    def _text(self, seen, element):
        """(text tokens, valid ones, place). Padding is behind the valid text; Mochi cuts it before the attention."""
        n, kind = seen.q.shape[2] - math.prod(self.now.grid), KINDS.get(type(self.now.module).__name__)
        if not n:
            return 0, 0, "none"
        place = kind.text if kind else self.o.text_place
        if place is None:
            raise TraceError(f"{seen.path}: {n} tokens beside the grid, and where the text of {type(self.now.module).__name__} stands is not known: "
                             "give text_place=\"front\" or \"back\" as its joint attention puts it together")
        mask = self.now.text_mask
        if mask is None or mask.ndim != 2 or mask.shape[1] != n:
            return n, n, place
        row = mask[min(element, mask.shape[0] - 1)].bool()
        valid = int(row.sum())
        if not bool(row[:valid].all()):
            raise TraceError(f"{seen.path}: padding stands before valid text tokens; the trace format has it behind them")
        return n, valid, place

    def _video(self, seen, element):
        """(padding tokens at the end, the /video attributes)."""
        tokens, valid, place = self._text(seen, element)
        (t, h, w), (pt, ph, pw), p = self.now.grid, self.now.patch, self.pipe
        vt = _first(p, "vae_scale_factor_temporal", "vae_temporal_compression_ratio")
        vs = _first(p, "vae_scale_factor_spatial", "vae_spatial_compression_ratio", "vae_scale_factor")
        config = getattr(getattr(p, "scheduler", None), "config", {})
        shift = config.get("flow_shift") or config.get("shift") or 0.0
        timesteps = getattr(getattr(p, "scheduler", None), "timesteps", None)
        if tokens > valid and place == "front":
            raise TraceError(f"{seen.path}: padding text before the video; the trace format cannot say it")
        video = {"grid_t": t, "grid_h": h, "grid_w": w, "frames": (t * pt - 1) * vt + 1 if vt else t if t == 1 else 0,
                 "height": h * ph * vs, "width": w * pw * vs, "fps": 0.0, "vae_t": vt, "vae_h": vs, "vae_w": vs,
                 "patch_t": pt, "patch_h": ph, "patch_w": pw, "text_tokens": tokens, "text_valid": valid, "text_place": place,
                 "token_order": "raster", "sampler": short(type(p.scheduler).__name__ if p is not None else "", 32),
                 "steps": len(timesteps) if timesteps is not None else 0, "shift": float(shift),
                 "guidance": float(_first(p, "guidance_scale"))}
        return tokens - valid, video

    # ---- the end ----------------------------------------------------------------------------------

    def finish(self, notes):
        return self.files.finish(lambda meta: self._schedule(), notes)

    def _schedule(self):
        s = getattr(self.pipe, "scheduler", None)
        if s is None:
            return {}
        arrays = {"timesteps": s.timesteps.double().cpu().numpy()}
        if getattr(s, "sigmas", None) is not None:
            arrays["sigmas"] = torch.as_tensor(s.sigmas).double().cpu().numpy()
        return arrays


def _first(pipe, *names):
    """The first attribute that is a number, 0 without one."""
    for name in names:
        value = getattr(pipe, name, None)
        if isinstance(value, (int, float)):
            return value
    return 0
