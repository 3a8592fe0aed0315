import pytest

from oxide_tile.expr import Name, Number, binary, evaluate, text

M, N = Name("m"), Name("n")


def test_rounding_up_division_is_recognized():
    assert text((M + 127) // 128) == "ceil_div(m, 128)"
    assert text((M + 126) // 128) == "(m + 126) / 128"


def test_constants_and_neutral_elements_are_folded():
    assert text(M * 4 * 2) == "m * 8"
    assert text(M * 8 // 4) == "m * 2"
    assert text(M * 1 + 0) == "m"
    assert binary("*", Number(3), M) == binary("*", M, Number(3))


def test_parentheses_are_kept_only_where_precedence_needs_them():
    assert text((M + N) * N) == "(m + n) * n"
    assert text(M + N * N) == "m + n * n"
    assert text(M - (N - 1)) == "m - (n - 1)"
    assert text(M // (N * 2)) == "m / (n * 2)"


@pytest.mark.parametrize(("m", "n"), [(1, 1), (129, 8), (4096, 12)])
def test_values_are_those_of_integers(m: int, n: int):
    expression = (M + 127) // 128 * N + M % N
    assert evaluate(expression, {"m": m, "n": n}) == (m + 127) // 128 * n + m % n
