"""What all tests of the client share."""

import torch
from small_methods import short_fits

__all__ = ["short_fits"]

torch.set_num_threads(1)
