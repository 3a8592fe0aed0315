#!/usr/bin/env bash
# Usage: demo.sh BINARY MODEL   (environment: PORT, QUESTION)
# Serves the model on the CPU, asks one question over HTTP, prints the answer as it streams, stops the server.
set -euo pipefail

binary=$1
model=$2
question=${QUESTION:-What is the capital of France, and what is it known for?}
port=${PORT:-$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')}
url=http://127.0.0.1:$port

serve=("$binary" serve --model "$model" --served-model-name smollm2 --device cpu --port "$port")
echo "== ${serve[*]}"
# Log lines would stand in the middle of the answer.
log=$(mktemp)
"${serve[@]}" 2>"$log" &
server=$!
trap 'kill "$server" 2>/dev/null || true; rm -f "$log"' EXIT

for _ in $(seq 600); do
    curl --silent --fail --output /dev/null "$url/ready" && break
    if ! kill -0 "$server" 2>/dev/null; then
        cat "$log" >&2
        wait "$server" || status=$?
        echo "error: the server ended with code ${status:-0} before it was ready" >&2
        exit 1
    fi
    sleep 0.1
done
curl --silent --show-error --fail --output /dev/null "$url/ready"
cat "$log"

body=$(python3 -c 'import json, sys
print(json.dumps({"model": "smollm2", "messages": [{"role": "user", "content": sys.argv[1]}], "stream": True,
                  "max_tokens": 128, "temperature": 0}))' "$question")
echo
echo "== curl -N $url/v1/chat/completions -H 'content-type: application/json' -d '$body'"
echo
curl --silent --show-error --fail --no-buffer "$url/v1/chat/completions" -H 'content-type: application/json' -d "$body" |
    python3 "$(dirname "$0")/print_stream.py"
echo
echo "== stopping the server"
kill -TERM "$server"
trap 'rm -f "$log"' EXIT
wait "$server"
echo "== done: the server ended with code 0"
