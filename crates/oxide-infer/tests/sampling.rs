//! The sampler against probabilities that numpy gave, rules worked by hand, and its own promises as properties.

use oxide_infer::TokenId;
use oxide_infer::sampling::{
    Draw, LogitsRow, SamplingError, SamplingParams, SamplingParamsError, TokenHistory, TokenMask, argmax,
    distribution, log_probabilities, sample,
};
use proptest::prelude::*;
use serde_json::Value;

fn data() -> Value {
    let all: Value = serde_json::from_str(include_str!("data/operators.json")).unwrap();
    all["sampling"].clone()
}

/// The logits of the data: twelve numbers in [−5, 5).
fn logits() -> Vec<f32> {
    let word = |i: u64| ((i * 7919 + 15 * 104_729 + 13) * 2_654_435_761) % (1 << 32);
    (0..12).map(|i| ((word(i) >> 8) as f64 / f64::from(1 << 23) - 1.0) as f32 * 5.0).collect()
}

fn row<'a>(logits: &'a [f32], params: &'a SamplingParams, history: &'a TokenHistory) -> LogitsRow<'a> {
    LogitsRow { logits, params, history, mask: None, choice: 0, position: 0, top_logprobs: None }
}

/// Probabilities of all tokens, 0 for those that are not kept.
fn spread(row: &LogitsRow<'_>) -> Vec<f64> {
    let mut all = vec![0.0; row.logits.len()];
    for (token, probability) in distribution(row).unwrap() {
        all[token.index()] = probability;
    }
    all
}

#[test]
fn each_filter_keeps_the_probabilities_that_numpy_gives() {
    let defaults = SamplingParams::default;
    let penalties = SamplingParams {
        repetition_penalty: 1.5,
        presence_penalty: 0.5,
        frequency_penalty: 0.25,
        ..defaults()
    };
    let cases = [
        ("plain", defaults()),
        ("temperature", SamplingParams { temperature: 2.5, ..defaults() }),
        ("top_k", SamplingParams { top_k: Some(4), ..defaults() }),
        ("top_p", SamplingParams { top_p: 0.8, ..defaults() }),
        ("min_p", SamplingParams { min_p: 0.05, ..defaults() }),
        ("all", SamplingParams { temperature: 2.0, top_k: Some(8), top_p: 0.9, min_p: 0.1, ..defaults() }),
        ("penalties", penalties),
    ];
    // The prompt has 0, 1 and 2; the output has 5 twice and 2 once.
    let mut history = TokenHistory::new([0, 1, 2].map(TokenId));
    [5, 2, 5].into_iter().for_each(|token| history.push(TokenId(token)));
    let (logits, want) = (logits(), data());
    for (name, params) in cases {
        let got = spread(&row(&logits, &params, &history));
        for (token, want) in want[name].as_array().unwrap().iter().enumerate() {
            let want = want.as_f64().unwrap();
            assert!(
                (got[token] - want).abs() < 1e-6,
                "{name}: token {token} has {}, expected {want}",
                got[token]
            );
        }
    }
}

#[test]
fn log_probabilities_are_those_of_the_raw_logits_whatever_the_parameters() {
    let (logits, want) = (logits(), data());
    let params = SamplingParams {
        temperature: 0.0,
        logit_bias: [(TokenId(3), 100.0)].into(),
        ..SamplingParams::default()
    };
    let history = TokenHistory::default();
    let sampled = sample(&LogitsRow { top_logprobs: Some(3), ..row(&logits, &params, &history) }).unwrap();
    assert_eq!(sampled.token, TokenId(3), "the bias decides");
    let logprobs = sampled.logprobs.unwrap();
    let want = |token: usize| want["logprobs"][token].as_f64().unwrap() as f32;
    // In order of probability the tokens are 8, 3, 7, …
    assert_eq!((logprobs.chosen.token, logprobs.chosen.rank), (TokenId(3), 2));
    assert!((logprobs.chosen.logprob - want(3)).abs() < 1e-6);
    let top: Vec<_> = logprobs.top.iter().map(|top| (top.token.0, top.rank)).collect();
    assert_eq!(top, [(8, 1), (3, 2), (7, 3)]);
    for top in &logprobs.top {
        assert!((top.logprob - want(top.token.index())).abs() < 1e-6);
    }
}

