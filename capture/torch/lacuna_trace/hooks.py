"""Get between a model and its attention: every function that can be called is replaced for a while.

Four places are replaced together, and the outermost one that fires records; those inside of it pass through:
  1. the attention functions of transformers (ALL_ATTENTION_FUNCTIONS, eager_attention_forward of a model's file),
  2. the backends of diffusers' attention dispatcher,
  3. flash_attn, xformers, flex_attention,
  4. torch.nn.functional.scaled_dot_product_attention.
Forward hooks on the modules keep a stack: the functions of 2 to 4 are given no module, the top of the stack names it.
"""
import collections
import functools
import inspect
import re
import sys
import threading

import torch

from .calls import Seen
from .identity import layer_of
from .layout import TraceError
from .pipe import Whole

NO_SOFTMAX = re.compile("Linear|Lightning|DeltaNet|Mamba|Retention|RWKV|Rwkv|SSM|Conv")
# transformers' keywords that change the result and that the trace format does not know.
UNKNOWN = {"indices": "keys are chosen by the model itself (indices): it is sparse already",
           "head_mask": "a head mask", "p_attn_mask": "a second mask"}


class Frame:
    """A module whose forward runs. `calls` counts its attention calls: Mochi has one per batch element.

    `plain`: it is not known to be attention; it names a call only where no module around the call is.
    """

    def __init__(self, module, plain):
        self.module, self.plain, self.calls = module, plain, 0


