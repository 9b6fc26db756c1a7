#!/usr/bin/env python3
"""`foresay pull`, `list`, `rm` and remote `inspect` against a hub on this machine (hub.py) with every fault we can think of.
FORESAY names the binary. Standard library only.

  tests/e2e/test_pull.py [TEXT]     runs the tests whose name holds TEXT
"""
import glob
import hashlib
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
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from hub import Hub, git_sha1  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FORESAY = os.path.abspath(os.environ.get("FORESAY", ROOT + "/foresay"))
GOLDEN = ROOT + "/tests/golden/models"
BLOCK = 256 * 1024


def read_folder(folder, without=("expect", "README.md", "eval.json")):
    files = {}
    for top, _, names in os.walk(folder):
        for name in names:
            path = os.path.relpath(os.path.join(top, name), folder)
            if path.split("/")[0] not in without:
                with open(os.path.join(top, name), "rb") as f:
                    files[path] = f.read()
    return files


def noise(n, seed=1):
    return random.Random(seed).randbytes(n)


def safetensors(payload, name="weight"):
    head = json.dumps({name: {"dtype": "U8", "shape": [len(payload)], "data_offsets": [0, len(payload)]}}).encode()
    return struct.pack("<Q", len(head)) + head + payload


def repo_of(n, seed=1):
    """A repository whose weights are n bytes of noise."""
    return {"config.json": b'{"model_type":"llama"}', "model.safetensors": safetensors(noise(n, seed)), "README.md": b"hello"}


class World:
    """A home folder, and the binary in it."""

    def __init__(self, hub=None):
        self.home = tempfile.mkdtemp(prefix="foresay-pull-")
        self.env = {k: v for k, v in os.environ.items() if not re.match(r"HF_|FORESAY_|OLLAMA_|XDG_|HUGGING|.*_proxy$|.*_PROXY$", k)}
        self.env.update(HOME=self.home, FORESAY_THREADS="1", TMPDIR=self.home)
        if hub:
            self.env["HF_ENDPOINT"] = hub.url
        self.models = self.home + "/.local/share/foresay/models"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.home, ignore_errors=True)

    def start(self, *args, env=(), cwd="/", **options):
        return subprocess.Popen([FORESAY, *args], env={**self.env, **dict(env)}, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, **options)

    def run(self, *args, timeout=120, **options):
        p = self.start(*args, **options)
        out, err = p.communicate(timeout=timeout)
        return p.returncode, out.decode(), err.decode()

    def pull(self, name="hf:org/name", *args, **options):
        return self.run("pull", name, "--quiet", *args, **options)

    def pulled(self, name="hf:org/name", *args, **options):
        """Pulls; what the JSON says."""
        code, out, err = self.pull(name, "--json", *args, **options)
        assert code == 0, f"exit {code}: {err}"
        return json.loads(out)

    def refused(self, *words, args=("pull", "hf:org/name", "--quiet"), code=1, **options):
        got, out, err = self.run(*args, **options)
        assert got == code and out == "", (got, out, err)
        first = err.splitlines()[-1] if err else ""
        sentence = next((line for line in err.splitlines() if all(w in line for w in words)), None)
        assert sentence and sentence.startswith("foresay: "), (words, err)
        assert "hf_secret" not in err, "the token was printed"
        return first

    def list(self, **options):
        code, out, err = self.run("list", "--json", **options)
        assert code == 0, err
        return json.loads(out)["models"]

    def names(self):
        return sorted(m["name"] for m in self.list())


def check_folder(folder, files, chosen=None):
    """The folder holds exactly these files (and our description), byte for byte."""
    have = read_folder(folder, without=())
    assert ".foresay.json" in have
    del have[".foresay.json"]
    want = {k: v for k, v in files.items() if k in (chosen or [k for k in files if k not in ("README.md",)])}
    assert sorted(have) == sorted(want), (sorted(have), sorted(want))
    for name in want:
        assert have[name] == want[name], f"{name} differs"


def leftovers(world):
    return [p for p in glob.glob(world.models + "/**/.*", recursive=True, include_hidden=True) if not p.endswith("/.foresay.json")] \
        if sys.version_info >= (3, 11) else []


# ---- pulling ----

def test_pull_takes_what_serving_needs():
    files = {**read_folder(ROOT + "/models/demo"), "pytorch_model.bin": noise(5000), "onnx/model.onnx": noise(5000, 2), "original/x.pth": b"x",
             "consolidated.safetensors": noise(3000, 3), "README.md": b"r", ".gitattributes": b"a", "modeling.py": b"import os"}
    chosen = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
    with Hub() as hub, World(hub) as world:
        commit = hub.add("org/name", files)
        r = world.pulled()
        assert r["path"] == world.models + "/org/name" and r["name"] == "org/name" and r["commit"] == commit and not r["was_here"], r
        assert r["files"] == len(chosen) and r["bytes"] == sum(len(files[c]) for c in chosen) == r["fetched_bytes"], r
        assert len(r["left_out"]) == 4, r["left_out"]
        check_folder(r["path"], files, chosen)
        assert not leftovers(world), leftovers(world)
        code, out, err = world.run("run", "org/name", "-p", "# ", "--raw", "--temperature", "0", "--max-tokens", "4", "--json")
        assert code == 0, err


