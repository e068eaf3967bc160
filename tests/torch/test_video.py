"""Diffusion transformers and pipelines: which calls are stored, in which step, branch and layer, and that they are right."""
import os
import tempfile
import unittest

import diffusers
import numpy as np
import torch

import lacuna_trace
import tiny

# grid, text tokens, place, blocks of the layers, positions
FACTS = {
    "Wan": ((3, 4, 6), 0, "none", ["self"] * 2, "rope-3d"),
    "Flux": ((1, 4, 6), 7, "front", ["double", "single", "single"], "rope-2d"),
    "HunyuanVideo": ((3, 4, 6), 9, "back", ["double", "single"], "rope-3d"),
    "CogVideoX": ((3, 4, 6), 8, "front", ["self"] * 2, ""),
    "SD3": ((1, 4, 6), 7, "back", ["self"] * 2, ""),
    "Mochi": ((3, 4, 6), 5, "back", ["self"] * 2, "rope-3d"),
    "Flux2": ((1, 4, 6), 7, "front", ["double", "single", "single"], "rope-2d"),
    "QwenImage": ((1, 4, 6), 7, "front", ["self"] * 2, "rope-3d"),
    "LTX": ((3, 4, 6), 0, "none", ["self"], "rope-3d"),
}


def arguments(name, b=1):
    """What a pipeline passes to the transformer, as keywords."""
    t, n, video = torch.full((b,), 500.0), tiny.normal, (b, 4, 3, 8, 12)
    flux_ids = torch.stack([torch.zeros(24), torch.arange(24) // 6, torch.arange(24) % 6], 1)
    masks = {"HunyuanVideo": torch.tensor([[1] * 5 + [0] * 4] * b), "Mochi": (torch.arange(9)[None] < torch.tensor([5, 7])[:b, None]).long()}
    return {
        "Wan": lambda: dict(hidden_states=n(*video), timestep=t, encoder_hidden_states=n(b, 7, 16)),
        "Flux": lambda: dict(hidden_states=n(b, 24, 4), timestep=t / 1000, guidance=torch.full((b,), 3.5), pooled_projections=n(b, 32),
                             encoder_hidden_states=n(b, 7, 32), txt_ids=torch.zeros(7, 3), img_ids=flux_ids),
        "Flux2": lambda: dict(hidden_states=n(b, 24, 4), timestep=t / 1000, guidance=torch.full((b,), 3.5), encoder_hidden_states=n(b, 7, 32),
                              txt_ids=torch.zeros(7, 4), img_ids=torch.cat([flux_ids, torch.zeros(24, 1)], 1)),
        "QwenImage": lambda: dict(hidden_states=n(b, 24, 16), timestep=t / 1000, encoder_hidden_states=n(b, 7, 16),
                                  encoder_hidden_states_mask=torch.ones(b, 7, dtype=torch.long), img_shapes=[[(1, 4, 6)]] * b),
        "HunyuanVideo": lambda: dict(hidden_states=n(*video), timestep=t.long(), encoder_hidden_states=n(b, 9, 16),
                                     encoder_attention_mask=masks["HunyuanVideo"], pooled_projections=n(b, 8), guidance=torch.full((b,), 6.0)),
        "CogVideoX": lambda: dict(hidden_states=n(b, 3, 4, 8, 12), timestep=t.long(), encoder_hidden_states=n(b, 8, 8)),
        "SD3": lambda: dict(hidden_states=n(b, 4, 8, 12), timestep=t, encoder_hidden_states=n(b, 7, 32), pooled_projections=n(b, 64)),
        "Mochi": lambda: dict(hidden_states=n(*video), timestep=t, encoder_hidden_states=n(b, 9, 16), encoder_attention_mask=masks["Mochi"]),
        "LTX": lambda: dict(hidden_states=n(b, 72, 4), timestep=t, encoder_hidden_states=n(b, 7, 16), num_frames=3, height=4, width=6,
                            encoder_attention_mask=torch.tensor([[1] * 5 + [0] * 2] * b)),
    }[name]()


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.dir.name, "t.h5")

    def tearDown(self):
        self.dir.cleanup()

    def capture(self, target, run, **options):
        with torch.no_grad(), lacuna_trace.capture(target, self.path, force=True, **options) as cap:
            run(cap)
        traces = []
        for path in cap.report.files:
            tiny.lacuna("trace", "verify", path)
            t = lacuna_trace.open_trace(path)
            self.addCleanup(t.close)
            self.assertEqual(t.verify(), [])
            traces.append(t)
        return traces, cap.report

    def same_call(self, call, q, k, v, out=None):
        """q, k, v, out [heads][n][d] as they reached the kernel."""
        for head in call.heads:
            for what, x in (("q", q), ("k", k), ("v", v), ("out", out)):
                if x is not None:
                    tiny.same(getattr(call, what)(head), x[head].float(), f"{what} of {call} head {head}")


def model_test(name):
    def test(self):
        grid, text, place, blocks, positions = FACTS[name]
        model = tiny.transformer(name)
        for dtype in (torch.float32, torch.bfloat16):
            with self.subTest(dtype=dtype):
                model = model.to(dtype)
                a = {k: x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for k, x in arguments(name).items()}
                with tiny.spy_sdpa() as calls:
                    (t,), report = self.capture(model, lambda cap: model(**a), out="full")
                n = grid[0] * grid[1] * grid[2] + text
                # The first call over all tokens of a block; SD3's second one has the image alone.
                joint = [c for c in calls if c[0].shape[2] == n == c[1].shape[2]]
                self.assertEqual([(c.layer, c.block, c.branch, c.step) for c in t.calls],
                                 [(i, b, "cond", 0) for i, b in enumerate(blocks)])
                self.assertEqual(len(joint), len(blocks))
                for call, seen in zip(t.calls, joint):
                    self.same_call(call, *(x[0] for x in seen))
                v, m = t.video, t.model
                self.assertEqual((v["grid_t"], v["grid_h"], v["grid_w"]), grid)
                self.assertEqual((v["text_tokens"], v["text_place"], v["text_valid"]), (text, place, 5 if name == "HunyuanVideo" else text))
                self.assertEqual((m["layers"], m["causal"], m["positions"], m["architecture"]),
                                 (len(blocks), 0, positions, type(model).__name__))
                self.assertLess(report.worst_check, 1)
                self.assertEqual(len(calls) - len(joint), sum(sum(c.values()) for c in report.left_out.values()))
    return test


class Models(Case):
    """One forward of each transformer, as pipelines call it."""

    def test_second_attention_of_a_block_in_a_file_of_its_own(self):
        model = tiny.transformer("SD3")
        with tiny.spy_sdpa() as calls:
            (t,), _ = self.capture(model, lambda cap: model(**arguments("SD3")), modules="attn2")
        self.assertEqual((t.run["n_q"], t.video["text_tokens"], [c.layer for c in t.calls]), (24, 0, [0]))
        self.same_call(t.calls[0], *(x[0] for x in next(c for c in calls if c[0].shape[2] == 24)[:3]))

    def test_one_call_per_element_of_a_batch(self):
        model = tiny.transformer("Mochi")
        for element, n in ((0, 77), (1, 79)):
            with tiny.spy_sdpa() as calls:
                (t,), _ = self.capture(model, lambda cap: model(**arguments("Mochi", 2)), batch=element)
            mine = [c for c in calls if c[0].shape[2] == n]
            self.assertEqual((t.run["n_q"], len(t.calls)), (n, 2))
            for call, seen in zip(t.calls, mine):
                self.same_call(call, *(x[0] for x in seen[:3]))

    def test_text_stands_where_the_trace_says(self):
        """Rows of k in the first layer that change when the text alone does."""
        for name, (grid, text, place, _, _) in FACTS.items():
            if not text or name == "Mochi":  # its modulation of the video takes the text too
                continue
            model, k = tiny.transformer(name), []
            for add in (0, 1):
                a = arguments(name)
                a["encoder_hidden_states"] = 2 * a["encoder_hidden_states"] + add
                (t,), _ = self.capture(model, lambda cap: model(**a), layers="0", out="none")
                k.append(t.calls[0].k(0))
                t.close()
            moved = np.flatnonzero(np.abs(k[0] - k[1]).max(1) > 1e-6)
            first = 0 if place == "front" else grid[0] * grid[1] * grid[2]
            with self.subTest(name=name):
                self.assertEqual((moved.min(), moved.max() < first + text, t.video["text_place"]), (first, True, place))

    def test_text_of_an_unknown_transformer(self):
        for name in ("QwenImage", "SD3"):
            model, (grid, text, place, _, _) = tiny.transformer(name), FACTS[name]
            model.__class__ = type("OtherTransformer2DModel", (type(model),), {"__module__": type(model).__module__})
            with self.assertRaisesRegex(lacuna_trace.TraceError, r"7 tokens beside the grid, .* give text_place=\"front\" or \"back\""):
                self.capture(model, lambda cap: model(**arguments(name)), grid=grid)
            (t,), _ = self.capture(model, lambda cap: model(**arguments(name)), grid=grid, text_place=place)
            self.assertEqual((t.video["text_tokens"], t.video["text_place"]), (text, place))

    def test_padding_text_in_front_is_refused(self):
        model, a = tiny.transformer("QwenImage"), arguments("QwenImage")
        a["encoder_hidden_states_mask"][:, 5:] = 0
        with self.assertRaisesRegex(lacuna_trace.TraceError, "padding text before the video"):
            self.capture(model, lambda cap: model(**a))

    def test_a_second_image_is_no_text(self):
        model, a = tiny.transformer("QwenImage"), arguments("QwenImage")
        a.update(hidden_states=tiny.normal(1, 36, 16), img_shapes=[[(1, 4, 6), (1, 3, 4)]])
        with self.assertRaisesRegex(lacuna_trace.TraceError, "hidden_states has 36 tokens, the grid 1 x 4 x 6 has 24: tokens of a second image"):
            self.capture(model, lambda cap: model(**a))

    def test_steps_by_hand(self):
        model = tiny.transformer("Wan")

        def run(cap):
            for i, sigma in enumerate((1.0, 0.5)):
                for branch in ("cond", "uncond"):
                    cap.step(i, timestep=1000 * sigma, sigma=sigma, branch=branch)
                    a = arguments("Wan")
                    a["encoder_hidden_states"] = a["encoder_hidden_states"] * (1 if branch == "cond" else 0)
                    model(**a)
        (t,), _ = self.capture(model, run)
        self.assertEqual([(c.step, c.branch, c.layer) for c in t.calls],
                         [(s, b, la) for s in (0, 1) for b in ("cond", "uncond") for la in (0, 1)])
        self.assertEqual({(c.step, c.timestep, c.sigma) for c in t.calls}, {(0, 1000.0, 1.0), (1, 500.0, 0.5)})
        (t,), _ = self.capture(model, run, steps="1", branches="uncond", layers="1", heads="1", dtype="bf16")
        self.assertEqual([(c.step, c.branch, c.layer) for c in t.calls], [(1, "uncond", 1)])
        self.assertEqual((t.model["head_ids"], t.model["dtype"]), ("1", "bfloat16"))

    def test_two_branches_in_one_batch_by_hand(self):
        model = tiny.transformer("Wan")

        def run(cap):
            cap.step(0, branch=("uncond", "cond"))
            model(**arguments("Wan", 2))
        with tiny.spy_sdpa() as calls:
            (t,), _ = self.capture(model, run)
        seen = [c for c in calls if c[1].shape[2] == 72]
        for i, branch in enumerate(("uncond", "cond")):
            for layer in (0, 1):
                self.same_call(t.call(layer, branch=branch), *(x[i] for x in seen[layer][:3]))

    def test_passes_without_steps_are_refused(self):
        model = tiny.transformer("Wan")
        with self.assertRaisesRegex(lacuna_trace.TraceError, r"call cap\.step"):
            self.capture(model, lambda cap: (model(**arguments("Wan")), model(**arguments("Wan"))))

    def test_branches_of_other_text_lengths(self):
        model = tiny.transformer("HunyuanVideo")

        def run(cap):
            for branch, valid in (("cond", 5), ("uncond", 2)):
                cap.step(0, timestep=500.0, sigma=0.5, branch=branch)
                model(**dict(arguments("HunyuanVideo"), encoder_attention_mask=torch.tensor([[1] * valid + [0] * (9 - valid)])))
        (t,), _ = self.capture(model, run, out="full")  # trace verify computes the outputs without the padding of each call
        self.assertEqual(t.video["text_valid"], 5)
        self.assertEqual({(c.branch, c.stored_score.get("text_valid")) for c in t.calls}, {("cond", None), ("uncond", 2)})
        self.assertEqual({(c.branch, c.padding()) for c in t.calls}, {("cond", (77, 81)), ("uncond", (74, 81))})
        out = os.path.join(self.dir.name, "run")
        tiny.lacuna("replay", "-q", self.path, "-m", "dense", "-o", out)
        r = lacuna_trace.records(out, fill=False)
        self.assertEqual(set(zip(r["branch"], r["layer"], r["pairs_allowed"])),
                         {(b, i, n * n) for b, n in (("cond", 77), ("uncond", 74)) for i in (0, 1)})

    def test_maps_leave_padding_text_out(self):
        model = tiny.transformer("HunyuanVideo")
        (t,), _ = self.capture(model, lambda cap: model(**arguments("HunyuanVideo")), maps=9)
        stored = t.call(1).map(1, 9)
        p = t.call(1).probs(1).reshape(9, 9, 9, 9)
        tiny.same(stored, p.sum((1, 3)), "map", 1e-5)
        self.assertEqual(t.call(1).padding(), (77, 81))


for model_name in [n for n in FACTS if n not in ("Flux2", "QwenImage")]:  # those two without a pipeline
    setattr(Models, "test_" + model_name.lower(), model_test(model_name))


def pipeline(name):
    """(pipeline without text encoders and VAE, arguments); guided ones have a negative prompt."""
    d, n, m = diffusers, tiny.normal, tiny.transformer(name)
    none = {}
    if name == "Wan":
        p = d.WanPipeline(tokenizer=None, text_encoder=None, vae=None, transformer=m,
                          scheduler=d.UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0))
        none = dict(prompt_embeds=n(1, 7, 16), negative_prompt_embeds=n(1, 7, 16, seed=4), height=64, width=96, num_frames=9)
    elif name == "SD3":
        p = d.StableDiffusion3Pipeline(transformer=m, scheduler=d.FlowMatchEulerDiscreteScheduler(shift=3.0), vae=None, text_encoder=None,
                                       tokenizer=None, text_encoder_2=None, tokenizer_2=None, text_encoder_3=None, tokenizer_3=None)
        none = dict(prompt_embeds=n(1, 7, 32), negative_prompt_embeds=n(1, 7, 32, seed=4), pooled_prompt_embeds=n(1, 64),
                    negative_pooled_prompt_embeds=n(1, 64, seed=4), height=64, width=96, guidance_scale=5.0)
    elif name == "Flux":
        p = d.FluxPipeline(scheduler=d.FlowMatchEulerDiscreteScheduler(), vae=None, text_encoder=None, tokenizer=None, text_encoder_2=None,
                           tokenizer_2=None, transformer=m)
        none = dict(prompt_embeds=n(1, 7, 32), negative_prompt_embeds=n(1, 7, 32, seed=4), pooled_prompt_embeds=n(1, 32),
                    negative_pooled_prompt_embeds=n(1, 32, seed=4), height=64, width=96, true_cfg_scale=2.0, latents=n(1, 24, 4))
    elif name == "HunyuanVideo":
        p = d.HunyuanVideoPipeline(text_encoder=None, tokenizer=None, transformer=m, vae=None,
                                   scheduler=d.FlowMatchEulerDiscreteScheduler(shift=7.0), text_encoder_2=None, tokenizer_2=None)
        mask = torch.tensor([[1] * 5 + [0] * 4])
        none = dict(prompt_embeds=n(1, 9, 16), prompt_attention_mask=mask, pooled_prompt_embeds=n(1, 8), height=64, width=96, num_frames=9)
    elif name == "Mochi":
        p = d.MochiPipeline(scheduler=d.FlowMatchEulerDiscreteScheduler(invert_sigmas=True), vae=None, text_encoder=None, tokenizer=None,
                            transformer=m)
        mask = torch.tensor([[1] * 7 + [0] * 2]).bool()
        none = dict(prompt_embeds=n(1, 9, 16), negative_prompt_embeds=n(1, 9, 16, seed=4), prompt_attention_mask=mask,
                    negative_prompt_attention_mask=torch.tensor([[1] * 5 + [0] * 4]).bool(), height=64, width=96, num_frames=13)
    elif name == "LTX":
        p = d.LTXPipeline(scheduler=d.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True), vae=None, text_encoder=None, tokenizer=None,
                          transformer=m)
        mask = torch.ones(1, 7).bool()
        none = dict(prompt_embeds=n(1, 7, 16), negative_prompt_embeds=n(1, 7, 16, seed=4), prompt_attention_mask=mask,
                    negative_prompt_attention_mask=mask, height=128, width=192, num_frames=17)
    elif name == "CogVideoX":
        vae = d.AutoencoderKLCogVideoX(in_channels=3, out_channels=3, down_block_types=("CogVideoXDownBlock3D",) * 4,
                                       up_block_types=("CogVideoXUpBlock3D",) * 4, block_out_channels=(8, 8, 8, 8), latent_channels=4,
                                       layers_per_block=1, norm_num_groups=2, temporal_compression_ratio=4)
        p = d.CogVideoXPipeline(tokenizer=None, text_encoder=None, vae=vae, transformer=m, scheduler=d.CogVideoXDDIMScheduler())
        none = dict(prompt_embeds=n(1, 8, 8), negative_prompt_embeds=n(1, 8, 8, seed=4), height=64, width=96, num_frames=9)
    p.set_progress_bar_config(disable=True)
    return p, dict(none, num_inference_steps=2, output_type="latent", generator=tiny.rng(7))