#[test]
fn equal_logits_are_ranked_by_id() {
    let logits = [1.0, 2.0, 2.0, 0.5, 2.0];
    assert_eq!(argmax(&logits), Some(TokenId(1)));
    let ranks: Vec<_> =
        (0..5).map(|token| log_probabilities(&logits, TokenId(token), 0).unwrap().chosen.rank).collect();
    assert_eq!(ranks, [4, 1, 2, 5, 3]);
    let top: Vec<_> =
        log_probabilities(&logits, TokenId(0), 3).unwrap().top.iter().map(|top| top.token.0).collect();
    assert_eq!(top, [1, 2, 4]);

    let params = SamplingParams { top_k: Some(2), ..SamplingParams::default() };
    assert_eq!(spread(&row(&logits, &params, &TokenHistory::default())), [0.0, 0.5, 0.5, 0.0, 0.0]);
    // Three tokens of 2.0 have 7.389 / 26.53 = 0.2785 each: two reach 0.55, a third is needed for 0.56.
    for (top_p, kept) in [(0.55, 2), (0.56, 3)] {
        let params = SamplingParams { top_p, ..SamplingParams::default() };
        assert_eq!(distribution(&row(&logits, &params, &TokenHistory::default())).unwrap().len(), kept);
    }
}

#[test]
fn the_draw_picks_by_the_running_sum_in_order_of_id() {
    // Probabilities 1/2, 1/4, 1/4.
    let logits = [2f32.ln(), 0.0, 0.0];
    let history = TokenHistory::default();
    for position in 0..200 {
        let params = SamplingParams { seed: 7, ..SamplingParams::default() };
        let u = Draw { seed: 7, choice: 2, position, draw: 0 }.uniform();
        let want = if u < 0.5 {
            0
        } else if u < 0.75 {
            1
        } else {
            2
        };
        let got = sample(&LogitsRow { choice: 2, position, ..row(&logits, &params, &history) }).unwrap();
        assert_eq!(got.token, TokenId(want), "u = {u}");
    }
}

#[test]
fn repetition_divides_positive_and_multiplies_negative_logits_of_prompt_and_output() {
    let logits = [2.0, -2.0, 2.0, -2.0];
    let mut history = TokenHistory::new([TokenId(0)]);
    history.push(TokenId(1));
    let params = SamplingParams { repetition_penalty: 2.0, ..SamplingParams::default() };
    // The logits become 1, −4, 2, −2.
    let total = 1f64.exp() + (-4f64).exp() + 2f64.exp() + (-2f64).exp();
    let want = [1.0, -4.0, 2.0, -2.0].map(|l: f64| l.exp() / total);
    for (got, want) in spread(&row(&logits, &params, &history)).iter().zip(want) {
        assert!((got - want).abs() < 1e-12, "{got} {want}");
    }
}

#[test]
fn presence_and_frequency_read_the_output_alone() {
    let logits = [0.0, 0.0, 0.0];
    let mut history = TokenHistory::new([TokenId(0), TokenId(0)]);
    history.push(TokenId(1));
    history.push(TokenId(1));
    let params =
        SamplingParams { presence_penalty: 0.5, frequency_penalty: 0.25, ..SamplingParams::default() };
    // Token 1 becomes −1; 0 was only in the prompt.
    let total = 2.0 + (-1f64).exp();
    let got = spread(&row(&logits, &params, &history));
    assert!(
        (got[0] - 1.0 / total).abs() < 1e-12 && (got[1] - (-1f64).exp() / total).abs() < 1e-12,
        "{got:?}"
    );
}

