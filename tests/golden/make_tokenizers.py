#!/usr/bin/env python3
"""Writes schemes.json: small vocabularies of our own in every scheme that is read from a tokenizer.json, with
the ids and texts that the `tokenizers` library makes of them; and scores.gguf, one of them with scores instead of
merges. Needs tokenizers (0.23.3 made the files that are carried).

--fuzz N compares a built binary with the library on N random texts a scheme instead, and writes nothing.
"""
import argparse
import copy
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
MARK = "\u2581"
LINES = """The quick brown fox jumps over the lazy dog, and the dog doesn't mind it at all.
Der schnelle braune Fuchs springt über den faulen Hund; größer wird er davon nicht.
def total(items):\n    return sum(item.price for item in items if item.price > 0)\n
for (int i = 0; i < 128; i++) {\n\tsum += a[i] * b[i];\n}\n
Le café est fermé le lundi, mais l'été il ouvre à 10 h 30.
日本語の文章と中文的句子。 Привет, мир! 1234567890 3.14159
She said: "it's not what they're saying, it's what we've done."   Indeed...""".split("\n")
TEXTS = ["", " ", "  ", "a", " a", "The quick brown fox", " over  the   lazy    dog", "it's what we've done\n\n\treturn x\n",
         "größer café été", "e\u0301te\u0301 \u1100\u1161", "日本語 中文 Привет", "😀 and 👨\u200d👩\u200d👧", "12 345 6789 ½ ٣",
         "a▁b ▁▁ c", "<s>The dog</s>", "<s>", "<s> dog <s>", "x<tool>y <tool> the <tool>", "the dog<pad>  </s>\n", "<too", "<0x41><0xE6>",
         "foo!bar... (x)[y]", "\x00\x7f\u0085", "Ünï\u00a0cödé", "....", "\r\n\r\n  x", "<s", "Ġa Ċ", "tHe DOG"]
HEX = ["61ff62", "e697a5e6", "f09f98", "eda080"]


def added(content, id, special=True, normalized=False, **more):
    flags = dict(single_word=False, lstrip=False, rstrip=False)
    return dict({"id": id, "content": content, "special": special, "normalized": normalized}, **dict(flags, **more))


