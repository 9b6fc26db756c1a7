#!/usr/bin/env python3
"""Checks a built foresay against the golden files, through `foresay probe` (its contract: docs/probe.md).

  tests/golden/check.py [--bin ./foresay] [--only KIND,...] [--match NAME] [--fetched DIR] [-v]

Kinds: models, products, purity, tokenizer, chat, jinja, sampling, bad. --fetched is where tests/fetch.py put
the big vocabularies; without it their cases count as skipped. Needs numpy. Ends with
'N passed, N failed, N skipped'; the exit status is 0 only if nothing failed.
"""
import argparse
import glob
import json
import os
import re
import subprocess
import sys
import tempfile

import numpy as np

import bad as damaged

HERE = os.path.dirname(os.path.abspath(__file__))


def npy_names(folder):
    return sorted(os.path.basename(f) for f in glob.glob(folder + "/*.npy"))


class Check:
    def __init__(self, options):
        self.bin = os.path.abspath(options.bin)
        self.match, self.verbose, self.fetched = options.match, options.verbose, options.fetched
        self.passed = self.failed = self.skipped = 0

    # ---- reporting ----

    def report(self, name, ok, note=""):
        if ok:
            self.passed += 1
        else:
            self.failed += 1
        if not ok or self.verbose:
            print(f"{'ok  ' if ok else 'FAIL'} {name} {note}", flush=True)

    def skip(self, name, why):
        self.skipped += 1
        print(f"skip {name}: {why}", flush=True)

    def report_cases(self, name, wrong, n):
        """One result for n cases of which the sentences in wrong failed."""
        shown = wrong if self.verbose else wrong[:3]
        self.report(name, not wrong, f"{n - len(wrong)} of {n}" + "".join(f"\n      {w}" for w in shown))

    # ---- driving the binary ----

    def run(self, args, text="", timeout=600):
        try:
            r = subprocess.run([self.bin, *args], input=text.encode(), capture_output=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            return 124, "", "timed out"
        return r.returncode, r.stdout.decode("utf-8", "replace"), r.stderr.decode("utf-8", "replace").strip()

    def ask(self, name, args, requests):
        """One JSON line for each request through one process. Returns the answers, or None after reporting."""
        text = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in requests)
        status, out, err = self.run(["probe", *args], text, 900)
        try:
            answers = [json.loads(line) for line in out.splitlines() if line.strip()]
        except ValueError as e:
            answers, err = [], f"output is not JSON lines: {e}"
        if status or len(answers) != len(requests):
            self.report(name, False, f"exit {status}, {len(answers)} answers to {len(requests)} lines: {err[:200]}")
            return None
        return answers

    def packages(self):
        for folder in sorted(glob.glob(f"{HERE}/models/*/")):
            name = os.path.basename(folder[:-1])
            if self.match in name:
                yield name, folder[:-1]

    def logits(self, folder, out, *options):
        """probe logits on the package's sequences, with the drafts that its expectations were made with."""
        expect = folder + "/expect"
        request = json.load(open(expect + "/ids.json"))
        starts, drafts = [], []
        for k in range(len(request["sequences"])):
            if os.path.exists(f"{expect}/mtp_draft_{k}.json"):
                rounds = json.load(open(f"{expect}/mtp_draft_{k}.json"))
                starts.append([r["start"] for r in rounds])
                drafts.append([r["drafts"] for r in rounds])
        if starts:
            request.update(starts=starts, drafts=drafts, depth=3)
        with open(out + "/ids.json", "w") as f:
            json.dump(request, f)
        status, _, err = self.run(["probe", "logits", model_path(folder), "--ids", out + "/ids.json", "--out", out, *options])
        return f"exit {status}: {err[:200]}" if status else ""

    # ---- kinds ----

    def models(self):
        """Errors against the float64 reference, in standard deviations of the expected logits."""
        limits = json.load(open(f"{HERE}/models/limits.json"))
        for name, folder in self.packages():
            self.compare(f"models {name} float", folder, limits[name]["float"], FLOAT_RULE, "--float")
            if "int8" in limits[name]:
                self.compare(f"models {name} int8", folder, limits[name]["int8"], INT8_RULE)

    def compare(self, name, folder, limits, rule, *options):
        with tempfile.TemporaryDirectory() as out:
            trouble = self.logits(folder, out, *options)
            if trouble:
                self.report(name, False, trouble)
                return
            wrong = []
            expected = npy_names(folder + "/expect")
            for file in expected:
                sentence = compare_file(f"{folder}/expect/{file}", f"{out}/{file}", limits[file], rule[is_small(file)])
                if sentence:
                    wrong.append(f"{file}: {sentence}")
            self.report_cases(name, wrong, len(expected))

    def products(self):
        """One stored weight times rows of activations, in every stored format."""
        for file in sorted(glob.glob(f"{HERE}/products/*.json")):
            case = json.load(open(file))
            if self.match not in file and self.match not in case["package"]:
                continue
            stem = file[:-len(".json")]
            want = np.load(stem + ".y.npy").astype(np.float64)
            for options in ([], ["--isa", "scalar"], ["--pack", "on"]):
                name = f"products {os.path.basename(stem)} {' '.join(options)}"
                with tempfile.TemporaryDirectory() as out:
                    status, _, err = self.run(["probe", "product", f"{HERE}/{case['package']}", "--tensor", case["tensor"],
                                               "--x", stem + ".x.npy", "--out", out + "/y.npy", *options])
                    got = None if status else np.load(out + "/y.npy")
                if got is None or got.shape != want.shape:
                    self.report(name, False, f"exit {status}: {err[:160]}" if status else f"shape {got.shape}")
                    continue
                largest = np.abs(want).max(-1, keepdims=True) + 1e-30
                error = float((np.abs(got - want) / largest).max())
                self.report(name, error <= 3e-6, f"largest error {error:.1e} of the row's largest value")

    def purity(self):
        """The same files, byte for byte, whatever the chunks, batches, threads, instruction set or layout."""
        ways = ([], ["--chunk", "1"], ["--chunk", "7"], ["--batch"], ["--threads", "1", "--chunk", "3"],
                ["--isa", "scalar"], ["--pack", "off", "--chunk", "64"], ["--pack", "on", "--batch"])
        for name, folder in self.packages():
            first = None
            for options in ways:
                label = f"purity {name} {' '.join(options)}"
                with tempfile.TemporaryDirectory() as out:
                    trouble = self.logits(folder, out, *options)
                    files = {f: open(f"{out}/{f}", "rb").read() for f in npy_names(out)}
                if trouble:
                    self.report(label, False, trouble)
                    continue
                first = first or files
                differ = [f for f in first if files.get(f) != first[f]]
                self.report(label, files and not differ, f"differ: {differ}")

    def tokenizer(self):
        for name, folder in self.packages():
            if os.path.exists(folder + "/expect/tokenizer.json"):
                self.small_vocabulary(name, folder)
        for file in sorted(glob.glob(f"{HERE}/tokenizer/*.json")):
            name = os.path.basename(file)[:-len(".json")]
            if self.match in name:
                self.big_vocabulary(name, json.load(open(file)))
        golden = json.load(open(f"{HERE}/schemes.json"))
        for scheme in golden["schemes"]:
            if self.match not in scheme["name"]:
                continue
            if "file" in scheme:
                self.scheme(scheme, f"{HERE}/{scheme['file']}")
                continue
            scheme["tokenizer"]["model"].update(golden["vocabularies"][scheme["vocabulary"]])
            with tempfile.TemporaryDirectory() as folder:
                with open(folder + "/tokenizer.json", "w", encoding="utf-8") as f:
                    json.dump(scheme["tokenizer"], f)
                self.scheme(scheme, folder)

    def scheme(self, scheme, path):
        name = scheme["name"]
        requests = [{k: c[k] for k in ("text", "hex", "added") if k in c} for c in scheme["encode"]]
        answers = self.ask(f"tokenizer {name}", ["tokenize", path], requests)
        if answers is not None:
            wrong = [f"{r} want {c['ids'][:12]} got {str(a)[:100]}"
                     for r, c, a in zip(requests, scheme["encode"], answers) if a.get("ids") != c["ids"]]
            self.report_cases(f"tokenizer {name}", wrong, len(requests))
        requests = [{k: c[k] for k in ("ids", "skip_special")} for c in scheme["decode"]]
        answers = self.ask(f"detokenize {name}", ["detokenize", path], requests)
        if answers is not None:
            wrong = [f"{c['ids'][:8]} want {c['text']!r:.80} got {a.get('text')!r:.80}"
                     for c, a in zip(scheme["decode"], answers) if a.get("text") != c["text"]]
            self.report_cases(f"detokenize {name}", wrong, len(requests))

    def small_vocabulary(self, name, folder):
        cases = json.load(open(folder + "/expect/tokenizer.json"))["encode"]
        answers = self.ask(f"tokenizer {name}", ["tokenize", folder], [{"text": c["text"], "added": "all"} for c in cases])
        if answers is not None:
            wrong = [f"{c['text']!r:.60} want {c['ids_no_special'][:12]} got {str(a)[:100]}"
                     for c, a in zip(cases, answers) if a.get("ids") != c["ids_no_special"]]
            self.report_cases(f"tokenizer {name}", wrong, len(cases))

    def big_vocabulary(self, name, golden):
        path = f"{self.fetched}/{golden['lay']}" if self.fetched else ""
        if not os.path.exists(path):
            self.skip(f"tokenizer {name}", "its vocabulary has not been fetched (tests/fetch.py)")
            return
        if not path.endswith(".gguf"):
            path = os.path.dirname(path)
        asked = [(c, "all" if c["specials"] else "text", c["ids"]) for c in golden["cases"]]
        asked += [(c, "none", c.get("ids_plain", c["ids"])) for c in golden["cases"] if c["kind"] == "special"]
        requests = [{**{k: c[k] for k in ("text", "hex") if k in c}, "added": added} for c, added, _ in asked]
        answers = self.ask(f"tokenizer {name}", ["tokenize", path], requests)
        if answers is not None:
            wrong = [f"{c.get('note') or c['kind']} ({added}): {c.get('text', c.get('hex'))!r:.60} want {want[:12]} got {str(a)[:100]}"
                     for (c, added, want), a in zip(asked, answers) if a.get("ids") != want]
            self.report_cases(f"tokenizer {name}", wrong, len(asked))

        cases = [(c, "text") for c in golden["decode"]] + [(c, "pieces") for c in golden["stream"]]
        requests = [{"ids": c["ids"], "skip_special": c["skip_special"]} for c, _ in cases]
        answers = self.ask(f"detokenize {name}", ["detokenize", path], requests)
        if answers is not None:
            wrong = [f"{c['ids'][:8]} want {c[field]!r:.80} got {a.get(field)!r:.80}"
                     for (c, field), a in zip(cases, answers) if a.get(field) != c[field]]
            self.report_cases(f"detokenize {name}", wrong, len(cases))

    def chat(self):
        """Chats through the packages' own templates."""
        for name, folder in self.packages():
            if not os.path.exists(folder + "/expect/tokenizer.json"):
                continue
            cases = json.load(open(folder + "/expect/tokenizer.json"))["chat"]
            settings = json.load(open(folder + "/tokenizer_config.json"))
            special = {k: settings[k] for k in ("bos_token", "eos_token", "pad_token", "unk_token") if settings.get(k)}
            requests = []
            for c in cases:
                kwargs = {k: v for k, v in c["options"].items() if k not in ("add_generation_prompt", "tools")}
                requests.append({"messages": c["messages"], "special_tokens": special, "kwargs": kwargs,
                                 **{k: c["options"][k] for k in ("add_generation_prompt", "tools") if k in c["options"]}})
            answers = self.ask(f"chat {name}", ["render", folder], requests)
            if answers is not None:
                wrong = [f"want {c['text']!r:.100} got {str(a)[:120]}" for c, a in zip(cases, answers) if a.get("text") != c["text"]]
                self.report_cases(f"chat {name}", wrong, len(cases))

    def jinja(self):
        golden = json.load(open(f"{HERE}/jinja.json"))
        cases, groups = golden["cases"], {}
        for c in cases:
            if "template_parts" in c:
                c.setdefault("template", "".join(part * times for part, times in c["template_parts"]))
        keep = ("template", "context", "trim_blocks", "lstrip_blocks")
        requests = [{**{k: c[k] for k in keep if k in c}, "now": golden.get("now")} for c in cases]
        answers = self.ask("jinja", ["jinja"], requests)
        for c, a in zip(cases, answers or []):
            wrong = groups.setdefault(c["group"], [0, []])
            wrong[0] += 1
            if not jinja_agrees(c, a):
                wrong[1].append(f"{c['name']}: {c['template']!r:.60} want {c.get('expect', c.get('error_class'))!r:.60} got {str(a)[:80]}")
        for group, (n, wrong) in groups.items():
            self.report_cases(f"jinja {group}", wrong, n)

    def sampling(self):
        golden = json.load(open(f"{HERE}/sampling.json"))
        requests = [{"logits": c["logits"], "history": c["history"], "settings": {**golden["defaults"], **c["settings"]}}
                    for c in golden["cases"]]
        answers = self.ask("sampling", ["sample"], requests)
        wrong = []
        for c, a in zip(golden["cases"], answers or []):
            got = np.zeros(len(c["logits"]))
            for token, p in a.get("probs", {}).items():
                got[int(token)] = p
            error = np.abs(got - np.array(c["probs"])).max()
            if not error < 1e-9:
                wrong.append(f"{c['name']}: largest difference of a probability {error:.1e}")
        if answers is not None:
            self.report_cases("sampling", wrong, len(requests))

    def bad(self):
        """Damaged packages: refused with one sentence, or loaded with what is wrong said; never a crash."""
        with tempfile.TemporaryDirectory() as scratch:
            for name, what, want in damaged.make(scratch + "/bad"):
                if self.match not in name:
                    continue
                path = f"{scratch}/bad/{name}"
                seen, _, _ = self.run(["inspect", path], timeout=120)
                ran, _, err = self.run(["run", path, "-p", "a", "--max-tokens", "3"], timeout=120)
                sentences = [line for line in err.splitlines() if line.strip()]
                if want.startswith("refuse") and "or infer" not in want:
                    ok = 0 < ran < 124 and 0 <= seen < 124 and sentences and len(sentences[-1]) < 400
                elif want.startswith("loads"):
                    ok = seen == 0 and ran == 0
                else:
                    ok = 0 <= seen < 124 and 0 <= ran < 124
                self.report(f"bad {name}", ok, f"({what}) want '{want}': inspect {seen}, run {ran}: {' / '.join(sentences)[:300]}")


