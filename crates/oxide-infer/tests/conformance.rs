//! The suite against the references, which must pass it, and against providers that are wrong in one way each, which must
//! not.

#![cfg(feature = "conformance")]

use oxide_infer::Contract;
use oxide_infer::conformance::{Reference, run};

#[test]
fn the_references_pass_every_case() {
    let report = run(&mut Reference);
    assert!(report.covers(&[Contract::RMS_NORM]), "{report}");
    println!("{report}");
}
