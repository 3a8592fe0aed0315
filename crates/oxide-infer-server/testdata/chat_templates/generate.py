"""Writes expected.json: what transformers 4.57.1 (jinja2 3.1.6) renders for each template and request here.

Usage: pip install transformers==4.57.1 jinja2==3.1.6 && python generate.py
"""

import json
import pathlib

from transformers.utils.chat_template_utils import _compile_jinja_template

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'Weather of a city, "now" <or> later & so on — é',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "the city", "enum": ["Paris", "Zürich"]},
                    "days": {"type": ["integer", "null"], "default": 1.5},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "noop", "description": "", "parameters": {}}},
]


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


def call(id, name, **arguments):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


SYSTEM = turn("system", "  Be brief.\n")
HELLO = turn("user", "Hello <b>&amp;</b> 'you' \"there\"")
THOUGHT = turn("assistant", "\n<think>\nhm\n</think>\n\n2\n")
ASK = turn("assistant", None, tool_calls=[call("abcDEF123", "get_weather", city="Zürich", days=2)])
ASK_TWICE = turn(
    "assistant",
    "Let me look.",
    tool_calls=[call("abcDEF124", "get_weather", city="Paris"), call("abcDEF125", "noop")],
)


def result(id, content):
    return turn("tool", content, tool_call_id=id, name="get_weather")


REQUESTS = {
    "user": {"messages": [HELLO]},
    "no generation prompt": {"messages": [HELLO, turn("assistant", "Hi!")], "add_generation_prompt": False},
    "system and thoughts": {"messages": [SYSTEM, turn("user", " 1+1? \n"), THOUGHT, turn("user", "and 2+2?")]},
    "thoughts last": {"messages": [turn("user", "1+1?"), THOUGHT], "add_generation_prompt": False},
    "tools": {"messages": [HELLO], "tools": TOOLS},
    "tool calls": {
        "messages": [
            SYSTEM,
            HELLO,
            ASK,
            result("abcDEF123", '{"temp": 3}'),
            turn("assistant", "3 degrees"),
            HELLO,
        ],
        "tools": TOOLS,
    },
    "two tool calls": {
        "messages": [HELLO, ASK_TWICE, result("abcDEF124", "5"), result("abcDEF125", "ok")],
        "tools": TOOLS,
    },
    "thinking off": {"messages": [HELLO], "enable_thinking": False},
    "thinking on": {"messages": [HELLO], "enable_thinking": True},
    "parts": {"messages": [turn("user", parts("one", "two"))]},
    "wrong order": {"messages": [turn("assistant", "first"), turn("user", "second")]},
    "unknown role": {"messages": [turn("user", "a"), turn("assistant", "b"), turn("critic", "c")]},
    "empty content": {"messages": [turn("user", "")]},
    "date": {"messages": [HELLO], "day": "Friday"},
}
DEFAULTS = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "add_generation_prompt": True,
    "tools": None,
    "documents": None,
}


def main():
    here = pathlib.Path(__file__).parent
    cases = []
    for path in sorted(here.glob("*.jinja")):
        template = _compile_jinja_template(path.read_text())
        for name, request in REQUESTS.items():
            case = {"template": path.name, "request": name, "variables": DEFAULTS | request}
            try:
                case["rendered"] = template.render(**case["variables"])
            except Exception as error:
                case["error"] = f"{type(error).__name__}: {error}"
            cases.append(case)
    (here / "expected.json").write_text(json.dumps(cases, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
