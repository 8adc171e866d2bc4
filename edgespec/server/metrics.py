"""What `/metrics` shows, in Prometheus' text format. Names end as llama-server's do, so that dashboards fit both.

What is not known is not shown: never as 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from edgespec.jobs import Service

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_DRAFT_LENGTHS = (0, 1, 2, 3, 5, 7, 11, 15, 31, 63)
_HEAT = {
    "temp_c": ("temperature_celsius", "Temperature of the processor."),
    "headroom": ("thermal_headroom", "Heat in Android's unit: at 1 severe throttling begins."),
    "throttled": ("throttled", "Whether the system holds the processor back now."),
    "freq_cap": ("clock_cap_ratio", "Highest clock now allowed over the highest possible."),
    "battery": ("battery_ratio", "Charge of the battery."),
    "on_mains": ("on_mains", "Whether the device is plugged in."),
}
"""Of `Report.heat`: name and help."""


class Exposition(Collector):
    """Reads a service whenever it is asked."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """The page."""
        page: bytes = generate_latest(self._registry)
        return page

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client's custom collectors."""
        yield from self._counters()
        yield from self._by_label()
        yield from self._gauges()
        yield self._draft_lengths()

    def _counters(self) -> Iterator[Metric]:
        tally = self._service.tally
        for name, value, text in (
            ("prompt_tokens", tally.prompt_tokens, "Tokens of prompts that were evaluated."),
            ("prompt_tokens_cached", tally.cached_tokens, "Tokens of prompts that were in the cache."),
            ("prompt_seconds", tally.prompt_s, "Time that evaluating prompts took."),
            ("tokens_predicted", tally.predicted_tokens, "Tokens of answers."),
            ("tokens_predicted_seconds", tally.predicted_s, "Time from the first token of answers to the last."),
            ("rounds", tally.rounds, "Passes of the model over answers."),
            ("draft_seconds", tally.draft_s, "Time that drafting took."),
            ("verify_seconds", tally.verify_s, "Time that passes over answers took."),
            ("spec_decode_num_draft_tokens", tally.drafted, "Drafted tokens."),
            ("spec_decode_num_accepted_tokens", tally.accepted, "Drafted tokens that were right."),
            ("spec_decode_num_drafts", tally.rounds - tally.widths.get(1, 0), "Passes with a draft."),
            ("team_changes", tally.team_changes, "Times that heat or other programs changed the threads of an answer."),
            ("requests_refused", tally.n_refused, "Requests turned away because the queue was full."),
        ):
            yield CounterMetricFamily(f"edgespec_{name}", text, value=value)

    def _by_label(self) -> Iterator[Metric]:
        tally = self._service.tally
        text = "Drafted tokens that were right, by their position in the draft."
        accepted = CounterMetricFamily("edgespec_spec_decode_num_accepted_tokens_per_pos", text, labels=["position"])
        for position, n in enumerate(list(tally.accepted_by_position)):
            accepted.add_metric([str(position)], n)
        answers = CounterMetricFamily("edgespec_answers", "Answers, by how they ended.", labels=["end"])
        for end, n in dict(tally.n_answers).items():
            answers.add_metric([end], n)
        yield accepted
        yield answers

    def _gauges(self) -> Iterator[Metric]:
        service, tally = self._service, self._service.tally
        ledger = "Decoding time saved against plain decoding, by the ledger; negative where drafting lost."
        yield GaugeMetricFamily("edgespec_ledger_saved_seconds", ledger, value=tally.saved_s)
        yield GaugeMetricFamily("edgespec_requests_processing", "Answers in the making.", value=service.n_playing)
        yield GaugeMetricFamily("edgespec_requests_deferred", "Answers in the queue.", value=service.n_waiting)
        threads = tally.last.threads if tally.last is not None else None
        if threads is not None:
            yield GaugeMetricFamily("edgespec_threads", "Threads of a single row, at last.", value=threads)
        heat = self._service.engine.machine.heat()
        for key, (name, text) in _HEAT.items():
            value = _number(heat, key)
            if value is not None:
                yield GaugeMetricFamily(f"edgespec_{name}", text, value=value)

    def _draft_lengths(self) -> Metric:
        widths = dict(self._service.tally.widths)
        buckets = [
            (str(length), sum(n for width, n in widths.items() if width - 1 <= length)) for length in _DRAFT_LENGTHS
        ]
        family = HistogramMetricFamily("edgespec_draft_length", "Drafted tokens of a pass.")
        family.add_metric(
            [], [*buckets, ("+Inf", sum(widths.values()))], sum((width - 1) * n for width, n in widths.items())
        )
        return family


def _number(heat: Mapping[str, object], key: str) -> float | None:
    value = heat.get(key)
    return float(value) if isinstance(value, int | float) else None
