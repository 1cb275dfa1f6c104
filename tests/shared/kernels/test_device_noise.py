"""ChaCha20 and the sampler in integer tensor operations, and as one kernel on CUDA, against OpenSSL and the CPU."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from dpswd.shared.core.errors import InvalidValue, SettingsError
from dpswd.shared.core.noise.grid_gaussian import grid_gaussian_table
from dpswd.shared.core.noise.keystream import MOST_WORDS, Keystream
from dpswd.shared.device_noise.keystream import key_words, words
from dpswd.shared.device_noise.noise import DeviceSampler, DeviceTable

KEY = b"a key of thirty-two bytes, a key"
CUDA_ALONE = pytest.param(
    "cuda",
    marks=[
        pytest.mark.cuda,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
    ],
)


def _openssl(first: int, count: int) -> np.ndarray:
    stream = Keystream(KEY)
    stream.words(first)
    return stream.words(count)


def _on_cpu(first: int, count: int) -> torch.Tensor:
    stream = Keystream(KEY)
    stream.words(first)
    return torch.from_numpy(grid_gaussian_table().sample(stream, count))


@pytest.mark.parametrize(("first", "count"), [(0, 0), (0, 1), (7, 2), (3, 40_000), (32_768, 8), (1 << 20, 1000)])
def test_words_are_openssls_from_every_place(first: int, count: int, device: torch.device) -> None:
    drawn = words(key_words(KEY, device), first=first, count=count, nonce=0)
    assert drawn.device.type == device.type
    assert np.array_equal(drawn.cpu().numpy().view(np.uint64), _openssl(first, count))


def test_tie_words_are_the_second_stream_at_the_same_place(device: torch.device) -> None:
    drawn = words(key_words(KEY, device), first=5, count=20, nonce=1).cpu().numpy().view(np.uint64)
    assert drawn.tolist() == [Keystream(KEY).tie_word(place) for place in range(5, 25)]
    assert not np.array_equal(drawn, _openssl(5, 20))


def test_words_far_behind_the_beginning_are_openssls(device: torch.device) -> None:
    """Up to the last word of a key, where a block counter that is read as a signed number would go wrong."""
    for first in (MOST_WORDS // 2 - 3, MOST_WORDS - 9):
        drawn = words(key_words(KEY, device), first=first, count=9, nonce=1).cpu().numpy().view(np.uint64)
        assert drawn.tolist() == [Keystream(KEY).tie_word(place) for place in range(first, first + 9)]


def test_a_key_has_an_end(device: torch.device) -> None:
    for refused in (lambda: words(key_words(KEY, device), first=MOST_WORDS, count=1, nonce=0), _used_up):
        with pytest.raises(InvalidValue, match="use another key"):
            refused()
    with pytest.raises(InvalidValue, match="32"):
        key_words(KEY[:31], device)


def _used_up() -> None:
    stream = Keystream(KEY)
    stream.position = MOST_WORDS
    stream.words(1)


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
def test_a_hundred_million_words_are_openssls(device: torch.device) -> None:
    key = os.urandom(32)
    stream, secret, size = Keystream(key), key_words(key, device), 1 << 20
    for first in range(0, 10**8, size):
        drawn = words(secret, first=first, count=size, nonce=0).cpu().numpy().view(np.uint64)
        assert np.array_equal(drawn, stream.words(size)), (key.hex(), first)


@pytest.mark.parametrize("first", [0, 3])
def test_values_are_the_cpus_from_the_same_key(first: int, device: torch.device) -> None:
    drawn = DeviceSampler(device, fused=False).sample(KEY, 20_000, first=first)
    assert drawn.device.type == device.type
    assert torch.equal(drawn.cpu(), _on_cpu(first, 20_000))


@pytest.mark.parametrize("device", [CUDA_ALONE])
@pytest.mark.parametrize(("first", "count"), [(0, 0), (0, 1), (3, 1_000_003), (1 << 30, 4096)])
def test_the_fused_kernel_draws_the_cpus_values(first: int, count: int, device: str) -> None:
    sampler = DeviceSampler(torch.device(device))
    assert sampler.fused, "Triton does not work on this machine"
    drawn = sampler.sample(KEY, count, first=first).cpu()
    if first < 100:
        assert torch.equal(drawn, _on_cpu(first, count))
    assert torch.equal(drawn, DeviceSampler(torch.device(device), fused=False).sample(KEY, count, first=first).cpu())


def test_ties_are_decided_by_all_bits_of_the_threshold(device: torch.device) -> None:
    """Chance reaches this once in 2^48 values: words below, at and above their column's threshold, for many columns."""
    table, columns = grid_gaussian_table(), np.arange(0, 1 << 16, 7)
    threshold, low = table.thresholds[columns], table.tie_breaks[columns]
    own, alias = columns - (1 << 15), table.aliases[columns]
    beneath = (low > 0) & ((threshold & np.uint64(2**48 - 1)) > 0)
    cases = {
        "word below": (threshold - np.uint64(1), low, own),
        "word above": (threshold + np.uint64(1), low, alias),
        "tie below": (threshold, low - np.uint64(1), own),
        "tie at": (threshold, low, alias),
    }
    for name, (drawn, ties, expected) in cases.items():
        out = torch.empty(int(beneath.sum()), dtype=torch.int64, device=device)
        given = [torch.from_numpy(x[beneath].view(np.int64).copy()).to(device) for x in (drawn, ties)]
        DeviceTable.on(device).look_up(*given, out=out)
        assert out.tolist() == expected[beneath].tolist(), name
        assert not any(bool(words.any()) for words in given), "words were left behind"


def test_a_device_that_draws_other_noise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeviceTable, "look_up", lambda self, drawn, ties, out: out.copy_(drawn >> 50))
    with pytest.raises(SettingsError, match=r"compute\.device"):
        DeviceSampler(torch.device("cpu"))
