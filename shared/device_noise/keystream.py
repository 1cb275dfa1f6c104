"""ChaCha20 in integer tensor operations: `dpswd.shared.core.noise.keystream`, bit for bit, where a tensor lives.

Only additions modulo 2^32, exclusive ors and shifts, all blocks of a chunk side by side: no branch and no address
depends on the key or on what is drawn. On a CPU OpenSSL is far faster; there this serves the tests.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpswd.shared.core.noise.keystream import WORDS_OF_BLOCK, check_key, check_place

_CONSTANTS = b"expand 32-byte k"  # RFC 8439, 2.3
_DOUBLE_ROUNDS = 10
_CHUNK = {"cpu": 1 << 12, "cuda": 1 << 20}  # blocks at a time: 256 KiB stay in a core's cache, 64 MiB fill a GPU


def key_words(key: bytes, device: torch.device) -> Tensor:
    """The key as ChaCha20 reads it, on a device. Whoever asks for it overwrites it after use.

    Args:
        key: 32 bytes.
        device: where the tensor lives.

    Returns:
        (8,) int32, the bits of unsigned words.

    Raises:
        InvalidValue: the key does not have 32 bytes.
    """
    check_key(key)
    return _little_endian(key).to(device, copy=True)


def words(key: Tensor, *, first: int, count: int, nonce: int) -> Tensor:
    """Words of a key's stream from any place.

    Args:
        key: (8,) int32 from `key_words`.
        first: place of the first word, counted from the beginning of the stream.
        count: how many, at least 0.
        nonce: 0 for the first stream, 1 for the one of `Keystream.tie_word`.

    Returns:
        (count,) int64 on the key's device, the bits of unsigned words.

    Raises:
        InvalidValue: the key has no such words.
    """
    check_place(first, count)
    begin, end = first // WORDS_OF_BLOCK, -(-(first + count) // WORDS_OF_BLOCK)
    drawn = torch.empty(end - begin, WORDS_OF_BLOCK, dtype=torch.int64, device=key.device)
    chunk = _CHUNK.get(key.device.type, _CHUNK["cuda"])
    for start in range(begin, end, chunk):
        stop = min(start + chunk, end)
        _blocks(key, start, nonce, out=drawn[start - begin : stop - begin])
    return drawn.reshape(-1)[first - begin * WORDS_OF_BLOCK :][:count]


def _blocks(key: Tensor, first: int, nonce: int, *, out: Tensor) -> None:
    """Writes the blocks from `first` on to out (n, 8) int64, and leaves nothing else behind."""
    count = len(out)
    begin = torch.zeros(4, 4, count, dtype=torch.int32, device=key.device)  # the 16 words of each block's state
    begin[0] = _little_endian(_CONSTANTS).to(key.device)[:, None]
    begin[1:3] = key.reshape(2, 4, 1)
    begin[3, 0] = torch.arange(first, first + count, dtype=torch.int32, device=key.device)
    begin[3, 3] = nonce
    a, b, c, d = begin.clone().unbind()  # (4, n) each
    spare = torch.empty_like(a)
    for _ in range(_DOUBLE_ROUNDS):
        _quarter_rounds(a, b, c, d, spare)
        for turned, row in enumerate((b, c, d), start=1):
            _turn(row, turned, spare)
        _quarter_rounds(a, b, c, d, spare)
        for turned, row in enumerate((b, c, d), start=1):
            _turn(row, 4 - turned, spare)
    for row, start in zip((a, b, c, d), begin, strict=True):
        row += start
    # Word 2 j is the lower half of the 64-bit word j; the view is little-endian, as every machine with CUDA is.
    halves = out.view(torch.int32)  # (n, 16)
    for i, row in enumerate((a, b, c, d)):
        halves[:, 4 * i : 4 * i + 4] = row.T
    for secret in (a, b, c, d, spare, begin):
        secret.zero_()


def _quarter_rounds(a: Tensor, b: Tensor, c: Tensor, d: Tensor, spare: Tensor) -> None:
    """RFC 8439, 2.1, on four columns at once, in place."""
    for x, y, z, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        x += y
        z ^= x
        # Rotate left by `by`; int32 shifts to the right drag the sign along, which the mask takes away.
        torch.bitwise_right_shift(z, 32 - by, out=spare)
        spare &= (1 << by) - 1
        z <<= by
        z |= spare


def _turn(row: Tensor, by: int, spare: Tensor) -> None:
    """Entry i of the row becomes entry i + by modulo 4, in place."""
    spare.copy_(row)
    row[: 4 - by] = spare[by:]
    row[4 - by :] = spare[:by]


def _little_endian(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.int32)
