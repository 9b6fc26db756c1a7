#!/usr/bin/env python3
"""Recommended settings of a package: used, shown with their source, and what can't be used is said. FORESAY names the
binary."""
import json
import os
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FORESAY = os.path.abspath(os.environ.get("FORESAY", ROOT + "/foresay"))
FILE = "generation_config.json"


def foresay(*args):
    return subprocess.run([FORESAY, *args], capture_output=True, check=True, timeout=60)


def with_settings(folder, settings):
    with open(f"{folder}/{FILE}", "w") as f:
        json.dump(settings, f)


def sampling(folder):
    return {k: (v["value"], v["source"]) for k, v in json.loads(foresay("inspect", folder, "--json").stdout)["sampling"].items()}


def test_values_and_sources(folder):
    with_settings(folder, {"do_sample": True, "temperature": 0.6, "top_k": 20, "min_p": None})
    got = sampling(folder)
    assert got["temperature"] == (0.6, FILE) and got["top_k"] == (20, FILE), got
    assert got["top_p"] == (1, "default") and got["min_p"] == (0, "default"), got


def test_greedy_unless_sampling_is_asked_for(folder):
    with_settings(folder, {"do_sample": False, "temperature": 0.6})
    assert sampling(folder)["temperature"] == (0, FILE)
    with_settings(folder, {"top_k": 20})
    assert sampling(folder)["temperature"] == (0, "default")
    os.remove(f"{folder}/{FILE}")
    assert sampling(folder)["temperature"] == (0, "default")


def test_a_flag_is_a_source(folder):
    with_settings(folder, {"do_sample": True, "temperature": 0.6, "top_p": 0.9})
    got = json.loads(foresay("run", folder, "-p", "Hi", "--max-tokens", "2", "--temperature", "0.5", "--json").stdout)["sampling"]
    assert got["temperature"] == 0.5 and got["source"]["temperature"] == "flag", got
    assert got["top_p"] == 0.9 and got["source"]["top_p"] == FILE, got


def test_a_bad_field_leaves_its_neighbours(folder):
    with_settings(folder, {"do_sample": True, "temperature": "0.6", "top_k": 7, "num_beams": 4, "eos_token_id": [99999, "x"]})
    assert sampling(folder)["top_k"] == (7, FILE) and sampling(folder)["temperature"] == (1, "default")
    told = foresay("run", folder, "-p", "Hi", "--max-tokens", "2", "--verbose").stderr.decode()
    for words in ("warning: generation_config.json", "temperature must be", "num_beams is not honoured", "99999 is no token", "holds a string"):
        assert words in told, (words, told)


def main():
    failed = 0
    tests = [(n, f) for n, f in globals().items() if n.startswith("test_")]
    for name, test in tests:
        with tempfile.TemporaryDirectory() as scratch:
            folder = shutil.copytree(ROOT + "/models/demo", scratch + "/demo")
            try:
                test(folder)
                print(f"ok   {name[5:].replace('_', ' ')}")
            except (AssertionError, KeyError, subprocess.CalledProcessError) as e:
                failed += 1
                print(f"FAIL {name[5:].replace('_', ' ')}: {e!r}")
    print(f"{len(tests) - failed} passed, {failed} failed, 0 skipped")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
