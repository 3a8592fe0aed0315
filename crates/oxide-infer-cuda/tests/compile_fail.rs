//! Misuse that does not compile.

#[test]
fn misuse_of_plans_scopes_and_graphs_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
