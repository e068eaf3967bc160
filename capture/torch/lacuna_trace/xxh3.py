"""XXH3-128 (seed 0): the checksum of trace files.

Three implementations of the same function, in the order in which they are tried: the package `xxhash`, the
library libxxhash through ctypes, and NumPy. The first two run at memory speed (more than 10 GB/s). The third
needs nothing but runs at a few hundred MB/s, so `implementation()` says which one is in use.

NumPy: the accumulator of a block of 1024 bytes is a sum over its 16 stripes that does not depend on the blocks
before it. These sums are computed for many blocks at once; only the scrambling between blocks is sequential.
Source: the XXH3 specification and xxhash.h of xxHash 0.8.
"""
import ctypes
import ctypes.util

import numpy as np

_M64 = (1 << 64) - 1
_P32_1, _P32_2, _P32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_P64_1, _P64_2, _P64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P64_4, _P64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_MX1, _MX2 = 0x165667919E3779F9, 0x9FB21C651E98DF25

# kSecret: 192 bytes, a constant of the specification.
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221b8084674f743248e"
    "e03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8fa763fe39c343ff9dcbbc7c70b4f1d"
    "8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc"
    "8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e")

_STRIPE, _PER_BLOCK, _BLOCK = 64, 16, 1024
_ACC = np.array([_P32_3, _P64_1, _P64_2, _P64_3, _P64_4, _P32_2, _P64_5, _P32_1], np.uint64)
_KEYS = np.stack([np.frombuffer(_SECRET, "<u8", 8, 8 * i) for i in range(_PER_BLOCK)])
_SCRAMBLE = np.frombuffer(_SECRET, "<u8", 8, len(_SECRET) - _STRIPE)
_LAST_KEY = np.frombuffer(_SECRET, "<u8", 8, len(_SECRET) - _STRIPE - 7)
_LOW = np.uint64(0xFFFFFFFF)
_SWAP = [1, 0, 3, 2, 5, 4, 7, 6]
_MANY = 2048  # blocks per NumPy call: the temporaries stay in the cache


# ---- NumPy ------------------------------------------------------------------------------------


def _u32(data, at):
    return int.from_bytes(data[at:at + 4], "little")


def _u64(data, at):
    return int.from_bytes(data[at:at + 8], "little")


def _swap64(x):
    return int.from_bytes(x.to_bytes(8, "little"), "big")


def _avalanche(x):
    x ^= x >> 37
    x = x * _MX1 & _M64
    return x ^ x >> 32


def _avalanche64(x):
    x ^= x >> 33
    x = x * _P64_2 & _M64
    x ^= x >> 29
    x = x * _P64_3 & _M64
    return x ^ x >> 32


def _fold(a, b):
    product = a * b
    return product & _M64 ^ product >> 64


def _to_3(data):
    n, first, middle, last = len(data), data[0], data[len(data) >> 1], data[-1]
    low = first << 16 | middle << 24 | last | n << 8
    swapped = int.from_bytes(low.to_bytes(4, "little"), "big")
    high = (swapped << 13 | swapped >> 19) & 0xFFFFFFFF
    return (_avalanche64(low ^ _u32(_SECRET, 0) ^ _u32(_SECRET, 4)),
            _avalanche64(high ^ _u32(_SECRET, 8) ^ _u32(_SECRET, 12)))


def _to_8(data):
    n = len(data)
    x = (_u32(data, 0) | _u32(data, n - 4) << 32) ^ _u64(_SECRET, 16) ^ _u64(_SECRET, 24)
    product = x * ((_P64_1 + (n << 2)) & _M64)
    low, high = product & _M64, product >> 64
    high = high + (low << 1) & _M64
    low ^= high >> 3
    low ^= low >> 35
    low = low * _MX2 & _M64
    low ^= low >> 28
    return low, _avalanche(high)


def _to_16(data):
    n = len(data)
    flip_low, flip_high = _u64(_SECRET, 32) ^ _u64(_SECRET, 40), _u64(_SECRET, 48) ^ _u64(_SECRET, 56)
    low, high = _u64(data, 0), _u64(data, n - 8)
    product = (low ^ high ^ flip_low) * _P64_1
    m_low, m_high = (product & _M64) + (n - 1 << 54) & _M64, product >> 64
    high ^= flip_high
    m_high = m_high + high + (high & 0xFFFFFFFF) * (_P32_2 - 1) & _M64
    m_low ^= _swap64(m_high)
    product = m_low * _P64_2
    return _avalanche(product & _M64), _avalanche((product >> 64) + m_high * _P64_2 & _M64)


def _mix16(data, at, key):
    return _fold(_u64(data, at) ^ _u64(_SECRET, key), _u64(data, at + 8) ^ _u64(_SECRET, key + 8))


def _mix32(low, high, data, a, b, key):
    low = low + _mix16(data, a, key) & _M64 ^ _u64(data, b) + _u64(data, b + 8) & _M64
    high = high + _mix16(data, b, key + 16) & _M64 ^ _u64(data, a) + _u64(data, a + 8) & _M64
    return low, high


def _finish_middle(low, high, n):
    a = low + high & _M64
    b = low * _P64_1 + high * _P64_4 + n * _P64_2 & _M64
    return _avalanche(a), -_avalanche(b) & _M64


