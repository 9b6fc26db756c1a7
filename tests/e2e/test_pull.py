#!/usr/bin/env python3
"""`foresay pull`, `list`, `rm` and remote `inspect` against a hub on this machine (hub.py) with every fault we can think of.
FORESAY names the binary. Standard library only.

  tests/e2e/test_pull.py [TEXT]     runs the tests whose name holds TEXT
"""
import glob
import hashlib
import json
import os
import pty
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
        sentence = next((line for line in err.splitlines() if all(w in line for w in words)), None)
        assert sentence and sentence.startswith("foresay: "), (words, err)
        assert "hf_secret" not in err, "the token was printed"

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


def test_pull_again_fetches_nothing():
    with Hub() as hub, World(hub) as world:
        hub.add("org/name", repo_of(500_000))
        world.pulled()
        hub.clear()
        r = world.pulled()
        assert r["was_here"] and r["fetched_bytes"] == 0 and not any("/resolve/" in x["path"] for x in hub.log), r


def test_files_that_are_chosen():
    """Of repositories as they are: the index, heads beside it, leftovers, other formats."""
    def index(*names):
        return json.dumps({"weight_map": {f"t{i}": n for i, n in enumerate(names)}}).encode()
    base, w = {"config.json": b"{}", "tokenizer.json": b"{}"}, safetensors(noise(3000))
    i = "model.safetensors.index.json"
    cases = [  # what the repository holds beside the base, what is taken of it
        ({"model.safetensors": w}, None),
        ({i: index("a.safetensors", "b.safetensors"), "a.safetensors": w, "b.safetensors": w, "model.safetensors": w}, [i, "a.safetensors", "b.safetensors"]),
        ({i: index("a.safetensors"), "a.safetensors": w, "mtp.safetensors": w, "extra.safetensors": w}, [i, "a.safetensors", "mtp.safetensors"]),
        ({"model.safetensors": w, "model-mtp.safetensors": w, "mtp/weights.safetensors": w, "mtp/config.json": b"{}", "mtp/x.bin": w},
         ["model.safetensors", "model-mtp.safetensors", "mtp/weights.safetensors", "mtp/config.json"]),
        ({i: index("sub/a.safetensors"), "sub/a.safetensors": w, "sub/b.safetensors": w}, [i, "sub/a.safetensors"]),
        ({"model-00001-of-00002.safetensors": w, "model-00002-of-00002.safetensors": w, "consolidated.safetensors": w},
         ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]),
        ({"odd.safetensors": w, "model.fp16.safetensors": w}, ["odd.safetensors"]),
        ({"model.safetensors": w, "x-Q8_0.gguf": w, "pytorch_model.bin": w, "tf_model.h5": w}, ["model.safetensors"]),
        ({"model.safetensors": w, "vocab.json": b"{}", "merges.txt": b"", "preprocessor_config.json": b"{}", "additional_chat_templates/tool.jinja": b"x"},
         ["model.safetensors", "vocab.json", "merges.txt", "additional_chat_templates/tool.jinja"]),
    ]
    with Hub() as hub, World(hub) as world:
        for k, (more, taken) in enumerate(cases):
            hub.add(f"org/n{k}", {**base, **more})
            r = world.pulled(f"hf:org/n{k}")
            check_folder(r["path"], {**base, **more}, list(base) + (taken or list(more)))
        for more, words in [({i: index("gone.safetensors"), "model.safetensors": w}, ["gone.safetensors", "incomplete"]),
                            ({"pytorch_model.bin": w}, ["unsupported", "PyTorch"]), ({}, ["unsupported", "no weights"]),
                            ({i: index("../../x.safetensors"), "model.safetensors": w}, ["inside the folder"]), ({"a/model.safetensors": w}, ["unsupported", "in folders"]),
                            ({i: b"{", "model.safetensors": w}, [i])]:
            hub.add("org/bad", {**base, **more})
            world.refused(*words, args=("pull", "hf:org/bad", "--quiet"))
        hub.add("org/lora", {"adapter_config.json": b"{}", "adapter_model.safetensors": w})
        world.refused("adapter", args=("pull", "hf:org/lora", "--quiet"))
    return f"{len(cases) + 7} repositories"


