#!/usr/bin/env python3
"""What `foresay inspect` tells people agrees with what it tells programs. FORESAY names the binary."""
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FORESAY = os.path.abspath(os.environ.get("FORESAY", ROOT + "/foresay"))


def inspect(*options):
    command = [FORESAY, "inspect", ROOT + "/models/demo", *options]
    return subprocess.run(command, capture_output=True, check=True, timeout=60).stdout.decode()


def main():
    text = inspect()
    formats = json.loads(inspect("--json"))["formats"]
    lines = [line.split() for line in text.splitlines()]
    missing = [f["format"] for f in formats if [*f["format"].split(), str(f["tensors"]), "tensors"] not in [line[:-2] for line in lines]]
    ok = formats and not missing
    print(f"{'ok  ' if ok else 'FAIL'} every stored format is named with its tensors" + "".join(f"; {m} is not" for m in missing))
    print(f"{int(bool(ok))} passed, {int(not ok)} failed, 0 skipped")
    return not ok


if __name__ == "__main__":
    sys.exit(main())
