"""``python -m e2e.images [--only operator|engine] [--tag TAG] [--print-archives]``"""

import argparse
import sys
from collections.abc import Sequence

from e2e.images.build import IMAGES, ensure, version
from e2e.images.errors import ImageError


def main(argv: Sequence[str] | None = None) -> int:
    """Build what is missing; 0, or 1 with the reason on standard error."""
    parser = argparse.ArgumentParser(prog="python -m e2e.images", description="Build the images this tree stands for.")
    parser.add_argument("--only", choices=sorted(IMAGES), help="this image alone")
    parser.add_argument("--tag", default=version(), help="tag of both (default: the version in pyproject.toml)")
    parser.add_argument("--print-archives", action="store_true", help="print the archives' paths, one a line")
    options = parser.parse_args(argv)
    try:
        for image in [IMAGES[options.only]] if options.only else IMAGES.values():
            path = ensure(image, options.tag)
            if options.print_archives:
                print(path, flush=True)
    except ImageError as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
