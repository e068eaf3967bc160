"""Samples of query rows: the same groups that `lacuna capture --rows` draws for the same seed."""
import re

import numpy as np

from .layout import TraceError, UsageError

GROUP = 128       # rows of a group are a multiple of it
_MASK = (1 << 64) - 1
_STREAM = 0x726F7773


def parse(text):
    """"64" or "64x256": (groups, rows of each)."""
    found = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
    groups, group = (int(found[1]), int(found[2] or GROUP)) if found else (0, 0)
    if groups < 2 or groups % 2 or group < GROUP or group % GROUP:
        raise UsageError(f"rows={text!r}: give an even number of groups, and with x the rows of each, a multiple of {GROUP}, as in "
                         "\"64\" or \"64x256\"")
    return groups, group


def _mix(x):
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK
    return x ^ x >> 31


def _below(seed, counter, n):
    """Uniform in 0..n-1, as core/rng.h of lacuna has it."""
    golden = 0x9E3779B97F4A7C15
    x = _mix(_mix(_mix(seed + golden & _MASK) ^ (_STREAM * 0xD1B54A32D192ED03 & _MASK)) + golden * (counter + 1) & _MASK)
    return x * n >> 64


def draw(n, groups, group, seed):
    """int32 positions: of every stratum one aligned group, uniform by the seed; of the last one the last group."""
    blocks = -(-n // group)
    if groups >= blocks:
        raise UsageError(f"{groups} groups of {group} rows: {n} rows have {blocks}; leave rows= out")
    at = []
    for t in range(groups):
        lo, hi = t * blocks // groups, (t + 1) * blocks // groups
        pick = blocks - 1 if t == groups - 1 else lo + _below(seed & _MASK, t, hi - lo)
        at.append(np.arange(pick * group, min((pick + 1) * group, n), dtype="<i4"))
    return np.concatenate(at)


def check(at, group, n_k, where):
    """Refuse positions that are no sample: aligned groups, ascending, the last one whole or at the end."""
    at = np.asarray(at, np.int64)
    i = np.arange(len(at)) % max(1, group)
    good = group >= GROUP and group % GROUP == 0 and len(at) and at[0] >= 0 and at[-1] < n_k and (np.diff(at) > 0).all()
    good = good and (at[i == 0] % group == 0).all() and (at - i == np.repeat(at[i == 0], group)[:len(at)]).all()
    if not good or (len(at) % group and at[-1] != n_k - 1):
        raise TraceError(f"{where}: its rows are no groups of {group} query rows of {n_k}")


def runs(at):
    """(first stored row, position, count) of every stretch of consecutive positions."""
    at = np.asarray(at)
    cuts = np.flatnonzero(np.diff(at) != 1) + 1
    for part in np.split(np.arange(len(at)), cuts):
        yield int(part[0]), int(at[part[0]]), len(part)
