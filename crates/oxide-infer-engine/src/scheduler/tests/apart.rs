//! Steps of prompts or of generated tokens. The executor fails a test in which a token that is read was computed as the
//! other of the two.

use super::audit::audit_idle;
use super::harness::{Harness, limits, request};
use crate::batch::{ExecutorLimits, StepKind, StepMix};
use crate::request::EngineRequest;
use crate::scheduler::Scheduled;
use oxide_infer::TokenId;
use std::num::NonZeroU32;
use std::sync::Arc;

fn apart(limits: ExecutorLimits) -> Harness {
    Harness::new(ExecutorLimits { step_mix: StepMix::Apart, ..limits })
}

/// The kind of every step, and its rows' numbers of tokens, to the end of all requests.
fn steps(harness: &mut Harness) -> Vec<(StepKind, Vec<usize>)> {
    let mut steps = Vec::new();
    while harness.turn() == Scheduled::Step {
        let rows = harness.batch.rows.iter().map(|row| row.tokens.len()).collect();
        steps.push((harness.batch.kind, rows));
    }
    steps
}

fn finish(mut harness: Harness) {
    harness.finish_all();
    harness.check_answers();
    audit_idle(&harness.scheduler);
}

#[test]
fn prompts_and_generated_tokens_take_turns() {
    use StepKind::{Generated, Prompt};
    let mut harness = apart(limits());
    harness.add(request([1, 2, 3], 4)).unwrap();
    harness.turn();
    harness.add(request(0..70, 2)).unwrap();
    harness.add(request([9], 2)).unwrap();
    let expected = [
        (Generated, vec![1]),
        (Prompt, vec![32]),
        (Generated, vec![1]),
        (Prompt, vec![32]),
        (Generated, vec![1]),
        // A prompt of one token is a prompt.
        (Prompt, vec![6, 1]),
        (Generated, vec![1, 1]),
    ];
    assert_eq!(steps(&mut harness), expected);
    finish(harness);
}

#[test]
fn what_a_preempted_sequence_had_generated_is_computed_again_in_rows_of_its_own() {
    use StepKind::{Generated, Prompt};
    for steps_in_flight in [1, 2] {
        let mut harness = apart(ExecutorLimits { num_pages: 8, steps_in_flight, ..limits() });
        harness.add(request(0..9, 20)).unwrap();
        let newest = harness.add(request(100..109, 20)).unwrap();
        while harness.scheduler.stats().preemptions == 0 {
            harness.turn();
        }
        let mut again = Vec::new();
        loop {
            let in_flight = harness.scheduler.steps_in_flight();
            match harness.turn() {
                Scheduled::Nothing if in_flight == 0 => break,
                Scheduled::Nothing => continue,
                Scheduled::Step => {}
            }
            let rows = harness.batch.rows.iter().map(|row| row.tokens.len()).collect::<Vec<_>>();
            if harness.batch.kind == Prompt || rows.len() > 1 {
                again.push((harness.batch.kind, rows));
            }
        }
        // What is left of its prompt in the cache is not computed. Of what it had generated, a step computes what a page of
        // four holds: after a prompt of 9 tokens three, and four from then on.
        assert!(matches!(&again[0], (Prompt, rows) if rows.len() == 1 && rows[0] <= 9), "{again:?}");
        assert!(again[1..].iter().all(|(kind, rows)| *kind == Generated && rows.iter().all(|&len| len == 1)));
        let generated = harness.clients[&newest].choices[0].tokens.len();
        assert!(generated > 7, "{generated}");
        assert_eq!(again[1..3].iter().map(|(_, rows)| rows.len()).collect::<Vec<_>>(), [3, 4]);
        finish(harness);
    }
}

#[test]
fn a_prompt_that_continues_an_answer_finds_the_pages_of_the_first_prompt_only() {
    let mut harness = apart(limits());
    // Ten tokens are two full pages of four; the third is filled by the answer, and so are the next.
    let first = harness.add(request(0..10, 9)).unwrap();
    harness.finish_all();
    let client = &harness.clients[&first];
    let turns = [&client.request.prompt, &client.choices[0].tokens[..], &[TokenId(5)]].concat();
    let second = harness.add(EngineRequest { prompt: Arc::from(turns), ..request([], 2) }).unwrap();
    harness.finish_all();
    assert_eq!(harness.clients[&second].prompt.as_ref().unwrap().0, 8);
    // Now its own prompt is cached, the answer of the first within.
    let turns = harness.clients[&second].request.prompt.clone();
    let third = harness.add(EngineRequest { prompt: turns, ..request([], 2) }).unwrap();
    harness.finish_all();
    assert_eq!(harness.clients[&third].prompt.as_ref().unwrap().0, 16);
    finish(harness);
}

#[test]
fn choices_that_are_computed_one_after_the_other_have_their_own_tokens() {
    for steps_in_flight in [1, 2] {
        let mut harness = apart(ExecutorLimits { num_pages: 4, steps_in_flight, ..limits() });
        let choices = NonZeroU32::new(4).unwrap();
        harness.add(EngineRequest { choices, ..request(0..8, 8) }).unwrap();
        harness.finish_all();
        assert!(harness.scheduler.stats().preemptions > 0);
        finish(harness);
    }
}
