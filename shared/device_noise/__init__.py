"""The curator's noise on a CUDA device, in Triton."""
