"""Tensors to disk while the model goes on: a ring of buffers, threads that hash and one that writes.

The caller's thread brings a piece (at most PIECE bytes) into a free buffer. On a GPU a stream gathers it into memory of
its own, as soon as it is whole: beside the attention that reads it too, not behind it. A second stream copies it into
pinned memory. The threads wait for the copy; some add the bytes to the checksum of their slice, each of its own heads, one
writes them; hashing and pwrite run without the interpreter's lock. When all buffers are full the caller waits, so host
memory is bounded: RING * PIECE bytes.
"""
import os
import queue
import threading
import time

import torch

from . import xxh3
from .layout import TraceError

PIECE = 64 << 20
RING = 6
HASHERS = max(1, min(6, len(os.sched_getaffinity(0)) // 2))  # one reads what a GPU has just written at 6 GB/s


class Slices:
    """A dataset that is being written: its place in the file and a running checksum per slice (head)."""

    def __init__(self, name, shape, row_bytes, fd, offset):
        self.name, self.shape, self.row_bytes, self.fd, self.offset = name, shape, row_bytes, fd, offset
        self.rows = shape[1]
        self.running = [xxh3.Hash() for _ in range(shape[0])]
        self.sums = None  # bytes per slice, once every row was written

    def hash(self, head, row, data):
        """Bytes of rows from `row` on of one head, in the order of rows."""
        self.running[head].update(data)
        if row * self.row_bytes + len(data) == self.rows * self.row_bytes:
            self.running[head] = self.running[head].digest()

    def write(self, head, row, data):
        at = self.offset + (head * self.rows + row) * self.row_bytes
        while len(data):
            done = os.pwrite(self.fd, data, at)
            data, at = data[done:], at + done

    def finish(self):
        if any(not isinstance(x, bytes) for x in self.running):
            raise TraceError(f"'{self.name}': not all of its {self.rows} rows came")
        self.sums, self.running = self.running, None


class Whole:
    """A moment of a GPU's current stream, and the memory of the tensors that were whole then."""

    def __init__(self, tensors):
        self.event = torch.cuda.current_stream(tensors[0].device).record_event()
        self.memory = {x.untyped_storage().data_ptr() for x in tensors}

    @classmethod
    def before(cls, args):
        """Of the arguments that a function is about to get; None when they lie on no GPU or on several."""
        tensors = [x for x in args if type(x) is torch.Tensor and x.is_cuda]
        return cls(tensors) if tensors and all(x.device == tensors[0].device for x in tensors) else None

    def event_of(self, x):
        """The event when x is a view of one of the tensors."""
        return self.event if x.untyped_storage().data_ptr() in self.memory else None


class _Streams:
    """The two streams of a device. They come before the current stream where both have work for the GPU."""

    def __init__(self, device):
        self.gather, self.copy = (torch.cuda.Stream(device, priority=-1) for _ in range(2))

    def fetch(self, x, target, whole):
        """x into the pinned `target`; (event of its end, smallest and largest value on the device)."""
        current = torch.cuda.current_stream(x.device)
        with torch.cuda.stream(self.gather):
            self.gather.wait_event(current.record_event() if whole is None else whole)
            part = torch.empty(target.shape, dtype=target.dtype, device=x.device).copy_(x)
            ends = torch.aminmax(part)
            gathered = self.gather.record_event()
        current.wait_event(gathered)  # the program may write to x again, as into a cache of fixed size
        with torch.cuda.stream(self.copy):
            self.copy.wait_event(gathered)
            target.copy_(part, non_blocking=True)
            part.record_stream(self.copy)
            return self.copy.record_event(), ends


class _Piece:
    """Bytes of some heads in a buffer, which is free again after all threads are done with it."""

    def __init__(self, slices, head, row, heads, buffer, size, event):
        self.slices, self.row, self.buffer, self.event = slices, row, buffer, event
        self.heads = range(head, head + heads)
        self.data, self.each = memoryview(buffer.numpy())[:size], size // heads

    def take(self, hasher):
        """What a thread does: write all, or hash the heads that are its own."""
        do = self.slices.write if hasher is None else self.slices.hash
        mine = [h for h in self.heads if hasher is None or h % HASHERS == hasher]
        if mine and self.event is not None:
            self.event.synchronize()
        for h in mine:
            at = (h - self.heads[0]) * self.each
            do(h, self.row, self.data[at:at + self.each])


class Pipe:
    """The ring and its threads. `send` never keeps a reference to the caller's tensor."""

    def __init__(self, device):
        self.cuda = device.type == "cuda"
        self.streams = {}  # by device: a model may lie on several
        self.free, self.lock = queue.Queue(), threading.Lock()
        self.made, self.waited, self.bytes, self.error = 0, 0.0, 0, None
        self.work = {hasher: queue.Queue() for hasher in (None, *range(HASHERS))}
        self.threads = [threading.Thread(target=self._run, args=(hasher,), name="lacuna-trace", daemon=True) for hasher in self.work]
        for t in self.threads:
            t.start()

    def send(self, slices, head, row, x, dtype, ranges, whole=None):
        """Rows row.. of the heads head..: x [heads][rows][dim] on any device, stored as `dtype`.

        `ranges` collects the smallest and the largest value of every piece, still on the device. whole: since when x is
        what it is now (Whole), else since now.
        """
        heads, rows = x.shape[:2]
        per_head = rows * slices.row_bytes
        many, long = max(1, PIECE // max(1, per_head)), max(1, PIECE // max(1, slices.row_bytes))
        for h in range(0, heads, many):
            for r in range(0, rows, long):
                self._piece(slices, head + h, row + r, x[h:h + many, r:r + long], dtype, ranges, whole)

    def _piece(self, slices, head, row, x, dtype, ranges, whole):
        size = x.numel() * dtype.itemsize
        buffer = self._buffer(size)
        target, event = buffer[:size].view(dtype).view(x.shape), None
        if x.is_cuda:
            if x.device not in self.streams:
                self.streams[x.device] = _Streams(x.device)
            event, ends = self.streams[x.device].fetch(x, target, whole and whole.event_of(x))
            ranges.append(ends)
        else:
            target.copy_(x)
            ranges.append(torch.aminmax(target))
        self.bytes += size
        piece = _Piece(slices, head, row, x.shape[0], buffer, size, event)
        piece.left = len(self.work)
        for work in self.work.values():
            work.put(piece)

    def _buffer(self, size):
        """A free buffer, a new one while there are fewer than RING, else the next that becomes free."""
        if self.error:
            raise self.error
        size = max(size, 1)
        try:
            buffer = self.free.get_nowait()
        except queue.Empty:
            if self.made < RING:
                self.made += 1
                return self._new_buffer(size)
            start = time.perf_counter()
            buffer = self.free.get()
            self.waited += time.perf_counter() - start
        if self.error:
            raise self.error
        return buffer if buffer.numel() >= size else self._new_buffer(size)

    def _new_buffer(self, size):
        """Of the size of most pieces, unless all are small: pinning takes time, and another piece comes next."""
        return torch.empty(size if size < PIECE // 8 else max(size, PIECE), dtype=torch.uint8, pin_memory=self.cuda)

    def _run(self, hasher):
        """A thread: write every piece, or hash the heads of one hasher."""
        while True:
            piece = self.work[hasher].get()
            if piece is None:
                return
            try:
                if self.error is None:
                    piece.take(hasher)
            except BaseException as e:  # the caller's thread raises it at its next piece
                self.error = e if isinstance(e, OSError) else TraceError(f"writing '{piece.slices.name}': {e}")
            with self.lock:
                piece.left -= 1
                done = not piece.left
            if done:
                self.free.put(piece.buffer)

    def drain(self):
        """Wait until everything is written; raise what went wrong."""
        self.close()
        if self.error:
            raise self.error

    def close(self):
        for work in self.work.values():
            work.put(None)
        for t in self.threads:
            t.join()
