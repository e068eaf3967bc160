#!/usr/bin/env python3
"""Train video-dit: rectified flow on camera moves over photographs.

    train_dit.py --images DIR --out DIR [--seconds 480]

DIR holds .jpg pictures of one size. A clip is a pan, zoom and rotation over one of them with two
moving round sprites cut from others; eight "text" tokens describe motion, sprites and mean colour.
x = (1 - s) x0 + s noise, target noise - x0. The budget is wall-clock time: 60 % at 16 x 128 x 192
(6,144 tokens), 40 % at 16 x 256 x 384 (24,576). On one H200 480 s are 4993 steps.
"""
import argparse
import glob
import json
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file

import dit_model as dit

# (frames, height, width, clips per step, share of the time, timestep shift)
STAGES = [(16, 128, 192, 16, 0.60, 2.0), (16, 256, 384, 4, 0.40, 5.0)]
PEAK_LR = 1e-3
TEXT_TOKENS = 8
SAMPLE_STEPS, SAMPLE_SHIFT = 50, 5.0
START = time.time()


def log(*words):
    print(f"[{time.time() - START:6.1f}s]", *words, flush=True)


# ---- clips ---------------------------------------------------------------------------------------

class Clips:
    """Random clips and the tokens that describe them."""

    def __init__(self, directory, generator):
        files = sorted(glob.glob(os.path.join(directory, "*.jpg")))
        pictures = [np.array(Image.open(f).convert("RGB")) for f in files]
        self.images = torch.stack([torch.from_numpy(p).permute(2, 0, 1) for p in pictures]).to(dit.DEVICE)
        self.generator = generator

    def uniform(self, batch, low, high):
        r = torch.rand(batch, 1, generator=self.generator, device=dit.DEVICE)
        return low + (high - low) * r

    def pixels(self, index, frames):
        return self.images[index].float().div(127.5).sub(1).repeat_interleave(frames, 0)

    def camera(self, batch):
        """zoom, its change, angle, its change, centre x and y, velocity x and y: each [batch][1]."""
        zoom = self.uniform(batch, 0.25, 0.70)
        reach = (0.95 - zoom).clamp(min=0.05)
        turn = [self.uniform(batch, -a, a) for a in (0.2, 0.25, 0.25)]
        centre = [self.uniform(batch, -1, 1) * reach for _ in range(2)]
        return [zoom, *turn, *centre, *(self.uniform(batch, -0.25, 0.25) for _ in range(2))]

    def sprite(self, batch):
        """Place x and y, velocity x and y, radius."""
        place = [self.uniform(batch, -0.8, 0.8) for _ in range(2)]
        return [*place, *(self.uniform(batch, -1.2, 1.2) for _ in range(2)), self.uniform(batch, 0.12, 0.37)]

    def draw(self, batch, frames, height, width):
        """Clips [batch][3][frames][height][width] in [-1, 1] and tokens [batch][8][32]."""
        index = torch.randint(0, len(self.images), (batch, 3), generator=self.generator, device=dit.DEVICE)
        at = torch.linspace(-0.5, 0.5, frames, device=dit.DEVICE)[None]
        y, x = torch.meshgrid(torch.linspace(-1, 1, height, device=dit.DEVICE),
                              torch.linspace(-1, 1, width, device=dit.DEVICE), indexing="ij")
        look = lambda source, gx, gy: F.grid_sample(
            source, torch.stack([gx, gy], -1).view(batch * frames, height, width, 2),
            padding_mode="reflection", align_corners=False)
        wide = lambda t: t[..., None, None]

        camera = zoom, dzoom, angle, dangle, cx, cy, vx, vy = self.camera(batch)
        scale, turn = zoom * (1 + dzoom * at), angle + dangle * at
        cos, sin = wide(turn.cos()), wide(turn.sin())
        video = look(self.pixels(index[:, 0], frames),
                     (x * cos - y * sin) * wide(scale) + wide(cx + vx * at),
                     (x * sin + y * cos) * wide(scale) + wide(cy + vy * at))
        sprites = [self.sprite(batch) for _ in range(2)]
        for k, (px, py, ux, uy, radius) in enumerate(sprites):
            dx = x - wide(px + ux * at)
            dy = (y - wide(py + uy * at)) * (height / width)
            inside = ((dx ** 2 + dy ** 2).sqrt() < wide(radius)).float()
            inside = inside.view(batch * frames, 1, height, width)
            video = video * (1 - inside) + inside * look(self.pixels(index[:, k + 1], frames), dx, dy)
        video = video.view(batch, frames, 3, height, width).transpose(1, 2).contiguous()
        colour = self.images[index[:, 0]].float().mean((2, 3)).div(127.5).sub(1)
        return video, self.describe(camera, sprites, colour)

    def describe(self, camera, sprites, colour):
        text = torch.zeros(len(colour), TEXT_TOKENS, dit.CONFIG["text_dim"], device=dit.DEVICE)
        rows = [torch.cat(camera, 1), *(torch.cat(s, 1) for s in sprites), colour]
        for i, row in enumerate(rows):
            text[:, i, :row.shape[1]] = row
            text[:, i, 24 + i] = 1.0  # which kind of token this is
        return text


