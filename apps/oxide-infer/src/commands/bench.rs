//! `oxide-infer bench`.

use crate::bench::client::Client;
use crate::bench::compare::{self, WorkDone};
use crate::bench::offline::{self, Work};
use crate::bench::report;
use crate::bench::turns::{self, Load, Round, Row, Servers};
use crate::bench::workload::{self, Arrivals, Prompt, Request, Rng};
use crate::cli::options::{BenchArgs, BenchEndpoint, OnlineBenchOptions};
use crate::cli::values::RequestCount;
use crate::{load, terminal};
use anyhow::Context;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::Arc;

pub(crate) fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    terminal::start_logging(&args.log)?;
    match args.url.clone() {
        Some(url) => super::runtime()?.block_on(online(&url, args)),
        None => super::runtime()?.block_on(offline(&args)),
    }
}

async fn offline(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    let model = args.model.as_deref().context("--model or --url is needed")?;
    let engine = load::load_to_measure(model, args.offline.device, &args.offline.engine).await?;
    let repeat = args.repeat.map_or(5, NonZeroUsize::get);
    let work = Work {
        batch: args.offline.batch.get(),
        input_len: args.input_len.get(),
        output_len: u32::try_from(args.output_len.get()).context("--output-len is too large")?,
    };
    let speed = offline::measure(&engine, work, repeat, args.seed).await?;
    report_result(args, &report::speed_table(&speed), || {
        Ok(serde_json::json!({
            "model": model,
            "batch": work.batch,
            "input_len": work.input_len,
            "output_len": work.output_len,
            "repeat": repeat,
            "seed": args.seed,
            "artifacts": engine.operators().used(),
            "speed": serde_json::to_value(&speed)?,
        }))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the table, unless the JSON goes to standard output.
fn report_result(
    args: &BenchArgs,
    table: &str,
    json: impl FnOnce() -> anyhow::Result<serde_json::Value>,
) -> anyhow::Result<()> {
    if !json_goes_to_stdout(args) {
        terminal::print(table)?;
    }
    match &args.json {
        Some(path) => report::write_json(path, &json()?),
        None => Ok(()),
    }
}

fn json_goes_to_stdout(args: &BenchArgs) -> bool {
    args.json.as_ref().is_some_and(|path| path.as_os_str() == "-")
}

async fn online(url: &str, args: BenchArgs) -> anyhow::Result<ExitCode> {
    let servers = connect(url, &args).await?;
    let mut rng = Rng::new(args.seed);
    let mut rows = Vec::new();
    for concurrency in concurrencies(&args.online) {
        let work = load_of(&args, concurrency, &mut rng)?;
        let row = turns::run(&servers, work).await?;
        if !json_goes_to_stdout(&args) {
            terminal::print(&report_row(&row))?;
        }
        rows.push(row);
    }
    if let Some(path) = &args.json {
        report::write_json(path, &record(&servers, &args, &rows)?)?;
    }
    let failed: usize = rows.iter().map(Row::failed).sum();
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn connect(url: &str, args: &BenchArgs) -> anyhow::Result<Servers> {
    let options = &args.online;
    let connect = async |url: &str, model: &Option<String>, key: &Option<String>| -> anyhow::Result<_> {
        let (endpoint, timeout) = (options.endpoint, options.timeout);
        Ok(Arc::new(Client::connect(url, endpoint, model.clone(), key.clone(), timeout).await?))
    };
    let url = connect(url, &args.model, &options.api_key).await?;
    let against = match &options.against {
        Some(other) => Some(connect(other, &options.against_model, &options.against_api_key).await?),
        None => None,
    };
    Ok(Servers { url, against })
}

/// The numbers of requests in flight to measure at; `None` is without bound.
fn concurrencies(options: &OnlineBenchOptions) -> Vec<Option<NonZeroUsize>> {
    match (options.concurrency.as_slice(), options.request_rate) {
        ([], None) => vec![Some(NonZeroUsize::MIN)],
        ([], Some(_)) => vec![None],
        (several, _) => several.iter().copied().map(Some).collect(),
    }
}

/// What the servers get at one concurrency.
fn load_of(args: &BenchArgs, concurrency: Option<NonZeroUsize>, rng: &mut Rng) -> anyhow::Result<Load> {
    let options = &args.online;
    let count = |option: &str, count: RequestCount| {
        count
            .at(concurrency)
            .with_context(|| format!("{option} {count} counts by --concurrency, which does not bound it"))
    };
    let warmup = options.warmup.unwrap_or(match options.against {
        Some(_) => RequestCount::Waves(1),
        None => RequestCount::Exactly(1),
    });
    let warmup = requests(args, count("--warmup", warmup)?, rng)?;
    let measured = count("--num-requests", options.num_requests)?;
    let repeat = args.repeat.map_or(if options.against.is_some() { 3 } else { 1 }, NonZeroUsize::get);
    let rounds = (0..repeat).map(|_| {
        let requests = requests(args, measured, rng)?;
        Ok(Round { requests, arrivals: arrivals(options, measured, concurrency, rng)? })
    });
    Ok(Load { concurrency, warmup, rounds: rounds.collect::<anyhow::Result<_>>()? })
}

fn requests(args: &BenchArgs, count: usize, rng: &mut Rng) -> anyhow::Result<Vec<Request>> {
    let options = &args.online;
    let max_tokens = args.output_len.get();
    let len = args.input_len.get();
    anyhow::ensure!(
        options.vocab_size > 1,
        "--vocab-size {} is too small; at least 2 is needed",
        options.vocab_size
    );
    let prompts: Vec<Prompt> = match &options.prompts {
        Some(path) => {
            let texts = workload::read_prompts(path)?;
            texts.into_iter().map(Prompt::Text).cycle().take(count).collect()
        }
        None => (0..count)
            .map(|_| match options.endpoint {
                BenchEndpoint::Completions => {
                    Prompt::Tokens(workload::random_tokens(len, options.vocab_size, rng))
                }
                BenchEndpoint::Chat => Prompt::Text(workload::random_text(len, rng)),
            })
            .collect(),
    };
    Ok(prompts.into_iter().map(|prompt| Request { prompt, max_tokens }).collect())
}

fn arrivals(
    options: &OnlineBenchOptions,
    count: usize,
    concurrency: Option<NonZeroUsize>,
    rng: &mut Rng,
) -> anyhow::Result<Arrivals> {
    match options.request_rate {
        None => Ok(Arrivals::closed_loop(count, concurrency.unwrap_or(NonZeroUsize::MIN))),
        Some(rate) => {
            let possible = rate.is_finite() && rate > 0.0;
            anyhow::ensure!(possible, "--request-rate {rate} is not possible; it must be above 0");
            Ok(Arrivals::open_loop(count, rate, concurrency, rng))
        }
    }
}

/// What was found at one concurrency, for a reader.
fn report_row(row: &Row) -> String {
    let mut out = match row.load.concurrency {
        Some(concurrency) => format!("== concurrency {concurrency}\n"),
        None => String::new(),
    };
    if let [turn] = row.turns.as_slice() {
        let failures = report::count_failures(turn.outcome.failures());
        return out + &report::table(&turn.summary, &failures);
    }
    out.push_str(&report::turns_table(&compare::metrics(row), row.load.rounds.len()));
    for turn in row.turns.iter().filter(|turn| turn.summary.failed > 0) {
        for (reason, count) in report::count_failures(turn.outcome.failures()) {
            out.push_str(&format!(
                "FAILED in round {} of {}: {count} × {reason}\n",
                turn.round + 1,
                turn.side
            ));
        }
    }
    if let Some(work) = WorkDone::of(row) {
        out.push_str(&report::work_lines(&work));
    }
    out
}

/// Everything that was found: every turn, and of each concurrency every metric over the turns.
fn record(servers: &Servers, args: &BenchArgs, rows: &[Row]) -> anyhow::Result<serde_json::Value> {
    let mut runs = Vec::new();
    let mut medians = Vec::new();
    for row in rows {
        let concurrency = row.load.concurrency;
        for turn in &row.turns {
            let client = servers.get(turn.side).context("a turn without a server")?;
            runs.push(serde_json::json!({
                "server": turn.side,
                "round": turn.round,
                "url": client.url(),
                "model": client.model(),
                "num_requests": turn.outcome.results.len(),
                "concurrency": concurrency,
                "request_rate": args.online.request_rate,
                "input_len": args.input_len,
                "output_len": args.output_len,
                "seed": args.seed,
                "failures": report::count_failures(turn.outcome.failures()),
                "summary": serde_json::to_value(&turn.summary)?,
            }));
        }
        medians.push(serde_json::json!({
            "concurrency": concurrency,
            "rounds": row.load.rounds.len(),
            "warmup": row.load.warmup.len(),
            "metrics": compare::metrics(row),
            "work": WorkDone::of(row),
        }));
    }
    Ok(serde_json::json!({ "version": env!("CARGO_PKG_VERSION"), "runs": runs, "rows": medians }))
}