def test_gguf_by_quantization():
    def part(k, n):
        return noise(4000, k)
    files = {"M-Q4_K_M.gguf": part(1, 1), "M-Q8_0.gguf": part(2, 1), "UD/M-UD-Q4_K_XL.gguf": part(3, 1), "mmproj-F16.gguf": part(4, 1), "imatrix.gguf": b"x",
             "BF16/M-BF16-00001-of-00003.gguf": part(5, 3), "BF16/M-BF16-00002-of-00003.gguf": part(6, 3), "BF16/M-BF16-00003-of-00003.gguf": part(7, 3),
             "README.md": b"", "config.json": b"{}"}
    split = sorted(f for f in files if f.startswith("BF16/"))
    with Hub() as hub, World(hub) as world:
        hub.add("org/gguf", files)
        world.refused("several models", "Q4_K_M", "Q8_0", "UD-Q4_K_XL", "BF16", args=("pull", "hf:org/gguf", "--quiet"), code=2)
        _, _, err = world.pull("hf:org/gguf")
        assert re.search(r"^BF16 +11.7 KiB$", err, re.M), err  # three parts
        world.refused("no \"Q3_K\"", "Q8_0", args=("pull", "hf:org/gguf:Q3_K", "--quiet"), code=2)
        for args, chosen, name in [(["hf:org/gguf", "--quant", "q8_0"], ["M-Q8_0.gguf"], "org/gguf:Q8_0"), (["hf:org/gguf:BF16"], split, "org/gguf:BF16"),
                                   (["hf:org/gguf", "--file", split[1]], split, "org/gguf:BF16"),
                                   (["hf:org/gguf", "--file", "M-UD-Q4_K_XL.gguf"], ["UD/M-UD-Q4_K_XL.gguf"], "org/gguf:UD-Q4_K_XL")]:
            r = world.pulled(*args)
            assert r["name"] == name and r["path"].endswith(chosen[0]), r
            check_folder(r["path"][:-len(chosen[0]) - 1], files, chosen)
        assert world.names() == ["org/gguf:BF16", "org/gguf:Q8_0", "org/gguf:UD-Q4_K_XL"], world.names()
        hub.add("org/cut", {k: v for k, v in files.items() if k != split[2]})
        world.refused("part 3 of 3", "missing", args=("pull", "hf:org/cut:BF16", "--quiet"))
        hub.add("org/one", {"model.gguf": part(9, 1)})
        assert world.pulled("hf:org/one")["path"].endswith("/model.gguf")
        code, _, err = world.run("inspect", "org/one")
        assert code == 1 and "not a GGUF file" in err, err


def test_revisions_are_kept_apart():
    old, new = repo_of(300_000, 1), repo_of(300_000, 2)
    with Hub() as hub, World(hub) as world:
        hub.add("org/name", old, "v1")
        hub.add("org/name", new, "refs/pr/1")
        hub.add("org/name", new)
        a, b = world.pulled("hf:org/name@v1"), world.pulled("hf:org/name")
        c = world.pulled("hf:org/name@refs/pr/1", "--anyway")
        check_folder(a["path"], old)
        check_folder(b["path"], new)
        check_folder(c["path"], new)
        assert world.names() == ["org/name", "org/name@refs/pr/1", "org/name@v1"], world.names()
        world.refused("no revision", "v2", args=("pull", "hf:org/name@v2", "--quiet"))
        web = world.pulled(hub.url + "/org/name/tree/v1")
        assert web["was_here"] and web["path"] == a["path"], web


def test_a_newer_commit_replaces_the_older_and_reuses_its_files():
    old = sharded_repo()
    new = {**old, "model-00002-of-00002.safetensors": safetensors(noise(200_000, 99), "b"), "generation_config.json": b"{}"}
    del new["tokenizer_config.json"]
    with Hub() as hub, World(hub) as world:
        hub.add("org/name", old)
        world.pulled()
        hub.add("org/name", new)
        hub.clear()
        r = world.pulled()
        check_folder(r["path"], new)
        assert hub.sent("00001-of") == 0 and r["fetched_bytes"] < 300_000, r
        assert not leftovers(world)


# ---- interruptions ----

def sharded_repo(seed=7):
    """Two shards and an index, 2 MB of noise, and what comes with them."""
    a, b = noise(1_300_000, seed), noise(900_000, seed + 1)
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    return {"config.json": b'{"model_type":"llama"}', "tokenizer.json": noise(90_000, seed + 2), "tokenizer_config.json": b"{}",
            "model-00001-of-00002.safetensors": safetensors(a, "a"), "model-00002-of-00002.safetensors": safetensors(b, "b"),
            "model.safetensors.index.json": json.dumps(index).encode()}


def kill_after(hub, p, n_bytes, seconds=30):
    """Kills a pull once the file server has sent so many bytes; False if it ended before."""
    until, goal = time.monotonic() + seconds, hub.flow + n_bytes
    while hub.flow < goal and time.monotonic() < until and p.poll() is None:
        time.sleep(0.0005)
    killed = p.poll() is None
    p.kill()
    p.communicate()
    return killed


