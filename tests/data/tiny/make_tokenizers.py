#!/usr/bin/env python3
"""Small tokenizers of every supported kind, and what Hugging Face's tokenizers makes of texts with them.

Writes, beside this file, tokenizers.json: "texts", and "tokenizers" with "name", "tokenizer" and
"config" (the contents of tokenizer.json and of tokenizer_config.json, or null) and "ids" of each text.
Every second one has its merges as "a b" texts, as older files do, the others as [a, b] pairs.
test_tokenizer.c must get the same ids. Needs the package tokenizers (0.23.3 was used).
"""
import json, os, random

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

HERE = os.path.dirname(os.path.abspath(__file__))

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")

CORPUS = [
    "static int next_block(struct state *s, int64_t n)\n{\n\tfor (int i = 0; i < n; i++)\n"
    "        s->sum += s->v[i] * 3.14159;\n    return s->n == 1024 ? -1 : 0;\n}\n",
    "The quick brown fox doesn't jump; it's over there, we'll see. I'm HERE'S and they'VE.\r\n",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. 2024-11-21 1234567 ½ Ⅳ\n",
    "日本語のテキストと中文文本，以及 한국어 텍스트. Привет, мир! Γειά σου κόσμε\n",
    "emoji 😀👩‍👩‍👧‍👦🏳️‍🌈 and accents e\u0301 \u00e9 A\u030a ffi ﬁ\n\n\n",
] * 3

TEXTS = [
    "", " ", "a", "Hello world", "  leading and trailing  ", "tabs\tand\t\ttabs", "\n\n\n", "a\r\nb\r\n\r\nc",
    "it's I'M we'LL they'd don't 'tis ſ's", "x" * 40, " " * 50 + "end", "word" + " " * 17, "1 12 123 1234 12345678",
    "½ Ⅳ ٣٤٥ １２３", "e\u0301 vs \u00e9 and A\u030a vs \u00c5 ﬁ \u1e9b\u0323", "😀👩‍👩‍👧‍👦🏳️‍🌈 emoji",
    "日本語のテキスト 中文 한국어", "Привет мир Γειά", "mixed: für(i=0;i<10;++i){x[i]+=0x7fULL;}//done\n",
    "<|end|>", "a<|end|>b", "a <|end|> b", "<|end|><|end|>", "<|endless|>", "foo<pad>bar <pad> baz", "keyword keywords akeyword keyword_ (keyword)",
    "\u00a0no-break\u2003em\u3000ideographic", "zero\u200bwidth\u200djoin", "a\u0000b", "\x7f\x80\u00ad", "  \n  \n x",
    "int main(void)\n{\n    return 0;\n}\n", "▁already ▁ there", "a_b__c ___", "!!!???...", "HTTPResponseCode XMLHttp iOS",
    "end of text \n", "\u0130stanbul \u01c5 \u1f88", "\U0001d54f\U0001f1e9\U0001f1ea \U00020000",
]


def random_texts(n):
    rng = random.Random(5)
    alphabet = list("abc ABC  \n\t'0123.,;_-<>(){}\r") + ["é", "e\u0301", "日", "😀", "\u00a0", "ß", "keyword", "<|end|>", "<pad>", "'s", "▁", "Ⅳ", "\u200d"]
    return ["".join(rng.choice(alphabet) for _ in range(rng.randrange(1, 60))) for _ in range(n)]


def train(tok, size, alphabet):
    special = ["<|end|>"]
    tok.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=alphabet,
                                                        show_progress=False))


def byte_level(pre, size=400, normalizer=None):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre
    if normalizer:
        tok.normalizer = normalizer
    tok.decoder = decoders.ByteLevel()
    train(tok, size, pre_tokenizers.ByteLevel.alphabet())
    return tok


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def bytes_only():
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def sequence(*steps):
    return pre_tokenizers.Sequence(list(steps))


def sentencepiece(pre, normalizer, size=420):
    """A vocabulary of characters with <0xNN> for everything else."""
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    learn = Tokenizer(models.BPE())
    learn.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    text = [t for t in CORPUS if not any(ord(c) > 0x2fff for c in t)]
    learn.train_from_iterator(text, trainers.BpeTrainer(vocab_size=size - 259, show_progress=False, max_token_length=8))
    model = json.loads(learn.to_str())["model"]
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    pieces += sorted(model["vocab"], key=model["vocab"].get)
    tok = Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, [tuple(m) for m in model["merges"]], unk_token="<unk>",
                               fuse_unk=True, byte_fallback=True))
    if normalizer:
        tok.normalizer = normalizer
    if pre:
        tok.pre_tokenizer = pre
    tok.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in ("<unk>", "<s>", "</s>")])
    return tok


