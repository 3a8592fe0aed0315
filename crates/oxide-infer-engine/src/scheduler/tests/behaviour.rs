//! What each step holds.

use super::audit::audit_idle;
use super::harness::{Harness, limits, request};
use crate::batch::{EngineBatch, ExecutorLimits, RowInput, StepOutput};
use crate::kv::PrefixCache;
use crate::request::{ChoiceIndex, EngineRequest, EosPolicy, FinishReason, Masking, RequestError, RequestId};
use crate::scheduler::{Scheduled, Scheduler};
use crate::testing::scripted::ScriptedExecutor;
use oxide_infer::TokenId;
use oxide_infer::sampling::{SamplingError, SamplingParams, TokenMask};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Instant;

fn overlapped() -> ExecutorLimits {
    ExecutorLimits { steps_in_flight: 2, ..limits() }
}

fn with_choices(choices: u32, request: EngineRequest) -> EngineRequest {
    let sampling = Arc::new(SamplingParams { seed: 3, ..Default::default() });
    EngineRequest { choices: NonZeroU32::new(choices).unwrap(), sampling, ..request }
}

/// Tokens of each row of the step that was scheduled last.
fn row_lengths(harness: &Harness) -> Vec<usize> {
    harness.batch.rows.iter().map(|row| row.tokens.len()).collect()
}

/// Runs to the end and returns the rows' lengths of every step.
fn steps(harness: &mut Harness) -> Vec<Vec<usize>> {
    let mut steps = Vec::new();
    while harness.turn() == Scheduled::Step {
        steps.push(row_lengths(harness));
    }
    steps
}

fn tokens(harness: &Harness, id: RequestId) -> usize {
    harness.clients[&id].choices.iter().map(|choice| choice.tokens.len()).sum()
}

fn finish(harness: &mut Harness) {
    harness.finish_all();
    harness.check_answers();
    audit_idle(&harness.scheduler);
}

#[test]
fn a_prompt_longer_than_the_budget_is_computed_in_chunks() {
    let mut harness = Harness::new(limits());
    harness.add(request(0..100, 2)).unwrap();
    assert_eq!(steps(&mut harness), [[32], [32], [32], [4], [1]]);
    finish(&mut harness);
}

#[test]
fn every_running_sequence_decodes_in_every_step_while_a_long_prompt_is_computed() {
    let mut harness = Harness::new(limits());
    let short: Vec<_> = (0..3).map(|first| harness.add(request([first], 60)).unwrap()).collect();
    harness.turn();
    harness.add(request(0..120, 4)).unwrap();
    // 120 tokens at 29 a step, which three decodes leave of 32.
    for chunk in [29, 29, 29, 29, 4] {
        let before: Vec<_> = short.iter().map(|id| tokens(&harness, *id)).collect();
        harness.turn();
        assert_eq!(row_lengths(&harness), [1, 1, 1, chunk]);
        let after: Vec<_> = short.iter().map(|id| tokens(&harness, *id)).collect();
        assert!(before.iter().zip(&after).all(|(before, after)| before + 1 == *after));
    }
    finish(&mut harness);
}

#[test]
fn requests_start_in_the_order_in_which_they_came_even_if_a_later_one_would_fit() {
    let mut harness = Harness::new(ExecutorLimits { num_pages: 10, ..limits() });
    let running = harness.add(request(0..20, 6)).unwrap();
    harness.turn();
    let large = harness.add(request(100..124, 2)).unwrap();
    let small = harness.add(request([7], 1)).unwrap();
    while !harness.clients[&running].ended {
        assert!(!harness.clients[&small].started);
        harness.turn();
    }
    harness.turn();
    assert!(harness.clients[&large].started && harness.clients[&small].started);
    finish(&mut harness);
}

#[test]
fn a_request_that_came_first_ends_although_new_ones_never_stop_coming() {
    let mut harness = Harness::new(ExecutorLimits { num_pages: 8, max_sequences: 3, ..limits() });
    for first in 0..4 {
        harness.add(request([first, 1, 2], 5)).unwrap();
    }
    let patient = harness.add(request(200..220, 8)).unwrap();
    let mut turns = 0;
    while !harness.clients[&patient].ended {
        harness.add(request([turns % 50, 9], 6)).unwrap();
        harness.turn();
        turns += 1;
        assert!(turns < 100, "it starves");
    }
    let last = *harness.clients.keys().last().unwrap();
    (0..=last.0).map(RequestId).filter(|id| *id != patient).for_each(|id| harness.cancel(id));
    finish(&mut harness);
}

