"""A team's credentials for a test, certified by an authority of the test's own."""

from __future__ import annotations

from pathlib import Path

from dpswd.private_curator.storage.certificates import CertificateAuthority

TEAM = "ml-team"


def credentials_in(directory: Path, *, name: str = TEAM) -> Path:
    """A folder with ca.crt, client.crt and client.key."""
    directory.mkdir(parents=True, exist_ok=True)
    authority = CertificateAuthority(directory / "authority")
    authority.create(names=["localhost"], data_set="ward")
    issued, key = authority.make_client(name=name)
    authority.write_credentials(issued, directory / "credentials", key_pem=key)
    return directory / "credentials"
