"""What mechanisms are made of: noise on a grid, directions, the public map, the clip."""
