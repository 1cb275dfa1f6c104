"""An OpenID provider in a process of its own, over TLS: oidc-provider-mock, by Authlib's server.

``python provider_process.py FOLDER`` makes FOLDER/ca.pem and prints the port; users and their claims are put by
``PUT /users/SUB``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import werkzeug.serving
from oidc_provider_mock import app
from tls_pair import tls_pair

folder = Path(sys.argv[1])
certificate, key = tls_pair(folder)
provider = app(require_nonce=True)
provider.debug = False
server = werkzeug.serving.make_server("localhost", 0, provider, threaded=True, ssl_context=(str(certificate), str(key)))
print(server.server_port, flush=True)
server.serve_forever()
