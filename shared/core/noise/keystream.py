"""Cryptographic random words: the keystream of ChaCha20 (RFC 8439) under a 256-bit key.

OpenSSL's ChaCha20 gives 64 bits in about 1.5 ns, a seventh of what a ChaCha bit generator under numpy costs,
and the words are the same on every machine, which lets both parties repeat public draws to the bit.
`dpswd.shared.device_noise.fused` computes the same words on a CUDA device.
"""

from __future__ import annotations

import hashlib

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from dpswd.shared.core.errors import InvalidValue

KEY_BYTES = 32  # a 256-bit key; anything shorter would be the weakest link of the noise
WORDS_OF_BLOCK = 8  # 64-bit words of one block of ChaCha20
MOST_WORDS = WORDS_OF_BLOCK << 31  # of one key, 128 GiB: the block counter's 32 bits and a sign are never used up
_ZEROS = memoryview(bytes(1 << 16))  # 64 KiB of keystream at a time stays in a core's own cache


class Keystream:
    """A stream of uniform 64-bit words that no one without the key can tell from random.

    Args:
        key: 32 bytes, used for this one stream and for nothing else.

    Attributes:
        position: how many words were taken.

    Raises:
        InvalidValue: the key does not have 32 bytes.
    """

    def __init__(self, key: bytes) -> None:
        check_key(key)
        self._key = key
        self._encryptor = Cipher(ChaCha20(key, _counter_and_nonce(block=0, nonce=0)), mode=None).encryptor()
        self.position = 0

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next words of the stream.

        Args:
            count: how many, at least 0.

        Returns:
            (count,) little-endian unsigned words, in stream order.

        Raises:
            InvalidValue: the key has no more words.
        """
        check_place(self.position, count)
        self.position += count
        out = np.empty(count, dtype="<u8")
        raw = out.view(np.uint8).data
        for start in range(0, 8 * count, len(_ZEROS)):
            stop = min(start + len(_ZEROS), 8 * count)
            # Encrypting zeros writes the keystream itself.
            self._encryptor.update_into(_ZEROS[: stop - start], raw[start:stop])
        return out

    def tie_word(self, place: int) -> int:
        """The word at a place of the key's second stream (nonce 1), which decides what a word leaves open.

        It belongs to its place, so that what follows in the first stream does not depend on how often it is asked for.

        Args:
            place: in words from the beginning.
        """
        block, word = divmod(place, WORDS_OF_BLOCK)
        stream = Cipher(ChaCha20(self._key, _counter_and_nonce(block=block, nonce=1)), mode=None).encryptor()
        drawn = stream.update(bytes(8 * WORDS_OF_BLOCK))
        return int.from_bytes(drawn[8 * word : 8 * word + 8], "little")


def check_key(key: bytes) -> None:
    """Refuses a key that does not have 32 bytes, by InvalidValue."""
    if len(key) != KEY_BYTES:
        raise InvalidValue(f"a key has {len(key)} bytes; it must have exactly {KEY_BYTES}")


def check_place(first: int, count: int) -> None:
    """Refuses words that a key does not have, by InvalidValue."""
    if first < 0 or count < 0 or first + count > MOST_WORDS:
        raise InvalidValue(f"asked for {count} words from place {first}; one key has {MOST_WORDS}, use another key")


def _counter_and_nonce(*, block: int, nonce: int) -> bytes:
    """The last 16 bytes of the cipher's first state: a key is used for two streams only, so nonces may be constant."""
    return block.to_bytes(4, "little") + bytes(8) + nonce.to_bytes(4, "little")


def derived_key(seed: bytes, purpose: str) -> bytes:
    """A key for one purpose, so that two uses of one public seed never share a stream.

    Args:
        seed: 32 bytes.
        purpose: constant text that names the use; both parties must agree on it.

    Returns:
        32 bytes.

    Raises:
        InvalidValue: the seed does not have 32 bytes.
    """
    if len(seed) != KEY_BYTES:
        raise InvalidValue(f"a seed has {len(seed)} bytes; it must have exactly {KEY_BYTES}")
    return hashlib.sha256(b"dpswd/" + purpose.encode() + b"/" + seed).digest()
