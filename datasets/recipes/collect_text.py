#!/usr/bin/env python3
"""Make the text files of train_lm.py from a source tree.

    collect_text.py TREE --text train.txt.xz --held held.txt.xz [--held-every 100]

A document is one directory: its files in name order, each behind a line "// path". Documents are
separated by U+001E. Every --held-every-th directory goes to the held-out file.
"""
import argparse
import lzma
import os

KINDS = (".c", ".h", ".S", ".rst", ".txt")
LARGEST = 1 << 20  # generated tables are left out


def read_file(path, name):
    with open(path, encoding="utf-8", errors="replace") as f:
        return f"// {name}\n{f.read()}".replace("\x1e", "")


def documents(tree):
    for directory, folders, files in os.walk(tree):
        folders.sort()
        paths = [os.path.join(directory, f) for f in sorted(files) if f.endswith(KINDS)]
        paths = [p for p in paths if not os.path.islink(p) and os.path.getsize(p) <= LARGEST]
        if paths:
            yield "\n".join(read_file(p, os.path.relpath(p, tree)) for p in paths)


def main():
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("tree")
    args.add_argument("--text", required=True)
    args.add_argument("--held", required=True)
    args.add_argument("--held-every", type=int, default=100)
    a = args.parse_args()
    with lzma.open(a.text, "wt", encoding="utf-8") as text, lzma.open(a.held, "wt", encoding="utf-8") as held:
        for i, document in enumerate(documents(a.tree)):
            (held if i % a.held_every == a.held_every - 1 else text).write(document + "\x1e")


if __name__ == "__main__":
    main()
