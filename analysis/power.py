"""Power of the study's tests, and their size: `python -m analysis.power [--receipts DIR]`.

Writes `paper/power/power.csv`, simulated with the requests, K and acceptance of the acceptance
study, and `size.csv`, which no receipt enters. Both take long (`make power`) and are committed;
figures and tables of the committed study read them and refuse one whose inputs have changed. What
is simulated for other receipts goes to `build/power/`, where their tables find it.

Guarantees: first line of a file: what made it, and the digest of its inputs. Must never know how a
figure or a table looks.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path

import msgspec
import pandas as pd

from analysis.folders import DEFAULT_EXPERIMENT, REPOSITORY, product_folder
from analysis.iid import TESTS, Study, run_tests
from analysis.iid_power import (
    EFFECTS,
    PowerInputs,
    SizeInputs,
    power_study,
    share_interval,
    size_limit,
    size_study,
)
from analysis.iid_result import IidResult
from analysis.iid_simulation import Text
from analysis.load import find_experiment, load_experiment
from analysis.requests import Request, requests_of, study_of
from engine.errors import ConfigError, LonghaulError

STUDY_EXPERIMENT, STUDY_ARM = "acceptance", "accept-k8"
ROWS_FOLDER = REPOSITORY / "build" / "power" / "rows"
POWER_NAME, SIZE_NAME = "power.csv", "size.csv"
REMEDY = "run `make power` (long) and commit what it writes"


def power_folder(is_committed: bool) -> Path:
    """Where simulations lie: the committed study's in `paper/`, others' in ignored `build/`."""
    return product_folder("power", "" if is_committed else "own", DEFAULT_EXPERIMENT)


def power_inputs(requests: Sequence[Request], study: Study, entry_level: float) -> PowerInputs:
    """The study's own requests, K and mean acceptance over the bits that its tests use.

    Args:
        entry_level: Holm's, of the smallest p: the pre-registered level over the applicable tests.

    Raises:
        ConfigError: the study is not of one K, so that nothing here could simulate it.
    """
    if study.draft_len is None or study.kind != "fixed":
        raise ConfigError("power is simulated for studies whose frames all have K drafts")
    whole = [request for request in requests if request.is_whole]
    bits = [bit for stream in study.bits for bit in stream]
    if not bits:
        raise ConfigError("no request has a bit that the data rule lets the tests use")
    return PowerInputs(
        texts=tuple(Text(request.num_committed, request.ends_unforeseen) for request in whole),
        draft_len=study.draft_len,
        alpha=sum(bits) / len(bits),
        level=entry_level,
    )


def power_table(inputs: PowerInputs, pool: ProcessPoolExecutor) -> pd.DataFrame:
    """Columns family, effect, test, studies, rejected, power, low, high."""
    rows = []
    for family, effects in EFFECTS.items():
        for effect in effects:
            one = partial(power_study, inputs, family, effect)
            name = f"{inputs.digest()[:16]} {family} {effect:g}"
            for test, count in _counted(one, inputs.num_studies, pool, name).items():
                share = share_interval(count, inputs.num_studies)
                rows.append((family, effect, test, inputs.num_studies, count, *share))
            print(f"power: {family} {effect:g} done", file=sys.stderr)
    columns = ["family", "effect", "test", "studies", "rejected", "power", "low", "high"]
    return pd.DataFrame(rows, columns=columns)


def size_table(inputs: SizeInputs, pool: ProcessPoolExecutor) -> pd.DataFrame:
    """Columns k_min, k_max, depth, alpha, test, studies, rejected, size, low, high, limit."""
    rows = []
    for rule, depth, alpha in product(inputs.rules, inputs.depths, inputs.alphas):
        one = partial(size_study, inputs, alpha, rule, depth)
        limit = size_limit(inputs.level, inputs.num_studies)
        name = f"{inputs.digest()[:16]} {rule.low}-{rule.high} {depth} {alpha:g}"
        for test, count in _counted(one, inputs.num_studies, pool, name).items():
            share = share_interval(count, inputs.num_studies)
            design = (rule.low, rule.high, depth, alpha)
            rows.append((*design, test, inputs.num_studies, count, *share, limit))
        print(f"size: k {rule.low}…{rule.high}, depth {depth}, α {alpha} done", file=sys.stderr)
    columns = ["k_min", "k_max", "depth", "alpha", "test", "studies", "rejected", "size"]
    return pd.DataFrame(rows, columns=[*columns, "low", "high", "limit"])


def write_result(table: pd.DataFrame, digest: str, path: Path) -> Path:
    """Write a table behind a line that names its inputs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    body = table.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    path.write_text(f"# generated by analysis.power; inputs sha256 {digest}\n{body}")
    return path