#[test]
fn the_next_step_is_scheduled_before_the_last_token_is_known() {
    let mut harness = Harness::new(overlapped());
    harness.add(request(0..5, 3)).unwrap();
    assert_eq!((harness.schedule(), harness.schedule()), (Scheduled::Step, Scheduled::Step));
    assert_eq!(harness.batch.rows[0].input, RowInput::LastSampled);
    assert_eq!((harness.batch.positions[0], harness.batch.rows[0].kv_len), (5, 6));
    assert_eq!(harness.batch.samples[0].position, 6);
    finish(&mut harness);
}

#[test]
fn no_step_is_wasted_on_a_sequence_that_ends_by_length() {
    let mut harness = Harness::new(overlapped());
    harness.add(request(0..5, 3)).unwrap();
    assert_eq!(steps(&mut harness), [[5], [1], [1]]);
    finish(&mut harness);
}

#[test]
fn the_token_after_an_end_of_sequence_is_dropped() {
    let executor = |limits| ScriptedExecutor::new(limits).answering([10, 11, 12, 13].map(TokenId));
    for (limits, expected_steps) in [(limits(), 3), (overlapped(), 4)] {
        let mut harness = Harness::with(limits, PrefixCache::Enabled, executor(limits));
        let mut request = request(0..5, 20);
        request.stop.eos_token_ids = Arc::from([TokenId(12)]);
        let id = harness.add(request).unwrap();
        assert_eq!(steps(&mut harness).len(), expected_steps);
        harness.run();
        let choice = &harness.clients[&id].choices[0];
        assert_eq!(choice.tokens, [10, 11, 12].map(TokenId));
        assert_eq!(choice.finished, Some(FinishReason::EndOfSequence));
        assert_eq!(harness.scheduler.stats().generation_tokens, 3);
        audit_idle(&harness.scheduler);
    }
}

#[test]
fn stop_tokens_end_an_answer_and_ignored_end_of_sequence_tokens_do_not() {
    let executor = ScriptedExecutor::new(limits()).answering([10, 11, 12, 13].map(TokenId));
    let mut harness = Harness::with(limits(), PrefixCache::Enabled, executor);
    let mut request = request(0..5, 20);
    request.stop.eos_token_ids = Arc::from([TokenId(11)]);
    request.stop.eos = EosPolicy::Ignore;
    request.stop.stop_token_ids = Arc::from([TokenId(12)]);
    let id = harness.add(request).unwrap();
    harness.run();
    let choice = &harness.clients[&id].choices[0];
    assert_eq!(choice.tokens, [10, 11, 12].map(TokenId));
    assert_eq!(choice.finished, Some(FinishReason::StopToken(TokenId(12))));
}

#[test]
fn no_ending_is_sampled_before_min_tokens() {
    let executor = ScriptedExecutor::new(limits()).answering([TokenId(10)]);
    let mut harness = Harness::with(limits(), PrefixCache::Enabled, executor);
    let mut request = request(0..5, 20);
    request.stop.eos_token_ids = Arc::from([TokenId(10)]);
    request.stop.stop_token_ids = Arc::from([TokenId(11)]);
    request.stop.min_tokens = 3;
    let id = harness.add(request).unwrap();
    harness.run();
    // 10 and 11 are forbidden three times, so the executor takes the next id.
    assert_eq!(harness.clients[&id].choices[0].tokens, [12, 12, 12, 10].map(TokenId));
}

#[test]
fn max_tokens_0_computes_the_prompt_and_samples_nothing() {
    for limits in [limits(), overlapped()] {
        let mut harness = Harness::new(limits);
        let id = harness.add(with_choices(2, request(0..40, 0))).unwrap();
        assert_eq!(steps(&mut harness), [[32], [8]]);
        finish(&mut harness);
        assert_eq!(harness.clients[&id].prompt, Some((0, None)));
        assert_eq!(harness.clients[&id].choices[1].finished, Some(FinishReason::Length));
    }
}

