"""NVFlare: an executor of which each training task is one round of a `CuratedSite`.

It stands where a trainer and its privacy filter stand: a filter is given an update that was computed from records, and
here nobody but the curator sees one.
"""

from __future__ import annotations

import pkgutil

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.app_constant import AppConstants

from dpswd.public_client.federated.site import CuratedSite
from dpswd.shared.core.errors import DpswdError


class CuratedExecutor(Executor):  # type: ignore[misc]  # nvflare has no types
    """See the module; the task's data are weights by their names in a `state_dict`.

    A round that the curator refuses is answered by a return code without data, and the log says why.

    Args:
        site: "package.module:function" that makes a `CuratedSite` from the site's name in the federation.
        task: of the controller, that trains.
    """

    def __init__(self, site: str, task: str = AppConstants.TASK_TRAIN) -> None:
        super().__init__()
        self.site, self.task = site, task
        self._opened: CuratedSite | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Closes the site's connection at the end of a job."""
        if event_type == EventType.END_RUN and self._opened is not None:
            self._opened.hospital.close()
            self._opened = None
        super().handle_event(event_type, fl_ctx)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:  # noqa: ARG002 - of the interface
        """One round; what NVFlare tells is in its own words."""
        if task_name != self.task:
            return make_reply(ReturnCode.TASK_UNKNOWN)
        try:
            if self._opened is None:
                self._opened = pkgutil.resolve_name(self.site)(fl_ctx.get_identity_name())
            weights = {name: np.asarray(value) for name, value in from_shareable(shareable).data.items()}
            moved, numbers = self._opened.update(weights)
        except DpswdError as error:
            self.log_error(fl_ctx, f"no update: {type(error).__name__}: {error}")
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        meta = {MetaKey.NUM_STEPS_CURRENT_ROUND: numbers["records"], **numbers}
        return DXO(DataKind.WEIGHTS, data=moved, meta=meta).to_shareable()
