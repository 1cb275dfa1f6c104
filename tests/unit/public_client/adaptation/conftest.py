"""What the tests of whole trainings share."""

from small_methods import small_hospitals

__all__ = ["small_hospitals"]
