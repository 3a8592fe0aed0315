"""The fit of costs: on times made from known coefficients, and on numbers worked by hand."""

import sys
import tomllib
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import fit_costs  # noqa: E402
from device_check.artifact import Artifact, value  # noqa: E402
from fit_costs import Product, Schedule  # noqa: E402
from oxide_tile.profile import Table, rules_of  # noqa: E402

SHAPES = [(m, n, k) for m in (16, 64, 200, 512, 4096) for n, k in ((2048, 1536), (4608, 3584), (18944, 3584))]


def schedule(
    algorithm: str,
    rows: int,
    columns: int,
    splits: int = 1,
    weight_bytes: int = 2,
    *,
    cluster: int = 1,
    shares: bool = False,
) -> Schedule:
    properties = (("bias", "absent"), ("residual", "present"))
    return Schedule(
        algorithm, "gemm.dense", properties, algorithm, rows, columns, splits, cluster, shares, weight_bytes
    )


def shape(m: int, n: int, k: int) -> dict[str, int]:
    return {"m": m, "n": n, "k": k}


def test_the_terms_of_a_cost_are_waves_slices_and_partial_sums():
    # 2 * 16 tiles in 5 shares: 160, 2 waves of ceil(24 / 5) = 5 slices; 5 * 4 bytes of 200 * 2048 sums.
    assert schedule("a", 128, 128, 5).features(shape(200, 2048, 1536)) == [1, 2, 10, 8.192]
    # 2 * 8 tiles: 1 wave of 24 slices.
    assert schedule("a", 128, 256).features(shape(200, 2048, 1536)) == [1, 1, 24, 0]
    # 1 * 165 blocks that share multiprocessors are 1.25 waves; 2 of 64 columns, less than one, are one.
    several = schedule("a", 8, 64, shares=True)
    assert several.features(shape(8, 165 * 64, 128)) == [1, 1.25, 2.5, 0]
    assert several.features(shape(8, 128, 128)) == [1, 1, 2, 0]
    # Pairs have tiles of 256 rows: 17 * 4 of them by 66 pairs are 2 waves.
    assert schedule("a", 128, 256, cluster=2).features(shape(4200, 1024, 1536)) == [1, 2, 48, 0]


def test_a_cost_is_an_expression_of_whole_nanoseconds():
    gated = schedule("a", 128, 64, weight_bytes=4)
    text = gated.cost([1000.4, 200.5, 29.6, 0.0])
    assert (
        text
        == "max(n * k / 1050, 1000 + ceil_div(ceil_div(m, 128) * ceil_div(n, 64), 132) * (200 + 30 * ceil_div(k, 64)))"
    )
    # 1 * 140 tiles: 2 waves of 200 + 30 * 24 = 920; the weights alone take 8960 * 1536 / 1050 = 13,107.
    assert value(text, shape(1, 8960, 1536)) == 13_107
    # 33 * 140 tiles: 35 waves.
    assert value(text, shape(4200, 8960, 1536)) == 1000 + 35 * 920
    several = schedule("a", 8, 64, shares=True).cost([500.0, 0.0, 200.0, 0.0])
    # 1 * 165 blocks of 2 slices: 500 + 165 * 200 * 2 / 132; the weights take less.
    assert value(several, shape(8, 165 * 64, 128)) == 1000
    shared = schedule("a", 128, 128, 2).cost([0.0, 0.0, 300.0, 250.0])
    # 2 * 16 * 2 tiles of 12 slices: 3,600; 200 * 2048 elements of 8 bytes at 250 ns a megabyte: 819.
    assert value(shared, shape(200, 2048, 1536)) == 3600 + 818


@pytest.mark.parametrize("splits", [1, 4])
def test_coefficients_come_back_from_times_made_of_them(splits: int):
    made = schedule("a", 128, 128, splits)
    coefficients = [2000.0, 700.0, 350.0, 220.0 if splits > 1 else 0.0]
    exact = [sum(c * x for c, x in zip(coefficients, made.features(shape(*at)), strict=True)) for at in SHAPES]
    products = [Product("p", "m", shape(*at), {made: time}) for at, time in zip(SHAPES, exact, strict=True)]
    assert fit_costs.fit_range(products) == {made: made.cost(coefficients)}


def test_coefficients_below_0_are_not_admitted():
    # a + x / t: exact would be a = 3, b = -1; with b = 0, (a / 2 - 1)^2 + (a - 1)^2 is least at a = 1.2.
    assert fit_costs.least_squares([[1 / 2, 1 / 2], [1 / 1, 2 / 1]]) == pytest.approx([1.2, 0.0])


