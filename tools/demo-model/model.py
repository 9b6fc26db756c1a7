"""Tiny Qwen3.5-architecture language model with a native MTP head (PyTorch, training only).

Tensor names, shapes and conventions are those of the public checkpoints (src/model/arch_qwen35.c):
zero-centred RMSNorm weights, GatedDeltaNet layers with a gated full-attention layer every fourth, tied head,
`mtp.*` module fed by the post-final-norm hidden state, embedding half first.
"""
import math, json, struct
from dataclasses import dataclass, asdict
import torch, torch.nn as nn, torch.nn.functional as F


@dataclass
class Config:
    vocab_size: int = 4096
    hidden_size: int = 128
    intermediate_size: int = 512
    num_hidden_layers: int = 8
    full_attention_interval: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    partial_rotary_factor: float = 0.5
    rope_theta: float = 1e7
    linear_num_key_heads: int = 2
    linear_num_value_heads: int = 4
    linear_key_head_dim: int = 32
    linear_value_head_dim: int = 32
    linear_conv_kernel_dim: int = 4
    rms_norm_eps: float = 1e-6


class Norm1(nn.Module):
    """rms(x) * (1 + w)"""
    def __init__(self, n, eps):
        super().__init__(); self.weight = nn.Parameter(torch.zeros(n)); self.eps = eps
    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * (1 + self.weight)


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)
    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def rope(x, pos, rot, theta):
    # x [B,h,T,hd], half-split rotation of the first `rot` dims
    j = torch.arange(rot // 2, dtype=torch.float64)
    ang = (pos.double()[:, None] * theta ** (-2 * j / rot)[None, :])
    c, s = ang.cos().float(), ang.sin().float()
    a, b, rest = x[..., :rot // 2], x[..., rot // 2:rot], x[..., rot:]
    return torch.cat([a * c - b * s, b * c + a * s, rest], -1)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__(); self.c = c
        H, nh, nkv, hd = c.hidden_size, c.num_attention_heads, c.num_key_value_heads, c.head_dim
        self.q_proj = nn.Linear(H, 2 * nh * hd, bias=False)
        self.k_proj = nn.Linear(H, nkv * hd, bias=False)
        self.v_proj = nn.Linear(H, nkv * hd, bias=False)
        self.o_proj = nn.Linear(nh * hd, H, bias=False)
        self.q_norm, self.k_norm = Norm1(hd, c.rms_norm_eps), Norm1(hd, c.rms_norm_eps)
    def forward(self, x, pos):
        c = self.c; B, T, _ = x.shape; nh, nkv, hd = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        qg = self.q_proj(x).view(B, T, nh, 2 * hd)
        q, g = qg[..., :hd], qg[..., hd:]
        k = self.k_proj(x).view(B, T, nkv, hd); v = self.v_proj(x).view(B, T, nkv, hd)
        rot = int(hd * c.partial_rotary_factor)
        q = rope(self.q_norm(q).transpose(1, 2), pos, rot, c.rope_theta)
        k = rope(self.k_norm(k).transpose(1, 2), pos, rot, c.rope_theta)
        v = v.transpose(1, 2)
        r = nh // nkv
        k, v = k.repeat_interleave(r, 1), v.repeat_interleave(r, 1)
        s = (q @ k.transpose(-1, -2)) * hd ** -0.5
        m = torch.ones(T, T, dtype=torch.bool).triu(1)
        o = s.masked_fill(m, float("-inf")).softmax(-1) @ v
        o = o.transpose(1, 2) * torch.sigmoid(g)
        return self.o_proj(o.reshape(B, T, nh * hd))


class GatedDeltaNet(nn.Module):
    def __init__(self, c):
        super().__init__(); self.c = c
        H, Hk, Hv, Dk, Dv = (c.hidden_size, c.linear_num_key_heads, c.linear_num_value_heads,
                             c.linear_key_head_dim, c.linear_value_head_dim)
        self.C = 2 * Hk * Dk + Hv * Dv
        self.in_proj_qkv = nn.Linear(H, self.C, bias=False)
        self.in_proj_z = nn.Linear(H, Hv * Dv, bias=False)
        self.in_proj_b = nn.Linear(H, Hv, bias=False)
        self.in_proj_a = nn.Linear(H, Hv, bias=False)
        self.conv1d = nn.Conv1d(self.C, self.C, c.linear_conv_kernel_dim, groups=self.C, bias=False)
        self.A_log = nn.Parameter(torch.empty(Hv).uniform_(1, 16).log())
        dt = torch.exp(torch.empty(Hv).uniform_(math.log(1e-3), math.log(1e-1)))
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))
        self.norm = nn.Module(); self.norm.weight = nn.Parameter(torch.ones(Dv))
        self.out_proj = nn.Linear(Hv * Dv, H, bias=False)
    def forward(self, x):
        c = self.c; B, T, _ = x.shape
        Hk, Hv, Dk, Dv = c.linear_num_key_heads, c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim
        u = self.in_proj_qkv(x).transpose(1, 2)
        u = F.silu(self.conv1d(F.pad(u, (c.linear_conv_kernel_dim - 1, 0)))).transpose(1, 2)
        q, k, v = u.split([Hk * Dk, Hk * Dk, Hv * Dv], -1)
        q = q.reshape(B, T, Hk, Dk); k = k.reshape(B, T, Hk, Dk); v = v.reshape(B, T, Hv, Dv)
        q = q * torch.rsqrt(q.pow(2).sum(-1, keepdim=True) + 1e-6) * Dk ** -0.5
        k = k * torch.rsqrt(k.pow(2).sum(-1, keepdim=True) + 1e-6)
        r = Hv // Hk
        q, k = q.repeat_interleave(r, 2), k.repeat_interleave(r, 2)
        beta = torch.sigmoid(self.in_proj_b(x))
        g = -self.A_log.exp() * F.softplus(self.in_proj_a(x) + self.dt_bias)
        o = chunk_gdn(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), g.transpose(1, 2), beta.transpose(1, 2))
        o = o.transpose(1, 2)
        o = o * torch.rsqrt(o.pow(2).mean(-1, keepdim=True) + c.rms_norm_eps) * self.norm.weight
        o = o * F.silu(self.in_proj_z(x).view(B, T, Hv, Dv))
        return self.out_proj(o.reshape(B, T, Hv * Dv))


