from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.noise.keystream import MOST_WORDS, Keystream, check_place, derived_key


def test_first_block_is_rfc_8439s_for_the_zero_key() -> None:
    # RFC 8439, A.1, test vectors 1 and 2: key, nonce zero; blocks 0 and 1.
    expected = bytes.fromhex(
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )
    assert Keystream(bytes(32)).words(16).tobytes() == expected


def test_stream_does_not_depend_on_how_it_is_cut() -> None:
    whole = Keystream(b"k" * 32).words(20_000)
    stream = Keystream(b"k" * 32)
    parts = np.concatenate([stream.words(n) for n in (0, 1, 8_191, 8_193, 3_615)])  # a chunk, and one word more
    assert np.array_equal(whole, parts)


@pytest.mark.parametrize("place", [0, 1, 7, 8, 15, 1000])
def test_a_tie_is_broken_by_the_word_at_its_place_of_the_second_stream(place: int) -> None:
    """And the first stream goes on as if nobody had asked."""
    key, stream = b"k" * 32, Keystream(b"k" * 32)
    nonce = bytes(4) + bytes(8) + (1).to_bytes(4, "little")  # block 0, then RFC 8439's nonce, whose last word is 1
    second = Cipher(ChaCha20(key, nonce), mode=None).encryptor().update(bytes(8 * 1008))
    before = stream.words(5)
    assert stream.tie_word(place) == int.from_bytes(second[8 * place : 8 * place + 8], "little")
    assert stream.tie_word(place) not in Keystream(key).words(1008)
    assert np.array_equal(np.concatenate([before, stream.words(5)]), Keystream(key).words(10))


@pytest.mark.parametrize("length", [0, 31, 33])
def test_other_key_lengths_are_refused(length: int) -> None:
    with pytest.raises(InvalidValue, match="32"):
        Keystream(bytes(length))
    with pytest.raises(InvalidValue, match="32"):
        derived_key(bytes(length), "directions")


def test_purposes_and_seeds_give_different_keys() -> None:
    keys = {derived_key(bytes([seed]) * 32, purpose) for seed in range(4) for purpose in ("a", "b")}
    assert len(keys) == 8


@pytest.mark.parametrize(("first", "count"), [(-1, 1), (0, -1), (0, MOST_WORDS + 1), (MOST_WORDS, 1)])
def test_words_that_a_key_does_not_have_are_refused(first: int, count: int) -> None:
    check_place(0, MOST_WORDS)
    with pytest.raises(InvalidValue, match=f"{count} words from place {first}; one key has {MOST_WORDS}"):
        check_place(first, count)
