#!/usr/bin/env python3
"""Second stage of code-lm: retrieval over long distances.

    tune_lm.py --from DIR --text train.txt.xz --held held.txt.xz --out DIR [--seconds 300]

Goes on from train_lm.py's checkpoint with contexts of 8K and 32K tokens into which needles
("/* needle KEY: VALUE */") and verbatim passages are planted, and asked for again further on, so that
the model has the retrieval heads that long-context methods are judged by. 300 s on one H200 are 1427
steps. training.json then holds the needle accuracy by context length and depth.
"""
import argparse
import json
import os
import queue
import random
import shutil
import threading
import time

import torch

import lm_model as lm

STAGES = [(8192, 24, 0.5), (32768, 6, 0.5)]  # (context, sequences per step, share of the time)
PEAK_LR = 1e-3
TEXT_CHARS = 120 << 20
ASKED, COPIED = 15.0, 2.0  # loss weights of a needle's second value and of a copied passage
FEEDERS = 8
START = time.time()


def log(*words):
    print(f"[{time.time() - START:6.1f}s]", *words, flush=True)


# ---- needles -------------------------------------------------------------------------------------

def make_needles(tok, n, rng):
    """n triples of token lists: up to the colon, the value, the end of the comment."""
    ids = lambda text: tok.encode(text, add_special_tokens=False).ids
    out, tail = [], ids(" */\n")
    while len(out) < n:
        key, value = rng.randrange(10000, 99999), rng.randrange(10000000, 99999999)
        head, body = ids(f"\n/* needle {key}:"), ids(f" {value}")
        if len(head) + len(body) < 30:
            out.append((head, body, tail))
    return out


def plant_needles(ids, weights, pool, count, rng):
    """Each stands twice, at random places; the loss counts its second value most."""
    for _ in range(count):
        head, body, tail = rng.choice(pool)
        size = len(head) + len(body) + len(tail)
        first = rng.randrange(0, len(ids) - 2 * size - 2)
        again = rng.randrange(first + size, len(ids) - size)
        ids[first:first + size] = ids[again:again + size] = torch.tensor(head + body + tail)
        weights[again:again + size] = 1.0
        weights[again + len(head):again + len(head) + len(body)] = ASKED


def plant_copies(ids, weights, count, rng):
    for _ in range(count):
        size = rng.randrange(48, 256)
        first = rng.randrange(0, len(ids) - 2 * size - 1)
        again = rng.randrange(first + size, len(ids) - size)
        ids[again:again + size] = ids[first:first + size].clone()
        weights[again + 8:again + size] = COPIED


def accuracy(model, held, tok, cos, sin, rng, lengths=(2048, 4096, 8192, 16384, 32768),
             depths=(0.0, 0.25, 0.5, 0.75, 0.95), trials=12):
    """Share of trials in which every token of the value is the likeliest one, "length@depth"."""
    out, pool = {}, make_needles(tok, 400, rng)
    with torch.no_grad(), torch.autocast(lm.DEVICE, torch.bfloat16):
        for n in lengths:
            for depth in depths:
                hits = 0
                for _ in range(trials):
                    head, body, tail = rng.choice(pool)
                    needle = head + body + tail
                    at = rng.randrange(0, held.numel() - n - 1)
                    ids = held[at:at + n].clone()
                    first = int(depth * (n - 2 * len(needle) - 8))
                    ids[first:first + len(needle)] = torch.tensor(needle, device=lm.DEVICE)
                    asked = torch.tensor(head + body, device=lm.DEVICE)
                    ids[n - len(asked):] = asked
                    hidden = model.hidden(ids[None, :-1], cos[:n - 1], sin[:n - 1])[0, -len(body):]
                    hits += bool((model.logits(hidden).argmax(-1) == asked[-len(body):]).all())
                out[f"{n}@{depth:.2f}"] = hits / trials
    return out


# ---- training ------------------------------------------------------------------------------------

