"""Tables in, matrices out: :class:`TableCodec` learns how each column of a table becomes numbers.

What it learned (medians, category levels, class labels) is plain data that is stored beside a
saved model, so that a new table gets exactly the treatment the training table had, or an error
that names the column, the value and the row. Reading and writing table files is the command
line's business (``s2vgd.cli.tables``); standardising is the estimators'.
"""

from s2vgd.tabular.codec import TableCodec, infer_task
from s2vgd.tabular.columns import Column

__all__ = ["Column", "TableCodec", "infer_task"]