#[test]
fn max_tokens_1_takes_one_step_and_one_token() {
    let mut harness = Harness::new(overlapped());
    let id = harness.add(request(0..4, 1)).unwrap();
    assert_eq!(steps(&mut harness), [[4]]);
    assert_eq!(tokens(&harness, id), 1);
    finish(&mut harness);
}

#[test]
fn an_answer_stops_at_the_models_length() {
    let mut harness = Harness::new(overlapped());
    let one_left = harness.add(request(0..127, 50)).unwrap();
    let some_left = harness.add(request(0..120, 50)).unwrap();
    finish(&mut harness);
    assert_eq!((tokens(&harness, one_left), tokens(&harness, some_left)), (1, 8));
}

#[test]
fn a_prompt_of_whole_pages_takes_its_next_page_with_its_first_decode() {
    let mut harness = Harness::new(limits());
    harness.add(request(0..8, 3)).unwrap();
    harness.turn();
    assert_eq!(harness.scheduler.pager.used(), 2);
    harness.turn();
    assert_eq!(harness.scheduler.pager.used(), 3);
    finish(&mut harness);
}

#[test]
fn choices_share_one_computation_of_the_prompt_and_copy_only_its_last_page() {
    for limits in [limits(), overlapped()] {
        let mut harness = Harness::new(limits);
        harness.add(with_choices(3, request(0..10, 4))).unwrap();
        harness.schedule();
        assert_eq!((row_lengths(&harness), harness.batch.samples.len()), (vec![10], 3));
        assert_eq!(harness.scheduler.pager.used(), 3);
        harness.settle();
        harness.schedule();
        // The last to write keeps the shared page.
        assert_eq!((row_lengths(&harness), harness.batch.page_copies.len()), (vec![1, 1, 1], 2));
        assert_eq!(harness.scheduler.pager.used(), 5);
        harness.settle();
        harness.schedule();
        assert_eq!(harness.batch.page_copies, []);
        finish(&mut harness);
    }
}

#[test]
fn choices_of_a_prompt_of_whole_pages_copy_nothing() {
    let mut harness = Harness::new(limits());
    harness.add(with_choices(3, request(0..8, 4))).unwrap();
    harness.turn();
    harness.turn();
    assert_eq!(harness.batch.page_copies, []);
    assert_eq!(harness.scheduler.pager.used(), 2 + 3);
    finish(&mut harness);
}

#[test]
fn a_choice_that_the_host_ends_frees_its_pages_and_the_others_go_on() {
    let mut harness = Harness::new(overlapped());
    let id = harness.add(with_choices(2, request(0..10, 9))).unwrap();
    harness.end_choice(id, ChoiceIndex(1));
    assert_eq!(harness.clients[&id].choices[1].finished, None, "it has no token yet");
    (0..4).for_each(|_| _ = harness.turn());
    let used = harness.scheduler.pager.used();
    harness.end_choice(id, ChoiceIndex(1));
    assert_eq!(harness.clients[&id].choices[1].finished, Some(FinishReason::Host));
    assert!(harness.scheduler.pager.used() < used);
    finish(&mut harness);
    assert_eq!(harness.clients[&id].choices[0].tokens.len(), 9);
}

#[test]
fn a_prompt_that_begins_like_an_earlier_one_computes_only_the_rest() {
    let mut harness = Harness::new(limits());
    harness.add(request(0..18, 1)).unwrap();
    harness.run();
    let id = harness.add(request((0..13).chain([99]), 2)).unwrap();
    assert_eq!(steps(&mut harness), [[2], [1]]);
    assert_eq!(harness.clients[&id].prompt, Some((12, None)));
    let stats = harness.scheduler.stats();
    assert_eq!((stats.prefix_cache_queries, stats.prefix_cache_hits), (18 + 14, 12));
    finish(&mut harness);
}

#[test]
fn a_prompt_that_is_cached_whole_still_computes_its_last_page() {
    let mut harness = Harness::new(limits());
    harness.add(request(0..8, 1)).unwrap();
    harness.run();
    harness.add(request(0..8, 1)).unwrap();
    assert_eq!(steps(&mut harness), [[4]]);
    finish(&mut harness);
}

