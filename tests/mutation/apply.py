#!/usr/bin/env python3
"""apply.py FAULT TREE: plants a fault into a copy of the sources and prints the fuzzer's arguments.

A fault file holds comment lines (#), one line "run ARGUMENTS", and edits:

    file PATH
    <<<<
    old text
    ====
    new text
    >>>>

The old text must stand in the file exactly once: a fault that no longer fits must be noticed.
"""
import os
import sys


def main():
    fault, tree = sys.argv[1], sys.argv[2]
    lines = open(fault, encoding="utf-8").read().split("\n")
    run, path, edits, i = None, None, 0, 0
    while i < len(lines):
        line = lines[i]
        if line.startswith("run "):
            run = line[4:]
        elif line.startswith("file "):
            path = os.path.join(tree, line[5:])
        elif line == "<<<<":
            middle, end = lines.index("====", i), lines.index(">>>>", i)
            old, new = "\n".join(lines[i + 1:middle]), "\n".join(lines[middle + 1:end])
            text = open(path, encoding="utf-8").read()
            if text.count(old) != 1:
                sys.exit(f"{fault}: the text of edit {edits + 1} stands {text.count(old)} times in {path}, expected once:\n{old}")
            open(path, "w", encoding="utf-8").write(text.replace(old, new))
            edits, i = edits + 1, end
        elif line and not line.startswith("#"):
            sys.exit(f"{fault}: cannot read line {i + 1}: {line}")
        i += 1
    if not run or not edits:
        sys.exit(f"{fault}: needs a run line and an edit")
    print(run)


main()
