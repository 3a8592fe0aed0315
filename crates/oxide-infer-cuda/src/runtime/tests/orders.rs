//! Whatever is dropped, and in whatever order, nothing in flight loses its memory, and in the end nothing is left.

use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Allocate,
    /// Drops one of the regions, by its place among them.
    DropRegion(usize),
    Bind(usize),
    DropLaunch(usize),
    Launch(usize),
    Fill(usize),
    Capture(usize),
    Replay(usize),
    DropGraph(usize),
    /// Ends the open scope and keeps its completion.
    Finish,
    /// Drops the open scope.
    Abandon,
    Wait(usize),
    Poll(usize),
    DropCompletion(usize),
    Hold,
    Release,
}

fn step() -> impl Strategy<Value = Step> {
    let i = 0usize..4;
    prop_oneof![
        3 => Just(Step::Allocate),
        2 => i.clone().prop_map(Step::DropRegion),
        3 => i.clone().prop_map(Step::Bind),
        2 => i.clone().prop_map(Step::DropLaunch),
        4 => i.clone().prop_map(Step::Launch),
        3 => i.clone().prop_map(Step::Fill),
        2 => i.clone().prop_map(Step::Capture),
        4 => i.clone().prop_map(Step::Replay),
        2 => i.clone().prop_map(Step::DropGraph),
        3 => Just(Step::Finish),
        1 => Just(Step::Abandon),
        1 => i.clone().prop_map(Step::Wait),
        2 => i.clone().prop_map(Step::Poll),
        2 => i.prop_map(Step::DropCompletion),
        2 => Just(Step::Hold),
        2 => Just(Step::Release),
    ]
}

/// What a caller holds.
struct Held {
    driver: Arc<SimulatedDriver>,
    context: Context,
    stream: Stream,
    kernel: Kernel,
    regions: Vec<Region<u8>>,
    launches: Vec<BoundLaunch>,
    graphs: Vec<Graph>,
    completions: Vec<Completion>,
    scope: Option<CommandScope>,
}

impl Held {
    fn new() -> Self {
        let (driver, context) = device();
        let (stream, kernel) = (context.stream().unwrap(), kernel(&context));
        Self {
            driver,
            context,
            stream,
            kernel,
            regions: Vec::new(),
            launches: Vec::new(),
            graphs: Vec::new(),
            completions: Vec::new(),
            scope: None,
        }
    }

    fn scope(&mut self) -> &mut CommandScope {
        self.scope.get_or_insert_with(|| CommandScope::new(&self.stream).unwrap())
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Allocate => self.regions.push(Region::allocate(&self.context, 16).unwrap()),
            Step::DropRegion(i) => drop(removed(&mut self.regions, i)),
            Step::Bind(i) => {
                if let Some(region) = one(&self.regions, i) {
                    let argument = Argument::Region(region.span(), Access::Write);
                    self.launches.push(bind(&self.kernel, SHAPE, &[argument]).unwrap());
                }
            }
            Step::DropLaunch(i) => drop(removed(&mut self.launches, i)),
            Step::Launch(i) => {
                let launches = std::mem::take(&mut self.launches);
                if let Some(launch) = one(&launches, i) {
                    self.scope().launch(launch).unwrap();
                }
                self.launches = launches;
            }
            Step::Fill(i) => {
                if let Some(region) = one(&self.regions, i).cloned() {
                    self.scope().fill(&region, 1).unwrap();
                }
            }
            Step::Capture(i) => {
                // A stream is captured only while no scope is open on it.
                self.take(Step::Finish);
                if let Some(launch) = one(&self.launches, i) {
                    self.graphs.push(Graph::capture(&self.stream, |scope| scope.launch(launch)).unwrap());
                }
            }
            Step::Replay(i) => {
                if let Some(graph) = one(&self.graphs, i).cloned() {
                    graph.replay(self.scope()).unwrap();
                }
            }
            Step::DropGraph(i) => drop(removed(&mut self.graphs, i)),
            Step::Finish => self.completions.extend(self.scope.take().map(|scope| scope.finish().unwrap())),
            Step::Abandon => self.scope = None,
            Step::Wait(i) => {
                if let Some(completion) = removed(&mut self.completions, i) {
                    self.driver.release();
                    completion.wait().unwrap();
                }
            }
            Step::Poll(i) => {
                let count = self.completions.len();
                if let Some(completion) = self.completions.get_mut(i % count.max(1)) {
                    completion.poll().unwrap();
                }
            }
            Step::DropCompletion(i) => drop(removed(&mut self.completions, i)),
            Step::Hold => self.driver.hold(),
            Step::Release => self.driver.release(),
        }
    }
}

fn one<T>(items: &[T], i: usize) -> Option<&T> {
    items.get(i % items.len().max(1))
}

fn removed<T>(items: &mut Vec<T>, i: usize) -> Option<T> {
    (!items.is_empty()).then(|| items.remove(i % items.len()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn dropping_in_any_order_never_frees_memory_in_use_and_leaves_nothing(
        steps in proptest::collection::vec(step(), 1..80)
    ) {
        let mut held = Held::new();
        for step in steps {
            held.take(step);
        }
        let driver = held.driver.clone();
        // The stream's own destruction waits for its work.
        driver.release();
        drop(held);
        eventually("the context's release", || driver.live_handles() == 0 && driver.live_allocations() == 0);
        prop_assert_eq!(driver.violations(), Vec::<String>::new());
    }
}
