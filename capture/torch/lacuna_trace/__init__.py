"""Traces of attention for lacuna: capture from PyTorch models, read in Python.

    with lacuna_trace.capture(model, "t.h5", layers="0,4-7"):
        model.generate(**inputs)

    t = lacuna_trace.open_trace("t.h5")
    p = t.call(layer=4).probs(head=3, rows=[100])

Reading needs NumPy and h5py; PyTorch is imported by `capture` alone. lacuna_trace.method, for methods of your own in a
replay, needs NumPy alone.
"""
try:
    from .layout import VERSION as __version__
    from .layout import TraceError
    from .masks import block_mask, flashinfer_plan, open_masks
    from .reader import open_trace, open_traces
    from .records import records
except ModuleNotFoundError as missing:
    if missing.name != "h5py":
        raise

__all__ = ["TraceError", "block_mask", "capture", "flashinfer_plan", "open_masks", "open_trace", "open_traces", "records"]


def __getattr__(name):
    if name == "capture":
        from .session import capture
        return capture
    if name in __all__:
        raise ModuleNotFoundError(f"{__name__}.{name} needs h5py, which is not installed", name="h5py")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
