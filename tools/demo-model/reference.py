"""A readable binary64 reference of Qwen3.5 dense with its MTP head, for checking and for finish.py. Needs numpy.

`load(folder)` reads a Hugging Face folder (BF16/F32 safetensors); `Reference(config, weights)` runs it.
Norm weights of the zero-centred family are stored without their +1; only the GDN output norm is plain.
"""
import glob
import json
import struct

import numpy as np


def read_safetensors(path):
    b = open(path, "rb").read()
    n = struct.unpack_from("<Q", b)[0]
    out = {}
    for name, t in json.loads(b[8:8 + n]).items():
        if name == "__metadata__":
            continue
        raw = b[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]
        if t["dtype"] == "BF16":
            values = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw, {"F32": np.float32, "F16": np.float16}[t["dtype"]])
        out[name] = values.reshape(t["shape"]).astype(np.float64)
    return out


def load(folder):
    weights = {}
    for path in sorted(glob.glob(folder + "/*.safetensors")):
        weights.update(read_safetensors(path))
    return json.load(open(folder + "/config.json")), weights


def sigmoid(x):
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, e) / (1 + e)


def silu(x):
    return x * sigmoid(x)


def softplus(x):
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rms(x, w, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def unit(x):
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)


class Reference:
    def __init__(self, config, weights):
        self.c, self.w, self.eps = config, weights, config["rms_norm_eps"]
        rope = config["rope_parameters"]
        rotated = int(config["head_dim"] * rope["partial_rotary_factor"])
        self.frequencies = rope["rope_theta"] ** (-2.0 * np.arange(rotated // 2) / rotated)

    def norm(self, x, name):
        return rms(x, 1 + self.w[name + ".weight"], self.eps)

    def rotate(self, x, positions):
        """x [T, heads, head_dim]: the first dimensions turn in half-split pairs."""
        n = len(self.frequencies)
        angle = (positions[:, None] * self.frequencies)[:, None]
        u, v = x[..., :n], x[..., n:2 * n]
        return np.concatenate([u * np.cos(angle) - v * np.sin(angle), v * np.cos(angle) + u * np.sin(angle), x[..., 2 * n:]], -1)

    def kept(self, x):
        """Keys or values as they are stored: here exactly."""
        return x

    def attention(self, x, p, positions, past):
        """past: keys and values of earlier rows, or None. Returns the output and all keys and values."""
        c, w, T = self.c, self.w, len(x)
        heads, kv_heads, dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        q = (x @ w[p + "q_proj.weight"].T).reshape(T, heads, 2 * dim)
        q, gate = q[..., :dim], q[..., dim:]
        k = (x @ w[p + "k_proj.weight"].T).reshape(T, kv_heads, dim)
        v = (x @ w[p + "v_proj.weight"].T).reshape(T, kv_heads, dim)
        q = self.rotate(self.norm(q, p + "q_norm"), positions)
        k, v = self.kept(self.rotate(self.norm(k, p + "k_norm"), positions)), self.kept(v)
        if past:
            k, v = np.concatenate([past[0], k]), np.concatenate([past[1], v])
        visible = np.arange(len(k))[None] <= np.arange(len(k) - T, len(k))[:, None]
        out = np.zeros((T, heads, dim))
        for h in range(heads):
            g = h // (heads // kv_heads)
            score = np.where(visible, q[:, h] @ k[:, g].T * dim ** -.5, -np.inf)
            out[:, h] = softmax(score) @ v[:, g]
        return (out * sigmoid(gate)).reshape(T, -1) @ w[p + "o_proj.weight"].T, (k, v)

    def gated_delta_net(self, x, p):
        c, w, T = self.c, self.w, len(x)
        key_heads, value_heads = c["linear_num_key_heads"], c["linear_num_value_heads"]
        dk, dv, taps = c["linear_key_head_dim"], c["linear_value_head_dim"], c["linear_conv_kernel_dim"]
        tap = w[p + "conv1d.weight"].reshape(-1, taps)
        u = x @ w[p + "in_proj_qkv.weight"].T
        u = np.concatenate([np.zeros((taps - 1, u.shape[1])), u])
        y = silu(sum(u[i:i + T] * tap[:, i] for i in range(taps)))
        n_key, repeat = key_heads * dk, value_heads // key_heads
        q = np.repeat(unit(y[:, :n_key].reshape(T, key_heads, dk)) * dk ** -.5, repeat, 1)
        k = np.repeat(unit(y[:, n_key:2 * n_key].reshape(T, key_heads, dk)), repeat, 1)
        v = y[:, 2 * n_key:].reshape(T, value_heads, dv)
        beta = sigmoid(x @ w[p + "in_proj_b.weight"].T)
        decay = np.exp(-np.exp(w[p + "A_log"]) * softplus(x @ w[p + "in_proj_a.weight"].T + w[p + "dt_bias"]))
        state, out = np.zeros((value_heads, dk, dv)), np.zeros((T, value_heads, dv))
        for t in range(T):
            state *= decay[t][:, None, None]
            change = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
            state += k[t][:, :, None] * change[:, None]
            out[t] = np.einsum("hkv,hk->hv", state, q[t])
        z = (x @ w[p + "in_proj_z.weight"].T).reshape(out.shape)
        out = rms(out, w[p + "norm.weight"], self.eps) * silu(z)
        return out.reshape(T, -1) @ w[p + "out_proj.weight"].T

    def layer(self, x, p, linear, positions, past=None):
        z = self.norm(x, p + "input_layernorm")
        if linear:
            mixed, kv = self.gated_delta_net(z, p + "linear_attn."), None
        else:
            mixed, kv = self.attention(z, p + "self_attn.", positions, past)
        x = x + mixed
        return x + self.mlp(self.norm(x, p + "post_attention_layernorm"), p + "mlp."), kv

    def mlp(self, x, p):
        w = self.w
        return silu(x @ w[p + "gate_proj.weight"].T) * (x @ w[p + "up_proj.weight"].T) @ w[p + "down_proj.weight"].T

    def logits(self, hidden):
        return hidden @ self.w.get("lm_head.weight", self.w["model.embed_tokens.weight"]).T

    def trunk(self, ids):
        """Hidden rows [T, H] after the final norm."""
        x = self.w["model.embed_tokens.weight"][np.asarray(ids)]
        for i, kind in enumerate(self.c["layer_types"]):
            x, _ = self.layer(x, f"model.layers.{i}.", kind == "linear_attention", np.arange(len(ids)))
        return self.norm(x, "model.norm")

    def mtp(self, tokens, hidden, positions, past=None):
        """Row i: the hidden row of position p_i and token p_i + 1. Returns the head's normed rows and its keys and values."""
        e = self.norm(self.w["model.embed_tokens.weight"][np.asarray(tokens)], "mtp.pre_fc_norm_embedding")
        h = self.norm(hidden, "mtp.pre_fc_norm_hidden")
        x = np.concatenate([e, h], -1) @ self.w["mtp.fc.weight"].T
        x, kv = self.layer(x, "mtp.layers.0.", False, np.asarray(positions), past)
        return self.norm(x, "mtp.norm"), kv

    def draft(self, hidden, next_token, p, kv, depth):
        """Greedy draft after the committed prefix 0..p; next_token is token p + 1, kv holds the head's true rows."""
        row, token, drafts = hidden[p:p + 1], next_token, []
        kv = kv[0][:p], kv[1][:p]
        for i in range(depth):
            row, kv = self.mtp([token], row, [p + i], kv)
            token = int(self.logits(row)[0].argmax())
            drafts.append(token)
        return drafts
