"""Whether the settings ask for a cluster, and the curator's end of it."""

from __future__ import annotations

from dpswd.private_curator.cluster.shards import ClusterShards
from dpswd.private_curator.cluster.task import Meant
from dpswd.private_curator.records.fingerprint import Fingerprint
from dpswd.private_curator.records.labels import Labels
from dpswd.private_curator.records.target import Target
from dpswd.private_curator.settings.tree import CuratorSettings
from dpswd.private_curator.steps.shards import LocalShards
from dpswd.shared.core.errors import SettingsError


def cluster_of(
    settings: CuratorSettings, *, records: Target, labels: Labels | None, own: LocalShards
) -> ClusterShards | None:
    """Connects to the cluster that the settings name; None where they name none.

    Args:
        settings: the curator's.
        records: the curator's.
        labels: of them.
        own: computes shards here.

    Raises:
        SettingsError: Dask is not installed, a certificate is missing, or there is no scheduler.
    """
    if not settings.cluster.scheduler:
        return None
    home = settings.file.parent
    checked = Fingerprint.read(home)
    if checked is None:
        raise SettingsError("the records have not been checked; run `dpswd-curator records accept` before a cluster")
    return ClusterShards(
        settings.cluster.scheduler,
        home / settings.cluster.certificates,
        meant=Meant.here(records, digest=checked.digest, labels=labels),
        own=own.sum,
        computed_twice=settings.cluster.computed_twice,
        pass_seconds=settings.compute.pass_seconds,
    )
