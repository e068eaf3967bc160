#!/usr/bin/env python3
"""Tokens that stand in the files beside tokenizer.json, and the ids that transformers gives.

Writes, beside this file, declared.json: a list of cases with "name", "files" (the contents of the files
of a directory by name), "text" and "ids". test_tokenizer.c must get the same ids. Needs the package
transformers (5.24.0 with tokenizers 0.23.3 was used).
"""
import json, os, tempfile

from transformers import AutoTokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
CONFIG, MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
COMMON = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
TEXT = "ab <x> c<y>d <z> e<s> cd"


def flags(content, **more):
    return dict(content=content, **dict(dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True), **more))


def config(**more):
    return {CONFIG: dict(COMMON, **more)}


def typed(content, **more):
    return dict(flags(content, **more), __type="AddedToken")


TEMPLATE = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [16], "tokens": ["<s>"]}}}
# name, files, and what tokenizer.json has more
CASES = [
    ("none", {}, {}),
    ("plain", config(), {}),
    ("bos", config(bos_token="<x>"), {}),
    ("pad", config(pad_token="<x>"), {}),
    ("pad with flags", config(pad_token=typed("<x>", lstrip=True)), {}),
    ("pad of the vocabulary", config(pad_token="d"), {}),
    ("kin in the order of their names", config(pad_token="<z>", image_token="<x>", unk_token="<y>"), {}),
    ("a name of its own, with flags", config(image_token=typed("<x>", rstrip=True)), {}),
    ("extra by name", config(extra_special_tokens={"b": "<y>", "a": "<x>"}), {}),
    ("extra list", config(extra_special_tokens=["<y>", "<x>"]), {}),
    ("extra list with flags", config(extra_special_tokens=[typed("<x>", lstrip=True), "<y>"]), {}),
    ("additional", config(additional_special_tokens=["<x>"]), {}),
    ("extra stands above additional", config(extra_special_tokens=["<y>"], additional_special_tokens=["<x>"]), {}),
    ("an empty extra does not", config(extra_special_tokens=[], additional_special_tokens=["<x>"]), {}),
    ("by id", config(added_tokens_decoder={"18": flags("<x>", lstrip=True, rstrip=True)}), {}),
    ("ids are places", config(added_tokens_decoder={"300": flags("<y>"), "18": flags("<x>")}), {}),
    ("by id without flags", config(added_tokens_decoder={"18": {"content": "<x>"}}), {}),
    ("by id, not special", config(added_tokens_decoder={"18": flags("<x>", special=False, normalized=True)}), {}),
    ("by id, a single word", config(added_tokens_decoder={"18": flags("c", single_word=True, special=False)}), {}),
    ("by id, of tokenizer.json", config(added_tokens_decoder={"16": flags("<s>", lstrip=True)}), {}),
    ("by id stands above by name", config(pad_token="<x>", added_tokens_decoder={"18": flags("<x>", lstrip=True)}), {}),
    ("by id stands above other files", {**config(added_tokens_decoder={"18": flags("<x>")}), MAP: {"pad_token": "<z>"}, ADDED: {"<y>": 19}}, {}),
    ("added", {**config(), ADDED: {"<y>": 19, "<x>": 18}}, {}),
    ("added and named", {**config(pad_token="<y>"), ADDED: {"<y>": 19, "<x>": 18}}, {}),
    ("added with an id that is taken", {**config(), ADDED: {"<x>": 16}}, {}),
    ("added with a distant id", {**config(), ADDED: {"<x>": 300}}, {}),
    ("added without config", {ADDED: {"<x>": 18}}, {}),
    ("map", {**config(), MAP: {"pad_token": "<x>", "additional_special_tokens": ["<y>"]}}, {}),
    ("map with flags", {**config(), MAP: {"pad_token": {"content": "<x>", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False}}}, {}),
    ("map stands above config", {**config(pad_token="<y>"), MAP: {"pad_token": "<x>"}}, {}),
    ("config's additional stands above map's", {**config(additional_special_tokens=["<x>"]), MAP: {"additional_special_tokens": ["<y>"]}}, {}),
    ("extra lists of both", {**config(extra_special_tokens=["<x>"]), MAP: {"extra_special_tokens": ["<y>"]}}, {}),
    ("map without config", {MAP: {"pad_token": "<x>"}}, {}),
    ("tokenizer.json with a distant id", config(pad_token="<y>"), {"added": [dict(flags("<x>"), id=300)]}),
    ("tokenizer.json in its order", config(), {"added": [dict(flags("<x>"), id=19), dict(flags("<y>"), id=18)]}),
    ("tokenizer.json twice", config(), {"added": [dict(flags("<x>"), id=18), dict(flags("<x>", lstrip=True), id=18)]}),
    ("template", config(), {"post_processor": TEMPLATE}),
    ("template, bos no", config(add_bos_token=False), {"post_processor": TEMPLATE}),
    ("template, eos yes", config(add_bos_token=True, add_eos_token=True), {"post_processor": TEMPLATE}),
    ("no template, bos yes", config(add_bos_token=True), {}),
]


def tokenizer(more):
    alphabet = "abcdexyz<>/s\u0120_"
    vocab = {c: i for i, c in enumerate(alphabet)} | {"ab": 14, "cd": 15}
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [dict(flags("<s>"), id=16), dict(flags("</s>"), id=17)] + more.get("added", []), "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "post_processor": more.get("post_processor"), "decoder": None,
            "model": {"type": "BPE", "vocab": vocab, "merges": ["a b", "c d"]}}


def main():
    out = []
    for name, files, more in CASES:
        files = {"tokenizer.json": tokenizer(more), **files}
        with tempfile.TemporaryDirectory() as d:
            for file, content in [("config.json", {"model_type": "llama"}), *files.items()]:
                with open(os.path.join(d, file), "w", encoding="utf-8") as f:
                    json.dump(content, f)
            out.append({"name": name, "files": files, "text": TEXT, "ids": AutoTokenizer.from_pretrained(d)(TEXT)["input_ids"]})
    with open(os.path.join(HERE, "declared.json"), "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps(c) for c in out) + "\n]\n")


if __name__ == "__main__":
    main()
