#!/usr/bin/env python3
"""Real weights: SmolLM2-135M-Instruct (Q4_1), teacher-forced by foresay and by llama.cpp on the same tokens.

  tests/golden/smollm2.py [--bin ./foresay] [--fetched DIR] [--llama LIBDIR] [--exact]

2,048 tokens of English and 2,048 of C (texts/), in windows of 512, each starting afresh; every token of a window
predicts the next one, so 4,096 predictions are scored. Passes if both tokenize alike, the perplexities differ by
at most 0.5 % and the mean KL divergence KL(llama.cpp || foresay) is at most 0.02. Then three chats show how the
model answers. --exact adds foresay --float, which doesn't round activations, on the first window of each text
(it is slow), to show whose rounding is how big; it decides nothing. docs/real-weights.md has the figures.

--fetched is where tests/fetch.py put the model; --llama the folder of llama.cpp's shared libraries (default: as
fetched). Without one of them the check is skipped. Needs numpy. Ends with 'N passed, N failed, N skipped'.
"""
import argparse
import ctypes
import glob
import hashlib
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL = "smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
TEXTS = ("english", "code")
WINDOW, WINDOWS = 512, 4
PPL_LIMIT, KL_LIMIT = 0.005, 0.02
PROMPTS = ("What is the capital of France?",
           "Write a C function that returns the larger of two ints.",
           "Why is the sky blue? Answer in two sentences.")
ANSWER_TOKENS = 120


class Skip(Exception):
    pass


# ---- foresay ----

class Foresay:
    def __init__(self, binary, model):
        self.bin, self.model = os.path.abspath(binary), model

    def run(self, args, text=""):
        r = subprocess.run([self.bin, *args], input=text.encode(), capture_output=True, timeout=1200)
        if r.returncode:
            raise OSError(f"foresay {args[0]} {args[1]}: exit {r.returncode}: {r.stderr.decode('utf-8', 'replace')[-300:]}")
        return r.stdout.decode("utf-8", "replace")

    def tokenize(self, text):
        return json.loads(self.run(["probe", "tokenize", self.model], json.dumps({"text": text}) + "\n"))["ids"]

    def logits(self, ids, *options):
        with tempfile.TemporaryDirectory() as out:
            with open(out + "/ids.json", "w") as f:
                json.dump({"sequences": [ids]}, f)
            self.run(["probe", "logits", self.model, "--ids", out + "/ids.json", "--out", out, *options])
            return np.load(out + "/trunk_0.npy")

    def answer(self, prompt):
        return self.run(["run", self.model, "-p", prompt, "--temperature", "0", "--max-tokens", str(ANSWER_TOKENS), "--quiet"])


# ---- llama.cpp, as a shared library ----

class Params(ctypes.Structure):
    """Parameter structs go by value; only their beginnings matter here, so any size above theirs does."""
    _fields_ = [("words", ctypes.c_int32 * 128)]


class Batch(ctypes.Structure):
    _fields_ = [("n_tokens", ctypes.c_int32), ("token", ctypes.c_void_p), ("embd", ctypes.c_void_p), ("pos", ctypes.c_void_p),
                ("n_seq_id", ctypes.c_void_p), ("seq_id", ctypes.c_void_p), ("logits", ctypes.c_void_p)]


