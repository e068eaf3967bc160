#!/usr/bin/env python3
"""First stage of code-lm: a language model of C source, from scratch, at 2K, 8K and 32K tokens.

    train_lm.py --text train.txt.xz --held held.txt.xz --out DIR [--seconds 430]

The text files hold documents separated by U+001E (README.md says what code-lm was trained on). The
budget is wall-clock time: 40 % of it at 2K, 22 % at 8K, 38 % at 32K tokens of context. On one H200
430 s are 3588 steps and 705 million tokens. Writes a checkpoint directory with training.json.
"""
import argparse
import os
import time

import torch

import lm_model as lm

# (context, sequences per step, share of the time): about 196 thousand tokens a step
STAGES = [(2048, 96, 0.40), (8192, 24, 0.22), (32768, 6, 0.38)]
PEAK_LR = 3e-3
START = time.time()


def log(*words):
    print(f"[{time.time() - START:6.1f}s]", *words, flush=True)


def learning_rate(step, done):
    """100 steps of warm-up, constant for 45 % of the time, then linearly to 2 %."""
    decay = 1.0 if done < 0.45 else max(0.02, 1 - (done - 0.45) / 0.55)
    return PEAK_LR * min(1.0, (step + 1) / 100) * decay


def train(model, data, seconds):
    opt = lm.optimizer(model, PEAK_LR)
    cos, sin = lm.rotary_tables(lm.LONGEST)
    start, step, seen, last_loss, end = time.time(), 0, 0, None, 0.0
    for context, batch, share in STAGES:
        end += share
        while (done := (time.time() - start) / seconds) < end:
            at = torch.randint(0, data.numel() - context - 1, (batch,), device=lm.DEVICE)
            ids = data[at[:, None] + torch.arange(context + 1, device=lm.DEVICE)].long()
            with torch.autocast(lm.DEVICE, torch.bfloat16):
                loss = model.loss(ids, cos[:context], sin[:context])
            lm.step(model, opt, loss, learning_rate(step, done))
            step, seen = step + 1, seen + batch * context
            if step % 200 == 0 or step in (1, 2, 10):
                last_loss = loss.item()
                log(f"step {step}, context {context}: loss {last_loss:.3f}, {seen / 1e6:.0f} M tokens")
    return {"steps": step, "tokens": seen, "final_loss": last_loss, "stages": STAGES}


def copied_passage(model, held, cos, sin):
    """A 512-token passage repeated at the end of 32K: its loss then, and when first seen."""
    ids = held[:lm.LONGEST + 1].clone()[None]
    ids[0, lm.LONGEST - 511:] = ids[0, 4096:4096 + 512]
    with torch.no_grad(), torch.autocast(lm.DEVICE, torch.bfloat16):
        loss = model.loss(ids, cos, sin, "none").float()
    return {"nll_of_copied_passage": loss[lm.LONGEST - 448:].mean().item(),
            "nll_of_same_passage_first_seen": loss[4096 + 63:4096 + 511].mean().item()}


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--text", required=True)
    args.add_argument("--held", required=True)
    args.add_argument("--out", required=True)
    args.add_argument("--seconds", type=float, default=430)
    a = args.parse_args()
    os.makedirs(a.out, exist_ok=True)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.set_float32_matmul_precision("high")

    text, held_text = lm.read_text(a.text), lm.read_text(a.held)
    tok = lm.train_tokenizer(text, os.path.join(a.out, "tokenizer.json"))
    data = lm.encode(tok, text).to(lm.DEVICE)
    held = lm.encode(tok, held_text).to(lm.DEVICE).long()
    log(f"{data.numel() / 1e6:.1f} M tokens, {held.numel() / 1e3:.0f} K held out")

    torch.manual_seed(0)
    model = lm.CodeLM().to(lm.DEVICE)
    lm.compile_layers(model)
    report = train(model, data, a.seconds)
    model.eval()
    cos, sin = lm.rotary_tables(lm.LONGEST)
    report.update(lm.position_report(lm.loss_by_position(model, held, cos, sin)))
    if held.numel() > lm.LONGEST:
        report.update(copied_passage(model, held, cos, sin))
    lm.save_checkpoint(model, a.out, report)
    log(report)


if __name__ == "__main__":
    main()
