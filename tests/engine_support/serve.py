"""``python -m engine_support.serve paced|unpaced|scripted FLAGS``: ``blade_llm_server`` with a fake engine."""

import sys

from blade_llm.cli.server import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[2:], build=f"engine_support.fake_engine:{sys.argv[1]}"))
