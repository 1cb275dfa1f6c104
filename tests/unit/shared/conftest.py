"""Devices and noise for the tests of kernels, mechanisms and distances."""

from devices_and_noise import device, generator, noise, silence

__all__ = ["device", "generator", "noise", "silence"]
