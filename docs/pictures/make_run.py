"""Record what `make run` prints on a terminal and write it as `docs/pictures/make-run.svg`.

Run it from the repository's root with a free port 8080: ``.venv/bin/python docs/pictures/make_run.py``. It stops the
service with Ctrl-C once the first response has been printed. Folders of this machine are shown as a reader's own.
"""

import fcntl
import io
import os
import pty
import re
import select
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
PICTURE = Path(__file__).with_name("make-run.svg")
COLUMNS = 100
DEADLINE = 300.0
ESCAPE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")


def record(command: list[str], environment: dict[str, str], stop_after: str) -> str:
    """Run the command on a pseudo-terminal, press Ctrl-C after it has printed `stop_after`, and return its output."""
    child, terminal = pty.fork()
    if child == 0:
        os.execvpe(command[0], command, environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    output, stopped, start = "", False, time.monotonic()
    while True:
        if select.select([terminal], [], [], 1.0)[0]:
            try:
                piece = os.read(terminal, 1 << 16)
            except OSError:  # Linux reports the end of the child's side as EIO
                break
            output += piece.decode(errors="replace")
        if not stopped and (stop_after in output or time.monotonic() - start > DEADLINE):
            time.sleep(2)
            os.write(terminal, b"\x03")
            stopped = True
    os.waitpid(child, 0)
    if stop_after not in output:
        sys.exit(f"the command did not print {stop_after!r}:\n{output[-2000:]}")
    return output


def screen(output: str) -> list[str]:
    """Apply the cursor movements of rich's live display; colours stay in the lines."""
    lines, row, at = [""], 0, 0
    while at < len(output):
        if match := ESCAPE.match(output, at):
            at = match.end()
            if match[2] == "m":
                lines[row] += match[0]
            elif match[2] == "K":
                lines[row] = ""
            elif match[2] == "A":
                row = max(0, row - int(match[1] or 1))
            continue
        character = output[at]
        at += 1
        if character == "\n":
            row += 1
            if row == len(lines):
                lines.append("")
        elif character != "\r":
            lines[row] += character
    return [line.rstrip() for line in lines]


def picture(text: str) -> str:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(text))
    without_web_fonts = re.sub(r"\s*@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    return console.export_svg(title="make run", code_format=without_web_fonts, unique_id="make-run")


def main() -> None:
    with tempfile.TemporaryDirectory() as state:
        environment = os.environ | {
            "XDG_STATE_HOME": state,
            "TERM": "xterm-256color",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HF_HUB_OFFLINE": "1",
        }
        command = ["blade_operator", "local", "up", "--model", "examples/demo_model/model", "--replicas", "2"]
        output = record([*command, "--ask", "What does len do?"], environment, stop_after="Stop it:")
        output = output.replace(state, "~/.local/state").replace(str(ROOT), "/home/you/bladellm")
    PICTURE.write_text(picture("\n".join(["\x1b[1m$ make run\x1b[0m", *screen(output)]).rstrip()))


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
