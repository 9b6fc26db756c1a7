#!/usr/bin/env python3
"""Drives the real binary as a user does. FORESAY names it (default ./foresay). Standard library only.

  tests/e2e/test_cli.py [TEXT]     runs the tests whose name holds TEXT
"""
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FORESAY = os.path.abspath(os.environ.get("FORESAY", ROOT + "/foresay"))
DEMO = ROOT + "/models/demo"
os.environ.setdefault("FORESAY_THREADS", "1")  # tests run side by side; the model is tiny
LONG = ["run", "--raw", "--temperature", "0", "-p", "# "]  # the demo model goes on until the context is full


def foresay(*args, text=None, timeout=120, **options):
    stdin = {"input": text.encode()} if text is not None else {"stdin": subprocess.DEVNULL}
    r = subprocess.run([FORESAY, *args], capture_output=True, timeout=timeout, **stdin, **options)
    return r.returncode, r.stdout.decode(), r.stderr.decode()


def expect_refusal(status, args, *words):
    """The exit status, nothing on standard output, and one short sentence that has the words."""
    code, out, err = foresay(*args)
    lines = [line for line in err.splitlines() if not line.startswith("usage:")]
    assert code == status, f"{args}: exit {code}, {err!r}"
    assert out == "", f"{args}: standard output {out!r}"
    assert lines and lines[0].startswith("foresay: ") and len(lines[0]) < 400, f"{args}: {err!r}"
    for word in words:
        assert word in lines[0], f"{args}: no {word!r} in {lines[0]!r}"


def answer(*args, **options):
    code, out, err = foresay("run", "--json", *args, **options)
    assert code == 0, f"exit {code}: {err}"
    return json.loads(out)


# ---- the command line ----

def test_version():
    code, out, err = foresay("--version")
    assert code == 0 and out.startswith("foresay ") and out.count("\n") == 1 and err == "", (code, out, err)


def test_help_lists_the_verbs():
    code, out, _ = foresay("--help")
    assert code == 0
    for verb in ("run", "try", "inspect", "probe"):
        assert f"  {verb} " in out, verb


def test_every_verb_has_help():
    for verb in ("run", "try", "inspect"):
        code, out, err = foresay(verb, "--help")
        assert code == 0 and out.startswith(f"usage: foresay {verb}") and err == "", (verb, code, out[:80], err)


def test_no_verb_is_an_error():
    code, out, err = foresay()
    assert code == 2 and out == "" and "usage:" in err


def test_unknown_verb():
    expect_refusal(2, ["frobnicate"], "frobnicate")
    code, _, err = foresay("probe", "frobnicate")
    assert code == 2 and "frobnicate" in err


def test_unusable_options():
    expect_refusal(2, ["run", "--no-such-option"], "--no-such-option")
    expect_refusal(2, ["run", "-p", "a", "--max-tokens", "many"], "--max-tokens", "many")
    expect_refusal(2, ["run", "-p", "a", "--temperature"], "--temperature")
    expect_refusal(2, ["run", "-p", "a", "--temperature", "nan"], "--temperature")
    expect_refusal(2, ["run", "-p", "a", "--depth", "1000"], "depth")


# ---- answers ----

def test_one_answer():
    code, out, _ = foresay("run", "-p", "Who are you?", "--seed", "1", "--max-tokens", "30")
    assert code == 0 and out.endswith("\n") and len(out) > 10, (code, out)


def test_prompt_from_standard_input_and_file():
    want = answer("-p", "Hello", "--seed", "1", "--max-tokens", "20")["text"]
    assert answer("--seed", "1", "--max-tokens", "20", text="Hello")["text"] == want
    with tempfile.NamedTemporaryFile("w") as f:
        f.write("Hello")
        f.flush()
        assert answer("-f", f.name, "--seed", "1", "--max-tokens", "20")["text"] == want


