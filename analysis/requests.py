"""What each request of an arm gives the tests of independence: the data rule on receipts.

Guarantees: one request per distinct prompt and sampling seed, in plan order, so that repetitions
and other arms never share a test; a request that lacks bits which the rule asks for is an error
that names it, never a shorter sample; an arm whose frames leave the limits of its policy gets
`context_e` alone. Must never know a statistic, files or axes.

Source: DESIGN section 14, "Data" and "Applicability".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.checks import is_chain_round, is_round
from analysis.iid_bits import Study, drafted, open_study, round_outside, ruled_study
from analysis.iid_evidence import MatchedRound
from analysis.iid_result import Round
from analysis.load import Experiment, groups_of
from bench.schema import JobConfig, Receipt, SamplingRow
from engine.errors import ConfigError, ReceiptError, unknown_name


@dataclass(frozen=True, slots=True)
class Request:
    """One decoded text and the fate of its drafts, in position order.

    Attributes:
        rounds: (k, a, match length) of every round, those without a draft among them.
        committed_lens: tokens that each round committed.
        bits: every tested draft, 1 accepted, 0 refused.
        is_whole: whether decoding ended by itself; if an error ended it, `context_e` alone may
            look at it.
        ends_unforeseen: whether the text was over before the budget, which is known beforehand.
    """

    cell: str
    group: str
    receipt_id: str
    rounds: tuple[MatchedRound, ...]
    committed_lens: tuple[int, ...]
    bits: tuple[int, ...]
    is_whole: bool
    ends_unforeseen: bool

    @property
    def num_committed(self) -> int:
        """N, tokens committed after the prefill token, EOS included."""
        return sum(self.committed_lens)

    @property
    def plain_rounds(self) -> list[Round]:
        """(k, a) of every round."""
        return [(draft_len, accepted_len) for draft_len, accepted_len, _ in self.rounds]


def requests_of(experiment: Experiment, arm: str) -> list[Request]:
    """The requests of an arm: of each prompt and sampling seed the first job, in plan order.

    Raises:
        ConfigError: the plan measures no such arm.
    """
    if arm not in experiment.measured_arms():
        raise unknown_name("measured arm", arm, experiment.measured_arms())
    groups = groups_of(experiment.plan)
    found: dict[tuple[str, str], Request] = {}
    for receipt, identifier in _usable(experiment):
        if receipt.requested.arm == arm:
            request = _request(receipt, identifier, groups)
            key = _text_key(receipt)
            if key not in found or (request.is_whole and not found[key].is_whole):
                found[key] = request
    return list(found.values())


def study_of(requests: Sequence[Request], levers: JobConfig) -> Study:
    """Apply the data rule to requests of one arm.

    Args:
        requests: in plan order.
        levers: the arm's, from the plan: its policy bounds the draft length.

    Raises:
        ReceiptError: a request has fewer bits than the rule asks for.
    """
    all_rounds = [drafted(request.plain_rounds) for request in requests]
    limits = policy_limits(levers)
    whole = [request for request in requests if request.is_whole]
    if limits is None or any(leaves_limits(request, limits) for request in whole):
        return open_study(all_rounds)
    try:
        return ruled_study(
            bits=[request.bits for request in whole],
            nums_committed=[request.num_committed for request in whole],
            k_min=limits[0],
            k_max=limits[1],
            all_rounds=all_rounds,
            names=[f"{request.cell} (receipt {request.receipt_id})" for request in whole],
        )
    except ConfigError as error:
        raise ReceiptError(str(error)) from error


def policy_limits(levers: JobConfig) -> tuple[int, int] | None:
    """(K_min, K_max) that an arm's policy keeps to, while its drafter has something; None: none."""
    if levers.policy == "fixed-k" and levers.draft_len:
        return levers.draft_len, levers.draft_len
    if levers.policy == "two-state" and levers.draft_len and "high" in levers.policy_params:
        return levers.draft_len, levers.policy_params["high"]
    return None


def leaves_limits(request: Request, limits: tuple[int, int]) -> bool:
    """Whether a round before the last K_max tokens drafts fewer or more than the limits say."""
    return round_outside(request.plain_rounds, request.committed_lens, *limits) is not None


def _usable(experiment: Experiment) -> list[tuple[Receipt, str]]:
    """Measured jobs whose drafts tell of the text, in plan order.

    Besides the used ones: those on links that were not the profile's, and those that an error or a
    deadline ended. Without a reference nothing says what the text is; a wrong text tells nothing.
    """
    references = {
        _family(receipt)
        for receipt in experiment.receipts
        if receipt.position.role == "reference" and receipt.text_stands
    }
    used = {receipt.position.job_idx for receipt, _ in experiment.measured()}
    return [
        (receipt, identifier)
        for receipt, identifier in zip(experiment.receipts, experiment.receipt_ids, strict=True)
        if receipt.position.job_idx in used
        or (
            receipt.position.role == "measured"
            and receipt.status == "failed"
            and receipt.lossless.verdict != "different"
            and _family(receipt) in references
        )
    ]


def _family(receipt: Receipt) -> tuple[int, str]:
    """What one reference job judges."""
    return receipt.position.block_idx, receipt.requested.numeric_config


def _text_key(receipt: Receipt) -> tuple[str, str]:
    sampling = receipt.requested.sampling
    if not isinstance(sampling, SamplingRow) or float(sampling.temperature) == 0:
        return receipt.prompt_digest, ""  # greedy: one text, whatever the seed
    return receipt.prompt_digest, sampling.seed


def _request(receipt: Receipt, identifier: str, groups: dict[str, str]) -> Request:
    rounds: list[MatchedRound] = []
    committed: list[int] = []
    bits: list[int] = []
    for frame in receipt.frames:
        if not is_round(frame):
            continue
        committed.append(frame.committed_len)
        if not is_chain_round(frame):
            rounds.append((0, 0, 0))
            continue
        rounds.append((frame.draft_len, frame.accepted_len, frame.match_len))
        bits += [1] * frame.accepted_len + [0] * (frame.tested_len - frame.accepted_len)
    cell = receipt.position.cell
    return Request(
        cell=cell,
        group=groups[cell],
        receipt_id=identifier,
        rounds=tuple(rounds),
        committed_lens=tuple(committed),
        bits=tuple(bits),
        is_whole=receipt.text_stands,
        ends_unforeseen=receipt.finish_reason != "length"
        and len(receipt.output_ids) < receipt.requested.max_new_tokens,
    )