# Positions in llama_context_params of llama.cpp v0.5.0, in 32-bit words. The library's own log is read back
# to make sure that they still mean this.
N_CTX, THREADS, BATCH_THREADS, FLASH_ATTENTION, TYPE_K, TYPE_V = 0, 7, 8, 13, 26, 27
TYPE_F32 = 0
LOG_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class Llama:
    def __init__(self, folder, model):
        self.log = []
        self.keep = LOG_FUNCTION(lambda level, line, user: self.log.append((line or b"").decode("utf-8", "replace")))
        self.lib = self.load(folder)
        self.model = self.lib.llama_model_load_from_file(model.encode(), self.lib.llama_model_default_params())
        if not self.model:
            raise OSError("llama.cpp: " + "".join(self.log[-4:]))
        self.vocab = self.lib.llama_model_get_vocab(self.model)
        self.n_vocab = self.lib.llama_vocab_n_tokens(self.vocab)

    def load(self, folder):
        def named(stem):
            found = sorted(glob.glob(f"{folder}/{stem}.so") + glob.glob(f"{folder}/{stem}.v*.so") + glob.glob(f"{folder}/{stem}.so.*"))
            if not found:
                raise Skip(f"no {stem} in {folder}")
            return found[0]

        try:
            base = ctypes.CDLL(named("libggml-base"), mode=ctypes.RTLD_GLOBAL)
            ggml = ctypes.CDLL(named("libggml"), mode=ctypes.RTLD_GLOBAL)
            lib = ctypes.CDLL(named("libllama"), mode=ctypes.RTLD_GLOBAL)
        except OSError as e: # another system's libraries
            raise Skip(f"llama.cpp doesn't load: {e}") from e
        pointer, i32, boolean = ctypes.c_void_p, ctypes.c_int32, ctypes.c_bool
        for owner, name, result, arguments in (
                (base, "ggml_log_set", None, [LOG_FUNCTION, pointer]),
                (ggml, "ggml_backend_load_all_from_path", None, [ctypes.c_char_p]),
                (lib, "llama_log_set", None, [LOG_FUNCTION, pointer]),
                (lib, "llama_model_default_params", Params, []),
                (lib, "llama_context_default_params", Params, []),
                (lib, "llama_model_load_from_file", pointer, [ctypes.c_char_p, Params]),
                (lib, "llama_init_from_model", pointer, [pointer, Params]),
                (lib, "llama_free", None, [pointer]),
                (lib, "llama_model_get_vocab", pointer, [pointer]),
                (lib, "llama_vocab_n_tokens", i32, [pointer]),
                (lib, "llama_tokenize", i32, [pointer, ctypes.c_char_p, i32, pointer, i32, boolean, boolean]),
                (lib, "llama_decode", i32, [pointer, Batch]),
                (lib, "llama_get_logits", ctypes.POINTER(ctypes.c_float), [pointer])):
            function = getattr(owner, name)
            function.restype, function.argtypes = result, arguments
        base.ggml_log_set(self.keep, None)
        lib.llama_log_set(self.keep, None)
        ggml.ggml_backend_load_all_from_path(folder.encode())
        return lib

    def tokenize(self, text):
        raw = text.encode()
        out = (ctypes.c_int32 * (len(raw) + 8))()
        n = self.lib.llama_tokenize(self.vocab, raw, len(raw), out, len(out), False, False)
        return list(out[:n])

    def logits(self, ids):
        """In a context of its own: nothing is left from the window before."""
        params = self.lib.llama_context_default_params()
        w = params.words
        w[N_CTX], w[FLASH_ATTENTION], w[TYPE_K], w[TYPE_V] = WINDOW, 0, TYPE_F32, TYPE_F32
        w[THREADS] = w[BATCH_THREADS] = os.cpu_count() or 1
        del self.log[:]
        context = self.lib.llama_init_from_model(self.model, params)
        said = "".join(self.log)
        if not context:
            raise OSError("llama.cpp: " + said[-300:])
        plain = " ".join(said.split())
        for want in ("K (f32)", "V (f32)", "flash_attn = disabled"):
            if want not in plain:
                raise OSError(f"llama.cpp didn't take its settings: no '{want}' in what it says")
        n = len(ids)
        token, pos, one = np.array(ids, np.int32), np.arange(n, dtype=np.int32), np.ones(n, np.int32)
        sequence, wanted = np.zeros(1, np.int32), np.ones(n, np.int8)
        sequences = (ctypes.c_void_p * n)(*[sequence.ctypes.data] * n)
        batch = Batch(n, token.ctypes.data, None, pos.ctypes.data, one.ctypes.data, ctypes.addressof(sequences), wanted.ctypes.data)
        status = self.lib.llama_decode(context, batch)
        if status:
            raise OSError(f"llama.cpp: decode returns {status}")
        x = np.ctypeslib.as_array(self.lib.llama_get_logits(context), (n * self.n_vocab,)).reshape(n, -1).copy()
        self.lib.llama_free(context)
        return x


# ---- scores ----

def log_probabilities(logits):
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


