#!/usr/bin/env python3
"""pages.py OUT DIR: from the pages that `lacuna reproduce -o OUT` made, DIR/PAPER.md, which keeps what
stands above its claims, DIR/PAPER.csv with every printed number, and the drawings in DIR/figures. Pages that
OUT does not have stay.

The claims of a paper become one table. A figure has its numbers that stand beside ours, the text its
results; settings and all other printed numbers are in the CSV alone."""
import csv
import json
import re
import shutil
import sys
from pathlib import Path

PAPERS = "spargeattn sampleattention sale fg-attn".split()
LEFT_OUT = re.compile(r"(- Made by: |- A number of ours with letters |\*\*Printed / ours\*\*|[a-hq] [a-z]+ )")
WHY = "no number of ours here, because"
NO_RESULT = re.compile("a setting|ours has the same|a length|of a review|of the revised")


def place(path):
    """Tables first, then figures, then the numbers of the text."""
    item = path.stem[path.stem.index("-", 3 if path.stem[:3] == "fg-" else 0) + 1:]
    number = re.sub(r"\D.*", "", item.lstrip("f"))
    return item == "text", not item[0].isdigit(), int(number or 99), item


def cells(line):
    return [c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]]


def row(columns):
    ruler = all(re.fullmatch(r":?-+:?", c) for c in columns)
    return "|" + "|".join(":---" for _ in columns) + "|" if ruler else "| " + " | ".join(columns) + " |"


def shorten(table, is_text, cuda):
    """A list of printed numbers: in the text without settings; of a figure those beside ours, with a GPU."""
    head = cells(table[0])
    if head[-1] != WHY:
        return table
    if not is_text and not cuda:
        return []
    kept = [c for c in map(cells, table[2:])
            if (not NO_RESULT.match(c[-1]) if is_text else len(head) == 5 and c[-2] != "-")]
    end = len(head) if is_text else -1
    return [row(c[:end]) for c in [head, cells(table[1])] + kept] if kept else []


def filled_blocks(path):
    """Of each block of a table whether it has a number of ours; of a table with none all count."""
    blocks = {}
    for r in csv.DictReader(path.with_suffix(".csv").open(newline="")):
        blocks[r["block"]] = blocks.get(r["block"], False) or r["ours"] != ""
    return [has or not any(blocks.values()) for has in blocks.values()]


def section(path):
    """The rows of its claims, and the page without them and without blocks that are printed only."""
    lines, claims, body, table, own = path.read_text().splitlines(), [], [], [], ""
    blocks, is_claims = filled_blocks(path), False
    for line in lines[2:] + [""]:
        if line.startswith("|"):
            table.append(row(cells(line)))
            continue
        if table and is_claims:
            claims += table[2:]
        elif table and blocks.pop(0):
            body += shorten(table, path.stem.endswith("-text"), is_cuda(path))
        is_claims = line == "**Claims**" or (is_claims and not table)
        table = []
        if line.startswith("- For a model of your own"):
            own = line[2:]
        elif line != "**Claims**" and not LEFT_OUT.match(line):
            body.append(line.replace("](../figures/", "](figures/"))
    if body and re.match(r"\w", body[0]):
        body[0] += " " + own if own else ""
    elif own:
        body[:0] = [own, ""]
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(body).strip("\n"))
    text = re.sub(r"(?m)\n\n(?=!\[)|(?<=png\))\n\n(?=- )", "\n", text)  # a figure is one paragraph
    return claims, f"{lines[0]}\n\n{text}\n"


def is_cuda(path):
    return "--backend cuda" in json.loads(path.with_suffix(".json").read_text())["command"]


def is_shown(path):
    page = json.loads(path.with_suffix(".json").read_text())
    if path.stem.endswith("-text"):
        return not is_cuda(path)
    return ("![](" in path.read_text() or any(c.get("ours") for c in page["cells"])
            or any(c["n"] and c["model"] for c in page["claims"]))


def kept(page, new):
    """The claims and sections of a page that are not of the new places, by place."""
    claims, sections = {}, {}
    old = page.read_text().split("## Claims", 1)
    for text in re.split(r"(?m)^(?=## )", old[1])[1:] if len(old) > 1 else []:
        sections[text[text.index(", ") + 2:text.index("\n")]] = text.rstrip("\n") + "\n"
    for line in old[1].split("\n## ")[0].splitlines() if len(old) > 1 else []:
        if line.startswith("| ") and not line.startswith("| place |"):
            claims.setdefault(cells(line)[0], []).append(line)
    return ({k: v for k, v in d.items() if k not in new} for d in (claims, sections))


def order_of(where):
    """Tables first, then figures, then the rest; as place() has it for files."""
    number = re.match(r"\w+ (\d+)", where)
    return where.endswith("text"), not where.startswith("Table"), int(number[1]) if number else 99, where


def main(out, to):
    for paper in PAPERS:
        pages = sorted((out / "pages").glob(paper + "-*.md"), key=place)
        page, table = to / (paper + ".md"), to / (paper + ".csv")
        new = {path: section(path) for path in pages}
        where = {path: text[text.index(", ") + 2:text.index("\n")] for path, (_, text) in new.items()}
        claims, sections = kept(page, where.values())
        for path in filter(is_shown, pages):
            claims[where[path]] = [f"| {where[path]} {r}" for r in new[path][0]]
            sections[where[path]] = new[path][1]
        titles = "place claim printed model metric A B test value n ours".split()
        titles[8] += " [95 %]"
        places = sorted(sections, key=order_of)
        page.write_text(page.read_text().split("## Claims")[0]
                        + "\n".join(["## Claims", "", row(titles), row([":---"] * 11)]
                                    + [r for w in places for r in claims.get(w, [])])
                        + "\n\n" + "\n".join(sections[w] for w in places))
        rows = list(csv.reader(table.open(newline=""))) if table.exists() else []
        for path in pages:
            mine = list(csv.reader(path.with_suffix(".csv").open(newline="")))
            mine = [mine[0]] + [r for r in mine[1:] if r[4] or r[6]]
            at = next((i for i, r in enumerate(rows) if r[0] == mine[-1][0]), len(rows))
            rows = [r for r in rows if r[0] != mine[-1][0]]
            rows[at:at] = mine[1:] if rows else mine
        with table.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
        for name in re.findall(r"figures/([\w-]+\.png)", page.read_text()):
            if (out / "figures" / name).exists():
                shutil.copy(out / "figures" / name, to / "figures" / name)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
