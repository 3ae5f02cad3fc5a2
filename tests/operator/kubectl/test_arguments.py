"""The command line of ``kubectl llm``: options stand anywhere, as kubectl's do."""

from __future__ import annotations

import pytest

from blade_operator.kubectl.arguments import make_parser

CHAT = ["--temperature", "0", "-n", "team"]


@pytest.mark.parametrize(
    "argv",
    [
        ["chat", "demo", "What is it?", *CHAT],
        ["chat", "demo", *CHAT, "What is it?"],
        ["chat", *CHAT, "demo", "What is it?"],
        ["chat", "-n", "team", "demo", "--temperature", "0", "What is it?"],
    ],
)
def test_arguments_stand_before_between_and_behind_options(argv: list[str]) -> None:
    options = make_parser().parse_args(argv)
    assert (options.object, options.prompt) == ("demo", "What is it?")
    assert (options.namespace, options.temperature) == ("team", 0.0)


def test_what_is_too_much_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args(["chat", "demo", "--temperature", "0", "one", "two"])
    assert "unknown option or argument 'two'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        make_parser().parse_args(["chat", "demo", "--temprature", "0"])
    assert "did you mean '--temperature'?" in capsys.readouterr().err