# ---- interruptions ----

def sharded_repo(seed=7):
    """Two shards and an index, 2 MB of noise, and what comes with them."""
    a, b = noise(1_300_000, seed), noise(900_000, seed + 1)
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    return {"config.json": b'{"model_type":"llama"}', "tokenizer.json": noise(90_000, seed + 2), "tokenizer_config.json": b"{}",
            "model-00001-of-00002.safetensors": safetensors(a, "a"), "model-00002-of-00002.safetensors": safetensors(b, "b"),
            "model.safetensors.index.json": json.dumps(index).encode()}


def test_killed_at_random_moments():
    """At least 200 downloads killed 1 to 5 times each (kill -9), then finished: no wrong file, and few bytes fetched twice."""
    rng = random.Random(4711)
    files = sharded_repo()
    total = sum(map(len, files.values()))
    n, n_kills, n_early, sent = 200, 0, 0, 0
    with Hub() as hub, World(hub) as world:
        hub.add("org/name", files)
        hub.rule("", server="files", pace=(65536, 0.002))
        for i in range(n):
            env = {"FORESAY_HOME": f"{world.home}/{i}"}
            before = hub.sent("/org/name/")
            for _ in range(rng.randint(1, 5)):
                p = world.start("pull", "hf:org/name", "--quiet", "--connections", str(rng.randint(1, 6)), env=env)
                try:
                    p.wait(rng.uniform(0.004, 0.05))
                    n_early += 1  # it was done before the kill came
                except subprocess.TimeoutExpired:
                    p.kill()
                    n_kills += 1
                p.communicate()
            r = world.pulled(env=env)
            sent += hub.sent("/org/name/") - before
            check_folder(r["path"], files)
            shutil.rmtree(env["FORESAY_HOME"])
        again = (sent - n * total) / n_kills
    assert n_kills >= n, n_kills
    assert again < 6 * (BLOCK + 65536) + 200_000, again
    return (f"{n} downloads of {total} bytes, killed {n_kills} times: 0 wrong files, {again / 1024:.0f} KiB fetched again a kill "
            f"({100 * (sent - n * total) / (n * total):.1f} % of all bytes), {n_early} were done before the kill")


# ---- models elsewhere ----

def inspected(world, what, *args, code=0):
    got, out, err = world.run("inspect", what, "--json", *args)
    assert got == code and out, (what, got, err)
    return json.loads(out)


def golden_packages():
    for folder in [ROOT + "/models/demo", ROOT + "/tests/golden/bad/ok", *sorted(glob.glob(GOLDEN + "/*/"))]:
        files = read_folder(folder)
        if files:
            yield folder.rstrip("/"), files


def test_remote_inspect_says_what_local_inspect_says():
    """For every package we have; only headers and configurations cross the network."""
    differ = {"path", "remote", "tokenizer_name", "eos_ids", "mtp_note"}
    n = 0
    with Hub() as hub, World(hub) as world:
        for folder, files in golden_packages():
            hub.add("org/name", files)
            hub.clear()
            gguf = [f for f in files if f.endswith(".gguf")]
            local, remote = inspected(world, folder), inspected(world, "hf:org/name")
            assert {k: v for k, v in local.items() if k not in differ} == {k: v for k, v in remote.items() if k not in differ}, folder
            assert remote["path"].startswith("org/name") and remote["remote"]["fetched_bytes"] == hub.sent(), (remote["path"], hub.sent())
            for name, data in files.items():
                if name.endswith(".safetensors"):
                    header = 8 + struct.unpack("<Q", data[:8])[0]
                    sent = sum(x["sent"] for x in hub.log if x["server"] == "files" and x["path"].split("?")[0].endswith("/" + name))
                    assert sent == header, (name, sent, header)
            assert gguf or not any("/tokenizer.json" in x["path"] for x in hub.log) and remote["remote"]["tokenizer_bytes"] == len(files["tokenizer.json"])
            assert not glob.glob(world.home + "/foresay-*"), "the temporary folder is left"
            n += 1
    return f"{n} packages"


def main():
    tests = [(k, v) for k, v in globals().items() if k.startswith("test_") and (len(sys.argv) < 2 or sys.argv[1] in k)]
    passed = failed = 0
    for name, test in tests:
        began = time.monotonic()
        try:
            said = test()
            passed += 1
            print(f"ok   {name} ({time.monotonic() - began:.1f} s){': ' + said if said else ''}", flush=True)
        except Exception:
            failed += 1
            print(f"FAIL {name}\n{traceback.format_exc()}", flush=True)
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
