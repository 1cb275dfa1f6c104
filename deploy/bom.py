"""The list of what a site runs beside this project, with digests, as CycloneDX 1.6: dpswd/dependencies.cdx.json.

    python -m deploy.bom            # writes it from the locks

It follows from the locks alone, so that two who make it get the same bytes: no time, and a serial number that is made
of the content. A component's digests are those of the files that pip would take for it, each of another platform.
"""

from __future__ import annotations

import re
import sys
import uuid
from pathlib import Path

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from packageurl import PackageURL

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "dpswd" / "dependencies.cdx.json"
LOCKS = (
    *(f"deploy/images/{party}.lock" for party in ("curator", "client", "cluster")),
    "deploy/torch-cpu.lock", "deploy/torch-cuda.lock",
)  # fmt: skip
_PINNED = re.compile(
    r"^([A-Za-z0-9._-]+)==([^ ;\\\n]+)[^\n]*((?:\n {4}--hash=sha256:[0-9a-f]{64}[^\n]*)+)", re.MULTILINE
)


def components(root: Path = ROOT) -> list[Component]:
    """What the locks pin, by name.

    Raises:
        ValueError: two locks pin one package at two versions.
    """
    pins: dict[str, tuple[str, set[str]]] = {}
    for lock in LOCKS:
        for name, version, digests in _PINNED.findall((root / lock).read_text(encoding="utf-8")):
            version = version.partition("+")[0]
            pinned, held = pins.setdefault(re.sub(r"[-_.]+", "-", name).lower(), (version, set()))
            if pinned != version:
                raise ValueError(f"{name} is pinned at {pinned} and, in {lock}, at {version}; run `make lock`")
            held |= set(re.findall(r"sha256:([0-9a-f]{64})", digests))
    return [_component(name, version, held) for name, (version, held) in sorted(pins.items())]


def listed(root: Path = ROOT) -> str:
    """The list as JSON.

    Raises:
        ValueError: it is none by CycloneDX's own schema.
    """
    made = components(root)
    content = [
        [str(part.purl), *(digest.content for file in part.external_references for digest in file.hashes)]
        for part in made
    ]
    bom = Bom(components=made, serial_number=uuid.uuid5(uuid.NAMESPACE_OID, repr(content)))
    bom.metadata.timestamp = None  # type: ignore[assignment]
    text: str = JsonV1Dot6(bom).output_as_string(indent=1) + "\n"
    from cyclonedx.validation.json import JsonStrictValidator  # a second or two of grammars, which tests need once

    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if problem is not None:
        raise ValueError(f"the list is no CycloneDX: {problem}")
    return text


def _component(name: str, version: str, digests: set[str]) -> Component:
    purl = PackageURL("pypi", name=name, version=version)
    files = ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION,
        url=XsUri(str(purl)),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in digests],
    )
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=version,
        purl=purl,
        bom_ref=str(purl),
        external_references=[files],
    )


if __name__ == "__main__":
    LIST.write_text(listed(), encoding="utf-8")
    print(f"{LIST.relative_to(ROOT)}: {len(components())} components", file=sys.stderr)
