//! What must hold between any two calls of the scheduler.

use crate::scheduler::Scheduler;
use crate::scheduler::sequence::{Prompt, SequenceKey, Stage};
use oxide_infer::PageId;
use std::collections::{HashMap, HashSet};

/// Checks that every page, slot and queue entry is accounted for.
pub(super) fn audit(scheduler: &Scheduler) {
    audit_pages(scheduler);
    audit_slots(scheduler);
    audit_queues(scheduler);
}

/// Checks that nothing is held any more.
pub(super) fn audit_idle(scheduler: &Scheduler) {
    audit(scheduler);
    assert!(scheduler.is_empty());
    assert_eq!(scheduler.pager.used(), 0);
    assert_eq!(scheduler.free_slots.len(), scheduler.limits.max_sequences);
    assert_eq!((scheduler.waiting.len(), scheduler.running.len()), (0, 0));
}

fn audit_pages(scheduler: &Scheduler) {
    let mut owners: HashMap<PageId, u32> = HashMap::new();
    for sequence in scheduler.requests.values().flat_map(|request| &request.sequences) {
        for page in &sequence.pages {
            *owners.entry(*page).or_default() += 1;
        }
    }
    for page in (0..scheduler.limits.num_pages as u32).map(PageId) {
        let expected = owners.get(&page).copied().unwrap_or(0);
        assert_eq!(scheduler.pager.owners(page), expected, "owners of page {page}");
    }
    scheduler.pager.audit();
}

fn audit_slots(scheduler: &Scheduler) {
    let mut seen: HashSet<_> = scheduler.free_slots.iter().copied().collect();
    assert_eq!(seen.len(), scheduler.free_slots.len(), "a slot is free twice");
    for request in scheduler.requests.values() {
        let leader = request.sequences[0].slot.is_some();
        for sequence in &request.sequences {
            let expected = match sequence.stage {
                Stage::Running => true,
                Stage::AwaitsFork => leader,
                Stage::Waiting | Stage::Ended => false,
            };
            assert_eq!(
                sequence.slot.is_some(),
                expected,
                "{:?} has the slot {:?}",
                sequence.stage,
                sequence.slot
            );
            assert!(
                sequence.slot.is_none_or(|slot| seen.insert(slot.id)),
                "slot {:?} is used twice",
                sequence.slot
            );
        }
    }
    assert_eq!(seen.len(), scheduler.limits.max_sequences, "a slot is lost");
    let used = scheduler.limits.max_sequences - scheduler.free_slots.len();
    assert_eq!(scheduler.stats.running, used as u64);
}

fn audit_queues(scheduler: &Scheduler) {
    let order: Vec<SequenceKey> = scheduler.running.iter().chain(&scheduler.waiting).copied().collect();
    // The tests name requests in the order in which they add them.
    assert!(order.is_sorted(), "running and waiting are not oldest first: {order:?}");
    let queued: HashMap<_, _> = order.iter().enumerate().map(|(at, key)| (*key, at)).collect();
    assert_eq!(queued.len(), order.len(), "a sequence is queued twice");
    let mut without_slot = 0;
    for (id, request) in &scheduler.requests {
        for (choice, sequence) in (0u32..).zip(&request.sequences) {
            let key = SequenceKey { request: *id, choice: crate::request::ChoiceIndex(choice) };
            let expected = match queued.get(&key) {
                Some(at) if *at < scheduler.running.len() => Stage::Running,
                Some(_) => Stage::Waiting,
                None if request.prompt == Prompt::Ahead && choice > 0 && sequence.stage != Stage::Ended => {
                    Stage::AwaitsFork
                }
                None => Stage::Ended,
            };
            assert_eq!(sequence.stage, expected, "{key:?}");
            assert!(sequence.stage == Stage::Running || sequence.pages.is_empty(), "{key:?} holds pages");
            without_slot += u64::from(sequence.stage != Stage::Ended && sequence.slot.is_none());
        }
    }
    assert_eq!(scheduler.stats.waiting, without_slot);
}
