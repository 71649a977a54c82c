"""Tables to matrices: every treatment, its memory on disk, and every complaint."""

from __future__ import annotations

import datetime
import json

import numpy as np
import pandas as pd
import pytest

from s2vgd.errors import DataError, ModelFileError
from s2vgd.tabular import Column, TableCodec, infer_task


def table() -> pd.DataFrame:
    """Return a small table with every kind of column, one missing cell in most."""
    return pd.DataFrame(
        {
            "size": [1.0, 2.0, np.nan, 4.0, 10.0, 3.0],
            "rooms": [1, 2, 3, 4, 5, 6],
            "garden": [True, False, True, True, False, True],
            "colour": ["red", None, "blue", "red", "blue", "red"],
            "built": ["2020-01-01", "1970-01-02", "2000-06-30", "1999-12-31", "1980-01-01", ""],
            "same": [7, 7, 7, 7, 7, 7],
            "blank": [None] * 6,
            "price": [10.5, 11.0, 12.25, 13.0, 14.0, 15.5],
        }
    )


def as_text(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame as the CSV reader delivers it: nothing but text."""
    return frame.map(lambda cell: "" if cell is None or cell != cell else str(cell))


def test_every_kind_is_recognised():
    codec = TableCodec.fit(table(), ["price"])
    assert {column.name: column.kind for column in codec.columns} == {
        "size": "number",
        "rooms": "number",
        "garden": "boolean",
        "colour": "category",
        "built": "date",
        "same": "number",
        "blank": "empty",
    }
    assert codec.task == "regression"


def test_matrix_matches_the_table_written_out_by_hand():
    codec = TableCodec.fit(table(), ["price"])
    assert codec.feature_names == (
        "size",
        "size=<missing>",
        "rooms",
        "garden",
        "colour=blue",
        "colour=red",
        "colour=<missing>",
        "built",
        "built=<missing>",
        "same",
    )
    x = codec.encode(table())
    day = datetime.date(1970, 1, 1)
    built = [(datetime.date(*d) - day).days for d in ((2020, 1, 1), (1970, 1, 2), (2000, 6, 30))]
    np.testing.assert_allclose(x[0], [1, 0, 1, 1, 0, 1, 0, built[0], 0, 7])
    np.testing.assert_allclose(x[1], [2, 0, 2, 0, 0, 0, 1, built[1], 0, 7])
    np.testing.assert_allclose(x[2], [3, 1, 3, 1, 1, 0, 0, built[2], 0, 7])
    assert x[5, 8] == 1.0
    assert x[5, 7] == np.median(x[:5, 7])
    assert x.dtype == np.float64


def test_text_cells_give_the_same_codec_and_matrix_as_typed_cells():
    typed, text = table(), as_text(table())
    assert TableCodec.fit(typed, ["price"]) == TableCodec.fit(text, ["price"])
    codec = TableCodec.fit(typed, ["price"])
    np.testing.assert_array_equal(codec.encode(typed), codec.encode(text))


def test_encoding_in_pieces_equals_encoding_at_once():
    codec = TableCodec.fit(table(), ["price"])
    pieces = [codec.encode(table().iloc[i : i + 1], first_row=i + 1) for i in range(6)]
    np.testing.assert_array_equal(np.vstack(pieces), codec.encode(table()))


@pytest.mark.parametrize("dtype", ["category", "string", object])
def test_text_like_dtypes_are_categories(dtype):
    frame = pd.DataFrame({"c": pd.Series(["b", "a", "b"], dtype=dtype), "y": [0.5, 1.5, 2.5]})
    codec = TableCodec.fit(frame, ["y"])
    np.testing.assert_array_equal(codec.encode(frame), [[0, 1], [1, 0], [0, 1]])


@pytest.mark.parametrize("values", [[1, None, 3], [1.0, np.nan, 3.0]])
@pytest.mark.parametrize("dtype", ["Int64", "Float64", "float64"])
def test_nullable_numbers(values, dtype):
    frame = pd.DataFrame({"n": pd.Series(values, dtype=dtype), "y": [0.5, 1.5, 2.5]})
    codec = TableCodec.fit(frame, ["y"])
    np.testing.assert_array_equal(codec.encode(frame), [[1, 0], [2, 1], [3, 0]])


def test_datetimes_keep_their_hours_and_time_zones():
    stamps = pd.to_datetime(["1970-01-01 12:00", "1970-01-03 00:00"]).tz_localize("UTC")
    for column in (stamps, stamps.tz_convert("Asia/Tokyo"), stamps.tz_localize(None)):
        fitted = Column.fit(pd.Series(column, name="when"))
        np.testing.assert_allclose(fitted.encode(pd.Series(column))[:, 0], [0.5, 2.0])


def test_booleans_in_any_spelling():
    column = Column.fit(pd.Series(["true", "False", "TRUE", "NA"], name="b"))
    assert column.kind == "boolean"
    np.testing.assert_array_equal(
        column.encode(pd.Series(["1", "false", "True", "0"]))[:, 0], [1, 0, 1, 0]
    )
    np.testing.assert_array_equal(column.encode(pd.Series([True, False]))[:, 0], [1, 0])
    assert Column.fit(pd.Series([True, None, False], dtype=object, name="b")).kind == "boolean"


def test_declared_categories_of_numbers_match_across_file_formats():
    """Codes such as 1 come back as 1.0 or "1.0" when a tool saw a missing cell."""
    column = Column.fit(pd.Series([10, 2, 1], name="code"), categorical=True)
    assert column.levels == ("1", "2", "10")
    for cells in ([2, 10], [2.0, 10.0], ["2", "10"], ["2.0", "10.0"]):
        np.testing.assert_array_equal(column.encode(pd.Series(cells)), [[0, 1, 0], [0, 0, 1]])


def test_leading_zeros_of_declared_categories_survive():
    column = Column.fit(pd.Series(["007", "7", "07"], name="code"), categorical=True)
    np.testing.assert_array_equal(
        column.encode(pd.Series(["007", "07", "7"])).argmax(1),
        [column.levels.index(level) for level in ("007", "07", "7")],
    )


def test_missing_number_where_training_had_none_takes_the_median_and_warns():
    codec = TableCodec.fit(table(), ["price"])
    frame = table()
    frame["rooms"] = frame["rooms"].astype(float)
    frame.loc[0, "rooms"] = np.nan
    with pytest.warns(UserWarning, match="'rooms' has missing values but had none in training"):
        x = codec.encode(frame)
    assert x[0, codec.feature_names.index("rooms")] == 3.5


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.linspace(0, 1, 50), "regression"),
        ([0, 1] * 25, "classification"),
        (["0", "1"] * 25, "classification"),
        ([1.0, 2.0] * 25, "classification"),
        ([0.5, 1.0] * 25, "regression"),
        (list(range(10)) * 5, "classification"),
        (list(range(10)) * 4, "regression"),
        (list(range(11)) * 50, "regression"),
        (["a", "b"], "classification"),
        ([True, False], "classification"),
    ],
)
def test_task_rule(values, expected):
    assert infer_task(pd.Series(values, name="y")) == expected


def test_task_can_be_forced_both_ways():
    frame = pd.DataFrame({"x": range(50), "y": [1, 2] * 25})
    assert TableCodec.fit(frame, ["y"]).classes == ("1", "2")
    forced = TableCodec.fit(frame, ["y"], task="regression")
    np.testing.assert_array_equal(forced.encode_target(frame)[0], [1.0, 2.0] * 25)
    frame["y"] = [0.5, 1.5] * 25
    assert TableCodec.fit(frame, ["y"], task="classification").classes == ("0.5", "1.5")


def test_rows_without_a_target_are_left_out_of_everything():
    """The level "odd" and the value 1000 occur only where the target is missing."""
    frame = pd.DataFrame(
        {
            "c": ["a", "b", "odd", "a"],
            "x": [1.0, 2.0, 1000.0, 3.0],
            "y": [1.5, 2.5, None, 3.5],
        }
    )
    codec = TableCodec.fit(frame, ["y"])
    assert codec.columns[0].levels == ("a", "b")
    assert codec.columns[1].fill == 2.0
    y, kept = codec.encode_target(frame)
    np.testing.assert_array_equal(y, [1.5, 2.5, 3.5])
    np.testing.assert_array_equal(kept, [True, True, False, True])


def test_several_targets():
    frame = pd.DataFrame({"x": range(4), "a": [1.0, 2, np.nan, 4], "b": ["1", "2", "3", "4.5"]})
    codec = TableCodec.fit(frame, ["a", "b"])
    y, kept = codec.encode_target(frame)
    np.testing.assert_array_equal(y, [[1, 1], [2, 2], [4, 4.5]])
    assert kept.sum() == 3
    assert codec.feature_names == ("x",)


def test_class_codes_follow_the_sorted_labels_and_any_format():
    frame = pd.DataFrame({"x": range(60), "y": [10, 2, 1] * 20})
    codec = TableCodec.fit(frame, ["y"])
    assert codec.classes == ("1", "2", "10")
    for cells in ([10, 1], ["10", "1"], [10.0, 1.0]):
        y, _ = codec.encode_target(pd.DataFrame({"x": [0, 0], "y": cells}))
        np.testing.assert_array_equal(y, [2, 0])


def test_dropped_and_extra_columns():
    frame = table().assign(id=[f"key-{i}" for i in range(6)])
    codec = TableCodec.fit(frame, ["price"], drop=["id", "size"])
    assert codec.extra_columns(frame) == ("size", "id")
    assert codec.encode(frame).shape == (6, codec.n_features)


# Complaints


def identifiers(n: int) -> pd.DataFrame:
    return pd.DataFrame(
        {"name": [f"n{i}" for i in range(n)], "x": range(n), "y": np.arange(n) + 0.5}
    )


@pytest.mark.parametrize("n", [12, 500])
def test_identifiers_are_refused_unless_declared(n):
    with pytest.raises(DataError, match=rf"'name' has {n} different.*--drop 'name'.*--categorical"):
        TableCodec.fit(identifiers(n), ["y"])
    assert TableCodec.fit(identifiers(n), ["y"], categorical=["name"]).n_features == n + 1
    assert TableCodec.fit(identifiers(n), ["y"], drop=["name"]).n_features == 1


def test_more_than_a_hundred_levels_are_refused_and_a_hundred_are_not():
    levels = [f"n{i}" for i in range(101)]
    frame = pd.DataFrame({"c": levels * 3, "y": np.arange(303) + 0.5})
    with pytest.raises(DataError, match="'c' has 101 different values in 303 rows"):
        TableCodec.fit(frame, ["y"])
    frame = pd.DataFrame({"c": levels[:100] * 3, "y": np.arange(300) + 0.5})
    assert TableCodec.fit(frame, ["y"]).n_features == 100


def test_a_stray_word_among_numbers_is_pointed_out():
    frame = pd.DataFrame({"x": [str(i) for i in range(30)], "y": np.arange(30) + 0.5})
    frame.loc[4, "x"] = "n.d."
    with pytest.raises(DataError, match=r"mostly numbers, but 'n.d.' in row 5 is not one"):
        TableCodec.fit(frame, ["y"])


def test_unknown_category_names_value_rows_and_levels():
    codec = TableCodec.fit(table(), ["price"])
    frame = table()
    frame.loc[[1, 4], "colour"] = "mauve"
    with pytest.raises(DataError, match=r"'colour': 'mauve' in rows 12, 15 .*'blue', 'red'"):
        codec.encode(frame, first_row=11)
    x = codec.encode(frame, unknown="ignore")
    np.testing.assert_array_equal(x[[1, 4], 4:7], np.zeros((2, 3)))


def test_missing_category_is_unknown_when_training_had_none():
    column = Column.fit(pd.Series(["a", "b"], name="c"))
    cells = pd.Series(["a", None], index=[1, 2], name="c")
    with pytest.raises(DataError, match=r"'\(missing\)' in row 2"):
        column.encode(cells)
    np.testing.assert_array_equal(column.encode(cells, unknown="ignore"), [[1, 0], [0, 0]])


def test_missing_column_is_named_with_near_matches():
    codec = TableCodec.fit(table(), ["price"])
    frame = table().rename(columns={"rooms": "Room", "same": "zzz"})
    with pytest.raises(DataError, match=r"no column 'rooms' \(did you mean 'Room'\?\), 'same'"):
        codec.encode(frame)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("rooms", "three", r"'rooms': 'three' in row 2 is not a number"),
        ("rooms", np.inf, r"'rooms': 'inf' in row 2 is not a finite number"),
        ("garden", "maybe", r"'garden': 'maybe' in row 2 is not true or false"),
        ("built", "01/02/2003", r"'built': '01/02/2003' in row 2 is not a date"),
        ("built", 5, r"'built': '5' in row 2 is not a date"),
        ("rooms", [1], r"'rooms': '\[1\]' in row 2 is not a number"),
        ("colour", [1], r"'colour' holds lists"),
    ],
)
def test_wrong_type_names_column_value_and_row(column, value, message):
    codec = TableCodec.fit(table(), ["price"])
    frame = table().astype(object)
    frame.at[1, column] = value
    with pytest.raises(DataError, match=message):
        codec.encode(frame)


def test_timestamps_are_not_numbers():
    column = Column.fit(pd.Series([1, 2], name="n"))
    with pytest.raises(DataError, match="is not a number"):
        column.encode(pd.Series(pd.to_datetime(["2020-01-01"]), name="n"))


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        ({}, {"targets": ["prise"]}, r"no target column 'prise' \(did you mean 'price'\?\)"),
        ({}, {"targets": []}, "at least one target"),
        ({}, {"targets": ["price", "price"]}, "each only once"),
        ({}, {"drop": ["nope"]}, "no column to drop called 'nope'"),
        ({}, {"categorical": ["nope"]}, "no categorical column 'nope'"),
        ({}, {"drop": ["price"]}, "'price' is the target"),
        ({}, {"targets": ["price", "rooms"], "task": "classification"}, "one target column"),
        ({"price": None}, {}, "every row has a missing target"),
        ({"price": "same"}, {}, "single class, 'same'"),
        ({"price": ["1.5", "2", "x", "3", "4", "5"]}, {"task": "regression"}, "'x' in row 3"),
        ({"price": "2020-01-01"}, {"task": "regression"}, "'2020-01-01' in rows .* not a number"),
        ({"size": pd.to_timedelta(range(6), unit="D")}, {}, "'size' has the unsupported type"),
    ],
)
def test_unusable_training_tables(change, arguments, message):
    with pytest.raises(DataError, match=message):
        TableCodec.fit(table().assign(**change), **{"targets": ["price"], **arguments})


def test_too_many_classes():
    frame = pd.DataFrame({"x": range(50), "y": [f"k{i}" for i in range(50)]})
    with pytest.raises(DataError, match=r"50 different values .* too many classes"):
        TableCodec.fit(frame, ["y"])


def test_tables_without_rows_inputs_or_distinct_names():
    with pytest.raises(DataError, match="no rows"):
        TableCodec.fit(table().iloc[:0], ["price"])
    with pytest.raises(DataError, match="no input column"):
        TableCodec.fit(table()[["price", "blank"]], ["price"])
    twice = pd.concat([table(), table()[["size"]]], axis=1)
    with pytest.raises(DataError, match="more than one column named 'size'"):
        TableCodec.fit(twice, ["price"])
    with pytest.raises(TypeError, match="DataFrame"):
        TableCodec.fit({"x": [1]}, ["x"])
    with pytest.raises(ValueError, match="task"):
        TableCodec.fit(table(), ["price"], task="ranking")
    with pytest.raises(ValueError, match="unknown"):
        TableCodec.fit(table(), ["price"]).encode(table(), unknown="guess")


def test_unknown_class_is_named():
    frame = pd.DataFrame({"x": [1, 2], "y": ["yes", "no"]})
    codec = TableCodec.fit(frame, ["y"])
    with pytest.raises(DataError, match=r"'y': class 'maybe' in row 2 .*'no', 'yes'"):
        codec.encode_target(pd.DataFrame({"x": [1, 2], "y": ["no", "maybe"]}))


# Memory


def test_dictionary_round_trip_is_plain_json():
    codec = TableCodec.fit(table(), ["price"])
    again = TableCodec.from_dict(json.loads(json.dumps(codec.to_dict())))
    assert again == codec
    np.testing.assert_array_equal(again.encode(table()), codec.encode(table()))


def test_saved_file_round_trip_leaves_nothing_else_behind(tmp_path):
    codec = TableCodec.fit(pd.DataFrame({"ä": ["ö", "ü"], "y": ["ja", "nein"]}), ["y"])
    codec.save(tmp_path)
    codec.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["table.json"]
    assert TableCodec.load(tmp_path) == codec


def truncate(text: str) -> str:
    return text[: len(text) // 2]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, "damaged"),
        (lambda text: text.replace('"blue"', '"teal"'), "checksum"),
        (lambda text: text.replace('"version": 1', '"version": 2'), "version 2"),
        (lambda text: "[]", "damaged"),
        (lambda text: "{}", "damaged"),
        (lambda text: "\x00", "damaged"),
    ],
)
def test_damaged_files_are_refused(tmp_path, damage, message):
    TableCodec.fit(table(), ["price"]).save(tmp_path)
    path = tmp_path / "table.json"
    path.write_text(damage(path.read_text()))
    with pytest.raises(ModelFileError, match=message):
        TableCodec.load(tmp_path)


def test_absent_file_is_not_a_model(tmp_path):
    with pytest.raises(ModelFileError, match="not a model"):
        TableCodec.load(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"task": "ranking"},
        {"targets": []},
        {"targets": [1]},
        {"classes": ["only"]},
        {"classes": ["a", "b"]},
        {"columns": [{"name": "x", "kind": "strange", "levels": []}]},
        {"columns": [{"name": "x", "kind": "number"}]},
        {"columns": [{"name": "x", "kind": "category", "levels": []}]},
        {"columns": [{"name": "x", "kind": "number", "levels": [], "fill": float("nan")}]},
        {"columns": [{"name": "x", "kind": "number", "levels": [], "fill": "1"}]},
        {"columns": [{"name": "x", "kind": "number", "levels": [], "had_missing": 1}]},
        {"columns": 3},
        {"surprise": 1},
    ],
)
def test_dictionaries_that_make_no_sense_are_refused(change):
    with pytest.raises(ModelFileError, match="damaged"):
        TableCodec.from_dict({**TableCodec.fit(table(), ["price"]).to_dict(), **change})