# limit factors (mean, 99th percentile, and what is added to each), for files of many rows and of few
FLOAT_RULE = {False: (1.5, 3e-5, 2, 2e-4), True: (4, 3e-5, 6, 2e-4)}
INT8_RULE = {False: (1.4, 0, 1.6, 0), True: (3, 0, 4, 0)}


def is_small(file):
    return "_0." in file or "draft" in file


def compare_file(want_path, got_path, limit, rule):
    """A sentence on what is wrong, or None. limit: (mean, 99th percentile) of the simulated arithmetic."""
    if not os.path.exists(got_path):
        return "missing"
    want, got = np.load(want_path).astype(np.float64), np.load(got_path)
    if got.shape != want.shape or got.dtype != np.float32:
        return f"{got.dtype} {got.shape}, want float32 {want.shape}"
    error = np.abs(want - got) / (want.std() or 1)
    mean, p99 = error.mean(), float(np.quantile(error, .99))
    most_mean, most_p99 = rule[0] * limit[0] + rule[1], rule[2] * limit[1] + rule[3]
    if np.isfinite(got).all() and mean <= most_mean and p99 <= most_p99:
        return None
    return f"mean error {mean:.1e} (limit {most_mean:.1e}), 99th percentile {p99:.1e} (limit {most_p99:.1e})"


def model_path(folder):
    return (glob.glob(folder + "/*.gguf") or [folder])[0]


def jinja_agrees(case, answer):
    if "text" in answer:
        return answer["text"] in [case[k] for k in ("expect", "or_expect") if k in case]
    if "error" not in answer or ("expect" in case and not case.get("or_error")):
        return False
    if case.get("error_class") == "raise":
        return answer.get("class") == "raise" and answer["error"] == case["error"]
    return answer.get("class") == "limit" if case.get("group") == "limit" else True


def main():
    kinds = "models,products,purity,tokenizer,chat,jinja,sampling,bad"
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--bin", default="./foresay")
    a.add_argument("--only", default=kinds)
    a.add_argument("--match", default="")
    a.add_argument("--fetched")
    a.add_argument("-v", "--verbose", action="store_true")
    options = a.parse_args()
    check = Check(options)
    for kind in options.only.split(","):
        if kind not in kinds.split(","):
            a.error(f"there is no kind {kind}; there are {kinds}")
        getattr(check, kind)()
    print(f"{check.passed} passed, {check.failed} failed, {check.skipped} skipped")
    return check.failed > 0


if __name__ == "__main__":
    sys.exit(main())
