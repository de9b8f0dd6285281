"""What `topology status` shows."""

from __future__ import annotations

import io

from rich.console import Console

from drydock.topology.rollout import watch
from drydock.topology.rollout.runner import SeenContainer
from tests.support import topologies
from tests.support.fake_topology import Engine, Servers

PLAN = topologies.disaggregated(1, 1)
P0, D0 = "10.2.0.10", "10.2.0.11"


def rows(servers: Servers, engine: Engine | None = None) -> dict[str, watch.Row]:
    found = watch.rows((PLAN,), (engine or Engine(PLAN)).states(), {}, servers)
    return {row.name: row for row in found}


def test_each_container_has_a_row() -> None:
    servers = Servers()
    servers.moved[f"{D0}:20000"] = 154
    found = rows(servers)

    assert [*found] == ["prefills-0-0", "decodes-0-0", "router"]
    assert {row.state for row in found.values()} == {"ready"}
    assert (found["decodes-0-0"].transferred, found["prefills-0-0"].transferred) == (154, None)
    assert found["prefills-0-0"].running == 0
    assert [*watch.alerts([*found.values()])] == []


def test_an_expired_cache_is_an_alert() -> None:
    servers = Servers()
    servers.extra[f"{P0}:20000"] = (
        'vllm:nixl_num_kv_expired_reqs_total{engine="0"} 2.0\n'
        'vllm:nixl_num_notifications_after_expiry_total{engine="0"} 1.0\n'
    )
    found = rows(servers)

    assert found["prefills-0-0"].expired == 2
    (alert,) = watch.alerts([*found.values()])
    assert alert.startswith(
        "prefills-0-0: the KV cache of 2 requests expired before a decode server had read it, and 1"
    )


def test_a_kv_cache_that_a_decode_server_does_not_get_is_an_alert() -> None:
    servers = Servers()
    servers.extra[f"{D0}:20000"] = 'vllm:nixl_num_failed_transfers_total{engine="0"} 3.0\n'
    found = rows(servers)

    assert (found["decodes-0-0"].failed, found["prefills-0-0"].failed) == (3, None)
    (alert,) = watch.alerts([*found.values()])
    assert alert.startswith("decodes-0-0: 3 failures to get a KV cache")


def test_different_images_and_restarts_are_alerts() -> None:
    engine = Engine(PLAN)
    engine.seen["decodes-0-0"] = SeenContainer("running", "sha256:b", 2)
    found = [*watch.alerts([*rows(Servers(), engine).values()])]

    assert found == [
        "decodes-0-0: its engine started it again 2 times",
        "the servers run different images, whose KV caches may not fit: sha256:a prefills-0-0; sha256:b decodes-0-0",
    ]


def test_a_rank_that_is_not_there_says_why() -> None:
    servers, engine = Servers(), Engine(PLAN)
    servers.down.add(P0)
    servers.ready[f"{D0}:20001"] = "loads weights"
    engine.seen["prefills-0-0"] = SeenContainer("exited", "sha256:a", 0, 137)
    found = rows(servers, engine)

    assert (found["prefills-0-0"].state, found["prefills-0-0"].running) == ("exited", None)
    assert (found["decodes-0-0"].state, found["decodes-0-0"].reason) == ("load", "loads weights")
    assert "prefills-0-0: not ready: no answer: ConnectionError" in [*watch.alerts([*found.values()])]


def test_the_table_is_drawn_and_printed() -> None:
    servers = Servers()
    servers.ready[f"{D0}:20001"] = "\x1b[31mred"
    found = [*rows(servers).values()]
    drawn = io.StringIO()
    Console(file=drawn, width=200).print(watch.table(found))

    for text in (drawn.getvalue(), watch.as_text(found)):
        assert text.splitlines()[0].split() == [*watch.COLUMNS]
        assert "prefills-0-0" in text
        assert "alert: decodes-0-0: not ready:" in text
    assert "\x1b" not in drawn.getvalue()