# ---- training ------------------------------------------------------------------------------------

def flow_loss(model, clips, shape, shift, generator, rotary):
    """Timesteps are logit-normal, then shifted towards noise."""
    batch, frames, height, width = shape
    x0, text = clips.draw(batch, frames, height, width)
    u = torch.sigmoid(torch.randn(batch, generator=generator, device=dit.DEVICE))
    s = shift * u / (1 + (shift - 1) * u)
    noise = torch.randn(x0.shape, generator=generator, device=dit.DEVICE)
    mix = s.view(batch, 1, 1, 1, 1)
    with torch.autocast(dit.DEVICE, torch.bfloat16):
        velocity = model((1 - mix) * x0 + mix * noise, 1000 * s, text, *rotary)
    return F.mse_loss(velocity.float(), noise - x0)


def train(model, clips, generator, seconds):
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    opt = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.01},
                             {"params": vectors, "weight_decay": 0.0}],
                            lr=PEAK_LR, betas=(0.9, 0.99), fused=True)
    start, step, end, recent, mean = time.time(), 0, 0.0, [], None
    for frames, height, width, batch, share, shift in STAGES:
        rotary, end = dit.rotary_tables(frames, height // 8, width // 8), end + share
        while (done := (time.time() - start) / seconds) < end:
            decay = 1 if done < 0.5 else max(0.02, 1 - (done - 0.5) / 0.5)
            for group in opt.param_groups:
                group["lr"] = PEAK_LR * min(1, (step + 1) / 200) * decay
            loss = flow_loss(model, clips, (batch, frames, height, width), shift, generator, rotary)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad(set_to_none=True)
            step += 1
            recent.append(loss.detach())
            if step % 200 == 0 or step in (1, 10):
                mean, recent = torch.stack(recent).mean().item(), []
                log(f"step {step}, {frames}x{height}x{width}: loss {mean:.4f}")
    return {"final_loss": mean, "steps": step, "stages": STAGES}


def sample(model, clips, generator, batch, frames, height, width):
    """Euler steps from noise; the tokens are those of a training clip, returned beside it."""
    rotary = dit.rotary_tables(frames, height // 8, width // 8)
    x = torch.randn(batch, 3, frames, height, width, generator=generator, device=dit.DEVICE)
    clip, text = clips.draw(batch, frames, height, width)
    u = torch.linspace(1, 0, SAMPLE_STEPS + 1, device=dit.DEVICE)
    sigma = SAMPLE_SHIFT * u / (1 + (SAMPLE_SHIFT - 1) * u)
    with torch.no_grad(), torch.autocast(dit.DEVICE, torch.bfloat16):
        for now, then in zip(sigma, sigma[1:]):
            x = x + (then - now) * model(x, 1000 * now.expand(batch), text, *rotary).float()
    return x, clip


def save_picture(path, sampled, clip):
    """Four frames each of two samples and of a training clip."""
    row = lambda video: torch.cat([video[:, t] for t in (0, 5, 10, 15)], 2)
    picture = torch.cat([row(sampled[0]), row(sampled[1]), row(clip[0])], 1)
    data = ((picture.clamp(-1, 1) + 1) * 127.5).byte().permute(1, 2, 0).cpu().numpy()
    Image.fromarray(data).resize((1152, 576)).save(path, quality=85)


def save(model, clips, directory, report):
    state = {n.replace("._orig_mod", ""): p.detach().to(torch.bfloat16).contiguous().cpu()
             for n, p in model.named_parameters()}
    path = os.path.join(directory, "diffusion_pytorch_model.safetensors")
    save_file(state, path, metadata={"format": "pt"})
    config = dict(dit.CONFIG, _class_name="WanTransformer3DModel", added_kv_proj_dim=None, image_dim=None)
    with open(os.path.join(directory, "config.json"), "w") as f:
        json.dump(config, f, indent=1, sort_keys=True)
    _, text = clips.draw(4, 16, 256, 384)  # the tokens of four clips, to start captures from
    save_file({"text": text.cpu()}, os.path.join(directory, "prompts.safetensors"))
    with open(os.path.join(directory, "training.json"), "w") as f:
        json.dump(report, f, indent=1)


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--images", required=True)
    args.add_argument("--out", required=True)
    args.add_argument("--seconds", type=float, default=480)
    a = args.parse_args()
    os.makedirs(a.out, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    generator = torch.Generator(device=dit.DEVICE).manual_seed(1)
    clips = Clips(a.images, generator)
    model = dit.VideoDiT().to(dit.DEVICE)
    for i, block in enumerate(model.blocks):
        model.blocks[i] = torch.compile(block, dynamic=False)
    report = train(model, clips, generator, a.seconds)
    model.eval()
    save_picture(os.path.join(a.out, "sample.jpg"), *sample(model, clips, generator, 2, 16, 256, 384))
    save(model, clips, a.out, report)
    log(report)


if __name__ == "__main__":
    main()