def test_json_says_what_happened():
    a = answer("-p", "Hello", "--max-tokens", "8", "--seed", "5")
    for key in ("model", "version", "text", "ids", "stop", "seed", "rounds", "proposed", "accepted"):
        assert key in a, f"{key} is missing: {sorted(a)}"
    assert a["seed"] == 5 and 0 < len(a["ids"]) <= 8
    assert all(n <= m for n, m in zip(a["accepted"], a["proposed"]))


def test_greedy_text_does_not_depend_on_depth():
    texts = {answer("-p", "Write a Python function", "--temperature", "0", "--max-tokens", "60", "--depth", d)["text"]
             for d in ("0", "1", "3", "8", "auto")}
    assert len(texts) == 1, texts


def test_seeded_text_does_not_depend_on_depth():
    for seed in ("1", "2", "3"):
        texts = {answer("-p", "Quote a verse.", "--temperature", "0.9", "--seed", seed, "--max-tokens", "40", "--depth", d)["text"]
                 for d in ("0", "2", "5", "auto")}
        assert len(texts) == 1, texts


def test_a_drawn_seed_is_returned_and_repeats_the_text():
    first = answer("-p", "Hello", "--temperature", "1", "--max-tokens", "30")
    again = answer("-p", "Hello", "--temperature", "1", "--max-tokens", "30", "--seed", str(first["seed"]))
    assert again["ids"] == first["ids"]


def test_an_empty_prompt_is_no_crash():
    code, _, _ = foresay("run", "-p", "", "--max-tokens", "3")
    assert code in (0, 1, 2)


def test_text_is_valid_utf8_in_pieces():
    code, out, _ = foresay("run", "-p", "你好", "--max-tokens", "30", "--seed", "3", "--quiet")
    assert code == 0 and out.strip()


# ---- models ----

def test_bad_paths_give_one_sentence():
    expect_refusal(1, ["run", "/no/such/model", "-p", "a"], "/no/such/model")
    expect_refusal(1, ["inspect", "/no/such/model"], "/no/such/model")
    expect_refusal(1, ["run", "-f", "/no/such/prompt", "--quiet", "--model", "/no/such/model"], "/no/such/")
    expect_refusal(1, ["probe", "tokenize", "/no/such/model"], "/no/such/model")
    with tempfile.TemporaryDirectory() as empty:
        expect_refusal(1, ["run", empty, "-p", "a"], empty)
        expect_refusal(1, ["inspect", empty], empty)
    expect_refusal(1, ["run", __file__, "-p", "a"])


def test_inspect():
    code, out, _ = foresay("inspect", DEMO)
    assert code == 0 and "Qwen3.5" in out and "MTP" in out
    code, out, _ = foresay("inspect", DEMO, "--json")
    j = json.loads(out)
    assert code == 0 and j["tensors"] > 0 and j["unused"] == [], j


def test_inspect_reports_a_missing_head():
    code, out, _ = foresay("inspect", ROOT + "/tests/golden/models/qwen35-dense-mlx-4bit-mtp", "--json")
    assert code == 0 and json.loads(out)["mtp"]["found"]
    code, out, _ = foresay("inspect", ROOT + "/tests/golden/models/smollm", "--json")
    assert code == 0 and not json.loads(out)["mtp"]["found"]


def test_another_folder_finds_the_demo_model():
    with tempfile.TemporaryDirectory() as elsewhere:
        code, out, err = foresay("run", "-p", "Hello", "--max-tokens", "5", cwd=elsewhere)
    assert code == 0 and out.strip(), err


# ---- interruption ----

