"""Text in, text out: the engine's public API over one session.

with LocalRing(RingSpec(num_stages=4)) as ring, ring.session() as session:
    generator = Generator(session, ring.files)
    print(generator.generate("Why is the sky blue?").text)
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.coordinator.job import JobRequest, JobResult, make_levers
from engine.coordinator.session import Session
from engine.model.tokenizer import Tokenizer
from engine.model.weights import ModelFiles
from engine.transport.message import Levers


@dataclass(frozen=True, slots=True)
class Generation:
    """One decode: its prompt, its text, and the job's whole record."""

    prompt_ids: tuple[int, ...]
    text: str
    result: JobResult


def _discard(text: str) -> None:
    return None


class Generator:
    """Tokenizes, runs jobs and streams text."""

    def __init__(self, session: Session, files: ModelFiles) -> None:
        self.tokenizer = Tokenizer.load(files)
        self._session = session
        self._eos_ids = frozenset(files.config.eos_ids)

    def encode(self, prompt: str, raw: bool = False) -> tuple[int, ...]:
        """Token ids of a prompt, rendered as a user's turn unless `raw`."""
        if raw:
            return tuple(self.tokenizer.encode(prompt, add_special=True))
        return tuple(self.tokenizer.encode_chat([{"role": "user", "content": prompt}]))

    def generate(
        self,
        prompt: str,
        *,
        raw: bool = False,
        levers: Levers | None = None,
        stop: Sequence[str] = (),
        nonce: str | None = None,
        on_text: Callable[[str], None] = _discard,
    ) -> Generation:
        """Decode one prompt.

        Args:
            raw: take the prompt as it is, without the chat template.
            levers: from `make_levers`; the defaults if None.
            stop: output ends with the token that completes one of these strings.
            nonce: of the job; a fresh one if None.
            on_text: called with text as it is committed.

        Raises:
            JobError: the job failed.
        """
        prompt_ids = self.encode(prompt, raw)
        stream = self.tokenizer.stream()

        def should_stop(output_ids: Sequence[int]) -> bool:
            text = self.tokenizer.decode(output_ids)
            return any(mark in text for mark in stop)

        request = JobRequest(
            prompt_ids=prompt_ids,
            levers=levers or make_levers(),
            eos_ids=self._eos_ids,
            nonce=nonce or secrets.token_hex(16),
            **({"should_stop": should_stop} if stop else {}),
        )
        result = self._session.run(request, lambda ids, _: on_text(stream.push(ids)))
        if result.failure is not None:
            raise result.failure
        on_text(stream.finish())
        return Generation(prompt_ids, self.tokenizer.decode(result.output_ids), result)
