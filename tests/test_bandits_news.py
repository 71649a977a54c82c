"""Logs of Yahoo! Today: every kind of line, files in and out, and the simulated ones."""

from __future__ import annotations

import gzip
import signal
import subprocess
import sys

import numpy as np
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from s2vgd.bandits.news import lines, parquet, pools, reading
from s2vgd.bandits.news.events import Events
from s2vgd.bandits.news.lines import MAX_LINE_BYTES, Malformed, Parser
from s2vgd.bandits.news.parquet import NewsFile, convert
from s2vgd.bandits.news.reading import NewsText
from s2vgd.bandits.news.simulated import STEPS_A_DAY, ClickModel, SimulatedLog, simulate
from s2vgd.cli.news import app
from s2vgd.errors import DataError

USER = "|user 2:0.000012 3:0.000000 4:0.000006 5:0.000023 6:0.999958 1:1.000000"
FIRST = "|109498 2:0.306008 3:0.000450 4:0.077048 5:0.230439 6:0.386055 1:1.000000"
SECOND = "|109513 2:0.211406 3:0.000036 4:0.002773 5:0.569886 6:0.215900 1:1.000000"
LINE = f"1241160900 109513 1 {USER} {FIRST} {SECOND}"
BROKEN = "|109999 2:0.211406 3:0.000036 1:1.000000"


def parse(*lines: str, end: str = "\n") -> tuple[Events, Parser]:
    parser = Parser()
    return parser.parse("".join(line + end for line in lines).encode()), parser


def assert_same(first: Events, second: Events) -> None:
    for name in Events.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)


def whole(chunks) -> Events:
    return Events.concatenate(list(chunks))


def naive(lines: list[str]) -> tuple[list[tuple], list[tuple], dict[Malformed, int]]:
    """Read lines with a usual head one by one; return events, articles and what was skipped."""
    events, table, skipped = [], {}, dict.fromkeys(Malformed, 0)
    for line in lines:
        (time, displayed, click), user, *articles = (part.split() for part in line.split("|"))
        if not any(articles) and len(articles) < 2:
            skipped[Malformed.NO_ARTICLES] += 1
            continue
        rows = []
        for name, *words in (words or [""] for words in articles):
            is_usable = sorted(word[:2] for word in words) == [f"{i}:" for i in range(1, 7)]
            key = (name, *(np.float32(word[2:]) for word in sorted(words)))
            rows.append((name, table.setdefault(key, len(table)) if is_usable else None))
        usable = [name for name, row in rows if row is not None]
        if any(sum(name == other for other, _ in rows) > 1 for name in usable):
            skipped[Malformed.REPEATED] += 1
        elif displayed in usable:
            features = [np.float32(word[2:]) for word in sorted(user[1:])]
            pool = [row for _, row in rows if row is not None]
            events.append((int(time), usable.index(displayed), click == "1", features, pool))
        else:
            is_there = displayed in [name for name, _ in rows]
            skipped[Malformed.DISPLAYED if is_there else Malformed.NOT_IN_POOL] += 1
    return events, list(table), {kind: n for kind, n in skipped.items() if n}


def assert_is_naive(text: NewsText, lines: list[str]) -> None:
    """Compare what files hold with the lines in them read one by one."""
    events, (expected, table, skipped) = whole(text), naive(lines)
    time, displayed, click, user, rows = zip(*expected, strict=True)
    np.testing.assert_array_equal(events.timestamp, time)
    np.testing.assert_array_equal(events.displayed, displayed)
    np.testing.assert_array_equal(events.click, click)
    np.testing.assert_array_equal(events.user, user)
    np.testing.assert_array_equal(events.pool_sizes, [len(pool) for pool in rows])
    np.testing.assert_array_equal(events.pool, np.concatenate(rows))
    np.testing.assert_array_equal(text.articles.ids, [int(name) for name, *_ in table])
    np.testing.assert_array_equal(text.articles.features, [values for _, *values in table])
    assert text.tally.skipped == skipped
    assert (text.tally.lines, text.tally.events) == (len(lines), len(expected))


