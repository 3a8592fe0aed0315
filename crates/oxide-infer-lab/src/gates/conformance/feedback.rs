//! `embedding.gather` of tokens that were sampled last: slots that there are and are not. Ids by way of slots are among the
//! contract's cases.

use super::{Found, hold};
use crate::call::{Bench, Call};
use crate::provider::BegunNorm;
use anyhow::Result;
use half::bf16;
use oxide_infer_cuda::artifact::status::DeviceStatus;
use oxide_infer_cuda::artifact::{Artifact, Request};

const HIDDEN: usize = 8;
const VOCABULARY: usize = 11;
const LAST_TOKENS: [u32; 5] = [4, 9, 0, 10, 7];

pub(super) fn run(mut bench: Bench, artifact: &Artifact) -> Result<Found> {
    let mut found = Found::default();
    for (slots, bad) in [
        ([-1, 4, 0], None),
        ([i32::MIN, 3, -7], None),
        ([-1, 5, 0], Some(1)),
        ([i32::MAX, 1, -1], Some(0)),
        ([0, 1, 6], Some(2)),
    ] {
        match case(&mut bench, artifact, slots, bad) {
            Ok(()) => found.checks += 1,
            Err(error) => found.failures.push(format!("slots {slots:?}: {error:#}")),
        }
    }
    Ok(found)
}

/// Rows of a table whose elements name their row; one whose slot is not there is zeros.
fn case(bench: &mut Bench, artifact: &Artifact, slots: [i32; 3], bad: Option<u32>) -> Result<()> {
    let ids = [1_u32, 2, 3];
    let row = |id: usize| [1.0 + id as f32; HIDDEN];
    let table: Vec<bf16> = (0..VOCABULARY).flat_map(row).map(bf16::from_f32).collect();
    let want = (0..ids.len()).flat_map(|token| match usize::try_from(slots[token]) {
        Err(_) => row(ids[token] as usize),
        Ok(slot) => LAST_TOKENS.get(slot).map_or([0.0; HIDDEN], |&id| row(id as usize)),
    });
    let want: Vec<f32> = want.collect();
    let mut output = vec![f32::NAN; want.len()];
    let mut request = Request::new("embedding.gather", 1)
        .property("table", "bf16")
        .property("output", "f32")
        .property("feedback", "present")
        .dimension("tokens", ids.len() as u64)
        .dimension("vocab_size", VOCABULARY as u64)
        .dimension("hidden_size", HIDDEN as u64)
        .dimension("max_sequences", LAST_TOKENS.len() as u64);
    let mut begun = BegunNorm::new(ids.len(), HIDDEN);
    let weighted = artifact.manifest().operand("weighted").is_some();
    if weighted {
        request = request.property("norm", "weighted");
    }
    let mut call = Call::new(request);
    call.read_list("ids", &ids);
    call.read_list("slots", &slots);
    call.read_list("last_tokens", &LAST_TOKENS);
    call.read_list("table", &table);
    call.write_list("output", &mut output);
    if weighted {
        begun.operands(&mut call);
    }
    let reported = call.run(bench, artifact)?;
    let status = bad.map(|index| DeviceStatus::IndexOutOfRange { index });
    hold(reported == status, || format!("the device should report {status:?}, got {reported:?}"))?;
    hold(output == want, || format!("output should be {want:?}, got {output:?}"))?;
    if weighted { begun.check(&output).map_err(anyhow::Error::msg) } else { Ok(()) }
}
