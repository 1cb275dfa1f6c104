from __future__ import annotations

import hashlib
import secrets

import mpmath
import numpy as np
import pytest
import torch
from scipy.stats import chisquare, norm

from dpswd.shared.core.errors import InvalidValue
from dpswd.shared.core.noise.noise import (
    GridArray,
    finest_exponent,
    grid_step,
    narrowest_integer,
    release_finely,
    release_on_grid,
)
from dpswd.shared.seeded_noise import SeededNoise


def test_step_is_an_exact_power_of_two_below_sigma() -> None:
    assert grid_step(0.3) == 0.3 / 2048


@pytest.mark.parametrize("sigma", [0.0, -1.0, float("nan"), float("inf"), 5e-324])
def test_impossible_sigma_is_refused(sigma: float) -> None:
    with pytest.raises(InvalidValue, match="sigma"):
        grid_step(sigma)


@pytest.mark.parametrize("step", [0.1, 1.0, 2.0, 1.0 / 4096, 0.0])
def test_foreign_step_is_refused(step: float) -> None:
    with pytest.raises(InvalidValue, match="does not belong"):
        SeededNoise(bytes(32)).grid_gaussian((2,), sigma=1.0, step=step)


def test_seeded_noise_has_the_same_bits_everywhere() -> None:
    drawn = SeededNoise(bytes(32), purpose="golden").grid_gaussian((300, 7), sigma=2.0, step=grid_step(2.0))
    assert drawn.shape == (300, 7)
    assert hashlib.sha256(drawn.astype("<i8").tobytes()).hexdigest() == (
        "edc69f1d8bb7f9ab8e9eb7b50e5e52e7cbf9e01b0e94aded801c94896878caee"
    )


def test_sigma_is_a_unit_and_changes_no_integer() -> None:
    first = SeededNoise(bytes(32)).grid_gaussian((50,), sigma=1.0, step=grid_step(1.0))
    second = SeededNoise(bytes(32)).grid_gaussian((50,), sigma=0.37, step=grid_step(0.37))
    assert np.array_equal(first, second)


def test_signal_is_rounded_to_the_grid_before_the_noise(noise: SeededNoise) -> None:
    step = grid_step(1.0)
    signal = torch.tensor([0.49, 0.51, -0.51, 100.2]) * step
    released = release_on_grid(signal, sigma=1.0, noise=noise, integer="int32")
    alone = SeededNoise(bytes(range(32))).grid_gaussian((4,), sigma=1.0, step=step)
    assert (released.values - alone).tolist() == [0, 1, -1, 100]


@pytest.mark.parametrize(("integer", "limit"), [("int16", 2**15 - 1), ("int32", 2**31 - 1)])
def test_values_saturate_instead_of_wrapping(silence: object, integer: str, limit: int) -> None:
    huge = torch.tensor([1e30, -1e30, 2.0**31, 0.0], dtype=torch.float64)
    released = release_on_grid(huge, sigma=1.0, noise=silence, integer=integer)
    assert released.values.tolist() == [limit, -limit, limit, 0]
    assert released.values.dtype == np.dtype(integer)


def test_grid_array_returns_units_without_losing_integers() -> None:
    array = GridArray(values=np.array([[2**31 - 1, -3]], dtype=np.int32), step=0.25)
    assert array.to_tensor(dtype=torch.float64).tolist() == [[(2**31 - 1) / 4, -0.75]]
    assert array.to_tensor().dtype == torch.float32
    with pytest.raises(ValueError, match="read-only"):
        array.values[0, 0] = 1


def test_malformed_grid_arrays_are_refused() -> None:
    with pytest.raises(InvalidValue, match="int16, int32 or int64"):
        GridArray(values=np.zeros(2, dtype=np.int8), step=1.0)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="step"):
        GridArray(values=np.zeros(2, dtype=np.int16), step=0.0)


@pytest.mark.parametrize(
    ("bound", "integer"),
    [(0.0, "int16"), (5.99, "int16"), (6.0, "int24"), (4085.0, "int24"), (4086.0, "int32"), (1e9, "int32")],
)
def test_the_width_is_decided_by_the_largest_possible_signal_with_ten_sigma_of_noise(bound, integer):
    for sigma in (1e-3, 1.0, 7.0):
        assert narrowest_integer(bound * sigma, sigma=sigma) == integer


