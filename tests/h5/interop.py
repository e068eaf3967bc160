"""Other HDF5 libraries and programs against the files of lacuna (started by run.sh).

Traces (contiguous, zstd, deflate), a mask dump and an output dump are read by h5py and h5dump, element
by element where another source of the elements exists. h5py and h5repack write them again in the forms
that they have. lacuna must read such a copy with equal content, or refuse it and name the form; it must
not call it damaged. No command of lacuna reads an output dump, so copies of it are compared by h5py.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

import h5py
import numpy as np

LACUNA, ROOT = os.environ["LACUNA"], os.environ["ROOT"]
sys.path.insert(0, os.path.join(ROOT, "tests/data/h5"))
import rewrite_h5  # noqa: E402

HEADS, KV_HEADS, TOKENS, DIM, STEPS = 4, 2, 96, 16, 2
REPACK = {
    "plain": [],
    "superblock 0": ["--low=0", "--high=1"],
    "latest": ["--latest"],
    "deflated chunks": ["-f", "GZIP=4"],
    "shuffled chunks": ["-f", "SHUF", "-f", "GZIP=1"],
    "contiguous": ["-l", "CONTI"],
    "native types": ["-n"],
    "dense links": ["-c", "0", "-d", "0", "--low=1"],
    "user block": ["-u", "USERBLOCK", "-b", "512"],
    "shared messages": ["-s", "16"],
    "pages": ["-S", "PAGE", "-P", "1"],
}

passed = failed = 0


def say(ok, what, result):
    global passed, failed
    ok = bool(ok)
    passed, failed = passed + ok, failed + (not ok)
    print(f"{'ok    ' if ok else 'FAILED'} {what}: {result}")


def run(*argv):
    p = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=120)
    return p.returncode, p.stdout, p.stderr.strip()


def lacuna(*argv):
    rc, out, err = run(LACUNA, *argv)
    if rc:
        sys.exit(f"lacuna {' '.join(argv)}: exit {rc}: {err}")
    return out


def make_files(d):
    """The files by name; also q of the trace as it went in."""
    r = np.random.default_rng(1)
    arrays = {n: r.standard_normal((HEADS if n == "q" else KV_HEADS, TOKENS, DIM)).astype(np.float32) for n in "qkv"}
    for n, x in arrays.items():
        np.save(f"{d}/{n}.npy", x)
    lacuna("import", "-q", *(w for n in "qkv" for w in (f"--{n}", f"{d}/{n}.npy")), "--causal", "--maps", "16", "--name", "tiny", "-o",
           f"{d}/trace.h5")
    lacuna("trace", "pack", "-q", f"{d}/trace.h5", "-o", f"{d}/zstd.h5")
    lacuna("trace", "pack", "-q", "--gzip", f"{d}/trace.h5", "-o", f"{d}/deflate.h5")
    lacuna("replay", "-q", f"{d}/trace.h5", "-m", "dense", "-m", "streaming:window=16", "-m", "longformer", "--dump-masks", f"{d}/masks.h5",
           "--dump-outputs", f"{d}/outputs.h5", "-o", f"{d}/r")
    return {n: f"{d}/{n}.h5" for n in ("trace", "zstd", "deflate", "masks", "outputs")}, arrays


def elements(path):
    """Every attribute and element of a file, as bytes; chunks that this HDF5 cannot unpack as they are stored."""
    found, packed = {}, 0

    def take(name, o):
        nonlocal packed
        for a in o.attrs:
            v = o.attrs[a]
            found[f"{name}@{a}"] = v.encode() if isinstance(v, str) else np.asarray(v).tobytes().rstrip(b"\0")
        if isinstance(o, h5py.Dataset):
            raw = np.empty(o.shape, dtype=f"V{o.id.get_type().get_size()}")
            try:
                o.id.read(h5py.h5s.ALL, h5py.h5s.ALL, raw, mtype=o.id.get_type())
                found[name] = raw.tobytes()
            except OSError:
                packed += 1
                chunks = range(o.id.get_num_chunks())
                found[name] = b"".join(o.id.read_direct_chunk(o.id.get_chunk_info(i).chunk_offset)[1] for i in chunks)

    with h5py.File(path, "r") as f:
        take("/", f)
        f.visititems(take)
    return found, packed


def check_reading(files, arrays, have_dump):
    for name, path in files.items():
        found, packed = elements(path)
        wants = sum(1 for k in found if "@" not in k) if name == "zstd" else 0
        say(bool(found) and (packed > 0) == (wants > 0), f"h5py reads {name}",
            f"{len(found)} attributes and datasets" + (f", {packed} datasets packed with zstd as they are stored" if packed else ""))
        if have_dump:
            rc, out, err = run("h5dump", "-H" if name == "zstd" else "-y", path)
            say(rc == 0 and len(out) > 1000, f"h5dump reads {name}", "header and attributes" if name == "zstd" else "everything")
    with h5py.File(files["trace"], "r") as f:
        for n, x in arrays.items():
            paths = [p for p in walk(f) if p.endswith("/" + n)]
            say(len(paths) == 1 and np.array_equal(f[paths[0]][...], x), f"{n} of the trace in h5py", "is what was imported")


def walk(f):
    names = []
    f.visit(names.append)
    return names


def draw(path, at):
    """What lacuna sees of each mask of a dump: the data of its figure."""
    seen = []
    for head in range(HEADS):
        for method in ("streaming", "longformer"):
            rc, _, err = run(LACUNA, "plot", "mask", path, "--layers", "0", "--heads", str(head), "--method", method, "-q", "-o", f"{at}/m.svg")
            if rc:
                return rc, err
            seen.append(open(f"{at}/m.bin", "rb").read())
    return 0, seen


def content(name, path, at):
    """(0, content) as lacuna reads the file, or (exit code, message)."""
    if name == "outputs":
        return 0, elements(path)[0]
    if name == "masks":
        return draw(path, at)
    rc, out, err = run(LACUNA, "trace", "info", "--json", path)
    if rc:
        return rc, err
    rc, _, err = run(LACUNA, "trace", "verify", path)
    return rc, err if rc else re.search(r'"content_id": "([^"]*)"', out).group(1)


def check_copy(name, source, how, copy, at):
    what = f"{name} written by {how}"
    rc, seen = content(name, copy, at)
    if rc == 0:
        say(seen == content(name, source, at)[1], what, "read, equal content" if name != "outputs" else "equal elements")
        return
    reason = re.sub(r"^.*?copy\.h5:? ", "", seen.splitlines()[0])
    way_out = re.search("h5repack|h5unjam|h5py", reason)
    say(rc == 3 and way_out and "damaged" not in reason, what, f"refused: {reason}")


def check_copies(files, d, have_repack):
    copy, block = f"{d}/copy.h5", f"{d}/block"
    with open(block, "wb") as f:
        f.write(b"x" * 512)
    for name, path in files.items():
        for kind in rewrite_h5.LIBVER:
            sys.argv = ["rewrite_h5.py", kind, path, copy]
            try:
                rewrite_h5.main()
            except (ValueError, OSError) as e:  # this HDF5 has no zstd
                say(name == "zstd", f"{name}, h5py {kind}", f"cannot be written: {e}")
                continue
            check_copy(name, path, f"h5py {kind}", copy, d)
        for kind, options in REPACK.items() if have_repack else ():
            if name == "zstd" and kind not in ("plain", "superblock 0", "latest"):
                continue
            if os.path.exists(copy):
                os.remove(copy)
            options = [block if o == "USERBLOCK" else o for o in options]
            rc, _, err = run("h5repack", *options, path, copy)
            if rc and name == "zstd":
                say(True, f"zstd, h5repack {kind}", "h5repack has no zstd and says so")
            elif rc:
                say(False, f"{name}, h5repack {kind}", f"exit {rc}: {err}")
            else:
                check_copy(name, path, f"h5repack {kind}", copy, d)


def main():
    have_dump, have_repack = (shutil.which(p) is not None for p in ("h5dump", "h5repack"))
    tools = run("h5repack", "--version")[1].strip() if have_repack else "skipped: h5repack and h5dump of hdf5-tools are not installed"
    print(f"h5py {h5py.version.version} with HDF5 {h5py.version.hdf5_version}; {tools}")
    with tempfile.TemporaryDirectory() as d:
        files, arrays = make_files(d)
        check_reading(files, arrays, have_dump)
        check_copies(files, d, have_repack)
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0 or passed == 0)


if __name__ == "__main__":
    main()
