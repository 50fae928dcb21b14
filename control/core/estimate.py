"""What a request will take of a GPU's KV cache, before its body has been read."""

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Estimate:
    """Tokens of a request: its prompt, and the output that is to be expected of its scene.

    The defaults are mission 000, section 4.1: prompt characters x 0.6, 6,000 tokens for a
    medical record, 1,000 for a question. All that is known before the upload is the body's
    length in bytes, which is never less than its characters, so the estimate errs to the safe
    side (up to three times for Chinese text).
    """

    tokens_per_char: float
    expected_output: Mapping[str, int]
    default_scene: str

    @property
    def smallest(self) -> int:
        """Tokens of the smallest request that there is."""
        return min(self.expected_output.values())

    def scene(self, asked: str) -> str:
        """The scene that counts: the one asked for, or the default where it is not known."""
        return asked if asked in self.expected_output else self.default_scene

    def tokens(self, body_bytes: int, scene: str) -> int:
        """Tokens to reserve for ``body_bytes`` bytes of request body in ``scene`` (a known one)."""
        return math.ceil(body_bytes * self.tokens_per_char) + self.expected_output[scene]
