"""Settings of the whole suite."""

import os

from hypothesis import settings

# The suite must give one commit one answer, so examples are drawn from the test's own source. To look for new ones:
# HYPOTHESIS_PROFILE=explore make test
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))
