"""For the reference: bring docstrings into the form that mkdocstrings reads.

They have a few Sphinx roles, and name the choices of a parameter in braces, of which the parser
would take the first for the default and drop an "or None" after them.
"""

import re

import griffe

_ROLE = re.compile(r":(?:class|func|meth|mod|attr|exc|data):`~?([^`]+)`")
_CHOICES = re.compile(r"^([\w, ]+ : )\{(.+)\}", re.MULTILINE)
_MATH = re.compile(r"^\.\. math::\n((?:[ \t]+\S.*\n?|\n)+)", re.MULTILINE)


class PlainDocstrings(griffe.Extension):
    """Rewrite each docstring before it is parsed."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: object) -> None:
        """Replace roles by code, braces by nothing, and mathematics by a block of its source."""
        if obj.docstring is not None and not obj.is_alias:
            text = _ROLE.sub(r"`\1`", obj.docstring.value)
            text = _CHOICES.sub(r"\1\2", text)
            text = _MATH.sub(lambda found: f"```latex\n{found[1].strip()}\n```\n", text)
            obj.docstring.value = re.sub(r"::$", ":", text, flags=re.MULTILINE)
