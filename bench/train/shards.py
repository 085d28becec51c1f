"""Texts on disk, a shard for each batch.

Guarantees: a shard is whole or absent; what was made is found again, so that making more goes on
where it stopped; the digest of some shards is over their bytes, in order. States are kept in
bfloat16. Never knows the target.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from bench.train.texts import Text
from engine.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Shards:
    """A folder of shards of one seed."""

    folder: Path

    def path(self, idx: int) -> Path:
        """Where shard `idx` is or will be."""
        return self.folder / f"shard-{idx:05d}.safetensors"

    def __len__(self) -> int:
        """How many there are, without a gap from 0 on."""
        num = 0
        while self.path(num).is_file():
            num += 1
        return num

    def write(self, idx: int, texts: Sequence[Text]) -> int:
        """Write one shard. Returns its answers' tokens."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lens = [[text.prompt_len, len(text.ids)] for text in texts]
        partial = self.path(idx).with_suffix(".partial")
        save_file(
            {
                "ids": torch.cat([text.ids for text in texts]).to(torch.int32),
                "lens": torch.tensor(lens, dtype=torch.int32),
                "taps": torch.cat([text.taps for text in texts]).to(torch.bfloat16),
                "final": torch.cat([text.final for text in texts]).to(torch.bfloat16),
            },
            partial,
        )
        os.replace(partial, self.path(idx))
        return sum(total - prompt for prompt, total in lens)

    def read(self, idx: int) -> list[Text]:
        """Read one shard back.

        Raises:
            ConfigError: it is not there.
        """
        if not self.path(idx).is_file():
            raise ConfigError(f"{self.path(idx)} is missing; make texts first: bench.train texts")
        with safe_open(self.path(idx), framework="pt") as shard:
            parts = {name: shard.get_tensor(name) for name in ("ids", "lens", "taps", "final")}
        texts, at = [], 0
        for prompt_len, total_len in parts["lens"].tolist():
            rows = slice(at, at + total_len)
            texts.append(
                Text(
                    parts["ids"][rows].long(), prompt_len, parts["taps"][rows], parts["final"][rows]
                )
            )
            at += total_len
        return texts

    def digest(self, num_shards: int) -> str:
        """SHA-256 over the ids and lengths of the first shards: what was read, not how rounded."""
        hasher = hashlib.sha256()
        for idx in range(num_shards):
            with safe_open(self.path(idx), framework="np") as shard:
                for name in ("ids", "lens"):
                    hasher.update(shard.get_tensor(name).tobytes())
        return hasher.hexdigest()
