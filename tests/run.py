#!/usr/bin/env python3
"""Builds and runs the tests, prints one line for each with its counts and seconds, then the sum.

  tests/run.py [--quick | --only-fuzz] [--fuzz SECONDS] [--jobs N] [--match TEXT]

What is run: every test program built from tests/*/test_*.c, every script tests/*/test_*.py, the golden checks,
the style checks and, without --quick, a real model against llama.cpp, planted faults that the schedule fuzzer must
find, the same programs with sanitizers, and each fuzz target for a while.
A program's counts come from cmocka's summary or from a closing line 'N passed, N failed, N skipped'; a crash or
a timeout counts as a failure. Whole outputs stay in build/test-logs/. Ends with 'N passed, N failed, N skipped'
and exits 1 if anything failed. Standard library only (the golden checks need numpy).
"""
import argparse
import concurrent.futures
import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LOGS = "build/test-logs"
FETCHED = ".fetched"
GOLDEN_KINDS = ("models", "products", "purity", "tokenizer", "chat", "jinja", "sampling", "bad")
CLOSING = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", re.M)
CMOCKA = re.compile(r"^\[\s+(PASSED|FAILED|SKIPPED)\s+\] (\d+) test", re.M)


class Job:
    def __init__(self, name, command, timeout=600, env=None):
        self.name, self.command, self.timeout, self.env = name, command, timeout, env or {}
        self.passed = self.failed = self.skipped = 0
        self.output, self.note, self.seconds = "", "", 0.0

    def run(self):
        began = time.monotonic()
        p = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             env={**os.environ, **self.env}, start_new_session=True)
        try:
            out, _ = p.communicate(timeout=self.timeout)
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, signal.SIGKILL)
            out, _ = p.communicate()
            self.note = f"killed after {self.timeout} s"
        self.seconds = time.monotonic() - began
        self.output = out.decode("utf-8", "replace")
        with open(f"{LOGS}/{re.sub('[^A-Za-z0-9.-]+', '-', self.name)}.log", "w") as f:
            f.write(" ".join(self.command) + "\n\n" + self.output)
        self.count(p.returncode)
        return self

    def count(self, status):
        for word, n in CMOCKA.findall(self.output):
            setattr(self, word.lower(), getattr(self, word.lower()) + int(n))
        closing = CLOSING.findall(self.output)
        if closing:
            self.passed, self.failed, self.skipped = (int(n or 0) for n in closing[-1])
        if status and not self.failed:
            self.failed += 1
            self.note = self.note or (f"signal {-status}" if status < 0 else f"exit {status}")
        elif not (self.passed or self.failed or self.skipped):
            self.passed = 1

    def line(self):
        return (f"{self.name:44} {self.passed:5} passed {self.failed:3} failed {self.skipped:3} skipped "
                f"{self.seconds:7.1f} s  {self.note}").rstrip()


def build(config, targets, *variables):
    """True if it was built without a warning."""
    began = time.monotonic()
    command = ["make", f"-j{os.cpu_count() or 2}", f"CONFIG={config}", "EXTRA_CFLAGS=-Werror", *variables, *targets]
    r = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    out = r.stdout.decode("utf-8", "replace")
    with open(f"{LOGS}/build-{config}.log", "w") as f:
        f.write(out)
    print(f"build {config}: {'ok' if r.returncode == 0 else 'FAILED'}, {time.monotonic() - began:.1f} s", flush=True)
    if r.returncode:
        print("\n".join(out.splitlines()[-30:]), flush=True)
    return r.returncode == 0


def programs(config, folders="*"):
    paths = sorted(glob.glob(f"build/{config}/tests/{folders}/test_*"))
    return [p for p in paths if os.access(p, os.X_OK) and "." not in os.path.basename(p)]


def program_jobs(config, folders="*", timeout=900):
    env = {"ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": "print_stacktrace=1", "TSAN_OPTIONS": "halt_on_error=1"}
    for path in programs(config, folders):
        folder, name = path.split("/")[-2:]
        yield Job(f"{folder}/{name} [{config}]", [path], timeout, env)


def script_jobs(config):
    for path in sorted(glob.glob("tests/*/test_*.py")):
        folder, name = path.split("/")[-2:]
        yield Job(f"{folder}/{name[:-3]} [{config}]", [sys.executable, path], 900, {"FORESAY": f"build/{config}/foresay"})


def golden_jobs(config, kinds):
    for kind in kinds:
        command = [sys.executable, "tests/golden/check.py", "--bin", f"build/{config}/foresay", "--only", kind]
        yield Job(f"golden/{kind} [{config}]", command + ["--fetched", FETCHED], 1800)


