"""The verbs of ./inv, as a table: heading → verb → function. Each function's record declares its options."""

from __future__ import annotations

import sys

from drydock.core.lacking_package import exit_without_package

try:
    from drydock import INSTALLED
    from drydock.cli import cli
    from drydock.cli.options import Verb, make_collection
    from drydock.core.process import prepare_process, short_lived
    from drydock.verbs import changes, development, images, machines, parts, plans, shipping, trust
except ImportError as error:  # a bare `invoke`, which is another Python than that of ./inv
    exit_without_package(error)

COMMANDS: dict[str, dict[str, Verb]] = {
    "Get an image": {
        "build": images.build_rows,
        "run": images.run_container,
        "demo": images.show_demo,
        "matrix": images.list_matrix,
        "images": images.list_images,
        "doctor": images.examine_machine,
    },
    "Ask before you serve": {
        "plan": plans.plan_row,
        "check": plans.check_row,
        "size": plans.size_machines,
        "explain": plans.explain_symptom,
        "compare": plans.compare_versions,
    },
    "Serve on several machines": {
        "topology init": machines.init_topology,
        "topology plan": machines.plan_topology,
        "topology diff": machines.compare_topologies,
        "topology render": machines.render_topology,
        "topology check": machines.check_topology,
        "topology up": machines.start_topology,
        "topology verify": machines.verify_topology,
        "topology down": machines.stop_topology,
    },
    "Change what is in it": {
        "lock": changes.lock_rows,
        "lock diff": changes.compare_locks,
        "outdated": changes.list_outdated,
        "bump": changes.bump_row,
        "recipes": changes.take_recipes,
        "adopt": changes.adopt_image,
        "project init": changes.make_project,
        "project upgrade": changes.upgrade_project,
        "project push": changes.push_project,
    },
    "Trust it": {
        "verify": trust.rebuild_row,
        "audit": trust.audit_row,
        "image verify": trust.verify_image,
        "image inspect": trust.inspect_image,
        "image diff": trust.compare_images,
        "image audit": trust.audit_image,
        "policy": trust.print_policy,
    },
    "Ship it": {
        "publish": shipping.publish_images,
        "foundations": shipping.list_foundations,
        "foundations push": shipping.push_foundations,
        "bundle create": shipping.create_bundle,
        "bundle load": shipping.load_bundle,
        "model pull": shipping.pull_model,
        "model push": shipping.push_model,
        "model demo": shipping.make_demo_model,
    },
    "See the parts": {
        "fetch": parts.fetch_inputs,
        "render": parts.render_rows,
        "bake": parts.print_bake_file,
        "engine": parts.start_engine,
        "entrypoint": plans.run_image_verb,
    },
    "Develop drydock": {
        "prove": development.prove_row,
        "ci": development.write_workflows,
        "ci changed": development.list_changed_rows,
        "ci publish": development.publish_from_ci,
        "ci propose": development.propose_update,
        "ci variables": development.list_ci_variables,
    },
}
CHECKOUT: dict[str, Verb] = {
    "test": development.run_tests,
    "lint": development.run_linters,
    "docs": development.write_docs,
    "schema": development.write_schemas,
    "requirements": development.resolve_requirements,
    "release": development.tag_release,
    "release files": development.make_release_files,
    "bench plot": development.plot_results,
}
"""What develops drydock itself, and an installed drydock lacks."""

if not INSTALLED:
    from bench import PARTS

    CHECKOUT |= {f"bench {part}".strip(): development.make_bench_verb(part) for part in ("", *PARTS)}
    COMMANDS["Develop drydock"] = CHECKOUT | COMMANDS["Develop drydock"]
namespace = make_collection({name: verb for verbs in COMMANDS.values() for name, verb in verbs.items()})
short_lived()

if __name__ == "__main__":
    prepare_process()
    cli.run_command_line(COMMANDS, sys.argv[1:])
