"""The parity rule on numbers worked by hand."""

import math

import pytest
from metrics import Steps, differing, noise_of, percentile, ratio, verdict


def steps(argmax, margin, max_error=None, mean_error=None, kl=None):
    zeros = [0.0] * len(argmax)
    return Steps(argmax, margin, margin, max_error or zeros, mean_error or zeros, kl or zeros)


def test_a_percentile_is_a_value_that_occurs():
    assert percentile([3.0, 1.0, 2.0, 4.0], 50) == 2.0
    assert percentile([3.0, 1.0, 2.0, 4.0], 100) == 4.0
    assert percentile([5.0], 0.1) == 5.0
    # 99.9% of 1000 values are 999 of them: the largest alone may lie above.
    assert percentile([float(i) for i in range(1, 1001)], 99.9) == 999.0
    assert percentile([float(i) for i in range(1, 4097)], 99.9) == 4092.0


def test_a_percentile_of_nothing_or_out_of_range_is_refused():
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)
    with pytest.raises(ValueError, match="got 0"):
        percentile([1.0], 0)


def test_noise_counts_a_swap_of_the_two_best_tokens_in_full():
    reference = steps([1, 1], [0.5, 2.0])
    bf16 = steps([2, 1], [-0.25, 2.1])
    assert noise_of(reference, bf16) == 0.75


def test_only_steps_over_the_noise_must_have_the_same_token():
    reference = steps([1, 2, 3], [0.1, 0.3, 0.2])
    assert differing(reference, steps([9, 2, 3], [0.0, 0.3, 0.2]), noise=0.2) == []
    assert differing(reference, steps([9, 9, 9], [0.0, 0.0, 0.0]), noise=0.2) == [1]


def test_ratios_of_nothing_are_defined():
    assert ratio(0.0, 0.0) == 1.0
    assert ratio(1.0, 0.0) == math.inf
    assert ratio(1.0, 2.0) == 0.5


def test_the_verdict_passes_what_is_as_good_as_bf16_and_names_what_is_not():
    reference = steps([1, 2], [1.0, 3.0])
    bf16 = steps([1, 2], [0.9, 3.2], max_error=[0.2, 0.4], mean_error=[0.1, 0.3], kl=[0.01, 0.03])
    good = steps([1, 2], [1.0, 3.0], max_error=[0.43, 0.1], mean_error=[0.2, 0.2], kl=[0.0, 0.0])
    found = verdict(reference, bf16, good)
    assert found["failures"] == []
    assert (found["steps"], found["steps_over_noise"], found["differing"]) == (2, 2, 0)
    assert found["error_ratios"]["max"] == pytest.approx(1.075)
    assert found["error_ratios"]["mean"] == pytest.approx(1.0)

    bad = steps([1, 7], [1.0, -1.0], max_error=[0.5, 0.5], mean_error=[0.1, 0.1], kl=[0.0, math.nan])
    failures = verdict(reference, bf16, bad)["failures"]
    assert failures[0] == "step 1: token 7 where float32 has 2"
    assert [failure.split()[0] for failure in failures[1:]] == ["max", "kl"]