def read_result(path: Path, digest: str) -> pd.DataFrame | None:
    """Read a table; None if nothing was simulated yet.

    Raises:
        ConfigError: other inputs made it.
    """
    if not path.is_file():
        return None
    first, _, body = path.read_text(encoding="utf-8").partition("\n")
    if first.rpartition(" ")[2] != digest:
        raise ConfigError(
            f"{path}: made from other inputs ({first.rpartition(' ')[2][:16]}…; needed: "
            f"{digest[:16]}…); {REMEDY}"
        )
    return pd.read_csv(io.StringIO(body))


def study_inputs(receipts_dir: str, arm: str) -> PowerInputs:
    """Inputs of a study's power: of the committed one unless a folder is named."""
    experiment = load_experiment(find_experiment(receipts_dir, STUDY_EXPERIMENT))
    requests = requests_of(experiment, arm)
    study = study_of(requests, experiment.plan.arms[arm])
    outcomes = run_tests(study, num_draws=1)  # which tests apply does not hang on their draws
    num_applicable = sum(isinstance(outcome, IidResult) for outcome in outcomes.values())
    return power_inputs(requests, study, float(experiment.plan.alpha) / max(1, num_applicable))


def _counted(
    one: Callable[[int], dict[str, bool]], num_studies: int, pool: ProcessPoolExecutor, name: str
) -> dict[str, int]:
    """How many studies each test rejects, tests in their usual order.

    Kept under a name that holds the digest of the inputs, so that an interrupted hour goes on.
    """
    path = ROWS_FOLDER / f"{name}.json"
    if path.is_file():
        kept: dict[str, int] = msgspec.json.decode(path.read_bytes(), type=dict[str, int])
        return kept
    counts: Counter[str] = Counter()
    outcomes: Iterable[dict[str, bool]] = pool.map(one, range(num_studies), chunksize=25)
    for outcome in outcomes:
        counts.update({test: int(rejected) for test, rejected in outcome.items()})
    found = {test: counts[test] for test in TESTS if test in counts}
    ROWS_FOLDER.mkdir(parents=True, exist_ok=True)
    partial_path = path.with_suffix(".tmp")
    partial_path.write_bytes(msgspec.json.encode(found))
    partial_path.replace(path)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m analysis.power", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--receipts", default="", help="a study's folder; default: committed")
    parser.add_argument("--arm", default=STUDY_ARM, help=f"default: {STUDY_ARM}")
    parser.add_argument("--out", type=Path, help="folder; default: paper/power, or build/power")
    parser.add_argument("--only", choices=("power", "size"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    options = parser.parse_args(arguments)
    out = options.out or power_folder(is_committed=not options.receipts)
    try:
        with ProcessPoolExecutor(options.jobs) as pool:
            if options.only != "size":
                inputs = study_inputs(options.receipts, options.arm)
                table = power_table(inputs, pool)
                print(f"wrote {write_result(table, inputs.digest(), out / POWER_NAME)}")
            if options.only != "power":
                sizes = SizeInputs()
                table = size_table(sizes, pool)
                print(f"wrote {write_result(table, sizes.digest(), out / SIZE_NAME)}")
    except LonghaulError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
