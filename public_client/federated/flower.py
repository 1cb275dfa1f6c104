"""Flower: a client app of which each training message is one round of a `CuratedSite`."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from dpswd.public_client.federated.site import CuratedSite
from dpswd.shared.core.errors import DpswdError

_REFUSED = 2  # flwr's CLIENT_APP_RAISED_EXCEPTION


def client_app(site_of: Callable[[Context], CuratedSite]) -> ClientApp:
    """A client app for `flwr run`; the message's arrays are a `state_dict`, as `FedAvg` sends them.

    Args:
        site_of: makes this node's site: from `context.node_config`, and with a directory that outlives a message. It is
            called for every message, and the site closed after it.

    Returns:
        The app. A round that the curator refuses is answered by an error without arrays, whose reason says why.
    """

    def train(message: Message, context: Context) -> Message:
        arrays = next(iter(message.content.array_records))
        weights = {name: array.numpy() for name, array in message.content.array_records[arrays].items()}
        try:
            with site_of(context) as site:
                moved, numbers = site.update(weights)
        except DpswdError as error:
            reason = f"{type(error).__name__}: {error}"
            return Message(Error(code=_REFUSED, reason=reason), reply_to=message)
        metrics = MetricRecord({"num-examples": numbers.pop("records"), **numbers})
        record = ArrayRecord({name: Array(value) for name, value in moved.items()})
        return Message(RecordDict({arrays: record, "metrics": metrics}), reply_to=message)

    app = ClientApp()
    app.train()(train)
    return app