@pytest.fixture(scope="module")
def shuffled(simulated):
    """Return lines with their articles in random orders, half of them damaged in their pools."""
    rng = np.random.default_rng(0)
    text = b"".join(gzip.decompress(file.read_bytes()) for file in simulated[1]).decode()
    found = []
    for number, line in enumerate(text.splitlines()[::3]):
        head, user, *articles = line.split("|")
        rng.shuffle(articles)
        match number % 14:
            case 0:  # an article twice
                articles.append(articles[0])
            case 1:  # again without its features
                articles.append(articles[3].split()[0] + " 2:0.5 ")
            case 2:  # one without its features, perhaps that displayed
                articles[0] = articles[0].replace(" 4:", " 3:")
            case 3:  # the same one twice without its features
                articles[:1] = [articles[0].replace(" 4:", " 3:")] * 2
            case 4:  # some fewer, perhaps that displayed
                del articles[8:]
            case 5:
                articles.insert(5, " " * int(rng.integers(3)))
            case 6:
                articles = [" "] * int(rng.integers(2))
        line = "|".join([head, user, *articles])
        found += [line] * int(rng.integers(1, 3))
        if number % 14 == 7:  # goes on where the line before it ends
            found.append(line + " |7 " + FIRST.split(" ", 1)[1])
    return found


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """Return the model and the files of a log of 3,000 events over two days."""
    directory = tmp_path_factory.mktemp("news") / "log"
    return ClickModel(3, 2), simulate(directory, 3_000, 2, 3, truth=True)


# the parser


def test_a_line_of_the_published_format_is_read_exactly():
    events, parser = parse(LINE, LINE.replace("109513 1 ", "109498 0 "))
    np.testing.assert_array_equal(events.timestamp, [1241160900, 1241160900])
    np.testing.assert_array_equal(events.displayed, [1, 0])
    np.testing.assert_array_equal(events.click, [True, False])
    user = np.float32([1, 0.000012, 0, 0.000006, 0.000023, 0.999958])
    np.testing.assert_array_equal(events.user, [user, user])
    np.testing.assert_array_equal(events.offsets, [0, 2, 4])
    np.testing.assert_array_equal(events.pool, [0, 1, 0, 1])
    np.testing.assert_array_equal(parser.articles.ids, [109498, 109513])
    article = np.float32([1, 0.211406, 0.000036, 0.002773, 0.569886, 0.2159])
    np.testing.assert_array_equal(parser.articles.features[1], article)
    assert (parser.tally.lines, parser.tally.events, parser.tally.skipped) == (2, 2, {})


@pytest.mark.parametrize(
    "line",
    [
        LINE.replace(" |", "  |\t").replace("3:", " 3:"),
        LINE.replace("1:1.000000 |", "|", 1).replace("|user", "|user 1:1"),
        LINE.replace("0.000012", "1.2e-05"),
        LINE + "  ",
    ],
    ids=["other spaces", "other order", "exponent", "spaces at the end"],
)
def test_harmless_variations_of_a_line_mean_the_same(line):
    expected, usual = parse(LINE)
    events, parser = parse(line)
    assert_same(events, expected)
    np.testing.assert_array_equal(parser.articles.features, usual.articles.features)


def test_the_quick_and_the_slow_way_to_read_a_line_agree(simulated):
    """A second space before the click sends a line the slow way and changes nothing else."""
    _, files = simulated
    text = gzip.decompress(files[0].read_bytes())
    quick, slow = Parser(), Parser()
    twice = b"\n".join(line.replace(b" ", b"  ", 1) for line in text.split(b"\n"))
    assert len(twice) > len(text)
    assert_same(quick.parse(text), slow.parse(twice))
    np.testing.assert_array_equal(quick.articles.features, slow.articles.features)


