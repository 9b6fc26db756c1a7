#!/usr/bin/env python3
"""foresay quantize on the golden packages. FORESAY names the binary."""
import filecmp
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FORESAY = os.path.abspath(os.environ.get("FORESAY", ROOT + "/foresay"))
MODELS, DEMO = ROOT + "/tests/golden/models", ROOT + "/models/demo"


def foresay(*args, code=0):
    p = subprocess.run([FORESAY, *args], capture_output=True, text=True, timeout=300)
    assert p.returncode == code, (args, p.returncode, p.stderr)
    return p.stdout if code == 0 else p.stderr


def quantize(src, dst, *args):
    return json.loads(foresay("quantize", src, dst, "--json", *args))


def header(path):
    with open(path, "rb") as f:
        return json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))


def same_folders(a, b):
    names = sorted(os.listdir(a))
    assert names == sorted(os.listdir(b)), (names, os.listdir(b))
    return all(filecmp.cmp(f"{a}/{n}", f"{b}/{n}", False) for n in names)


def test_layout(tmp):
    """What MLX expects: triples, overrides by module, everything else as stored; the head untouched."""
    src, dst = MODELS + "/qwen35-wrapped", tmp + "/layout"
    r = quantize(src, dst)
    config, tensors = json.load(open(dst + "/config.json")), header(dst + "/model.safetensors")
    assert config["quantization"] == config["quantization_config"] == {"group_size": 64, "bits": 4, "mode": "affine"}, config
    name = next(n for n in tensors if n.endswith("self_attn.q_proj.weight") and "mtp" not in n)
    out, words = tensors[name]["shape"]
    assert tensors[name]["dtype"] == "U32" and tensors[name[:-6] + "scales"]["shape"] == [out, words * 8 // 64], tensors[name]
    assert r["quantized_tensors"] + r["kept_tensors"] > 40 and 4.4 < r["bits_per_weight"] < 4.6, r
    for n, t in tensors.items():
        assert "mtp" not in n or t["dtype"] == "BF16", n
    card = open(dst + "/README.md").read()
    assert f"{100 * r['top1_agreement']:.2f} %" in card and f"{r['kl_mean']:.5f}" in card, card
    assert "can't be served" not in foresay("inspect", dst)
    assert "lm_head" not in str([n for n in tensors if n.endswith("scales") and "norm" in n])


def test_more_bits_are_nearer(tmp):
    four, eight = quantize(DEMO, tmp + "/four"), quantize(DEMO, tmp + "/eight", "--bits", "8")
    assert eight["kl_mean"] < four["kl_mean"] / 20 and eight["top1_agreement"] > 0.95, (four, eight)
    return f"KL {four['kl_mean']:.4f} at 4 bits, {eight['kl_mean']:.5f} at 8"


def test_mixed_spends_bits_where_they_count(tmp):
    even = quantize(DEMO, tmp + "/even", "--group", "32")
    mixed = quantize(DEMO, tmp + "/mixed", "--bits", "mixed", "--bpw", "5", "--calibration", "64")
    assert abs(mixed["bits_per_weight"] - even["bits_per_weight"]) < 0.02, (mixed, even)
    assert mixed["kl_mean"] < even["kl_mean"] / 1.5, (mixed, even)
    rules = json.load(open(tmp + "/mixed/config.json"))["quantization"]
    assert {v["bits"] for v in rules.values() if isinstance(v, dict)} <= {5, 6, 8} and len(rules) > 4, rules
    return f"KL {mixed['kl_mean']:.4f} mixed, {even['kl_mean']:.4f} even, both at 5 bits"


def test_killed_and_resumed(tmp):
    """Killed at random moments it ends with the very same bytes."""
    rng, n_kills, resumed = random.Random(1), 0, 0
    for args in (["--bits", "4"], ["--bits", "mixed", "--calibration", "16"]):
        whole, dst = f"{tmp}/whole{len(args)}", f"{tmp}/cut{len(args)}"
        quantize(MODELS + "/qwen35-wrapped", whole, *args)
        for _ in range(6):
            p = subprocess.Popen([FORESAY, "quantize", MODELS + "/qwen35-wrapped", dst, "--quiet", *args], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            time.sleep(rng.uniform(0.01, 0.4 if len(args) == 2 else 1.5))
            if p.poll() is None:
                p.send_signal(rng.choice([signal.SIGKILL, signal.SIGINT]))
                n_kills += 1
            p.communicate()
            if os.path.exists(dst):
                break
            assert os.path.isdir(dst + ".partial") or not os.path.exists(dst), os.listdir(tmp)
        if not os.path.exists(dst):
            resumed += quantize(MODELS + "/qwen35-wrapped", dst, *args)["resumed_tensors"]
        for folder in (whole, dst):  # the card names its folder
            text = open(folder + "/README.md").read()
            open(folder + "/README.md", "w").write(re.sub("^# .*$", "# name", text, flags=re.M))
        assert same_folders(whole, dst) and not os.path.exists(dst + ".partial")
    return f"{n_kills} interruptions, {resumed} tensors not written again"


def test_refusals(tmp):
    for src, word in [(MODELS + "/llama-gguf-q8_0", "GGUF"), (MODELS + "/qwen35-dense-mlx-4bit-mtp", "quantized already"), (MODELS + "/smollm", "nothing to quantize"),
                      (tmp + "/absent", "no such file")]:
        assert word in foresay("quantize", src, tmp + "/refused", code=1), src
        assert not os.path.exists(tmp + "/refused"), src
    os.mkdir(tmp + "/there")
    assert "exists already" in foresay("quantize", DEMO, tmp + "/there", code=2)
    assert "expected 4, 8 or mixed" in foresay("quantize", DEMO, tmp + "/x", "--bits", "3", code=2)
    with open(tmp + "/short.txt", "w") as f:
        f.write("a few words")
    assert "at least 64 tokens" in foresay("quantize", DEMO, tmp + "/x", "--text", tmp + "/short.txt", code=2)
    os.chmod(tmp + "/there", 0o500)
    if os.geteuid():
        assert "there" in foresay("quantize", DEMO, tmp + "/there/x", code=1)
    os.chmod(tmp + "/there", 0o700)


def main():
    passed = failed = 0
    for name, test in list(globals().items()):
        if not name.startswith("test_") or (len(sys.argv) > 1 and sys.argv[1] not in name):
            continue
        tmp = tempfile.mkdtemp(prefix="foresay-quantize-")
        try:
            said = test(tmp)
            print("ok  ", name, f"({said})" if said else "", flush=True)
            passed += 1
        except Exception as e:
            print("FAIL", name, repr(e)[:1500], flush=True)
            failed += 1
        finally:
            shutil.rmtree(tmp, ignore_errors=True)
    print(f"\n{passed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
