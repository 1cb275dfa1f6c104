#!/opt/dpswd/bin/python
"""Health check of the curator's container: asks the running curator by the gRPC health protocol.

The curator talks to holders of its own certificates alone, so the check signs itself one that is valid for ten minutes
and known to no ledger: it opens the health service and nothing else. Ends with 0 while the curator serves, else with 1.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

# Not dpswd.private_curator.storage.home_directory, which brings torch: the check runs every few seconds.
from dpswd.private_curator.storage.certificates import CA_CERTIFICATE, SERVER_CERTIFICATE, CertificateAuthority
from dpswd.shared.core.errors import DpswdError

SERVICE = "dpswd.curator.v1.CuratorService"
VALID_DAYS = 10 / (24 * 60)
TIMEOUT_S = 5.0


def main() -> str:
    """Asks once.

    Returns:
        SERVING, or why not.
    """
    home = Path(os.environ["DPSWD_CURATOR_HOME"])
    certificates = home / "certificates"
    try:
        port = (home / "address").read_text(encoding="ascii").strip().rpartition(":")[2]
        issued, key = CertificateAuthority(certificates).make_client(name="health-check", days=VALID_DAYS, store=False)
        authority = (certificates / CA_CERTIFICATE).read_bytes()
        name = server_name((certificates / SERVER_CERTIFICATE).read_bytes())
    except (OSError, DpswdError) as error:
        return f"{type(error).__name__}: {error}"
    credentials = grpc.ssl_channel_credentials(authority, private_key=key, certificate_chain=issued.pem)
    options = [("grpc.ssl_target_name_override", name), ("grpc.enable_http_proxy", 0)]
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials, options=options) as channel:
        try:
            reply = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=SERVICE), timeout=TIMEOUT_S
            )
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status))


def server_name(certificate_pem: bytes) -> str:
    """A name that the server's certificate is made for; the check connects to the loopback address."""
    from cryptography import x509

    names = x509.load_pem_x509_certificate(certificate_pem).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    return str(next(iter(names.value)).value)


if __name__ == "__main__":
    status = main()
    sys.stdout.write(f"{status}\n")
    sys.exit(0 if status == "SERVING" else 1)
