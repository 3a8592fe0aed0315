"""Draws throughput and inter-token latency against concurrency, ours and vLLM's, as SVG for light and dark pages.

Usage: plot.py [FOLDER]   (default: docs/plots; plot.sh runs it with the pinned versions)
The same inputs give the same bytes: ids come from a fixed salt and there is no date.
"""

import pathlib
import sys

import matplotlib

matplotlib.use("svg")

import matplotlib.pyplot as plt
import plot_inputs
import records
from records import find

CONCURRENCIES = (1, 16, 64, 256)
COLORS = {
    "light": {"page": "#ffffff", "ink": "#1f2328", "grid": "#d8dee4", "ours": "#b3470b", "vllm": "#0a5ca8"},
    "dark": {"page": "#0d1117", "ink": "#e6edf3", "grid": "#30363d", "ours": "#ff9b5e", "vllm": "#6cb6ff"},
}
WHO = {"ours": "Oxide Infer", "vllm": "vLLM 0.26"}


def main(folder: pathlib.Path) -> None:
    documents = {"ours": records.load(records.newest()), "vllm": records.load(records.VLLM)}
    folder.mkdir(parents=True, exist_ok=True)
    for scheme, colors in COLORS.items():
        path = folder / f"serving-{scheme}.svg"
        with plt.rc_context(style(colors)):
            draw(documents, colors).savefig(path, metadata={"Date": None, "Creator": None})
            plt.close("all")
        lines = [line.rstrip() for line in path.read_text().splitlines()]
        # After the XML declaration, which must come first.
        lines.insert(1, plot_inputs.comment())
        path.write_text("\n".join(lines) + "\n")


def style(colors: dict) -> dict:
    ink = {f"{part}.color": colors["ink"] for part in ("text", "xtick", "ytick")}
    return ink | {
        "svg.hashsalt": "oxide-infer",
        # Letters as outlines, so that the picture is the same whatever fonts the reader has.
        "svg.fonttype": "path",
        "font.family": "DejaVu Sans",
        "font.size": 10,
        "axes.edgecolor": colors["ink"],
        "axes.labelcolor": colors["ink"],
        "axes.facecolor": colors["page"],
        "figure.facecolor": colors["page"],
        "savefig.facecolor": colors["page"],
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": colors["grid"],
        "grid.linewidth": 0.7,
    }


def draw(documents: dict, colors: dict) -> plt.Figure:
    figure, (rate, gap) = plt.subplots(1, 2, figsize=(10, 4.4), layout="constrained")
    for who, document in documents.items():
        line(rate, document, "output_tokens_per_s", WHO[who], colors[who], "-")
        line(gap, document, "itl_ms.p50", f"{WHO[who]} p50", colors[who], "-")
        line(gap, document, "itl_ms.p99", f"{WHO[who]} p99", colors[who], (0, (4, 2)))
    for axes in (rate, gap):
        axes.set_xscale("log", base=2)
        axes.set_xticks(CONCURRENCIES, [str(concurrency) for concurrency in CONCURRENCIES])
        axes.minorticks_off()
        axes.set_xlabel("requests at once")
        axes.grid(True)
        # Room for the names at the ends of the lines.
        axes.set_xlim(0.8, 2100)
    rate.set_title("Throughput", loc="left")
    rate.set_ylabel("output tokens per second")
    rate.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    rate.set_ylim(0, None)
    gap.set_title("Time between tokens (ITL)", loc="left")
    gap.set_ylabel("milliseconds (log scale)")
    gap.set_yscale("log")
    gap.set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
    gap.minorticks_off()
    gap.set_ylim(0.9, 80)
    figure.suptitle("Qwen2.5-1.5B shape on one H200, 512 tokens in, 128 out, over HTTP", x=0.01, ha="left", fontsize=11)
    return figure


def line(axes: plt.Axes, document: dict, metric: str, name: str, color: str, dashes: object) -> None:
    found = [find(document, f"summary.{metric}", "server", {"concurrency": each}) for each in CONCURRENCIES]
    medians = [each.median for each in found]
    axes.plot(CONCURRENCIES, medians, color=color, linestyle=dashes, marker="o", markersize=4)
    end = (CONCURRENCIES[-1], medians[-1])
    axes.annotate(name, end, (8, 0), textcoords="offset points", color=color, va="center", weight="bold")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else plot_inputs.PLOTS)
