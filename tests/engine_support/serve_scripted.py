"""``python -m engine_support.serve_scripted FLAGS``: ``blade_llm_server`` with an engine that answers from a script."""

import sys

from blade_llm.cli.server import main

if __name__ == "__main__":
    sys.exit(main(build="engine_support.scripted_core:build_core"))