@pytest.mark.parametrize(("integer", "bits"), [("int16", 16), ("int24", 24), ("int32", 32)])
def test_saturation_is_symmetric_at_every_width(integer, bits):
    signal = torch.tensor([1e12, -1e12])
    released = release_on_grid(signal, sigma=1.0, noise=SeededNoise(b"s" * 32), integer=integer)
    assert released.values.tolist() == [2 ** (bits - 1) - 1, 1 - 2 ** (bits - 1)]


def test_the_finest_grid_is_chosen_by_public_numbers_and_holds_every_sum() -> None:
    assert finest_exponent(10.0, sigma=1.0) == 20
    assert finest_exponent(60_000.0, sigma=7.5) == 18
    for bound in (1.0, 1e3, 1e6):
        exponent = finest_exponent(bound, sigma=1.0)
        assert (bound + 16.0) * 2.0**exponent < 2**31
        assert exponent == 20 or (bound + 16.0) * 2.0 ** (exponent + 1) >= 2**31
    with pytest.raises(InvalidValue, match="use more noise"):
        finest_exponent(1e7, sigma=1.0)
    for sigma in (0.0, -1.0, float("nan"), 5e-324):
        with pytest.raises(InvalidValue):
            finest_exponent(1.0, sigma=sigma)


@pytest.mark.parametrize("exponent", [11, 15, 20])
def test_fine_noise_has_the_law_of_the_proof(exponent: int) -> None:
    """Goodness of fit to N(0, tau^2), and residues of the fine grid, each at 1e-8."""
    drawn = release_finely(torch.zeros(2**18), sigma=3.0, exponent=exponent, noise=SeededNoise(secrets.token_bytes(32)))
    assert drawn.step == 3.0 * 2.0**-exponent
    edges = norm.ppf(np.linspace(0.0, 1.0, 257)[1:-1])
    places = np.searchsorted(edges, drawn.to_numpy() / (3.0 * np.sqrt(1.0 + 16 * 2.0**-22)))
    assert chisquare(np.bincount(places, minlength=256)).pvalue > 1e-8
    assert chisquare(np.bincount(drawn.values % 64, minlength=64)).pvalue > 1e-8


def test_fine_noise_without_its_small_part_would_be_detected(silence: object) -> None:
    coarse = SeededNoise(bytes(32)).grid_gaussian((4096,), sigma=1.0, step=grid_step(1.0))
    assert chisquare(np.bincount((coarse << 9) % 64, minlength=64)).pvalue < 1e-8
    assert release_finely(torch.tensor([0.3]), sigma=1.0, exponent=20, noise=silence).values == [round(0.3 * 2**20)]


def test_two_grids_together_are_a_gaussian_but_for_what_the_proof_says() -> None:
    """The sum over the coarse grid against the smooth density, with a blur so small that the gap can be seen."""
    sigma, g = mpmath.mpf(8), mpmath.mpf(1)
    with mpmath.workdps(60):
        for blur in (mpmath.mpf("0.5"), mpmath.mpf(1)):
            tau = mpmath.sqrt(sigma**2 + blur**2)
            gap = mpmath.mpf(0)
            for x in (mpmath.mpf("0.1"), mpmath.mpf("0.37"), mpmath.mpf("2.5"), mpmath.mpf("7.25")):
                cells = (
                    (mpmath.ncdf((n + 0.5) * g / sigma) - mpmath.ncdf((n - 0.5) * g / sigma))
                    * mpmath.npdf(x - n * g, 0, blur)
                    for n in range(-120, 121)
                )
                smooth = (mpmath.ncdf((x + g / 2) / tau) - mpmath.ncdf((x - g / 2) / tau)) / g
                gap = max(gap, abs(mpmath.fsum(cells) - smooth))
            v = blur**2 * sigma**2 / tau**2
            decay = mpmath.fsum(mpmath.exp(-2 * (mpmath.pi * k) ** 2 * v) for k in range(1, 20))
            bound = 2 * mpmath.npdf(0, 0, tau) * decay
            assert bound * mpmath.mpf("1e-4") < gap <= bound