def test_features_that_depend_on_each_other_leave_one_out():
    solution = fit_costs.least_squares([[1 / 6, 2 / 6], [1 / 6, 2 / 6]])
    assert solution[0] + 2 * solution[1] == pytest.approx(6)


def test_regret_is_the_chosen_over_the_fastest_and_untimed_preferences_are_told():
    small, large, other = schedule("small", 64, 64), schedule("large", 128, 128), schedule("other", 8, 64)
    costs = {(1, 59): {small: "m * 10", large: "500"}, (60, 99): {small: "m * 10", large: "500", other: "n"}}
    products = [
        Product("p", "a", shape(40, 999, 1), {small: 3e3, large: 2e3}),
        Product("p", "a", shape(60, 999, 1), {small: 3e3, large: 2e3}),
        Product("p", "b", shape(60, 9, 1), {small: 4e3, large: 5e3}),
    ]
    outcomes = fit_costs.choices(costs, products)
    assert [(o.chosen, o.regret, o.untimed) for o in outcomes] == [
        (small, 1.5, None),
        (large, 1, None),
        (large, 1.25, other),
    ]
    summary = fit_costs.summary("all", outcomes)
    assert summary.startswith("# all: regret 1.250 in the mean, 1.500 at worst, of 3 products, for 1 of them")
    report = list(fit_costs.report("all", outcomes))
    assert report[2] == "# 1.500 p m=40: small 3.0 us, large 2.0 us"
    assert report[-1] == "# p m=60: other would serve and was not timed"


def manifest(name: str, activation: str, columns: int, weights: str) -> Artifact:
    maps = [{"kind": "tensor_map", "operand": "weight", "box": [64, columns]}]
    facts = {"name": name, "contract": "gemm.dense", "algorithm": name.rpartition(".")[2]}
    launch = {"parameters": maps, "dynamic_shared_memory": 115 << 10, "resources": {"static_shared_memory": 1 << 10}}
    facts |= {"properties": {"activation": activation}, "launches": [launch]}
    facts |= {"operands": [{"name": "weight", "shape": [weights, "k"]}], "source": {"schedule": {"block_m": 64}}}
    return Artifact(Path(), facts)


def test_a_record_becomes_rules_that_the_profile_reads():
    artifacts = [manifest("x.tile_a", "swiglu", 64, "2 * n"), manifest("x.tile_b", "swiglu", 128, "n * 2")]
    artifacts.append(manifest("y.tile_a", "none", 64, "n"))
    row = {"what": "product", "model": "q", "projection": "up", **shape(64, 2048, 1536)}
    times = {artifact.name: {"median": 20.0 + at} for at, artifact in enumerate(artifacts)}
    slower = {name: {"median": 99.0} for name in times}
    rows = [{"what": "decode"}, {**row, "ours": slower}, {**row, "ours": times}, {**row, "m": 999, "ours": times}]
    products = fit_costs.read(fit_costs.latest(rows), artifacts)
    # Of equal products the last times count.
    assert [sorted(product.times.values()) for product in products] == [[20e3, 21e3], [22e3]] * 2
    assert [[s.name for s in product.times] for product in products] == [["x.tile_a", "x.tile_b"], ["y.tile_a"]] * 2
    assert {(s.weight_bytes, s.shares) for s in products[0].times} == {(4, False)}
    products += fit_costs.read([{**row, "m": 8, "ours": {"x.tile_a": {"median": 19.0}}}], artifacts)
    printed = fit_costs.tables(fit_costs.fit(products))
    rules = [
        rule for table in tomllib.loads("\n".join(printed))["select"] for rule in rules_of(Table(table, "printed"))
    ]
    assert [(rule.properties["activation"], rule.when["m"], sorted(rule.choice.algorithms())) for rule in rules] == [
        ("none", (17, 64), ["tile_a"]),
        ("none", (65, 2**31 - 1), ["tile_a"]),
        ("swiglu", (1, 16), ["tile_a"]),
        ("swiglu", (17, 64), ["tile_a", "tile_b"]),
        ("swiglu", (65, 2**31 - 1), ["tile_a", "tile_b"]),
    ]
    with pytest.raises(SystemExit, match="times z, which is not among the artifacts"):
        fit_costs.read([{**row, "ours": {"z": {"median": 1.0}}}], artifacts)
