"""The verb `topology init`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from drydock.cli.task_helpers import here
from drydock.cli.verb import Verb
from drydock.core.console import log, write_output
from drydock.core.verb_options import VerbOptions
from drydock.model.shared_options import DryRunOption


class TopologyInitOptions(DryRunOption, VerbOptions):
    """What a topology.yaml is made from."""

    root: str
    """folder with recorded hosts (facts --record): NAME.json or NAME/host.json"""
    output: str = "topology.yaml"
    """file to write, which must not exist [default: topology.yaml]"""
    model: str = ""
    """hub id of the model, oci://…@sha256:…, or a folder that every node has"""
    target: str = ""
    """row, alias or accelerator [default: what fits the hosts]"""
    shape: Literal["", "1p1d", "2p1d"] = ""
    """1p1d or 2p1d: one or two servers compute prompts, one computes answers [default: all serve]"""


@Verb
def init_topology(options: TopologyInitOptions) -> None:
    """Write a topology.yaml for several machines, from their recorded hosts. The plan says which split fits."""
    from drydock.config.matrix import find_variant, read_matrix
    from drydock.run.container import check_bucket
    from drydock.topology import init

    check_bucket(options.model, "--model ")
    recorded_hosts, output = init.find_hosts(Path(options.root)), Path(options.output)
    split = init.Split(init.make_shape_groups(options.shape, len(recorded_hosts)))
    if options.target:
        target = find_variant(read_matrix(here()), options.target).id
    else:
        target = init.choose_fitting_variant(here(), recorded_hosts)
    hosts_in_order = {name: recorded_hosts[name] for name in init.order_hosts(recorded_hosts, options.shape)}
    nodes = init.make_topology_nodes(hosts_in_order, output.absolute().parent)
    if options.model:
        topology = init.make_topology(str(output), init.format_topology(nodes, split, options.model, target))
        split = init.choose_split(here(), topology, hosts_in_order, options.shape)
    text = init.format_topology(nodes, split, options.model, target)
    if options.dry_run:
        log(f"would write {output}")
        write_output(text)
    else:
        init.write_topology(output, text)
    for remark in split.remarks:
        log(f"{output}: {remark}")
    if named_nodes := init.find_named_addresses(nodes, options.shape):
        log(
            f"{output}: write the IPv4 address of {', '.join(named_nodes)}: `topology plan` refuses a name with --shape"
        )