def test_killed_at_random_moments():
    """200 downloads killed 1 to 3 times each (kill -9), then finished: no wrong file, and few bytes fetched twice."""
    rng = random.Random(4711)
    files = sharded_repo()
    total = sum(map(len, files.values()))
    n, n_kills, n_early, sent = 200, 0, 0, 0
    with Hub() as hub, World(hub) as world:
        hub.add("org/name", files)
        for i in range(n):
            env = {"FORESAY_HOME": f"{world.home}/{i}"}
            hub.clear()
            hub.rule("", server="files", pace=(65536, 0.001))
            for _ in range(rng.randint(1, 3)):
                p = world.start("pull", "hf:org/name", "--quiet", "--connections", str(rng.randint(1, 6)), env=env)
                if rng.random() < 0.1:  # before the first byte
                    time.sleep(rng.uniform(0, 0.03))
                killed = kill_after(hub, p, rng.choice([0, rng.randrange(total // 2), rng.randrange(total)]))
                n_kills += killed
                n_early += not killed
            r = world.pulled(env=env)
            sent += hub.sent("/org/name/")
            check_folder(r["path"], files)
            shutil.rmtree(env["FORESAY_HOME"])
        again = (sent - n * total) / n_kills
    assert n_kills >= n, n_kills
    assert again < 6 * (BLOCK + 65536) + 100_000, again
    return (f"{n} downloads of {total} bytes, killed {n_kills} times: 0 wrong files, {again / 1024:.0f} KiB fetched again a kill "
            f"({100 * (sent - n * total) / (n * total):.1f} % of all bytes), {n_early} were done before the kill")


def test_cut_connections_cost_nothing():
    """A connection that breaks goes on at the very byte."""
    files = sharded_repo()
    with Hub() as hub, World(hub) as world:
        hub.add("org/name", files)
        rng = random.Random(3)
        for k in range(30):
            hub.rule("", server="files", cut=rng.randrange(0, 200_000), times=1, skip=rng.randrange(0, 3))
        r = world.pulled()
        check_folder(r["path"], files)
        assert r["fetched_bytes"] == r["bytes"] and r["fetched_again_bytes"] == 0, r


def test_server_without_ranges():
    files = sharded_repo()
    with Hub() as hub, World(hub) as world:
        hub.add("org/name", files)
        hub.rule("", server="files", whole=True)
        r = world.pulled("hf:org/name", "--connections", "6")
        check_folder(r["path"], files)
        # and cut again and again: it goes on as long as each try gets further
        hub.add("org/cut", files)
        for at in (100_000, 400_000, 700_000, 1_000_000, 1_200_000):
            hub.rule("/00001-of", server="files", cut=at, times=1)
            hub.rule("model-00001", server="files", cut=at, times=1)
        r = world.pulled("hf:org/cut", "--anyway")
        check_folder(r["path"], files)
        # a kill in between: what is there isn't written again, but passes by again
        hub.add("org/kill", files)
        hub.rule("", server="files", pace=(65536, 0.01))
        p = world.start("pull", "hf:org/kill", "--quiet", "--anyway")
        time.sleep(0.15)
        p.kill()
        p.communicate()
        check_folder(world.pulled("hf:org/kill", "--anyway")["path"], files)
        # always cut at the same place: it ends
        hub.add("org/never", files)
        hub.rule("model-00001", server="files", cut=300_000)
        world.refused("model-00001", args=("pull", "hf:org/never", "--quiet", "--anyway", "--attempts", "3"))


def test_changed_tag_between_requests():
    files = sharded_repo()
    with Hub() as hub, World(hub) as world:
        hub.add("org/name", files)
        hub.rule("model-00001", server="files", etag="other", skip=1, times=1)
        r = world.pulled()
        check_folder(r["path"], files)
        hub.add("org/tags", files)  # a tag that means nothing: the checksum decides
        hub.rule("", server="files", etag="new")
        check_folder(world.pulled("hf:org/tags", "--anyway")["path"], files)


def test_wrong_content():
    """Once: fetched again. Always: refused by its checksum, and nothing looks like a model."""
    files = sharded_repo()
    with Hub() as hub, World(hub) as world:
        hub.add("org/name", files)
        hub.rule("model-00001", server="files", flip=1_000_000, times=2)
        hub.rule("config.json", server="hub", flip=3, times=1)
        r = world.pulled("hf:org/name", "--connections", "2")
        check_folder(r["path"], files)
        hub.add("org/bad", files)
        hub.rule("/org/bad/", server="files", flip=500_000)
        world.refused("wrong checksum", "expected", "found", args=("pull", "hf:org/bad", "--quiet", "--anyway"))
        assert not os.path.exists(world.models + "/org/bad")
        bad = next(m for m in world.list() if m["name"] == "org/bad")
        assert "isn't finished" in bad["trouble"], bad
        hub.clear()
        check_folder(world.pulled("hf:org/bad", "--anyway")["path"], files)  # the server is well again
        hub.add("org/index", files)
        hub.rule("index.json", flip=9)
        world.refused("index.json", "wrong checksum", args=("pull", "hf:org/index", "--quiet", "--anyway"))
        hub.clear()
        hub.tree_edit = lambda t: [{**f, "lfs": {**f["lfs"], "oid": "0" * 64}} if "lfs" in f and "00001" in f["path"] else f for f in t]
        world.refused("checksum", "0000", args=("pull", "hf:org/index", "--quiet", "--anyway"))


def test_busy_and_failing_servers():
    files = repo_of(400_000)
    with Hub() as hub, World(hub) as world:
        hub.add("org/name", files)
        for status in (500, 502, 503, 408):
            hub.rule("", status=status, times=1, skip=1)
        hub.rule("", server="files", status=429, headers={"Retry-After": "1"}, times=1)
        began = time.monotonic()
        check_folder(world.pulled()["path"], files)
        assert time.monotonic() - began > 1, "Retry-After was ignored"
        hub.add("org/busy", files)
        hub.rule("/org/busy", status=429, headers={"Retry-After": "7200"})
        began = time.monotonic()
        world.refused("wait 7200 s", args=("pull", "hf:org/busy", "--quiet"))
        assert time.monotonic() - began < 5
        hub.clear()
        hub.rule("", status=503)
        world.refused("503", args=("pull", "hf:org/busy", "--quiet", "--attempts", "3"))
        assert len(hub.log) == 3, hub.log
        hub.clear()
        hub.rule("/resolve/", status=500)
        world.refused("status 500", args=("pull", "hf:org/busy", "--quiet", "--anyway", "--attempts", "2"))


def test_slow_and_stalled_connections():
    files = repo_of(300_000)
    with Hub() as hub, World(hub) as world:
        hub.add("org/name", files)
        hub.rule("", server="files", pace=(30_000, 0.2))  # slow, but it comes
        check_folder(world.pulled("hf:org/name", "--timeout", "1", "--connections", "1")["path"], files)
        hub.add("org/stall", files)
        hub.clear()
        hub.rule("/org/stall/", server="files", stall=30, times=2)
        began = time.monotonic()
        check_folder(world.pulled("hf:org/stall", "--timeout", "1", "--anyway")["path"], files)
        assert time.monotonic() - began < 15


def test_lying_lengths():
    files = repo_of(1_500_000)
    with Hub() as hub, World(hub) as world:
        for k, what in enumerate([{"claim": 50_000}, {"claim": -50_000}, {"surplus": 300_000}, {"shift": 5}, {"encode": True}]):
            hub.add(f"org/n{k}", files)
            hub.rule(f"/org/n{k}/", server="files", times=3, **what)
            check_folder(world.pulled(f"hf:org/n{k}", "--anyway", "--connections", "3")["path"], files)
        for k, (what, word) in enumerate([({"shift": 5}, "expected bytes"), ({"encode": True}, "compresses")]):
            hub.add(f"org/m{k}", files)
            hub.rule(f"/org/m{k}/", server="files", **what)
            world.refused(word, args=("pull", f"hf:org/m{k}", "--quiet", "--anyway", "--attempts", "2", "--connections", "3"))
        # the list says another size than the file has
        hub.add("org/size", files)
        hub.tree_edit = lambda t: [{**f, "size": f["size"] + 7, "lfs": {**f["lfs"], "size": f["size"] + 7}} if "lfs" in f else f for f in t]
        world.refused("model.safetensors", "expected", args=("pull", "hf:org/size", "--quiet", "--anyway", "--attempts", "2"))
        # an answer without end to a question about names
        hub.tree_edit = None
        hub.rule("/tree/", surplus=40 << 20)
        world.refused("larger than", args=("pull", "hf:org/size", "--quiet", "--anyway"))


def test_hostile_names():
    sha = "0" * 64
    with Hub() as hub, World(hub) as world:
        files = repo_of(3000)
        hub.add("org/name", files)
        names = ["../evil.safetensors", "/etc/evil", "a/../../b", "a//b", "./x", "a\\b", "c:evil", "nul\0byte", "tab\tname", "", "x" * 5000, "esc\x1b[2J"]
        hub.tree_edit = lambda t: t + [{"type": "file", "path": n, "size": 5000, "oid": "0" * 40, "lfs": {"oid": sha, "size": 5000}} for n in names]
        before = set(os.listdir(world.home))
        r = world.pulled()
        check_folder(r["path"], files)
        assert set(os.listdir(world.home)) - before <= {".local"}, os.listdir(world.home)
        for entry, word in [({"path": "Config.json", "size": 1, "oid": "0" * 40}, "can't tell apart"), ({"path": "x", "size": -1, "oid": "0" * 40}, "size"),
                            ({"path": "x", "size": 1, "oid": "zz"}, "checksum"), ({"path": 5, "size": 1, "oid": "0" * 40}, "without a name"),
                            ({"path": "x", "size": 1e30, "oid": "0" * 40}, "size"), ({"path": "x", "size": 1}, "checksum")]:
            hub.tree_edit = lambda t, x=entry: t + [{"type": "file", **x}]
            world.refused(word)
        # a folder and a file of one name
        hub.add("org/both", {**files, "model.safetensors.index.json": b'{"weight_map":{"a":"model.safetensors/x.safetensors","b":"model.safetensors"}}',
                             "model.safetensors/x.safetensors": noise(3000)})
        hub.tree_edit = None
        code, out, err = world.pull("hf:org/both")
        assert code == 1 and err.startswith("foresay: ") and err.count("\n") == 1, err
        # links planted where an earlier pull was killed
        hub.add("org/link", files)
        partial = world.models + "/org/.partial-link"
        os.makedirs(partial + "/.journals")
        victim = world.home + "/victim"
        with open(victim, "w") as f:
            f.write("precious")
        os.symlink(victim, partial + "/model.safetensors")
        os.symlink("/etc", partial + "/mtp")
        r = world.pulled("hf:org/link", "--anyway")
        check_folder(r["path"], files)
        assert open(victim).read() == "precious"
        for name in ["hf:", "hf:name", "hf:org/", "hf:../name", "hf:org/../x", "hf:org/name@../../x", "hf:org/name:a/b", "hf:org/na me", "hf:.org/name", "name"]:
            code, out, err = world.run("pull", name)
            assert code == 2 and "hf:ORG/NAME" in err, (name, code, err)


def test_answers_that_are_no_list():
    with Hub() as hub, World(hub) as world:
        hub.add("org/name", repo_of(3000))
        for edit in [lambda t: {"error": "x"}, lambda t: [1, 2], lambda t: [{"type": "file"}], lambda t: [[[[]]]] * 3]:
            hub.tree_edit = edit
            code, out, err = world.pull()
            assert code == 1 and err.startswith("foresay: org/name") and err.count("\n") == 1, err
        hub.tree_edit = None
        hub.page = 1  # one file a page
        check_folder(world.pulled()["path"], repo_of(3000))
        hub.page = 1000
        for path, body in [("/revision/", 204), ("/tree/", 204)]:
            hub.add("org/x", repo_of(3000))
            hub.rule(path, status=body, times=1)
            world.refused("org/x", args=("pull", "hf:org/x", "--quiet"))


def test_redirects():
    files = repo_of(300_000)
    with Hub() as hub, World(hub) as world:
        hub.add("org/name", files)
        for where, word in [("/org/name/resolve/", "from one address to the next"), ("file:///etc/passwd", "unusable address"),
                            ("http://user:pw@127.0.0.1/", "unusable address"), ("ftp://127.0.0.1/x", "unusable address"), ("http://", "unusable address")]:
            hub.clear()
            hub.rule("/resolve/", location=where if where[0] != "/" else hub.url + where)
            world.refused(word, args=("pull", "hf:org/name", "--quiet", "--attempts", "2"))
        hub.clear()
        hub.rule("/api/", status=302, times=1)  # without a Location
        world.refused("without saying where")


def test_token_goes_to_the_hub_only():
    files = repo_of(300_000)
    with Hub() as hub, World(hub) as world:
        hub.add("org/name", files)
        hub.token = "hf_secret"
        os.makedirs(world.home + "/.cache/huggingface")
        os.makedirs(world.home + "/other")
        places = [({"HF_TOKEN": "hf_secret"}, None), ({"HUGGING_FACE_HUB_TOKEN": "hf_secret"}, None), ({"HF_TOKEN_PATH": world.home + "/t"}, world.home + "/t"),
                  ({"HF_HOME": world.home + "/other"}, world.home + "/other/token"), ({}, world.home + "/.cache/huggingface/token")]
        for env, path in places:
            world.refused("no such public repository", "HF_TOKEN")
            if path:
                with open(path, "w") as f:
                    f.write("  hf_secret\n")
            hub.log.clear()
            code, out, err = world.run("pull", "hf:org/name", "--json", env=env)
            assert code == 0, err
            r = json.loads(out)
            check_folder(r["path"], files)
            assert all(x["token"] == "Bearer hf_secret" for x in hub.log if x["server"] == "hub")
            assert [x for x in hub.log if x["server"] == "files"] and not any(x["token"] for x in hub.log if x["server"] == "files"), "sent elsewhere"
            assert "hf_secret" not in out + err
            for _, data in read_folder(world.models, without=()).items():
                assert b"hf_secret" not in data
            shutil.rmtree(world.models)
            if path:
                os.unlink(path)
        world.refused("doesn't accept", "HF_TOKEN", env={"HF_TOKEN": "hf_wrong"})
        world.refused("HF_TOKEN", "one word", env={"HF_TOKEN": "hf_secret\r\nX-Evil: 1"}, code=2)
        with open(world.home + "/t", "w") as f:
            f.write("token: hf_secret\n")
        world.refused("HF_TOKEN_PATH", "one word", env={"HF_TOKEN_PATH": world.home + "/t"}, code=2)
        # an address elsewhere gets none, though it is inspected with the same settings
        hub.log.clear()
        world.run("inspect", hub.files_url + "/org/name/x.gguf", env={"HF_TOKEN": "hf_secret"})
        assert hub.log and not any(x["token"] for x in hub.log)


def test_missing_and_gated_repositories():
    with Hub() as hub, World(hub) as world:
        hub.add("org/gated", repo_of(3000))
        hub.gated.add("org/gated")
        world.refused("no such public repository", "HF_TOKEN", args=("pull", "hf:org/none", "--quiet"))
        world.refused("no such repository", args=("pull", "hf:org/none", "--quiet"), env={"HF_TOKEN": "hf_secret"})
        world.refused("gated", "/org/gated", "accept", args=("pull", "hf:org/gated", "--quiet"))
        world.refused("gated", "may not read it yet", args=("pull", "hf:org/gated", "--quiet"), env={"HF_TOKEN": "hf_secret"})
        world.refused("HF_HUB_OFFLINE", env={"HF_HUB_OFFLINE": "1"})
        world.refused("127.0.0.1:9", args=("pull", "hf:org/name", "--quiet", "--attempts", "2"), env={"HF_ENDPOINT": "http://127.0.0.1:9"})


def test_disk_space_is_checked_first():
    with Hub() as hub, World(hub) as world:
        hub.add("org/huge", repo_of(3000))
        for size, words in [(3 << 40, ["needs 3.0 TiB more", "free"]), (1 << 60, ["more", "free"])]:
            hub.tree_edit = lambda t, n=size: [{**f, "size": n, "lfs": {**f["lfs"], "size": n}} if "lfs" in f else f for f in t]
            hub.log.clear()
            world.refused(*words, args=("pull", "hf:org/huge", "--quiet"))
            assert not any("/resolve/" in x["path"] for x in hub.log)
            assert not world.list(), "something is left"


# ---- what lies there after an interruption ----

def interrupted_pull(hub, world, name, n_bytes=700_000):
    """The partial folder of a pull that was killed after some bytes."""
    hub.rule("", server="files", pace=(32768, 0.004))
    p = world.start("pull", "hf:org/" + name, "--quiet", "--anyway")
    assert kill_after(hub, p, n_bytes), "it was done before the kill"
    hub.rules.clear()
    return world.models + "/org/.partial-" + name


def test_damaged_partial_state_is_found():
    """After a kill, what lies on disk is damaged at random, as by a power cut: the result is right all the same."""
    rng = random.Random(5)
    files = sharded_repo()
    with Hub() as hub, World(hub) as world:
        for k in range(25):
            hub.clear()
            hub.add(f"org/n{k}", files)
            partial = interrupted_pull(hub, world, f"n{k}", rng.randrange(300_000, 2_000_000))
            paths = [p for p in glob.glob(partial + "/**/*", recursive=True) + glob.glob(partial + "/.journals/*") if os.path.isfile(p)]
            paths.append(partial + "/.foresay.json")
            for path in rng.sample(paths, min(4, len(paths))):
                size = os.path.getsize(path)
                with open(path, "r+b") as f:
                    kind = rng.randrange(4)
                    if kind == 0:
                        f.truncate(rng.randrange(size + 1))
                    elif kind == 1 and size:
                        f.seek(rng.randrange(size))
                        f.write(rng.randbytes(rng.randrange(1, 3000)))
                    elif kind == 2:
                        f.truncate(size + 5000)
                    else:
                        os.unlink(path)
            check_folder(world.pulled(f"hf:org/n{k}", "--anyway")["path"], files)
            shutil.rmtree(world.models + f"/org/n{k}")
    return "25 damaged downloads"


def test_branch_moves_during_a_download():
    old = sharded_repo(7)
    new = {**sharded_repo(50), "generation_config.json": b"{}", "model-00001-of-00002.safetensors": old["model-00001-of-00002.safetensors"]}
    with Hub() as hub, World(hub) as world:
        hub.add("org/name", {**old, "merges.txt": b"gone later"})
        interrupted_pull(hub, world, "name")
        hub.clear()
        hub.add("org/name", new)
        check_folder(world.pulled()["path"], new)


def test_interrupted_by_ctrl_c():
    files = sharded_repo()
    with Hub() as hub, World(hub) as world:
        hub.add("org/name", files)
        hub.rule("", server="files", pace=(8192, 0.02))
        p = world.start("pull", "hf:org/name", "--quiet")
        time.sleep(0.5)
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=5)
        assert p.returncode == 130 and out == b"" and b"pull again" in err, (p.returncode, err)
        partial = next(m for m in world.list() if m["name"] == "org/name")
        assert "isn't finished" in partial["trouble"] and partial["pull"] == "org/name", partial
        world.refused("isn't finished", "foresay pull hf:org/name", args=("run", "org/name", "-p", "x"))
        hub.rules.clear()
        r = world.pulled()
        check_folder(r["path"], files)
        assert r["fetched_bytes"] < r["bytes"], r


def test_two_pulls_at_once():
    files = sharded_repo()
    with Hub() as hub, World(hub) as world:
        hub.add("org/name", files)
        hub.rule("", server="files", pace=(16384, 0.02))
        p = world.start("pull", "hf:org/name", "--quiet")
        time.sleep(0.5)
        world.refused("another foresay is pulling it")
        code, _, err = world.run("rm", "org/name", "--yes")
        assert code == 1 and "being pulled" in err, err
        assert p.wait(60) == 0, p.communicate()
        p.communicate()
        check_folder(world.models + "/org/name", files)


def on_terminal(world, *args, answer=b""):
    """Runs it on a terminal; its exit status, and what it showed but on standard output."""
    master, slave = pty.openpty()
    p = subprocess.Popen([FORESAY, *args], env=world.env, stdin=slave, stdout=subprocess.DEVNULL, stderr=slave, cwd="/")
    os.close(slave)
    os.write(master, answer)
    text = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:
            break
        if not piece:
            break
        text += piece
    os.close(master)
    return p.wait(30), text.decode()


def test_progress_is_shown():
    files = repo_of(600_000)
    with Hub() as hub, World(hub) as world:
        hub.add("org/name", files)
        hub.rule("", server="files", pace=(16384, 0.1))
        code, text = on_terminal(world, "pull", "hf:org/name")
        assert code == 0, text
        assert re.search(r"\d+ %  [\d.]+ KiB of 5\d\d\.\d KiB  [\d.]+ KiB/s  \d+ s left", text), text
        assert "all checksums right" in text, text


# ---- models elsewhere ----

def inspected(world, what):
    code, out, err = world.run("inspect", what, "--json")
    assert out, err
    report = json.loads(out)
    assert code == ("refusal" in report), (what, code, err)
    if code:
        report["refusal"] = report["refusal"].split(": ", 1)[1]  # after the file's place
    return report


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
            gguf = "".join("/" + f for f in files if f.endswith(".gguf"))
            local, remote = inspected(world, folder + gguf), inspected(world, "hf:org/name")
            assert {k: v for k, v in local.items() if k not in differ} == {k: v for k, v in remote.items() if k not in differ}, folder
            assert remote["path"].startswith("org/name") and remote["remote"]["fetched_bytes"] == hub.sent(), (remote["path"], hub.sent())
            for name, data in files.items():
                if name.endswith(".safetensors"):
                    header = 8 + struct.unpack("<Q", data[:8])[0]
                    sent = sum(x["sent"] for x in hub.log if x["server"] == "files" and x["path"].split("?")[0].endswith("/" + name))
                    assert sent == header, (name, sent, header)
            assert not any("/tokenizer.json" in x["path"] for x in hub.log)
            assert remote["remote"]["tokenizer_bytes"] == len(files.get("tokenizer.json", b"")), remote["remote"]
            assert not glob.glob(world.home + "/foresay-*"), "the temporary folder is left"
            n += 1
    return f"{n} packages"


def gguf_with_a_long_header(data, n):
    """The same model with n (a multiple of 32) bytes more of metadata."""
    magic, version, n_tensors, n_kv = struct.unpack("<4sIQQ", data[:24])
    key = b"test.pad"
    pad = struct.pack("<Q", len(key)) + key + struct.pack("<IIQ", 9, 0, n - 32) + bytes(n - 32)
    return struct.pack("<4sIQQ", magic, version, n_tensors, n_kv + 1) + pad + data[24:]


def test_inspect_of_addresses():
    """A GGUF file or a folder on any server; never more than headers, also where ranges are ignored."""
    gguf = gguf_with_a_long_header(read_folder(GOLDEN + "/llama-gguf-q8_0")["model.gguf"], 3 << 20)
    with Hub() as hub, World(hub) as world:
        commit = hub.add("org/name", {**read_folder(GOLDEN + "/llama-mlx-4bit-g32"), "m.gguf": gguf, "big/m.gguf": gguf + bytes(20 << 20)})
        place = f"{hub.files_url}/org/name/{commit}"
        r = inspected(world, place + "/m.gguf")
        assert "refusal" not in r and r["path"] == place + "/m.gguf" and r["kind"] == "gguf", r
        assert len(hub.log) > 3 and 3 << 20 < r["remote"]["fetched_bytes"] == hub.sent() <= len(gguf), r["remote"]
        hub.log.clear()
        r = inspected(world, place + "/big/m.gguf")
        assert r["remote"]["bytes"] == len(gguf) + (20 << 20) and hub.sent() < 8 << 20, (r["remote"], hub.sent())
        hub.log.clear()
        r = inspected(world, place)
        assert "refusal" not in r and r["path"] == place and r["kind"] == "mlx", r
        code, out, _ = world.run("inspect", "hf:org/name")
        assert code == 0 and re.search(r"^  fetched +[\d.]+ KiB of [\d.]+ KiB in \d+ requests: headers and configurations", out, re.M), out
        world.refused("config.json", args=("inspect", place + "/nothing"))
        world.refused("no such file", args=("inspect", place + "/x.gguf"))
        world.refused("--quant", args=("inspect", place, "--quant", "Q8_0"), code=2)
        world.refused("--quant", args=("inspect", GOLDEN + "/qwen2", "--quant", "Q8_0"), code=2)
        world.refused("no such public repository", args=("inspect", "hf:org/none"))
        world.refused("no revision", "v9", args=("inspect", "hf:org/name@v9"))
        hub.log.clear()
        hub.rule("", server="files", whole=True)
        world.refused("ranges", "unsupported", args=("inspect", place + "/big/m.gguf"))
        assert hub.sent() < 4 << 20, "the whole file came"
        assert not glob.glob(world.home + "/foresay-*"), "a temporary folder is left"


# ---- models on this machine ----

def write(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data)


def into_hf_cache(world, repo, files, commit="c" * 40):
    """As the hub's own client keeps it: links to blobs that are named after their checksums."""
    top = world.home + "/.cache/huggingface/hub/models--" + repo.replace("/", "--")
    write(top + "/refs/main", commit.encode())
    for name, data in files.items():
        blob = hashlib.sha256(data).hexdigest()
        write(f"{top}/blobs/{blob}", data)
        link = f"{top}/snapshots/{commit}/{name}"
        os.makedirs(os.path.dirname(link), exist_ok=True)
        os.symlink(os.path.relpath(f"{top}/blobs/{blob}", os.path.dirname(link)), link)
    return top


def into_ollama(world, name, data):
    digest = hashlib.sha256(data).hexdigest()
    root = world.home + "/.ollama/models"
    write(f"{root}/blobs/sha256-{digest}", data)
    layers = [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:" + digest, "size": len(data)}]
    write(f"{root}/manifests/registry.ollama.ai/library/{name}/latest", json.dumps({"layers": layers}).encode())


def other_tools(world):
    """A model in each tool's folder; some are the same one."""
    smollm, gguf = read_folder(GOLDEN + "/smollm"), read_folder(GOLDEN + "/llama-gguf-q8_0")["model.gguf"]
    into_hf_cache(world, "org/smollm", smollm)
    for name, data in smollm.items():
        write(f"{world.home}/mlx-models/copy/{name}", data)
        write(f"{world.home}/extra/linked/{name}", data)
    os.unlink(world.home + "/extra/linked/model.safetensors")
    os.link(world.home + "/mlx-models/copy/model.safetensors", world.home + "/extra/linked/model.safetensors")
    write(world.home + "/.lmstudio/models/maker/tiny/tiny-Q8_0.gguf", gguf)
    into_ollama(world, "tiny", gguf)
    write(world.home + "/extra/cut/config.json", b'{"model_type":"llama"}')
    write(world.home + "/extra/cut/model.safetensors.index.json", b'{"weight_map":{"a":"a.safetensors"}}')
    write(world.home + "/extra/changed/tiny-Q8_0.gguf", gguf[:-1] + bytes([gguf[-1] ^ 1]))
    world.env["FORESAY_MODELS"] = world.home + "/extra"


def test_models_of_other_tools_are_used_in_place():
    with Hub() as hub, World(hub) as world:
        assert world.list() == []
        other_tools(world)
        before = read_folder(world.home)
        models = {m["name"]: m for m in world.list()}
        same = {n: (m["same_by"], next(o["name"] for o in models.values() if o["path"] == m["same_as"])) for n, m in models.items() if m["same_as"]}
        assert {n: m["source"] for n, m in models.items()} == {
            "org/smollm": "Hugging Face cache", "maker/tiny:Q8_0": "LM Studio", "tiny:latest": "Ollama", "copy": "MLX folder",
            "linked": "FORESAY_MODELS", "cut": "FORESAY_MODELS", "changed:Q8_0": "FORESAY_MODELS"}, models
        assert same == {"copy": ("ends", "org/smollm"), "linked": ("ends", "org/smollm"), "tiny:latest": ("ends", "maker/tiny:Q8_0")}, same
        assert "a.safetensors" in models["cut"]["trouble"], models["cut"]
        assert models["tiny:latest"]["format"] == "GGUF Q8_0" and models["tiny:latest"]["architecture"] == "llama", models
        for name in ["org/smollm", "smollm", "models--org--smollm", "maker/tiny:Q8_0", "tiny:latest", "COPY", "linked"]:
            code, _, err = world.run("inspect", name)
            assert code == 0, (name, err)
        world.refused("a.safetensors", args=("inspect", "cut"))
        world.refused("neither a path nor a model", "foresay pull hf:org/none", args=("run", "org/none", "-p", "x"))
        code, out, _ = world.run("list", "--paths")
        assert code == 0 and f"  {world.home}/mlx-models/copy\n" in out and "7 models" in out and "of it copies" in out, out
        r = world.pulled("hf:org/smollm") if hub.add("org/smollm", read_folder(GOLDEN + "/smollm")) else None
        assert r["was_here"] and "/.cache/huggingface/" in r["path"] and r["fetched_bytes"] == 0, r
        assert read_folder(world.home) == before, "another tool's folder was changed"


def test_rm_deletes_only_what_was_pulled():
    with Hub() as hub, World(hub) as world:
        other_tools(world)
        hub.add("org/name", repo_of(300_000))
        hub.add("org/half", sharded_repo())
        folder = world.pulled()["path"]
        partial = interrupted_pull(hub, world, "half")
        write(world.models + "/own/byhand/config.json", b"{}")
        write(world.models + "/own/byhand/model.safetensors", safetensors(b"x" * 3000))
        before = read_folder(world.home)
        for name in ["org/smollm", "maker/tiny:Q8_0", "tiny:latest", "copy", "cut"]:
            world.refused("another tool's folder", args=("rm", name, "--yes"), code=2)
        world.refused("wasn't pulled by foresay", args=("rm", "byhand", "--yes"), code=2)
        world.refused("no model of that name", args=("rm", "org/none", "--yes"))
        world.refused("--yes", args=("rm", "org/name"), code=2)
        code, text = on_terminal(world, "rm", "org/name", answer=b"n\n")
        assert code == 1 and "nothing was deleted" in text and re.search(r"Delete org/name \(\S+ KiB, ", text), text
        assert read_folder(world.home) == before, "something was deleted"
        code, text = on_terminal(world, "rm", "org/name", answer=b"y\n")
        assert code == 0 and not os.path.exists(folder), text
        code, _, err = world.run("rm", "org/half", "--yes")
        assert code == 0 and not os.path.exists(partial), err
        gone = (".local/share/foresay/models/org/",)
        assert read_folder(world.home) == {k: v for k, v in before.items() if not k.startswith(gone)}


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