def test_articles_in_any_order_are_read_as_they_are_line_by_line(shuffled, tmp_path, monkeypatch):
    path = tmp_path / "log"
    path.write_text("\n".join(shuffled))
    kinds = {Malformed.NO_ARTICLES, Malformed.REPEATED, Malformed.NOT_IN_POOL, Malformed.DISPLAYED}
    for block in (3_000, 2**20):
        monkeypatch.setattr(reading, "_BLOCK_BYTES", block)
        text = NewsText([path])
        assert_is_naive(text, shuffled)
        assert set(text.tally.skipped) == kinds
        assert text.tally.reduced > 50


@pytest.mark.parametrize(
    ("pool", "kind"), [(FIRST, Malformed.NOT_IN_POOL), ("|", Malformed.NO_ARTICLES)]
)
def test_an_article_in_the_pool_of_the_next_line_alone_is_not_found(pool, kind):
    good = f"1241160900 109513 1 {USER} {SECOND}"
    events, parser = parse(good.replace(SECOND, pool), good)
    assert (len(events), parser.tally.skipped) == (1, {kind: 1})


def test_what_is_remembered_of_articles_is_bounded(shuffled, tmp_path, monkeypatch):
    monkeypatch.setattr(pools, "_KNOWN_BYTES", 3_000)
    monkeypatch.setattr(reading, "_BLOCK_BYTES", 3_000)
    path = tmp_path / "log"
    path.write_text("\n".join(shuffled))
    text = NewsText([path])
    assert_is_naive(text, shuffled)
    known = text._parser._pools._known
    assert 0 < sum(map(len, known)) < 3_500


def test_quotes_are_in_the_order_of_the_lines():
    """Malformed articles are found before malformed lines, for all lines of a block."""
    _, parser = parse("hello", f"{LINE} {BROKEN}", "", LINE.replace("109513 1 ", "7 1 ") + " |x")
    kinds = [Malformed.HEAD, Malformed.ARTICLE, Malformed.BLANK]
    kinds += [Malformed.ARTICLE, Malformed.NOT_IN_POOL]
    places = [1, 2, 3, 4, 4]
    expected = [f"line:{place}: {kind}" for place, kind in zip(places, kinds, strict=True)]
    assert [quote.rsplit(": ", 1)[0] for quote in parser.tally.quotes] == expected


def test_ids_and_times_of_other_widths_are_read():
    events, parser = parse(LINE.replace("109513", "7").replace("1241160900", "12"))
    assert (events.timestamp[0], events.displayed[0]) == (12, 1)
    np.testing.assert_array_equal(parser.articles.ids, [109498, 7])


MALFORMED = {
    "": Malformed.BLANK,
    "   ": Malformed.BLANK,
    "x" * (MAX_LINE_BYTES + 1): Malformed.TOO_LONG,
    LINE + " " * MAX_LINE_BYTES: Malformed.TOO_LONG,
    "hello": Malformed.HEAD,
    LINE.replace("1241160900 ", ""): Malformed.HEAD,
    LINE.replace("1241160900", "yesterday"): Malformed.HEAD,
    LINE.replace("109513 1 ", "109513 2 "): Malformed.HEAD,
    LINE.replace("109513 1 ", "109513 1 0 "): Malformed.HEAD,
    "1241160900 109513 1": Malformed.USER,
    "1241160900 109513 1 | |109513 2:0": Malformed.USER,
    LINE.replace(USER, ""): Malformed.USER,
    LINE.replace(USER, USER.replace(" 4:0.000006", "")): Malformed.USER,
    LINE.replace(USER, USER.replace("4:", "3:")): Malformed.USER,
    LINE.replace(USER, USER + " 7:0.5"): Malformed.USER,
    LINE.replace("0.000012", "nan"): Malformed.USER,
    LINE.replace("0.000012", "1e99"): Malformed.USER,
    LINE.replace("0.000012", "0.00 12"): Malformed.USER,
    f"1241160900 109513 1 {USER}": Malformed.NO_ARTICLES,
    f"1241160900 109513 1 {USER} |": Malformed.NO_ARTICLES,
    f"{LINE} {SECOND}": Malformed.REPEATED,
    f"{LINE} |109498 2:0.5": Malformed.REPEATED,
    LINE.replace("109513 1 ", "109514 1 "): Malformed.NOT_IN_POOL,
    LINE.replace("109513 1 ", "109999 1 ") + f" {BROKEN}": Malformed.DISPLAYED,
}