class Score:
    """Sums over predictions, for a pair of evaluations."""
    def __init__(self):
        self.kl, self.loss, self.same = [], [[], []], []

    def add(self, theirs, ours, following):
        rows = np.arange(len(following))
        self.kl.append((np.exp(theirs) * (theirs - ours)).sum(axis=1))
        for loss, p in zip(self.loss, (theirs, ours)):
            loss.append(-p[rows, following])
        self.same.append(theirs.argmax(axis=1) == ours.argmax(axis=1))

    def merge(self, other):
        self.kl += other.kl
        self.same += other.same
        for mine, more in zip(self.loss, other.loss):
            mine += more

    def figures(self):
        theirs, ours = (np.concatenate(x) for x in self.loss)
        difference = ours - theirs
        return {"n": len(ours), "ppl_theirs": np.exp(theirs.mean()), "ppl_ours": np.exp(ours.mean()),
                "ratio": np.exp(difference.mean()), "error": difference.std() / len(ours) ** 0.5,
                "kl": np.concatenate(self.kl).mean(), "same": np.concatenate(self.same).mean()}

    def line(self, name):
        return ("{name:34} {n:5} tokens  perplexity {ppl_theirs:8.4f} and {ppl_ours:8.4f}  ratio {ratio:.5f} (+- {error:.5f})"
                "  mean KL {kl:.6f}  same top {same:.2%}").format(name=name, **self.figures())


def compare(foresay, llama, exact):
    """Scores per text of each pair, and whether both cut the texts into the same tokens."""
    pairs = {"llama.cpp, foresay": {}}
    if exact:
        pairs.update({"foresay --float, foresay": {}, "foresay --float, llama.cpp": {}})
    alike = True
    for text in TEXTS:
        with open(f"{HERE}/texts/{text}.txt", encoding="utf-8") as f:
            words = f.read()
        ids = foresay.tokenize(words)
        alike = alike and ids == llama.tokenize(words)
        if len(ids) <= WINDOW * WINDOWS:
            raise OSError(f"texts/{text}.txt has only {len(ids)} tokens")
        for first in range(0, WINDOW * WINDOWS, WINDOW):
            window, following = ids[first:first + WINDOW], ids[first + 1:first + WINDOW + 1]
            p = {"llama.cpp": log_probabilities(llama.logits(window)), "foresay": log_probabilities(foresay.logits(window))}
            if exact and first == 0:
                p["foresay --float"] = log_probabilities(foresay.logits(window, "--float"))
            for pair, scores in pairs.items():
                a, b = pair.split(", ")
                if a not in p:
                    continue
                scores.setdefault(text, Score()).add(p[a], p[b], following)
            print(f"  {text} {first}..{first + WINDOW}", file=sys.stderr, flush=True)
    return pairs, alike


def check(options):
    model = os.path.join(options.fetched, MODEL)
    folder = os.path.abspath(options.llama or os.path.join(options.fetched, "llama_lib"))
    if not os.path.exists(model):
        raise Skip(f"no {MODEL} in {options.fetched}")
    if not os.path.isdir(folder):
        raise Skip(f"no llama.cpp libraries in {folder}")
    with open(model, "rb") as f:
        if hashlib.sha256(f.read()).hexdigest() != MODEL_SHA256:
            raise OSError(f"{model} is not the file that the figures are about")
    foresay, llama = Foresay(options.bin, model), Llama(folder, model)
    results = []
    pairs, alike = compare(foresay, llama, options.exact)
    results.append(("both tokenize alike", alike))
    for pair, scores in pairs.items():
        total = Score()
        for text, score in scores.items():
            print(score.line(f"{pair}: {text}"))
            total.merge(score)
        print(total.line(pair), flush=True)
        if pair == "llama.cpp, foresay":
            f = total.figures()
            results.append((f"perplexity within {PPL_LIMIT:.1%}", abs(f["ratio"] - 1) <= PPL_LIMIT))
            results.append((f"mean KL at most {KL_LIMIT}", f["kl"] <= KL_LIMIT))
    for prompt in PROMPTS:
        answer = foresay.answer(prompt).strip()
        print(f"\n> {prompt}\n{answer}")
        results.append((f"an answer to: {prompt}", bool(answer)))
    print()
    return results


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--bin", default=os.environ.get("FORESAY", "./foresay"))
    a.add_argument("--fetched", default=".fetched", metavar="DIR")
    a.add_argument("--llama", metavar="LIBDIR")
    a.add_argument("--exact", action="store_true")
    try:
        results = check(a.parse_args())
    except Skip as e:
        print(f"skip smollm2: {e}\nskipped\n0 passed, 0 failed, 1 skipped")
        return 0
    except (OSError, ValueError, subprocess.TimeoutExpired) as e:
        results = [(str(e), False)]
    for name, ok in results:
        print(f"{'ok  ' if ok else 'FAIL'} {name}")
    failed = sum(not ok for _, ok in results)
    print(f"{len(results) - failed} passed, {failed} failed, 0 skipped")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
