"""vLLM's flags on ``blade_llm_server``'s command line: translated, ignored with a warning, or refused by name.

``python -m blade_llm.cli.vllm_flags`` prints ``docs/vllm-flags.md``.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from blade_llm.cli.flags import Flag, FlagParser, boolean
from blade_llm.cli.server_flags import GROUPS
from blade_llm.vllm_options import VLLM_OPTIONS, VllmOption

_NO: Final = ("--no-", "--no_")
_BOOLEANS: Final = frozenset({"true", "false", "1", "0", "yes", "no", "on", "off"})
_SHORT: Final = frozenset(option.short for option in VLLM_OPTIONS.values() if option.short)


class ServerFlagParser(FlagParser):
    """BladeLLM's flags, and vLLM's beside them; the model may be the first argument, as for ``vllm serve``."""

    def __init__(self, program: str) -> None:
        super().__init__(
            program,
            "Serve a large language model over an OpenAI-compatible API.",
            list(GROUPS.items()),
            positional="model",
        )
        self.usage = "%(prog)s MODEL [flags]"
        self.epilog = "vLLM's flags are taken, too: docs/vllm-flags.md says what each becomes."
        self.warnings: list[str] = []
        """What was given and changes nothing."""
        self._dotted: dict[str, list[str]] = {}
        """Flag → how it was given, where that was with a part of its JSON: in order."""
        for option in VLLM_OPTIONS.values():
            self._add(option)

    def parse(self, argv: Sequence[str] | None = None) -> dict[str, Any]:
        words = [self._undotted(word) for word in (sys.argv[1:] if argv is None else argv)]
        if not any(word.split("=")[0] == "--model" for word in words):
            words = self._without_swallowed_model(words)
        flags = super().parse(words)
        if os.environ.get("VLLM_API_KEY"):  # it would serve anybody, where vLLM asks for the key
            self.error(f"the variable VLLM_API_KEY is not taken, unset it: {VLLM_OPTIONS['api_key'].note}")
        return flags

    def spelled(self, option_string: str) -> str:
        """How a flag was given."""
        given = self._dotted.get(option_string)
        return given.pop(0) if given else option_string

    def _undotted(self, word: str) -> str:
        """``--compilation-config.level`` as ``--compilation-config``: vLLM takes parts of JSON options so."""
        name, dot, rest = word.partition(".")
        known = name in _SHORT or (name.startswith("--") and name[2:].replace("-", "_") in VLLM_OPTIONS)
        if not dot or not known:
            return word
        part, equals, value = rest.partition("=")
        self._dotted.setdefault(name, []).append(f"{name}.{part}")
        return f"{name}{equals}{value}"

    def _add(self, option: VllmOption) -> None:
        flag = self._flags.get(option.to)
        if option.status == "same":
            assert flag is not None, option.name
            if option.values:
                for action in self._actions:
                    if action.dest == option.to:
                        action.type = _translated(flag.kind, option)
        else:
            short = [option.short] if option.short else []
            many = flag is not None and flag.many
            self.add_argument(
                *short,
                *_spellings(option.name),
                action=_VllmAction,
                option=option,
                target=flag,
                nargs="?" if option.switch else "+" if many else 1,
            )
        if option.switch:
            self.add_argument(*_spellings(f"no_{option.name}"), action=_VllmAction, option=option, target=flag, nargs=0)

    def _without_swallowed_model(self, words: list[str]) -> list[str]:
        """``--enforce-eager MODEL`` is a switch and a model: a switch takes only what says true or false."""
        switches = {option for flag in self._flags.values() if flag.kind is boolean for option in _spellings(flag.name)}
        switches |= {
            spelling for option in VLLM_OPTIONS.values() if option.switch for spelling in _spellings(option.name)
        }
        found = []
        for word, after in zip(words, [*words[1:], "--"], strict=True):
            alone = word in switches and not after.startswith("-") and after.lower() not in _BOOLEANS
            found.append(f"{word}=true" if alone else word)
        return found


class _VllmAction(argparse.Action):
    """Does with one of vLLM's flags what the table says."""

    def __init__(
        self, option_strings: Sequence[str], dest: str, *, option: VllmOption, target: Flag | None, nargs: int | str
    ) -> None:
        super().__init__(
            option_strings, argparse.SUPPRESS, nargs=nargs, default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )
        self._option = option
        self._target = target

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        assert isinstance(parser, ServerFlagParser)
        spelled = parser.spelled(option_string or self.option_strings[0])
        texts = [str(value) for value in ([values] if isinstance(values, str) else values or [])]
        if self._option.switch:
            texts = [_boolean_text(self, spelled, texts)]
        match self._option.status:
            case "ignored":
                parser.warnings.append(f"{spelled} {self._option.nothing}")
            case "refused":
                if not all(text in self._option.off for text in texts):
                    given = spelled if self._option.switch else f"{spelled} {' '.join(texts)}"
                    parser.error(self._option.refusal(spelled, given))
                if self._option.other_off:
                    parser.warnings.append(f"{spelled} {self._option.nothing}")
            case _:
                self._set(namespace, texts)

    def _set(self, namespace: argparse.Namespace, texts: list[str]) -> None:
        flag = self._target
        assert flag is not None
        try:
            found = [_translated(flag.kind, self._option)(text) for text in texts]
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, str(error)) from None
        if flag.choices and (wrong := [value for value in found if value not in flag.choices]):
            known = ", ".join(dict.fromkeys([*self._option.values, *flag.choices]))
            raise argparse.ArgumentError(self, f"invalid choice: {wrong[0]!r} (choose from {known})")
        setattr(namespace, flag.name, found if flag.many else found[-1])


