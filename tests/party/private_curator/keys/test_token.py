"""A key in a token behind PKCS#11: SoftHSM, the real library, whose tokens are folders."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from debian_packages import CannotInstall, install
from made_home import made_home

pkcs11 = pytest.importorskip("pkcs11", reason="python-pkcs11 is not installed")

from pkcs11 import Attribute, KeyType, Mechanism  # noqa: E402
from pkcs11.util.ec import encode_named_curve_parameters  # noqa: E402

from dpswd.private_curator.cli.main import main  # noqa: E402
from dpswd.private_curator.keys.places import open_place  # noqa: E402
from dpswd.private_curator.keys.token import TokenKey  # noqa: E402
from dpswd.shared.core.errors import LedgerUnavailable, SettingsError  # noqa: E402

LIBRARY = Path("/usr/lib/softhsm/libsofthsm2.so")
ED25519 = encode_named_curve_parameters("1.3.101.112")


@pytest.fixture(scope="module")
def token(tmp_path_factory):
    """A token with an Ed25519 pair under the label ledger-2026; yields its URI."""
    folder = tmp_path_factory.mktemp("token")
    if not LIBRARY.exists():
        try:
            install(["softhsm2"])
        except CannotInstall as error:
            pytest.skip(f"there is no SoftHSM: {error}")
    (folder / "tokens").mkdir()
    (folder / "pin").write_text("1234\n")
    (folder / "softhsm2.conf").write_text(f"directories.tokendir = {folder}/tokens\nlog.level = ERROR\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTHSM2_CONF", str(folder / "softhsm2.conf"))
        made = ["softhsm2-util", "--init-token", "--free", "--label", "dpswd", "--pin", "1234", "--so-pin", "123456"]
        subprocess.run(made, check=True, capture_output=True)
        with pkcs11.lib(str(LIBRARY)).get_token(token_label="dpswd").open(user_pin="1234", rw=True) as session:
            curve = session.create_domain_parameters(KeyType.EC_EDWARDS, {Attribute.EC_PARAMS: ED25519}, local=True)
            curve.generate_keypair(store=True, label="ledger-2026", mechanism=Mechanism.EC_EDWARDS_KEY_PAIR_GEN)
        yield f"pkcs11:token=dpswd;object=ledger-2026?module-path={LIBRARY}&pin-source=file:{folder}/pin"


def test_a_ledger_moves_into_a_token_and_the_file_can_go(token, tmp_path):
    home = made_home(tmp_path, np.zeros((64, 3), dtype=np.float32))
    home.settings.write_text(f'{home.settings.read_text()}\n[ledger]\nkeys = ["{token}"]\n')

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(main, [*arguments, "--home", str(home.path)])
        assert done.exit_code == 0, (done.output, done.exception)
        return done.output

    run("certificates", "--rotate-ledger-key", "into the token")
    home.ledger_key.unlink()
    with home.open_ledger() as books:
        books.freeze(reason="signed in the token")
        assert books.head().signed_by(TokenKey.at(token).public_key().public_bytes_raw())
    run("ledger", "verify")
    run("report", "page", str(tmp_path / "report.html"))
    (tmp_path / "ledger.pub").write_text(home.read_ledger().books.keys.to_text())
    run("report", "page", str(tmp_path / "report.html"), "--check", str(tmp_path / "ledger.pub"))


def test_threads_sign_at_a_time_and_a_session_that_was_lost_is_opened_anew(token):
    key = open_place(token)
    signatures: list[bytes] = []

    def sign() -> None:
        signatures.extend(key.sign(b"%d" % number) for number in range(50))

    threads = [threading.Thread(target=sign) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(signatures) == 200
    assert len(set(signatures)) == 50  # Ed25519 draws nothing
    held = TokenKey.at(token)
    held._session.close()
    key.public_key().verify(key.sign(b"after"), b"after")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("token=dpswd", "token=another"), "gives no key"),
        (("object=ledger-2026", "object=another"), "gives no key"),
        (("libsofthsm2.so", "nothing.so"), "gives no key"),
        (("/pin", "/no-pin"), "gives no key"),
        (("object=ledger-2026", "label=x"), "write pkcs11:token=LABEL"),
    ],
)
def test_what_a_uri_does_not_lead_to_is_said_in_words(token, change, said):
    with pytest.raises(SettingsError, match=said):
        open_place(token.replace(*change))


def test_a_token_that_is_gone_does_nothing_and_says_so(token, monkeypatch):
    key = open_place(token)

    def gone(*_: object) -> None:
        raise pkcs11.exceptions.DeviceRemoved

    monkeypatch.setattr(TokenKey, "_find", gone)
    held = TokenKey.at(token)
    held._session.close()
    with pytest.raises(LedgerUnavailable, match="did not sign"):
        key.sign(b"x")
    monkeypatch.undo()
    key.public_key().verify(key.sign(b"back"), b"back")
