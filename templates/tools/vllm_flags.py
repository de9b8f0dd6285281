"""Write every option string of the installed vLLM's server as a sorted JSON list: vllm_flags.py FILE.

Asks vLLM's own argument parser. Needs no network and no device.
"""

import json
import sys
from pathlib import Path

from vllm.entrypoints.openai.cli_args import make_arg_parser

try:
    from vllm.utils.argparse_utils import FlexibleArgumentParser
except ImportError:  # until vLLM 0.11
    from vllm.utils import FlexibleArgumentParser

parser = make_arg_parser(FlexibleArgumentParser())
options = sorted({option for action in parser._actions for option in action.option_strings})
Path(sys.argv[1]).write_text(json.dumps(options, indent=0) + "\n")