def _boolean_text(action: argparse.Action, spelled: str, texts: list[str]) -> str:
    try:
        value = boolean(texts[0]) if texts else True
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentError(action, str(error)) from None
    return str(value != spelled.startswith(_NO)).lower()


def _translated(kind: Callable[[str], Any], option: VllmOption) -> Callable[[str], Any]:
    """``kind`` of a value in vLLM's spelling."""

    def convert(text: str) -> Any:
        return kind(option.values.get(text, text))

    return convert


def _spellings(name: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((f"--{name.replace('_', '-')}", f"--{name}")))


_HEAD: Final = """# vLLM's flags

What `blade_llm_server` and `LLM(...)` make of vLLM's options. Written by `python -m blade_llm.cli.vllm_flags` from the
table that both read.

- **same**: works under the same name. The model may be the first argument, as for `vllm serve MODEL`.
- **renamed**: becomes the flag that is named.
- **ignored**: accepted; a warning says that it changes nothing.
- **refused**: an error that says what to do instead, unless its value requests nothing.

Dashes and underscores are the same, and a switch has its `--no-` form. A flag whose feature does not exist yet is
refused under either name. Any flag that is not listed is refused with the nearest known name. In Python, `LLM(...)`
takes the same names with underscores, and None for any of them.

With `VLLM_API_KEY` in its environment the server does not start: it would answer anybody, where vLLM asks for the key.

| vLLM | | here | |
|---|---|---|---|
"""


def markdown() -> str:
    """The page."""
    return _HEAD + "".join(f"| {' | '.join(_row(option))} |\n" for option in VLLM_OPTIONS.values())


def _row(option: VllmOption) -> tuple[str, str, str, str]:
    name = f"`--{option.name.replace('_', '-')}`"
    if option.switch:
        name += f", `--no-{option.name.replace('_', '-')}`"
    if option.short:
        name += f", `{option.short}`"
    notes = [option.note] if option.note else []
    changed = [f"`{theirs}` is `{ours}`" for theirs, ours in option.values.items()]
    if option.values:
        notes.append(", ".join(changed))
    if option.off and not option.switch:
        notes.append("taken: " + ", ".join(f"`{value}`" for value in option.off if value))
    here = f"`--{option.to}`" if option.to else ""
    return name, option.status, here, "; ".join(note for note in notes if note != "taken: ").replace("|", "\\|")


if __name__ == "__main__":
    print(markdown(), end="")
