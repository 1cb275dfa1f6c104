"""Backbones in ONNX files, evaluated in a confined worker."""
