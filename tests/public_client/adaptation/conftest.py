"""What the tests of whole trainings share."""

import pytest
from small_methods import hardly_refusing


@pytest.fixture(autouse=True)
def _small_hospitals():
    """Every method trains here, also where in earnest it would refuse so few records."""
    with hardly_refusing():
        yield
