"""Damaged packages: every one starts from the sound tiny model beside this file (bad/ok, bad/ok.gguf).

make(DIR) writes them and returns [(name, what is wrong, right outcome)]. An outcome that starts with "refuse"
means one sentence that names the file and the field, and a non-zero exit; "loads" means that it runs; never a
crash, an endless loop or a huge allocation. Run as a script, it lists them.
"""
import json
import os
import shutil
import struct
import sys

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bad")
GATE = "model.layers.0.mlp.gate_proj.weight"
UP = "model.layers.0.mlp.up_proj.weight"


# ---- safetensors: header and tensor bytes ----

def st_read(path):
    b = open(path, "rb").read()
    n = struct.unpack("<Q", b[:8])[0]
    return json.loads(b[8:8 + n]), b[8 + n:]


def st_write(path, head, data, text=None, claimed=None):
    """text replaces the header's JSON, claimed the length that the file says the header has."""
    h = (text if text is not None else json.dumps(head, separators=(",", ":"))).encode()
    h += b" " * (-len(h) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(h) if claimed is None else claimed) + h + data)


def st_tensors(path):
    head, data = st_read(path)
    head.pop("__metadata__", None)
    return {k: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])]) for k, t in head.items()}


def st_save(path, tensors):
    head, blobs, at = {}, [], 0
    for name in sorted(tensors):
        dtype, shape, data = tensors[name]
        head[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        blobs.append(data)
        at += len(data)
    st_write(path, head, b"".join(blobs))


def bf16(values):
    """Rounded toward zero: exact for the values used here."""
    return b"".join(struct.pack("<f", v)[2:] for v in values)


def bf16_values(data):
    return [struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] for i in range(0, len(data), 2)]


# ---- GGUF: byte positions of what gets damaged ----

