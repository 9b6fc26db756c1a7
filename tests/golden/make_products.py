#!/usr/bin/env python3
"""Writes products/: for one stored weight of each format, rows of activations X and Y = X W^T.

Follows docs/arithmetic.md section 2 in binary64: int8 activations for quantized weights, plain products for
float ones. Independent of the C code: it reads the stored bytes by itself. Needs numpy.
"""
import glob
import json
import os
import struct

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))

# name, package (from here), tensor, activation group (0: float weight)
CASES = [
    ("F16", "bad/ok.gguf", "blk.0.ffn_gate.weight", 0),
    ("BF16", "models/qwen35-wrapped-gguf-bf16/model.gguf", "token_embd.weight", 0),
    ("Q8_0", "models/llama-gguf-q8_0/model.gguf", "token_embd.weight", 32),
    ("Q4_0", "models/llama-gguf-q4_0/model.gguf", "token_embd.weight", 32),
    ("hf-bf16", "models/qwen35-wrapped", "model.language_model.layers.0.mlp.gate_proj.weight", 0),
    ("mlx4g32", "models/llama-mlx-4bit-g32", "lm_head.weight", 32),
    ("mlx4g64", "models/qwen35-dense-mlx-4bit-mtp", "language_model.model.layers.0.mlp.gate_proj.weight", 64),
    ("mlx8g64", "models/llama-mlx-8bit-f16", "lm_head.weight", 64),
]
ROWS = 5


def half(raw):
    return raw.view(np.float16).astype(np.float64)


def brain(raw):
    return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def gguf_tensor(path, wanted):
    """Dequantized [out, in] and nothing else of the file."""
    b = open(path, "rb").read()
    at = 24
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

    def take(fmt):
        nonlocal at
        values = struct.unpack_from("<" + fmt, b, at)
        at += struct.calcsize("<" + fmt)
        return values if len(values) > 1 else values[0]

    def string():
        nonlocal at
        n = take("Q")
        at += n
        return b[at - n:at].decode()

    n_tensors, n_keys = struct.unpack_from("<QQ", b, 8)
    for _ in range(n_keys):
        string()
        kind = take("I")
        if kind == 9:
            element, n = take("I"), take("Q")
            for _ in range(n):
                if element == 8:
                    string()
                else:
                    at += sizes[element]
        elif kind == 8:
            string()
        else:
            at += sizes[kind]
    for _ in range(n_tensors):
        name, rank = string(), take("I")
        ne = [take("Q") for _ in range(rank)]
        kind, offset = take("I"), take("Q")
        if name == wanted:
            found = kind, ne, offset
    kind, ne, offset = found
    data = np.frombuffer(b, np.uint8, offset=-(-at // 32) * 32 + offset)
    n_in, n_out = ne
    block, width = {1: (1, 2), 30: (1, 2), 8: (32, 34), 2: (32, 18), 3: (32, 20)}[kind]
    raw = data[:n_in * n_out // block * width].reshape(-1, width).copy()
    if kind in (1, 30):
        values = (half if kind == 1 else brain)(raw.reshape(-1))
    elif kind == 8:
        values = half(raw[:, :2].copy()) * raw[:, 2:].view(np.int8)
    else:
        codes = raw[:, width - 16:]
        q = np.concatenate([codes & 15, codes >> 4], axis=1).astype(np.float64)
        scale = half(raw[:, :2].copy())
        values = scale * (q - 8) if kind == 2 else scale * q + half(raw[:, 2:4].copy())
    return values.reshape(n_out, n_in)


def safetensors(folder):
    tensors = {}
    for path in glob.glob(folder + "/*.safetensors"):
        b = open(path, "rb").read()
        n = struct.unpack_from("<Q", b)[0]
        for name, t in json.loads(b[8:8 + n]).items():
            if name != "__metadata__":
                start, end = (8 + n + x for x in t["data_offsets"])
                tensors[name] = t["dtype"], t["shape"], np.frombuffer(b[start:end], np.uint8).copy()
    return tensors


def folder_tensor(folder, name):
    tensors = safetensors(folder)

    def plain(key):
        dtype, shape, raw = tensors[key]
        return {"BF16": brain, "F16": half}[dtype](raw).reshape(shape)

    dtype, shape, raw = tensors[name]
    if dtype != "U32":
        return plain(name)
    stem = name[:-len("weight")]
    scales, biases = plain(stem + "scales"), plain(stem + "biases")
    n_out, n_groups = scales.shape
    settings = json.load(open(folder + "/config.json"))["quantization"]
    bits = settings.get(name[:-len(".weight")], settings)
    bits = bits["bits"] if isinstance(bits, dict) else settings["bits"]
    words = raw.view(np.uint32).reshape(shape)
    q = np.stack([words >> (bits * i) & ((1 << bits) - 1) for i in range(32 // bits)], -1)
    q = q.reshape(n_out, n_groups, -1).astype(np.float64)
    return (scales[:, :, None] * q + biases[:, :, None]).reshape(n_out, -1)


def quantize_rows(x, group):
    """What the activations become: per row and group, int8 codes times a scale, in binary32 where it counts."""
    y = np.zeros(x.shape)
    for start in range(0, x.shape[1], group):
        part = x[:, start:start + group]
        largest = np.abs(part).max(-1, keepdims=True)
        safe = np.where(largest < 2.0 ** -100, np.float32(1), largest)
        codes = np.clip(np.rint(part * (np.float32(127) / safe)), -127, 127)
        scale = np.where(largest < 2.0 ** -100, np.float32(0), largest / np.float32(127))
        y[:, start:start + group] = codes.astype(np.float64) * scale
    return y


def main():
    rng = np.random.default_rng(20)
    os.makedirs(HERE + "/products", exist_ok=True)
    for name, package, tensor, group in CASES:
        path = f"{HERE}/{package}"
        w = gguf_tensor(path, tensor) if path.endswith(".gguf") else folder_tensor(path, tensor)
        x = rng.standard_normal((ROWS, w.shape[1])).astype(np.float32)
        x[2, :w.shape[1] // 2] = 0
        x[3] *= 1000
        y = (quantize_rows(x, group) if group else x.astype(np.float64)) @ w.T
        stem = f"{HERE}/products/{name}"
        np.save(stem + ".x.npy", x)
        np.save(stem + ".y.npy", y.astype(np.float32))
        with open(stem + ".json", "w") as f:
            json.dump({"package": package, "tensor": tensor, "group": group, "out": w.shape[0], "in": w.shape[1]}, f)
            f.write("\n")


if __name__ == "__main__":
    main()