@pytest.mark.parametrize(("line", "kind"), MALFORMED.items(), ids=range(len(MALFORMED)))
def test_each_kind_of_malformed_line_is_skipped_counted_and_quoted(line, kind):
    events, parser = parse(LINE, line, LINE)
    assert_same(events, parse(LINE, LINE)[0])
    assert (parser.tally.lines, parser.tally.skipped) == (3, {kind: 1})
    (quote,) = [quote for quote in parser.tally.quotes if Malformed.ARTICLE not in quote]
    assert quote.startswith(f"line:2: {kind}: ")
    assert line[:100] in quote
    assert len(quote) < 300


def test_all_kinds_are_among_the_malformed_lines_tested():
    assert set(MALFORMED.values()) == set(Malformed) - {Malformed.ARTICLE}


def test_an_article_without_its_features_leaves_the_pool_and_the_event_stays():
    events, parser = parse(LINE.replace(FIRST, f"{BROKEN} {FIRST}"), LINE)
    assert_same(events, parse(LINE, LINE)[0])
    assert (parser.tally.reduced, parser.tally.skipped) == (1, {})
    assert parser.tally.quotes == [f"line:1: {Malformed.ARTICLE}: {BROKEN[1:] + ' '!r}"]


def test_only_the_first_two_of_a_kind_are_quoted():
    _, parser = parse(*["hello"] * 50, "")
    assert [quote.split(": ")[0] for quote in parser.tally.quotes] == [
        "line:1",
        "line:2",
        "line:51",
    ]
    assert parser.tally.skipped == {Malformed.HEAD: 50, Malformed.BLANK: 1}


def test_an_article_whose_features_change_gets_a_row_of_its_own():
    changed = LINE.replace("0.306008", "0.306009")
    events, parser = parse(LINE, changed, LINE)
    np.testing.assert_array_equal(events.pool, [0, 1, 2, 1, 0, 1])
    np.testing.assert_array_equal(parser.articles.ids, [109498, 109513, 109498])


def test_line_ends_of_windows_and_a_missing_last_one_change_nothing():
    expected = parse(LINE, LINE)[0]
    assert_same(parse(LINE, LINE, end="\r\n")[0], expected)
    assert_same(Parser().parse(f"{LINE}\n{LINE}".encode()), expected)


def test_nothing_but_bytes_that_are_not_text_is_skipped():
    parser = Parser()
    noise = np.random.default_rng(0).integers(0, 256, 20_000).astype(np.uint8).tobytes()
    assert len(parser.parse(noise)) == 0
    assert parser.tally.skipped.total() == parser.tally.lines > 10


def test_too_many_articles_end_with_an_error_and_not_with_all_memory(monkeypatch):
    monkeypatch.setattr("s2vgd.bandits.news.events.MAX_ARTICLES", 2)
    with pytest.raises(DataError, match="more than 2 different articles"):
        parse(LINE, LINE.replace("109498", "1"))


# columns


