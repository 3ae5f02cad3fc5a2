"""``python -m engine_support.serve_paced FLAGS``: ``blade_llm_server`` with the paced fake engine."""

import sys

from blade_llm.cli.server import main

if __name__ == "__main__":
    sys.exit(main(build="engine_support.paced_core:build_core"))
