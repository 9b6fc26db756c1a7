#!/usr/bin/env python3
"""Writes the tiny models with experts and what they must compute: `make_moe.py [NAME...]`.

As make_dense.py, whose numbers, files and decoder it uses; the recurrent layers of Qwen3.5 are those of
tools/demo-model/reference.py. Needs numpy.
"""
import os
import re
import sys

import numpy as np

import make_dense as dense
from make_dense import FULL, SLIDING, silu, softmax

sys.path.insert(0, dense.HERE + "/../../tools/demo-model")
import reference as qwen35  # noqa: E402


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


# ---- the reference -----------------------------------------------------------------------------------------------


class Mixture:
    """For a class with c (configuration), w (weights), act and mm."""

    def routed(self, x, score, p):
        """The weighted sum of the experts p + "experts.N." for rows x; score [T, E]."""
        c = self.c
        k, rows, choice = c.get("num_experts_per_tok") or c["top_k_experts"], np.arange(len(x))[:, None], score
        if "score_function" in c:
            score = sigmoid(score)
            choice = score + self.w[p + "gate.expert_bias"]
            groups = choice.reshape(len(x), c["n_group"], -1)
            best = np.argsort(-np.sort(groups, -1)[..., -2:].sum(-1), -1)[:, :c["topk_group"]]
            open_groups = np.zeros(groups.shape[:2], bool)
            open_groups[rows, best] = True
            choice = np.where(open_groups[..., None], groups, -np.inf).reshape(score.shape)
        else:
            score = softmax(score)
        chosen = np.zeros(score.shape, bool)
        chosen[rows, np.argsort(-choice, -1)[:, :k]] = True
        weight = np.where(chosen, score, 0)
        if c.get("norm_topk_prob", True):
            weight = weight / weight.sum(-1, keepdims=True)
        weight = weight * c.get("routed_scaling_factor", 1) * self.w.get(p + "router.per_expert_scale", 1)
        out = np.zeros_like(x)
        for e in np.flatnonzero(chosen.any(0)):
            r = chosen[:, e]
            out[r] += weight[r, e, None] * self.glu(x[r], f"{p}experts.{e}.")
        return out

    def glu(self, x, p):
        return self.mm(self.act(self.mm(x, p + "gate_proj")) * self.mm(x, p + "up_proj"), p + "down_proj")

    def router(self, x, name):
        return x @ self.w[name + ".weight"].T


class Decoder(Mixture, dense.Reference):
    """Qwen3 MoE, BailingMoeV2 and Gemma 4 MoE."""

    def mlp(self, x, i):
        p = f"layers.{i}.mlp."
        if p + "gate.weight" not in self.w:
            return self.glu(x, p)
        y = self.routed(x, self.router(x, p + "gate"), p)
        return y + self.glu(x, p + "shared_experts.") if p + "shared_experts.up_proj.weight" in self.w else y

    def gemma_mlp(self, x, i):
        p, H = f"layers.{i}.", x.shape[-1]
        scores = self.router(dense.rms(x, self.w[p + "router.scale"], self.eps) * H ** -0.5, p + "router.proj")
        y = self.norm(self.routed(self.norm(x, p + "pre_feedforward_layernorm_2"), scores, p), p + "post_feedforward_layernorm_2")
        return self.norm(super().gemma_mlp(x, i), p + "post_feedforward_layernorm_1") + y


class Bailing(Decoder):
    def frequencies(self, i, dim):
        return super().frequencies(i, int(dim * self.c["partial_rotary_factor"]))

    def mtp(self, tokens, hidden):
        """Row i: token i + 1 and the trunk's row i."""
        i = self.c["num_hidden_layers"]
        p = f"layers.{i}."
        x = np.concatenate([self.norm(self.w["embed_tokens.weight"][tokens], p + "enorm"), self.norm(hidden, p + "hnorm")], -1)
        return self.norm(self.layer(self.mm(x, p + "eh_proj"), i, None), p + "final_layernorm")


class Qwen35(Mixture, qwen35.Reference):
    act = staticmethod(silu)

    def __init__(self, c, w, quantized, stored, int8):
        del quantized, int8  # stored as floats
        super().__init__(c, {k if k.startswith(("mtp.", "lm_head")) else "model." + k: v for k, v in w.items()})
        self.half = stored

    def mm(self, x, name):
        return x @ self.w[name + ".weight"].T

    def kept(self, x):
        return x.astype(np.float16).astype(float) if self.half else x

    def mlp(self, x, p):
        shared = sigmoid(self.router(x, p + "shared_expert_gate")) * self.glu(x, p + "shared_expert.")
        return self.routed(x, self.router(x, p + "gate"), p) + shared

    def mtp(self, tokens, hidden):
        return super().mtp(tokens, hidden, np.arange(len(tokens)))[0]


# ---- the models --------------------------------------------------------------------------------------------------