def test_taking_and_joining_ragged_events_is_taking_and_joining_each_event():
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 5, 10)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    pool = rng.integers(0, 9, offsets[-1]).astype(np.int32)
    columns = (np.arange(10), rng.integers(0, 1, 10), rng.random(10) < 0.5, rng.random((10, 6)))
    events = Events(*columns, offsets, pool)
    for rows in (np.array([1, 4, 5, 9]), np.array([], int), slice(3, 7), slice(8, 99), slice(5, 2)):
        part, chosen = events.take(rows), np.arange(10)[rows]
        assert len(part) == len(chosen)
        for i, row in enumerate(chosen):
            np.testing.assert_array_equal(part.pool_of(i), events.pool_of(row))
            assert part.timestamp[i] == row
    assert_same(whole([events.take(slice(0, 4)), events.take(slice(4, 10))]), events)
    pools, live = events.padded_pools(6)
    np.testing.assert_array_equal(live.sum(axis=1), sizes)
    np.testing.assert_array_equal(pools[live], pool)
    assert not pools[~live].any()


# files


def test_chunks_have_the_size_asked_for_whatever_the_blocks(simulated, monkeypatch):
    _, files = simulated
    expected = whole(NewsText(files))
    for block in (700, 5_000, 2**20):
        monkeypatch.setattr(reading, "_BLOCK_BYTES", block)
        text = NewsText(files, chunk_events=128)
        chunks = list(text)
        assert [len(chunk) for chunk in chunks] == [128] * (3_000 // 128) + [3_000 % 128]
        assert_same(whole(chunks), expected)
        assert text.bytes_read == text.total_bytes


def test_a_file_is_not_read_further_than_its_chunks_need(simulated, monkeypatch):
    _, files = simulated
    monkeypatch.setattr(reading, "_BLOCK_BYTES", 20_000)
    text = NewsText(files, chunk_events=100)
    chunks = iter(text)
    next(chunks)
    # A chunk takes eight blocks of about 13 lines; one more may have been read ahead.
    assert text.tally.lines < 100 + 2 * 14
    chunks.close()


def test_a_line_without_end_is_not_kept_in_memory(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"x" * 5_000_000 + b"\n" + LINE.encode() + b"\n" + b"y" * 3_000_000)
    blocks = [block for block, _ in reading._blocks_of_lines(path)]
    assert max(map(len, blocks)) <= reading._BLOCK_BYTES + MAX_LINE_BYTES + 2
    text = NewsText([path])
    assert_same(whole(text), parse(LINE)[0])
    assert text.tally.skipped == {Malformed.TOO_LONG: 2}


def test_gzip_is_known_by_its_content_and_may_have_several_members(tmp_path):
    path = tmp_path / "log.txt"
    path.write_bytes(gzip.compress(f"{LINE}\n".encode()) + gzip.compress(LINE.encode()))
    assert_same(whole(NewsText([path])), parse(LINE, LINE)[0])


def test_lines_are_numbered_from_one_in_each_file(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text(f"{LINE}\n{name}\n")
    text = NewsText([tmp_path / "a", tmp_path / "b"])
    assert len(whole(text)) == 2
    assert [quote.split(": ")[0] for quote in text.tally.quotes] == ["a:2", "b:2"]


# conversion


def test_the_converted_file_holds_what_the_parser_read(simulated, tmp_path):
    _, files = simulated
    text, out = NewsText(files), tmp_path / "news.parquet"
    expected = whole(text)
    summary = convert(files, out, chunk_events=500)
    stored = NewsFile(out, chunk_events=333)
    chunks = list(stored)
    assert max(map(len, chunks)) <= 333
    assert_same(whole(chunks), expected)
    np.testing.assert_array_equal(stored.articles.ids, text.articles.ids)
    np.testing.assert_array_equal(stored.articles.features, text.articles.features)
    assert stored.summary == summary
    assert (len(stored), summary.events, summary.lines) == (3_000, 3_000, 3_000)
    assert summary.clicks == expected.click.sum()
    assert summary.days == (expected.timestamp.max() - expected.timestamp.min()) / 86_400
    assert summary.is_simulated
    assert pyarrow.parquet.ParquetFile(out).metadata.num_row_groups == 6


def test_summary_counts_what_was_skipped_and_left_out(tmp_path):
    path = tmp_path / "real"
    path.write_text("\n".join([LINE, "hello", "", f"{LINE} {BROKEN}", "x"]))
    summary = convert([path], tmp_path / "out.parquet")
    assert summary.skipped == {Malformed.HEAD.value: 2, Malformed.BLANK.value: 1}
    assert (summary.lines, summary.events, summary.clicks, summary.reduced) == (5, 2, 2, 1)
    assert (summary.articles, summary.ctr, summary.is_simulated) == (2, 1.0, False)
    assert len(summary.quotes) == 4


def test_files_that_cannot_be_converted_are_named_and_leave_nothing(simulated, tmp_path):
    _, files = simulated
    cut, damaged, empty = tmp_path / "cut.gz", tmp_path / "damaged.gz", tmp_path / "empty"
    content = files[0].read_bytes()
    cut.write_bytes(content[: len(content) // 2])
    damaged.write_bytes(content[:5_000] + bytes(100) + content[5_100:])
    empty.write_bytes(b"")
    out = tmp_path / "news.parquet"
    before = sorted(tmp_path.iterdir())
    for inputs, message in (
        ([files[0], cut], "cut.gz is cut off"),
        ([damaged], "damaged.gz is damaged"),
        ([empty], "no event in .*empty: they are empty"),
        ([tmp_path / "absent"], "no file .*absent"),
    ):
        with pytest.raises(DataError, match=message):
            convert(inputs, out)
        assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(DataError, match="one of the files to convert"):
        convert([empty], empty)
    with pytest.raises(DataError, match="no directory"):
        convert(files, tmp_path / "nowhere" / "news.parquet")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(simulated, tmp_path, monkeypatch):
    _, files = simulated
    out = tmp_path / "news.parquet"
    out.write_text("old")

    def full_disk(events):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(parquet, "_to_table", full_disk)
    with pytest.raises(OSError, match="No space left"):
        convert(files, out)
    assert [path.name for path in tmp_path.iterdir()] == ["news.parquet"]
    assert out.read_text() == "old"


def test_a_killed_conversion_leaves_the_old_file(simulated, tmp_path):
    """Killed for good between two row groups, when half of the output is on the disk."""
    _, files = simulated
    out = tmp_path / "news.parquet"
    out.write_text("old")
    program = (
        "import sys, time\n"
        "from s2vgd.bandits.news import parquet\n"
        "write, calls = parquet._to_table, []\n"
        "def stall(events):\n"
        "    calls.append(0)\n"
        "    if len(calls) == 3:\n"
        "        print('half', flush=True)\n"
        "        time.sleep(600)\n"
        "    return write(events)\n"
        "parquet._to_table = stall\n"
        "parquet.convert(sys.argv[2:], sys.argv[1], chunk_events=500)\n"
    )
    command = [sys.executable, "-c", program, out, *files]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "half\n"
        process.send_signal(signal.SIGKILL)
    assert out.read_text() == "old"
    assert all(path.name.endswith(".tmp") for path in tmp_path.iterdir() if path != out)
    convert(files, out)
    assert len(NewsFile(out)) == 3_000


def test_other_files_are_refused_as_logs(simulated, tmp_path):
    _, files = simulated
    text = tmp_path / "text.parquet"
    text.write_text("hello")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        NewsFile(text)
    with pytest.raises(DataError, match="not written by 's2vgd news convert'"):
        NewsFile(files[0].parent / "truth.parquet")
    with pytest.raises(DataError, match="there is no file"):
        NewsFile(tmp_path / "absent.parquet")


# the simulated log


def test_simulated_files_hold_exactly_the_events_of_the_model(simulated):
    model, files = simulated
    assert [file.name for file in files] == [
        "simulated-clicks.20090501.gz",
        "simulated-clicks.20090502.gz",
    ]
    text, log = NewsText(files), SimulatedLog(model, 3_000)
    read, drawn = whole(text), whole(log)
    assert text.tally.skipped == {}
    for name in ("timestamp", "displayed", "click", "user", "offsets"):
        np.testing.assert_array_equal(getattr(read, name), getattr(drawn, name), err_msg=name)
    # Rows are numbered by birth in the one, and by appearance in the other.
    for column in ("ids", "features"):
        np.testing.assert_array_equal(
            getattr(text.articles, column)[read.pool], getattr(log.articles, column)[drawn.pool]
        )


def test_simulated_files_are_read_the_quick_way(simulated, monkeypatch):
    _, files = simulated
    monkeypatch.setattr(lines, "_unusual", None)
    assert len(whole(NewsText(files))) == 3_000


def test_truth_beside_the_log_is_that_of_the_model(simulated):
    model, files = simulated
    table = pyarrow.parquet.read_table(files[0].parent / "truth.parquet")
    stored = table["probability"].combine_chunks()
    expected = np.concatenate([v.probability.ravel() for v in model.all_visits(3_000)])
    np.testing.assert_allclose(stored.flatten().to_numpy(), expected, rtol=1e-6)
    offsets = whole(NewsText(files)).offsets
    np.testing.assert_array_equal(stored.offsets.to_numpy(), offsets)


def test_the_same_seed_writes_the_same_bytes_and_another_does_not(tmp_path):
    contents = [
        simulate(tmp_path / str(i), 50, 1, seed)[0].read_bytes() for i, seed in enumerate((5, 5, 6))
    ]
    assert contents[0] == contents[1] != contents[2]


def test_plain_files_are_the_gzipped_ones_unzipped(simulated, tmp_path):
    _, files = simulated
    plain = simulate(tmp_path / "plain", 3_000, 2, 3, compress=False)
    assert [path.name + ".gz" for path in plain] == [path.name for path in files]
    for path, zipped in zip(plain, files, strict=True):
        assert path.read_bytes() == gzip.decompress(zipped.read_bytes())


def test_clicks_follow_the_stated_probabilities():
    """Within 4 standard errors, in each fifth of the predicted probabilities."""
    visits = list(ClickModel(0, 3).all_visits(60_000))
    p = np.concatenate([v.probability[np.arange(len(v.user)), v.displayed] for v in visits])
    click = np.concatenate([v.click for v in visits])
    for part in np.array_split(np.argsort(p), 5):
        error = np.sqrt(np.sum(p[part] * (1 - p[part]))) / len(part)
        assert abs(click[part].mean() - p[part].mean()) < 4 * error


def test_probabilities_are_the_documented_formula():
    model = ClickModel(1, 4)
    step = 700
    day, user = step / STEPS_A_DAY, model.visits(step, 3).user
    rows, probability = model.pool(step), model.probability(user, step)
    for i, u in enumerate(user):
        for j, row in enumerate(rows):
            angle = model._frequency.reshape(-1, 10) @ np.concatenate(
                [u[1:], model.features[row, 1:]]
            )
            f, g = model._tastes @ np.cos(angle + model._shift)
            logit = (
                model._constant
                + model._appeal[row]
                + 0.3 * np.sin(2 * np.pi * (day + model._phase[row]))
                - 0.5 * (day - model.birth[row] / STEPS_A_DAY)
                + np.cos(np.pi * day / 10) * f
                + np.sin(np.pi * day / 10) * g
            )
            np.testing.assert_allclose(probability[i, j], 1 / (1 + np.exp(-logit)), rtol=1e-9)


def test_the_world_is_like_the_real_one_and_worth_learning():
    """Rate near 4 %, about 20 articles that come and go, display uniform, a best policy far off."""
    visits = list(ClickModel(0, 5).all_visits(40_000))
    n = np.array([len(v.user) for v in visits])
    random = np.average([v.probability.mean() for v in visits], weights=n)
    best = np.average([v.probability.max(axis=1).mean() for v in visits], weights=n)
    assert abs(random - 0.04) < 0.002
    assert best > 2 * random
    sizes = np.array([len(v.pool) for v in visits])
    assert 18 < sizes.mean() <= sizes.max() == 20
    assert len(np.unique(np.concatenate([v.pool for v in visits]))) > 80
    place = np.concatenate([(v.displayed + 0.5) / len(v.pool) for v in visits])
    # The mean of a uniform variable, within four standard errors.
    assert abs(place.mean() - 0.5) < 4 / np.sqrt(12 * len(place))


def test_tastes_are_not_linear_and_they_drift():
    """For one article: logits that are not linear in the user; later on, other ones."""
    model = ClickModel(0, 10)
    user = model.visits(0, 400).user
    logits = {step: np.log(1 / (1 / model.probability(user, step) - 1)) for step in (0, 2_879)}
    fitted = user @ np.linalg.lstsq(user, logits[0], rcond=None)[0]
    unexplained = (logits[0] - fitted).var(axis=0) / logits[0].var(axis=0)
    assert unexplained.mean() > 0.1
    centred = {s: value.mean(axis=1) - value.mean() for s, value in logits.items()}
    assert np.corrcoef(centred[0], centred[2_879])[0, 1] < 0.5


def test_bad_arguments_are_named(tmp_path):
    for arguments, name in (
        ({"n_events": 0, "days": 1, "seed": 0}, "events"),
        ({"n_events": 1, "days": 0, "seed": 0}, "days"),
        ({"n_events": 1, "days": 1, "seed": -1}, "seed"),
    ):
        with pytest.raises(DataError, match=name):
            simulate(tmp_path / "log", **arguments)
    for settings in ({"slots": 1}, {"ctr": 1.0}):
        with pytest.raises(DataError, match=next(iter(settings))):
            ClickModel(0, 1, **settings)
    with pytest.raises(DataError, match="chunk_events"):
        NewsText([], chunk_events=0)
    (tmp_path / "thesis").write_text("precious")
    with pytest.raises(DataError, match="not an empty directory"):
        simulate(tmp_path, 1, 1, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis"]


# the command line


def run(*arguments: object, code: int = 0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    unexpected = result.exception if not isinstance(result.exception, SystemExit) else None
    assert (result.exit_code, unexpected) == (code, None), result.output
    return result


def test_commands_simulate_and_convert(tmp_path):
    log, out = tmp_path / "log", tmp_path / "news.parquet"
    result = run("simulate", "--out", log, "--events", 400, "--days", 2, "--seed", 1, "--truth")
    files = result.stdout.split()
    assert len(files) == 2
    with open(tmp_path / "more", "w") as file:
        file.write("hello\n")
    result = run("convert", *files, tmp_path / "more", "--out", out)
    for text in (
        "news.parquet (simulated)",
        "400",
        "days",
        "click-through rate",
        "articles",
        "1: does not begin",
    ):
        assert text in result.stdout
    assert "more:1: does not begin" in result.stderr
    assert "converting (MiB) 1/1" in result.stderr
    assert len(NewsFile(out)) == 400


def test_quiet_commands_print_nothing(tmp_path):
    options = ["--events", 20, "--days", 1, "--plain", "--quiet"]
    first = run("simulate", "--out", tmp_path / "log", *options)
    files = list((tmp_path / "log").iterdir())
    second = run("convert", *files, "--out", tmp_path / "news.parquet", "--quiet")
    assert (first.output, second.output) == ("", "")


def test_commands_refuse_in_one_line(tmp_path):
    result = run("convert", tmp_path / "absent", "--out", tmp_path / "out.parquet", code=2)
    assert "error: there is no file" in result.stderr
    (tmp_path / "thesis").write_text("precious")
    result = run("simulate", "--out", tmp_path, "--events", 10, code=2)
    assert "not an empty directory" in result.stderr