def train(by_chars):
    """A trained model as tokenizer.json's dictionary, spaces marked if it is over characters."""
    t = Tokenizer(models.BPE())
    first = ["<pad>", "<s>", "</s>", "<unk>"] + ([f"<0x{b:02X}>" for b in range(256)] if by_chars else [])
    if by_chars:
        lines = [MARK + line.replace(" ", MARK) for line in LINES] * 3
        t.pre_tokenizer = pre_tokenizers.Split(MARK, "merged_with_next")
        more = {}
    else:
        lines = LINES * 3
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        more = {"initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    t.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=len(first) + 420, special_tokens=first, show_progress=False, **more))
    d = json.loads(t.to_str())
    n = len(d["model"]["vocab"])
    d["added_tokens"] = [added("<pad>", 0, rstrip=True), added("<s>", 1), added("</s>", 2, lstrip=True), added("<unk>", 3),
                         added("<tool>", n, special=False), added("the", n + 1, special=False, normalized=True, single_word=True)]
    return d


def replace(a, b):
    return {"type": "Replace", "pattern": {"String": a}, "content": b}


def seq(kind, *steps):
    return {"type": "Sequence", kind: list(steps)}


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def byte_level(prefix=False, regex=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def metaspace(scheme, is_split):
    return {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": is_split}


STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
SPACES = [replace(MARK, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
PREPEND = {"type": "Prepend", "prepend": MARK}
TEKKEN = ("[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}"
          "\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")

# name, over characters, normalizer, pre-tokenizer, decoder, changes of the model
SCHEMES = [
    ("llama2", True, seq("normalizers", PREPEND, replace(" ", MARK)), None, seq("decoders", *SPACES, STRIP),
     {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}),
    ("gemma", True, replace(" ", MARK), split({"String": " "}, "MergedWithPrevious"), seq("decoders", *SPACES),
     {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}),
    ("metaspace-first", True, None, metaspace("first", False), seq("decoders", *SPACES, STRIP),
     {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}),
    ("metaspace-always-split", True, None, metaspace("always", True), metaspace("always", True), {"unk_token": "<unk>", "fuse_unk": True}),
    ("metaspace-never", True, {"type": "NFC"}, metaspace("never", True), metaspace("never", True), {"unk_token": "<unk>"}),
    ("chars-without-unk", True, seq("normalizers", {"type": "NFC"}, replace(" ", MARK)), None, seq("decoders", *SPACES), {}),
    ("prefix-space", False, None, byte_level(prefix=True), byte_level(), {}),
    ("prefix-space-nfc", False, {"type": "NFC"}, byte_level(prefix=True, regex=False), byte_level(), {"ignore_merges": True}),
    ("tekken", False, None, seq("pretokenizers", split({"Regex": TEKKEN}), byte_level(regex=False)), byte_level(), {"ignore_merges": True}),
    ("punctuation", False, None, seq("pretokenizers", {"type": "Punctuation", "behavior": "Contiguous"},
                                     {"type": "Digits", "individual_digits": False}, byte_level()), byte_level(), {}),
    ("splits", False, replace("quick", "slow"),
     seq("pretokenizers", split({"Regex": "\\p{N}{1,3}"}), split({"String": "o"}, "MergedWithNext"),
         split({"Regex": "\\s+"}, "MergedWithPrevious"), split({"Regex": "[a-z]+"}, "Contiguous", True), byte_level(regex=False)),
     byte_level(), {}),
]


def scheme(base, name, by_chars, normalizer, pre, decoder, model):
    d = copy.deepcopy(base[by_chars])
    d.update(normalizer=normalizer, pre_tokenizer=pre, decoder=decoder, post_processor=None)
    d["model"].update(model)
    return {"name": name, "tokenizer": d}


def by_scores(base):
    """Any two neighbours that spell an entry merge, the lowest id first: as a list of merges, and as a GGUF's scores."""
    s = scheme(base, "scores", *SCHEMES[0][1:])
    model, added_ids = s["tokenizer"]["model"], {a["id"] for a in s["tokenizer"]["added_tokens"]}
    vocab = model["vocab"]
    s["tokenizer"]["added_tokens"] = [added(c, i) for c, i in vocab.items() if i in added_ids]  # GGUF has no flags but special
    whole = {c: i for c, i in vocab.items() if i >= 260}
    model["merges"] = [[c[:k], c[k:]] for c in sorted(whole, key=whole.get) for k in range(1, len(c)) if c[:k] in vocab and c[k:] in vocab]
    return s


def write_gguf(s, path):
    content = sorted(s["tokenizer"]["model"]["vocab"], key=s["tokenizer"]["model"]["vocab"].get)
    special = {a["content"] for a in s["tokenizer"]["added_tokens"]}
    kinds = [2 if c == "<unk>" else 3 if c in special else 6 if c.startswith("<0x") else 1 for c in content]

    def text(t):
        return struct.pack("<Q", len(t.encode())) + t.encode()

    def array(kind, values):
        return struct.pack("<IIQ", 9, kind, len(values)) + b"".join(values)

    pairs = {
        "general.architecture": struct.pack("<I", 8) + text("llama"),
        "tokenizer.ggml.model": struct.pack("<I", 8) + text("llama"),
        "tokenizer.ggml.tokens": array(8, [text(c) for c in content]),
        "tokenizer.ggml.scores": array(6, [struct.pack("<f", -i if i >= 260 else 0) for i in range(len(content))]),
        "tokenizer.ggml.token_type": array(5, [struct.pack("<i", k) for k in kinds]),
        "tokenizer.ggml.unknown_token_id": struct.pack("<II", 4, 3),
    }
    with open(path, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs)) + b"".join(text(k) + v for k, v in pairs.items()))


class Library:
    def __init__(self, tokenizer):
        text = json.dumps(tokenizer)
        self.whole, self.text = Tokenizer.from_str(text), Tokenizer.from_str(text)
        self.text.encode_special_tokens = True
        self.none = Tokenizer.from_str(json.dumps(dict(tokenizer, added_tokens=[])))

    def encode(self, text, mode):
        return {"all": self.whole, "text": self.text, "none": self.none}[mode].encode(text, add_special_tokens=False).ids

    def decode(self, ids, skip):
        return self.whole.decode(ids, skip_special_tokens=skip)


def fill(s):
    library = Library(s["tokenizer"])
    s["encode"] = []
    for text in TEXTS + [bytes.fromhex(h) for h in HEX]:
        for mode in ("all", "text", "none"):
            shown = text if isinstance(text, str) else text.decode("utf-8", "replace")
            ids = library.encode(shown, mode)
            if mode == "all" or ids != s["encode"][-1]["ids"]:
                key = {"text": text} if isinstance(text, str) else {"hex": text.hex()}
                s["encode"].append(dict(key, added=mode, ids=ids))
    lists = [c["ids"] for c in s["encode"] if c["added"] == "all" and c["ids"]][3:20] + [[1, 5, 2], [1, 300, 301]]
    s["decode"] = [{"ids": ids, "skip_special": skip, "text": library.decode(ids, skip)} for ids in lists for skip in (False, True)]
    return s


def random_text(r):
    parts = ["the", "The", " ", "  ", "\n", "\t", MARK, "e\u0301", "é", "日本", "😀", "12", "345", "!", "...", "'s", "<s>", "</s>", "<tool>", "<pad>",
             "dog", "quick", "over", "o", "Ж", "\u00a0", "x", "<0x41>", "\u1161", "½"]
    return "".join(r.choice(parts) for _ in range(r.randrange(1, 14)))


def fuzz(binary, s, n):
    library, r = Library(s["tokenizer"]), random.Random(7)
    asked = [(random_text(r), r.choice(("all", "text", "none"))) for _ in range(n)]
    want = [library.encode(t, mode) for t, mode in asked]
    with tempfile.TemporaryDirectory() as folder:
        path = folder + ("/scores.gguf" if s["name"] == "scores" else "/tokenizer.json")
        if s["name"] == "scores":
            write_gguf(s, path)
        else:
            with open(path, "w") as f:
                json.dump(s["tokenizer"], f)
        lines = [json.dumps({"text": t, "added": mode}) for t, mode in asked]
        got = ask(binary, "tokenize", path, lines)
        decoded = ask(binary, "detokenize", path, [json.dumps({"ids": ids, "skip_special": i % 2 == 1}) for i, ids in enumerate(want)])
    wrong = [(t, mode, w, g) for (t, mode), w, g in zip(asked, want, got) if g.get("ids") != w]
    wrong += [(w, text, g.get("text")) for i, (w, g) in enumerate(zip(want, decoded)) if (text := library.decode(w, i % 2 == 1)) != g.get("text")]
    print(f"{s['name']}: {len(wrong)} of {2 * n} differ", *(f"\n    {w}" for w in wrong[:4]))
    return len(wrong)


def ask(binary, verb, folder, lines):
    r = subprocess.run([binary, "probe", verb, folder], input="".join(l + "\n" for l in lines), capture_output=True, text=True)
    if r.returncode:
        sys.exit(r.stderr)
    return [json.loads(l) for l in r.stdout.split("\n") if l]


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--fuzz", type=int, metavar="N")
    a.add_argument("--bin", default="./foresay")
    o = a.parse_args()
    base = {by_chars: train(by_chars) for by_chars in (False, True)}
    schemes = [scheme(base, *s) for s in SCHEMES]
    scores = by_scores(base)
    if o.fuzz:
        sys.exit(any([fuzz(o.bin, s, o.fuzz) for s in schemes + [scores]]))
    write_gguf(scores, HERE + "/scores.gguf")
    # the two vocabularies are written once
    parts = {"bytes": base[False]["model"], "characters": base[True]["model"]}
    for s, (_, by_chars, *_) in zip(schemes, SCHEMES):
        fill(s)
        model = s["tokenizer"]["model"]
        s["vocabulary"] = "characters" if by_chars else "bytes"
        s["tokenizer"]["model"] = {k: v for k, v in model.items() if k not in ("vocab", "merges")}
    schemes.append(dict(fill(scores), file="scores.gguf", tokenizer=None))
    for p in parts.values():
        for k in [k for k in p if k not in ("vocab", "merges")]:
            del p[k]
        p["merges"] = [" ".join(m) if isinstance(m, list) else m for m in p["merges"]]
    with open(HERE + "/schemes.json", "w", encoding="utf-8") as f:
        json.dump({"vocabularies": parts, "schemes": schemes}, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")


main()
