"""Networks that learn from one charged step at a time, and go on where they stopped: what such methods share."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dpswd.public_client.data.progress import reporting
from dpswd.public_client.data.ranks import Ranks
from dpswd.public_client.generation.generator import Generator, traced
from dpswd.public_client.generation.method import Fitting, GenerationMethod
from dpswd.public_client.plans.recipe import not_between, not_counts, not_one_of, not_positive
from dpswd.public_client.published_methods.generators.networks import Centred, Kind, decoder_of, network
from dpswd.public_client.replay.posterior import cosine
from dpswd.public_client.training.history import Average
from dpswd.public_client.training.run import DrawnStep, Release

_SETTLING, _SETTLING_BATCH = 50, 200
"""Batches after which the norms' running statistics are those of the averaged weights."""
_PREVIEWS = 4
_SHOWN_EVERY = 50  # updates, on the progress bar
LEAST_ROWS = 2
"""Records of a batch for each process that shares it: a norm over a batch needs two."""

Step = Callable[[nn.Module, torch.Generator], DrawnStep[Any]]
"""Draws a step for a network, and leaves the loss's gradient in the network's parameters."""


@dataclass(frozen=True, kw_only=True)
class Network(GenerationMethod):
    """A method that trains a network of its own on records' values.

    Attributes:
        low: least value of a record, public.
        high: largest; what is drawn stays between them.
        network: which; see `networks.Kind`.
        latent: dimension of what records are drawn from.
        width: channels before the network's last layer, or a quarter of a dense layer's units.
        learning_rate: of Adam at the start; it falls as a cosine.
        averaging: decay of the running average of the weights that is kept; 0 keeps the last ones.
    """

    low: float = -1.0
    high: float = 1.0
    network: Kind = "auto"
    latent: int = 16
    width: int = 16
    learning_rate: float = 1e-3
    averaging: float = 0.99

    def problems(self) -> list[str]:
        problems = [
            *super().problems(),
            *not_counts(self, "latent", "width"),
            *not_positive(self, "learning_rate"),
            *not_between(self, 0.0, 1.0, "averaging"),
            *not_one_of(self, "network", ("auto", "images", "dense")),
        ]
        if not self.low < self.high:
            problems.append(f"low is {self.low!r} and high {self.high!r}; low must be below high")
        return problems

    def made(self, run: Release[Any], fitting: Fitting) -> nn.Module:
        """A new network for the run's records, from the fit's seed."""
        torch.manual_seed(fitting.seed)
        shape = {"classes": run.plan.classes, "record_shape": run.plan.record_shape}
        return network(self.network, latent=self.latent, width=self.width, **shape).to(fitting.device)  # type: ignore[arg-type]

    def finished(self, trained: nn.Module, run: Release[Any], shares: tuple[float, ...]) -> Generator:
        """The generator of a trained network.

        Args:
            trained: from `made`.
            run: of the plan.
            shares: of the classes.
        """
        decoder = traced(decoder_of(trained, low=self.low, high=self.high), self.latent + len(shares))
        return Generator(decoder, run.plan.record_shape, shares, low=self.low, high=self.high)

    def latents(self, labels: Tensor, classes: int, own: torch.Generator) -> Tensor:
        """Standard normal latents beside one-hot classes (m,): (m, latent + C), on the labels' device."""
        z = torch.randn((len(labels), self.latent), generator=own).to(labels.device)  # drawn on the CPU: any device's
        return torch.cat([z, nn.functional.one_hot(labels, classes).float()], dim=1)

    def drawn(self, trained: nn.Module, labels: Tensor, classes: int, own: torch.Generator, ranks: Ranks) -> Tensor:
        """Generated values of these labels (m, values), with their gradient; each rank computes its part of them.

        Every rank returns all of them. The whole gradient is the mean over ranks of the parameters' gradients.
        """
        latents = self.latents(labels, classes, own)
        if len(latents) < LEAST_ROWS * ranks.size:
            ranks = Ranks()  # each computes all of them
        values: Tensor = ranks.gather(trained(latents.tensor_split(ranks.size)[ranks.rank]))
        return values

    def features_on(self, features: nn.Module, values: Tensor, run: Release[Any]) -> Tensor:
        """What a generated record's features are: the network's values between -1 and 1, as a record, through them."""
        if isinstance(features, Centred):
            return values
        ranged = values * (0.5 * (self.high - self.low)) + 0.5 * (self.low + self.high)
        made: Tensor = features(ranged.reshape(-1, *run.plan.record_shape))
        return made

    def descended(self, run: Release[Any], trained: nn.Module, step: Step, fitting: Fitting) -> None:
        """Draws the run's steps, one descent each, and leaves the averaged weights in the network.

        Args:
            run: open, or continued.
            trained: from `made`.
            step: one step.
            fitting: how.
        """
        parameters = list(trained.parameters())
        optimizer = torch.optim.Adam(parameters, lr=self.learning_rate)
        steps, own = run.plan.steps, torch.Generator().manual_seed(fitting.seed)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: cosine(min(t, steps) / steps))
        state = _State(trained, optimizer, schedule, Average(parameters, self.averaging), own)
        done = 0 if fitting.store is None else state.restored(fitting.store.read("state"))
        with reporting(f"{self.name}: training", steps, shown=fitting.progress, done=done) as bar:
            while done < steps:
                trained.train()
                optimizer.zero_grad()
                drawn = step(trained, own)
                done = drawn.number
                fitting.ranks.average_gradients(parameters)
                optimizer.step()
                schedule.step()
                state.average.update(parameters)
                if fitting.store is not None:
                    fitting.store.write("state", state.stored(drawn))
                bar.advance(run.plan.charged)
                if fitting.preview is not None and done % max(1, steps // _PREVIEWS) == 0 and done < steps:
                    even = (1.0 / run.plan.classes,) * run.plan.classes
                    fitting.preview(self.finished(_copied(trained), run, even))
        state.average.copy_to(parameters)
        self._settle(trained, run.plan.classes, own)
        fitting.ranks.synchronise(trained)  # each has normed its own part of the batches

    def updated(self, trained: nn.Module, loss: Callable[[], Tensor], updates: int, fitting: Fitting) -> None:
        """Fits the network to what was released once; leaves it for evaluation, alike in all processes.

        Args:
            trained: from `made`.
            loss: of records that it draws anew each time; asks nobody.
            updates: of Adam, under a cosine schedule.
            fitting: how.
        """
        optimizer = torch.optim.Adam(trained.parameters(), lr=self.learning_rate)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: cosine(t / updates))
        with reporting(f"{self.name}: fitting", updates, shown=fitting.progress) as bar:
            for update in range(updates):
                now = loss()
                optimizer.zero_grad()
                now.backward()  # type: ignore[no-untyped-call]
                fitting.ranks.average_gradients(list(trained.parameters()))
                optimizer.step()
                schedule.step()
                bar.advance(f"loss {float(now.detach()):.4f}" if update % _SHOWN_EVERY == 0 else "")
        fitting.ranks.synchronise(trained.eval())

    def _settle(self, trained: nn.Module, classes: int, own: torch.Generator) -> None:
        trained.train()
        device = next(trained.parameters()).device
        with torch.no_grad():
            for _ in range(_SETTLING):
                labels = torch.randint(classes, (_SETTLING_BATCH,), generator=own)
                trained(self.latents(labels, classes, own).to(device))
        trained.eval()


@dataclass(frozen=True, eq=False)
class _State:
    """What each step changes on the client's side."""

    trained: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    average: Average
    own: torch.Generator

    def stored(self, drawn: DrawnStep[Any]) -> dict[str, Any]:
        return {
            "step": drawn.number,
            "request_ids": [drawn.request_id],
            "network": self.trained.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "average": self.average.values,
            "random": self.own.get_state(),
        }

    def restored(self, state: dict[str, Any] | None) -> int:
        """Goes back to the stored state; returns the steps that are done."""
        if state is None:
            return 0
        self.trained.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        device = next(self.trained.parameters()).device
        self.average.values = [value.to(device) for value in state["average"]]
        self.own.set_state(state["random"])
        return int(state["step"])


def _copied(trained: nn.Module) -> nn.Module:
    return copy.deepcopy(trained).eval()