def shape(model_type, layers, **more):
    return dense.shape(model_type, layers, **{**dict(hidden_size=32, intermediate_size=40, num_attention_heads=4, num_key_value_heads=2,
                                                     num_experts=6, num_experts_per_tok=3, moe_intermediate_size=12), **more})


QWEN35 = dict(rope_theta=None, intermediate_size=None, layer_types=["linear_attention", "full_attention", "linear_attention"],
              rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.25), linear_num_key_heads=1,
              linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=16, linear_conv_kernel_dim=4,
              shared_expert_intermediate_size=16, mtp_num_hidden_layers=1)
BAILING = dict(num_experts=12, moe_intermediate_size=8, n_group=4, topk_group=2, num_shared_experts=1, moe_shared_expert_intermediate_size=16,
               first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=2.5, score_function="sigmoid", partial_rotary_factor=0.5,
               use_qk_norm=True, num_nextn_predict_layers=1)
GEMMA4 = dict(num_attention_heads=2, num_key_value_heads=1, global_head_dim=32, sliding_window=21, final_logit_softcapping=8.0, num_kv_shared_layers=0,
              hidden_size_per_layer_input=0, rope_theta=None, attention_k_eq_v=False, enable_moe_block=True, top_k_experts=3,
              num_experts_per_tok=None, layer_types=[SLIDING, SLIDING, FULL],
              rope_parameters={FULL: dict(rope_type="proportional", rope_theta=1e6, partial_rotary_factor=0.25),
                               SLIDING: dict(rope_type="default", rope_theta=10000.0)})
MODELS = {  # name: configuration, how experts lie, quantized, reference
    "qwen3-moe": (shape("qwen3_moe", 3, mlp_only_layers=[1], norm_topk_prob=False), "apart", False, Decoder),
    "qwen3-moe-mlx-4bit": (shape("qwen3_moe", 2, hidden_size=64, moe_intermediate_size=32, num_experts=8, norm_topk_prob=True), "switch_mlp", True, Decoder),
    "qwen35-moe-mtp": (shape("qwen3_5_moe_text", 3, **QWEN35), "fused", False, Qwen35),
    "bailing-moe-mtp": (shape("bailing_moe_v2", 2, **BAILING), "apart", False, Bailing),
    "gemma4-moe": (shape("gemma4_text", 3, **GEMMA4), "fused", False, Decoder),
}


def glu_shapes(p, hidden, inter):
    return {p + "gate_proj.weight": (inter, hidden), p + "up_proj.weight": (inter, hidden), p + "down_proj.weight": (hidden, inter)}


def mlp_shapes(c, p, i):
    """The MLP of layer i, under its prefix p."""
    H, E, family = c["hidden_size"], c["num_experts"], c["model_type"]
    s, inter, dense_too = {}, c["moe_intermediate_size"], family == "gemma4_text"
    if dense_too or i in c.get("mlp_only_layers", []) or i < c.get("first_k_dense_replace", 0):
        s.update(glu_shapes(p + "mlp.", H, c["intermediate_size"]))
        if not dense_too:
            return s
    if dense_too:
        s.update({p + "router.proj.weight": (E, H), p + "router.scale": (H,), p + "router.per_expert_scale": (E,)})
        s.update({f"{p}{n}_feedforward_layernorm{k}.weight": (H,) for n, k in (("pre", ""), ("post", ""), ("pre", "_2"), ("post", "_1"), ("post", "_2"))})
    else:
        p += "mlp."
        s[p + "gate.weight"] = (E, H)
    for e in range(E):
        s.update(glu_shapes(f"{p}experts.{e}.", H, inter))
    if family == "bailing_moe_v2":
        s.update({p + "gate.expert_bias": (E,), **glu_shapes(p + "shared_experts.", H, c["moe_shared_expert_intermediate_size"])})
    if "qwen3_5" in family:
        s.update({p + "shared_expert_gate.weight": (1, H), **glu_shapes(p + "shared_expert.", H, c["shared_expert_intermediate_size"])})
    return s