def gguf_scan(b):
    """keys[name] = (start of the pair, start of its value); tensors[name] = positions of its fields; data."""
    width = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    n_tensors, n_keys = struct.unpack_from("<QQ", b, 8)
    at, keys, tensors = 24, {}, {}

    def string(at):
        n = struct.unpack_from("<Q", b, at)[0]
        return b[at + 8:at + 8 + n].decode(), at + 8 + n

    for _ in range(n_keys):
        start = at
        name, at = string(at)
        kind = struct.unpack_from("<I", b, at)[0]
        at += 4
        keys[name] = (start, at)
        if kind == 8:
            _, at = string(at)
        elif kind == 9:
            element, n = struct.unpack_from("<IQ", b, at)
            at += 12
            for _ in range(n):
                at = string(at)[1] if element == 8 else at + width[element]
        else:
            at += width[kind]
    for _ in range(n_tensors):
        start = at
        name, at = string(at)
        rank = struct.unpack_from("<I", b, at)[0]
        kind = at + 4 + 8 * rank
        tensors[name] = {"start": start, "rank": at, "type": kind, "offset": kind + 4}
        at = kind + 12
    return keys, tensors, at, -(-at // 32) * 32


def gguf_insert(b, name, kind, value):
    """The file with one more metadata pair in front."""
    _, _, end, data = gguf_scan(b)
    pair = struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + value
    head = bytearray(b[:24] + pair + b[24:end])
    struct.pack_into("<Q", head, 16, struct.unpack_from("<Q", head, 16)[0] + 1)
    return bytes(head) + bytes(-len(head) % 32) + b[data:]


# ---- the set ----

class Maker:
    def __init__(self, out):
        self.out = out
        self.list = []

    def folder(self, name, what, want, tokenizer=False):
        path = os.path.join(self.out, name)
        os.makedirs(path)
        files = ["config.json", "model.safetensors"] + (["tokenizer.json", "tokenizer_config.json"] if tokenizer else [])
        for f in files:
            shutil.copy(os.path.join(HERE, "ok", f), path)
        self.list.append((name, what, want))
        return path

    def header(self, name, what, want, edit):
        """edit(head, data) -> arguments of st_write that differ"""
        path = os.path.join(self.folder(name, what, want), "model.safetensors")
        head, data = st_read(path)
        st_write(path, **{"head": head, "data": data, **(edit(head, data) or {})})

    def tensors(self, name, what, want, edit):
        path = os.path.join(self.folder(name, what, want), "model.safetensors")
        t = st_tensors(path)
        edit(t)
        st_save(path, t)

    def config(self, name, what, want, edit):
        path = os.path.join(self.folder(name, what, want), "config.json")
        c = json.load(open(path))
        text = edit(c)
        with open(path, "w") as f:
            f.write(text if isinstance(text, str) else json.dumps(c, indent=1))

    def gguf(self, name, what, want, edit):
        """edit(bytes, keys, tensors) -> new bytes, or None if changed in place"""
        b = bytearray(open(os.path.join(HERE, "ok.gguf"), "rb").read())
        keys, tensors, _, _ = gguf_scan(bytes(b))
        changed = edit(b, keys, tensors)
        with open(os.path.join(self.out, name + ".gguf"), "wb") as f:
            f.write(b if changed is None else changed)
        self.list.append((name + ".gguf", what, want))


def headers(m):
    def cut(h, d):
        text = json.dumps(h)
        return {"data": b"", "text": text[:900], "claimed": len(text)}

    def overlap(h, d):
        h[UP]["data_offsets"] = [x + 64 for x in h[GATE]["data_offsets"]]

    def beyond(h, d):
        a, e = h[GATE]["data_offsets"]
        h[GATE]["data_offsets"] = [len(d) + 4096, len(d) + 4096 + e - a]

    def twice(h, d):
        return {"text": json.dumps(h)[:-1] + ',"%s":%s}' % (GATE, json.dumps(h[UP]))}

    def setting(**fields):
        return lambda h, d: h[GATE].update(fields)

    m.header("st-header-cut", "file ends in the middle of the JSON header", "refuse: truncated file", cut)
    m.header("st-header-length", "header length 2^40", "refuse: header length out of range", lambda h, d: {"claimed": 1 << 40})
    m.header("st-header-length-max", "header length 2^64-1 (8 + N overflows)", "refuse: header length out of range",
             lambda h, d: {"claimed": (1 << 64) - 1})
    m.header("st-data-cut", "last kilobyte of tensor data missing", "refuse: tensor NAME ends beyond the file",
             lambda h, d: {"data": d[:-1024]})
    m.header("st-not-json", "header is not JSON", "refuse: bad header JSON", lambda h, d: {"text": "{'model': None}"})
    m.header("st-deep-json", "100,000 nested arrays in the header", "refuse: JSON nested too deeply, no stack overflow",
             lambda h, d: {"text": '{"a":' + "[" * 100000 + "]" * 100000 + "}"})
    m.header("st-overlap", "two tensors share bytes", "refuse: overlapping tensors NAME and NAME", overlap)
    m.header("st-offset-beyond", "a tensor lies wholly beyond the end", "refuse: tensor NAME lies outside the file", beyond)
    m.header("st-dtype", "dtype F7", "refuse: unknown dtype of tensor NAME", setting(dtype="F7"))
    m.header("st-shape-overflow", "product of the shape overflows 64 bits", "refuse: shape of tensor NAME overflows",
             setting(shape=[1 << 33, 1 << 31, 32]))
    m.header("st-negative-shape", "negative sizes whose product is right", "refuse: negative size in tensor NAME",
             setting(shape=[-32, -32]))
    m.header("st-offsets-reversed", "data_offsets end before they begin", "refuse: bad offsets of tensor NAME",
             lambda h, d: h[GATE].update(data_offsets=h[GATE]["data_offsets"][::-1]))
    m.header("st-size-mismatch", "bytes don't match shape times dtype", "refuse: size of tensor NAME", setting(shape=[32, 31]))
    m.header("st-duplicate-key", "one tensor name twice, with different offsets", "refuse: tensor NAME listed twice", twice)


def tensors(m):
    def nan(t):
        dtype, shape, data = t[GATE]
        b = bytearray(data)
        struct.pack_into("<H", b, 2 * (3 * shape[1] + 5), 0x7FC0)
        struct.pack_into("<H", b, 2 * (4 * shape[1]), 0xFF80)
        t[GATE] = (dtype, shape, bytes(b))

    def narrow(t):
        name = "model.layers.1.self_attn.o_proj.weight"
        dtype, (rows, cols), data = t[name]
        kept = b"".join(data[2 * cols * r:][:48] for r in range(rows))
        t[name] = (dtype, [rows, 24], kept)

    def each_mtp(t, change):
        for k in t:
            if k.startswith("mtp."):
                t[k] = change(*t[k])

    def shifted(dtype, shape, data):
        return (dtype, shape, bf16(v + 1 for v in bf16_values(data))) if len(shape) == 1 else (dtype, shape, data)

    def without_mtp(t):
        for k in [k for k in t if k.startswith("mtp.")]:
            del t[k]

    m.tensors("nan-weights", "one NaN and one -infinity in a matrix of layer 0",
              "may load; the first forward pass names the tensor; no text from NaN logits", nan)
    m.tensors("missing-tensor", "a k_norm is absent", "refuse: missing tensor NAME",
              lambda t: t.pop("model.layers.1.self_attn.k_norm.weight"))
    m.tensors("wrong-shape", "o_proj is [32, 24] instead of [32, 32]", "refuse: shape of tensor NAME", narrow)
    m.tensors("unknown-tensor", "an extra tensor", "loads, lists the tensor as unused",
              lambda t: t.update({GATE.replace("weight", "lora_A.weight"): ("BF16", [4, 32], bf16([1.0] * 128))}))
    m.tensors("mtp-dead", "every tensor of the head is zero", "loads, reports the head as dead",
              lambda t: each_mtp(t, lambda dtype, shape, data: (dtype, shape, bytes(len(data)))))
    m.tensors("mtp-norms-plus-one", "norms of the head already hold the +1, the trunk's don't",
              "loads, warns that head and trunk disagree about the convention", lambda t: each_mtp(t, shifted))
    m.tensors("mtp-no-fc", "mtp.fc.weight is missing", "loads the trunk, reports the head as incomplete",
              lambda t: t.pop("mtp.fc.weight"))
    m.tensors("mtp-absent", "the configuration promises a head that the weights lack", "loads, says so", without_mtp)


def configs(m):
    m.config("config-missing-key", "no num_hidden_layers", "refuse: missing num_hidden_layers",
             lambda c: c.pop("num_hidden_layers") and None)
    m.config("config-no-rope-theta", "rope_parameters without rope_theta", "refuse: missing rope_theta (never a default)",
             lambda c: c["rope_parameters"].pop("rope_theta") and None)
    m.config("config-not-json", "cut after 300 bytes", "refuse: bad JSON at byte N", lambda c: json.dumps(c)[:300])
    m.config("config-absurd", "two billion layers", "refuse: out of range, before any allocation",
             lambda c: c.update(num_hidden_layers=2000000000))
    m.config("config-heads", "3 heads with 2 key/value heads", "refuse: heads not divisible",
             lambda c: c.update(num_attention_heads=3, num_key_value_heads=2))
    m.config("config-unknown-arch", "model_type qwen4_exp", "refuse: unsupported architecture, by name",
             lambda c: c.update(model_type="qwen4_exp", architectures=["Qwen4ExpForCausalLM"]))
    m.config("config-gate-type", "output_gate_type is softplus", "refuse: unsupported output_gate_type",
             lambda c: c.update(output_gate_type="softplus"))


def folders(m):
    path = m.folder("index-missing-shard", "index names a second shard that isn't there", "refuse: missing file NAME")
    t = st_tensors(path + "/model.safetensors")
    names = list(t)
    first = {k: t[k] for k in names[:len(names) // 2]}
    os.remove(path + "/model.safetensors")
    st_save(path + "/model-00001-of-00002.safetensors", first)
    where = {k: f"model-0000{1 if k in first else 2}-of-00002.safetensors" for k in names}
    json.dump({"metadata": {}, "weight_map": where}, open(path + "/model.safetensors.index.json", "w"))

    path = m.folder("index-escape", "index points outside the folder", "refuse: shard name leaves the folder")
    where = {k: "../../secret.safetensors" for k in names}
    json.dump({"metadata": {}, "weight_map": where}, open(path + "/model.safetensors.index.json", "w"))

    path = m.folder("tokenizer-too-big", "tokenizer has ids up to 699, the embedding 304 rows",
                    "refuse: tokenizer id N has no embedding row", tokenizer=True)
    j = json.load(open(path + "/tokenizer.json"))
    top = max([*j["model"]["vocab"].values(), *(a["id"] for a in j["added_tokens"])])
    j["model"]["vocab"].update({f"zz{i}": i for i in range(top + 1, 700)})
    json.dump(j, open(path + "/tokenizer.json", "w"))

    def quantized(t, scales):
        _, (rows, cols), _ = t[GATE]
        t[GATE] = ("U32", [rows, cols // 8], bytes(range(256)) * (rows * cols // 512))
        groups = rows * cols // 32
        t[GATE.replace("weight", "biases")] = ("BF16", [rows, cols // 32], bf16([-0.5] * groups))
        if scales:
            t[GATE.replace("weight", "scales")] = ("BF16", [rows, cols // 32], bf16([0.0625] * groups))

    path = m.folder("mlx-bits", "U32 weights of 4 bits, the configuration says 8", "refuse: or infer 4 and say so")
    c = json.load(open(path + "/config.json"))
    json.dump({**c, "quantization": {"group_size": 32, "bits": 8}}, open(path + "/config.json", "w"))
    t = st_tensors(path + "/model.safetensors")
    quantized(t, scales=True)
    st_save(path + "/model.safetensors", t)
    m.tensors("mlx-no-scales", "U32 weights and biases without scales", "refuse: missing tensor NAME.scales",
              lambda t: quantized(t, scales=False))


def ggufs(m):
    tensor = "blk.0.ffn_gate.weight"

    def put(fmt, value, at):
        """at(keys, tensors) -> position"""
        return lambda b, keys, tensors: struct.pack_into(fmt, b, at(keys, tensors), value)

    def unaligned(b, keys, tensors):
        at = tensors[tensor]["offset"]
        struct.pack_into("<Q", b, at, struct.unpack_from("<Q", b, at)[0] + 4)

    m.gguf("gguf-magic", "magic GGUX", "refuse: not a GGUF file", put("4s", b"GGUX", lambda k, t: 0))
    m.gguf("gguf-version", "version 1", "refuse: unsupported GGUF version", put("<I", 1, lambda k, t: 4))
    m.gguf("gguf-big-endian", "version stored big-endian", "refuse: big-endian GGUF", put(">I", 3, lambda k, t: 4))
    m.gguf("gguf-n-tensors", "2^60 tensors", "refuse: tensor count out of range, before any allocation",
           put("<Q", 1 << 60, lambda k, t: 8))
    m.gguf("gguf-n-kv", "2^62 metadata pairs", "refuse: metadata count out of range", put("<Q", 1 << 62, lambda k, t: 16))
    m.gguf("gguf-string", "first key says 2^63 bytes", "refuse: string length out of range", put("<Q", 1 << 63, lambda k, t: 24))
    m.gguf("gguf-array", "token array says 2^61 strings", "refuse: array length out of range",
           put("<Q", 1 << 61, lambda k, t: k["tokenizer.ggml.tokens"][1] + 4))
    m.gguf("gguf-alignment", "general.alignment 0", "refuse: bad alignment",
           lambda b, keys, tensors: gguf_insert(bytes(b), "general.alignment", 4, struct.pack("<I", 0)))
    m.gguf("gguf-type", "tensor type 250", "refuse: unknown type of tensor NAME",
           put("<I", 250, lambda k, t: t[tensor]["type"]))
    m.gguf("gguf-unaligned", "a tensor's offset breaks the alignment", "refuse: unaligned tensor NAME", unaligned)
    m.gguf("gguf-offset", "a tensor at 2^62", "refuse: tensor NAME lies outside the file",
           put("<Q", 1 << 62, lambda k, t: t[tensor]["offset"]))
    m.gguf("gguf-dims", "9 dimensions", "refuse: bad rank of tensor NAME", put("<I", 9, lambda k, t: t[tensor]["rank"]))
    m.gguf("gguf-cut", "second half missing", "refuse: truncated file", lambda b, keys, tensors: b[:len(b) // 2])


def make(out):
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    m = Maker(out)
    shutil.copytree(os.path.join(HERE, "ok"), os.path.join(out, "ok"))
    shutil.copy(os.path.join(HERE, "ok.gguf"), out)
    m.list += [("ok", "nothing: control", "loads"), ("ok.gguf", "nothing: control", "loads")]
    for part in (headers, tensors, configs, folders, ggufs):
        part(m)
    return m.list


if __name__ == "__main__":
    import tempfile
    with tempfile.TemporaryDirectory() as scratch:
        for row in make(sys.argv[1] if len(sys.argv) > 1 else scratch):
            print("%-24s %-58s %s" % row)