def chunk_gdn(q, k, v, g, beta, n=64):
    # q,k [B,h,T,Dk]; v [B,h,T,Dv]; g,beta [B,h,T]
    B, h, T, Dk = q.shape; Dv = v.shape[-1]; pad = (-T) % n
    if pad:
        q, k, v = (F.pad(t, (0, 0, 0, pad)) for t in (q, k, v)); g, beta = F.pad(g, (0, pad)), F.pad(beta, (0, pad))
    N = (T + pad) // n
    q, k, v = (t.reshape(B, h, N, n, -1) for t in (q, k, v)); g, beta = g.reshape(B, h, N, n), beta.reshape(B, h, N, n)
    G = g.cumsum(-1)
    D = (G[..., :, None] - G[..., None, :]).tril().exp().tril()
    A = ((beta[..., None] * k) @ k.transpose(-1, -2) * D).tril(-1)
    rhs = torch.cat([beta[..., None] * v, (beta * G.exp())[..., None] * k], -1)
    eye = torch.eye(n, dtype=q.dtype)
    X = torch.linalg.solve_triangular(eye + A, rhs, upper=False, unitriangular=True)
    U0, W = X[..., :Dv], X[..., Dv:]
    M = (q @ k.transpose(-1, -2)) * D
    S = q.new_zeros(B, h, Dk, Dv); out = []
    for i in range(N):
        U = U0[:, :, i] - W[:, :, i] @ S
        out.append((q[:, :, i] * G[:, :, i].exp()[..., None]) @ S + M[:, :, i] @ U)
        last = G[:, :, i, -1]
        S = last.exp()[..., None, None] * S + (k[:, :, i] * (last[..., None] - G[:, :, i]).exp()[..., None]).transpose(-1, -2) @ U
    return torch.stack(out, 2).reshape(B, h, N * n, Dv)[:, :, :T]