def _to_128(data):
    n, low, high = len(data), len(data) * _P64_1 & _M64, 0
    for i in range((n - 1) // 32, -1, -1):
        low, high = _mix32(low, high, data, 16 * i, n - 16 * (i + 1), 32 * i)
    return _finish_middle(low, high, n)


def _to_240(data):
    n, low, high = len(data), len(data) * _P64_1 & _M64, 0
    for i in range(32, 160, 32):
        low, high = _mix32(low, high, data, i - 32, i - 16, i - 32)
    low, high = _avalanche(low), _avalanche(high)
    for i in range(160, n + 1, 32):
        low, high = _mix32(low, high, data, i - 32, i - 16, 3 + i - 160)
    low, high = _mix32(low, high, data, n - 16, n - 32, 136 - 17 - 16)
    return _finish_middle(low, high, n)


def _short(data):
    n = len(data)
    if n > 128:
        return _to_240(data)
    if n > 16:
        return _to_128(data)
    if n > 8:
        return _to_16(data)
    if n >= 4:
        return _to_8(data)
    if n:
        return _to_3(data)
    return (_avalanche64(_u64(_SECRET, 64) ^ _u64(_SECRET, 72)), _avalanche64(_u64(_SECRET, 80) ^ _u64(_SECRET, 88)))


def _stripes(words, keys):
    """What stripes add to the accumulator: words [..., stripes, 8] and their keys, summed over the stripes."""
    mixed = words ^ keys
    product = (mixed & _LOW) * (mixed >> np.uint64(32))
    return product.sum(-2, dtype=np.uint64) + words.sum(-2, dtype=np.uint64)[..., _SWAP]


def _scramble(acc):
    acc ^= acc >> np.uint64(47)
    acc ^= _SCRAMBLE
    acc *= np.uint64(_P32_1)


def _merge(acc, at, start):
    words = [int(x) for x in acc]
    for i in range(4):
        start += _fold(words[2 * i] ^ _u64(_SECRET, at + 16 * i), words[2 * i + 1] ^ _u64(_SECRET, at + 16 * i + 8))
    return _avalanche(start & _M64)


class NumpyHash:
    """A running XXH3-128 in NumPy. Bytes wait in `rest` until more than a block is there: the last one is special."""

    def __init__(self):
        self.acc, self.rest, self.length, self.tail = _ACC.copy(), b"", 0, b""

    def update(self, data):
        data = memoryview(data).cast("B")
        self.length += len(data)
        if len(self.rest) + len(data) <= _BLOCK:
            self.rest += bytes(data)
            return
        if self.rest:
            need = _BLOCK - len(self.rest) % _BLOCK
            self._blocks(self.rest + bytes(data[:need]))
            data = data[need:]
        whole = (len(data) - 1) // _BLOCK * _BLOCK if len(data) else 0
        self._blocks(data[:whole])
        self.rest = bytes(data[whole:])

    def _blocks(self, data):
        if not len(data):
            return
        self.tail = bytes(data[-_STRIPE:])
        words = np.frombuffer(data, "<u8").reshape(-1, _PER_BLOCK, 8)
        for at in range(0, len(words), _MANY):
            for block in _stripes(words[at:at + _MANY], _KEYS):
                self.acc += block
                _scramble(self.acc)

    def digest(self):
        """16 bytes, high half first, big-endian."""
        low, high = self._value()
        return high.to_bytes(8, "big") + low.to_bytes(8, "big")

    def _value(self):
        if self.length <= 240:
            return _short(self.rest)
        acc, n = self.acc.copy(), (len(self.rest) - 1) // _STRIPE if self.rest else 0
        if n:
            words = np.frombuffer(self.rest, "<u8", n * 8).reshape(n, 8)
            acc += _stripes(words, _KEYS[:n])
        last = (self.tail + self.rest)[-_STRIPE:]
        acc += _stripes(np.frombuffer(last, "<u8").reshape(1, 8), _LAST_KEY)
        return (_merge(acc, 11, self.length * _P64_1 & _M64),
                _merge(acc, len(_SECRET) - _STRIPE - 11, ~(self.length * _P64_2) & _M64))


# ---- libraries --------------------------------------------------------------------------------


class _Digest(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


def _load_library():
    name = ctypes.util.find_library("xxhash")
    try:
        lib = ctypes.CDLL(name) if name else None
        if lib is None:
            return None
        lib.XXH3_createState.restype = ctypes.c_void_p
        for f in (lib.XXH3_128bits_reset, lib.XXH3_freeState, lib.XXH3_128bits_digest):
            f.argtypes = [ctypes.c_void_p]
        lib.XXH3_128bits_update.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        lib.XXH3_128bits_digest.restype = _Digest
        return lib
    except (OSError, AttributeError):
        return None


def _library_class(lib):
    class LibraryHash:
        """A running XXH3-128 of libxxhash; update() releases the interpreter's lock."""

        def __init__(self):
            self.state = lib.XXH3_createState()
            lib.XXH3_128bits_reset(self.state)

        def update(self, data):
            data = np.frombuffer(data, np.uint8)
            if data.size:
                lib.XXH3_128bits_update(self.state, data.ctypes.data, data.size)

        def digest(self):
            d = lib.XXH3_128bits_digest(self.state)
            return d.high.to_bytes(8, "big") + d.low.to_bytes(8, "big")

        def __del__(self):
            lib.XXH3_freeState(self.state)

    return LibraryHash


def _choose():
    try:
        import xxhash
        return xxhash.xxh3_128, "xxhash"
    except ImportError:
        pass
    lib = _load_library()
    return (_library_class(lib), "libxxhash") if lib else (NumpyHash, "numpy")


Hash, _name = _choose()


def implementation():
    """"xxhash", "libxxhash" or "numpy"."""
    return _name


def digest(data):
    """XXH3-128 of bytes or of an array in C order: 16 bytes, as `xxhsum -H2` prints them."""
    h = Hash()
    h.update(np.ascontiguousarray(data).reshape(-1).view(np.uint8) if isinstance(data, np.ndarray) else data)
    return h.digest()


def text(data):
    """"xxh3:" and 32 hexadecimal digits, the form of all identities in a trace."""
    return "xxh3:" + digest(data).hex()
