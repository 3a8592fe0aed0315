//! `oxide-infer bench`.

use crate::bench::client::Client;
use crate::bench::offline::{self, Work};
use crate::bench::report;
use crate::bench::stats::Summary;
use crate::bench::workload::{self, Arrivals, Prompt, Request, Rng};
use crate::cli::options::{BenchArgs, BenchEndpoint, OnlineBenchOptions};
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
    let repeat = args.offline.repeat.get();
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
    let path = args.json.as_deref();
    if path.is_none_or(|path| path.as_os_str() != "-") {
        terminal::print(table)?;
    }
    match path {
        Some(path) => report::write_json(path, &json()?),
        None => Ok(()),
    }
}

async fn online(url: &str, args: BenchArgs) -> anyhow::Result<ExitCode> {
    let options = &args.online;
    let key = options.api_key.clone();
    let client = Client::connect(url, options.endpoint, args.model.clone(), key, options.timeout).await?;
    let client = Arc::new(client);
    let mut rng = Rng::new(args.seed);
    let mut requests = requests(&args, &mut rng)?;
    let arrivals = arrivals(options, &mut rng)?;

    let warmup: Vec<Request> = requests.drain(..options.warmup).collect();
    for request in &warmup {
        if let Err(failure) = client.send(request).await {
            anyhow::bail!("the first request to {} failed: {failure}", client.url());
        }
    }
    tracing::info!("sending {} requests to {} for {}", requests.len(), client.url(), client.model());
    let outcome = crate::bench::drive(&client, requests, &arrivals).await;
    let summary = Summary::of(&outcome);
    let failures = report::count_failures(&outcome.failures);
    report_result(&args, &report::table(&summary, &failures), || {
        Ok(serde_json::json!({
            "url": client.url(),
            "model": client.model(),
            "num_requests": options.num_requests,
            "concurrency": arrivals.concurrency,
            "request_rate": options.request_rate,
            "input_len": args.input_len,
            "output_len": args.output_len,
            "seed": args.seed,
            "failures": failures,
            "summary": serde_json::to_value(&summary)?,
        }))
    })?;
    Ok(if summary.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The warm-up requests and after them the measured ones.
fn requests(args: &BenchArgs, rng: &mut Rng) -> anyhow::Result<Vec<Request>> {
    let options = &args.online;
    let count = options.warmup + options.num_requests.get();
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

fn arrivals(options: &OnlineBenchOptions, rng: &mut Rng) -> anyhow::Result<Arrivals> {
    let count = options.num_requests.get();
    match options.request_rate {
        None => Ok(Arrivals::closed_loop(count, options.concurrency.unwrap_or(NonZeroUsize::MIN))),
        Some(rate) => {
            let possible = rate.is_finite() && rate > 0.0;
            anyhow::ensure!(possible, "--request-rate {rate} is not possible; it must be above 0");
            Ok(Arrivals::open_loop(count, rate, options.concurrency, rng))
        }
    }
}
