"""What a schema means beyond what llguidance follows: annotations, formats, names of properties, closed objects."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any

import pytest
from engine_support.guided_driver import Driver

from blade_llm.sampling.grammar_spec import GrammarSpec
from blade_llm.sampling.guided.errors import GrammarSpecError
from blade_llm.sampling.guided.json_schema.patterns import without_look_aheads
from blade_llm.sampling.guided.json_schema.rewriting import rewritten
from blade_llm.sampling.guided.schema import check_schema, is_annotation
from blade_llm.sampling.guided.text import with_closed_objects
from blade_llm.sampling.guided.validation import validate


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return Driver(tmp_path_factory.mktemp("tokenizer"), merges=False)


def _check(driver: Driver, schema: dict[str, Any], right: list[Any], wrong: list[Any], *, closed: bool = False) -> None:
    spec = GrammarSpec("json", json.dumps(schema))
    spec = with_closed_objects(spec) if closed else spec
    validate(spec)
    for value in right:
        assert driver.takes(spec, json.dumps(value, ensure_ascii=False)), value
    for value in wrong:
        assert not driver.takes(spec, json.dumps(value, ensure_ascii=False)), value


@pytest.mark.parametrize("number", [2**53, -(2**53), -(2.0**53), 1e15])
def test_large_numbers_are_kept_exactly(driver: Driver, number: float) -> None:
    _check(driver, {"enum": [number, 0]}, [int(number), 0], [int(number) - 1, int(number) + 2])


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("format", "credit-card"), ("format", "int32"), ("format", "path"), ("format", "binary"),
        ("propertyOrdering", ["b"]), ("nullable", False), ("title", "T"), ("examples", [1]), ("$comment", "c"),
        ("deprecated", True), ("readOnly", True), ("x-order", 3), ("contentEncoding", "quoted-printable"),
        ("contentMediaType", "image/png"), ("discriminator", {"propertyName": "a"}), ("id", "an id"), ("widget", "w"),
        ("default", {"not": "looked at"}), ("enumNames", ["A"]), ("uniqueItems", False), ("$anchor", "here"),
    ],
)  # fmt: skip
def test_annotations_change_no_output(driver: Driver, keyword: str, value: Any) -> None:
    _check(driver, {"type": "string", "maxLength": 3, keyword: value}, ["", "abc"], [1, None, "abcd"])


def test_names_that_resemble_a_constraint_are_none() -> None:
    assert not any(map(is_annotation, ("maxlength", "requird", "minItem", "not", "if", "x-guidance", "pattern")))
    assert all(map(is_annotation, ("x-anything", "order", "$vocabulary", "units", "multiline", "propertyOrder")))


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("ipv4network", ["10.0.0.0/8", "1.2.3.4", "1.2.3.128/25", "0.0.0.0/0"], ["10.0.0.1/8", "1.2.3.64/25"]),
        ("ipv6network", ["2001:db8::/32", "::/0", "1:2:3:4:5:6:7:8/128"], ["1:2:3:4:5:6:7:8/64", "2001:db8::/129"]),
        ("ipv4interface", ["10.0.0.1/8", "1.2.3.4"], ["10.0.0.1/40", "10.0.0.256"]),
        ("ipv6interface", ["::1/128", "fe80::1"], ["::1/129", "1::2::3"]),
        ("ipvanyaddress", ["::1", "::", "1::", "1.2.3.4", "1:2:3:4:5:6:7::"], ["1::2::3", "1.2.3", "1:2:3:4:5"]),
        ("uuid4", ["12345678-1234-4234-8234-123456789abc"], ["12345678-1234-1234-8234-123456789abc"]),
        ("base64", ["", "YQ==", "YWI=", "YWJj"], ["YQ=", "YQ", "Y-I="]),
        ("base64url", ["Y-I=", "_-__"], ["Y+I="]),
        ("duration", ["P1Y2M3D", "PT0.5S", "P3W", "P1DT1H"], ["P", "PT", "P1S", "P1Y1W"]),
        ("fraction", ["1/3", "-2"], ["1/0", "x"]),
    ],
)  # fmt: skip
def test_formats(driver: Driver, name: str, right: list[str], wrong: list[str]) -> None:
    _check(driver, {"type": "string", "format": name}, right, wrong)
    _check(driver, {"format": name}, [*right, 5, None], wrong)


def test_nullable_allows_null(driver: Driver) -> None:
    _check(driver, {"type": "string", "nullable": True, "enum": ["a"]}, ["a", None], ["b", 1])
    defs = {"a": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}}
    _check(driver, {"$ref": "#/$defs/a", "nullable": True, "$defs": defs}, [{"x": 1}, None], ["a", {}])


def test_contents(driver: Driver) -> None:
    numbers = {"contentMediaType": "application/json", "contentSchema": {"type": "array", "items": {"type": "integer"}}}
    _check(driver, {"type": "string", **numbers}, ["[1, 2]", "[]"], ["[", "[true]", "1"])
    anything = {"type": "string", "contentMediaType": "application/json"}
    _check(driver, anything, ['{"a": [1, "b"]}', "null", '"x\\n"'], ["{", "a", '{"a": }'])
    referred = {**anything, "contentSchema": {"$ref": "#/$defs/c"}, "$defs": {"c": {"enum": ["a.b", 1]}}}
    _check(driver, referred, ['"a.b"', "1"], ['"axb"', "2"])
    _check(driver, {"type": "string", "contentEncoding": "base64"}, ["YQ=="], ["Y"])


def test_names_of_properties(driver: Driver) -> None:
    integer = {"type": "integer"}
    named = {"type": "object", "additionalProperties": integer}
    _check(
        driver,
        {**named, "propertyNames": {"enum": ["a", "b"]}},
        [{}, {"a": 1}, {"a": 1, "b": 2}],
        [{"c": 1}, {"a": "x"}],
    )
    defs = {"n": {"type": "string", "enum": ["a"]}}
    _check(driver, {**named, "propertyNames": {"$ref": "#/$defs/n"}, "$defs": defs}, [{"a": 1}], [{"b": 1}])
    _check(driver, {**named, "propertyNames": {"pattern": "^x"}}, [{"x1": 1}], [{"a": 1}, {"x": None}])
    _check(driver, {**named, "propertyNames": {"format": "date"}}, [{"2024-02-29": 1}], [{"2023-02-29": 1}])
    for name, right, wrong in (
        ("email", "a.b@example.org", "a"), ("uri", "https://a.example:80/b", "a"), ("hostname", "a-b.example", "-a"),
    ):  # fmt: skip
        _check(driver, {**named, "propertyNames": {"format": name}}, [{right: 1}], [{wrong: 1}, {right: "x"}])
    _check(driver, {**named, "propertyNames": {"minLength": 2, "maxLength": 3}}, [{"ab": 1}], [{"a": 1}, {"abcd": 1}])
    _check(driver, {**named, "propertyNames": {"type": "string"}}, [{"": 1}], [{"a": None}])
    _check(driver, {"type": "object", "propertyNames": False}, [{}], [{"a": 1}])
    listed = {"properties": {"a": {"type": "null"}, "c": True}, "propertyNames": {"enum": ["a", "b"]}}
    _check(driver, {**named, **listed}, [{"a": None, "b": 1}], [{"c": 1}, {"a": 1}])


def test_no_item_twice_where_there_are_few(driver: Driver) -> None:
    colors = {
        "type": "array",
        "uniqueItems": True,
        "items": {"$ref": "#/$defs/c"},
        "$defs": {"c": {"enum": ["r", "g", "b"]}},
    }
    _check(driver, colors, [[], ["b", "r"], ["r", "g", "b"]], [["r", "r"], ["x"], ["r", "g", "b", "r"]])
    few = {"type": "array", "uniqueItems": True, "minItems": 1, "maxItems": 2, "items": {"type": ["boolean", "null"]}}
    _check(driver, few, [[True], [None, False]], [[], [True, True], [True, False, None]])
    either = {"type": "array", "uniqueItems": True, "items": {"anyOf": [{"const": n} for n in range(6)]}}
    _check(driver, either, [[0, 3, 5], [1, 2]], [[1, 1]])
    numbers = {"type": "array", "uniqueItems": True, "items": {"enum": [1, 1.0, True, [2], [2.0]]}}
    _check(driver, numbers, [[True], [], [[2], 1]], [[1, 1], [1, 1.0], [[2], [2.0]]])
    many: dict[str, Any] = {"type": "array", "uniqueItems": True, "items": {"type": "integer"}}
    _check(driver, many, [[1, 2], [1, 1]], [["a"]])
    listed = {**colors, "enum": [["r"], ["g", "g"]]}
    _check(driver, listed, [["r"]], [["g"], []])
    long = {"type": "array", "uniqueItems": True, "items": {"enum": ["x" * 200 + str(n) for n in range(7)]}}
    root = {"properties": {"few": colors, "a/b": many, "c": listed, "d": long}, "$defs": colors["$defs"]}
    assert sorted(check_schema(root)) == [f"#/properties/{name}/uniqueItems" for name in ("a~1b", "c", "d")]


_BASE = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
_MORE = {"properties": {"b": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (_BASE, {"a": 1}, {"a": 1, "x": 1}),
        ({"type": "array", "items": _BASE}, [{"a": 1}], [{"a": 1, "x": 1}]),
        ({"anyOf": [_BASE, {"type": "null"}]}, {"a": 1}, {"a": 1, "x": 1}),
        ({"properties": {"o": {"$ref": "#/$defs/b"}}, "$defs": {"b": _BASE}}, {"o": {"a": 1}}, {"o": {"a": 1, "x": 1}}),
        ({"allOf": [_BASE, _MORE]}, {"a": 1, "b": 2}, {"a": 1, "x": 1}),
        ({"$ref": "#/$defs/b", "$defs": {"b": _BASE}, **_MORE}, {"b": 2, "a": 1}, {"a": 1, "x": 1}),
        ({"allOf": [{"$ref": "#/$defs/b"}, _MORE], "$defs": {"b": _BASE}}, {"a": 1, "b": 2}, {"a": 1, "b": "x"}),
        ({"allOf": [_BASE, {"allOf": [_MORE]}]}, {"a": 1, "b": 2}, {"a": 1, "x": 1}),
        ({"allOf": [_BASE], "description": "one"}, {"a": 1}, {"a": 1, "x": 1}),
        ({**_BASE, "anyOf": [{"required": ["a"]}, _MORE]}, {"a": 1, "b": 2}, {"a": 1, "x": 2}),
        ({"patternProperties": {"^x": True}, "type": "object"}, {"x1": 1}, {"a": 1}),
        ({"type": "object", "properties": {"a": True}, "required": ["r"]}, {"a": 1, "r": 2}, {"a": 1, "r": 2, "x": 1}),
        ({"type": "object", "properties": {}}, {}, {"a": 1}),
        ({"oneOf": [_BASE, {"type": "object", **_MORE, "required": ["b"]}]}, {"b": 1}, {"a": 1, "b": 1}),
    ],
)
def test_closed_objects(driver: Driver, schema: dict[str, Any], right: Any, wrong: Any) -> None:
    _check(driver, schema, [right], [wrong], closed=True)


def test_what_a_schema_says_of_other_keys_counts(driver: Driver) -> None:
    for more in (True, {"type": "integer"}):
        _check(driver, {**_BASE, "additionalProperties": more}, [{"a": 1, "x": 1}], [], closed=True)
    _check(driver, {"allOf": [_BASE, {"additionalProperties": True}]}, [{"a": 1, "x": 1}], [], closed=True)
    _check(driver, {"type": "object"}, [{"x": 1}, {}], [], closed=True)
    _check(driver, {"type": "object", **_MORE, "const": {"a": 1}}, [{"a": 1}], [{}, {"b": 1}], closed=True)
    _check(driver, {**_BASE, "x-blade-closed": False}, [{"a": 1, "x": 1}], [], closed=True)
    _check(driver, _BASE, [{"a": 1, "x": 1}], [])
    _check(driver, {}, [{"a": 1}, 5, [None]], [], closed=True)
    _check(driver, {**_BASE, "unevaluatedProperties": False}, [{"a": 1}], [{"a": 1, "x": 1}])
    both = {"allOf": [_BASE, _MORE], "unevaluatedProperties": False}
    _check(driver, both, [{"a": 1, "b": 1}], [{"a": 1, "x": 1}])
    _check(driver, {"type": "array", "prefixItems": [True], "unevaluatedItems": False}, [[1]], [[1, 2]])


@pytest.mark.parametrize("closed", [False, True])
def test_unevaluated_properties(driver: Driver, closed: bool) -> None:
    """Also where a schema that refers to others, or is a part of another, says so of itself alone."""
    shut, defs = {"unevaluatedProperties": False}, {"$defs": {"b": _BASE}}
    for only in ({"$ref": "#/$defs/b"}, {"allOf": [{"$ref": "#/$defs/b"}]}):
        _check(driver, {**only, **shut, **defs}, [{"a": 1}], [{"a": 1, "x": 1}], closed=closed)
    _check(driver, {"type": "object", **shut}, [{}], [{"x": 1}], closed=closed)
    part = {"allOf": [{"type": "object", "properties": {"a": True}, **shut}], **_MORE}
    with pytest.raises(GrammarSpecError, match="'r' is unsatisfiable"):
        validate(GrammarSpec("json", json.dumps({"type": "object", "required": ["r"], **shut})))
    _check(driver, part, [{"a": 1}, {}], [{"b": 1}, {"x": 1}], closed=closed)
    with pytest.raises(GrammarSpecError, match="propertyNames"):
        validate(GrammarSpec("json", json.dumps({"allOf": [{"propertyNames": {"minLength": 1}}], **_BASE, **shut})))


def test_closed_objects_that_contain_themselves(driver: Driver) -> None:
    more = {"allOf": [{"$ref": "#/$defs/node"}, {"properties": {"root": {"const": True}}}]}
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}
    right = [{}, {"next": {"next": {}}, "root": True}]
    _check(driver, {**more, "$defs": {"node": node}}, right, [{"next": {"root": True}}, {"x": 1}], closed=True)
    tree = {"type": "object", "properties": {"down": {"type": "array", "items": {"$ref": "#"}}}}
    _check(driver, tree, [{"down": [{}, {"down": []}]}], [{"down": [{"x": 1}]}], closed=True)


def test_one_of_cases_that_are_references(driver: Driver) -> None:
    def case(name: str) -> dict[str, Any]:
        return {"type": "object", "properties": {"kind": {"const": name}}, "required": ["kind"]}

    told_apart = {"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {"a": case("a"), "b": case("b")}}
    _check(driver, told_apart, [{"kind": "a"}, {"kind": "b"}], [{"kind": "c"}])
    with pytest.raises(GrammarSpecError, match="oneOf"):
        validate(GrammarSpec("json", json.dumps({**told_apart, "$defs": {"a": case("a"), "b": case("a")}})))


def _object(*listed: str, required: str = "", **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": dict.fromkeys(listed, True), "required": list(required), **more}


@pytest.mark.parametrize("referred", [False, True])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (_object("a"), _object("b", required="b")),
        (_object("a", required="a"), _object("a", "b", required="ab")),
        (_object("a", required="ab"), _object("a", "b", required="ab")),
        (_object("a", propertyNames={"enum": ["a", "b"]}), _object("b", required="b")),
        (_object("a", minProperties=2, required="a"), _object("a", "b", required="ab")),
        (
            {"type": "object", "properties": {"k": {"const": 1}}, "required": ["k"]},
            {"type": "object", "properties": {"k": {"const": 1.0}}, "required": ["k"]},
        ),
    ],
)
def test_that_objects_are_closed_does_not_tell_cases_apart(
    first: dict[str, Any], second: dict[str, Any], referred: bool
) -> None:
    """Some output of the second case would match the first as well, as the schema has it."""
    cases = [{"$ref": "#/$defs/0"}, {"$ref": "#/$defs/1"}] if referred else [first, second]
    schema = {"oneOf": cases, "$defs": {"0": first, "1": second}}
    with pytest.raises(GrammarSpecError, match="oneOf"):
        validate(with_closed_objects(GrammarSpec("json", json.dumps(schema))))


def test_cases_that_exclude_each_other_are_closed(driver: Driver) -> None:
    shut = _object("a", required="a", additionalProperties=False)
    _check(driver, {"oneOf": [shut, _object("a", "b", required="ab")]}, [{"a": 1}, {"a": 1, "b": 1}], [{}], closed=True)
    nested = [{**_object(required="v"), "properties": {"v": {"type": name}}} for name in ("string", "integer")]
    both = {"oneOf": nested}
    _check(driver, both, [{"v": "x"}, {"v": 1}], [{"v": None}, {"v": 1, "x": 1}], closed=True)
    apart = [
        {"allOf": [_object("a", required="a"), {"properties": {"k": {"const": k}}, "required": ["k"]}]} for k in "xy"
    ]
    _check(
        driver, {"oneOf": apart}, [{"a": 1, "k": "x"}], [{"a": 1, "k": "z"}, {"a": 1, "k": "x", "b": 1}], closed=True
    )
    deep: dict[str, Any] = {"type": "null"}
    for _ in range(12):
        deep = {"oneOf": [{**_object(required="v"), "properties": {"v": each}} for each in (deep, {"type": "string"})]}
    _check(driver, deep, [{"v": "x"}, {"v": {"v": "x"}}], [{"v": 1}, {"v": "x", "x": 1}], closed=True)


@pytest.mark.parametrize(
    ("most", "places"), [(None, None), (None, 2), (5, None), (5, 2), (3, 3), (100, None), (40, 40), (8, 0), (2, 4)]
)
def test_the_pattern_of_a_decimal(most: int | None, places: int | None) -> None:
    """As pydantic 2.11 to 2.13 writes it: what is made of it is a part of that, and numbers as people write them."""
    if most is not None and places is not None:
        whole = max(0, most - places)
        tail = rf"(?:\d{{0,{whole}}}|(?=[\d.]{{1,{most + 1}}}0*$)\d{{0,{whole}}}\.\d{{0,{places}}}0*$)"
    elif most is not None:
        tail = rf"(?:\d{{0,{most}}}|(?=[\d.]{{1,{most + 1}}}0*$)\d*\.\d*0*$)"
    else:
        tail = r"\d*\.?\d*$" if places is None else rf"\d*\.?\d{{0,{places}}}0*$"
    original = rf"^(?!^[-+.]*$)[+-]?0*{tail}"
    (made,) = without_look_aheads(original)
    assert "(?" not in made
    validate(GrammarSpec("json", json.dumps({"type": "string", "pattern": original})))
    texts = ["0", "7", "0.5", "12", "-3.25", "+1", "99.99", "123.4", "1000", ".", "", "-", "a", "1.", ".5", "0.1234"]
    for text in texts:
        if re.search(made, text):
            Decimal(text)
            assert re.search(original, text), text
    assert re.search(made, "0") or places == most
    assert bool(re.search(made, "0.5")) is (places != 0)


def test_look_aheads_at_the_beginning_are_patterns(driver: Driver) -> None:
    password = {"type": "string", "pattern": r"^(?=.*[A-Z])(?=.*\d)[A-Za-z\d]{3,8}$"}
    _check(driver, password, ["aB3", "ABC12"], ["abc", "AB", "abc1", "A1 b"])
    assert without_look_aheads("^(?=a)b|c") == ["^(?=a)b|c"]
    assert without_look_aheads("(?:a|b)+") == ["(?:a|b)+"]


@pytest.mark.parametrize(
    "content",
    [
        {"enum": 5}, {"$ref": 5}, {"$ref": ["a"]}, {"anyOf": []}, {"enum": []}, {"properties": 1, "type": "object"},
        {"type": "object", "properties": {"a": True}, "required": 5}, {"type": "object", "properties": {"a": [1]}}, 5,
    ],
)  # fmt: skip
def test_contents_of_no_known_form_are_any_json(driver: Driver, content: Any) -> None:
    """``contentSchema`` is an annotation, which nothing has checked."""
    schema = {"type": "string", "contentMediaType": "application/json", "contentSchema": content}
    _check(driver, schema, ['{"b": 1}', "2"], ["{"])


@pytest.mark.parametrize("text", ["{", "[]", "", "null", "nonsense", "{}", ' {"type": "object"}'])
def test_closing_does_not_read_the_text(text: str) -> None:
    made = with_closed_objects(GrammarSpec("json", text)).value
    assert (made == text) is not text.strip().startswith("{")
    if text.strip().endswith("}"):
        assert json.loads(made) == {"x-blade-closed": True, **json.loads(text)}


def test_a_long_chain_of_references_is_closed() -> None:
    links = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"properties": {f"a{n}": True}}]} for n in range(2000)}
    chain = {"properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": {**links, "d2000": {"type": "object"}}}
    check_schema({**chain, "x-blade-closed": True})
    made = rewritten({**chain, "x-blade-closed": True})
    assert sum("additionalProperties" in str(found) for found in made["$defs"].values()) == 1


def test_work_is_bounded() -> None:
    """References that multiply, and objects of many parts that share them."""
    cases: dict[str, Any] = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 7} for n in range(8)}
    cases["d8"] = {"const": 1}
    unique = {"type": "array", "uniqueItems": True, "items": {"$ref": "#/$defs/d0"}}
    many = {"properties": {f"u{n}": unique for n in range(200)}, "$defs": cases}
    with pytest.raises(GrammarSpecError, match="too many parts"):
        validate(GrammarSpec("json", json.dumps(many)))
    parts: dict[str, Any] = {f"p{n}": {"properties": {f"k{n}_{m}": True for m in range(10)}} for n in range(100)}
    parts["all"] = {"allOf": [{"$ref": f"#/$defs/{name}"} for name in parts]}
    schema = {"properties": {f"o{n}": {"$ref": "#/$defs/all", "required": []} for n in range(200)}, "$defs": parts}
    with pytest.raises(GrammarSpecError, match="too many parts"):
        validate(with_closed_objects(GrammarSpec("json", json.dumps(schema))))
