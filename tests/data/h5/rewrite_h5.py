#!/usr/bin/env python3
"""Write an HDF5 file again with h5py: the same groups, datasets and attributes, stored another way.

    python3 rewrite_h5.py KIND IN.h5 OUT.h5

KIND is what h5py users do:

    earliest   h5py's default: superblock 0, symbol tables, object headers of version 1
    v108       superblock 2, compact links and attributes, and dense ones where they are many
    latest     libver="latest" of the HDF5 that h5py was built with
    ordered    v108 with creation order tracked and indexed
    vlen       earliest with attributes as variable-length strings, as h5py writes a Python str
    chunked    v108 with chunked datasets: whole and at the edge, growing, in one chunk, allocated early

Elements, types and names are kept, so a reader of the original reads the copy. Filters are kept
where the HDF5 of h5py has them; chunks of others are copied as they are stored.
"""
import sys

import h5py
import numpy as np

LIBVER = {
    "earliest": ("earliest", "v108"),
    "vlen": ("earliest", "v108"),
    "v108": ("v108", "v108"),
    "ordered": ("v108", "v108"),
    "chunked": ("v108", "v108"),
    "latest": "latest",
}


def copy_attributes(kind, src, dst):
    for name in src.attrs:
        a = h5py.h5a.open(src.id, name.encode())
        t = a.get_type()
        if kind == "vlen" and t.get_class() == h5py.h5t.STRING:
            dst.attrs[name] = src.attrs[name].decode()
            continue
        value = np.empty(a.shape, dtype=a.dtype)
        a.read(value, mtype=t)
        new = h5py.h5a.create(dst.id, name.encode(), t, a.get_space())
        new.write(value, mtype=t)


def creation_properties(kind, d, n):
    p = d.id.get_create_plist().copy()
    if kind != "chunked" or len(d.shape) == 0 or 0 in d.shape:
        return p, d.id.get_space()
    p = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    most = list(d.shape)
    chunk = [max(1, x // 2) for x in d.shape]
    way = n % 5
    if way == 1:
        most[0] = h5py.h5s.UNLIMITED
    elif way == 2:
        most = [h5py.h5s.UNLIMITED] * len(d.shape)
    elif way == 3:
        chunk = list(d.shape)
    elif way == 4:
        p.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    p.set_chunk(tuple(chunk))
    return p, h5py.h5s.create_simple(d.shape, tuple(most))


def copy_dataset(kind, d, parent, name, types, n):
    p, space = creation_properties(kind, d, n)
    t = d.id.get_type()
    if t.committed() and "bfloat16" in types:
        t = types["bfloat16"]
    new = h5py.h5d.create(parent.id, name.encode(), t, space, dcpl=p)
    if d.chunks and kind != "chunked":
        for i in range(d.id.get_num_chunks()):
            at = d.id.get_chunk_info(i).chunk_offset
            mask, raw = d.id.read_direct_chunk(at)
            new.write_direct_chunk(at, raw, filter_mask=mask)
    else:
        raw = np.empty(d.shape, dtype="V%d" % t.get_size())
        d.id.read(h5py.h5s.ALL, h5py.h5s.ALL, raw, mtype=d.id.get_type())
        new.write(h5py.h5s.ALL, h5py.h5s.ALL, raw, mtype=t)
    copy_attributes(kind, d, h5py.Dataset(new))


def copy_group(kind, src, dst, types, n=0):
    copy_attributes(kind, src, dst)
    for name in sorted(src, key=lambda x: (x != "types", x)):
        o = src[name]
        if isinstance(o, h5py.Group):
            n = copy_group(kind, o, dst.create_group(name, track_order=kind == "ordered"), types, n)
        elif isinstance(o, h5py.Datatype):
            t = o.id.copy()
            t.commit(dst.id, name.encode())
            types[name] = t
        else:
            copy_dataset(kind, o, dst, name, types, n)
            n += 1
    return n


def main():
    kind, src, dst = sys.argv[1:]
    with h5py.File(src, "r") as a, h5py.File(
        dst, "w", libver=LIBVER[kind], track_order=kind == "ordered"
    ) as b:
        copy_group(kind, a, b, {})


if __name__ == "__main__":
    main()
