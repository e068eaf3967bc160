#!/usr/bin/env python3
"""pages.py OUT DIR: from the pages that `lacuna reproduce -o OUT` made, DIR/PAPER.md, which keeps what
stands above its claims, DIR/PAPER.csv with every printed number, and the drawings in DIR/figures. Pages that
OUT does not have stay.

The claims of a paper become one table, less those without a number of ours. Notes that several places share
stand once, behind it. A figure and the text have their numbers that stand beside ours; settings and all other
printed numbers are in the CSV alone. Figures that DIR/cuda shows are not shown at reduced lengths too."""
import csv
import json
import re
import shutil
import sys
from pathlib import Path

PAPERS = "spargeattn sampleattention sale fg-attn".split()
LEFT_OUT = re.compile(r"(- Made by: |- A number of ours with letters |- For a model of your own|\*\*Printed / ours\*\*"
                      r"|\*\*Claims\*\*|[a-hq] [a-z]+ )")
WHY = "no number of ours here, because"
UNDECIDED = re.compile(r"\| open: (needs|no record) ")
NOTES = "## Notes of several places"


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
    """A list of printed numbers: those beside ours, of a figure with a GPU only."""
    head = cells(table[0])
    if head[-1] != WHY:
        return table
    if not is_text and not cuda:
        return []
    kept = [c for c in map(cells, table[2:]) if len(head) == (6 if is_text else 5) and c[-2] != "-"]
    return [row(c[:-1]) for c in [head, cells(table[1])] + kept] if kept else []


def filled_blocks(path):
    """Of each block of a table whether it has a number of ours; of a table with none all count."""
    blocks = {}
    for r in csv.DictReader(path.with_suffix(".csv").open(newline="")):
        blocks[r["block"]] = blocks.get(r["block"], False) or r["ours"] != ""
    return [has or not any(blocks.values()) for has in blocks.values()]


def section(path):
    """The rows of its claims, and the page without them and without blocks that are printed only."""
    lines, claims, body, table = path.read_text().splitlines(), [], [], []
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
        if not LEFT_OUT.match(line):
            body.append(line.replace("](../figures/", "](figures/"))
    return claims, "\n".join([lines[0], ""] + body)


def is_cuda(path):
    return "--backend cuda" in json.loads(path.with_suffix(".json").read_text())["command"]


def is_shown(path):
    page = json.loads(path.with_suffix(".json").read_text())
    ours = any(c.get("ours") for c in page["cells"])
    if path.stem.endswith("-text"):
        return ours and not is_cuda(path)
    return "![](" in path.read_text() or ours or any(c["n"] and c["model"] for c in page["claims"])


def kept(page, new):
    """The claims and sections of a page that are not of the new places, by place."""
    claims, sections, notes = {}, {}, []
    old = page.read_text().split("## Claims", 1)
    for text in re.split(r"(?m)^(?=## )", old[1])[1:] if len(old) > 1 else []:
        if text.startswith(NOTES):
            notes = [line[2:].split(": ", 1) for line in text.splitlines() if line.startswith("- ")]
        else:
            sections[text[text.index(", ") + 2:text.index("\n")]] = text.rstrip("\n") + "\n"
    for where, note in ((w, note) for places, note in notes for w in places.split(", ")):
        sections[where] += f"\n- {note}\n"
    for line in old[1].split("\n## ")[0].splitlines() if len(old) > 1 else []:
        if line.startswith("| ") and not line.startswith("| place |"):
            _, places, rest = line.split("|", 2)
            for w in places.strip().split(", "):
                claims.setdefault(w, []).append(f"| {w} |{rest}")
    return ({k: v for k, v in d.items() if k not in new} for d in (claims, sections))


def shared(sections, places):
    """A list of the notes that two places and more have, which it takes out of their sections."""
    where = {}
    for w in places:
        for note in re.findall(r"(?m)^- (.*)", sections[w]):
            where.setdefault(note, []).append(w)
    notes = {note: at for note, at in where.items() if len(at) > 1}
    for w in places:
        sections[w] = tidy("\n".join(line for line in sections[w].splitlines() if line[2:] not in notes))
    return [NOTES, ""] + [f"- {', '.join(at)}: {note}" for note, at in notes.items()] + [""] if notes else []


def tidy(text):
    """One empty line at most between paragraphs, none within a list; a figure is one paragraph with its notes."""
    text = re.sub(r"\n{3,}", "\n\n", text.strip("\n"))
    return re.sub(r"(?m)(?<=[\w)]\.)\n\n(?=!\[)|(?<=png\))\n\n(?=- )|(?<=\n)(- .*)\n\n(?=- )", r"\1\n", text) + "\n"


def claim_rows(claims):
    """The rows with a number of ours, one for all places that make the same claim of the same numbers."""
    where = {}
    for w in sorted(claims, key=order_of):
        for r in claims[w]:
            if not UNDECIDED.search(r):
                where.setdefault(r.split("|", 2)[2], []).append(w)
    return [f"| {', '.join(at)} |{rest}" for rest, at in where.items()]


def headings(page):
    """The places of a page, of none if there is no such page."""
    return set(re.findall(r"(?m)^## [^,\n]*, (.*)", page.read_text())) if page.exists() else set()


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
        larger = {w for w in headings(to / "cuda" / page.name) if w.lower().startswith("figure")}
        places = sorted(set(sections) - larger, key=order_of)
        notes = shared(sections, places)
        page.write_text(page.read_text().split("## Claims")[0]
                        + "\n".join(["## Claims", "", row(titles), row([":---"] * 11)]
                                    + claim_rows(claims) + [""] + notes + [sections[w] for w in places]))
        rows = list(csv.reader(table.open(newline=""))) if table.exists() else []
        for path in pages:
            mine = list(csv.reader(path.with_suffix(".csv").open(newline="")))
            mine = [mine[0]] + [r for r in mine[1:] if r[4] or r[6]]
            if not mine[1:]:
                continue
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
