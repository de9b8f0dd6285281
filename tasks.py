"""The verbs of ./inv, as a table: heading → verb → function. Each function's record declares its options."""

from __future__ import annotations

import sys

from drydock.core.lacking_package import exit_without_package

try:
    from drydock.core.process import prepare_process, short_lived, spare_imported_objects

    short_lived()  # first: the collector would run for each 700 objects that the imports make
    from drydock import INSTALLED
    from drydock.cli import cli
    from drydock.cli.options import Verb, make_collection
    from drydock.verbs import (
        change_verbs,
        development_verbs,
        image_verbs,
        machine_verbs,
        part_verbs,
        plan_verbs,
        shipping_verbs,
        trust_verbs,
    )
except ImportError as error:  # a bare `invoke`, which is another Python than that of ./inv
    exit_without_package(error)

COMMANDS: dict[str, dict[str, Verb]] = {
    "Get an image": {
        "build": image_verbs.build_rows,
        "run": image_verbs.run_container,
        "demo": image_verbs.show_demo,
        "matrix": image_verbs.list_matrix,
        "images": image_verbs.list_images,
        "doctor": image_verbs.examine_machine,
    },
    "Ask before you serve": {
        "plan": plan_verbs.plan_row,
        "check": plan_verbs.check_row,
        "size": plan_verbs.size_machines,
        "explain": plan_verbs.explain_symptom,
        "compare": plan_verbs.compare_versions,
    },
    "Serve on several machines": {
        "topology init": machine_verbs.init_topology,
        "topology plan": machine_verbs.plan_topology,
        "topology diff": machine_verbs.compare_topologies,
        "topology render": machine_verbs.render_topology,
        "topology check": machine_verbs.check_topology,
        "topology up": machine_verbs.start_topology,
        "topology verify": machine_verbs.verify_topology,
        "topology down": machine_verbs.stop_topology,
    },
    "Change what is in it": {
        "lock": change_verbs.lock_rows,
        "lock diff": change_verbs.compare_locks,
        "outdated": change_verbs.list_outdated,
        "bump": change_verbs.bump_row,
        "recipes": change_verbs.take_recipes,
        "adopt": change_verbs.adopt_image,
        "project init": change_verbs.make_project,
        "project upgrade": change_verbs.upgrade_project,
        "project push": change_verbs.push_project,
    },
    "Trust it": {
        "verify": trust_verbs.rebuild_row,
        "audit": trust_verbs.audit_row,
        "image verify": trust_verbs.verify_image,
        "image inspect": trust_verbs.inspect_image,
        "image diff": trust_verbs.compare_images,
        "image audit": trust_verbs.audit_image,
        "policy": trust_verbs.print_policy,
    },
    "Ship it": {
        "publish": shipping_verbs.publish_images,
        "foundations": shipping_verbs.list_foundations,
        "foundations push": shipping_verbs.push_foundations,
        "bundle create": shipping_verbs.create_bundle,
        "bundle load": shipping_verbs.load_bundle,
        "model pull": shipping_verbs.pull_model,
        "model push": shipping_verbs.push_model,
        "model demo": shipping_verbs.make_demo_model,
    },
    "See the parts": {
        "fetch": part_verbs.fetch_inputs,
        "render": part_verbs.render_rows,
        "bake": part_verbs.print_bake_file,
        "engine": part_verbs.start_engine,
        "entrypoint": plan_verbs.run_image_verb,
    },
    "Develop drydock": {
        "prove": development_verbs.prove_row,
        "ci": development_verbs.write_workflows,
        "ci changed": development_verbs.list_changed_rows,
        "ci publish": development_verbs.publish_from_ci,
        "ci propose": development_verbs.propose_update,
        "ci variables": development_verbs.list_ci_variables,
    },
}
CHECKOUT: dict[str, Verb] = {
    "test": development_verbs.run_tests,
    "generate": development_verbs.write_generated,
    "lint": development_verbs.run_linters,
    "docs": development_verbs.write_docs,
    "schema": development_verbs.write_schemas,
    "requirements": development_verbs.resolve_requirements,
    "release": development_verbs.tag_release,
    "release files": development_verbs.make_release_files,
    "bench plot": development_verbs.plot_results,
}
"""What develops drydock itself, and an installed drydock lacks."""

if not INSTALLED:
    from bench import PARTS

    CHECKOUT |= {f"bench {part}".strip(): development_verbs.make_bench_verb(part) for part in ("", *PARTS)}
    COMMANDS["Develop drydock"] = CHECKOUT | COMMANDS["Develop drydock"]
namespace = make_collection({name: verb for verbs in COMMANDS.values() for name, verb in verbs.items()})
spare_imported_objects()

if __name__ == "__main__":
    prepare_process()
    cli.run_command_line(COMMANDS, sys.argv[1:])
