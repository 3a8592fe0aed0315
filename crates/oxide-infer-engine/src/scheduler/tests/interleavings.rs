//! Random interleavings of everything that can happen, against a model without pages, batches or steps.

use super::audit::audit_idle;
use super::harness::Harness;
use crate::batch::{ExecutorLimits, StepMix};
use crate::kv::PrefixCache;
use crate::request::{ChoiceIndex, EngineRequest, EosPolicy, Masking, Pooling, RequestId, StopConditions};
use crate::testing::scripted::{SMALL_LIMITS, ScriptedExecutor};
use oxide_infer::TokenId;
use oxide_infer::sampling::SamplingParams;
use proptest::prelude::*;
use std::num::NonZeroU32;
use std::sync::Arc;

const VOCAB: usize = 40;

/// What happens next. Numbers name a request or a choice, modulo how many there are.
#[derive(Clone, Debug)]
enum Event {
    Add(Box<EngineRequest>),
    /// A request whose prompt goes on with what an earlier one had and has been answered so far.
    FollowUp(usize, Box<EngineRequest>),
    Schedule,
    Settle,
    Turn,
    Cancel(usize),
    EndChoice(usize, usize),
    Mask(usize, usize),
    AllMasks,
}

fn limits() -> impl Strategy<Value = ExecutorLimits> {
    let step_mix = prop::sample::select(vec![StepMix::Mixed, StepMix::Apart]);
    (1usize..6, 3usize..24, 1usize..6, 0usize..12, 8usize..40, 1usize..4, step_mix).prop_map(
        |(page_size, num_pages, max_sequences, extra_tokens, max_model_len, steps_in_flight, step_mix)| {
            ExecutorLimits {
                page_size,
                num_pages,
                max_sequences,
                max_batch_tokens: max_sequences + extra_tokens,
                max_model_len,
                vocab_size: VOCAB,
                max_logprobs: u32::MAX,
                hidden_size: SMALL_LIMITS.hidden_size,
                steps_in_flight,
                step_mix,
            }
        },
    )
}

/// Prompts that often begin alike.
fn prompt() -> impl Strategy<Value = Arc<[TokenId]>> {
    (0u32..2, 0usize..20, prop::collection::vec(0..VOCAB as u32, 1..8)).prop_map(|(family, shared, own)| {
        let family = (0..shared as u32).map(|at| (at * 7 + family * 11) % VOCAB as u32);
        family.chain(own).map(TokenId).collect()
    })
}

fn stop() -> impl Strategy<Value = StopConditions> {
    let some_tokens = || prop::collection::vec((0..VOCAB as u32).prop_map(TokenId), 0..3).prop_map(Arc::from);
    (0u32..20, 0u32..5, some_tokens(), some_tokens(), any::<bool>()).prop_map(
        |(max_tokens, min_tokens, eos_token_ids, stop_token_ids, ignore)| StopConditions {
            max_tokens,
            min_tokens,
            eos_token_ids,
            stop_token_ids,
            eos: if ignore { EosPolicy::Ignore } else { EosPolicy::Stop },
        },
    )
}

fn request() -> impl Strategy<Value = EngineRequest> {
    let sampling =
        (any::<bool>(), any::<u64>(), any::<bool>()).prop_map(|(greedy, seed, penalty)| SamplingParams {
            temperature: if greedy { 0.0 } else { 1.0 },
            repetition_penalty: if penalty { 1.5 } else { 1.0 },
            seed,
            ..SamplingParams::default()
        });
    let logprobs = || prop::option::weighted(0.2, 0u32..3);
    let masked = prop::bool::weighted(0.2);
    let pooling = prop::option::weighted(0.2, prop::sample::select(vec![Pooling::Last, Pooling::Mean]));
    (prompt(), 1u32..4, sampling, stop(), logprobs(), logprobs(), masked, pooling).prop_map(
        |(prompt, choices, sampling, stop, logprobs, prompt_logprobs, masked, pooling)| EngineRequest {
            prompt,
            choices: NonZeroU32::new(choices).unwrap(),
            sampling: Arc::new(sampling),
            stop,
            logprobs,
            prompt_logprobs,
            masking: if masked { Masking::PerToken } else { Masking::None },
            pooling,
        },
    )
}

fn event() -> impl Strategy<Value = Event> {
    let which = || 0usize..16;
    prop_oneof![
        4 => request().prop_map(|request| Event::Add(Box::new(request))),
        2 => (which(), request()).prop_map(|(earlier, request)| Event::FollowUp(earlier, Box::new(request))),
        6 => Just(Event::Schedule),
        6 => Just(Event::Settle),
        8 => Just(Event::Turn),
        1 => which().prop_map(Event::Cancel),
        1 => (which(), which()).prop_map(|(request, choice)| Event::EndChoice(request, choice)),
        2 => (which(), which()).prop_map(|(request, choice)| Event::Mask(request, choice)),
        1 => Just(Event::AllMasks),
    ]
}

fn apply(harness: &mut Harness, event: Event) {
    let requests = harness.clients.len();
    let named = |request: usize, choice: usize, harness: &Harness| {
        let id = RequestId((request % requests) as u64);
        (id, ChoiceIndex((choice % harness.clients[&id].choices.len()) as u32))
    };
    match event {
        // A request that the limits do not admit is refused here, and nothing more.
        Event::Add(request) => drop(harness.add(*request)),
        Event::FollowUp(earlier, request) if requests > 0 => {
            let (id, choice) = named(earlier, 0, harness);
            let client = &harness.clients[&id];
            let turns =
                [&client.request.prompt, &client.choices[choice.0 as usize].tokens[..], &request.prompt];
            drop(harness.add(EngineRequest { prompt: turns.concat().into(), ..*request }));
        }
        Event::Schedule => drop(harness.schedule()),
        Event::Settle => harness.settle(),
        Event::Turn => drop(harness.turn()),
        Event::AllMasks => drop(harness.supply_masks()),
        Event::Cancel(request) if requests > 0 => harness.cancel(RequestId((request % requests) as u64)),
        Event::EndChoice(request, choice) if requests > 0 => {
            let (id, choice) = named(request, choice, harness);
            harness.end_choice(id, choice);
        }
        Event::Mask(request, choice) if requests > 0 => {
            let (id, choice) = named(request, choice, harness);
            harness.supply_mask(id, choice);
        }
        Event::FollowUp(..) | Event::Cancel(_) | Event::EndChoice(..) | Event::Mask(..) => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 4000, ..ProptestConfig::default() })]

    /// The executor fails the test if a page is lost, mixed up or written while shared; the audit after every event if a
    /// page or slot is leaked, freed twice or miscounted; the end if a request has other tokens than alone. Where steps are
    /// apart the executor also fails it if any token that is read was not computed as what it is, of a prompt or generated.
    #[test]
    fn nothing_is_lost_and_every_request_gets_its_own_tokens(
        limits in limits(),
        cached in any::<bool>(),
        events in prop::collection::vec(event(), 1..120),
    ) {
        let prefix_cache = if cached { PrefixCache::Enabled } else { PrefixCache::Disabled };
        let mut harness = Harness::with(limits, prefix_cache, ScriptedExecutor::new(limits));
        for event in events {
            apply(&mut harness, event);
        }
        harness.finish_all();
        harness.check_answers();
        audit_idle(&harness.scheduler);
    }
}