def pipeline_test(name, guided):
    def test(self):
        p, a = pipeline(name)
        if not guided:
            if name == "Flux":
                a["true_cfg_scale"] = 1.0
            elif name != "HunyuanVideo":
                a["guidance_scale"] = 1.0
        branches = ("cond", "uncond") if guided else ("cond",)
        with tiny.spy_sdpa() as calls:
            traces, report = self.capture(p, lambda cap: p(**a))
        joint = spied(calls, FACTS[name], guided, name)
        found = {(c.step, c.branch, c.layer): c for t in traces for c in t.calls}
        layers = len(FACTS[name][3])
        self.assertEqual(set(found), {(s, b, i) for s in (0, 1) for b in branches for i in range(layers)})
        for key, (q, k, v) in joint.items():
            self.same_call(found[key], q, k, v)
        for t in traces:
            self.assertEqual((t.video["steps"], t.video["sampler"]), (2, type(p.scheduler).__name__[:31]))
            np.testing.assert_allclose(t.array("timesteps"), p.scheduler.timesteps.double())
            for c in t.calls:
                self.assertEqual(c.timestep, float(p.scheduler.timesteps[c.step]))
                if name != "CogVideoX":
                    self.assertEqual(c.sigma, float(p.scheduler.sigmas[c.step]))
        if name != "Flux":
            grid = FACTS[name][0]
            self.assertEqual((traces[0].video["grid_t"], traces[0].video["grid_h"], traces[0].video["grid_w"]), grid)
    return test