def test_interrupt_ends_an_answer_cleanly():
    p = subprocess.Popen([FORESAY, *LONG], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdout.read(64)
    p.send_signal(signal.SIGINT)
    began = time.monotonic()
    try:
        out, err = p.communicate(timeout=60)
    finally:
        p.kill()
    assert p.returncode == 130, f"status {p.returncode}: a script must be able to tell an interrupted answer from a whole one"
    assert time.monotonic() - began < 10
    assert out.decode().endswith("\n") and "stopped: cancelled" in err.decode(), err.decode()


def test_a_closed_pipe_ends_the_answer():
    p = subprocess.Popen([FORESAY, *LONG], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdout.read(16)
    p.stdout.close()
    try:
        p.communicate(timeout=60)
    finally:
        p.kill()
    assert p.returncode in (0, 1, -signal.SIGPIPE), p.returncode


# ---- chat on a terminal ----

class Terminal:
    def __init__(self, *args):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "dumb"
            os.execv(FORESAY, [FORESAY, *args])
        self.text = ""

    def wait_for(self, sentence, timeout=60):
        end = time.monotonic() + timeout
        while sentence not in self.text:
            ready, _, _ = select.select([self.fd], [], [], max(0, end - time.monotonic()))
            assert ready, f"no {sentence!r} within {timeout} s in {self.text[-400:]!r}"
            try:
                self.text += os.read(self.fd, 65536).decode("utf-8", "replace")
            except OSError:
                assert False, f"ended without {sentence!r}: {self.text[-400:]!r}"
        before, self.text = self.text.split(sentence, 1)
        return before

    def send(self, text):
        os.write(self.fd, text.encode())

    def end(self, timeout=30):
        stop = time.monotonic() + timeout
        try:
            while time.monotonic() < stop:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    return os.waitstatus_to_exitcode(status)
                if select.select([self.fd], [], [], 0.1)[0]:
                    try:
                        os.read(self.fd, 65536)
                    except OSError:
                        time.sleep(0.05)
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            raise AssertionError("still running")
        finally:
            os.close(self.fd)


def test_chat():
    t = Terminal("run", "--seed", "1", "--max-tokens", "40")
    t.wait_for("> ")
    t.send("Hello\n")
    t.wait_for("stopped:")
    t.wait_for("> ")
    t.send("/stats\n")
    t.wait_for("tok")
    t.wait_for("> ")
    time.sleep(0.5)  # until the line editor has the terminal
    t.send("\x04")
    assert t.end() == 0


def test_chat_goes_on_after_an_interrupted_answer():
    t = Terminal("run", "--temperature", "5", "--top-k", "0", "--top-p", "1", "--stop", "no such text")
    t.wait_for("> ")
    said = ""
    for _ in range(20):  # a random answer may end by itself before the key arrives
        t.send("Write a Python function\n")
        t.wait_for("forecast")
        t.send("\x03")
        t.wait_for("stopped: ")
        said = t.wait_for("> ")
        if "cancelled" in said:
            break
    assert "cancelled" in said, said
    t.send("/bye\n")
    assert t.end() == 0


def test_chat_survives_an_interrupt_at_the_prompt():
    t = Terminal("run", "--max-tokens", "5")
    t.wait_for("> ")
    t.send("\x03")
    time.sleep(0.3)
    t.send("\n/stats\n")
    t.wait_for("no answer yet")
    t.send("/bye\n")
    assert t.end() == 0


def test_output_that_cannot_be_written_is_an_error():
    for args in (["run", "-p", "hi", "--max-tokens", "2"], ["run", "-p", "hi", "--max-tokens", "2", "--json"], ["inspect", DEMO], ["--help"]):
        with open("/dev/full", "w") as full:
            p = subprocess.run([FORESAY, *args], stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, timeout=60)
        assert p.returncode == 1 and "cannot write" in p.stderr.decode(), (args, p.returncode, p.stderr)


def test_a_prompt_comes_through_a_pipe():
    want = answer("-p", "Hello", "--seed", "1", "--max-tokens", "8")["ids"]
    with tempfile.TemporaryDirectory() as d:
        os.mkfifo(d + "/fifo")
        p = subprocess.Popen([FORESAY, "run", "--json", "-f", d + "/fifo", "--seed", "1", "--max-tokens", "8"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        with open(d + "/fifo", "w") as f:
            f.write("Hello")
        assert json.loads(p.communicate(timeout=60)[0])["ids"] == want and p.returncode == 0
    assert answer("-f", "-", "--seed", "1", "--max-tokens", "8", text="Hello")["ids"] == want


ESCAPES = "\033]0;title\a\033[31m\u009b7m\u202e\x7f"


def assert_is_text(what, where):
    assert not [c for c in what if (ord(c) < 32 and c not in "\n\r") or 0x7f <= ord(c) < 0xa0 or c == "\u202e"], f"{where}: {what!r}"


def test_names_and_files_cannot_steer_the_terminal():
    with tempfile.TemporaryDirectory() as d:
        named = f"{d}/model{ESCAPES}"
        shutil.copytree(DEMO, named)
        for args in (["run", named, "-p", "hi", "--max-tokens", "2", "--verbose"], ["inspect", named], ["list", "--paths"], ["run", named + "x", "-p", "hi"],
                     ["try", named, "--max-tokens", "2"], ["run", "-p", "hi", "--de" + ESCAPES, "1"], ["run", "--depth", ESCAPES, "-p", "hi"], [ESCAPES]):
            code, out, err = foresay(*args, env={**os.environ, "FORESAY_MODELS": d})
            assert_is_text(out + err, args)
        config = json.load(open(named + "/config.json"))
        config["model_type"] = config["architectures"][0] = "qwen" + ESCAPES
        config["text_config"] = ESCAPES
        json.dump(config, open(named + "/config.json", "w"))
        with open(named + "/chat_template.jinja", "w") as f:
            f.write("{{ raise_exception('" + ESCAPES + "') }}")
        for args in (["run", named, "-p", "hi"], ["inspect", named], ["list"], ["verify", named, "--quick"]):
            code, out, err = foresay(*args, env={**os.environ, "FORESAY_MODELS": d})
            assert_is_text(out + err, args)


def test_settings_of_a_chat():
    t = Terminal("run", "--max-tokens", "5")
    t.wait_for("> ")
    for wrong in ("top-k 99999999999", "max_tokens 1e300", "seed -1", "seed 1.5", "seed 1e30", "temperature nan", "depth 9", "depth", "acceptance maybe", "stop "):
        t.send(f"/set {wrong}\n")
        t.wait_for("expected")
    for wrong in ("threads 3", "model x"):
        t.send(f"/set {wrong}\n")
        t.wait_for("can't change")
    t.send("/set bogus 3\n")
    t.wait_for('no setting "bogus"')
    t.send("/bogus\n")
    t.wait_for('no command "/bogus"')
    for right in ("max_tokens 3", "max-tokens 4", "depth 2", "temperature 0", "stop a b"):
        t.send(f"/set {right}\n")
        t.wait_for("is now " + right.split(" ", 1)[1])
    t.send("Hello\n")
    t.wait_for("depth 2")
    t.wait_for("> ")
    t.send("/bye\n")
    assert t.end() == 0


def test_a_fifo_is_refused():
    with tempfile.TemporaryDirectory() as d:
        os.mkfifo(d + "/fifo")
        for args in (["run", d + "/fifo", "-p", "hi"], ["inspect", d + "/fifo"]):
            p = subprocess.run([FORESAY, *args], stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
            assert p.returncode == 1 and "regular file" in p.stderr.decode(), (args, p.stderr)


def main():
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    passed = failed = 0
    for name, test in [item for item in globals().items() if item[0].startswith("test_") and wanted in item[0]]:
        began = time.monotonic()
        try:
            test()
            passed += 1
            print(f"ok   {name} {time.monotonic() - began:.1f} s", flush=True)
        except Exception:
            failed += 1
            print(f"FAIL {name}\n{traceback.format_exc()}", flush=True)
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