class Feeder:
    """Threads that cut sequences out of the text and plant needles in them."""

    def __init__(self, data, pool):
        self.data, self.pool, self.queue, self.shape = data, pool, queue.Queue(24), STAGES[0][:2]
        for seed in range(FEEDERS):
            threading.Thread(target=self.work, args=(random.Random(seed),), daemon=True).start()

    def work(self, rng):
        while True:
            context, batch = self.shape
            starts = (rng.randrange(0, self.data.numel() - context - 1) for _ in range(batch))
            ids = torch.stack([self.data[s:s + context + 1].long() for s in starts])
            weights = torch.ones_like(ids, dtype=torch.float32)
            for i in range(batch):
                plant_needles(ids[i], weights[i], self.pool, 3 + context // 1024, rng)
                plant_copies(ids[i], weights[i], context // 4096, rng)
            self.queue.put((context, ids.pin_memory(), weights.pin_memory()))

    def next(self, context, batch):
        """A batch of this context; what was prepared for an earlier one is dropped."""
        self.shape = (context, batch)
        while True:
            c, ids, weights = self.queue.get()
            if c == context:
                return ids.to(lm.DEVICE, non_blocking=True), weights.to(lm.DEVICE, non_blocking=True)


def tune(model, feeder, cos, sin, seconds):
    opt = lm.optimizer(model, PEAK_LR)
    start, step, end = time.time(), 0, 0.0
    for context, batch, share in STAGES:
        end += share
        while (done := (time.time() - start) / seconds) < end:
            ids, weights = feeder.next(context, batch)
            with torch.autocast(lm.DEVICE, torch.bfloat16):
                each = model.loss(ids, cos[:context], sin[:context], "none")
            weights = weights[:, 1:].reshape(-1)
            loss = (each * weights).sum() / weights.sum()
            lm.step(model, opt, loss, PEAK_LR * min(1, (step + 1) / 50) * max(0.01, 1 - done))
            step += 1
            if step % 100 == 0 or step == 1:
                mean = lambda w: each[weights == w].mean().item()
                log(f"step {step}, context {context}: text {mean(1.0):.3f}, needles {mean(ASKED):.3f}, "
                    f"copies {mean(COPIED):.3f}")
    return step


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--from", dest="source", required=True)
    args.add_argument("--text", required=True)
    args.add_argument("--held", required=True)
    args.add_argument("--out", required=True)
    args.add_argument("--seconds", type=float, default=300)
    a = args.parse_args()
    os.makedirs(a.out, exist_ok=True)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.set_float32_matmul_precision("high")
    from tokenizers import Tokenizer

    tok = Tokenizer.from_file(os.path.join(a.source, "tokenizer.json"))
    data = lm.encode(tok, lm.read_text(a.text, TEXT_CHARS))
    held = lm.encode(tok, lm.read_text(a.held, TEXT_CHARS)).to(lm.DEVICE).long()
    model = lm.CodeLM().to(lm.DEVICE)
    lm.load_weights(model, a.source)
    lm.compile_layers(model)
    cos, sin = lm.rotary_tables(lm.LONGEST)
    with open(os.path.join(a.source, "training.json")) as f:
        report = json.load(f)
    feeder = Feeder(data, make_needles(tok, 20000, random.Random(7)))
    report["tune_steps"] = tune(model, feeder, cos, sin, a.seconds)

    model.eval()
    for i, layer in enumerate(model.layers):  # evaluation lengths vary: without the compiled forms
        model.layers[i] = getattr(layer, "_orig_mod", layer)
    report["niah"] = accuracy(model, held, tok, cos, sin, random.Random(99))
    report.update(lm.position_report(lm.loss_by_position(model, held, cos, sin)))
    shutil.copy(os.path.join(a.source, "tokenizer.json"), os.path.join(a.out, "tokenizer.json"))
    lm.save_checkpoint(model, a.out, report)
    log(report)


if __name__ == "__main__":
    main()