def parts_test(name):
    def test(self):
        p, a = pipeline(name)

        def run(cap):
            p(**dict(a, generator=tiny.rng(7)))  # the same noise each time
        parts, _ = self.capture(p, run)
        last = len(FACTS[name][3]) - 1
        want = {c.branch: c for t in parts for c in t.calls if c.step == 1 and c.layer == last}
        stored = {b: [getattr(c, what)(1) for what in ("q", "k", "v")] for b, c in want.items()}
        for t in parts:
            t.close()
        traces, report = self.capture(p, run, steps="1", layers=str(last), heads="1")
        self.assertEqual(sorted((c.step, c.branch, c.layer, tuple(c.heads)) for t in traces for c in t.calls),
                         [(1, b, last, (1,)) for b in sorted(stored)])
        for c in (c for t in traces for c in t.calls):
            for what, x in zip(("q", "k", "v"), stored[c.branch]):
                tiny.same(getattr(c, what)(1), x, f"{what} of {c}")
        self.assertLess(report.worst_check, 1)
        for options in (dict(tokens=8), dict(rows=8), dict(rows="2")):
            with self.assertRaisesRegex(lacuna_trace.TraceError, "tokens= and rows= are for language models: a video is stored with its whole grid"):
                with torch.no_grad(), lacuna_trace.capture(p, self.path + ".none", **options) as cap:
                    run(cap)
            self.assertFalse(os.path.exists(self.path + ".none"))
    return test


