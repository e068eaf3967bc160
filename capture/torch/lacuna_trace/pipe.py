"""Tensors to disk while the model goes on: a ring of buffers and one thread that hashes and writes.

The caller's thread brings a piece (at most PIECE bytes) into a free buffer; on a GPU the piece is made contiguous
on the current stream and copied into pinned memory on a stream of its own. The writing thread waits for the copy,
adds the bytes to the checksum of their slice and writes them; hashing and pwrite run without the interpreter's
lock. When all buffers are full the caller waits, so host memory is bounded: RING * PIECE bytes.
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


class Slices:
    """A dataset that is being written: its place in the file and a running checksum per slice (head)."""

    def __init__(self, name, shape, row_bytes, fd, offset):
        self.name, self.shape, self.row_bytes, self.fd, self.offset = name, shape, row_bytes, fd, offset
        self.rows = shape[1]
        self.running = [xxh3.Hash() for _ in range(shape[0])]
        self.sums = None  # bytes per slice, once every row was written

    def consume(self, head, row, data):
        """Bytes of rows from `row` on of one head; called by the writing thread, in the order of rows."""
        self.running[head].update(data)
        at = self.offset + (head * self.rows + row) * self.row_bytes
        while len(data):
            done = os.pwrite(self.fd, data, at)
            data, at = data[done:], at + done
        if at == self.offset + (head + 1) * self.rows * self.row_bytes:
            self.running[head] = self.running[head].digest()

    def finish(self):
        if any(not isinstance(x, bytes) for x in self.running):
            raise TraceError(f"'{self.name}': not all of its {self.rows} rows came")
        self.sums, self.running = self.running, None


class Pipe:
    """The ring and its thread. `send` never keeps a reference to the caller's tensor."""

    def __init__(self, device):
        self.cuda = device.type == "cuda"
        self.stream = torch.cuda.Stream(device) if self.cuda else None
        self.free, self.work = queue.Queue(), queue.Queue()
        self.made, self.waited, self.bytes, self.error = 0, 0.0, 0, None
        self.thread = threading.Thread(target=self._run, name="lacuna-trace-writer", daemon=True)
        self.thread.start()

    def send(self, slices, head, row, x, ranges):
        """Rows row.. of the heads head..: x [heads][rows][dim] on any device, already of the stored dtype.

        `ranges` collects the smallest and the largest value of every piece, still on the device.
        """
        heads, rows = x.shape[:2]
        per_head = rows * slices.row_bytes
        if per_head <= PIECE:
            step = max(1, PIECE // max(1, per_head))
            for h in range(0, heads, step):
                self._piece(slices, head + h, row, x[h:h + step], ranges)
            return
        step = max(1, PIECE // slices.row_bytes)
        for h in range(heads):
            for r in range(0, rows, step):
                self._piece(slices, head + h, row + r, x[h:h + 1, r:r + step], ranges)

    def _piece(self, slices, head, row, x, ranges):
        size = x.numel() * x.element_size()
        buffer = self._buffer(size)
        target = buffer[:size].view(x.dtype).view(x.shape)
        event = None
        if self.cuda:
            x = x.contiguous()
            ranges.append(torch.aminmax(x))
            self.stream.wait_stream(torch.cuda.current_stream(x.device))
            with torch.cuda.stream(self.stream):
                target.copy_(x, non_blocking=True)
                x.record_stream(self.stream)
                event = self.stream.record_event()
        else:
            target.copy_(x)
            ranges.append(torch.aminmax(target))
        self.bytes += size
        self.work.put((slices, head, row, x.shape[0], buffer, size, event))

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
                return torch.empty(size, dtype=torch.uint8, pin_memory=self.cuda)
            start = time.perf_counter()
            buffer = self.free.get()
            self.waited += time.perf_counter() - start
        if self.error:
            raise self.error
        return buffer if buffer.numel() >= size else torch.empty(size, dtype=torch.uint8, pin_memory=self.cuda)

    def _run(self):
        while True:
            job = self.work.get()
            if job is None:
                return
            slices, head, row, heads, buffer, size, event = job
            try:
                if self.error is None:
                    if event is not None:
                        event.synchronize()
                    data, each = memoryview(buffer.numpy())[:size], size // heads
                    for h in range(heads):
                        slices.consume(head + h, row, data[h * each:(h + 1) * each])
            except BaseException as e:  # the caller's thread raises it at its next piece
                self.error = e if isinstance(e, OSError) else TraceError(f"writing '{slices.name}': {e}")
            self.free.put(buffer)

    def drain(self):
        """Wait until everything is written; raise what went wrong."""
        self.close()
        if self.error:
            raise self.error

    def close(self):
        if self.thread.is_alive():
            self.work.put(None)
            self.thread.join()
