"""Settings as JSON and back: numbers, texts, sequences of them, and dataclasses that are listed.

A file can name nothing but the classes of a :class:`Vocabulary`, so reading one builds what the
library knows and runs nothing else.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from s2vgd.errors import ModelFileError


class Vocabulary:
    """The frozen dataclasses that a description may hold.

    Parameters
    ----------
    *classes : type
        They are told apart by their names.
    advice : str
        What to do about a description that holds an object of somebody else's.
    """

    def __init__(self, *classes: type, advice: str) -> None:
        self._classes: dict[str, Any] = {cls.__name__: cls for cls in classes}
        self._advice = advice

    def describe(self, value: Any) -> Any:
        """Write a value as JSON: dataclasses by name and fields, anything else by its type."""
        if isinstance(value, np.generic):
            value = value.item()
        if type(value) in self._classes.values():
            fields = dataclasses.fields(value)
            described = {field.name: self.describe(getattr(value, field.name)) for field in fields}
            return {"class": type(value).__name__, **described}
        if isinstance(value, tuple | list):
            return [self.describe(item) for item in value]
        if value is None or isinstance(value, bool | int | float | str):
            return value
        return {"class": None, "was": type(value).__name__}

    def rebuild(self, described: Any) -> Any:
        """Undo :meth:`describe`.

        Raises
        ------
        ModelFileError
            If it describes nothing that this version knows.
        """
        if isinstance(described, list):
            return tuple(self.rebuild(item) for item in described)
        if not isinstance(described, dict):
            return described
        name = described.get("class")
        if name is None:
            raise ModelFileError(
                f"the saved model has an object of your own ({described.get('was')}); "
                f"{self._advice}"
            )
        if not isinstance(name, str) or name not in self._classes:
            raise ModelFileError(f"the saved model uses {name!r}, which this version does not know")
        fields = {key: self.rebuild(value) for key, value in described.items() if key != "class"}
        try:
            return self._classes[name](**fields)
        except (TypeError, ValueError) as error:
            raise ModelFileError(f"the saved model describes no valid {name}: {error}") from None


def is_complete(described: Any) -> bool:
    """Whether :meth:`Vocabulary.rebuild` can undo a description."""
    if isinstance(described, list):
        return all(map(is_complete, described))
    if isinstance(described, dict):
        return described.get("class", "") is not None and all(map(is_complete, described.values()))
    return True