#[test]
fn an_answers_pages_are_reused_by_a_prompt_that_continues_it() {
    let mut harness = Harness::new(overlapped());
    let id = harness.add(request(0..6, 7)).unwrap();
    harness.run();
    let answer = harness.clients[&id].choices[0].tokens.clone();
    // Twelve of the thirteen tokens have been fed back: three pages.
    let next =
        harness.add(request((0..6).chain(answer.iter().map(|token| token.0)).chain([1, 2]), 1)).unwrap();
    harness.run();
    assert_eq!(harness.clients[&next].prompt, Some((12, None)));
    finish(&mut harness);
}

#[test]
fn a_prompt_whose_logprobs_are_asked_for_bypasses_the_cache_and_feeds_it() {
    let mut harness = Harness::new(overlapped());
    let mut scored = request(0..70, 2);
    scored.prompt_logprobs = Some(2);
    for _ in 0..2 {
        let id = harness.add(scored.clone()).unwrap();
        assert_eq!(steps(&mut harness)[..3], [[32], [32], [6]]);
        assert_eq!(harness.clients[&id].prompt.as_ref().unwrap().1.as_ref().unwrap().len(), 69);
    }
    assert_eq!(harness.scheduler.stats().prefix_cache_queries, 0);
    harness.add(request(0..70, 1)).unwrap();
    assert_eq!(steps(&mut harness), [[2]]);
    finish(&mut harness);
}

#[test]
fn when_pages_run_out_the_newest_gives_way_and_is_computed_again() {
    for limits in [limits(), overlapped()] {
        let mut harness = Harness::new(ExecutorLimits { num_pages: 8, ..limits });
        let oldest = harness.add(request(0..9, 20)).unwrap();
        let newest = harness.add(request(100..109, 20)).unwrap();
        while harness.scheduler.stats().preemptions == 0 {
            assert_eq!(harness.turn(), Scheduled::Step);
        }
        assert_eq!(harness.batch.rows.len(), 1, "the oldest goes on");
        let given_way = tokens(&harness, newest);
        while !harness.clients[&oldest].ended {
            harness.turn();
        }
        assert!(tokens(&harness, newest) <= given_way + 1, "it waits until there are pages for all of it");
        finish(&mut harness);
        assert_eq!(harness.scheduler.stats().preemptions, 1);
    }
}

#[test]
fn choices_that_do_not_fit_at_once_are_computed_one_after_the_other() {
    for limits in [limits(), overlapped()] {
        let mut harness = Harness::new(ExecutorLimits { num_pages: 4, ..limits });
        harness.add(with_choices(4, request(0..6, 10))).unwrap();
        finish(&mut harness);
        assert!(harness.scheduler.stats().preemptions > 0);
    }
}

#[test]
fn a_newcomer_waits_until_those_that_run_have_a_page_to_spare() {
    let mut harness = Harness::new(ExecutorLimits { num_pages: 4, ..limits() });
    // Has two pages and will take a third; the newcomer needs the two that are left.
    let first = harness.add(request(0..5, 6)).unwrap();
    harness.turn();
    harness.add(request(100..108, 2)).unwrap();
    while !harness.clients[&first].ended {
        assert_eq!(harness.scheduler.stats().running, 1);
        harness.turn();
    }
    finish(&mut harness);
    assert_eq!(harness.scheduler.stats().preemptions, 0);
}

#[test]
fn a_row_waits_for_its_mask_and_holds_nobody_up() {
    for limits in [limits(), overlapped()] {
        let mut harness = Harness::new(limits);
        let mut masked = request(0..9, 3);
        masked.masking = Masking::PerToken;
        let masked = harness.add(masked).unwrap();
        let free = harness.add(request([1, 2], 12)).unwrap();
        harness.run();
        // All of its prompt but the last token is computed meanwhile.
        assert_eq!((tokens(&harness, masked), harness.clients[&free].ended), (0, true));
        harness.supply_mask(masked, ChoiceIndex(0));
        harness.schedule();
        assert_eq!((row_lengths(&harness), harness.batch.samples[0].mask.is_some()), (vec![1], true));
        harness.run();
        assert_eq!(tokens(&harness, masked), 1);
        finish(&mut harness);
    }
}

