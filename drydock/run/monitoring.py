"""Alert rules for Prometheus and a dashboard for Grafana, over vLLM's metrics and those of the status port. Pure.

The names of drydock's metrics are those of entrypoints/serve/status.py; those of vLLM are of 0.32 (v1/metrics), and
vLLM exports counters with `_total`. A server has two targets, the API's port and the status port's: rules join none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from drydock.core.files import format_json
from drydock.core.yaml_writer import write_yaml


class Alert(NamedTuple):
    """One alert."""

    name: str
    expression: str
    lasts: str
    """How long it must hold, as Prometheus writes a duration."""
    severity: str
    summary: str
    remedy: str


ALERTS = (
    Alert(
        "DrydockStalled", "drydock_stalled == 1", "0m", "critical",
        "vLLM on {{ $labels.instance }} makes no progress",
        "The log has the stacks of all processes: docs/container.md, When it hangs",
    ),
    Alert(
        "DrydockNotAlive", "drydock_alive == 0", "0m", "critical",
        "vLLM on {{ $labels.instance }} has made no progress for twice its stall time",
        "The orchestrator restarts it if it asks /livez; else restart it",
    ),
    Alert(
        "DrydockWrongAnswer", "drydock_wrong_answer == 1", "0m", "critical",
        "The known answer of {{ $labels.instance }} was wrong",
        "It never becomes ready: clear its cache, then compare the image and the device with another machine",
    ),
    Alert(
        "DrydockNotReady", "drydock_ready == 0 and drydock_startup_seconds > 1800", "5m", "warning",
        "{{ $labels.instance }} is not ready, half an hour after its start or later",
        "/readyz says why; drydock_startup_phase_seconds tells the phase",
    ),
    Alert(
        "DrydockSlowStart", 'drydock_startup_phase_seconds{phase="import"} > 120', "0m", "warning",
        "{{ $labels.instance }} needs {{ $value }} s to import vLLM",
        "Its disk or its processor is busy, or the image's files come over a network",
    ),
    Alert(
        "DrydockKvExpired", "increase(drydock_kv_expired_requests[10m]) > 0", "0m", "warning",
        "{{ $value }} requests of {{ $labels.instance }} lost their KV cache before a decode server read it",
        "Add decode servers, or look at the network between prefill and decode",
    ),
    Alert(
        "VllmKvCacheFull", "vllm:kv_cache_usage_perc > 0.95 and vllm:num_requests_waiting > 0", "10m", "warning",
        "The KV cache of {{ $labels.instance }} is {{ $value | humanizePercentage }} used, and requests wait",
        "Add a server, or plan for this load: plan --concurrency N",
    ),
    Alert(
        "VllmQueueGrows", "vllm:num_requests_waiting > 50 and deriv(vllm:num_requests_waiting[10m]) > 0",
        "10m", "warning",
        "{{ $value }} requests wait at {{ $labels.instance }}, more and more",
        "Add a server; bench shows what one can serve",
    ),
    Alert(
        "VllmPreemptions", "rate(vllm:num_preemptions_total[10m]) > 0.1", "10m", "warning",
        "{{ $labels.instance }} computes requests again, because its KV cache was full",
        "Set --max-num-seqs lower, or add memory for the KV cache",
    ),
    Alert(
        "VllmRequestsAborted",
        'sum by (instance) (rate(vllm:request_success_total{finished_reason="abort"}[10m]))'
        " > 0.05 * sum by (instance) (rate(vllm:request_success_total[10m]))",
        "10m", "warning",
        "More than a twentieth of the requests of {{ $labels.instance }} are cut off",
        "Clients give up, or a server stops before it is drained: docs/container.md, Shutdown",
    ),
)  # fmt: skip


class Panel(NamedTuple):
    """One picture of the dashboard."""

    title: str
    unit: str
    """Of Grafana: s, percentunit, short, reqps, bool_yes_no."""
    queries: Mapping[str, str]
    """Legend → expression; `$server` are the chosen instances."""


_OF = '{instance=~"$server"}'


def _format_quantile(metric: str) -> str:
    return f"histogram_quantile(0.95, sum by (le, instance) (rate({metric}_bucket{_OF}[5m])))"


PANELS = (
    Panel("Ready", "bool_yes_no", {"{{instance}}": f"drydock_ready{_OF}"}),
    Panel("Makes no progress", "bool_yes_no", {"{{instance}}": f"drydock_stalled{_OF}"}),
    Panel("Wrong answer", "bool_yes_no", {"{{instance}}": f"drydock_wrong_answer{_OF}"}),
    Panel("Start, by phase", "s", {"{{instance}} {{phase}}": f"drydock_startup_phase_seconds{_OF}"}),
    Panel(
        "Requests",
        "short",
        {
            "{{instance}} running": f"vllm:num_requests_running{_OF}",
            "{{instance}} waiting": f"vllm:num_requests_waiting{_OF}",
        },
    ),
    Panel("KV cache", "percentunit", {"{{instance}} {{engine}}": f"vllm:kv_cache_usage_perc{_OF}"}),
    Panel(
        "Tokens per second",
        "short",
        {
            "{{instance}} generated": f"sum by (instance) (rate(vllm:generation_tokens_total{_OF}[5m]))",
            "{{instance}} prompts": f"sum by (instance) (rate(vllm:prompt_tokens_total{_OF}[5m]))",
        },
    ),
    Panel("Time to the first token, 95 %", "s", {"{{instance}}": _format_quantile("vllm:time_to_first_token_seconds")}),
    Panel("Time between tokens, 95 %", "s", {"{{instance}}": _format_quantile("vllm:inter_token_latency_seconds")}),
    Panel(
        "Ended requests",
        "reqps",
        {
            "{{instance}} {{finished_reason}}": "sum by (instance, finished_reason) "
            f"(rate(vllm:request_success_total{_OF}[5m]))"
        },
    ),
    Panel(
        "Prefix cache hits",
        "percentunit",
        {
            "{{instance}}": f"sum by (instance) (rate(vllm:prefix_cache_hits_total{_OF}[5m])) / "
            f"sum by (instance) (rate(vllm:prefix_cache_queries_total{_OF}[5m]))"
        },
    ),
    Panel("KV caches that expired", "short", {"{{instance}}": f"drydock_kv_expired_requests{_OF}"}),
)
_COLUMNS, _WIDTH, _HEIGHT = 3, 8, 8
"""Grafana's grid has 24 columns."""
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def make_alert_rules() -> dict[str, Any]:
    """Return the rules as Prometheus reads them."""
    rules = [
        {
            "alert": alert.name,
            "expr": alert.expression,
            "for": alert.lasts,
            "labels": {"severity": alert.severity},
            "annotations": {"summary": alert.summary, "description": alert.remedy},
        }
        for alert in ALERTS
    ]
    return {"groups": [{"name": "drydock", "rules": rules}]}


