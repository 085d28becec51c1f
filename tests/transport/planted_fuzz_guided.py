"""Test only: the guided fuzzing process with a decoder that lacks every kind."""

from __future__ import annotations

from bench.studies import fuzz_guided
from engine.transport import codec

if __name__ == "__main__":
    codec._message_decoders = {}
    fuzz_guided.main()
