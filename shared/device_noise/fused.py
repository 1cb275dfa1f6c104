"""ChaCha20 and the table look-up as one Triton kernel: no word of the keystream leaves the registers.

Import it only where Triton is. Each lane computes one block of both streams, eight values. The bits are those of
`dpswd.shared.core.noise`'s keystream and table.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dpswd.shared.core.noise.keystream import WORDS_OF_BLOCK

_LANES = 128  # blocks of one program


@triton.jit
def _quarter_round(a, b, c, d):
    """RFC 8439, 2.1."""
    a += b
    d ^= a
    d = (d << 16) | (d >> 16)
    c += d
    b ^= c
    b = (b << 12) | (b >> 20)
    a += b
    d ^= a
    d = (d << 8) | (d >> 24)
    c += d
    b ^= c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@triton.jit
def _block(key, counter, nonce: tl.constexpr):
    """The 16 words of each lane's block (RFC 8439, 2.3)."""
    zero = counter ^ counter
    i0, i1, i2, i3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    k0 = zero + tl.load(key).to(tl.uint32, bitcast=True)
    k1 = zero + tl.load(key + 1).to(tl.uint32, bitcast=True)
    k2 = zero + tl.load(key + 2).to(tl.uint32, bitcast=True)
    k3 = zero + tl.load(key + 3).to(tl.uint32, bitcast=True)
    k4 = zero + tl.load(key + 4).to(tl.uint32, bitcast=True)
    k5 = zero + tl.load(key + 5).to(tl.uint32, bitcast=True)
    k6 = zero + tl.load(key + 6).to(tl.uint32, bitcast=True)
    k7 = zero + tl.load(key + 7).to(tl.uint32, bitcast=True)
    last = zero + nonce
    x0, x1, x2, x3, x4, x5, x6, x7 = i0, i1, i2, i3, k0, k1, k2, k3
    x8, x9, x10, x11, x12, x13, x14, x15 = k4, k5, k6, k7, counter, zero, zero, last
    for _ in range(10):
        x0, x4, x8, x12 = _quarter_round(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter_round(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter_round(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter_round(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter_round(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter_round(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter_round(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter_round(x3, x4, x9, x14)
    return (
        x0 + i0, x1 + i1, x2 + i2, x3 + i3, x4 + k0, x5 + k1, x6 + k2, x7 + k3,
        x8 + k4, x9 + k5, x10 + k6, x11 + k7, x12 + counter, x13, x14, x15 + last,
    )  # fmt: skip


@triton.jit
def _put(low, high, tie_low, tie_high, thresholds, tie_breaks, aliases, out, place, count):
    """One value of each lane; both outcomes are computed and one is selected."""
    column = (high >> 16).to(tl.int32)
    rest = low.to(tl.int64) | ((high & 0xFFFF).to(tl.int64) << 32)
    tie = (tie_low.to(tl.uint64) | ((tie_high ^ 0x80000000).to(tl.uint64) << 32)).to(tl.int64, bitcast=True)
    threshold = tl.load(thresholds + column)
    own = (rest < threshold) | ((rest == threshold) & (tie < tl.load(tie_breaks + column)))
    value = tl.where(own, column - 32768, tl.load(aliases + column))
    tl.store(out + place, value.to(tl.int64), mask=(place >= 0) & (place < count))


@triton.jit(do_not_specialize=["first_block", "skipped", "count"])  # or some sizes would be compiled anew
def _kernel(key, thresholds, tie_breaks, aliases, out, first_block, skipped, count, LANES: tl.constexpr):
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    counter = (lane + first_block).to(tl.uint32)
    place = lane.to(tl.int64) * 8 - skipped  # of the block's first value
    w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15 = _block(key, counter, 0)
    t0, t1, t2, t3, t4, t5, t6, t7, t8, t9, t10, t11, t12, t13, t14, t15 = _block(key, counter, 1)
    _put(w0, w1, t0, t1, thresholds, tie_breaks, aliases, out, place, count)
    _put(w2, w3, t2, t3, thresholds, tie_breaks, aliases, out, place + 1, count)
    _put(w4, w5, t4, t5, thresholds, tie_breaks, aliases, out, place + 2, count)
    _put(w6, w7, t6, t7, thresholds, tie_breaks, aliases, out, place + 3, count)
    _put(w8, w9, t8, t9, thresholds, tie_breaks, aliases, out, place + 4, count)
    _put(w10, w11, t10, t11, thresholds, tie_breaks, aliases, out, place + 5, count)
    _put(w12, w13, t12, t13, thresholds, tie_breaks, aliases, out, place + 6, count)
    _put(w14, w15, t14, t15, thresholds, tie_breaks, aliases, out, place + 7, count)


def draw(key: Tensor, thresholds: Tensor, tie_breaks: Tensor, aliases: Tensor, out: Tensor, *, first: int) -> None:
    """Fills `out` with values made from the key's words `first` on.

    Args:
        key: (8,) int32, the bits of unsigned words.
        thresholds: (65536,) int64 on the key's device, the upper 48 bits of each column's threshold.
        tie_breaks: (65536,) int64, the lower 64 bits with the sign bit turned.
        aliases: (65536,) int32.
        out: (count,) int64 on the key's device, contiguous.
        first: place of the first word.
    """
    if not len(out):
        return
    block, skipped = divmod(first, WORDS_OF_BLOCK)
    programs = -(-(skipped + len(out)) // (WORDS_OF_BLOCK * _LANES))
    _kernel[(programs,)](key, thresholds, tie_breaks, aliases, out, block, skipped, len(out), LANES=_LANES)


def warm_up(device: torch.device) -> None:
    """Compiles the kernel; what Triton raises says why it cannot."""
    table = torch.zeros(1 << 16, dtype=torch.int64, device=device)
    out = torch.empty(WORDS_OF_BLOCK, dtype=torch.int64, device=device)
    draw(torch.zeros(8, dtype=torch.int32, device=device), table, table, table.to(torch.int32), out, first=0)