def fuzz_jobs(seconds):
    os.makedirs("build/fuzz/findings", exist_ok=True)
    for path in sorted(glob.glob("build/fuzz/fuzz/fuzz_*")):
        name = os.path.basename(path)[len("fuzz_"):]
        grown, kept = f"build/fuzz/corpus/{name}", f"tests/fuzz/corpus/{name}"
        os.makedirs(grown, exist_ok=True)
        command = [path, f"-max_total_time={seconds}", "-timeout=20", "-rss_limit_mb=2048", "-print_final_stats=1",
                   f"-artifact_prefix=build/fuzz/findings/{name}-", grown]
        yield Job(f"fuzz/{name} ({seconds} s)", command + [kept] * os.path.isdir(kept), seconds + 300)


def can_fuzz():
    if not shutil.which("clang"):
        return False
    source = b"int LLVMFuzzerTestOneInput(const unsigned char *p, unsigned long n) { return !p && n; }"
    r = subprocess.run(["clang", "-fsanitize=fuzzer", "-x", "c", "-", "-o", os.devnull], input=source, capture_output=True)
    return r.returncode == 0


def skipped(name, why):
    job = Job(name, [])
    job.skipped, job.note = 1, why
    return job


def failed(name, why):
    job = Job(name, [])
    job.failed, job.note = 1, why
    return job


def plan_fuzzing(seconds):
    if not can_fuzz():
        return [], [skipped("fuzz", "no clang with libFuzzer here")]
    if not build("fuzz", ["fuzz"], "CC=clang"):
        return [], [failed("build fuzz", "does not build with clang")]
    return list(fuzz_jobs(seconds)), []


def plan(options):
    """Builds everything; returns the jobs to run and those already decided."""
    if options.only_fuzz:
        return plan_fuzzing(options.fuzz)
    jobs, decided = [], []
    if build("release", ["all", "tests"]):
        jobs += [*golden_jobs("release", GOLDEN_KINDS), *program_jobs("release"), *script_jobs("release")]
    else:
        decided.append(failed("build release", "does not build"))
    if not options.quick:
        jobs.append(Job("golden/smollm2 [release]", [sys.executable, "tests/golden/smollm2.py", "--bin", "build/release/foresay",
                                                     "--fetched", FETCHED], 1800))
        jobs.append(Job("mutation", ["tests/mutation/run.sh"], 1800))
    jobs.append(Job("style/layers", ["tools/check-layers", "--self-test"], 60))
    jobs.append(Job("style/rules", ["make", "-s", "check-style"], 300))
    if options.quick:
        return jobs, decided
    if build("debug", ["all", "tests"]):
        jobs += [*program_jobs("debug"), *script_jobs("debug")]
        jobs += golden_jobs("debug", ("models", "tokenizer", "chat", "jinja", "sampling", "bad"))
    else:
        decided.append(failed("build debug", "does not build with address and undefined sanitizers"))
    if build("tsan", ["tests"]):
        # generation and kernels take a quarter of an hour there; the library test runs the same threads
        slow = ("test_gen", "test_kernels", "test_engine", "test_moe", "test_window")
        jobs += [job for job in program_jobs("tsan", "unit") if not job.name.startswith(tuple("unit/" + name for name in slow))]
    else:
        decided.append(failed("build tsan", "does not build with the thread sanitizer"))
    fuzz, fuzz_decided = plan_fuzzing(options.fuzz)
    return jobs + fuzz, decided + fuzz_decided


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--quick", action="store_true")
    a.add_argument("--only-fuzz", action="store_true")
    a.add_argument("--fuzz", type=int, default=10, metavar="SECONDS", help="for each fuzz target (default 10)")
    a.add_argument("--jobs", type=int, default=min(os.cpu_count() or 2, 4), metavar="N")
    a.add_argument("--match", default="", metavar="TEXT", help="only tests whose name holds this")
    options = a.parse_args()
    os.chdir(ROOT)
    shutil.rmtree(LOGS, ignore_errors=True)
    os.makedirs(LOGS)
    began = time.monotonic()
    jobs, done = plan(options)
    jobs = [j for j in jobs if options.match in j.name]
    for job in done:
        print(job.line(), flush=True)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for finished in concurrent.futures.as_completed([pool.submit(j.run) for j in jobs]):
            done.append(finished.result())
            print(done[-1].line(), flush=True)
    for job in done:
        if job.failed and job.output:
            print(f"\n---- {job.name}: {job.note or 'failed'}; the end of its output ----")
            print("\n".join(job.output.splitlines()[-40:]))
    reasons = {line for job in done for line in job.output.splitlines() if line.startswith("skip ")}
    if reasons:
        print("\nSkipped:\n" + "\n".join(sorted(reasons)))
    print(f"\n{time.monotonic() - began:.0f} s")
    total = [sum(getattr(j, k) for j in done) for k in ("passed", "failed", "skipped")]
    print("%d passed, %d failed, %d skipped" % tuple(total))
    return total[1] > 0


if __name__ == "__main__":
    sys.exit(main())
