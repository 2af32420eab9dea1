"""Declared metrics (`schemas.metrics`) as prometheus_client's objects.

No other module makes these objects, so that a process shows declared metrics only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from schemas import metrics

#: Label values -> number.
Numbers = Mapping[tuple[str, ...], float]


def counter(metric: metrics.Metric, registry: CollectorRegistry) -> Counter:
    """Return a counter of this process."""
    return Counter(metric.name, metric.question, metric.labels, registry=registry)


def gauge(metric: metrics.Metric, registry: CollectorRegistry) -> Gauge:
    """Return a gauge of this process."""
    return Gauge(metric.name, metric.question, metric.labels, registry=registry)


def histogram(metric: metrics.Metric, registry: CollectorRegistry) -> Histogram:
    """Return a histogram of this process."""
    return Histogram(metric.name, metric.question, metric.labels, buckets=metric.buckets, registry=registry)


def family(metric: metrics.Metric, numbers: Numbers) -> Metric:
    """Return a counter or gauge whose numbers are kept elsewhere."""
    kind = CounterMetricFamily if metric.kind is metrics.Kind.COUNTER else GaugeMetricFamily
    family = kind(metric.name, metric.question, labels=metric.labels)
    for labels, number in numbers.items():
        family.add_metric(labels, number)
    return family


def histogram_family(metric: metrics.Metric, counts: Mapping[float, float], total: float) -> Metric:
    """Return a histogram without labels whose numbers are kept elsewhere.

    `counts` are by the upper bound of their bucket, each without those below; the last bound is infinite. `total`
    is the sum of what was observed.
    """
    buckets, so_far = [], 0.0
    for bound in (*metric.buckets, math.inf):
        so_far += counts.get(bound, 0)
        buckets.append(("+Inf" if bound == math.inf else str(bound), so_far))
    family = HistogramMetricFamily(metric.name, metric.question)
    family.add_metric((), buckets, total)
    return family
