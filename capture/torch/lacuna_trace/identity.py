"""What a model calls itself: the /model attributes that do not depend on a call, and the hash of its checkpoint."""
import json
import os
import re
import threading

import torch

from . import xxh3
from .layout import short

CONTAINERS = "layers|blocks|h|layer|transformer_blocks|single_transformer_blocks"
_LAYER = re.compile(rf"(?:^|\.)({CONTAINERS})\.(\d+)(?=\.|$)")


def layer_of(path, module):
    """(container, number) of the layer that a module belongs to; the module's own layer_idx wins; None when unknown."""
    found = _LAYER.findall(path)
    index = getattr(module, "layer_idx", None)
    if isinstance(index, int):
        return (found[-1][0] if found else "layers"), index
    return (found[-1][0], int(found[-1][1])) if found else None


def folder(model):
    """The local directory that a model came from, or ""."""
    name = getattr(model, "name_or_path", "") or getattr(getattr(model, "config", None), "_name_or_path", "") or ""
    for place in (name, os.path.join(name, "transformer")):
        if name and os.path.isdir(place) and any(f.endswith(".safetensors") for f in os.listdir(place)):
            return place
    return ""


def name_of(model):
    name = getattr(model, "name_or_path", "") or getattr(getattr(model, "config", None), "_name_or_path", "") or ""
    return short(os.path.basename(os.path.normpath(name)) if name else type(model).__name__, 128)


def config_of(model):
    """The configuration of a language model's own text part."""
    config = getattr(model, "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def count_layers(model):
    """Layers as the configuration says, else by the numbers in the modules' paths."""
    config = config_of(model)
    for name in ("num_hidden_layers", "num_layers", "n_layer", "n_layers"):
        if isinstance(getattr(config, name, None), int):
            return getattr(config, name) * getattr(config, "inner_group_num", 1)  # ALBERT: of every layer
    numbers = [int(n) for path, _ in model.named_modules() for _, n in _LAYER.findall(path)]
    return max(numbers, default=0) + 1


def positions_of(model):
    """"rope" when a module of the model makes rotary encodings: they are in q and k before any hook sees them."""
    return "rope" if any("rotary" in type(m).__name__.lower() for m in model.modules()) else ""


def compute_of(dtype, device):
    """The arithmetic of the program: what the check of outputs allows for."""
    if dtype == torch.float32 and device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32:
        return "tf32"
    return str(dtype).removeprefix("torch.")


def computed_by(device):
    if device.type == "cuda":
        what = torch.cuda.get_device_name(device)
    else:
        what = torch.backends.cpu.get_cpu_capability() if device.type == "cpu" else device.type
    return short(f"torch {torch.__version__}, {what}", 160)


# ---- checkpoints --------------------------------------------------------------------------------


def _tensors(path):
    """(name, dtype, shape, offset, bytes) of a .safetensors file."""
    with open(path, "rb") as f:
        size = int.from_bytes(f.read(8), "little")
        header = json.loads(f.read(size))
    for name, t in header.items():
        if name != "__metadata__":
            first, end = t["data_offsets"]
            yield name, t["dtype"], t["shape"], 8 + size + first, end - first


class WeightsId:
    """The hash of a checkpoint, made beside the run of the model: reading 16 GB takes a while."""

    PLACEHOLDER = "xxh3:" + 32 * "0"
    _known = {}

    def __init__(self, place):
        files = _files(place) if place else []
        self.key = tuple((f, os.path.getsize(f), os.stat(f).st_mtime_ns) for f in files)
        self.thread, self.value, self.error = None, self._known.get(self.key), None
        if not any(True for f in files for _ in _tensors(f)):
            self.value = ""
        if self.value is None:
            self.thread = threading.Thread(target=self._run, args=(place,), daemon=True)
            self.thread.start()

    def _run(self, place):
        try:
            self.value = self._known[self.key] = weights_id(place)
        except Exception as e:  # noqa: BLE001  told to whoever asks for the value
            self.error = e

    def now(self):
        """What is certain already: a text as long as the final one."""
        return self.PLACEHOLDER if self.value is None else self.value

    def result(self):
        if self.thread is not None:
            self.thread.join()
        if self.error is not None:
            raise self.error
        return self.value

    def __repr__(self):
        return "<hash of the checkpoint>"


def _files(place):
    """The .safetensors files of a checkpoint directory; none where it has several sets of weights."""
    files = sorted(f for f in os.listdir(place) if f.endswith(".safetensors"))
    indexes = [f for f in os.listdir(place) if f.endswith(".safetensors.index.json")]
    if indexes:
        with open(os.path.join(place, indexes[0]), encoding="utf-8") as f:
            files = sorted(set(json.load(f)["weight_map"].values()))
    elif len(files) != 1:
        files = [f for f in files if f in ("model.safetensors", "diffusion_pytorch_model.safetensors")]
    return [os.path.join(place, f) for f in files]


def weights_id(place):
    """XXH3-128 over all tensors of a checkpoint directory in the order of their names: name, dtype, shape, bytes.

    The same value as `lacuna capture` stores. "" without a directory or with several sets of weights in it.
    """
    if not place:
        return ""
    tensors = sorted((*t, f) for f in _files(place) for t in _tensors(f))
    h = xxh3.Hash()
    for name, dtype, shape, offset, size, file in tensors:
        text = "[" + ", ".join(str(n) for n in shape) + "]"
        h.update("\0".join((name, dtype, text, "")).encode())
        with open(file, "rb") as f:
            f.seek(offset)
            while size:
                part = f.read(min(size, 4 << 20))
                h.update(part)
                size -= len(part)
    return "xxh3:" + h.digest().hex() if tensors else ""
