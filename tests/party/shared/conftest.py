"""Devices and noise for the tests of kernels, mechanisms and distances."""

from devices_and_noise import device, noise

__all__ = ["device", "noise"]