class Hooks:
    """Installed for one target; `sink` gets saw(Seen) per attention call and entered(module, args, kwargs) per forward of a root."""

    def __init__(self, roots, sink):
        self.roots, self.sink, self.undo = roots, sink, []
        self.paths = {}
        for name, root in roots.items():
            for path, m in root.named_modules():
                self.paths.setdefault(id(m), (".".join(p for p in (name, path) if p), m))
        self.local = threading.local()
        self.ran, self.heard = set(), set()

    # ---- stack ------------------------------------------------------------------------------------

    def stack(self):
        if not hasattr(self.local, "stack"):
            self.local.stack, self.local.depth, self.local.runs = [], 0, collections.Counter()
        return self.local.stack

    def path(self, module):
        return self.paths[id(module)][0]

    def _is_attention(self, m):
        return "Attention" in type(m).__name__ or hasattr(m, "processor") or isinstance(getattr(m, "layer_idx", None), int)

    def _is_plain(self, path, m):
        """A part of a numbered layer, whatever its class is called: programs have an Attn or a Mixer of their own."""
        return layer_of(path, m) is not None and next(m.children(), None) is not None

    @torch.compiler.disable  # compiled code that contains the target stops here and goes on behind it
    def _push(self, module, args, kwargs):
        root = any(module is r for r in self.roots.values())
        if not self.stack():
            self.local.runs = collections.Counter()
        self.local.runs[id(module)] += 1
        self.stack().append(Frame(module, not root and not self._is_attention(module)))
        self.ran.add(id(module))
        if root:
            self.sink.entered(module, args, kwargs)

    @torch.compiler.disable
    def _pop(self, module, args, result):
        stack = self.stack()
        while stack and stack.pop().module is not module:
            pass

    def bypassed(self):
        """Attention modules that ran while no hook heard a call of theirs, of their children or of their parents."""
        heard = {self.paths[i][0] for i in self.heard}
        lost = []
        for i in self.ran:
            path, m = self.paths[i]
            related = any(h == path or h.startswith(path + ".") or path.startswith(h + ".") for h in heard)
            if "Attention" in type(m).__name__ and not NO_SOFTMAX.search(type(m).__name__) and not related:
                lost.append((path, type(m).__name__))
        return sorted(lost)

    def linear(self):
        """Modules of linear attention that ran: there is no softmax to capture."""
        return sorted(self.paths[i][0] for i in self.ran if NO_SOFTMAX.search(type(self.paths[i][1]).__name__))

    # ---- replacing --------------------------------------------------------------------------------

    def install(self):
        try:
            for path, m in list(self.paths.values()):
                if self._is_attention(m) or any(m is r for r in self.roots.values()) or self._is_plain(path, m):
                    self.undo.append(m.register_forward_pre_hook(self._push, with_kwargs=True).remove)
                    self.undo.append(m.register_forward_hook(self._pop, always_call=True).remove)
            self._transformers()
            self._diffusers()
            self._flash()
            self._functions(torch.nn.functional, "scaled_dot_product_attention", self._sdpa)
        except BaseException:
            self.remove()
            raise

    def remove(self):
        while self.undo:
            self.undo.pop()()

    def put(self, owner, name, value):
        """Set an attribute until `remove`; one that only the class had is deleted again."""
        own = vars(owner).get(name, self)
        setattr(owner, name, value)
        self.undo.append((lambda: delattr(owner, name)) if own is self else (lambda: setattr(owner, name, own)))

    def _item(self, mapping, key, value):
        old = mapping[key]
        mapping[key] = value
        self.undo.append(lambda: mapping.__setitem__(key, old))

    def _target_files(self):
        """The Python modules in which the classes of the target are defined."""
        return [sys.modules[n] for n in {type(m).__module__ for _, m in self.paths.values()} if n in sys.modules]

    def _functions(self, home, name, make):
        """Replace home.name, and the same object where a file of the target imported it by name."""
        old = getattr(home, name, None)
        if old is None:
            return
        new = make(old)
        self.put(home, name, new)
        for file in self._target_files():
            for other in [n for n, x in vars(file).items() if x is old]:
                self.put(file, other, new)

    def _around(self, old, see):
        """Call `old`; when it is the outermost function of a module of the target, tell the sink what see() makes of it."""
        @torch.compiler.disable
        @functools.wraps(old)
        def call(*args, **kwargs):
            stack = self.stack()
            if self.local.depth or not stack:
                return old(*args, **kwargs)
            self.local.depth += 1
            try:
                whole = Whole.before((*args, *kwargs.values()))
                result = old(*args, **kwargs)
                with torch.no_grad():
                    seen = see(old, args, kwargs, result)
                    if seen is not None:
                        seen.whole = whole
                        self._tell(seen)
            finally:
                self.local.depth -= 1
            return result
        return call

    def _tell(self, seen):
        stack = self.stack()
        self.heard.update(id(f.module) for f in stack if not f.plain)
        self.heard.add(id(seen.module))
        seen.runs = self.local.runs
        frame = next((f for f in reversed(stack) if f.module is seen.module), None)
        if frame is not None:
            seen.element, frame.calls = frame.calls, frame.calls + 1
        self.sink.saw(seen)

    def _top(self):
        """The innermost attention-like module that runs now; else the innermost one of a numbered layer, else the root."""
        stack = self.stack()
        known = next((f for f in reversed(stack) if not f.plain), stack[-1])
        return (stack[-1] if known.plain or any(known.module is r for r in self.roots.values()) else known).module

    # ---- 1. transformers --------------------------------------------------------------------------

    def _transformers(self):
        utils = sys.modules.get("transformers.modeling_utils")
        mappings = [getattr(utils, "ALL_ATTENTION_FUNCTIONS", None)] if utils else []
        for file in self._target_files():
            mapping = getattr(file, "ALL_ATTENTION_FUNCTIONS", None)
            if mapping is not None and not any(mapping is m for m in mappings):
                mappings.append(mapping)
            eager = getattr(file, "eager_attention_forward", None)
            if callable(eager):
                self.put(file, "eager_attention_forward", self._around(eager, functools.partial(self._interface, "eager")))
        for mapping in mappings:
            for key in list(mapping.keys()) if mapping is not None else ():
                store = next((d for d in (getattr(mapping, "_local_mapping", {}), getattr(mapping, "_global_mapping", {}))
                              if key in d), mapping)
                self._item(store, key, self._around(store[key], functools.partial(self._interface, key)))

    def _interface(self, key, old, args, kwargs, result):
        a = dict(zip(self._names(old), args)) | kwargs
        module, q, k, v = a["module"], a["query"], a["key"], a["value"]
        if id(module) not in self.paths:
            return None
        mask, s = a.get("attention_mask"), q.shape[2]
        refuse_training(self.path(module), module, a.get("dropout") or a.get("attention_dropout") or 0.0)
        causal = a.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        flash = "flash" in key
        kind = None if key == "eager" or not causal or (s == 1 and not flash) else "lower" if flash else "upper"
        width = a.get("sliding_window")
        seen = Seen(f"transformers {key}", self.path(module), module, q, k, v, result[0].transpose(1, 2),
                    float(a["scaling"]) if a.get("scaling") is not None else q.shape[-1] ** -0.5, kind, mask,
                    (width - 1, None) if flash and width else (None, None), None if flash else width, None, float(a.get("softcap") or 0.0),
                    a.get("s_aux"), a.get("position_bias"),
                    next((text for name, text in UNKNOWN.items() if a.get(name) is not None), ""), a.get("position_ids"))
        lengths = a.get("cu_seq_lens_q")
        if lengths is not None and len(lengths) > 2:
            seen.other = f"{len(lengths) - 1} packed sequences in one call"
        if key == "eager" and q.dtype != torch.float32:
            seen.again = lambda rows: self._eager_again(old, args, kwargs, rows)
        return seen

    @staticmethod
    def _names(old):
        """Positional arguments of an attention function: the first five are the same in every model."""
        return ["module", "query", "key", "value", "attention_mask", *list(inspect.signature(old).parameters)[5:]]

    def _eager_again(self, old, args, kwargs, rows):
        """The model's own arithmetic in float32: eager functions round scores and weights to 16 bits."""
        names = self._names(old)
        new = dict(zip(names, args)) | kwargs
        mask = new.get("attention_mask")
        new["query"], new["key"], new["value"] = new["query"][:, :, rows].float(), new["key"].float(), new["value"].float()
        if isinstance(mask, torch.Tensor):
            mask = mask[:, :, rows] if mask.shape[2] > 1 else mask
            new["attention_mask"] = mask if mask.dtype == torch.bool else mask.float()
        positional = [new.pop(n) for n in names[:len(args)]]
        return old(*positional, **new)[0].transpose(1, 2)

    # ---- 2. diffusers -----------------------------------------------------------------------------

    def _diffusers(self):
        dispatch = sys.modules.get("diffusers.models.attention_dispatch")
        registry = getattr(dispatch, "_AttentionBackendRegistry", None)
        for name, old in list(registry._backends.items()) if registry else ():
            see = functools.partial(self._backend, str(getattr(name, "value", name)))
            self._item(registry._backends, name, self._around(old, see))

    def _backend(self, name, old, args, a, result):
        if a.get("_parallel_config") is not None:
            raise TraceError(f"{self.path(self._top())}: the sequence is split over several processes; capture without parallelism")
        out = result[0] if isinstance(result, tuple) else result
        q, k, v, out = (x.transpose(1, 2) for x in (a["query"], a["key"], a["value"], out))
        refuse_training(self.path(self._top()), self._top(), a.get("dropout_p") or 0.0)
        return self._plain(f"diffusers {name}", q, k, v, out, a.get("scale"), "upper" if a.get("is_causal") else None,
                           a.get("attn_mask"))

    def _plain(self, hook, q, k, v, out, scale, causal, mask, **more):
        if q.ndim != 4:
            raise TraceError(f"{self.path(self._top())}: {hook} of tensors with {q.ndim} axes; 4 are known: batch, heads, tokens, dim")
        return Seen(hook, self.path(self._top()), self._top(), q, k, v, out,
                    q.shape[-1] ** -0.5 if scale is None else float(scale), causal, mask, **more)

    # ---- 3. other libraries -------------------------------------------------------------------------

    def _flash(self):
        for name in ("flash_attn", "flash_attn.flash_attn_interface", "flash_attn_interface"):
            if name in sys.modules:
                self._functions(sys.modules[name], "flash_attn_func", lambda old: self._around(old, self._flash_func))
                self._functions(sys.modules[name], "flash_attn_varlen_func", lambda old: self._around(old, self._flash_varlen))
        if "xformers.ops" in sys.modules:
            self._functions(sys.modules["xformers.ops"], "memory_efficient_attention",
                            lambda old: self._around(old, self._xformers))
        flex = sys.modules.get("torch.nn.attention.flex_attention")
        if flex:
            self._functions(flex, "flex_attention", lambda old: self._around(old, self._flex))

    def _flash_func(self, old, args, kwargs, result, cut=None):
        a = dict(zip(("q", "k", "v", "dropout_p", "softmax_scale", "causal", "window_size", "softcap", "alibi_slopes"), args)) | kwargs
        q, k, v, out = a["q"], a["k"], a["v"], result[0] if isinstance(result, tuple) else result
        q, k, v, out = (x.transpose(1, 2) for x in (cut or (q, k, v, out)))
        refuse_training(self.path(self._top()), self._top(), a.get("dropout_p") or 0.0)
        left, right = (None if w < 0 else w for w in a.get("window_size") or (-1, -1))
        return self._plain(old.__name__, q, k, v, out, a.get("softmax_scale"), "lower" if a.get("causal") else None, None,
                           picked=cut is not None, window=(left, right), softcap=float(a.get("softcap") or 0.0),
                           alibi=a.get("alibi_slopes"))

    def _flash_varlen(self, old, args, kwargs, result):
        names = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "dropout_p", "softmax_scale",
                 "causal", "window_size", "softcap", "alibi_slopes")
        a = dict(zip(names, args)) | kwargs
        ends_q, ends_k = a.pop("cu_seqlens_q").tolist(), a.pop("cu_seqlens_k").tolist()
        b = self.sink.batch
        if b + 1 >= len(ends_q):
            raise TraceError(f"{self.path(self._top())}: batch={b}, but the call has {len(ends_q) - 1} sequences")
        out = result[0] if isinstance(result, tuple) else result
        rows, keys = slice(ends_q[b], ends_q[b + 1]), slice(ends_k[b], ends_k[b + 1])
        cut = tuple(x[None] for x in (a["q"][rows], a["k"][keys], a["v"][keys], out[rows]))
        return self._flash_func(old, (), a, result, cut)

    def _xformers(self, old, args, kwargs, result):
        a = dict(zip(("query", "key", "value", "attn_bias", "p", "scale"), args)) | kwargs
        q, k, v, out, bias = a["query"], a["key"], a["value"], result, a.get("attn_bias")
        refuse_training(self.path(self._top()), self._top(), a.get("p") or 0.0)
        if q.ndim == 5:  # (b, s, g, h / g, d): k and v are repeated along the fourth axis
            k, v = k[:, :, :, 0], v[:, :, :, 0]
            q, out = q.flatten(2, 3), out.flatten(2, 3)
        kinds = {"LowerTriangularMask": "upper", "LowerTriangularFromBottomRightMask": "lower"}
        kind = type(bias).__name__
        if bias is not None and not isinstance(bias, torch.Tensor) and kind not in kinds:
            raise TraceError(f"{self.path(self._top())}: xformers' {kind} is not known; capture one sequence per call")
        q, k, v, out = (x.transpose(1, 2) for x in (q, k, v, out))
        return self._plain("memory_efficient_attention", q, k, v, out, a.get("scale"), kinds.get(kind),
                           bias if isinstance(bias, torch.Tensor) else None)

    def _flex(self, old, args, kwargs, result):
        a = dict(zip(("query", "key", "value", "score_mod", "block_mask", "scale"), args)) | kwargs
        out = result[0] if isinstance(result, tuple) else result
        return self._plain("flex_attention", a["query"], a["key"], a["value"], out, a.get("scale"), None, a.get("block_mask"),
                           other="the scores are changed by a function (score_mod)" if a.get("score_mod") is not None else "")

    # ---- 4. PyTorch -------------------------------------------------------------------------------

    def _sdpa(self, old):
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")

        def see(_, args, kwargs, result):
            a = dict(zip(names, args)) | kwargs
            refuse_training(self.path(self._top()), self._top(), a.get("dropout_p") or 0.0)
            seen = self._plain("scaled_dot_product_attention", a["query"], a["key"], a["value"], result, a.get("scale"),
                               "upper" if a.get("is_causal") else None, a.get("attn_mask"))
            seen.k, seen.v = undo_repeat(seen)
            return seen
        return self._around(old, see)


def refuse_training(path, module, dropout):
    if dropout:
        raise TraceError(f"{path}: dropout {dropout} changes the attention; call model.eval() before the capture")


def undo_repeat(seen):
    """k and v with one head per kv head, where the program repeated each for its query heads and its module says how often."""
    k, v, h = seen.k, seen.v, seen.q.shape[1]
    times = getattr(seen.module, "num_key_value_groups", None)
    config = getattr(seen.module, "config", None)
    for name in ("num_key_value_heads", "multi_query_group_num"):
        if times is None and isinstance(getattr(config, name, None), int) and getattr(config, name) > 0:
            times = h // getattr(config, name)
    if not isinstance(times, int) or times <= 1 or k.shape[1] != h or h % times:
        return k, v
    first = torch.arange(0, h, times, device=k.device)
    equal = all(torch.equal(x[:, i::times], x[:, first]) for x in (k, v) for i in range(1, times))
    return (k[:, ::times], v[:, ::times]) if equal else (k, v)