#[test]
fn a_mask_for_another_token_than_the_next_is_not_used() {
    let mut harness = Harness::new(limits());
    let mut masked = request(0..3, 3);
    masked.masking = Masking::PerToken;
    let id = harness.add(masked).unwrap();
    harness.scheduler.supply_mask(id, ChoiceIndex(0), 1, Arc::new(TokenMask::all(1000)));
    harness.run();
    assert_eq!(tokens(&harness, id), 0);
    harness.supply_mask(id, ChoiceIndex(0));
    harness.run();
    harness.scheduler.supply_mask(id, ChoiceIndex(0), 0, Arc::new(TokenMask::all(1000)));
    harness.run();
    assert_eq!(tokens(&harness, id), 1);
    finish(&mut harness);
}

#[test]
fn a_mask_that_comes_before_the_last_token_is_known_lets_the_row_go_on() {
    let mut harness = Harness::new(overlapped());
    let mut masked = request(0..3, 2);
    masked.masking = Masking::PerToken;
    let id = harness.add(masked).unwrap();
    harness.supply_mask(id, ChoiceIndex(0));
    harness.schedule();
    let mut only_7 = TokenMask::none(1000);
    only_7.allow(TokenId(7));
    harness.scheduler.supply_mask(id, ChoiceIndex(0), 1, Arc::new(only_7));
    assert_eq!(harness.schedule(), Scheduled::Step);
    assert_eq!(harness.batch.rows[0].input, RowInput::LastSampled);
    harness.run();
    assert_eq!(harness.clients[&id].choices[0].tokens[1], TokenId(7));
}

#[test]
fn a_mask_that_allows_only_endings_goes_before_min_tokens() {
    let mut harness = Harness::new(limits());
    let mut masked = request(0..3, 9);
    masked.masking = Masking::PerToken;
    masked.stop.min_tokens = 5;
    masked.stop.eos_token_ids = Arc::from([TokenId(4), TokenId(4)]);
    let id = harness.add(masked).unwrap();
    let mut only_end = TokenMask::none(1000);
    only_end.allow(TokenId(4));
    harness.scheduler.supply_mask(id, ChoiceIndex(0), 0, Arc::new(only_end));
    harness.run();
    assert_eq!(harness.clients[&id].choices[0].finished, Some(FinishReason::EndOfSequence));
    audit_idle(&harness.scheduler);
}

#[test]
fn a_cancelled_request_holds_nothing_from_then_on() {
    for turns in 0..6 {
        let mut harness = Harness::new(overlapped());
        let id = harness.add(with_choices(2, request(0..70, 20))).unwrap();
        (0..turns).for_each(|_| _ = harness.turn());
        harness.cancel(id);
        assert_eq!(harness.scheduler.pager.used(), 0);
        assert_eq!(harness.scheduler.stats().finished_cancelled, 2);
        harness.run();
        audit_idle(&harness.scheduler);
    }
}

#[test]
fn a_request_that_can_sample_no_token_fails_alone() {
    let mut harness = Harness::new(overlapped());
    let mut hopeless = request(0..3, 9);
    hopeless.stop.stop_token_ids = (0..1000).map(TokenId).collect();
    hopeless.stop.min_tokens = 1;
    let hopeless = harness.add(hopeless).unwrap();
    let other = harness.add(request(0..3, 9)).unwrap();
    harness.run();
    assert_eq!(harness.clients[&hopeless].failed, Some(RequestError::Sampling(SamplingError::NoCandidate)));
    assert_eq!(tokens(&harness, other), 9);
    audit_idle(&harness.scheduler);
}

#[test]
fn an_output_that_does_not_fit_its_step_is_an_error() {
    let mut scheduler = Scheduler::new(limits(), PrefixCache::Enabled);
    let mut output = StepOutput::default();
    assert!(scheduler.settle(&mut output, Instant::now()).is_err());
    scheduler.add(RequestId(0), request(0..3, 2), Instant::now());
    scheduler.schedule(&mut EngineBatch::default(), Instant::now());
    let error = scheduler.settle(&mut output, Instant::now()).unwrap_err();
    assert_eq!(error.message, "the executor's output has 0 samples where the step asked for 1");
}