def spied(calls, facts, guided, name):
    """{(step, branch, layer): q, k, v} of what the kernel got, from the order in which pipelines run their passes."""
    tokens, layers = facts[0][0] * facts[0][1] * facts[0][2], len(facts[3])
    joint = [c for c in calls if c[0].shape[2] == c[1].shape[2] > tokens or (c[0].shape[2] == c[1].shape[2] == tokens and not facts[1])]
    out = {}
    if name == "Mochi":  # one call per element: uncond, then cond
        per = 2 if guided else 1
        for i, c in enumerate(joint):
            step, rest = divmod(i, layers * per)
            layer, half = divmod(rest, per)
            out[step, ("uncond", "cond")[half] if guided else "cond", layer] = tuple(x[0] for x in c[:3])
        return out
    halves = guided and joint[0][0].shape[0] == 2
    passes = 2 if guided and not halves else 1
    for i, c in enumerate(joint):
        step, rest = divmod(i, layers * passes)
        p, layer = divmod(rest, layers)
        for half in range(2 if halves else 1):
            branch = ("uncond", "cond")[half] if halves else ("cond", "uncond")[p]
            out[step, branch, layer] = tuple(x[half] for x in c[:3])
    return out


class Pipelines(Case):
    """Two steps of every pipeline; every q, k and v in its step, branch and layer."""

    def test_options_select_steps_and_branches(self):
        p, a = pipeline("Wan")
        (t,), report = self.capture(p, lambda cap: p(**a), steps="1", branches=["uncond"], layers="1")
        self.assertEqual([(c.step, c.branch, c.layer) for c in t.calls], [(1, "uncond", 1)])

    def test_replay_reads_a_pipeline_s_trace(self):
        p, a = pipeline("Wan")
        self.capture(p, lambda cap: p(**a))
        out = os.path.join(self.dir.name, "r")
        tiny.lacuna("replay", "-q", self.path, "-m", "dense", "-m", "radial", "-m", "svg1", "-o", out)
        r = lacuna_trace.records(out, fill=False)
        self.assertEqual(len(r), 3 * 2 * 2 * 2 * 2)
        dense = r[r["method"] == "dense"]
        self.assertTrue((dense["density_elem"] == 1).all())

    def test_wan_2_2_has_two_transformers_that_share_layers(self):
        p, a = pipeline("Wan")
        second = tiny.transformer("Wan")
        p = diffusers.WanPipeline(tokenizer=None, text_encoder=None, vae=None, transformer=p.transformer, transformer_2=second,
                                  scheduler=p.scheduler, boundary_ratio=0.9)
        p.set_progress_bar_config(disable=True)
        (t,), _ = self.capture(p, lambda cap: p(**dict(a, num_inference_steps=3)))
        self.assertEqual(len(t.calls), 3 * 2 * 2)

    def test_skipped_layer_guidance_is_refused(self):
        p, a = pipeline("SD3")
        with self.assertRaisesRegex(lacuna_trace.TraceError, "skipped-layer guidance"):
            self.capture(p, lambda cap: p(**dict(a, skip_guidance_layers=[0], skip_layer_guidance_start=0.0, skip_layer_guidance_stop=1.0)))

    def test_other_transformers_need_a_grid(self):
        m = tiny.transformer("Wan")
        m.__class__ = type("OtherTransformer3DModel", (type(m),), {"__module__": type(m).__module__})
        with self.assertRaisesRegex(lacuna_trace.TraceError, r"give grid=\(T, H, W\)"):
            self.capture(m, lambda cap: m(**arguments("Wan")))
        (t,), _ = self.capture(m, lambda cap: m(**arguments("Wan")), grid=(3, 4, 6))
        self.assertEqual(len(t.calls), 2)


for model_name in [n for n in FACTS if n not in ("Flux2", "QwenImage")]:  # those two without a pipeline
    for is_guided in (True, False) if model_name != "HunyuanVideo" else (False,):
        setattr(Pipelines, f"test_{model_name.lower()}_parts", parts_test(model_name))
        setattr(Pipelines, f"test_{model_name.lower()}_{'guided' if is_guided else 'plain'}", pipeline_test(model_name, is_guided))


if __name__ == "__main__":
    unittest.main()