#[test]
fn a_mask_forbids_whatever_the_bias_says() {
    let logits = [5.0, 1.0, 0.0];
    let mut mask = TokenMask::none(3);
    mask.allow(TokenId(1));
    mask.allow(TokenId(2));
    let params = SamplingParams { logit_bias: [(TokenId(0), 100.0)].into(), ..SamplingParams::default() };
    let history = TokenHistory::default();
    let masked = LogitsRow { mask: Some(&mask), ..row(&logits, &params, &history) };
    let kept: Vec<_> = distribution(&masked).unwrap().into_iter().map(|(token, _)| token.0).collect();
    assert_eq!(kept, [1, 2]);
}

#[test]
fn a_mask_covers_exactly_its_vocabulary() {
    let mask = TokenMask::from_words(vec![u32::MAX, u32::MAX], 40);
    assert_eq!(mask.words(), [u32::MAX, 0xff]);
    assert!(mask.allows(TokenId(39)) && !mask.allows(TokenId(40)) && !mask.allows(TokenId(4000)));
    assert_eq!(TokenMask::all(40), mask);
    assert_eq!(TokenMask::from_words(vec![], 40), TokenMask::none(40));
    assert_eq!(TokenMask::all(64).words(), [u32::MAX, u32::MAX]);
    let mut mask = mask;
    mask.forbid(TokenId(33));
    mask.forbid(TokenId(400));
    assert!(!mask.allows(TokenId(33)) && mask.allows(TokenId(32)));
}

#[test]
fn one_token_is_always_sampled() {
    let history = TokenHistory::default();
    for temperature in [0.0, 1e-30, 1.0, 1e30] {
        let params = SamplingParams { temperature, top_p: 1e-9, ..SamplingParams::default() };
        assert_eq!(sample(&row(&[-3.0], &params, &history)).unwrap().token, TokenId(0));
    }
}

#[test]
fn a_tiny_temperature_is_greedy_and_a_huge_one_is_even() {
    let (logits, history) = ([1.0, 3.0, 2.0], TokenHistory::default());
    let params = |temperature| SamplingParams { temperature, ..SamplingParams::default() };
    assert_eq!(spread(&row(&logits, &params(1e-30), &history)), [0.0, 1.0, 0.0]);
    assert!(spread(&row(&logits, &params(f32::MAX), &history)).iter().all(|p| (p - 1.0 / 3.0).abs() < 1e-12));
}

#[test]
fn rows_that_cannot_be_sampled_say_why() {
    let history = TokenHistory::default();
    let params = SamplingParams::default();
    let fails = |logits: &[f32]| sample(&row(logits, &params, &history)).unwrap_err();
    assert_eq!(fails(&[]), SamplingError::NoCandidate);
    assert_eq!(fails(&[f32::NEG_INFINITY; 3]), SamplingError::NoCandidate);
    assert_eq!(
        fails(&[0.0, f32::INFINITY]),
        SamplingError::Logit { token: TokenId(1), value: f32::INFINITY }
    );
    assert_eq!(fails(&[f32::NAN]).to_string(), "the logit of token 0 must be finite or −∞, got NaN");
    let mask = TokenMask::all(3);
    let masked = LogitsRow { mask: Some(&mask), ..row(&[0.0, 1.0], &params, &history) };
    assert_eq!(sample(&masked).unwrap_err(), SamplingError::MaskSize { expected: 2, got: 3 });
    assert_eq!(
        log_probabilities(&[0.0, 1.0], TokenId(2), 1).unwrap_err(),
        SamplingError::Token { token: TokenId(2), vocab_size: 2 }
    );
}

