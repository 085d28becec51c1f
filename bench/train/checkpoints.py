"""Where a training stands, on disk: checkpoints and the log.

Guarantees: a checkpoint is whole or the one before it; the log has the rows up to it and no others.
A run goes on from its last checkpoint; a longer course goes on from the last one before the rate
fell, and is then the same run as if it had been that long from the start. Never knows texts.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

LOG_NAME = "log.jsonl"
_LAST, _STEADY = "checkpoint.pt", "steady.pt"


@dataclass(frozen=True, slots=True)
class Done:
    """What was done so far: optimiser steps, answer tokens seen, and those times unrolled steps."""

    step: int = 0
    num_tokens: int = 0
    num_token_steps: int = 0


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """A run's folder.

    Attributes:
        num_steps: of the course.
        steady_steps: of those, the ones before the rate falls.
    """

    folder: Path
    num_steps: int
    steady_steps: int

    def resume(self, learner: torch.nn.Module, optimiser: torch.optim.Optimizer) -> Done:
        """Load the furthest checkpoint that this course passes through, if there is one."""
        for name in (_LAST, _STEADY):
            path = self.folder / name
            if not path.is_file():
                continue
            device = next(learner.parameters()).device
            saved = torch.load(path, weights_only=True, map_location=device)
            if not self._passes_through(saved):
                continue
            learner.load_state_dict(saved["learner"])
            optimiser.load_state_dict(saved["optimiser"])
            done = Done(*saved["done"])
            self._cut_log(done.step)
            return done
        self._cut_log(0)
        return Done()

    def write(
        self,
        row: dict[str, Any],
        done: Done,
        learner: torch.nn.Module,
        optimiser: torch.optim.Optimizer,
    ) -> None:
        """Log a row, then replace the checkpoint whole; the steady one too while the rate is."""
        with (self.folder / LOG_NAME).open("a") as log:
            log.write(json.dumps(row) + "\n")
        state = {
            "learner": learner.state_dict(),
            "optimiser": optimiser.state_dict(),
            "done": [done.step, done.num_tokens, done.num_token_steps],
            "num_steps": self.num_steps,
            "is_steady": done.step <= self.steady_steps,
        }
        for name in (_STEADY, _LAST) if state["is_steady"] else (_LAST,):
            partial = self.folder / f"{name}.partial"
            torch.save(state, partial)
            os.replace(partial, self.folder / name)

    def _passes_through(self, saved: dict[str, Any]) -> bool:
        """Courses are alike up to where the first of them lets the rate fall."""
        if saved["num_steps"] == self.num_steps:
            return True
        return bool(saved["is_steady"]) and saved["done"][0] <= self.steady_steps

    def _cut_log(self, num_steps: int) -> None:
        path = self.folder / LOG_NAME
        if path.is_file():
            rows = path.read_text().splitlines(keepends=True)
            kept = [row for row in rows if json.loads(row)["step"] <= num_steps]
            path.write_text("".join(kept))