def layer_shapes(c, p, i):
    H, heads, kv, dim = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    kind, gated = c["layer_types"][i] if i < len(c.get("layer_types", [])) else FULL, "qwen3_5" in c["model_type"]
    s = {p + "input_layernorm.weight": (H,), p + "post_attention_layernorm.weight": (H,)}
    if kind == "linear_attention":
        V, K = c["linear_num_value_heads"], 2 * c["linear_num_key_heads"] * c["linear_key_head_dim"]
        wide, a = V * c["linear_value_head_dim"], p + "linear_attn."
        s.update({a + "in_proj_qkv.weight": (K + wide, H), a + "in_proj_z.weight": (wide, H), a + "in_proj_b.weight": (V, H),
                  a + "in_proj_a.weight": (V, H), a + "out_proj.weight": (H, wide), a + "conv1d.weight": (K + wide, 1, c["linear_conv_kernel_dim"]),
                  a + "A_log": (V,), a + "dt_bias": (V,), a + "norm.weight": (c["linear_value_head_dim"],)})
    else:
        dim = c["global_head_dim"] if "global_head_dim" in c and kind == FULL else dim
        a = p + "self_attn."
        s.update({a + "q_proj.weight": (heads * dim * (2 if gated else 1), H), a + "k_proj.weight": (kv * dim, H), a + "v_proj.weight": (kv * dim, H),
                  a + "o_proj.weight": (H, heads * dim), a + "q_norm.weight": (dim,), a + "k_norm.weight": (dim,)})
    if "gemma" in c["model_type"]:
        s[p + "layer_scalar"] = (1,)
    return {**s, **mlp_shapes(c, p, i)}


def all_shapes(c):
    H, L = c["hidden_size"], c["num_hidden_layers"]
    s = {"embed_tokens.weight": (dense.VOCAB, H), "norm.weight": (H,)}
    for i in range(L):
        s.update(layer_shapes(c, f"layers.{i}.", i))
    if "mtp_num_hidden_layers" in c:
        s.update({"mtp.fc.weight": (H, 2 * H), **{f"mtp.{n}.weight": (H,) for n in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")},
                  **layer_shapes(c, "mtp.layers.0.", L)})
    if "num_nextn_predict_layers" in c:
        p = f"layers.{L}."
        s.update({p + "eh_proj.weight": (H, 2 * H), **{f"{p}{n}.weight": (H,) for n in ("enorm", "hnorm", "final_layernorm")}, **layer_shapes(c, p, L)})
    return s


def random_weights(c, rng):
    """Products of unit variance, logits that deviate by about 2."""
    def value(name, shape):
        z = rng.standard_normal(shape)
        if len(shape) == 2:
            gain = 2 if name.startswith("embed") else 0.5 if re.search("self_attn.o_proj|out_proj", name) else 1
            return z * gain / np.sqrt(shape[1])
        if name.endswith(("expert_bias", "dt_bias", "A_log")):
            return z / 4 - name.endswith("dt_bias")
        if name.endswith("conv1d.weight"):
            return z / 2
        raw = "qwen3_5" in c["model_type"] and "linear_attn.norm" not in name
        return (0 if raw else 1) + 0.2 * z
    return {name: value(name, shape) for name, shape in all_shapes(c).items()}


# ---- files -------------------------------------------------------------------------------------------------------


BAILING_NAMES = {"self_attn.o_proj": "attention.dense", "self_attn.q_norm": "attention.query_layernorm", "self_attn.k_norm": "attention.key_layernorm",
                 "embed_tokens": "word_embeddings"}


def fused_qkv(tensors):
    out = {}
    for name, a in tensors.items():
        if "self_attn.q_proj" in name:
            parts = [tensors[name.replace("q_proj", f"{n}_proj")] for n in "qkv"]
            out[name.replace("self_attn.q_proj", "attention.query_key_value")] = np.concatenate(parts)
        elif not re.search("self_attn.[kv]_proj", name):
            for ours, theirs in BAILING_NAMES.items():
                name = name.replace(ours, theirs)
            out[name] = a
    return out


def stacked(tensors, layout):
    """One tensor of all experts in place of many, in their own: switch_mlp or fused."""
    out, groups = {}, {}
    for name, a in tensors.items():
        m = re.fullmatch(r"(.*\.)experts\.\d+\.(\w+)_proj\.(\w+)", name)
        if m:
            groups.setdefault(m.groups(), []).append(a)
        else:
            out[name] = a
    for (p, part, kind), all_of_them in groups.items():
        if layout == "switch_mlp":
            out[f"{p}switch_mlp.{part}_proj.{kind}"] = np.stack(all_of_them)
        elif part == "down":
            out[p + "experts.down_proj"] = np.stack(all_of_them)
        elif part == "gate":
            out[p + "experts.gate_up_proj"] = np.concatenate([np.stack(all_of_them), np.stack(groups[p, "up", kind])], 1)
    return out


def make(name, c, layout, is_quantized, reference):
    rng = np.random.default_rng(sum(name.encode()))
    folder = f"{dense.HERE}/models/{name}"

    def arrange(tensors):
        tensors = tensors if layout == "apart" else stacked(tensors, layout)
        return fused_qkv(tensors) if "bailing" in c["model_type"] else tensors

    os.makedirs(folder + "/expect", exist_ok=True)
    w, quantized = dense.write_folder(folder, c, random_weights(c, rng), is_quantized, arrange)
    return dense.write_expectations(name, rng, lambda *how: reference({k: v for k, v in c.items() if v is not None}, w, quantized, *how), is_quantized)


if __name__ == "__main__":
    dense.update_limits(MODELS, make)
