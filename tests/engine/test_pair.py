"""A prefill and a decode server behind their router, started, watched and stopped by the topology tasks."""

from __future__ import annotations

import secrets
from pathlib import Path

from docker.models.containers import Container

from drydock.build import build
from drydock.build.job import prepare
from drydock.topology import verbs as topologies
from drydock.topology.rollout import verbs, watch
from drydock.topology.rollout.state import Place
from tests.support.running_topology import Cluster, planned, question, record, remove_volumes


def test_one_prefill_and_one_decode_server_answer_and_move_the_cache(built: build.Built, tmp_path: Path) -> None:
    images = built.image, build.build(prepare("router")).image
    record(tmp_path, built.image)
    file = planned(tmp_path, images, "1p1d", f"pair-{secrets.token_hex(3)}")
    place = Place(file, output=str(tmp_path / "running"))
    try:
        cluster = Cluster(place, topologies.read_plan(file))
        said, text = question(cluster.router, "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,")
        rows = cluster.rows()
        images_of = {each.image for name, each in cluster.runner.states().items() if name != "router"}
    finally:
        verbs.down(place)
        remove_volumes(f"drydock-{place.name}")

    (pair,) = cluster.shown.pairs
    assert pair.transferred == pair.tokens > 2 * cluster.shown.block
    assert (said, text.strip()[:2]) == ("200", "13")
    assert (rows["decode-0-0"].transferred or 0) > pair.tokens
    assert [*watch.alerts([*rows.values()])] == []
    assert len(images_of) == 1
    assert _left(place) == []


def _left(place: Place) -> list[Container]:
    import docker  # noqa: PLC0415 - only here

    return docker.from_env().containers.list(all=True, filters={"name": f"drydock-{place.name}"})
