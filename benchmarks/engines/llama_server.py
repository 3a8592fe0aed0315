"""Serves a GGUF file with llama.cpp's own server (as xllamacpp bundles it) on 127.0.0.1.

Usage: llama_server.py MODEL THREADS CONTEXT PORT
"""

import signal
import sys

import xllamacpp


def main() -> None:
    model, threads, context, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    params.n_gpu_layers = 0
    params.n_ctx = context
    params.n_parallel = 1
    # What is remembered of earlier prompts would be memory and time that the other engine does not spend.
    params.cache_prompt = False
    params.cache_ram_mib = 0
    params.hostnames = ["127.0.0.1"]
    params.port = port
    server = xllamacpp.Server(params)
    print(xllamacpp.__version__, xllamacpp.get_system_info(), server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


main()
