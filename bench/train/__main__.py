"""Train the learned drafter: `python -m bench.train [--shards N] [--steps N] …`.

Makes texts, fits the head, writes it, says what it is worth on held-out prompts; every part goes on
from where it was stopped, and with more steps a run goes on from before its rate fell. About an
hour on two cores as it stands.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from rich.console import Console

from bench.study_record import make_study, write_study
from bench.train.checkpoints import LOG_NAME
from bench.train.course import Workshop, read_texts
from bench.train.fit import Reached
from bench.train.make_texts import make_texts
from bench.train.shards import Shards
from bench.train.trial import EVALUATION, TRAINING, log_rows, settings_of, trial_rows
from engine.draft.head_file import DEFAULT_HEAD, load_head
from engine.errors import ConfigError, LonghaulError
from engine.model.weights import prepare_model

NUM_SHARDS, NUM_STEPS = 16, 900  # what the shipped head was made with


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.train", description=__doc__)
    parser.add_argument("--shards", type=int, default=NUM_SHARDS, help="of 96 texts at most each")
    parser.add_argument("--steps", type=int, default=NUM_STEPS, help="of the optimiser")
    parser.add_argument("--seed", type=int, default=0, help="of texts, first weights and order")
    parser.add_argument("--folder", type=Path, default=Path("build/train"))
    parser.add_argument("--out", type=Path, default=DEFAULT_HEAD, help="the head's file")
    parser.add_argument("--record", type=Path, metavar="DIR", help="write signed records there")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=device, help="where the head learns")
    parser.add_argument("--only", choices=("texts", "fit", "evaluate"), help="one part alone")
    return parser.parse_args()


def check_asked(args: argparse.Namespace, run: Path) -> None:
    """Refuse at once what would fail after an hour.

    Raises:
        ConfigError: saying what is allowed.
    """
    if args.shards < 1 or args.steps < 1:
        raise ConfigError(f"{args.shards} shards, {args.steps} steps; allowed: 1 or more of each")
    try:
        torch.empty(0, device=args.device)
    except RuntimeError as error:
        raise ConfigError(f"device {args.device!r} cannot be used: {error}") from error
    if args.only == "evaluate" and args.record and not (run / LOG_NAME).is_file():
        raise ConfigError(
            f"no log of a training in {run} to record; train first, or leave --record"
        )


def main() -> int:
    args, console = parse_args(), Console()
    shards = Shards(args.folder / f"texts-{args.seed}")
    run = args.folder / f"run-{args.seed}-{args.shards}"
    try:
        check_asked(args, run)
        if args.only in (None, "texts"):
            make_texts(shards, args.shards, args.seed, console.print)
        if args.only in (None, "fit"):
            texts = read_texts(shards, args.shards)
            workshop = Workshop(prepare_model(), texts, args.seed, args.device)
            workshop.fit(args.steps, run, lambda reached: console.print(_line(reached)))
            workshop.export(args.out)
        if args.only in (None, "evaluate"):
            head = load_head(args.out)
            trials = trial_rows(head)
            console.print(trials)
            if args.record:
                settings = settings_of(head)
                log = [json.loads(line) for line in (run / LOG_NAME).open()]
                for study, rows in ((TRAINING, log_rows(log)), (EVALUATION, trials)):
                    console.print(str(write_study(make_study(study, settings, rows), args.record)))
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _line(reached: Reached) -> str:
    held = " ".join(f"{rate:.3f}" for rate in reached.held_out)
    return (
        f"step {reached.step}: {reached.num_tokens} tokens, loss {reached.loss:.3f}, "
        f"held out {held}, {reached.spent_s:.0f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
