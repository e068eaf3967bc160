#!/usr/bin/env python3
"""Time of transformers' prefill of a checkpoint over given tokens, beside `lacuna capture`.

Device time by CUDA events after three warm-up runs, median of --samples: the forward pass with the
last token's logits only, and with the loss of all tokens. Weights are on the GPU before. Attention
is torch's SDPA; which of its kernels ran is what torch picks, or --backend.

Needs PyTorch, transformers, tokenizers. Nothing of it is used by the product.

  prefill_peer.py MODEL PROMPT [--tokens N] [--dtype bfloat16|float32] [--backend NAME]
"""
import argparse
import contextlib
import statistics

import torch
from tokenizers import Tokenizer
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoModelForCausalLM, __version__


def median_ms(run, samples):
    for _ in range(3):
        run()
    times = []
    for _ in range(samples):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("prompt")
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--backend", choices=["FLASH_ATTENTION", "CUDNN_ATTENTION"])
    parser.add_argument("--samples", type=int, default=10)
    args = parser.parse_args()
    text = open(args.prompt, encoding="utf-8", errors="replace").read()
    ids = Tokenizer.from_file(f"{args.model}/tokenizer.json").encode(text).ids[:args.tokens]
    ids = torch.tensor([ids], device="cuda")
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=getattr(torch, args.dtype),
                                                 attn_implementation="sdpa").cuda().eval()
    pick = sdpa_kernel(getattr(SDPBackend, args.backend)) if args.backend else \
        contextlib.nullcontext()
    with torch.no_grad(), pick:
        last = median_ms(lambda: model(ids, use_cache=False, logits_to_keep=1), args.samples)
        loss = median_ms(lambda: model(ids, use_cache=False, labels=ids), args.samples)
    print(f"transformers {__version__}, torch {torch.__version__}, {args.dtype}, "
          f"{args.backend or 'default SDPA'}, {ids.shape[1]} tokens: "
          f"prefill {last:.2f} ms, with the loss of all tokens {loss:.2f} ms")


if __name__ == "__main__":
    main()
