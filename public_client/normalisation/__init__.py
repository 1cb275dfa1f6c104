"""How a target's channels have moved: statistics of a network's layers, and what one noised release says of them."""
