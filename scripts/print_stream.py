"""Prints the text of a streamed chat completion from standard input as it comes.

Fails if the stream has no text or ends early.
"""

import json
import sys


def main() -> int:
    text = ""
    for line in sys.stdin:
        data = line.strip().removeprefix("data:").strip()
        if not line.startswith("data:"):
            continue
        if data == "[DONE]":
            print()
            return 0 if text else "error: the answer has no text"
        event = json.loads(data)
        if "error" in event:
            return f"error: {event['error']['message']}"
        for choice in event["choices"]:
            piece = choice["delta"].get("content") or ""
            text += piece
            print(piece, end="", flush=True)
    return "error: the stream ended early"


sys.exit(main())
