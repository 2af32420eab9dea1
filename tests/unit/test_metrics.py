"""One file declares every metric; nothing else names one to the library."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from schemas.metrics import METRICS, Kind, Metric

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("schemas", "memory", "producers", "workers", "recalld")


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_is_a_question_and_its_name_has_its_unit(metric: Metric):
    assert re.match(r"[^.]+\?( |$)", metric.question)
    assert re.fullmatch(r"recalld_[a-z_]+[a-z]", metric.name)
    assert not metric.name.endswith(("_total", "_count", "_sum", "_bucket"))
    assert (metric.kind is Kind.HISTOGRAM) == bool(metric.buckets)
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert metric.name.endswith("_seconds") or metric.kind is not Kind.HISTOGRAM
    assert [one.name for one in METRICS].count(metric.name) == 1


def test_no_label_can_hold_what_a_user_wrote():
    known = {"version", "mode", "outcome", "missing", "status", "agent", "provider", "model", "state", "queue"}
    assert {label for metric in METRICS for label in metric.labels} == known | {"lane", "actor", "of"}


def test_nothing_is_told_to_prometheus_that_is_not_declared():
    naming = re.compile(r"\b(?:Counter|Gauge|Histogram|Summary|Info|Enum)(?:MetricFamily)?\(")
    found = [
        file.relative_to(ROOT).as_posix()
        for room in ROOMS
        for file in (ROOT / room).rglob("*.py")
        if "prometheus_client" in (text := file.read_text("utf-8")) and naming.search(text)
    ]
    assert found == ["memory/telemetry/prometheus.py"]
    assert naming.search((ROOT / "memory" / "telemetry" / "prometheus.py").read_text("utf-8"))
