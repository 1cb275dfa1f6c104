"""A request to renew a certificate, signed under the identity that it renews.

The client makes a new key and a certificate request for it, and signs the request with the key of the certificate that
it has. An operator who checks that signature knows that whoever holds the old key asks for the new certificate, without
a second way to the client. The file is JSON, with bytes in base64; what must never change is the meaning of
``dpswd-renewal-1``.
"""

from __future__ import annotations

from typing import Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from dpswd.shared.certificates import check_signed
from dpswd.shared.core.errors import InvalidValue

FORMAT: Literal["dpswd-renewal-1"] = "dpswd-renewal-1"
MAX_BYTES = 256 * 1024  # a request and a certificate have about 500 bytes each


@dataclass(frozen=True, config=ConfigDict(extra="forbid", ser_json_bytes="base64", val_json_bytes="base64"))
class Renewal:
    """What a client asks for.

    Attributes:
        request: PKCS #10 request for the new key, PEM.
        certificate: the certificate that it renews, PEM.
        signature: ECDSA with SHA-256 under that certificate's key over `signed_bytes`, DER.
        format: what the file calls itself.
    """

    request: bytes
    certificate: bytes
    signature: bytes
    format: Literal["dpswd-renewal-1"] = FORMAT

    @property
    def signed_bytes(self) -> bytes:
        """What the old key signs: the format's name keeps the signature from meaning anything else."""
        return FORMAT.encode("ascii") + b"\n" + self.request

    @classmethod
    def make(cls, *, request: bytes, certificate: bytes, old_key: ec.EllipticCurvePrivateKey) -> Renewal:
        """Signs a request under the old identity."""
        unsigned = cls(request=request, certificate=certificate, signature=b"")
        return cls(request, certificate, old_key.sign(unsigned.signed_bytes, ec.ECDSA(hashes.SHA256())))

    def to_bytes(self) -> bytes:
        """The file's content."""
        return _JSON.dump_json(self, indent=1)

    @classmethod
    def from_bytes(cls, data: bytes) -> Renewal:
        """Reads a file; nothing is verified yet.

        Raises:
            InvalidValue: it is no renewal.
        """
        if len(data) > MAX_BYTES:
            raise InvalidValue(f"a renewal has at most {MAX_BYTES} bytes, this file has {len(data)}")
        try:
            return _JSON.validate_json(data)
        except ValidationError as error:
            raise InvalidValue(
                f"the file is neither a certificate request nor a renewal of the format {FORMAT}; make one with "
                "`dpswd-client init` or `dpswd-client certificate --renew`"
            ) from error

    def check_signature(self) -> x509.Certificate:
        """The old certificate, once its key is proved to have signed the request.

        Raises:
            InvalidValue: the certificate cannot be read, or another key signed.
        """
        try:
            return check_signed(self.certificate, self.signature, self.signed_bytes)
        except InvalidValue as error:
            raise InvalidValue(f"the renewal does not hold: {error}; make it anew") from error


_JSON = TypeAdapter(Renewal)
