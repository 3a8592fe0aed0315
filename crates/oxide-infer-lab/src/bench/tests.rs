use super::*;
use oxide_infer_cuda::artifact::{Registry, Target};
use oxide_infer_cuda::driver::simulated::SimulatedDriver;

fn times(row: &str, flushed: f64) -> Times {
    Times {
        row: row.to_owned(),
        implementation: String::new(),
        layout: None,
        bytes: 1,
        calls: 1,
        sets: 1,
        eager_us: vec![1.0],
        eager_one_scope_us: vec![1.0],
        graph_of_one_us: None,
        warm_us: None,
        flushed_us: Some(vec![flushed]),
    }
}

#[test]
fn products_are_judged_by_the_geometric_mean_beside_the_library() {
    let gemm = || Finding::of(Family::Gemm.gate());
    // 2 and 1/2: as fast in the mean.
    let mut finding = gemm();
    products(&[times("a", 1.0), times("a", 2.0), times("b", 4.0), times("b", 2.0)], &mut finding);
    assert!(finding.is_pass(), "{finding}");
    // A row without the library's time does not count.
    let mut finding = gemm();
    products(&[times("a", 2.0), times("b", 1.0), times("b", 0.9)], &mut finding);
    assert_eq!(finding.failures.len(), 1, "{finding}");
    let mut finding = gemm();
    products(&[times("a", 2.0), times("b", 1.0)], &mut finding);
    assert!(finding.passed.is_empty() && finding.failures.is_empty());
}

#[test]
fn the_median_of_an_even_number_is_the_upper_one_and_of_none_is_no_number() {
    assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
    assert_eq!(median(&[4.0, 1.0]), 4.0);
    assert!(median(&[]).is_nan());
}

/// On a simulated device nothing takes device time, so only that every row is planned, bound, enqueued and captured.
#[test]
fn every_row_of_the_matrix_is_planned_bound_and_enqueued() {
    let context = Context::primary_on(SimulatedDriver::new(), 0).unwrap();
    let registry = Arc::new(Registry::embedded(Target::hopper()).unwrap());
    let mut maker = Maker::new(&context, &registry).unwrap();
    let clock = Clock::new(&context).unwrap();
    for mut row in Matrix::load(None).unwrap().rows {
        // A host has not the memory for the largest.
        if row.work.bytes() > 5_000_000 {
            continue;
        }
        let operator = maker.artifact(&row).unwrap().unwrap();
        clock.eager(&operator.sets[0], 2, Scopes::OneEach).unwrap();
        row.id.clear();
        clock.capture(&operator.sets[..1]).unwrap();
    }
}
