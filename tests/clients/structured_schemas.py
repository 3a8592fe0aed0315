"""JSON schemas in the style of the public test suites, and a generator of more.

Each is a schema whose every keyword the server keeps; `REFUSED` has those that it names and refuses."""

import random

STRING = {"type": "string", "maxLength": 12}


def closed(**properties: object) -> dict:
    """An object with exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


KEPT: dict[str, dict] = {
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "types": {"type": ["null", "boolean", "integer"], "minimum": -5, "maximum": 5},
    "const": {"const": {"a": [1, "b", None, True]}},
    "const string": {"const": 'with "quotes" and \\ and é'},
    "enum": {"enum": ["red", "green", 3, None, {"a": 1}, [1, 2]]},
    "enum of strings": {"type": "string", "enum": ["low", "medium", "high"]},
    "integer": {"type": "integer", "minimum": -1000, "maximum": 1000},
    "exclusive integer": {"type": "integer", "exclusiveMinimum": 7, "exclusiveMaximum": 10},
    "number": {"type": "number", "minimum": 0.25, "maximum": 0.75},
    "exclusive number": {"type": "number", "exclusiveMinimum": -1.5, "exclusiveMaximum": 2},
    "multiple": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 700},
    "string": STRING,
    "string length": {"type": "string", "minLength": 3, "maxLength": 5},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "pattern in the middle": {"type": "string", "pattern": "ab", "maxLength": 8},
    "pattern with a choice": {"type": "string", "pattern": "^(cat|dog|bird)s?$"},
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "time", "maxLength": 20},
    "date-time": {"type": "string", "format": "date-time", "maxLength": 30},
    "uuid": {"type": "string", "format": "uuid"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "email": {"type": "string", "format": "email", "maxLength": 24},
    "array": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    "empty array": {"type": "array", "maxItems": 0},
    "array of arrays": {
        "type": "array",
        "items": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 3},
        "minItems": 1,
        "maxItems": 3,
    },
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "boolean"}, {"enum": ["a", "b"]}],
        "items": False,
        "minItems": 2,
    },
    "tuple with a rest": {
        "type": "array",
        "prefixItems": [{"type": "null"}],
        "items": {"type": "boolean"},
        "minItems": 3,
        "maxItems": 5,
    },
    "object": closed(name=STRING, active={"type": "boolean"}),
    "optional properties": {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}, "c": {"enum": [1]}},
        "required": ["b"],
        "additionalProperties": False,
    },
    "additional properties": {
        "type": "object",
        "additionalProperties": {"type": "boolean"},
        "minProperties": 1,
        "maxProperties": 2,
    },
    "pattern properties": {
        "type": "object",
        "patternProperties": {"^x-[a-z]{1,3}$": {"type": "boolean"}},
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 2,
    },
    "empty object": {"type": "object", "additionalProperties": False},
    "nested": closed(outer=closed(inner=closed(leaf={"enum": ["x", "y"]}))),
    "properties with odd names": closed(**{"a b": {"type": "null"}, 'q"': {"type": "null"}, "é": {"type": "boolean"}}),
    "any of": {"anyOf": [{"type": "boolean"}, closed(a={"const": 1}), {"type": "null"}]},
    "one of": {
        "oneOf": [
            closed(kind={"const": "cat"}, lives={"type": "integer", "minimum": 1, "maximum": 9}),
            closed(kind={"const": "dog"}, good={"type": "boolean"}),
        ]
    },
    "all of": {"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 8}]},
    "all of objects": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]},
            {"type": "object", "properties": {"b": {"type": "null"}}, "required": ["b"], "maxProperties": 2},
        ]
    },
    "definitions": {
        "$defs": {"color": {"enum": ["red", "blue"]}},
        **closed(front={"$ref": "#/$defs/color"}, back={"$ref": "#/$defs/color"}),
    },
    "old definitions": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": {"flag": {"type": "boolean"}},
        **closed(on={"$ref": "#/definitions/flag"}),
    },
    "recursion": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"enum": [0, 1]},
                    "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]},
                },
                "required": ["value", "next"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
    "annotations": {
        "title": "A title",
        "description": "A description",
        "default": True,
        "examples": [False],
        "$comment": "none of these restricts anything",
        "deprecated": True,
        "type": "boolean",
    },
    "an extraction": closed(
        city={"type": "string", "pattern": "^[A-Z][a-z]{2,9}$"},
        population={"type": "integer", "minimum": 0, "maximum": 40_000_000},
        tags={"type": "array", "items": {"enum": ["capital", "port", "river"]}, "maxItems": 3},
        mayor={"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 10}]},
    ),
}

# Schema, keyword that the error names, place that it names.
REFUSED: list[tuple[dict, str, str]] = [
    ({"not": {"type": "string"}}, "not", "#"),
    (closed(a={"if": {}, "then": {}}), "if", "#/properties/a"),
    ({"type": "array", "items": {"contains": {}}}, "contains", "#/items"),
    (closed(a={"type": "array", "uniqueItems": True}), "uniqueItems", "#/properties/a"),
    ({"anyOf": [{"type": "null"}, {"propertyNames": {}}]}, "propertyNames", "#/anyOf/1"),
    ({"$defs": {"a": {"dependentRequired": {}}}}, "dependentRequired", "#/$defs/a"),
    ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties", "#"),
    ({"type": "string", "format": "iri"}, "iri", "#"),
]


def generated(seed: int) -> dict:
    """A random schema whose answers are short."""
    return schema(random.Random(seed), depth=3)


def schema(draw: random.Random, depth: int) -> dict:
    leaves = [
        lambda: {"type": draw.choice(["boolean", "null"])},
        lambda: {"enum": draw.sample(["a", "b c", 'd"', 1, 2.5, None, True, "é"], draw.randint(1, 4))},
        lambda: integer(draw),
        lambda: {"type": "string", "maxLength": draw.randint(0, 8)},
        lambda: {
            "type": "string",
            "pattern": draw.choice(["^[a-f0-9]{4}$", "^(on|off)$", "^[A-Z][a-z]{0,4}$", "^\\d{2}:\\d{2}$"]),
        },
        lambda: {"type": "string", "format": draw.choice(["date", "uuid", "ipv4"])},
        lambda: {"const": draw.choice([0, "x", [1, 2], {"k": None}])},
    ]
    if depth == 0:
        return draw.choice(leaves)()
    branches = [
        lambda: objects(draw, depth),
        lambda: objects(draw, depth),
        lambda: {
            "type": "array",
            "items": schema(draw, depth - 1),
            "minItems": draw.randint(0, 1),
            "maxItems": draw.randint(1, 3),
        },
        lambda: {"anyOf": [schema(draw, depth - 1) for _ in range(draw.randint(1, 3))]},
        lambda: (
            {"$defs": {"it": schema(draw, 0)}} | closed(a={"$ref": "#/$defs/it"})
            if depth == 3
            else objects(draw, depth)
        ),
    ]
    return draw.choice(leaves + branches * 2)()


def integer(draw: random.Random) -> dict:
    low = draw.randint(-500, 500)
    return {"type": "integer", "minimum": low, "maximum": low + draw.randint(0, 500)}


def objects(draw: random.Random, depth: int) -> dict:
    names = draw.sample(["id", "name", "kind", "a b", "größe", "x-1"], draw.randint(0, 3))
    required = draw.sample(names, draw.randint(0, len(names)))
    properties = {name: schema(draw, depth - 1) for name in names}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