def template(tok, token):
    i = tok.token_to_id(token)
    return processors.TemplateProcessing(single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, i)])


def all_tokenizers():
    out = []
    out.append(("gpt2", byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)), None))
    out.append(("gpt2-prefix-space", byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)), None))

    llama3 = byte_level(sequence(split(LLAMA3), bytes_only()))
    llama3.add_special_tokens(["<|begin|>"])
    llama3.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template(llama3, "<|begin|>")])
    j = json.loads(llama3.to_str())
    j["model"]["ignore_merges"] = True
    # Tokens that merging cannot reach: only ignore_merges finds them.
    j["model"]["vocab"]["Ġtrailing"] = 500
    j["model"]["vocab"]["Hello"] = 501
    out.append(("llama3", Tokenizer.from_str(json.dumps(j)), None))

    qwen = byte_level(sequence(split(QWEN2), bytes_only()), normalizer=normalizers.NFC())
    qwen.add_tokens([AddedToken("<pad>", normalized=False, special=True),
                     AddedToken("keyword", single_word=True, normalized=True),
                     AddedToken("é vs", normalized=True)])
    out.append(("qwen2", qwen, {"add_bos_token": False, "bos_token": None, "eos_token": "<|end|>"}))

    strips = byte_level(sequence(split(O200K), bytes_only()))
    strips.add_tokens([AddedToken("<pad>", lstrip=True, rstrip=True, normalized=False),
                       AddedToken("keyword", lstrip=True, normalized=False, single_word=True)])
    strips.post_processor = template(strips, "<|end|>")
    out.append(("o200k-strips", strips, None))

    out.append(("digits", byte_level(sequence(pre_tokenizers.Digits(individual_digits=True),
                                              pre_tokenizers.ByteLevel(add_prefix_space=False))), None))
    out.append(("digit-runs", byte_level(sequence(pre_tokenizers.Digits(individual_digits=False),
                                                  pre_tokenizers.ByteLevel(add_prefix_space=False))), None))
    deepseek = sequence(split(r"\p{N}{1,3}"), split(r"[一-龥぀-ゟ゠-ヿ]+"),
                        split(r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"),
                        bytes_only())
    deepseek = byte_level(deepseek)
    deepseek.post_processor = processors.TemplateProcessing(single="<|end|> $A <|end|>", special_tokens=[("<|end|>", 0)])
    out.append(("deepseek", deepseek, None))
    for behavior in ("removed", "merged_with_previous", "merged_with_next", "contiguous"):
        pre = sequence(split(r"[a-c,\s]", behavior), bytes_only())
        out.append(("split-" + behavior, byte_level(pre, 300), None))
    out.append(("split-inverted", byte_level(sequence(split(GPT2, "removed", True), bytes_only()), 300), None))
    text = pre_tokenizers.Sequence([pre_tokenizers.Split("_", "merged_with_next"), bytes_only()])
    out.append(("split-text", byte_level(text, 300, normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r" {2,}"), " "),
                                                                        normalizers.NFD()])), None))

    old = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    mistral = sentencepiece(None, old)
    mistral.post_processor = template(mistral, "<s>")
    out.append(("mistral", mistral, {"add_bos_token": True, "add_eos_token": False, "bos_token": "<s>", "eos_token": "</s>"}))
    for scheme in ("first", "always", "never"):
        pre = pre_tokenizers.Metaspace("▁", scheme, split=scheme != "first")
        out.append(("metaspace-" + scheme, sentencepiece(pre, None), None))
    return out


def main():
    out, texts = [], [t for t in TEXTS + random_texts(60) if "\0" not in t]
    for name, tok, config in all_tokenizers():
        ids = [tok.encode(t).ids for t in texts]
        content = json.loads(tok.to_str())
        if len(out) % 2:
            content["model"]["merges"] = [" ".join(m) for m in content["model"]["merges"]]
        out.append({"name": name, "config": config, "tokenizer": content, "ids": ids})
        print(f"{name}: {tok.get_vocab_size()} tokens, {sum(map(len, ids))} ids")
    dump = lambda x: json.dumps(x, ensure_ascii=True, separators=(",", ":"))
    with open(os.path.join(HERE, "tokenizers.json"), "w") as f:
        f.write('{"texts":' + dump(texts) + ',\n"tokenizers":[\n' + ",\n".join(map(dump, out)) + "\n]}\n")


main()
