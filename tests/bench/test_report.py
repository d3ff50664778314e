"""The benchmark's arithmetic and its two forms; nothing here measures anything."""

from __future__ import annotations

import json

import attrs
import pytest

from tests.bench.report import (
    BEGIN,
    END,
    YARDSTICK,
    Beside,
    Report,
    Row,
    block,
    from_json,
    headlines,
    latencies,
    percentile,
    rate_from_csv,
    splice,
    table,
    to_json,
)

REPORT = Report(
    machine="a processor, 2 cores, Python 3.11.7",
    commit="abc1234",
    command="make bench",
    rows=(Row("adding", "1,000 jobs/s", "above 900/s"), Row("starting", "0.3 s", "below 0.4 s")),
)
OTHERS = (Beside("one", "2,000/s", 0.5), Beside("two", "failed: gone"))
COMPARED = Report(
    *("a processor", "abc1234", "make bench"),
    rows=(*REPORT.rows, Row("getting", "1,000/s", "0.6 of one", OTHERS, is_in_readme=False)),
)

# As redis-benchmark 7.0.15 printed it.
CSV = """\
"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"
"ADDJOB bench x 0","1837.12","0.251","0.008","0.223","0.511","0.663","2.863"
"""


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1.0), (0.5, 2.0), (0.51, 3.0), (0.99, 4.0), (1.0, 4.0)]
)
def test_percentile_is_the_nearest_rank(share: float, expected: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], share) == expected


def test_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing"):
        percentile([], 0.5)


def test_latencies_show_mean_and_tails() -> None:
    assert latencies([1.0] * 98 + [2.0, 102.0]) == "mean 2.02 ms, p50 1.00, p99 2.00"


def test_rate_is_read_from_the_csv_of_redis_benchmark() -> None:
    assert rate_from_csv(CSV) == 1837.12
    assert rate_from_csv("WARNING: Could not fetch server CONFIG\n" + CSV) == 1837.12


@pytest.mark.parametrize("text", ["", "Error from server: ERR\n", '"test","other"\n"x","1"\n'])
def test_output_without_a_rate_is_refused_and_shown(text: str) -> None:
    with pytest.raises(ValueError, match="no single rps"):
        rate_from_csv(text)


@pytest.mark.parametrize("measured", [REPORT, COMPARED])
def test_json_gives_the_report_back(measured: Report) -> None:
    assert from_json(to_json(measured)) == measured


def test_table_has_a_line_a_row_and_says_how_to_repeat_it() -> None:
    assert table(REPORT).splitlines() == [
        "| what | measured | asked |",
        "| --- | --- | --- |",
        "| adding | 1,000 jobs/s | above 900/s |",
        "| starting | 0.3 s | below 0.4 s |",
        "",
        "`make bench` at commit abc1234, a processor, 2 cores, Python 3.11.7.",
    ]


def test_table_has_a_column_for_each_server_that_any_row_was_measured_beside() -> None:
    assert table(COMPARED).splitlines()[:5] == [
        "| what | measured | to one | to two | asked |",
        "| --- | --- | --- | --- | --- |",
        "| adding | 1,000 jobs/s |  |  | above 900/s |",
        "| starting | 0.3 s |  |  | below 0.4 s |",
        "| getting | 1,000/s | 0.50 (2,000/s) | failed: gone | 0.6 of one |",
    ]


def test_table_has_the_compiled_build_after_ours_and_beside_the_yardstick() -> None:
    beside = (Beside(YARDSTICK, "2,000/s", 0.5, 0.75), Beside("two", "500/s", 2.0, 3.0))
    rows = (
        Row("adding", "1,000/s", "0.6", beside, compiled="1,500/s"),
        Row("codec", "2 µs", "-", compiled="1 µs"),
        Row("getting", "1,000/s", "-", (Beside(YARDSTICK, "0/s"),), compiled="failed: gone"),
        Row("starting", "0.3 s", "-"),
    )
    assert table(attrs.evolve(REPORT, rows=rows)).splitlines()[:6] == [
        "| what | measured | compiled | to C Disque | compiled to C Disque | to two | asked |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| adding | 1,000/s | 1,500/s | 0.50 (2,000/s) | 0.75 | 2.00 (500/s) | 0.6 |",
        "| codec | 2 µs | 1 µs |  |  |  | - |",
        "| getting | 1,000/s | failed: gone | 0/s |  |  | - |",
        "| starting | 0.3 s |  |  |  |  | - |",
    ]


def test_figures_of_before_there_was_a_compiled_build_are_read() -> None:
    fields = json.loads(to_json(COMPARED))
    for row in fields["rows"]:
        del row["compiled"]
        for beside in row["beside"]:
            del beside["compiled"]
    assert from_json(json.dumps(fields)) == COMPARED


def test_readme_shows_the_rows_that_are_marked_for_it() -> None:
    assert headlines(COMPARED).rows == REPORT.rows


def test_splice_replaces_what_stands_between_the_markers_and_nothing_else() -> None:
    page = f"a\n{BEGIN}\nold\n{END}\nb\n"
    assert splice(page, "new\nlines") == f"a\n{BEGIN}\nnew\nlines\n{END}\nb\n"
    assert block(splice(page, "new\nlines")) == "new\nlines"


@pytest.mark.parametrize("page", ["", BEGIN, f"{END}{BEGIN}", f"{BEGIN}{BEGIN}{END}"])
def test_a_page_without_proper_markers_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="once each"):
        splice(page, "x")