class Layer(nn.Module):
    def __init__(self, c, full):
        super().__init__(); self.full = full
        self.input_layernorm = Norm1(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = Norm1(c.hidden_size, c.rms_norm_eps)
        if full: self.self_attn = Attention(c)
        else: self.linear_attn = GatedDeltaNet(c)
        self.mlp = MLP(c)
    def forward(self, x, pos):
        z = self.input_layernorm(x)
        x = x + (self.self_attn(z, pos) if self.full else self.linear_attn(z))
        return x + self.mlp(self.post_attention_layernorm(x))


class MTP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.fc = nn.Linear(2 * c.hidden_size, c.hidden_size, bias=False)
        self.pre_fc_norm_embedding = Norm1(c.hidden_size, c.rms_norm_eps)
        self.pre_fc_norm_hidden = Norm1(c.hidden_size, c.rms_norm_eps)
        self.layers = nn.ModuleList([Layer(c, True)])
        self.norm = Norm1(c.hidden_size, c.rms_norm_eps)
    def forward(self, emb, hid, pos):
        x = self.fc(torch.cat([self.pre_fc_norm_embedding(emb), self.pre_fc_norm_hidden(hid)], -1))
        return self.norm(self.layers[0](x, pos))


class TinyQwen(nn.Module):
    def __init__(self, c):
        super().__init__(); self.c = c
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.model.layers = nn.ModuleList([Layer(c, (i + 1) % c.full_attention_interval == 0) for i in range(c.num_hidden_layers)])
        self.model.norm = Norm1(c.hidden_size, c.rms_norm_eps)
        self.mtp = MTP(c)
        for n, p in self.named_parameters():
            if p.dim() == 2: nn.init.normal_(p, std=0.02 if "embed" in n else 1 / math.sqrt(p.shape[1]) * (0.5 if n.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")) else 1))
    def head(self, h): return h @ self.model.embed_tokens.weight.t()
    def forward(self, t):
        pos = torch.arange(t.shape[1]); x = self.model.embed_tokens(t)
        for l in self.model.layers: x = l(x, pos)
        return self.model.norm(x)
    def draft(self, hid, tokens, pos0=0):
        """hid [B,T,H] aligned with tokens that follow each position: returns m [B,T,H]."""
        return self.mtp(self.model.embed_tokens(tokens), hid, torch.arange(pos0, pos0 + tokens.shape[1]))


def save_safetensors(path, tensors):
    head, blobs, off = {"__metadata__": {"format": "pt"}}, [], 0
    for name in sorted(tensors):
        t = tensors[name].detach().contiguous()
        if t.dtype == torch.bfloat16: b, d = t.view(torch.int16).numpy().tobytes(), "BF16"
        else: b, d = t.float().numpy().tobytes(), "F32"
        head[name] = {"dtype": d, "shape": list(t.shape), "data_offsets": [off, off + len(b)]}
        blobs.append(b); off += len(b)
    h = json.dumps(head, separators=(",", ":")).encode(); h += b" " * (-len(h) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(h))); f.write(h)
        for b in blobs: f.write(b)


def hf_config(c):
    d = asdict(c)
    d.update(model_type="qwen3_5_text", architectures=["Qwen3_5ForCausalLM"], hidden_act="silu", attention_bias=False,
             attn_output_gate=True, max_position_embeddings=8192, mamba_ssm_dtype="float32", mtp_num_hidden_layers=1,
             mtp_use_dedicated_embeddings=False, tie_word_embeddings=True, torch_dtype="bfloat16",
             layer_types=["full_attention" if (i + 1) % c.full_attention_interval == 0 else "linear_attention" for i in range(c.num_hidden_layers)],
             rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta, "partial_rotary_factor": c.partial_rotary_factor})
    return d
