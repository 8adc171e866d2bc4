"""What /metrics shows: every answer counted once, under the names of llama-server, and nothing that is not known."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families
from server_fakes import Gate, last_message, served_engine, serving


def read(text: str) -> dict[str, float]:
    return {
        sample.name + "".join(f"{{{value}}}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_are_the_sum_of_the_answers() -> None:
    engine = served_engine(lambda prompt: last_message(prompt))
    with serving(engine) as live:
        before = live.ask("/metrics")
        assert before.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert read(before.data.decode())["edgespec_tokens_predicted_total"] == 0
        answers = [live.chat("the same words and the same words and the same words", max_tokens=n) for n in (50, 40, 7)]
        found = read(live.ask("/metrics").data.decode())
        told = [answer["timings"] for answer in answers]
        reports = [timings["report"] for timings in told]
        assert found["edgespec_tokens_predicted_total"] == sum(timings["predicted_n"] for timings in told)
        assert found["edgespec_prompt_tokens_total"] == sum(timings["prompt_n"] for timings in told)
        assert found["edgespec_prompt_tokens_cached_total"] == sum(timings["cache_n"] for timings in told) > 0
        assert found["edgespec_spec_decode_num_draft_tokens_total"] == sum(timings["draft_n"] for timings in told) > 0
        accepted = sum(timings["draft_n_accepted"] for timings in told)
        assert found["edgespec_spec_decode_num_accepted_tokens_total"] == accepted
        by_position = [
            sum(
                report["accepted_by_position"][i : i + 1] != [] and report["accepted_by_position"][i]
                for report in reports
            )
            for i in range(max(len(report["accepted_by_position"]) for report in reports))
        ]
        for position, n in enumerate(by_position):
            assert found[f"edgespec_spec_decode_num_accepted_tokens_per_pos_total{{{position}}}"] == n
        rounds = sum(report["rounds"] for report in reports)
        plain = sum(report["widths"].get("1", 0) for report in reports)
        assert found["edgespec_rounds_total"] == found["edgespec_draft_length_count"] == rounds
        assert found["edgespec_spec_decode_num_drafts_total"] == rounds - plain
        assert found["edgespec_draft_length_sum"] == found["edgespec_spec_decode_num_draft_tokens_total"]
        assert found["edgespec_draft_length_bucket{0}"] == plain
        assert found["edgespec_answers_total{length}"] == 3
        assert found["edgespec_requests_refused_total"] == 0


def test_heat_the_queue_and_what_is_unknown() -> None:
    engine = served_engine("x")
    gate = Gate(engine.target)
    with serving(engine) as live, live.open_stream("/v1/completions", {"prompt": "a", "n": 3}):
        live.until(lambda: live.service.n_playing == 1)
        found = read(live.ask("/metrics").data.decode())
        assert (found["edgespec_requests_processing"], found["edgespec_requests_deferred"]) == (1, 2)
        assert found["edgespec_temperature_celsius"] == 51.5
        assert found["edgespec_throttled"] == 0
        assert "edgespec_thermal_headroom" not in found
        assert "edgespec_threads" not in found
        gate.open()
