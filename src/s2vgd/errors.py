"""The exceptions a user of the library may want to catch, and nothing else."""

from __future__ import annotations

from pathlib import Path


class S2VGDError(Exception):
    """Base class of every error raised on purpose by this library."""


class DataError(S2VGDError, ValueError):
    """Input data that cannot be used; the message names the column or argument."""


class ModelFileError(S2VGDError):
    """A saved model that is damaged, foreign, too new, or not a model at all."""


class DivergedError(S2VGDError, ArithmeticError):
    """Training or sampling produced non-finite numbers.

    Parameters
    ----------
    message : str
        What happened, in words.
    step : int
        The first step at which it was seen.
    quantity : str
        What became non-finite, for example ``"particles"`` or ``"log density"``.
    checkpoint : Path, optional
        The last good checkpoint, when checkpoints were being written.
    """

    def __init__(
        self, message: str, *, step: int, quantity: str, checkpoint: Path | None = None
    ) -> None:
        super().__init__(message)
        self.step = step
        self.quantity = quantity
        self.checkpoint = checkpoint
