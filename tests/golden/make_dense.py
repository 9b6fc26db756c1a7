#!/usr/bin/env python3
"""Writes the tiny models of the dense families with what they must compute: `make_dense.py [NAME...]`.

Weights are random. The forward pass is written in float64 from each family's definition, whole sequences at once, and
shares nothing with the C code. Besides models/NAME/ it writes the entries of models/limits.json: the errors that
docs/arithmetic.md itself makes (keys and values rounded to f16; int8 activations where weights are quantized).
Needs numpy.
"""
import json
import os
import struct
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
VOCAB, LENGTHS, KEPT, DEPTH = 272, (1, 70, 200), 12, 3


# ---- stored numbers ----------------------------------------------------------------------------------------------


def to_bf16(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(h):
    return (h.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def mlx4(w, group=32):
    """4-bit codes (8 a word), scales and biases of a matrix; and what they stand for."""
    parts = w.reshape(w.shape[0], -1, group)
    low, high = parts.min(-1), parts.max(-1)
    scale, bias = to_bf16((high - low) / 15), to_bf16(low)
    s, b = from_bf16(scale)[..., None], from_bf16(bias)[..., None]
    codes = np.clip(np.rint((parts - b) / s), 0, 15)
    words = (codes.reshape(w.shape[0], -1, 8).astype(np.uint32) << np.arange(0, 32, 4, dtype=np.uint32)).sum(-1, dtype=np.uint32)
    return words, scale, bias, (codes * s + b).reshape(w.shape)


def write_safetensors(path, tensors, kind):
    names = {"uint16": "BF16", "uint32": "U32"}
    header, at = {"__metadata__": {"format": kind}}, 0
    for name, a in tensors.items():
        header[name] = {"dtype": names[a.dtype.name], "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(a.tobytes() for a in tensors.values()))


def write_gguf(path, keys, tensors):
    """keys: name -> int, float, str or list of ints or bools; tensors: name -> float16 or float32 array."""
    def string(s):
        return struct.pack("<Q", len(s.encode())) + s.encode()

    def value(v):
        if isinstance(v, list):
            kind, fmt = (7, "?") if isinstance(v[0], bool) else (5, "i")
            return struct.pack("<IIQ", 9, kind, len(v)) + struct.pack(f"<{len(v)}{fmt}", *v)
        if isinstance(v, str):
            return struct.pack("<I", 8) + string(v)
        return struct.pack("<If", 6, v) if isinstance(v, float) else struct.pack("<II", 4, v)

    head, at, data = b"", 0, b""
    for name, v in keys.items():
        head += string(name) + value(v)
    for name, a in tensors.items():
        shape = a.shape[::-1]
        head += string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, {"float32": 0, "float16": 1}[a.dtype.name], at)
        raw = a.tobytes()
        data += raw + b"\0" * (-len(raw) % 32)
        at = len(data)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + head
    with open(path, "wb") as f:
        f.write(head + b"\0" * (-len(head) % 32) + data)


# ---- the reference -----------------------------------------------------------------------------------------------


def rms(x, w, eps):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps) * w


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Reference:
    """One forward pass. stored: f16 keys and values; int8: activations of quantized weights in groups of 32."""

    def __init__(self, config, weights, quantized=(), stored=False, int8=False):
        self.c, self.w, self.quantized, self.stored, self.int8 = config, weights, quantized, stored, int8
        self.family = config["model_type"]
        self.eps = config["rms_norm_eps"]
        self.plus = 1 if self.family == "gemma3_text" else 0
        self.act = gelu if "gemma" in self.family else silu

    def mm(self, x, name):
        if self.int8 and name in self.quantized:
            g = x.reshape(*x.shape[:-1], -1, 32)
            step = np.abs(g).max(-1, keepdims=True) / 127
            x = (np.rint(g / np.where(step > 0, step, 1)) * step).reshape(x.shape)
        y = x @ self.w[name + ".weight"].T
        return y + self.w[name + ".bias"] if name + ".bias" in self.w else y

    def norm(self, x, name):
        return rms(x, self.w[name + ".weight"] + self.plus, self.eps)

    def slides(self, i):
        c = self.c
        if "layer_types" in c:
            return c["layer_types"][i] == "sliding_attention"
        if self.family == "gemma3_text":
            return (i + 1) % c["sliding_window_pattern"] != 0
        if self.family == "smollm3":
            return c["use_sliding_window"] and not c["no_rope_layers"][i]
        return bool(c.get("sliding_window")) and c.get("use_sliding_window", True) and i >= c.get("max_window_layers", 0)

    def frequencies(self, i, dim):
        """Turns a position makes, a pair; None: this layer doesn't rotate."""
        c, pairs = self.c, np.arange(dim // 2)
        if self.family == "smollm3" and not c["no_rope_layers"][i]:
            return None
        rope = c.get("rope_parameters", {}).get("sliding_attention" if self.slides(i) else "full_attention")
        theta = rope["rope_theta"] if rope else c["rope_theta"]
        factor = 1
        if self.family == "gemma3_text":
            theta, factor = (c["rope_local_base_freq"], 1) if self.slides(i) else (theta, c["rope_scaling"]["factor"])
        f = theta ** (-2.0 * pairs / dim) / factor
        return np.where(pairs < rope["partial_rotary_factor"] * dim / 2, f, 0) if rope and rope["rope_type"] == "proportional" else f

    def rotate(self, x, f):
        if f is None:
            return x
        angle, turned = np.arange(len(x))[:, None, None] * f, 2 * len(f)
        a, b = np.split(x[..., :turned], 2, -1)
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle), x[..., turned:]], -1)

    def attention(self, x, i):
        c, p, T = self.c, f"layers.{i}.self_attn.", len(x)
        heads, dim, kv = c["num_attention_heads"], c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"], c["num_key_value_heads"]
        scale = dim ** -0.5
        gemma4, normed = self.family == "gemma4_text", p + "q_norm.weight" in self.w
        if self.family == "gemma3_text":
            scale = c["query_pre_attn_scalar"] ** -0.5
        if gemma4:
            scale = 1
            if not self.slides(i):
                dim, kv = c["global_head_dim"], c["num_global_key_value_heads"] if c["attention_k_eq_v"] else kv
        f = self.frequencies(i, dim)
        q = self.mm(x, p + "q_proj").reshape(T, heads, dim)
        q = self.rotate(self.norm(q, p + "q_norm") if normed else q, f)
        if p + "k_proj.weight" in self.w:
            k = self.mm(x, p + "k_proj").reshape(T, kv, dim)
            v = self.mm(x, p + "v_proj").reshape(T, kv, dim) if p + "v_proj.weight" in self.w else k
            v = rms(v, 1, self.eps) if gemma4 else v
            k = self.rotate(self.norm(k, p + "k_norm") if normed else k, f)
            if self.stored:
                k, v = k.astype(np.float16).astype(float), v.astype(np.float16).astype(float)
            self.cache[self.slides(i)] = k, v
        k, v = self.cache[self.slides(i)]
        back = np.arange(T)[:, None] - np.arange(T)
        seen = (back >= 0) & (back < (c["sliding_window"] if self.slides(i) else T))
        out = [softmax(np.where(seen, q[:, h] @ k[:, h // (heads // kv)].T * scale, -np.inf)) @ v[:, h // (heads // kv)] for h in range(heads)]
        return self.mm(np.concatenate(out, -1), p + "o_proj")

    def mlp(self, x, i):
        p = f"layers.{i}.mlp."
        return self.mm(self.act(self.mm(x, p + "gate_proj")) * self.mm(x, p + "up_proj"), p + "down_proj")

    def gemma_mlp(self, x, i):
        return self.mlp(self.norm(x, f"layers.{i}.pre_feedforward_layernorm"), i)

    def layer(self, x, i, inputs):
        p = f"layers.{i}."
        a = self.attention(self.norm(x, p + "input_layernorm"), i)
        if "gemma" not in self.family:
            x = x + a
            return x + self.mlp(self.norm(x, p + "post_attention_layernorm"), i)
        x = x + self.norm(a, p + "post_attention_layernorm")
        x = x + self.norm(self.gemma_mlp(x, i), p + "post_feedforward_layernorm")
        if inputs is not None:
            gate = gelu(self.mm(x, p + "per_layer_input_gate")) * inputs[:, i]
            x = x + self.norm(self.mm(gate, p + "per_layer_projection"), p + "post_per_layer_input_norm")
        return x * self.w[p + "layer_scalar"] if p + "layer_scalar" in self.w else x

    def layer_inputs(self, x, ids):
        c, shape = self.c, (len(ids), self.c["num_hidden_layers"], self.c.get("hidden_size_per_layer_input", 0))
        if not shape[2]:
            return None
        wide = self.w["embed_tokens_per_layer.weight"][ids] * from_bf16(to_bf16(np.sqrt(shape[2])))
        own = (self.mm(x, "per_layer_model_projection") * c["hidden_size"] ** -0.5).reshape(shape)
        return (wide.reshape(shape) + rms(own, self.w["per_layer_projection_norm.weight"], self.eps)) * 2 ** -0.5

    def trunk(self, ids):
        """Rows after the final norm."""
        x = self.w["embed_tokens.weight"][ids]
        if "gemma" in self.family:
            x = x * from_bf16(to_bf16(np.sqrt(self.c["hidden_size"])))
        self.cache, inputs = {}, self.layer_inputs(x, ids)
        for i in range(self.c["num_hidden_layers"]):
            x = self.layer(x, i, inputs)
        return self.norm(x, "norm")

    def logits(self, x):
        y = self.mm(x, "lm_head" if "lm_head.weight" in self.w else "embed_tokens")
        cap = self.c.get("final_logit_softcapping")
        return np.tanh(y / cap) * cap if cap else y


# ---- the models --------------------------------------------------------------------------------------------------


def shape(model_type, layers, **more):
    c = dict(model_type=model_type, vocab_size=VOCAB, num_hidden_layers=layers, hidden_size=48, intermediate_size=64, num_attention_heads=4,
             num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-6, max_position_embeddings=4096, rope_theta=10000.0, tie_word_embeddings=True)
    c.update(more)
    return c


SLIDING, FULL = "sliding_attention", "full_attention"
GEMMA4 = dict(hidden_size=32, intermediate_size=48, num_attention_heads=2, num_key_value_heads=1, global_head_dim=32, sliding_window=21,
              final_logit_softcapping=8.0, num_kv_shared_layers=3, use_double_wide_mlp=True, hidden_size_per_layer_input=8, rope_theta=None,
              vocab_size_per_layer_input=VOCAB, attention_k_eq_v=False, enable_moe_block=False, layer_types=[SLIDING, SLIDING, FULL] * 2,
              rope_parameters={FULL: dict(rope_type="proportional", rope_theta=1e6, partial_rotary_factor=0.25),
                               SLIDING: dict(rope_type="default", rope_theta=10000.0)})
MODELS = {  # name: configuration, format
    "qwen2": (shape("qwen2", 3, use_sliding_window=True, sliding_window=40, max_window_layers=1), "bf16"),
    "mistral": (shape("mistral", 2, sliding_window=20, tie_word_embeddings=False, intermediate_size=48), "bf16"),
    "smollm3": (shape("smollm3", 4, intermediate_size=48, use_sliding_window=True, sliding_window=30, no_rope_layers=[1, 0, 1, 0]), "bf16"),
    "gemma3-mlx-4bit": (shape("gemma3_text", 4, hidden_size=64, hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=20, sliding_window=24,
                              sliding_window_pattern=3, rope_local_base_freq=1000, rope_scaling=dict(rope_type="linear", factor=8.0)), "mlx4"),
    "gemma4-ple": (shape("gemma4_text", 6, **GEMMA4), "bf16"),
    "gemma4-ple-gguf-f16": (shape("gemma4_text", 6, **GEMMA4), "gguf"),
}


def random_weights(c, rng):
    """Canonical names; products of unit variance, logits that deviate by about 2."""
    gemma, gemma4 = "gemma" in c["model_type"], c["model_type"] == "gemma4_text"
    H, I, L, nh = c["hidden_size"], c["intermediate_size"], c["num_hidden_layers"], c["num_attention_heads"]
    P, shared, w = c.get("hidden_size_per_layer_input", 0), c.get("num_kv_shared_layers", 0), {}
    mean = 0 if c["model_type"] == "gemma3_text" else 1

    def matrix(name, out, width, gain=1.0):
        w[name + ".weight"] = rng.standard_normal((out, width)) * gain / np.sqrt(width)

    def norm(name, n):
        w[name + ".weight"] = mean + 0.2 * rng.standard_normal(n)

    matrix("embed_tokens", VOCAB, H, 2)
    if P:
        matrix("embed_tokens_per_layer", VOCAB, L * P)
        matrix("per_layer_model_projection", L * P, H)
        norm("per_layer_projection_norm", P)
    for i in range(L):
        p, full = f"layers.{i}.", c.get("layer_types", [SLIDING] * L)[i] == FULL
        dim, kv = c["head_dim"], c["num_key_value_heads"]
        dim = c["global_head_dim"] if gemma4 and full else dim
        owns = i < L - shared
        for n in ["input_layernorm", "post_attention_layernorm"] + ["pre_feedforward_layernorm", "post_feedforward_layernorm"] * gemma:
            norm(p + n, H)
        for n, out in [("q", nh * dim)] + [("k", kv * dim), ("v", kv * dim)] * owns:
            matrix(f"{p}self_attn.{n}_proj", out, H)
            if c["model_type"] == "qwen2":
                w[f"{p}self_attn.{n}_proj.bias"] = rng.standard_normal(out) / 2
        for n in (["q_norm"] + ["k_norm"] * owns) * gemma:
            norm(p + "self_attn." + n, dim)
        matrix(p + "self_attn.o_proj", H, nh * dim, 0.5)
        wide = I * (2 if not owns and c.get("use_double_wide_mlp") else 1)
        for n, out, width in (("gate", wide, H), ("up", wide, H), ("down", H, wide)):
            matrix(f"{p}mlp.{n}_proj", out, width)
        if P:
            matrix(p + "per_layer_input_gate", P, H)
            matrix(p + "per_layer_projection", H, P)
            norm(p + "post_per_layer_input_norm", H)
        if gemma4:
            w[p + "layer_scalar"] = np.array([rng.uniform(0.5, 1.5)])
    norm("norm", H)
    if not c["tie_word_embeddings"]:
        matrix("lm_head", VOCAB, H, 2)
    return w


GGUF_NAMES = {"embed_tokens": "token_embd", "norm": "output_norm", "embed_tokens_per_layer": "per_layer_token_embd",
              "per_layer_model_projection": "per_layer_model_proj", "per_layer_projection_norm": "per_layer_proj_norm",
              "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
              "post_feedforward_layernorm": "post_ffw_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
              "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
              "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "layer_scalar": "layer_output_scale", "per_layer_input_gate": "inp_gate",
              "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm"}


def write_gemma4_gguf(path, c, w):
    """As llama.cpp's converter lays it out. Returns the weights as stored."""
    tensors, pairs = {}, c["global_head_dim"] // 2
    for name, a in w.items():
        stem = name[:-len(".weight")] if name.endswith(".weight") else name
        block, rest = ("blk." + stem.split(".", 2)[1] + ".", stem.split(".", 2)[2]) if stem.startswith("layers.") else ("", stem)
        tensors[block + GGUF_NAMES[rest] + ".weight"] = a.astype(np.float32 if a.ndim == 1 else np.float16)
    stored = {name: t.astype(float) for name, t in zip(w, tensors.values())}
    turning = int(c["rope_parameters"][FULL]["partial_rotary_factor"] * pairs)
    tensors["rope_freqs.weight"] = np.where(np.arange(pairs) < turning, 1, 1e30).astype(np.float32)
    L, owns = c["num_hidden_layers"], c["num_hidden_layers"] - c["num_kv_shared_layers"]
    sliding = [t == SLIDING for t in c["layer_types"]]
    a = {"block_count": L, "context_length": c["max_position_embeddings"], "embedding_length": c["hidden_size"],
         "feed_forward_length": [c["intermediate_size"] * (1 if i < owns else 2) for i in range(L)], "attention.head_count": c["num_attention_heads"],
         "attention.head_count_kv": [c["num_key_value_heads"]] * L, "attention.key_length": c["global_head_dim"],
         "attention.value_length": c["global_head_dim"], "attention.key_length_swa": c["head_dim"], "attention.value_length_swa": c["head_dim"],
         "attention.layer_norm_rms_epsilon": c["rms_norm_eps"], "attention.sliding_window": c["sliding_window"],
         "attention.sliding_window_pattern": sliding, "attention.shared_kv_layers": c["num_kv_shared_layers"],
         "embedding_length_per_layer_input": c["hidden_size_per_layer_input"], "final_logit_softcapping": c["final_logit_softcapping"],
         "rope.freq_base": c["rope_parameters"][FULL]["rope_theta"], "rope.freq_base_swa": c["rope_parameters"][SLIDING]["rope_theta"],
         "rope.dimension_count": c["global_head_dim"], "rope.dimension_count_swa": c["head_dim"]}
    write_gguf(path, {"general.architecture": "gemma4", **{f"gemma4.{k}": v for k, v in a.items()}}, tensors)
    return stored


def write_folder(folder, c, w, quantize, arrange=lambda tensors: tensors):
    """config.json and model.safetensors, its tensors as arrange leaves them. Returns the weights as stored and the names of quantized matrices."""
    tensors, stored, quantized = {}, {}, set()
    for name, a in w.items():
        full = name if name.startswith(("lm_head", "mtp.")) else "model." + name
        if quantize and a.ndim == 2:
            stem = full[:-len("weight")]
            tensors[full], tensors[stem + "scales"], tensors[stem + "biases"], stored[name] = mlx4(a)
            quantized.add(name[:-len(".weight")])
        else:
            tensors[full] = to_bf16(a)
            stored[name] = from_bf16(tensors[full])
    c = {k: v for k, v in c.items() if v is not None}
    if quantize:
        c["quantization"] = dict(group_size=32, bits=4)
    with open(folder + "/config.json", "w") as f:
        json.dump(c, f, indent=1)
        f.write("\n")
    write_safetensors(folder + "/model.safetensors", arrange(tensors), "mlx" if quantize else "pt")
    return stored, quantized


def error(want, got):
    e = np.abs(want - got) / want.std()
    return [float(f"{x:.3g}") for x in (e.mean(), np.quantile(e, 0.99))]


def make(name, c, kind):
    rng = np.random.default_rng(sum(name.split("-gguf")[0].encode()))
    w, folder, quantized = random_weights(c, rng), f"{HERE}/models/{name}", set()
    os.makedirs(folder + "/expect", exist_ok=True)
    if kind == "gguf":
        w = write_gemma4_gguf(folder + "/model.gguf", c, w)
    else:
        w, quantized = write_folder(folder, c, w, kind == "mlx4")
    return write_expectations(name, rng, lambda *how: Reference(c, w, quantized, *how), bool(quantized))


def write_expectations(name, rng, reference, has_int8):
    """models/NAME/expect/. reference(stored, int8): as Reference has them. Returns the entry of limits.json."""
    folder = f"{HERE}/models/{name}/expect/"
    ids = [rng.integers(0, VOCAB, n).tolist() for n in LENGTHS]
    rows = [sorted({0, n - 1} | set(rng.choice(n, min(n, KEPT), replace=False).tolist())) for n in LENGTHS]
    with open(folder + "ids.json", "w") as f:
        json.dump(dict(sequences=ids, rows=rows), f)
        f.write("\n")
    limits = {"float": {}, **({"int8": {}} if has_int8 else {})}
    for k, seq in enumerate(ids):
        want = outputs(reference(False, False), seq, rows[k], None)
        drafts = want.pop("drafts", None)
        if drafts:
            with open(f"{folder}mtp_draft_{k}.json", "w") as f:
                json.dump(drafts, f)
                f.write("\n")
        for file, values in want.items():
            np.save(f"{folder}{file}_{k}.npy", values.astype(np.float32))
        for mode, table in limits.items():
            got = outputs(reference(True, mode == "int8"), seq, rows[k], drafts)
            table.update({f"{file}_{k}.npy": error(values, got[file]) for file, values in want.items()})
    print(f"{name}: deviation of the logits {want['trunk'].std():.2f}, limits {limits}")
    return limits


def outputs(reference, ids, rows, drafts):
    """What docs/probe.md calls trunk; and mtp1, mtp_draft and drafts where there is a head. drafts: to be followed."""
    hidden = reference.trunk(ids)
    logits = reference.logits(hidden)
    out = dict(trunk=logits[rows])
    if not hasattr(reference, "mtp"):
        return out
    following = ids[1:] + [int(logits[-1].argmax())]
    out["mtp1"] = reference.logits(reference.mtp(following, hidden))[rows]
    rounds = drafts or [dict(start=p, next=following[p], drafts=[]) for p in sorted({0, len(ids) // 2, len(ids) - 1})]
    out["mtp_draft"] = np.array([draft(reference, following[:r["start"]] + [r["next"]], hidden[:r["start"] + 1], r["drafts"]) for r in rounds])
    return out if drafts else dict(out, drafts=rounds)


def draft(reference, tokens, hidden, drafts):
    """The head fed with its own rows, and with its own tokens where drafts has none yet; those are added to it."""
    out = []
    for i in range(DEPTH):
        row = reference.mtp(tokens, hidden)[-1:]
        out.append(reference.logits(row)[0])
        if len(drafts) == i:
            drafts.append(int(out[-1].argmax()))
        tokens, hidden = tokens + drafts[i:i + 1], np.concatenate([hidden, row])
    return out


def update_limits(models, make_one):
    """Makes the models that the command line names, or all, and puts their entries into limits.json."""
    path = HERE + "/models/limits.json"
    limits = json.load(open(path))
    for name in sys.argv[1:] or models:
        limits[name] = make_one(name, *models[name])
    with open(path, "w") as f:
        f.write("{\n" + ",\n".join(f' "{n}": {{\n' + ",\n".join(f'  "{m}": {json.dumps(t)}' for m, t in limits[n].items()) + "\n }"
                                   for n in sorted(limits)) + "\n}\n")


if __name__ == "__main__":
    update_limits(MODELS, make)