def make_dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana 10 and later import it."""
    return {
        "uid": "drydock-vllm",
        "title": "vLLM, served by drydock",
        "tags": ["vllm", "drydock"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_make_source_variable(), _make_server_variable()]},
        "panels": [*(_make_panel(number, panel) for number, panel in enumerate(PANELS)), _make_table(len(PANELS))],
    }


def _make_source_variable() -> dict[str, Any]:
    return {"name": "datasource", "label": "Source", "type": "datasource", "query": "prometheus"}


def _make_server_variable() -> dict[str, Any]:
    query = 'label_values({__name__=~"drydock_ready|vllm:num_requests_running"}, instance)'
    return {
        "name": "server",
        "label": "Server",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": "servers"},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _make_panel(number: int, panel: Panel) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + place), "expr": expression, "legendFormat": legend, "datasource": _SOURCE}
        for place, (legend, expression) in enumerate(panel.queries.items())
    ]
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": _place_panel(number, _WIDTH),
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}},
        "targets": targets,
    }


def _make_table(number: int) -> dict[str, Any]:
    """Return the table of what each server runs: drydock_info has image, vLLM and plan as labels."""
    target = {"refId": "A", "expr": f"drydock_info{_OF}", "format": "table", "instant": True, "datasource": _SOURCE}
    return {
        "id": number + 1,
        "type": "table",
        "title": "What each server runs",
        "datasource": _SOURCE,
        "gridPos": _place_panel(number, _COLUMNS * _WIDTH),
        "fieldConfig": {"defaults": {}, "overrides": []},
        "options": {"showHeader": True},
        "targets": [target],
    }


def _place_panel(number: int, width: int) -> dict[str, int]:
    row, column = divmod(number, _COLUMNS)
    return {"x": column * _WIDTH, "y": row * _HEIGHT, "w": width, "h": _HEIGHT}


DATA: dict[str, Callable[[], dict[str, Any]]] = {"prometheus": make_alert_rules, "grafana": make_dashboard}
"""Format of `run` → the function that returns it as data, for --json."""
WRITERS: dict[str, Callable[[], str]] = {
    "prometheus": lambda: write_yaml(make_alert_rules()),
    "grafana": lambda: format_json(make_dashboard()),
}
"""Format of `run` → what writes its text."""
RULES, DASHBOARD, CONFIGURATION = "drydock-rules.yaml", "drydock-dashboard.json", "prometheus.yaml"


def render_monitoring_files(targets: Sequence[str]) -> dict[str, str]:
    """Return path → text: a configuration of Prometheus for these targets (ADDRESS:PORT), its rules, the dashboard."""
    job = {"job_name": "drydock", "static_configs": [{"targets": list(targets)}]}
    configuration = {"rule_files": [RULES], "scrape_configs": [job]}
    rules, dashboard = (write() for write in WRITERS.values())
    return {CONFIGURATION: write_yaml(configuration), RULES: rules, DASHBOARD: dashboard}