#[test]
fn parameters_out_of_range_are_named_with_the_range_and_the_value() {
    let defaults = SamplingParams::default;
    let says = |params: SamplingParams| params.validate(100).unwrap_err().to_string();
    assert_eq!(defaults().validate(0), Ok(()));
    assert_eq!(
        says(SamplingParams { temperature: -0.5, ..defaults() }),
        "temperature must be a finite number of at least 0, got -0.5"
    );
    assert!(says(SamplingParams { temperature: f32::NAN, ..defaults() }).ends_with("got NaN"));
    assert_eq!(says(SamplingParams { top_p: 0.0, ..defaults() }), "top_p must be in (0, 1], got 0");
    assert_eq!(says(SamplingParams { top_p: 1.5, ..defaults() }), "top_p must be in (0, 1], got 1.5");
    assert_eq!(says(SamplingParams { min_p: -0.1, ..defaults() }), "min_p must be in [0, 1], got -0.1");
    assert!(says(SamplingParams { top_k: Some(0), ..defaults() }).starts_with("top_k must be at least 1"));
    assert!(says(SamplingParams { repetition_penalty: 0.0, ..defaults() }).starts_with("repetition_penalty"));
    assert!(says(SamplingParams { presence_penalty: f32::INFINITY, ..defaults() }).starts_with("presence"));
    assert!(says(SamplingParams { frequency_penalty: f32::NAN, ..defaults() }).starts_with("frequency"));
    let biased = |token, bias| SamplingParams { logit_bias: [(TokenId(token), bias)].into(), ..defaults() };
    assert_eq!(
        biased(100, 1.0).validate(100),
        Err(SamplingParamsError::BiasToken { token: TokenId(100), vocab_size: 100 })
    );
    assert!(biased(99, f32::NAN).validate(100).is_err());
    assert_eq!(biased(99, -100.0).validate(100), Ok(()));
}

prop_compose! {
    fn params()(
        temperature in prop_oneof![Just(0.0f32), 0.05f32..3.0],
        top_k in proptest::option::of(1u32..40),
        top_p in 0.01f32..=1.0,
        min_p in 0.0f32..=1.0,
        repetition_penalty in 0.5f32..2.0,
        presence_penalty in -2.0f32..2.0,
        frequency_penalty in -2.0f32..2.0,
        bias in proptest::collection::vec((0u32..30, -10.0f32..10.0), 0..4),
        seed: u64,
    ) -> SamplingParams {
        let logit_bias = bias.into_iter().map(|(token, bias)| (TokenId(token), bias)).collect();
        SamplingParams {
            temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, logit_bias, seed,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_sampled_token_is_one_that_is_kept_and_the_filters_keep_what_they_promise(
        logits in proptest::collection::vec(-20.0f32..20.0, 30),
        allowed in proptest::collection::vec(any::<bool>(), 30),
        used in proptest::collection::vec(0u32..30, 0..20),
        params in params(),
        (choice, position) in (0u32..4, any::<u64>()),
    ) {
        let mut mask = TokenMask::none(30);
        allowed.iter().zip(0u32..).filter(|(allowed, _)| **allowed).for_each(|(_, t)| mask.allow(TokenId(t)));
        mask.allow(TokenId(11));
        let mut history = TokenHistory::default();
        used.into_iter().for_each(|token| history.push(TokenId(token)));
        let row = LogitsRow { mask: Some(&mask), choice, position, ..row(&logits, &params, &history) };

        let kept = distribution(&row).unwrap();
        prop_assert!(kept.iter().all(|&(token, _)| mask.allows(token)));
        prop_assert!(kept.windows(2).all(|pair| pair[0].0 < pair[1].0));
        prop_assert!((kept.iter().map(|(_, p)| p).sum::<f64>() - 1.0).abs() < 1e-9);
        prop_assert!(params.top_k.is_none_or(|k| kept.len() <= k as usize));
        let best = kept.iter().map(|(_, p)| *p).fold(0.0, f64::max);
        prop_assert!(kept.iter().all(|(_, p)| *p >= best * f64::from(params.min_p) * (1.0 - 1e-12)));

        let sampled = sample(&row).unwrap();
        prop_assert!(kept.iter().any(|&(token, _)| token == sampled.token));
        prop_assert_eq!(sample(&row).unwrap(), sampled, "the same names give the same token");
    }
}
