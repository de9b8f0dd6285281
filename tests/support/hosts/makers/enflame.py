"""Hosts with Enflame S60 cards, made after what efsmi printed elsewhere."""

from __future__ import annotations

from tests.support.hosts.pieces import GIB, Tree, commands, pci, sample, server

S60 = "0xc035"
ACCELERATOR = "0x120000"


def cards(buses: tuple[str, ...], nodes: tuple[int, ...]) -> Tree:
    """Make the cards' PCI functions and device files, of the NUMA nodes given."""
    near = {0: "0-31,64-95", 1: "32-63,96-127"}
    tree: Tree = {"dev/gcuctl": "", "sys/module/enflame/version": "1.4.4.501\n"}
    for number, (bus, node) in enumerate(zip(buses, nodes, strict=True)):
        tree |= pci(bus, "0x1e36", S60, ACCELERATOR, node, near[node])
        tree[f"dev/gcu{number}"] = ""
    return tree


def machine(memory: int = 512 * GIB) -> Tree:
    """Make a two-socket server with 32 cores a socket."""
    return server(32, memory, model="Intel(R) Xeon(R) Gold 6430")


def two() -> Tree:
    """Two cards that only the table tells of: an efsmi whose -q was not recorded."""
    return {
        **machine(),
        **cards(("0000:3d:00.0", "0000:3e:00.0"), (0, 0)),
        **commands({"efsmi": sample("enflame/efsmi.s60-2x.v1.4.0.505.txt")}),
        "origin": "efsmi's table of vLLM-GCU's installation page; made up: the server, PCI class, NUMA nodes\n",
    }


def eight() -> Tree:
    """Eight idle cards over two sockets, as efsmi -q tells of them."""
    one = sample("enflame/efsmi-q.s60.txt").partition("DEV ID 1")[0]
    header, mark, keys = one.partition("DEV ID 0")
    buses = (0x17, 0x2A, 0x3D, 0x50, 0x97, 0xAA, 0xBD, 0xD0)
    listed = (
        f"DEV ID {number}{keys.replace('Bus                     : 17', f'Bus                     : {bus:02x}')}"
        for number, bus in enumerate(buses)
    )
    assert mark, "the sample begins with DEV ID 0"
    return {
        **machine(1024 * GIB),
        **cards(tuple(f"0000:{bus:02x}:00.0" for bus in buses), (0, 0, 0, 0, 1, 1, 1, 1)),
        **commands({"efsmi -q": header + "".join(listed)}),
        "sys/module/enflame/version": "1.4.3.4\n",
        "variant": "gcu3.4-vllm0.8\n",
        "origin": "one card of ZStack's efsmi -q, eight times; made up: the server, addresses, NUMA nodes\n",
    }


def slices() -> Tree:
    """Two virtual functions of one card, in a virtual machine."""
    return {
        **machine(256 * GIB),
        **cards(("0000:2e:00.0", "0000:2f:00.0"), (0, 0)),
        **commands({"efsmi": sample("enflame/efsmi.s60g-2x.v1.6.3.12.txt")}),
        "sys/module/enflame/version": "1.6.3.12\n",
        "origin": "efsmi's table of FlagTree's installation guide (S60G); made up: the server, PCI ids, NUMA nodes\n",
    }


def first() -> Tree:
    """Two cards, one with ECC and one without, under the oldest driver that is known."""
    return {
        **machine(),
        **cards(("0000:01:00.0", "0000:09:00.0"), (0, 0)),
        **commands({"efsmi": sample("enflame/efsmi.s60-2x.v1.2.0.301.txt")}),
        "sys/module/enflame/version": "1.2.0.301\n",
        "variant": "gcu3.4-vllm0.8-wheels\n",
        "origin": "efsmi's table of PaddlePaddle's installation page; made up: the server, PCI class, NUMA nodes\n",
    }


def trees() -> dict[str, Tree]:
    """Return every made host: name → path → text."""
    return {
        "enflame-s60-2x": two(),
        "enflame-s60-8x": eight(),
        "enflame-s60g-2x": slices(),
        "enflame-s60-2x-tops3.2": first(),
    }
