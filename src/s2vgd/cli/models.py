"""A model directory: what the estimator saved, and beside it ``table.json`` of the codec."""

from __future__ import annotations

from pathlib import Path

from s2vgd import files
from s2vgd.errors import ModelFileError
from s2vgd.estimators import S2VGDClassifier, S2VGDRegressor
from s2vgd.tabular import TableCodec
from s2vgd.tabular.codec import FILE_NAME

Estimator = S2VGDRegressor | S2VGDClassifier


def estimator_class(task: str) -> type[S2VGDRegressor] | type[S2VGDClassifier]:
    """Return the estimator for a task."""
    return S2VGDRegressor if task == "regression" else S2VGDClassifier


def check_destination(directory: Path, task: str) -> None:
    """Refuse, before anything is computed, to write a model over anything but one of its kind."""
    files.check_target(directory, kind=estimator_class(task)._kind)


def save_model(directory: Path, codec: TableCodec, estimator: Estimator) -> None:
    """Write a model that :func:`load_model` reads.

    The description of the table goes first and comes last, so that a process killed in between
    leaves a directory that is refused rather than a model with another model's table.
    """
    (directory / FILE_NAME).unlink(missing_ok=True)
    estimator.save(directory)
    codec.save(directory)


def load_model(directory: Path) -> tuple[TableCodec, Estimator]:
    """Read a model; ModelFileError if it is absent, damaged, or does not fit its table."""
    codec = TableCodec.load(directory)
    estimator = estimator_class(codec.task).load(directory)
    if estimator.n_features_in_ != codec.n_features:
        raise ModelFileError(
            f"{directory} is damaged: the model takes {estimator.n_features_in_} inputs, "
            f"its {FILE_NAME} makes {codec.n_features}"
        )
    return codec, estimator
