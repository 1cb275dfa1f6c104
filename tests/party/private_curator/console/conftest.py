import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # under importlib mode a test directory is no package

from made_home import made_home

from dpswd.private_curator.books.operators import Operator
from dpswd.private_curator.operator import acts
from dpswd.private_curator.storage.home_directory import HomeDirectory


@pytest.fixture(scope="module")
def provider(tmp_path_factory):
    pytest.importorskip("authlib", reason="dpswd[oidc] is not installed")
    from forging_provider import ForgingProvider

    with ForgingProvider(tmp_path_factory.mktemp("provider")).serving() as made:
        yield made


@pytest.fixture
def enrolled(tmp_path, provider):
    """A home in which extending takes two, and an operator that is enrolled to speak for the provider's people."""
    from forging_provider import write_settings

    made = made_home(tmp_path, np.zeros((64, 3), dtype=np.float32), groups={"operators": {"second": ["extend"]}})
    for name in ("anna", "console"):
        Operator.make(tmp_path / name, name)
    anna, its = Operator.read(tmp_path / "anna"), Operator.read(tmp_path / "console")
    first = HomeDirectory(made.path, operator=anna)
    acts.enrol_operator(first, "anna", anna.credential)
    acts.enrol_operator(first, "console", its.credential, issuer=provider.issuer)
    write_settings(made, provider.issuer, provider.folder / "ca.pem", 'role_claim = "realm_access.roles"')
    return first, its


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A provider of others', in a process of its own: its issuer, and the file of its authority."""
    pytest.importorskip("oidc_provider_mock", reason="the provider to test against is not installed")
    folder = tmp_path_factory.mktemp("published")
    program = [sys.executable, str(Path(__file__).with_name("provider_process.py")), str(folder)]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    port = process.stdout.readline().strip()
    yield f"https://localhost:{port}", folder / "ca.pem"
    process.terminate()
    process.wait()
